"""Each test has a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sampling import ahead, box, brief, eager, make  # noqa: F401  fixtures


@pytest.fixture(autouse=True)
def _own_home(own_home: Path) -> Path:
    return own_home
