"""Each test has a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_home(own_home: Path, patient: None) -> Path:
    return own_home
