"""A home folder for each test, and the profiles that several tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from tests.ports import free_port


@pytest.fixture(autouse=True)
def _own_home(own_home: Path, patient: None, paths: Paths) -> Iterator[None]:
    """Servers that a test leaves running are killed at its end."""
    yield
    for identity, _ in find_by_marker(f"{paths.state}|"):
        os.kill(identity.pid, signal.SIGKILL)


@pytest.fixture
def box(paths: Paths, fake_engine: Path, tiny_gguf: Path, write_profile: Callable[[str, str], Path]) -> int:
    """Profiles a and b on a fake engine, on one port, and two profiles that cannot be measured with it."""
    port = free_port()
    for name, size in (("a", 2048), ("b", 4096)):
        write_profile(name, f'model = "{tiny_gguf}"\nport = {port}\n[flags]\nctx-size = {size}\n')
    rates = 'spec-type = "draft-mtp"\nspec-synth-rates = "0.9,0.8"\nspec-draft-n-max = 2\n'
    write_profile("synthetic", f'model = "{tiny_gguf}"\nport = {port}\n[flags]\n{rates}')
    write_profile("beside", f'model = "{tiny_gguf}"\nport = 0\ncompanion = true\n')
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\nfake = "{fake_engine}"\n')
    return port
