"""The state file: it is read as it was written, damage is reported, and no write is partial."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpubox.clock import utc_now
from gpubox.errors import GpuboxError
from gpubox.hardware.process import ProcessIdentity
from gpubox.server import state as state_module
from gpubox.server.state import InstanceState, Launch, Operation, RunningServer, load_state, save_state

LAUNCH = Launch(
    profile="a",
    argv=("/opt/llama-server", "--model", "/m/ü [x].gguf", "--port", "8080"),
    host="0.0.0.0",
    port=8080,
    env={"CUDA_VISIBLE_DEVICES": "0"},
    engine="fork",
    engine_path="/opt/llama-server",
    engine_version="b11434",
    model_path="/m/ü [x].gguf",
    model_bytes=22_000_000_000,
    embeddings=True,
)
RUNNING = RunningServer(
    LAUNCH,
    "f00d",
    "2026-01-01T00:00:00.000Z",
    ProcessIdentity(7, 99, "boot"),
    None,
    3.25,
    ((0, 12),),
    (1, 1),
    True,
    (0,),
)
STATE = InstanceState(
    RUNNING, Operation("switch", "b", "load", ProcessIdentity(8, 5, "boot"), "utc_now"), LAUNCH, "why \udcff"
)


def test_a_whole_state_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "servers" / "main.json"
    save_state(path, STATE)

    assert load_state(path) == STATE
    assert [file.name for file in path.parent.iterdir()] == ["main.json"]


def test_an_empty_state_comes_back_and_so_does_no_file(tmp_path: Path) -> None:
    path = tmp_path / "main.json"
    assert load_state(path) == InstanceState()
    save_state(path, InstanceState())
    assert load_state(path) == InstanceState()


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    save_state(tmp_path / "main.json", STATE)

    assert (tmp_path / "main.json").stat().st_mode & 0o777 == 0o600


def changed(**changes: Any) -> str:
    values = {
        "running": {
            "launch": {"profile": "a", "argv": ["x"], "host": "h", "port": 1, "env": {}},
            "launch_id": "f",
            "started_at": "t",
            "process": {"pid": 7, "start_ticks": 1, "boot_id": "b"},
        }
    }
    for dotted, value in changes.items():
        *way, last = dotted.split("__")
        inner: Any = values
        for key in way:
            inner = inner[key]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return json.dumps(values)


def test_the_smallest_record_is_whole(tmp_path: Path) -> None:
    (tmp_path / "main.json").write_text(changed())

    assert load_state(tmp_path / "main.json").running is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{ not json",
        changed()[:-20],
        "\x00" * 400,
        "[]",
        "3",
        '"text"',
        "[" * 100_000,
        changed(running="a server"),
        changed(running=["a server"]),
        changed(running__launch=...),
        changed(running__launch_id=...),
        changed(running__from_the_future=1),
        changed(running__process={"pid": 7}),
        changed(running__process="7"),
        changed(running__launch__argv=...),
        changed(running__launch__argv=3),
        changed(running__launch__env="x"),
        changed(running__launch__host=None),
        changed(running__launch__port="8080"),
        changed(operation={"kind": "switch"}),
        changed(last_good={"profile": "a"}),
    ],
)
def test_a_damaged_file_is_an_empty_state_that_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "main.json"
    path.write_text(text)

    state = load_state(path)

    assert state.running is None
    assert f"The state file {path} was damaged" in state.message


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    (tmp_path / "main.json").write_bytes(b"\xff\xfe\x00")

    assert "damaged (UnicodeDecodeError)" in load_state(tmp_path / "main.json").message


def test_a_folder_in_its_place_is_damage(tmp_path: Path) -> None:
    assert "damaged (it is a folder, not a file)" in load_state(tmp_path).message


def test_a_disk_that_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(GpuboxError, match=r"main\.json cannot be written") as caught:
        save_state(tmp_path / "file" / "main.json", STATE)

    assert caught.value.hint


@pytest.mark.parametrize(("number", "message"), [(5, "new"), (28, "n" * 100_000)], ids=["broken", "full, and longer"])
def test_a_disk_that_refuses_leaves_the_old_state_whole_and_no_litter(
    number: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "main.json"
    save_state(path, STATE)

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(GpuboxError, match=os.strerror(number)):
        save_state(path, InstanceState(message=message))

    assert load_state(path) == STATE
    assert list(tmp_path.iterdir()) == [path]


def test_on_a_full_disk_the_record_takes_the_room_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "main.json"
    save_state(path, STATE)

    def full(path: Path, data: bytes, *, wait: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_module, "write_atomically", full)
    for new in (InstanceState(message="new"), STATE):
        save_state(path, new)
        assert load_state(path) == new
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
        ("::1", "http://[::1]:8080"),
        ("[::1]", "http://[::1]:8080"),
        ("192.168.1.5", "http://192.168.1.5:8080"),
        ("box.lan", "http://box.lan:8080"),
    ],
)
def test_where_this_machine_reaches_it(host: str, url: str) -> None:
    assert Launch("a", (), host, 8080).base_url == url


def test_now_is_utc_to_the_millisecond() -> None:
    import re

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", utc_now())
