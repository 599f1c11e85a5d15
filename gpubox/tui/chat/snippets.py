"""The programs in a turn: those the model ran, and the code blocks of what it said. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpubox.tui.chat.markdown import fences
from gpubox.tui.chat.parts import AnswerPart, ToolCallPart

if TYPE_CHECKING:
    from gpubox.tui.chat.turn import TurnView

FILE_EXTENSIONS = {
    "python": "py", "py": "py", "bash": "sh", "sh": "sh", "shell": "sh", "javascript": "js", "js": "js",
    "typescript": "ts", "c": "c", "cpp": "cpp", "c++": "cpp", "rust": "rs", "go": "go", "java": "java", "json": "json",
    "yaml": "yaml", "toml": "toml", "html": "html", "css": "css", "sql": "sql", "markdown": "md", "diff": "diff",
}  # fmt: skip
"""Language -> how its files end."""


@dataclass(frozen=True, slots=True)
class CodeSnippet:
    """One program, as the model wrote it."""

    text: str
    language: str

    @property
    def lines(self) -> int:
        return len(self.text.rstrip("\n").split("\n"))

    @property
    def file_name(self) -> str:
        """A name to save it under."""
        return f"snippet.{FILE_EXTENSIONS.get(self.language.lower(), 'txt')}"


def code_snippets(turn: TurnView) -> list[CodeSnippet]:
    """In the order they came; what was said and then run is one."""
    found: list[CodeSnippet] = []
    for part in turn.parts:
        if isinstance(part, AnswerPart):
            found += [CodeSnippet(text, language or "text") for language, text in fences(part.text)]
        elif isinstance(part, ToolCallPart) and part.call.code:
            code = CodeSnippet(part.call.code, "python")
            found = [one for one in found if one.text.strip() != code.text.strip()]
            found.append(code)
    return [one for one in found if one.text.strip()]
