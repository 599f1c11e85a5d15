"""The code of a turn: which there is, copied to the clipboard, saved to a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpubox.tui.chat.markdown import fences
from gpubox.tui.chat.turn_parts import AnswerPart, ToolCallPart
from gpubox.tui.dialogs import PromptScreen
from gpubox.views.changes import count

if TYPE_CHECKING:
    from gpubox.tui.chat.turn import TurnView

FILE_EXTENSIONS = {
    "python": "py", "py": "py", "bash": "sh", "sh": "sh", "shell": "sh", "javascript": "js", "js": "js",
    "typescript": "ts", "c": "c", "cpp": "cpp", "c++": "cpp", "rust": "rs", "go": "go", "java": "java", "json": "json",
    "yaml": "yaml", "toml": "toml", "html": "html", "css": "css", "sql": "sql", "markdown": "md", "diff": "diff",
}  # fmt: skip
"""By language."""


@dataclass(frozen=True, slots=True)
class CodeSnippet:
    """A program in a turn, as the model wrote it."""

    text: str
    language: str


def code_snippets(turn: TurnView) -> list[CodeSnippet]:
    """The code blocks and executed programs of a turn, in order. A block that was then executed counts once."""
    snippets: list[CodeSnippet] = []
    for part in turn.parts:
        if isinstance(part, AnswerPart):
            snippets += [CodeSnippet(text, language or "text") for language, text in fences(part.text)]
        elif isinstance(part, ToolCallPart) and part.call.code:
            code = part.call.code
            snippets = [snippet for snippet in snippets if snippet.text.strip() != code.strip()]
            snippets.append(CodeSnippet(code, part.call.language))
    return [snippet for snippet in snippets if snippet.text.strip()]


class Snippets:
    """Copies and saves code of the turn in view."""

    def __init__(self, screen: Any) -> None:
        """``screen``: the ChatScreen, whose module imports this one."""
        self.screen = screen
        self._copied: tuple[int, int] = (-1, 0)
        """Index of a turn, and which of its snippets was copied last, counted from the end."""

    def copy_answer(self) -> None:
        screen = self.screen
        index, selected = screen.transcript.turn_in_view, screen.get_selected_text()
        text = selected or (screen.transcript.turns[index].answer if index is not None else "")
        if text:
            screen.copy(text, "the selected text" if selected else "the answer")
        else:
            screen.say("There is no answer to copy.")

    def copy_code(self) -> None:
        turn, snippets = self._in_view()
        if not snippets:
            return
        back = self._copied[1] + 1 if self._copied[0] == turn else 0
        self._copied = (turn, back % len(snippets))
        index = len(snippets) - 1 - self._copied[1]
        snippet = snippets[index]
        lines = count(len(snippet.text.rstrip("\n").split("\n")), "line")
        again = ". Press again for the one before it" if len(snippets) > 1 else ""
        self.screen.copy(snippet.text, f"code {index + 1} of {len(snippets)} ({snippet.language}, {lines}){again}")

    async def save_code(self) -> None:
        turn, snippets = self._in_view()
        if snippets:
            back = self._copied[1] if self._copied[0] == turn else 0
            snippet = snippets[len(snippets) - 1 - back]
            name = f"snippet.{FILE_EXTENSIONS.get(snippet.language.lower(), 'txt')}"
            await self.save("Save the code as", name, snippet.text)

    async def save(self, title: str, name: str, text: str) -> None:
        """Asks for a path, and writes a new file there."""
        screen, folder = self.screen, self.screen.settings.workdir
        where = f"Relative to {folder}." if folder else "Relative to the folder in which gpubox was started."
        if path := await screen.app.push_screen_wait(PromptScreen(title, name, where)):
            screen.say(f"Saved: {await screen.chats.save_file(text, path, folder)}")

    def _in_view(self) -> tuple[int, list[CodeSnippet]]:
        index = self.screen.transcript.turn_in_view
        snippets = [] if index is None else code_snippets(self.screen.transcript.turns[index])
        if not snippets:
            self.screen.say("There is no code in this turn.")
        return (-1 if index is None else index), snippets
