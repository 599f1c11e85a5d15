"""A failed switch restores the old profile, with a real engine and a real model."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gpubox.cli.main import run
from tests.engine.conftest import Box
from tests.ports import free_port

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("patient")]


@dataclass(frozen=True)
class Broken:
    """A profile that cannot start, the expected message, and whether the old server may be stopped for it."""

    name: str
    make: Callable[[Box], str]
    code: int
    says: str
    untouched: bool = True
    anyway: bool = False
    """Whether the owner insists although it would not fit."""


def truncated(box: Box) -> str:
    path = box.root / "truncated.gguf"
    path.write_bytes(box.model.read_bytes()[:50_000_000])
    return box.profile("truncated", model=str(path))


def text_file(box: Box) -> str:
    path = box.root / "text.gguf"
    path.write_text("version https://example.org\nnot a model\n")
    return box.profile("text", model=str(path))


BROKEN = (
    Broken("unknown flag", lambda b: b.profile("p", {"no-such-flag": 3}), 2, "no-such-flag"),
    Broken("removed flag", lambda b: b.profile("p", {"draft-max": 4}), 2, "draft-max"),
    Broken("wrong allowed value", lambda b: b.profile("p", {"cache-type-k": "turbo3"}), 2, "TurboQuant fork"),
    Broken("missing GGUF", lambda b: b.profile("p", model=str(b.root / "nope.gguf")), 1, "nope.gguf"),
    Broken("truncated GGUF", truncated, 1, "incomplete"),
    Broken("text file as GGUF", text_file, 1, "not a GGUF"),
    Broken("port used by another program", lambda b: b.profile("p", port=b.used_port), 1, "is used by"),
    Broken("context that does not fit", lambda b: b.profile("p", {"ctx-size": 40_000_000}), 5, "would not fit"),
    Broken(
        "context that cannot be allocated", lambda b: b.profile("p", {"ctx-size": 40_000_000}), 5, "out of", False, True
    ),
    Broken("engine missing", lambda b: b.profile("p", engine="gone"), 1, "no-such-llama-server"),
    Broken("engine that hangs before listening", lambda b: b.profile("p", engine="hang"), 4, "hung", False),
    Broken("engine that crashes after listening", lambda b: b.profile("p", engine="die"), 4, "GGML_ASSERT", False),
    Broken("engine that answers garbage", lambda b: b.profile("p", engine="garbage"), 4, "not llama-server's", False),
)


@pytest.fixture(scope="module")
def running(box: Box) -> Iterator[Box]:
    """A box where the profile `old` answers, and a port that another program uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        box.used_port = listener.getsockname()[1]
        box.profile("old")
        assert run(["start", "old"]) == 0
        yield box
        assert run(["stop"]) == 0
        assert box.servers() == []


def answers(box: Box) -> bool:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    reply = httpx.post(f"http://127.0.0.1:{box.port}/v1/chat/completions", json=body, timeout=60)
    return bool(reply.json()["choices"][0]["message"])


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.name)
def test_a_broken_profile_leaves_the_old_one_answering(
    running: Box, broken: Broken, capfd: pytest.CaptureFixture[str]
) -> None:
    name = broken.make(running)
    before = running.servers()
    capfd.readouterr()

    code = run(["switch", name, "--json", *(["--anyway"] if broken.anyway else [])])

    out, err = capfd.readouterr()
    story = json.loads(out)
    assert (code, story["exit_code"]) == (broken.code, broken.code), err
    assert broken.says in f"{story['error']} {story['hint']}"
    assert story["answering"] == "old"
    assert (running.servers() == before) == broken.untouched
    assert len(running.servers()) == 1
    assert answers(running)
    assert run(["status"]) == 0


def test_a_switch_changes_the_server_and_proves_it(running: Box) -> None:
    running.profile("other", {"batch-size": 256}, port=free_port())

    assert run(["switch", "other"]) == 0
    assert run(["switch", "old"]) == 0

    assert answers(running)
    assert len(running.servers()) == 1


def test_switching_to_what_runs_already_touches_nothing(running: Box) -> None:
    before = running.servers()

    assert run(["switch", "old"]) == 0

    assert running.servers() == before


def test_the_log_of_the_server_is_there(running: Box, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()

    assert run(["logs", "-n", "4000", "--grep", "model buffer size"]) == 0

    assert "MiB" in capfd.readouterr().out
    assert Path(running.paths.instance_log("main")).stat().st_size > 1000
