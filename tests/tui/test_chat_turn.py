"""A turn's events as parts of the transcript."""

from __future__ import annotations

from gpubox.agent import events as e
from gpubox.agent.chat_log import Turn, TurnHeader
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.tui.chat.snippets import code_snippets
from gpubox.tui.chat.turn import TurnView, stored_turn_view
from gpubox.tui.chat.turn_parts import AnswerPart, ThinkingPart, ToolCallPart, time_shares, waterfall
from gpubox.tui.styled_lines import cell_width
from tests.tui.fake_chat import ANSWER, CALL, CODE, OUTPUT, ROUND_1, TOTALS, coding_turn, opening


def played(*steps: object, prompt: str = "Parse 1h30m") -> TurnView:
    view = TurnView(prompt, "qwen   b11434")
    for number, event in enumerate(steps):
        view.apply(event, number * 0.1)  # type: ignore[arg-type]
    return view


def drawn(view: TurnView, width: int = 100) -> str:
    rows = [row for part in view.parts for row in part.lines(width)]
    assert all(cell_width(row) <= width for row in rows)
    return "\n".join("".join(text for text, _ in row).rstrip() for row in rows)


def test_a_whole_turn() -> None:
    shown = drawn(played(*coding_turn()))
    for text in (
        "❯ Parse 1h30m",
        "qwen   b11434",
        "▸ thought for ~412 tokens, 5.9 s",
        "run · bubblewrap · 38 ms · exit 1",
        "│ ValueError: invalid literal",
        "round 1/30   70.4 tok/s while writing   draft 98%   prompt 566 read, 0 reused",
        "The first attempt fails on mixed units",
        "turn 15.7 s   1,032 tok   70.7 tok/s while writing   65.7 with waiting",
        "1 tool call, 1 failed",
        "■ thinking 5.9 s  ■ answer 8.7 s  ■ tools 40 ms  ■ gpubox 0.2 s",
    ):
        assert text in shown, text
    assert "thought 7" not in shown


def test_thinking_unfolds() -> None:
    view = played(*coding_turn())
    (thought,) = [part for part in view.parts if isinstance(part, ThinkingPart)]
    thought.open = True
    assert "thought 7 thought 8" in drawn(view)


def test_running_thinking_shows_its_last_words() -> None:
    view = played(*opening(), e.ReasoningDelta("first words. "), e.ReasoningDelta("the last words"))
    assert "▸ thinking  ~2 tokens  … first words. the last words" in drawn(view)
    assert view.progress.phase == "thinks"


def test_an_executed_code_block_is_shown_once() -> None:
    text = f"I run it.\n\n```python\n{CODE}```\n"
    view = played(*opening("fenced"), e.TextDelta(text), e.ToolRequested(CALL), e.ToolFinished(CALL, OUTPUT))
    assert drawn(view).count("def parse") == 1
    assert [code.text for code in code_snippets(view)] == [CODE]


def test_a_restarted_round_discards_its_text() -> None:
    view = played(
        *opening(), e.TextDelta("Half an ans"), e.RoundRestarted(1, "The connection broke."), e.TextDelta("All")
    )
    shown = drawn(view)
    assert "Half" not in shown and "! The connection broke." in shown and shown.endswith("All")


def test_partial_text_stays_if_no_later_attempt_wrote_any() -> None:
    kept = e.MessageAdded(e.Message("assistant", "<think>hm</think>Half an answer", partial=True))
    failed = e.TurnFailed("It went away.", "", 1)
    view = played(*opening(), e.TextDelta("Half an answer"), e.RoundRestarted(1, "It broke."), kept, failed)
    assert drawn(view).count("Half an answer") == 1 and "hm" not in drawn(view)
    assert view.answer == "Half an answer"
    view = played(*opening(), e.TextDelta("Half an answer"), kept, failed)
    assert drawn(view).count("Half an answer") == 1


def test_a_failed_turn_shows_a_hint_and_keeps_its_text() -> None:
    failed = e.TurnFailed("It went away [/foo].", "^r asks again.", 1)
    view = played(*opening(), e.TextDelta("Half an answer"), e.ToolRequested(CALL), failed)
    shown = drawn(view)
    assert "Half an answer" in shown and "✗ It went away [/foo]." in shown and "^r asks again." in shown
    assert "run · stopped" in shown and view.over and view.failed


