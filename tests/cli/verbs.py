"""Runs command lines in this process."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from gpubox.cli.main import run


def gpubox(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command line. Fails for a traceback."""
    capfd.readouterr()
    code = run(list(words))
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def values(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON object of one command line."""
    code, out, _ = gpubox(capfd, *words, "--json")
    return code, json.loads(out)


def may_mount() -> bool:
    """Whether a test may mount a folder of its own, in a namespace."""
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return bool(shutil.which("unshare")) and not subprocess.run(mount, check=False).returncode
