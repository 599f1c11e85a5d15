"""What the gateway changes in a request and in its reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpubox.gateway.changes import ModelName, body_for
from gpubox.profiles.profile import Profile, RequestChanges

CHAT = "/v1/chat/completions"
UPSTREAM = Profile("far", "theirs", upstream="http://far")
LOCAL = Profile("a", "a.gguf")


def changed(profile: Profile, body: bytes, path: str = CHAT, asked: str | None = None, *, keep: bool = False) -> bytes:
    return body_for(profile, path, asked, body, keep_slot=keep)


def test_another_model_name_changes_nothing_else_in_the_body() -> None:
    body = (
        b'{"model":"mine","temperature":1e-05,"seed":12345678901234567890,"messages":[{"content":"\\u00e9 \xc3\xa9"}]}'
    )
    assert changed(UPSTREAM, body) == body.replace(b'"mine"', b'"theirs"')
    assert changed(LOCAL, body) is body


def test_no_client_names_a_slot_that_another_one_may_use() -> None:
    assert changed(LOCAL, b'{"prompt":"x","id_slot":0,"n_predict":1e2}') == b'{"prompt":"x","n_predict":1e2}'
    assert changed(LOCAL, b'{"id\\u005fslot":0,"n":1}', "/infill") == b'{"n":1}'
    for body in (b'{"messages":[{"content":"what is id_slot?"}]}', b"id_slot=0", b'\xff"id_slot":0'):
        assert changed(LOCAL, body) == body
    assert changed(LOCAL, b'{"id_slot":0}', keep=True) == b'{"id_slot":0}'


def test_a_form_keeps_its_bytes() -> None:
    assert changed(UPSTREAM, b"--boundary\r\n\xff") == b"--boundary\r\n\xff"


CHANGES = RequestChanges(remove=("top_k", "seed"), default={"max_tokens": 9, "seed": 1}, set={"temperature": 0.7})
PERSONAS: dict[str, dict[str, Any]] = {
    "a:high": {"temperature": 0.1, "chat_template_kwargs": {"effort": "high"}},
    "a": {"top_p": 0.5},
}


@pytest.mark.parametrize(
    ("asked", "path", "sent", "expected"),
    [
        (None, CHAT, {"top_k": 3, "seed": 8}, {"max_tokens": 9, "seed": 1, "temperature": 0.7}),
        ("b", CHAT, {"max_tokens": 2, "temperature": 2}, {"max_tokens": 2, "seed": 1, "temperature": 0.7}),
        ("a", "/completion", {}, {"max_tokens": 9, "seed": 1, "temperature": 0.7, "top_p": 0.5}),
        ("a:high", "/v1/messages", {"temperature": 2}, {"max_tokens": 9, "seed": 1, **PERSONAS["a:high"]}),
        ("a:high", "/tokenize", {"content": "x", "top_k": 1}, {"content": "x", "top_k": 1}),
    ],
)
def test_a_profile_removes_gives_and_sets_and_a_persona_sets_more(
    asked: str | None, path: str, sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    for profile in (Profile("a", "m", requests=CHANGES, personas=PERSONAS),):
        assert json.loads(changed(profile, json.dumps(sent).encode(), path, asked)) == expected


STREAM = ((b"Content-Type", b"text/event-stream"),)
EVENTS = b"".join(
    b'data: {"model" : "theirs \\"7b\\"","delta":{"content":"\\"model\\":\\"theirs\\" %d"}}\n\n' % n for n in range(3)
)


@pytest.mark.parametrize("step", [1, 7, 60, 5000])
@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_carries_the_name_that_was_asked_for(step: int, stream: bool) -> None:
    change = ModelName("mine")
    change.head(STREAM if stream else ())
    body = EVENTS if stream else EVENTS.split(b"\n")[0]
    out = b"".join(change.feed(body[begin : begin + step]) for begin in range(0, len(body), step)) + change.end()
    assert out == body.replace(b'"model" : "theirs \\"7b\\""', b'"model":"mine"')


def test_whole_events_are_never_held_back_and_no_endless_line_is_kept() -> None:
    change = ModelName("mine")
    change.head(STREAM)
    assert change.feed(b'data: {"x":1}\n\ndata: {"mo') == b'data: {"x":1}\n\n'
    assert change.feed(b'del":"theirs"}\n') == b'data: {"model":"mine"}\n'
    assert len(change.feed(b"x" * 2_000_000)) == 2_000_000
