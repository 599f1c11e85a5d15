"""profiles/repeating.py measured: each flag is given twice to a real engine, and the result is read back.

Runs on a llama-server alone (GPUBOX_TEST_ENGINE): the embedded engine has few of these flags.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpubox.profiles.argv import flag_argv
from gpubox.profiles.profile import FlagValue
from tests.ports import free_port

ENGINE = os.environ.get("GPUBOX_TEST_ENGINE", "")
pytestmark = pytest.mark.skipif(not ENGINE, reason="needs GPUBOX_TEST_ENGINE, a llama-server")
Ask = Callable[[str, dict[str, Any] | None], Any]


@contextmanager
def started(model: Path, folder: Path, flags: list[str]) -> Iterator[tuple[Ask, Path]]:
    port, log = free_port(), folder / "log"
    argv = [
        ENGINE,
        "-m",
        str(model),
        "-c",
        "256",
        "-np",
        "1",
        "-t",
        "1",
        "--no-warmup",
        "-lv",
        "5",
        "--port",
        str(port),
    ]
    with log.open("wb") as out:
        server = subprocess.Popen([*argv, *flags], stdout=out, stderr=subprocess.STDOUT, cwd=folder)

    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    try:
        deadline = time.monotonic() + 60
        while True:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-800:]
            with suppress(OSError):
                ask("/health")
                break
            time.sleep(0.1)
        yield ask, log
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait(10)


def adapter(path: Path) -> Path:
    """The smallest LoRA file that llama.cpp loads: no tensors."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = [("general.architecture", "llama"), ("general.type", "adapter"), ("adapter.type", "lora")]
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs) + 1)
    data += b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in pairs)
    path.write_bytes(data + text("adapter.lora.alpha") + struct.pack("<If", 6, 1.0) + b"\0" * 64)
    return path


def settings(ask: Ask) -> dict[str, Any]:
    answer = ask("/completion", {"prompt": "hi", "n_predict": 1})
    return dict(answer["generation_settings"])


def twice(values: dict[str, FlagValue]) -> tuple[list[str], list[str]]:
    """The flags as a profile emits them, and each given once for every value."""
    emitted = [word for name, value in values.items() for word in flag_argv(name, value)]
    lists = [(name, value if isinstance(value, tuple) else (value,)) for name, value in values.items()]
    return emitted, [word for name, items in lists for item in items for word in (f"--{name}", str(item))]


def test_what_adds_up_is_the_same_given_repeatedly_and_as_a_profile_emits_it(demo_model: Path, tmp_path: Path) -> None:
    first, second = adapter(tmp_path / "a.gguf"), adapter(tmp_path / "b,c.gguf")
    values: dict[str, FlagValue] = {
        "logit-bias": ("15043+1", "12-2"),
        "reverse-prompt": ("foo", "b,r"),
        "dry-sequence-breaker": ("x", "y"),
        "alias": ("one", "two"),
        "tags": ("t", "u"),
        "lora": (str(first), str(second)),
        "override-tensor": (r"blk\.1\.ffn_up=CPU", r"blk\.2\.attn_q=CPU"),
        "override-kv": ("llama.context_length=int:4096", "tokenizer.ggml.add_bos_token=bool:false"),
        "spec-type": ("ngram-mod", "ngram-simple"),
    }
    for number, flags in enumerate(twice(values)):
        if number:  # a second file of that name cannot be written as one word of a list
            flags = [word.replace(str(second), f'"{second}"') for word in flags]
        with started(demo_model, tmp_path, flags) as (ask, log):
            defaults = settings(ask)
            served = ask("/v1/models", None)["data"][0]
            adapters = ask("/lora-adapters", None)
            text = log.read_text(errors="replace")
        assert {bias["token"]: bias["bias"] for bias in defaults["logit_bias"]} == {15043: 1, 12: -2}
        assert defaults["stop"] == ["foo", "b,r"]
        assert defaults["dry_sequence_breakers"] == ["x", "y"]
        assert set(served["aliases"]) == {"one", "two"}
        assert set(served["tags"]) == {"t", "u"}
        assert [Path(item["path"]).name for item in adapters] == ["a.gguf", "b,c.gguf"]
        for words in (
            "blk.1.ffn_up.weight (0 MiB q4_1) buffer type overridden to CPU",
            "blk.2.attn_q.weight (0 MiB q4_1) buffer type overridden to CPU",
            "'llama.context_length'", "'tokenizer.ggml.add_bos_token'",
            "implementation 'ngram-mod'", "implementation 'ngram-simple'",
        ):  # fmt: skip
            assert words in text, words


def test_the_largest_of_several_layer_counts_and_the_last_of_the_rest_count(demo_model: Path, tmp_path: Path) -> None:
    kwargs = ['{"a": 1, "b": 2}', '{"b": 3}']
    flags = ["--n-cpu-ffn", "3", "--n-cpu-ffn", "1", "--samplers", "top_k", "--samplers", "min_p", "--top-k", "5"]
    flags += [word for text in kwargs for word in ("--chat-template-kwargs", text)]
    flags += ["--chat-template", "{{ a }}{{ b }}", "--top-k", "7"]
    with started(demo_model, tmp_path, flags) as (ask, log):
        defaults = settings(ask)
        prompt = ask("/apply-template", {"messages": [{"role": "user", "content": "x"}]})["prompt"]
        text = log.read_text(errors="replace")
    assert [f"blk.{layer}.ffn_up.weight (0 MiB q4_1) buffer type overridden" in text for layer in range(4)] == [
        True, True, True, False,
    ]  # fmt: skip
    assert (defaults["samplers"], defaults["top_k"], prompt) == (["min_p"], 7, "13")


def test_a_draft_model_alone_drafts_nothing_and_draft_simple_does(demo_model: Path, tmp_path: Path) -> None:
    for flags, drafts in ([], False), (["--spec-type", "draft-simple"], True):
        with started(demo_model, tmp_path, ["-md", str(demo_model), *flags]) as (_, log):
            text = log.read_text(errors="replace")
        assert ("adding speculative implementation 'draft-simple'" in text) == drafts
