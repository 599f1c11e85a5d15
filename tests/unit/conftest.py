"""Each test has a home of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.sandbox.runner import Sandbox
from tests.unit.sampling import ahead, box, brief, eager, make  # noqa: F401  fixtures


@pytest.fixture(autouse=True)
def _own_home(own_home: Path) -> Path:
    return own_home


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """The sandbox of this machine; the test is skipped if none works."""
    sandbox = Sandbox(Config())
    if asyncio.run(sandbox.confinement()).isolation is None:
        pytest.skip("nothing confines programs on this machine")
    return sandbox