def test_the_end_reason_of_a_turn_is_shown() -> None:
    for reason, words in {"repetition": "the model repeated itself", "length": "cut at max_tokens"}.items():
        view = played(*opening(), e.TextDelta("x"), e.TurnFinished(TOTALS, reason))  # type: ignore[arg-type]
        assert words in drawn(view)


def test_the_waterfall_fills_its_width_and_names_every_part() -> None:
    for width in (20, 76, 190):
        assert sum(share[3] for share in time_shares(ROUND_1, width)) == width
        assert all(cell_width(row) <= width for row in waterfall(TOTALS, "answered", width))
    assert time_shares(e.RoundTiming(), 50) == []


def test_reprocessed_tokens_are_highlighted() -> None:
    timing = e.RoundTiming(
        wall_seconds=1, prefill_reprocessed_seconds=1, prefill_new_tokens=5, prefill_reprocessed_tokens=1200
    )
    shown = drawn(played(*opening(), e.TextDelta("x"), e.TurnFinished(e.TurnTotals(1, timing), "answered")))
    assert "1.2k read again" in shown and "■ read again 1.0 s" in shown


def test_a_stored_turn_looks_as_it_did_live() -> None:
    live = played(*coding_turn())
    asked = TurnHeader("t1", "", "2026-11-21T13:00:00Z", "Parse 1h30m", "qwen", "b11434", "model")
    stored = Turn(asked)
    thoughts = "".join(step.text for step in coding_turn() if isinstance(step, e.ReasoningDelta))
    first = e.Message("assistant", "I'll test the edge cases first.", thoughts, tool_calls=(CALL,))
    for step in coding_turn():
        if isinstance(step, e.ToolRequested):
            stored.events.append(e.MessageAdded(first))
        elif isinstance(step, e.RoundFinished) and step.round == 2:
            stored.events.append(e.MessageAdded(e.Message("assistant", ANSWER)))
        if not isinstance(step, (e.TextDelta, e.ReasoningDelta)):
            stored.events.append(step)  # type: ignore[arg-type]
    assert drawn(stored_turn_view(stored)) == drawn(live)
    tagged = Turn(stored.header, [e.MessageAdded(e.Message("assistant", "<think>hidden</think>Seen."))])
    assert "hidden" not in drawn(stored_turn_view(tagged)) and "thought for" in drawn(stored_turn_view(tagged))
    assert stored_turn_view(stored).id == "t1"


def test_an_interrupted_turn_is_marked() -> None:
    cut = Turn(TurnHeader("t1", "", "", "Why?"), [e.RoundStarted(1, 5), e.TextDelta("Beca")])
    assert drawn(stored_turn_view(cut)).endswith("Beca\n■ cut off: gpubox ended during this turn")


def test_tool_calls_fold_long_code_and_output() -> None:
    call = ToolCall("c", "run", {}, "\n".join(f"x{i} = {i}" for i in range(100)))
    output = ToolOutput(
        "\n".join(f"line {i}" for i in range(300)), isolation="none", ended_by="memory", dropped_bytes=5000
    )
    view = played(*opening(), e.ToolRequested(call), e.ToolFinished(call, output))
    shown = drawn(view)
    assert "… 90 more lines" in shown and "x9 = 9" in shown and "x50" not in shown
    assert "line 0" in shown and "5,000 bytes more were dropped" in shown and "none · 0 ms · out of memory" in shown
    (card,) = [part for part in view.parts if isinstance(part, ToolCallPart)]
    card.open = True
    assert "x50 = 50" in drawn(view) and "line 150" in drawn(view)


def test_hostile_output_stays_in_its_frame() -> None:
    text = "[/foo] [b]x\x1b[2J\x1b]0;t\x07\n" + "y" * 1_000_000 + "\n\u202eevil 👩‍💻\r\n"
    call = ToolCall("c", "read_file", {"path": "[/x]\x1b[31m" + "z" * 500, "lines": "1\n2"})
    shown = drawn(played(*opening(), e.ToolRequested(call), e.ToolFinished(call, ToolOutput(text))), 60)
    assert "[/foo] [b]x" in shown and "\x1b" not in shown and "\u202e" not in shown and len(shown) < 20_000


def test_an_answer_does_not_depend_on_how_it_was_streamed() -> None:
    one, many = AnswerPart(), AnswerPart()
    one.add(ANSWER)
    one.over = True
    for char in ANSWER:
        many.add(char)
        many.lines(50)
    many.over = True
    assert many.lines(50) == one.lines(50) and many.lines(90) == one.lines(90)
