"""The program in a reply. Pure: the same text gives the same program, so that a stored reply is scored again alike."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from gpubox.agent.fenced_code import PYTHON_LANGUAGES, fenced_blocks
from gpubox.agent.thinking import split_thinking
from gpubox.bench.kinds.humaneval.dataset import Problem
from gpubox.bench.kinds.python_syntax import parse_python


@dataclass(frozen=True, slots=True)
class ExtractedCode:
    """The whole program to grade, the code that was found, and where."""

    program: str
    code: str
    source: str
    """completion | answer | body | executed | whole reply | reasoning; empty: there is no code."""


def code_of_completion(problem: Problem, completion: str) -> ExtractedCode:
    """As lm-eval builds its prediction: prompt and completion, nothing cut off."""
    return ExtractedCode(problem.prompt + completion, completion, "completion")


def code_of_reply(problem: Problem, content: str, reasoning: str = "", ran: Sequence[str] = ()) -> ExtractedCode:
    """From a chat's answer: its last block that defines the function, else the last program that ran and did.

    Thinking is never code, closed or not; but where there is no other text at all, whole blocks of
    ``reasoning_content`` are taken, and said to be from there.
    """
    visible = split_thinking(content)[1]
    if visible.strip():
        found = _in_blocks(problem, visible) or _executed(problem, ran) or _whole(problem, visible)
    else:
        found = _executed(problem, ran) or _in_blocks(problem, reasoning, source="reasoning")
    return found or ExtractedCode("", "", "")


def _in_blocks(problem: Problem, text: str, source: str = "answer") -> ExtractedCode | None:
    parts = [
        b
        for b in fenced_blocks(text)
        if (not b.language or b.language in PYTHON_LANGUAGES) and (b.closed or source == "answer")
    ]
    for block in reversed(parts):
        if _defines(block.code, problem.entry_point):
            return _replacing(problem, block.code, source)
    for block in reversed(parts):
        for code in (block.code, textwrap.indent(textwrap.dedent(block.code), "    ")):
            if "return" in code and parse_python(problem.prompt + code):
                return ExtractedCode(problem.prompt + code, block.code, "body" if source == "answer" else source)
    return None


def _executed(problem: Problem, ran: Sequence[str]) -> ExtractedCode | None:
    for code in reversed(ran):
        if _defines(code, problem.entry_point):
            return _replacing(problem, code, "executed")
    return None


def _whole(problem: Problem, text: str) -> ExtractedCode | None:
    return _replacing(problem, text, "whole reply") if _defines(text, problem.entry_point) else None


def _replacing(problem: Problem, code: str, source: str) -> ExtractedCode:
    """The prompt stays ahead: it holds imports, and helpers that four of the problems need."""
    return ExtractedCode(f"{problem.prompt}\n\n{code}", code, source)


def _defines(code: str, name: str) -> bool:
    tree = parse_python(code)
    return tree is not None and any(_named(node, name) for node in tree.body)


def _named(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return isinstance(node, ast.FunctionDef) and node.name == name
