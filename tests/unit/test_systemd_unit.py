"""The systemd user unit of the gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.gateway.background import UNIT, install, unit_text
from gpubox.interchange.systemd import read_unit
from gpubox.paths import Paths
from gpubox.server.state import GatewayRecord, save_gateway
from tests.fake_gateway import DEAD, fake_gateway


@pytest.fixture(autouse=True)
def no_systemctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubox.gateway.background._reload", lambda: False)


def test_the_unit_starts_this_gpubox_with_its_folders(paths: Paths) -> None:
    unit = install(paths, host="0.0.0.0", port=8081)

    text = unit.path.read_text()
    assert unit.path == paths.config.parent / "systemd/user" / UNIT
    [command] = read_unit(text).commands
    assert list(command.words) == [
        sys.executable, "-P", "-m", "gpubox", "serve", "--quiet", "--host", "0.0.0.0", "--port", "8081",
    ]  # fmt: skip
    assert f"Environment=XDG_STATE_HOME={paths.state.parent}\n" in text
    assert f"Environment=PATH={os.environ['PATH']}\n" in text
    assert unit.commands == (
        "systemctl --user daemon-reload", "systemctl --user enable --now gpubox-gateway", "loginctl enable-linger",
    )  # fmt: skip


@pytest.mark.parametrize("helpers", [(), ("nvidia-modprobe",), ("nvidia-modprobe", "newuidmap")])
def test_it_takes_from_engines_only_what_they_do_not_need(helpers: tuple[str, ...]) -> None:
    lines = unit_text(["/usr/bin/python3"], {}, helpers=helpers).splitlines()
    assert "UMask=0077" in lines
    assert ("NoNewPrivileges=yes" in lines) == (not helpers)
    assert all(any(line.startswith("#") and helper in line for line in lines) for helper in helpers)


def test_it_is_written_again_but_never_over_another_or_a_changed_one(paths: Paths) -> None:
    unit = install(paths)
    install(paths, port=8081)
    written = unit.path.read_text()
    assert "--port 8081" in written
    for other, why in ((written.replace("8081", "8082"), "was changed"), ("[Service]\n", "is not gpubox's")):
        unit.path.write_text(other)
        with pytest.raises(UsageError, match=why):
            install(paths)
        assert unit.path.read_text() == other


def test_secrets_stay_out_and_are_mentioned(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUBOX_API_KEY", "sesame")

    unit = install(paths)

    assert "sesame" not in unit.path.read_text() + " ".join(unit.notes)
    assert str(paths.api_key_file) in unit.notes[-1]


def test_a_gateway_that_would_be_in_the_way_is_mentioned(paths: Paths) -> None:
    with fake_gateway(paths):
        assert "gpubox serve --stop" in install(paths).notes[1]
    save_gateway(paths, GatewayRecord(DEAD, "127.0.0.1", 1, "", ""))
    assert len(install(paths).notes) == 1


def test_a_folder_that_cannot_be_written_is_one_sentence(paths: Paths) -> None:
    paths.config.parent.mkdir(parents=True, exist_ok=True)
    (paths.config.parent / "systemd").write_text("")
    with pytest.raises(GpuboxError, match="cannot be written"):
        install(paths)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
@pytest.mark.parametrize(
    "folder", ["plain", "with space", "per%cent", 'quo"te', "dol$lar", "semi;colon", "back\\slash"]
)
def test_systemd_accepts_it_with_any_path(tmp_path: Path, folder: str) -> None:
    python = tmp_path / folder / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    unit = tmp_path / UNIT
    unit.write_text(unit_text([str(python), "-m", "gpubox", "serve"], {"PATH": f"/bin:{tmp_path}/{folder}"}))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", unit], capture_output=True, text=True, env=environment, timeout=60
    )

    assert UNIT not in done.stderr
