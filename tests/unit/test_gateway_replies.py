"""The bytes of replies: their tokens, their first token. Recorded from llama-server, build 11434."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpubox.gateway.admission import Ticket
from gpubox.gateway.client_request import ClientRequest
from gpubox.gateway.reply_observer import AnswerTokens, ReplyObserver

TIMINGS = (
    '"timings":{"cache_n":30,"prompt_n":1,"prompt_ms":38.7,'
    '"predicted_n":3,"predicted_ms":21.3,"predicted_per_second":93.7}'
)
CHAT = [
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hello"}}]}\n\n',
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"!"}}]}\n\n',
    b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],%b}\n\n' % TIMINGS.encode(),
    b"data: [DONE]\n\n",
]
MESSAGES = [
    b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant","content":[],'
    b'"usage":{"cache_read_input_tokens":30,"input_tokens":1,"output_tokens":0}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"text","text":""}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":3}}\n\n',
]


def observed(parts: list[bytes], *, stream: bool = True) -> ReplyObserver:
    observer = ReplyObserver(stream=stream)
    for part in parts:
        observer.feed(part)
    return observer


def test_the_first_token_is_the_first_text_not_the_role() -> None:
    assert not observed(CHAT[:1]).text_events
    assert observed(CHAT[:2]).text_events
    assert not observed(MESSAGES[:1]).text_events
    assert observed(MESSAGES[:2]).text_events
    assert observed([b'data: {"choices":[{"delta":{"reasoning_content":"Hm"}}]}\n\n']).text_events
    assert observed([b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}\n\n']).text_events


def test_the_numbers_are_those_of_the_servers_timings() -> None:
    assert observed(CHAT).tokens() == AnswerTokens(31, 30, 3, 93.7)
    whole = b'{"choices":[{"message":{"content":"Hello!"}}],"usage":{"prompt_tokens":9},%b}' % TIMINGS.encode()
    assert observed([whole[:50], whole[50:]], stream=False).tokens() == AnswerTokens(31, 30, 3, 93.7)


def test_anthropic_counts_the_cached_tokens_apart() -> None:
    assert observed(MESSAGES).tokens() == AnswerTokens(31, 30, 3, None)
    assert observed(
        [b'{"usage":{"cache_read_input_tokens":30,"input_tokens":1,"output_tokens":3}}'], stream=False
    ).tokens() == (AnswerTokens(31, 30, 3, None))


def test_openai_usage_without_timings() -> None:
    usage = {"prompt_tokens": 31, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 30}}
    assert observed([json.dumps({"usage": usage}).encode()], stream=False).tokens() == AnswerTokens(31, 30, 3, None)
    assert observed([json.dumps({"usage": {"prompt_tokens": 4}}).encode()], stream=False).tokens() == AnswerTokens(4)


def test_the_tokens_of_a_stream_that_was_cut_off_are_its_events() -> None:
    assert observed(CHAT[:3]).tokens() == AnswerTokens(generated_tokens=2)
    assert observed(MESSAGES[:2]).tokens() == AnswerTokens(31, 30, 1)
    assert observed(CHAT[:1]).tokens() == AnswerTokens()


def test_generation_begins_with_the_first_token() -> None:
    """So the server counts, too: three tokens at 93.7 a second took 21.3 ms."""
    now = time.monotonic()
    exchange: Any = SimpleNamespace(status=200, request=SimpleNamespace(received=now - 1.0, began=now - 1.0))
    task: Any = None
    request = ClientRequest(Ticket(1), exchange, task, print)
    request.observer = observed([b'{"content":"Hello!",%b}' % TIMINGS.encode()], stream=False)
    line = request.finished()
    assert line.prefill_seconds
    assert line.generation_seconds == pytest.approx(2 / 93.7, abs=1e-6)
    assert line.prefill_seconds < 1.0 < line.seconds


def test_a_stream_is_over_with_its_last_event_though_the_server_has_not_closed_it() -> None:
    done = b'data: {"type":"response.completed","response":{"output":[]}}\n\n'
    stop = [b'data: {"type":"message', b'_stop"}\n\n']
    assert all(observed(parts).is_over for parts in (CHAT, [done], [*MESSAGES, *stop]))
    said = b'data: {"type":"response.output_text.delta","delta":"[DONE] message_stop"}\n\n'
    assert not any(observed(parts).is_over for parts in (CHAT[:-1], MESSAGES, [], [said], [done[:-9]]))
    assert not observed(CHAT, stream=False).is_over


@pytest.mark.parametrize("data", [b"", b"garbage", b'{"timings":7}', b'{"usage":{"prompt_tokens":-3}}', b"[" * 5000])
def test_nonsense_says_nothing(data: bytes) -> None:
    assert observed([data], stream=False).tokens() == AnswerTokens()
    assert observed([b"data: " + data + b"\n\n"]).tokens() == AnswerTokens()


def _timed(index: int, generated: int) -> bytes:
    timings = b'"timings":{"cache_n":2,"prompt_n":7,"predicted_n":%d}' % generated
    return b'{"choices":[{"finish_reason":"length","index":%d,"delta":{}}],%b}' % (index, timings)


def test_several_answers_in_one_reply() -> None:
    """``n`` or several prompts: build 11434 gives the timings of each in a stream and in a list, else of the first."""
    stream = ReplyObserver(stream=True)
    for index, generated in ((1, 5), (0, 4)):
        stream.feed(b'data: {"choices":[{"index":%d,"delta":{"content":"Hi"}}]}\n\n' % index)
        stream.feed(b"data: %b\n\n" % _timed(index, generated))
    assert stream.tokens() == AnswerTokens(generated_tokens=9)

    together = ReplyObserver(stream=False)
    together.feed(b'{"choices":[{"index":0},{"index":1}],"usage":{"prompt_tokens":9,"completion_tokens":4},%b}'
                  % TIMINGS.encode())  # fmt: skip
    assert together.tokens() == AnswerTokens()

    listed = ReplyObserver(stream=False)
    listed.feed(b'[{"index":0,%b},{"index":1,%b}]' % (TIMINGS.encode(), TIMINGS.encode()))
    assert listed.tokens() == AnswerTokens(62, 60, 6)

    other_server = ReplyObserver(stream=False)  # whose usage counts all answers
    other_server.feed(b'{"choices":[{"index":0},{"index":1}],"usage":{"prompt_tokens":9,"completion_tokens":8}}')
    assert other_server.tokens() == AnswerTokens(9, None, 8)
