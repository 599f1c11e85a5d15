"""Start-up failures of a real llama-server, build 11434: the cause of each, never the last message of a caller."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpubox.server.failure_causes import FailureKind, find_cause, first_error
from gpubox.server.log import parse_line

RECORDED = Path(__file__).parent.parent / "fixtures/logs/b11434-failures.log"
LOGS = {
    name: (int(code), text)
    for name, code, text in re.findall(
        r"^=== (\S+) exit (-?\d+)\n(.*?)(?=^=== |\Z)", RECORDED.read_text(), re.MULTILINE | re.DOTALL
    )
}
FAREWELLS = ("failed to load model", "failed to create context", "failed to create_context", "exiting due to")
SAYS = {
    "vquant": (FailureKind.FLAG, "a quantized cache-type-v needs flash-attn on"),
    "missing": (FailureKind.MISSING, "in/none.gguf is missing"),
    "truncated": (FailureKind.CORRUPT, "incomplete"),
    "header": (FailureKind.CORRUPT, "damaged or incomplete: failed to read key-value pairs"),
    "version": (FailureKind.UNSUPPORTED, "version 99, this engine reads up to 3"),
    "empty": (FailureKind.CORRUPT, "not a GGUF"),
    "arch": (FailureKind.UNSUPPORTED, "does not know the architecture zzzzz"),
    "nokey": (FailureKind.UNSUPPORTED, "lacks llama.embedding_length"),
    "notensor": (FailureKind.UNSUPPORTED, "lacks the tensor blk.3.attn_k.weight"),
    "tok": (FailureKind.UNSUPPORTED, "does not know the tokenizer gpt9"),
    "pre": (FailureKind.UNSUPPORTED, "does not know the tokenizer nosuch"),
    "shape": (FailureKind.CRASH, "invalid n_rot: 64, expected 56"),
    "heads": (FailureKind.UNSUPPORTED, "blk.0.attn_q.weight has the wrong shape"),
    "ctx-huge": (FailureKind.OOM, "out of RAM: KV cache"),
    "mmproj-model": (FailureKind.UNSUPPORTED, "as an mmproj"),
    "mmproj-missing": (FailureKind.MISSING, "in/none.gguf is missing"),
    "lora-model": (FailureKind.UNSUPPORTED, "LoRA adapter cannot be applied: expect general.type to be 'adapter'"),
    "lora-missing": (FailureKind.MISSING, "LoRA adapter in/none.gguf is missing"),
    "draft-missing": (FailureKind.MISSING, "in/none.gguf is missing"),
    "mtp": (FailureKind.UNSUPPORTED, "no MTP head"),
    "template-inline": (FailureKind.FLAG, "chat template cannot be read: Unexpected token"),
    "template-missing": (FailureKind.FLAG, "chat-template-file: failed to open file"),
    "grammar": (FailureKind.FLAG, "the grammar cannot be read: expecting ')'"),
    "rpc": (FailureKind.CRASH, "127.0.0.1:1 cannot be reached"),
    "device": (FailureKind.FLAG, "invalid device: nope"),
    "ngl": (FailureKind.FLAG, "refuses ngl: its value is not a number"),
    "host-foreign": (FailureKind.PORT, "could not listen on 1.2.3.4"),
    "port": (FailureKind.PORT, "could not listen on 127.0.0.1"),
    "ssl": (FailureKind.PORT, "could not listen"),
    "path": (FailureKind.CRASH, "static assets path not found"),
    "np-many": (FailureKind.CRASH, "n_seq_max must be <= 256"),
    "hf": (FailureKind.MISSING, "could not be downloaded"),
    "unknown": (FailureKind.FLAG, "no option no-such-flag"),
    "ulimit-v2": (FailureKind.OOM, "out of RAM"),
    "threads": (FailureKind.CRASH, "SIGSEGV"),
}


@pytest.mark.parametrize("name", SAYS)
def test_a_recorded_failure_is_called_by_its_cause(name: str) -> None:
    code, text = LOGS[name]
    kind, words = SAYS[name]

    cause = find_cause(text, code)

    assert cause.kind is kind
    assert words in cause.sentence


@pytest.mark.parametrize("name", LOGS)
def test_every_recorded_failure_is_named_by_a_line_of_its_own_and_by_no_farewell(name: str) -> None:
    code, text = LOGS[name]

    for seen in (code, None):
        cause = find_cause(text, seen)
        assert "without an error message" not in cause.sentence or name == "threads"
        assert not any(words in cause.sentence for words in FAREWELLS)
        assert cause.line in text


@pytest.mark.parametrize("name", [name for name, (_, text) in LOGS.items() if " E " in text])
def test_without_any_rule_the_first_error_is_told_and_it_leads_to_the_same_line(name: str) -> None:
    error = first_error(LOGS[name][1])
    errors = [line.text[:300] for line in map(parse_line, LOGS[name][1].splitlines()) if line.level == "E"]

    assert error in errors or error in LOGS[name][1]
    assert not any(words in error for words in FAREWELLS)
