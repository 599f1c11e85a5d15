"""What of a reply is the answer. Pure.

The article's first two bugs lived here: thinking that was cut off is never an answer, and an answer that the server
put into ``reasoning_content`` is one, and said to be from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpubox.agent.fences import Block, blocks
from gpubox.agent.thinking import split_thinking


@dataclass(frozen=True, slots=True)
class Answer:
    """The text to score, and where it is from."""

    text: str
    source: str
    """content | reasoning | empty (nothing was said) | cut (max_tokens ended the thinking)"""

    @property
    def blocks(self) -> list[Block]:
        return blocks(self.text)


def answer_of(content: str, reasoning: str, finish_reason: str) -> Answer:
    """The Answer of one reply."""
    thinking, visible = split_thinking(content)
    if visible.strip():
        return Answer(visible, "content")
    if finish_reason == "length" and (thinking.strip() or reasoning.strip()):
        return Answer("", "cut")
    if reasoning.strip() and not thinking.strip():
        return Answer(reasoning, "reasoning")
    return Answer("", "empty")


def code_in(answer: Answer, languages: Iterable[str]) -> str:
    """The longest block in one of ``languages`` (or in none); without any block, a whole text that is no prose."""
    wanted = {*languages, ""}
    found = [block.code for block in answer.blocks if block.language in wanted]
    if found:
        return max(found, key=len)
    return "" if answer.blocks or not _looks_like_code(answer.text) else answer.text


def files_in(answer: Answer) -> dict[str, str]:
    """Path -> content, of fenced blocks headed by a path: on the line before, in the info string or in line one."""
    found: dict[str, str] = {}
    for block in answer.blocks:
        path = _path_before(answer.text[: block.start]) or _path_in(block.code)
        if path:
            found[path] = block.code
    return found


def _path_before(text: str) -> str:
    lines = [line for line in text.rstrip().splitlines()[-2:] if line.strip()]
    return _path(lines[-1]) if lines else ""


def _path_in(code: str) -> str:
    first = code.lstrip().partition("\n")[0].strip()
    return _path(first) if first.startswith(("//", "#", "/*")) else ""


def _path(line: str) -> str:
    words = line.strip().strip("#*`/: ").replace("`", " ").replace("*", " ").replace("(", " ").split()
    for word in words:
        word = word.strip(":,.()[]\"'").removeprefix("./")
        if word.endswith((".js", ".py", ".ts", ".mjs")) and "//" not in word:
            return word
    return ""


def _looks_like_code(text: str) -> bool:
    starts = ("import ", "from ", "def ", "class ", "#!", "export ", "const ", "function ", "interface ", "@")
    return text.lstrip().startswith(starts)
