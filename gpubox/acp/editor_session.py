"""One session of an editor: a chat of gpubox, and what its owner decides there.

The files: the model works over what is on the disk, as in any chat. Of a file that a prompt names it reads what the
editor shows. What the owner takes, `Steps` writes; a file with unsaved changes in the editor is left, and an editor
that still shows the old text is given the new one. Nothing else of the model's leaves the chat's layers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from gpubox.acp import shown
from gpubox.acp.editor import Editor
from gpubox.acp.profile_choice import ProfileChoice
from gpubox.agent.chat import Chat
from gpubox.agent.events import (
    AgentEvent,
    FilesChanged,
    QuestionAsked,
    RoundFinished,
    TurnFailed,
    TurnFinished,
    TurnStarted,
)
from gpubox.agent.files_named import named, read_named
from gpubox.agent.tools import Answer, OwnerQuestion
from gpubox.agent.workspace import Workspace
from gpubox.concurrency import Stoppable, run_in_thread
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.sandbox.changes import Change, unified
from gpubox.sandbox.layers import View
from gpubox.sanitize import reveal_hidden, show_name
from gpubox.server.responses import json_object

MODES = {
    "ask": ("Ask", "You decide about the changes of each turn."),
    "turn": ("Take", "Each turn's changes are taken at its end, but for conflicts and what runs by itself."),
    "plan": ("Plan", "Nothing is written."),
}
COMMANDS = {
    "diff": ("Show what waits for your decision", ""),
    "take": ("Take what waits", ""),
    "drop": ("Drop what waits", "why, for the model"),
    "undo": ("Take the last turn back, its files too", "keep, to leave the files that you changed since"),
    "redo": ("Take the undo back", "keep"),
}
_ENDS = {"rounds": "max_turn_requests", "tokens": "max_tokens", "length": "max_tokens", "wall": "max_turn_requests"}
_MAX_READ = 64
"""Files that an editor is asked for at a time."""


class EditorSession:
    """``close`` it. It answers one prompt at a time."""

    def __init__(self, paths: Paths, config: Config, editor: Editor, name: str, *, new: bool, any_workdir: bool):
        """Opens the chat ``name``, or makes it. Raises GpuboxError."""
        self._editor, self.id = editor, name
        self.chat = Chat(paths, config, "" if new else name, ask=self._ask, any_workdir=any_workdir)
        self.chat.take_at_end = False
        if new:
            self.chat.rename_to(name)
        self.profile = ProfileChoice(paths, editor, name)
        self._work, self._busy, self._cancelled = Stoppable(), False, False
        self._question_shown = asyncio.Event()

    @property
    def _workspace(self) -> Workspace | None:
        folder = self.chat.settings.workdir
        return Workspace(Path(folder), any_folder=True) if folder else None

    async def offers(self) -> dict[str, Any]:
        """Its modes, and the same and the profiles as options."""
        mode = self.chat.settings.apply
        modes = [{"id": key, "name": name, "description": text} for key, (name, text) in MODES.items()]
        about = {"id": "mode", "name": "Changes", "category": "mode", "type": "select", "currentValue": mode}
        values = [{"value": key, "name": name, "description": text} for key, (name, text) in MODES.items()]
        options = [{**about, "options": values}, await self.profile.option()]
        return {"modes": {"currentModeId": mode, "availableModes": modes}, "configOptions": options}

    def work_in(self, folder: str) -> None:
        """The workspace of a new session. Raises UsageError if it cannot be one."""
        self.chat.change_settings(msgspec.structs.replace(self.chat.settings, workdir=folder))

    async def set_option(self, name: str, value: str) -> None:
        """Holds from the next turn on. Raises UsageError."""
        if name == "model":
            await self.profile.want(value)
        elif name != "mode" or value not in MODES:
            raise UsageError(f"There is no {name[:40]} {value[:40]!r}.")
        else:
            self.chat.change_settings(msgspec.structs.replace(self.chat.settings, apply=value))
            await self._show({"sessionUpdate": "current_mode_update", "currentModeId": value})
        await self._tell_options()

    async def _tell_options(self) -> None:
        options = (await self.offers())["configOptions"]
        await self._show({"sessionUpdate": "config_option_update", "configOptions": options})

    async def replay(self) -> None:
        """Shows all earlier turns."""
        for turn in self.chat.log.path():
            for update in shown.replayed(turn, self._workspace):
                await self._show(update)

    def tell_commands(self) -> None:
        """Says which commands there are."""
        listed = [
            {"name": name, "description": text, **({"input": {"hint": hint}} if hint else {})}
            for name, (text, hint) in COMMANDS.items()
        ]
        self._editor.tell(self.id, {"sessionUpdate": "available_commands_update", "availableCommands": listed})

    async def prompt(self, blocks: Sequence[dict[str, Any]]) -> str:
        """Answers, and returns the ``stopReason``. Raises GpuboxError, also while another one is answered."""
        if self._busy:
            raise GpuboxError("The model is still answering in this session.", "Wait for the answer, or stop it.")
        self._busy, self._cancelled = True, False
        try:
            reason = await self._work.run(self._answer(blocks))
        except GpuboxError:
            if not self._cancelled:
                raise
            reason = "cancelled"
        finally:
            self._busy = False
        return "cancelled" if self._cancelled else reason

    def cancel(self) -> None:
        """Stops what ``prompt`` does."""
        if self._busy and not self._cancelled:
            self._cancelled = True
            if not self.chat.stop():
                self._work.stop()

    async def close(self) -> None:
        """Stops all and closes the chat."""
        self.cancel()
        await self.chat.close()

    # -- one prompt -----------------------------------------------------------------------------------

    async def _answer(self, blocks: Sequence[dict[str, Any]]) -> str:
        workspace = self._workspace
        typed, given, images = read_blocks(blocks, workspace)
        command, _, rest = typed.partition(" ")
        if command.startswith("/") and command[1:] in COMMANDS:
            await self._command(command[1:], rest.strip())
            return "end_turn"
        if self.profile.wanted:
            try:
                await self.profile.switch()
            finally:
                await self._tell_options()
        view = self.chat.view() or (View([workspace.root]) if workspace else None)
        for name in [name for name in named(typed) if name not in given][:_MAX_READ]:
            saved = await run_in_thread(shown.file_text, view, name) if view else None
            text = await self._read(name) if saved is not None else None
            if text is not None and _lines(text) != _lines(saved):
                given[name] = text
                about = "the model reads them, but its tools work on the file as it is saved"
                await self._show(shown.note(f"{show_name(name)} has unsaved changes: {about}."))
        prompt = await run_in_thread(read_named, typed, view, given)
        for note in prompt.notes:
            await self._show(shown.note(note))
        if not self.chat.log.turns:
            await self._show({"sessionUpdate": "session_info_update", "title": shown.text_block(typed)["text"][:80]})
        with tempfile.TemporaryDirectory() as folder:
            for number, data in enumerate(images):
                (Path(folder) / str(number)).write_bytes(data)
            pictures = [*prompt.images, *(Path(folder) / str(number) for number in range(len(images)))]
            last, changed = await self._turn(typed, pictures, prompt.attached)
        if changed and not self._cancelled:
            try:
                await self._decide(self.chat.settings.apply == "turn")
            except GpuboxError as error:
                await self._show(shown.note(str(error)))
        if isinstance(last, TurnFailed):
            raise GpuboxError(last.message, last.hint)
        return _ENDS.get(last.reason, "end_turn") if isinstance(last, TurnFinished) else "end_turn"

    async def _turn(self, text: str, images: Sequence[Path], attached: str) -> tuple[AgentEvent | None, bool]:
        """The last event of a turn, and whether it changed files."""
        last, changed, size, workspace = None, False, None, self._workspace
        async with aclosing(self.chat.send(text, images, attached=attached)) as events:
            async for last in events:
                for update in shown.updates(last, workspace):
                    await self._show(update)
                if isinstance(last, QuestionAsked):
                    self._question_shown.set()
                elif isinstance(last, TurnStarted):
                    size = last.context_size_tokens
                elif isinstance(last, RoundFinished) and size and (used := last.timing.context_tokens) is not None:
                    await self._show({"sessionUpdate": "usage_update", "used": used, "size": size})
                changed = changed or isinstance(last, FilesChanged)
        return last, changed

    async def _ask(self, question: OwnerQuestion) -> Answer:
        """Asks what a turn needs to know. The answer to a question without options is the next prompt."""
        await self._question_shown.wait()
        self._question_shown.clear()
        text, call = reveal_hidden(question.text), question.call
        if question.kind == "ask" and not question.options:
            await self._show(shown.chunk("agent_message", f"\n\n{text}\n"))
            self.chat.stop()
            return Answer(False)
        options = {str(at): reveal_hidden(each) for at, each in enumerate(question.options)}
        if not options:
            options = {"yes": "Go on", "no": "Stop here"} if question.kind == "go_on" else {"yes": "Yes", "no": "No"}
        chosen = await self._choose(text, [shown.shown_text(text)], options, identity=call.id if call else "")
        return Answer(chosen not in ("", "no"), question.options[int(chosen)] if chosen.isdecimal() else "")

    async def _choose(
        self, title: str, content: list[shown.Update], options: Mapping[str, str], *, identity: str = ""
    ) -> str:
        """What the owner chose; empty: nothing. ``identity``: the model's call that asks."""
        call = shown.tool_call(identity or shown.new_id(), title, "other", *content)
        if identity:
            del call["kind"]
        else:
            await self._show(call)
        try:
            return await self._editor.choose(self.id, call, options)
        finally:
            if not identity:
                await self._show(shown.tool_update(call["toolCallId"], "completed"))

    # -- what waits for the owner ---------------------------------------------------------------------

    async def _decide(self, taking: bool) -> None:
        """Asks what becomes of the changes; ``taking``: they are taken, but for what needs a yes of its own."""
        changes = await self.chat.changes()
        live, made = View([Path(self.chat.settings.workdir)]), self.chat.view()
        fate = dict.fromkeys((change.path for change in changes), "take" if taking else "")
        allowed: list[str] = []
        options = {"take": "Take", "drop": "Drop", "later": "Decide later"}
        if changes and not taking:
            each = {"each": "File by file"} if len(changes) > 1 else {}
            content = await run_in_thread(shown.shown_changes, changes, live, made)
            names = ", ".join(show_name(change.path) for change in changes[:3])
            title = f"Take the changes of {names}{' and others' if len(changes) > 3 else ''}?"
            chosen = await self._choose(title, content, options | each)
            fate = dict.fromkeys(fate, chosen)
        for change in changes:
            if fate[change.path] == "each" or (change.runs_by_itself and fate[change.path] == "take"):
                content = await run_in_thread(shown.shown_changes, [change], live, made)
                why = f" It is {change.runs_by_itself}." if change.runs_by_itself else ""
                title = f"Take {show_name(change.path)}?{why}"
                fate[change.path] = await self._choose(title, content, options)
                allowed += [change.path] if change.runs_by_itself and fate[change.path] == "take" else []
        if taken := [change for change in changes if fate[change.path] == "take"]:
            await self._take(taken, allowed, live)
        if dropped := [change.path for change in changes if fate[change.path] == "drop"]:
            await self.chat.drop(dict.fromkeys(dropped))
        if any(each not in ("take", "drop") for each in fate.values()):
            await self._show(shown.note("What is left waits for you: /diff shows it, /take and /drop decide."))

    async def _take(self, changes: Sequence[Change], allowed: Sequence[str], live: View) -> None:
        paths = [change.path for change in changes]
        before = await run_in_thread(lambda: {path: shown.file_text(live, path) for path in paths})
        buffers = await self._read_all([path for path in paths if before[path] is not None])
        unsaved = [path for path, text in buffers.items() if text is not None and _lines(text) != _lines(before[path])]
        result = await self.chat.take({path: None for path in paths if path not in unsaved}, allow=allowed)
        left = {change.path: change.conflict or f"it is {change.runs_by_itself}." for change in result.left}
        left |= dict.fromkeys(unsaved, "it has unsaved changes in your editor. Save or undo them, then /take.")
        said = [f"Taken: {', '.join(map(show_name, result.taken))}."] if result.taken else []
        said += [*result.notes, *(f"{show_name(path)} is left: {why}" for path, why in left.items())]
        for sentence in said:
            await self._show(shown.note(sentence))
        told = await self._read_all([path for path in result.taken if buffers.get(path) is not None])
        for path, text in told.items():
            now = await run_in_thread(shown.file_text, live, path)
            if now is not None and text is not None and _lines(text) == _lines(before[path]) != _lines(now):
                await self._editor.write(self.id, str(live.folders[0] / path), now)

    async def _read_all(self, paths: Sequence[str]) -> dict[str, str | None]:
        texts: dict[str, str | None] = {}
        for asked in (paths[start : start + _MAX_READ] for start in range(0, len(paths), _MAX_READ)):
            texts |= zip(asked, await asyncio.gather(*map(self._read, asked)), strict=True)
        return texts

    async def _read(self, path: str) -> str | None:
        return await self._editor.read(self.id, str(Path(self.chat.settings.workdir) / path))

    # -- commands -------------------------------------------------------------------------------------

    async def _command(self, name: str, rest: str) -> None:
        if name == "take":
            await self._decide(True)
        elif name == "drop":
            await self.chat.drop(None, rest)
            await self._show(shown.note("Dropped."))
        elif name == "diff":
            text = "".join(map(unified, await self.chat.changes()))
            await self._show({"sessionUpdate": "agent_message_chunk", **shown.fenced(text or "Nothing waits.", "diff")})
        else:
            events = (event for turn in self.chat.log.turns.values() for event in turn.events if rest == "keep")
            keep = {file.path for event in events if isinstance(event, FilesChanged) for file in event.files}
            result = await (self.chat.undo if name == "undo" else self.chat.redo)(keep=keep)
            files = f" Files put back: {', '.join(map(show_name, result.files))}." if result.files else ""
            kept = f" Yours stay: {', '.join(map(show_name, result.kept))}." if result.kept else ""
            await self._show(shown.note(f"{'Undone' if name == 'undo' else 'Redone'}.{files}{kept}"))

    async def _show(self, update: shown.Update) -> None:
        await self._editor.show(self.id, update)


