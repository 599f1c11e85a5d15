"""The systemd user unit of the gateway."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.gateway.background import SOCKET_UNIT, UNIT, inherited_sockets, install, notify, socket_text, unit_text
from gpubox.interchange.systemd import read_unit
from gpubox.paths import Paths
from gpubox.server.state import GatewayRecord, save_gateway
from tests.fake_gateway import DEAD, fake_gateway

ADDRESS = ("127.0.0.1", 8080)


def test_the_units_start_this_gpubox_with_its_folders_at_its_address(paths: Paths) -> None:
    units = install(paths, ("0.0.0.0", 8081), options=["--host", "0.0.0.0", "--port", "8081"])

    folder = paths.config.parent / "systemd/user"
    assert units.paths == (folder / UNIT, folder / SOCKET_UNIT)
    text, listens = (path.read_text() for path in units.paths)
    [command] = read_unit(text).commands
    assert list(command.words) == [
        sys.executable, "-P", "-m", "gpubox", "serve", "--quiet", "--host", "0.0.0.0", "--port", "8081",
    ]  # fmt: skip
    assert f"Environment=XDG_STATE_HOME={paths.state.parent}\n" in text
    assert f"Environment=PATH={os.environ['PATH']}\n" in text
    assert "ListenStream=0.0.0.0:8081\n" in listens
    assert units.commands == (
        "systemctl --user enable --now gpubox-gateway.socket gpubox-gateway.service",
        "loginctl enable-linger",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("host", "addresses"),
    [("127.0.0.1", {"127.0.0.1:1"}), ("::1", {"[::1]:1"}), ("0.0.0.0", {"0.0.0.0:1"}), ("::", {"[::]:1"})],
)
def test_the_socket_has_addresses_and_no_names(host: str, addresses: set[str]) -> None:
    lines = socket_text(host, 1).splitlines()
    assert {line.removeprefix("ListenStream=") for line in lines if line.startswith("ListenStream=")} == addresses


def test_sockets_are_taken_from_systemd_alone_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, count in ((os.getpid(), "0"), (1, "1")):  # a parent's variables are not meant for us
        monkeypatch.setenv("LISTEN_PID", str(pid))
        monkeypatch.setenv("LISTEN_FDS", count)
        assert inherited_sockets() == ()
        assert not {"LISTEN_PID", "LISTEN_FDS"} & set(os.environ)


@pytest.mark.parametrize("address", ["notify", "@gpubox-notify-{pid}"])
def test_systemd_hears_of_its_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    address = address.format(pid=os.getpid()) if address.startswith("@") else str(tmp_path / address)
    notify("READY=1")  # nobody wants to know
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")  # nobody is there
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0", 1))
        notify("STOPPING=1")
        assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("helpers", [(), ("nvidia-modprobe",), ("nvidia-modprobe", "newuidmap")])
def test_it_takes_from_engines_only_what_they_do_not_need(helpers: tuple[str, ...]) -> None:
    lines = unit_text(["/usr/bin/python3"], {}, helpers=helpers).splitlines()
    assert "UMask=0077" in lines
    assert ("NoNewPrivileges=yes" in lines) == (not helpers)
    assert all(any(line.startswith("#") and helper in line for line in lines) for helper in helpers)


def test_they_are_written_again_but_never_over_another_or_a_changed_one(paths: Paths) -> None:
    units = install(paths, ADDRESS)
    install(paths, ("127.0.0.1", 8081), options=["--port", "8081"])
    for path in units.paths:
        written = path.read_text()
        assert "8081" in written
        for other, why in ((written.replace("8081", "8082"), "was changed"), ("[Service]\n", "is not gpubox's")):
            path.write_text(other)
            with pytest.raises(UsageError, match=why):
                install(paths, ADDRESS)
            assert path.read_text() == other
        path.write_text(written)


def test_secrets_stay_out_and_are_mentioned(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUBOX_API_KEY", "sesame")

    units = install(paths, ADDRESS)

    assert "sesame" not in units.paths[0].read_text() + " ".join(units.notes)
    assert str(paths.api_key_file) in units.notes[-1]


def test_a_gateway_that_would_be_in_the_way_is_mentioned(paths: Paths) -> None:
    with fake_gateway(paths):
        assert "gpubox serve --stop" in install(paths, ADDRESS).notes[-1]
    save_gateway(paths, GatewayRecord(DEAD, "127.0.0.1", 1, "", ""))
    assert "--stop" not in " ".join(install(paths, ADDRESS).notes)


def test_a_folder_that_cannot_be_written_is_one_sentence(paths: Paths) -> None:
    paths.config.parent.mkdir(parents=True, exist_ok=True)
    (paths.config.parent / "systemd").write_text("")
    with pytest.raises(GpuboxError, match="cannot be written"):
        install(paths, ADDRESS)


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
    (tmp_path / SOCKET_UNIT).write_text(socket_text(*ADDRESS))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    words = ["systemd-analyze", "--user", "verify", str(unit), str(tmp_path / SOCKET_UNIT)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)

    assert UNIT not in done.stderr and SOCKET_UNIT not in done.stderr
