"""The planner with a real engine: profiles that would not fit are refused before the old server stops."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator

import httpx
import pytest

from gpubox.cli.main import run
from tests.engine.conftest import Box

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("patient")]

TOO_LARGE: tuple[dict[str, object], ...] = (
    {"ctx-size": 40_000_000},
    {"ctx-size": 60_000_000, "parallel": 2},
    {"ctx-size": 80_000_000, "parallel": 4},
    {"ctx-size": 80_000_000, "cache-type-k": "q8_0", "cache-type-v": "q8_0"},
    {"ctx-size": 99_000_000, "cache-type-k": "q4_0", "cache-type-v": "q4_0"},
    {"ctx-size": 40_000_000, "kv-unified": True},
    {"ctx-size": 40_000_000, "batch-size": 512, "ubatch-size": 128},
    {"ctx-size": 40_000_000, "flash-attn": "on"},
    {"ctx-size": 40_000_000, "no-kv-offload": True},
    {"ctx-size": 40_000_000, "cache-type-k": "f32"},
    {"ctx-size": 40_000_000, "threads": 2},
    {"ctx-size": 41_000_000},
)


@pytest.fixture(scope="module")
def running(box: Box) -> Iterator[Box]:
    box.profile("old", {"ctx-size": 2048})
    assert run(["start", "old"]) == 0
    yield box
    assert run(["stop"]) == 0


class Stream(threading.Thread):
    """A client that reads one long answer."""

    def __init__(self, box: Box, tokens: int) -> None:
        super().__init__(daemon=True)
        self.url, self.tokens, self.received, self.ended = f"http://127.0.0.1:{box.port}", tokens, 0, False
        self.begun = threading.Event()

    def run(self) -> None:
        body = {"prompt": "Once", "n_predict": self.tokens, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{self.url}/completion", json=body, timeout=120) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    chunk = json.loads(line.removeprefix("data: "))
                    self.received = max(self.received, int(chunk.get("tokens_predicted", 0)), self.received + 1)
                    self.ended = self.ended or bool(chunk.get("stop"))
                    self.begun.set()


def test_twelve_profiles_that_would_not_fit_cost_a_client_no_token(
    running: Box, capfd: pytest.CaptureFixture[str]
) -> None:
    before = running.servers()
    stream = Stream(running, 400)
    stream.start()
    assert stream.begun.wait(60)

    for flags in TOO_LARGE:
        name = running.profile("big", flags)
        capfd.readouterr()
        assert run(["switch", name, "--json"]) == 5
        story = json.loads(capfd.readouterr().out)
        assert "would not fit: short by" in story["error"]
        assert story["answering"] == "old"

    stream.join(120)
    assert stream.ended and stream.received >= 400
    assert running.servers() == before


def test_what_fits_is_not_refused(running: Box, capfd: pytest.CaptureFixture[str]) -> None:
    running.profile("fits", {"ctx-size": 1024})
    capfd.readouterr()
    assert run(["fit", "fits", "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    host = plan["devices"][-1]
    assert (host["device"], host["kind"], host["kv_bytes"]) == ("Host", "host", 1024 * 30 * 384 * 2)
    assert plan["verdict"] in ("fits", "tight")
    assert run(["fit", "fits", "--set", "ctx-size=40000000", "--json"]) == 5
    assert json.loads(capfd.readouterr().out)["short_device"] == "Host"
    assert run(["switch", "fits"]) == 0
    assert run(["switch", "old"]) == 0


def test_the_buffers_of_a_real_run_are_learned(running: Box, capfd: pytest.CaptureFixture[str]) -> None:
    """Also on an engine that cannot do a dry run."""
    capfd.readouterr()
    assert run(["fit", "old", "--json"]) == 0
    host = json.loads(capfd.readouterr().out)["devices"][-1]
    assert run(["logs", "-n", "4000", "--grep", "CPU compute buffer size"]) == 0
    logged = re.findall(r"size = +([\d.]+) MiB", capfd.readouterr().out)
    assert host["compute_bytes"] == round(float(logged[-1]) * 1024 * 1024)