def read_blocks(
    blocks: Sequence[dict[str, Any]], workspace: Workspace | None
) -> tuple[str, dict[str, str], list[bytes]]:
    """What a prompt says, the texts that it brings by name, and its images. Raises UsageError."""
    typed, given, images = list[str](), dict[str, str](), list[bytes]()
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                typed.append(text)
            case {"type": "image", "data": str(data)}:
                try:
                    images.append(base64.b64decode(data, validate=True))
                except ValueError:
                    raise UsageError("The image is no base64.") from None
            case {"type": "resource_link", "uri": str(uri)} | {"type": "resource", "resource": {"uri": str(uri)}}:
                name = _name_of(uri, workspace)
                typed.append(f" @{name} " if re.fullmatch(r"[\w./-]*\w", name) else f' @"{name}" ')
                if isinstance(brought := json_object(block.get("resource")).get("text"), str):
                    given[name] = brought
            case _:
                raise UsageError("This prompt cannot be read.", "Text, images and files can be sent.")
    if not "".join(typed).strip() and not images:
        raise UsageError("The prompt is empty.")
    return "".join(typed).strip(), given, images


def _name_of(uri: str, workspace: Workspace | None) -> str:
    """The path in the workspace, else the address as it is; on one line, as a prompt names a file."""
    name = uri
    with contextlib.suppress(GpuboxError, ValueError):  # ValueError: it is no address
        parts = urlsplit(uri)
        if parts.scheme in ("", "file"):
            name = unquote(parts.path)
            name = "/".join(workspace.parts(name)) if workspace else name
    return "".join(char for char in name if char.isprintable() and char != '"')


def _lines(text: str | None) -> list[str]:
    """Editors change line ends and the mark of a byte order, and that is no change."""
    return (text or "").removeprefix("\ufeff").splitlines()
