"""The file of an open chat, and the chat that is in it. It has a file from its first question on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gpubox.agent.chat_files import chat_path, existing_chat, free_name, images_folder, load_chat, move_chat_file
from gpubox.agent.chat_log import AnyChatRecord, ChatLog, ChatSettings, SettingsChanged
from gpubox.agent.events import (
    AgentEvent,
    ChangedFile,
    FilesChanged,
    Message,
    MessageAdded,
    Notice,
    TurnFailed,
    TurnFinished,
    TurnTotals,
)
from gpubox.agent.images import MAX_BYTES, store_image
from gpubox.agent.journal import ChatJournal
from gpubox.clock import utc_now
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.storage import read_bytes

FLUSH_SECONDS = 0.5
"""Deltas reach the file at most so much later."""


class ChatFile:
    """What is recorded is in ``log`` and in the file."""

    def __init__(self, paths: Paths, name: str) -> None:
        """Opens the chat ``name``; empty: a new one. Raises GpuboxError, also if another gpubox has it open."""
        self._paths = paths
        self._journal: ChatJournal | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._reported_problem = ""
        self.log = ChatLog(name)
        if name:
            path = existing_chat(paths, name)
            self._journal = ChatJournal(path)
            try:
                self.log = load_chat(path)
            except BaseException:
                self._journal.close()
                raise

    @property
    def path(self) -> Path | None:
        """``None`` before the first question."""
        return self._journal.path if self._journal else None

    @property
    def images(self) -> Path | None:
        """Where the images of its messages are."""
        return images_folder(self.path) if self.path else None

    def store_images(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """Keeps copies of these images and returns their names. Blocking. Raises GpuboxError."""
        folder = self.images
        assert folder is not None
        return tuple(store_image(folder, _image_data(path)) for path in paths)

    @property
    def problem(self) -> str:
        """Why the chat is not saved at the moment; empty: it is."""
        return self._journal.problem if self._journal else ""

    def new_problem(self) -> Notice | None:
        """A Notice for each new problem."""
        if self.problem == self._reported_problem:
            return None
        self._reported_problem = self.problem
        return Notice("journal", self.problem) if self.problem else None

    def create(self, text: str) -> None:
        """Gives a new chat its file and, from its first question ``text``, its name."""
        while not self._journal:
            name = self.log.name or free_name(self._paths, text)
            try:
                self._journal = ChatJournal(chat_path(self._paths, name), new=True)
            except UsageError:
                if self.log.name:
                    raise
                continue  # another gpubox has just taken the name
            self.log.name = name
            if self.log.settings != ChatSettings():
                self._journal.add(SettingsChanged(self.log.settings, utc_now()))

    def rename_to(self, name: str) -> None:
        """Renames the chat, also before it has a file. Raises UsageError if the name is taken or not valid."""
        target = chat_path(self._paths, name)
        if self._journal:
            move_chat_file(self._journal.path, target)
            self._journal.path = target
        elif target.exists():
            raise UsageError(f"There is a chat {name} already.", f"--continue {name} continues it.")
        self.log.name = name

    def record(self, record: AnyChatRecord) -> None:
        """Adds a record."""
        self.log.apply_record(record)
        if self._journal:
            self._journal.add(record)

    def log_event(self, event: AgentEvent) -> None:
        """Adds an event of the newest turn. Deltas reach the file a little later."""
        assert self._journal is not None
        self.log.apply_event(event)
        self._journal.add_event(event)
        if self._journal.has_pending and self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def log_interrupted(self, messages: list[Message], files: tuple[ChangedFile, ...], failure: str) -> None:
        """Adds the events that the consumer did not receive because it closed the generator or the turn broke."""
        for message in messages:
            self.log_event(MessageAdded(message))
        if files:
            self.log_event(FilesChanged(files))
        answers = [message.content for message in messages if message.role == "assistant"]
        answer = answers[-1] if answers else ""
        self.log_event(TurnFailed(failure) if failure else TurnFinished(TurnTotals(), "stopped", answer))

    def flush(self) -> None:
        """Writes the deltas that wait."""
        if self._flush_timer:
            self._flush_timer.cancel()
        self._flush_timer = None
        if self._journal:
            self._journal.flush()

    def sync(self) -> None:
        """Waits until everything is on the disk. Blocking."""
        if self._journal:
            self._journal.sync()

    def close(self) -> None:
        """Releases the chat's lock. May be called twice."""
        if self._flush_timer:
            self._flush_timer.cancel()
        if self._journal:
            self._journal.close()


def _image_data(path: Path) -> bytes:
    try:
        return read_bytes(path, 4 * MAX_BYTES)
    except (OSError, ValueError) as error:
        raise GpuboxError(f"{path} cannot be read: {getattr(error, 'strerror', '') or error}.") from None
