"""The editor that talks to gpubox's own agent: what it is told and asked, as far as it can. It may die at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from gpubox.acp.shown import Update
from gpubox.errors import GpuboxError
from gpubox.json_rpc import Peer
from gpubox.server.responses import json_object

_FILE_SECONDS = 5.0
_REJECTING = ("no", "drop", "later")
"""Ids of options that allow nothing."""


class Editor:
    """Speaks through ``peer``, which is set before anything is said."""

    peer: Peer
    reads = writes = False
    """It gives and takes the texts of files."""
    known = False
    """It has introduced itself."""

    def introduce(self, capabilities: dict[str, Any]) -> None:
        """What the editor said of itself with ``initialize``."""
        files, self.known = json_object(capabilities.get("fs")), True
        self.reads, self.writes = (files.get(f"{verb}TextFile") is True for verb in ("read", "write"))

    async def show(self, session: str, update: Update) -> None:
        """One ``session/update``."""
        await self.peer.notify("session/update", {"sessionId": session, "update": update})

    def tell(self, session: str, update: Update) -> None:
        """The same, where nothing can be awaited."""
        self.peer.tell("session/update", {"sessionId": session, "update": update})

    async def choose(self, session: str, call: Update, options: Mapping[str, str]) -> str:
        """The id of the option (id -> text) that the owner chose; empty: none. ``call``: what is in question."""
        kinds = {key: "reject_once" if key in _REJECTING else "allow_once" for key in options}
        listed = [{"optionId": key, "name": text, "kind": kinds[key]} for key, text in options.items()]
        call = {key: value for key, value in call.items() if key != "sessionUpdate"}
        wanted = {"sessionId": session, "toolCall": {**call, "status": "pending"}, "options": listed}
        try:
            answer = json_object(await self.peer.request("session/request_permission", wanted))
        except GpuboxError:  # it refused, or is gone
            return ""
        chosen = str(json_object(answer.get("outcome")).get("optionId"))
        return chosen if chosen in options else ""

    async def read(self, session: str, path: str) -> str | None:
        """The text of the file as the owner sees it, unsaved changes too; ``None``: the editor does not say."""
        if not self.reads:
            return None
        try:
            wanted = {"sessionId": session, "path": path}
            answer = await self.peer.request("fs/read_text_file", wanted, seconds=_FILE_SECONDS)
        except GpuboxError:
            return None
        content = json_object(answer).get("content")
        return content if isinstance(content, str) else None

    async def write(self, session: str, path: str, text: str) -> None:
        """The editor's own copy of a file that the workspace has by now."""
        if self.writes:
            wanted = {"sessionId": session, "path": path, "content": text}
            with contextlib.suppress(GpuboxError):  # it reads the file itself
                await self.peer.request("fs/write_text_file", wanted, seconds=_FILE_SECONDS)
