"""The code of an answer is found in every form in which models write it, and nothing else counts as code."""

from __future__ import annotations

import time

import pytest

from gpubox.agent.code_answer import code_blocks, python_program, unmarked_readings
from gpubox.bench.kinds.humaneval.grader import Candidate, grade
from gpubox.bench.kinds.humaneval.replies import code_of_reply
from gpubox.sandbox.runner import Sandbox
from tests.code_answers import CLOSE, RIGHT, WRONG


async def test_right_answers_pass_in_every_form_and_wrong_ones_in_none(sandbox: Sandbox) -> None:
    """Of these 95 and 31, evalplus 0.3.1's sanitizer passes 62 and 6."""
    programs = {form: code_of_reply(CLOSE, answer).program for form, answer in {**RIGHT, **WRONG}.items()}
    grades = await grade([Candidate(form, CLOSE, program) for form, program in programs.items() if program], sandbox)

    passed = {form for form, verdict in grades.items() if verdict.passed}
    assert RIGHT.keys() - passed == set()
    assert WRONG.keys() & passed == set()


@pytest.mark.parametrize("form", ["an example that reads input", "a quote", "prose around bare code", "[PYTHON]"])
def test_the_chat_runs_only_what_a_fence_calls_python(form: str) -> None:
    marked = form == "an example that reads input"
    assert bool(python_program(RIGHT[form])[0]) is marked


@pytest.mark.parametrize("piece", ["a", "1.", "def f(:\n", "x = (\n", "```\n", "<pre>", "import a b\n", '"""\n', "> "])
def test_a_reply_that_repeats_itself_for_ever_is_searched_at_once(piece: str) -> None:
    text = piece * (40_000 // len(piece))
    began = time.process_time()
    code_blocks(text)
    code_of_reply(CLOSE, text)
    list(unmarked_readings(text))
    assert time.process_time() - began < 10
