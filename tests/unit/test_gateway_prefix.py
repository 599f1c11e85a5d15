"""Shared system prompts: which requests begin with one, and to which slot its state goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpubox.gateway.prefix import PromptHead, read_prompt_head
from gpubox.gateway.slots import choose_slot
from gpubox.server.responses import Slot, read_slots

SYSTEM = "You are a careful coding agent. " + " ".join(f"Rule {n}: take care." for n in range(300))
CHAT = "/v1/chat/completions"


def body_of(text: str, system: str = SYSTEM, **more: Any) -> bytes:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return json.dumps({"model": "m", "messages": messages, "temperature": 0, **more}).encode()


def head_of(body: bytes, path: str = CHAT) -> PromptHead | None:
    return read_prompt_head(path, lambda name: "", body)


# -- heads -------------------------------------------------------------------


def test_requests_that_begin_alike_have_one_key() -> None:
    heads = [head_of(body_of(user, user=user, seed=len(user))) for user in ("one", "another")]

    assert heads[0] and heads[1]
    assert heads[0].key == heads[1].key
    assert heads[0].is_first


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "ls"}}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"system": SYSTEM + "!"},
    ],
)
def test_what_the_template_writes_into_the_prompt_is_in_the_key(more: dict[str, Any]) -> None:
    plain, changed = head_of(body_of("one")), head_of(body_of("one", **more))

    assert plain and changed
    assert plain.key != changed.key


def test_a_later_turn_is_not_a_first_request() -> None:
    values = json.loads(body_of("one"))
    values["messages"] += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "two"}]
    later, first = head_of(json.dumps(values).encode()), head_of(body_of("one"))

    assert later and first
    assert (later.is_first, later.key) == (False, first.key)


@pytest.mark.parametrize(
    "body",
    [
        body_of("one", system="short"),
        body_of("one", cache_prompt=False),
        body_of("one", id_slot=1),
        b"{" + b" " * 2000,
        b"[" * 200_000,
        b'{"messages": 7, "x": "' + b"x" * 2000 + b'"}',
        b'{"messages": [{"role": "system", "content": "' + b"x" * 2000 + b'"}]}',
        b'{"messages": [{"role": 7}], "x": "' + b"x" * 2000 + b'"}',
        b'{"messages": [{"role": "system", "content": "\xff' + b"x" * 2000 + b'"}]}',
    ],
)
def test_what_cannot_be_shared_has_no_head(body: bytes) -> None:
    assert head_of(body) is None


def test_probes_differ_only_in_what_the_user_says() -> None:
    head = head_of(body_of("secret", tools=[{"type": "function"}], stream=True))
    assert head
    first, second = (json.loads(probe) for probe in head.probes())

    assert first["messages"][:-1] == second["messages"][:-1] == [{"role": "system", "content": SYSTEM}]
    assert first["messages"][-1]["content"][0] != second["messages"][-1]["content"][0]
    assert first["tools"] == [{"type": "function"}]
    assert "stream" not in first and "secret" not in str(first)


def test_a_request_to_messages_has_the_head_that_llama_server_makes_of_it() -> None:
    stamp = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={};"
    values = {
        "system": [{"type": "text", "text": stamp.format("a5145")}, {"type": "text", "text": SYSTEM}],
        "tools": [{"name": "ls", "description": "Lists.", "input_schema": {"type": "object"}, "cache_control": {}}],
        "tool_choice": {"type": "any"},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}],
        "max_tokens": 5,
    }
    head = head_of(json.dumps(values).encode(), "/v1/messages")
    values["system"][0]["text"] = stamp.format("01234")  # type: ignore[index]
    again = head_of(json.dumps(values).encode(), "/v1/messages")
    assert head and again and head.is_first
    assert head.key == again.key
    probe = json.loads(head.probes()[0])

    assert probe["messages"][0] == {"role": "system", "content": stamp.format("fffff") + SYSTEM}
    function = {"name": "ls", "description": "Lists.", "parameters": {"type": "object"}}
    assert probe["tools"] == [{"type": "function", "function": function}]
    assert probe["tool_choice"] == "required"
    assert len(probe["messages"]) == 2


# -- slots -------------------------------------------------------------------


def test_a_state_goes_to_an_empty_slot_else_to_the_one_used_longest_ago() -> None:
    def slot(index: int, busy: bool, used: int | None, task: int | None) -> Slot:
        return Slot(index, busy, 4096, used, None, task)

    busy, talk, fresh, cleared = (
        slot(0, True, 0, 9),
        slot(1, False, 900, 3),
        slot(2, False, None, None),
        slot(3, False, 0, 5),
    )

    assert choose_slot((busy, talk, fresh, cleared), {}) == fresh
    assert choose_slot((busy, talk), {}) == talk
    assert choose_slot((busy, talk, fresh, cleared), {2: -1}) == cleared  # something was restored into it
    assert choose_slot((busy, talk, fresh), {2: -1}) == talk
    assert choose_slot((busy,), {}) is None


def test_slots_of_build_11434_are_read() -> None:
    idle = {"id": 0, "n_ctx": 8192, "speculative": False, "is_processing": False}
    busy = {**idle, "id": 1, "is_processing": True, "id_task": 7, "n_prompt_tokens": 2811, "params": {"seed": 1}}

    assert read_slots([idle, busy]) == [Slot(0, False, 8192, None, None), Slot(1, True, 8192, 2811, None, 7)]
    assert [read_slots(broken) for broken in (None, [{"id": 1}], ["x"])] == [None, None, None]
