"""``--url`` of Ollama, vLLM and LM Studio: what each of them reports."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from gpubox.server.client import connect
from gpubox.server.other_server import detect_dialect, read_other_server
from gpubox.telemetry.speeds import CounterRate
from tests.bench_server import BenchServer
from tests.cli.verbs import gpubox, values
from tests.peers import Peer

DIALECTS = ("ollama", "vllm", "lm-studio", "openai")
QUICK = ("--prompts", "short", "--depths", "0", "--repeats", "1", "--max-tokens", "8")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_each_is_recognised(dialect: str) -> None:
    with Peer(dialect) as other_server:
        async with connect(other_server.url) as client:
            assert await detect_dialect(client) == dialect


async def test_a_llama_server_and_a_web_page_are_none_of_them() -> None:
    with BenchServer() as llama, Peer("openai") as page:
        page.pages = dict.fromkeys(("/", "/health", "/v1/models", "/version"), "<html>It works!</html>")
        for url, dialect in ((llama.url, "llama-server"), (page.url, ""), ("http://127.0.0.1:1", "")):
            async with connect(url) as client:
                assert await detect_dialect(client) == dialect


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_status_knows_it_however_the_address_is_written(
    dialect: str, end: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Peer(dialect) as other_server:
        code, status = values(capfd, "status", "--url", other_server.url + end)
    assert (code, status["server"]["base_url"], status["other_server"]["dialect"]) == (0, other_server.url, dialect)
    assert status["server"]["state"] == ("answering" if dialect == "vllm" else "ready")
    assert status["problems"] == [status["other_server"]["not_reported"]]


def test_ollama(capfd: pytest.CaptureFixture[str]) -> None:
    with Peer("ollama") as other_server:
        code, out, _ = gpubox(capfd, "status", "--url", other_server.url)
        _, status = values(capfd, "status", "--url", other_server.url)
    assert code == 0
    assert "  engine    Ollama 0.12.6\n" in out
    until = f"{datetime.fromisoformat('2025-10-17T16:47:07.933-07:00').astimezone():%Y-%m-%d %H:%M}"
    assert f"  loaded    gemma3  Q4_K_M  5.0 GiB in VRAM of 6.1 GiB  context 4,096  until {until}\n" in out
    assert "  has       1 more model\n" in out
    assert "problem   Ollama does not report running or waiting requests, tok/s, TTFT or token counts" in out
    loaded, other = status["other_server"]["models"]
    assert (loaded["vram_bytes"], loaded["size_bytes"], loaded["loaded"]) == (5333539264, 6591830464, True)
    assert (other["name"], other["vram_bytes"], other["context_size_tokens"]) == ("qwen3:8b", None, None)
    assert (status["throughput"]["busy_slots"], status["throughput"]["tg_tokens_per_second"]) == (None, None)
    assert set(status["totals"].values()) == {None}


def test_ollama_with_nothing_loaded(capfd: pytest.CaptureFixture[str]) -> None:
    with Peer("ollama") as other_server:
        other_server.pages["/api/ps"] = '{"models": []}'
        code, out, _ = gpubox(capfd, "status", "--url", other_server.url)
    assert code == 0 and "  loaded    none\n  has       2 more models\n" in out


def test_vllm(capfd: pytest.CaptureFixture[str]) -> None:
    with Peer("vllm") as other_server:
        code, out, _ = gpubox(capfd, "status", "--url", other_server.url)
        _, status = values(capfd, "status", "--url", other_server.url)
    assert code == 0
    assert "  requests  3 running, 11 waiting\n" in out and "  kv cache  42% used\n" in out
    assert "  tokens    10,000 processed, 2,345 cached, 1,000,648 generated\n" in out
    assert "  engine    vLLM 0.11.0\n" in out and "  loaded    Qwen/Qwen3-8B  context 40,960\n" in out
    assert (status["throughput"]["busy_slots"], status["throughput"]["queued_requests"]) == (3, 11)
    totals = status["totals"]
    assert (totals["prompt_tokens"], totals["cached_tokens"], totals["generated_tokens"]) == (10000, 2345, 1000648)


def test_vllm_of_several_engines_is_added_up(capfd: pytest.CaptureFixture[str]) -> None:
    with Peer("vllm") as other_server:
        text = other_server.pages["/metrics"] or ""
        other_server.pages["/metrics"] = text + text.replace('engine="0"', 'engine="1"').replace("} 0.42", "} 0.9")
        _, status = values(capfd, "status", "--url", other_server.url)
    assert (status["other_server"]["running_requests"], status["other_server"]["kv_cache_used"]) == (6, 0.9)


def test_vllm_at_rest_and_without_its_metrics(capfd: pytest.CaptureFixture[str]) -> None:
    with Peer("vllm") as other_server:
        other_server.pages["/metrics"] = (
            (other_server.pages["/metrics"] or "").replace("} 3.0", "} 0.0").replace("} 11.0", "} 0.0")
        )
        assert values(capfd, "status", "--url", other_server.url)[1]["throughput"]["state"] == "idle"
        other_server.pages["/metrics"] = None
        code, status = values(capfd, "status", "--url", other_server.url)
    assert (code, status["other_server"]["running_requests"], status["throughput"]["state"]) == (0, None, "ready")
    assert "its /metrics does not answer" in status["problems"][0]


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        ("/api/v0/models", "google/gemma-4-26b-a4b  Q4_K_M  context 4,096"),
        ("/api/v1/models", "meta-llama-3.1-8b-instruct  Q4_K_M  context 8,192"),
    ],
)
def test_lm_studio(missing: str, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Peer("lm-studio") as other_server:
        other_server.pages[missing] = None
        code, out, _ = gpubox(capfd, "status", "--url", other_server.url)
    assert (code, f"  loaded    {line}\n" in out) == (0, True), out
    assert "problem   LM Studio does not report running or waiting requests, tok/s, TTFT, token counts or VRAM" in out


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_chat_asks_the_loaded_model_in_the_server_s_own_words(
    dialect: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Peer(dialect) as other_server:
        code, out, err = gpubox(capfd, "chat", "-p", "hi", "--no-tools", "--url", f"{other_server.url}/v1")
    assert (code, out) == (0, "Good day.\n"), err
    body = next(body for path, body in other_server.asked if path == "/v1/chat/completions")
    models = {"ollama": "gemma3", "vllm": "Qwen/Qwen3-8B", "lm-studio": "google/gemma-4-26b-a4b", "openai": "a"}
    assert body["model"] == models[dialect]
    assert not {"cache_prompt", "timings_per_token", "return_progress", "id_slot"} & body.keys()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_other_verb_takes_it(dialect: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Peer(dialect) as other_server:
        at = ("--url", f"{other_server.url}/v1/")
        code, status = values(capfd, "bench", "speed", *at, *QUICK)
        assert code == 0 and status["run"]["plan"]["targets"][0]["url"] == other_server.url
        file = tmp_path / "recording"
        assert gpubox(capfd, "status", "--record", str(file), "--seconds", "0.3", *at)[0] == 0
    last = json.loads(file.read_text().splitlines()[-1])
    assert dialect in json.dumps(last)


async def test_another_program_at_its_port_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    with Peer("ollama") as other_server:
        async with connect(other_server.url) as client:
            assert await read_other_server(client, "ollama") is not None
            other_server.pages.clear()
            assert await read_other_server(client, "ollama") is None


def test_the_speed_of_a_counter() -> None:
    rate = CounterRate()
    assert rate.tokens_per_second is None
    for at, value in ((0.0, 100.0), (1.0, 150.0), (2.0, 200.0), (3.0, 250.0), (4.0, 300.0), (5.0, 350.0)):
        rate.feed(at, value)
    assert rate.tokens_per_second == 50.0
    for at in (6.0, 7.0, 8.0, 9.0):
        rate.feed(at, 350.0)
    assert rate.tokens_per_second is None
    rate.feed(10.0, 5.0)
    assert rate.tokens_per_second is None
    rate.feed(11.0, None)
    rate.feed(12.0, 7.0)
    assert rate.tokens_per_second is None
