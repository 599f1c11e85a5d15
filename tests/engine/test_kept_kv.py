"""A conversation goes on after its server was stopped, with a real engine: the KV cache of its slot came back."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gpubox.cli.main import run
from gpubox.server.instance import observe
from gpubox.server.kv_store import KeptState, KvStore
from tests.engine.conftest import Box

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("patient")]
TEXT = "The box has many parts, and each part can be seen from afar by those who look for it with care. " * 14


@pytest.fixture
def kept(box: Box) -> Iterator[Box]:
    """No server, and nothing kept."""
    box.profile("on")
    box.profile("wide", {"ctx-size": 1024})
    box.profile("off", {"flash-attn": "off"})
    yield box
    run(["stop"])
    assert box.servers() == []
    shutil.rmtree(box.paths.kept_kv, ignore_errors=True)


def ask(box: Box, more: str = "") -> tuple[int, int, str]:
    """Cached and read prompt tokens, and the answer."""
    body = {"prompt": TEXT + more, "n_predict": 4, "temperature": 0}
    reply = httpx.post(f"http://127.0.0.1:{box.port}/completion", json=body, timeout=60).json()
    return reply["timings"]["cache_n"], reply["timings"]["prompt_n"], reply["content"]


def states(box: Box) -> list[KeptState]:
    return KvStore(box.paths.kept_kv, 1 << 30).states()


def outcome(capfd: pytest.CaptureFixture[str], *verb: str) -> tuple[int, str]:
    capfd.readouterr()
    code = run([*verb, "--json"])
    out, err = capfd.readouterr()
    assert json.loads(out)
    return code, err


def test_a_switch_away_and_back_keeps_the_cache(kept: Box, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["start", "on"]) == 0
    cached, read, text = ask(kept)
    assert (cached, read > 256) == (0, True)

    code, err = outcome(capfd, "switch", "off")
    assert code == 0
    assert "KV saved on" in err
    assert "1 slot," in err
    assert "flash attention on, now off" not in err  # another profile's state is nothing to explain here
    assert ask(kept)[:2] == (0, read)
    code, err = outcome(capfd, "switch", "wide")
    assert code == 0
    assert "KV put back wide" in err

    again, few, same = ask(kept)
    assert (again, few, same) == (read - 1, 1, text) or again >= 0.99 * read
    assert same == text
    for path in kept.paths.kept_kv.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_stop_and_start_keep_it_too_and_a_longer_state_replaces_the_shorter(
    kept: Box, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["start", "wide"]) == 0
    ask(kept)
    assert outcome(capfd, "stop")[0] == 0
    before = states(kept)
    assert run(["start", "wide"]) == 0
    ask(kept, "And then")
    assert outcome(capfd, "stop")[0] == 0
    code, err = outcome(capfd, "start", "wide")

    assert code == 0
    assert "KV put back wide" in err
    assert len(states(kept)) == len(before)
    assert ask(kept, "And then")[1] <= 8


def test_a_file_that_was_written_into_is_not_restored(kept: Box, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["start", "wide"]) == 0
    ask(kept)
    assert outcome(capfd, "stop")[0] == 0
    assert states(kept)
    for state in states(kept):
        with (kept.paths.kept_kv / state.file).open("r+b") as file:
            file.seek(state.size_bytes // 2)
            file.write(os.urandom(4096))

    code, err = outcome(capfd, "start", "wide")

    assert code == 0
    assert "KV put back" not in err
    assert ask(kept)[0] == 0


def test_a_wedged_server_is_stopped_all_the_same(kept: Box, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["start", "wide"]) == 0
    ask(kept)
    running = observe(kept.paths, "main").running
    assert running and running.process
    os.kill(running.process.pid, signal.SIGSTOP)

    code, err = outcome(capfd, "stop")

    assert code == 0
    assert "KV saved" not in err
    assert kept.servers() == []


def test_switched_off_it_leaves_no_trace(kept: Box, capfd: pytest.CaptureFixture[str]) -> None:
    config = kept.paths.config_file.read_text()
    values: dict[str, Any] = {}
    try:
        kept.paths.config_file.write_text(f"{config}\n[kept-kv]\nenabled = false\n")
        values["before"] = len(states(kept))
        assert run(["start", "on"]) == 0
        ask(kept)
        code, err = outcome(capfd, "stop")
    finally:
        kept.paths.config_file.write_text(config)

    assert code == 0
    assert "KV" not in err
    assert len(states(kept)) == values["before"]
