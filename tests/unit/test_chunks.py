"""Decoding streams: recorded bytes of llama-server b11434 and other servers, split anywhere, and invalid bytes."""

from __future__ import annotations

import pytest

from gpubox.server.chunks import CallDelta, Chunk, LineTooLong, SseDecoder, StreamedPromptProgress, Timings, Usage

RECORDED = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"id":"c",'
    b'"model":"m.gguf","object":"chat.completion.chunk","prompt_progress":{"total":22,"cache":2,"processed":22,'
    b'"time_ms":97}}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"reasoning_content":"hm"}}],"model":"m.gguf"}\n\n'
    b": ping\n\n"
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Gr\xc3\xbc\xc3\x9fe"}}]}\r\n\r\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","type":"function",'
    b'"function":{"name":"f","arguments":"{"}}]}}]}\n\n'
    b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}]}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":6,"prompt_tokens":22,"total_tokens":28,'
    b'"prompt_tokens_details":{"cached_tokens":2}},"timings":{"cache_n":2,"prompt_n":20,"prompt_ms":97.83,'
    b'"prompt_per_second":204.4,"predicted_n":6,"predicted_ms":33.576,"predicted_per_second":178.7,'
    b'"draft_n":4,"draft_n_accepted":3}}\n\n'
    b"data: [DONE]\n\n"
)
EXPECTED = [
    Chunk(model="m.gguf", progress=StreamedPromptProgress(22, 2, 22, 0.097)),
    Chunk(model="m.gguf", reasoning="hm"),
    Chunk(text="Grüße"),
    Chunk(calls=(CallDelta(0, "x", "f", "{"),)),
    Chunk(finish_reason="length"),
    Chunk(usage=Usage(22, 6, 2), timings=Timings(2, 20, 0.09783, 6, 0.033576, 4, 3, 178.7)),
    Chunk(done=True),
]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 5000])
def test_recorded_bytes_make_the_same_chunks_however_they_are_cut(size: int) -> None:
    reader = SseDecoder()
    chunks = [chunk for i in range(0, len(RECORDED), size) for chunk in reader.feed(RECORDED[i : i + size])]
    assert chunks == EXPECTED and reader.invalid_lines == 0


def test_rates_are_the_servers() -> None:
    timings = EXPECTED[5].timings
    assert timings and timings.tg_tokens_per_second == 178.7
    assert timings.pp_tokens_per_second == pytest.approx(204.4, rel=1e-3)
    assert Timings(0, 0, 0.0, 0, 0.0).tg_tokens_per_second is None


@pytest.mark.parametrize(
    ("line", "chunk"),
    [
        (b'data: {"choices":[{"text":"plain"}]}', Chunk(text="plain")),
        (b'data:{"choices":[{"delta":{"reasoning":"r"}}]}', Chunk(reasoning="r")),
        (b'data: {"error":{"message":"no","code":500}}', Chunk(error="no")),
        (b'error: {"message":"old form"}', Chunk(error="old form")),
        (b'data: {"error":"words"}', Chunk(error="words")),
        (b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}', Chunk(text="a")),
        (
            b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}}]}',
            Chunk(calls=(CallDelta(0, "", "f", '{"a":1}'),)),
        ),
    ],
)
def test_other_servers_forms(line: bytes, chunk: Chunk) -> None:
    assert list(SseDecoder().feed(line + b"\n")) == [chunk]


@pytest.mark.parametrize(
    "line", [b"<html>", b"data: {", b"data: [1]", b"data: \xff", b"retry", b"data: " + b"[" * 9999]
)
def test_what_is_none_is_counted(line: bytes) -> None:
    reader = SseDecoder()
    assert list(reader.feed(line + b"\n")) == [] and reader.invalid_lines == 1 and reader.first_invalid


def test_a_line_without_end_is_refused_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubox.server.chunks.LINE_BYTES", 1000)
    reader = SseDecoder()
    with pytest.raises(LineTooLong):
        for _ in range(20):
            list(reader.feed(b"x" * 100))
    with pytest.raises(LineTooLong):
        list(SseDecoder().feed(b"data: " + b"x" * 1000 + b"\n"))
