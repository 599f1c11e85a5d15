"""The answer in a reply, and the code in it, however it is fenced. Pure.

Two of the article's bugs are avoided here: unfinished thinking is never an answer, and an answer that the server put
into ``reasoning_content`` counts, with its source shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpubox.agent.code_answer import code_blocks, fenced_blocks
from gpubox.agent.reply_text import split_thinking


@dataclass(frozen=True, slots=True)
class SuiteAnswer:
    """The text to score and its source."""

    text: str
    source: str
    """content | reasoning | empty (there is no text) | cut (max_tokens ended the thinking)"""

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        parts, end = [], 0
        for block in fenced_blocks(self.text):
            parts.append(self.text[end : block.start])
            end = block.end
        return "\n".join((*parts, self.text[end:]))


def answer_of_reply(content: str, reasoning: str, finish_reason: str) -> SuiteAnswer:
    """The answer of one reply."""
    thinking, visible = split_thinking(content)
    if visible.strip():
        return SuiteAnswer(visible, "content")
    if finish_reason == "length" and (thinking.strip() or reasoning.strip()):
        return SuiteAnswer("", "cut")
    if reasoning.strip() and not thinking.strip():
        return SuiteAnswer(reasoning, "reasoning")
    return SuiteAnswer("", "empty")


def files_in(answer: SuiteAnswer, originals: Mapping[str, str], family: str) -> dict[str, str]:
    """Path -> the answer's version of that file, found by its path, else by the original it resembles most."""
    files: dict[str, str] = {}
    unnamed: list[str] = []
    for piece in code_blocks(answer.text):
        if piece.language not in (family, "") or not piece.code.strip():
            continue
        own = piece.path.lower().removeprefix("./")
        matches = [path for path in originals if own == path or own.endswith("/" + path)]
        matches = matches or [path for path in originals if path.rpartition("/")[2] == piece.name]
        if len(matches) == 1:
            files[matches[0]] = piece.code
        elif not piece.path:
            unnamed.append(piece.code)
    for code in unnamed:
        lines = {line.strip() for line in code.splitlines() if line.strip()}
        shares = {path: _shared_lines(lines, text) for path, text in originals.items()}
        best = max(shares, key=lambda path: shares[path])
        if shares[best] >= 0.4:
            files.setdefault(best, code)
    return files


def _shared_lines(lines: set[str], original: str) -> float:
    """The share of the original's lines that are in ``lines``."""
    own = {line.strip() for line in original.splitlines() if len(line.strip()) > 3}
    return len(own & lines) / len(own)
