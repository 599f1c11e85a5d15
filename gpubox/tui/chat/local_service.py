"""The real chats: files under the state folder, the box's server, the sandbox. Slow imports and disks in threads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.errors import GpuboxError, UsageError
from gpubox.threads import run_in_thread
from gpubox.tui.chat.service import ProfileDefaults, SandboxStatus

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat
    from gpubox.agent.endpoint import ServerEndpoint
    from gpubox.agent.tools import Approve
    from gpubox.agent.transcript.chat_files import ChatSummary
    from gpubox.agent.transcript.search import SearchHit
    from gpubox.config import Config
    from gpubox.paths import Paths

READ_ONLY = "A recording is played: nobody answers here."


class LocalChatService:
    """The chats of this machine's owner. With ``url`` a server that gpubox did not start answers."""

    def __init__(self, paths: Paths, config: Config, url: str | None = None, *, recording: bool = False) -> None:
        self.paths, self.config, self.url, self.recording = paths, config, url, recording

    async def chat_summaries(self) -> list[ChatSummary]:
        from gpubox.agent.transcript.chat_files import chat_summaries

        return await run_in_thread(chat_summaries, self.paths)

    async def search(self, text: str) -> list[SearchHit]:
        from gpubox.agent.transcript.search import search

        return await run_in_thread(search, self.paths, text)

    async def open(self, name: str, approve: Approve) -> Chat:
        await run_in_thread(_import_session)
        from gpubox.agent.chat import Chat
        from gpubox.agent.endpoint import find_endpoint

        async def find() -> ServerEndpoint:
            if self.recording:
                raise GpuboxError(READ_ONLY)
            return await find_endpoint(self.paths, self.config, url=self.url)

        return Chat(self.paths, self.config, name, find=find, approve=approve)

    async def free_name(self, text: str) -> str:
        from gpubox.agent.transcript.chat_files import free_name

        return await run_in_thread(free_name, self.paths, text)

    async def rename(self, name: str, new: str) -> None:
        from gpubox.agent.transcript.chat_files import rename_chat

        await run_in_thread(rename_chat, self.paths, name, new)

    async def remove(self, name: str) -> None:
        from gpubox.agent.transcript.chat_files import remove_chat

        await run_in_thread(remove_chat, self.paths, name)

    async def confined(self) -> SandboxStatus:
        from gpubox.sandbox.runner import Sandbox

        found = await Sandbox.probe(self.config)
        return SandboxStatus(found.isolation or "", " ".join(part for part in (found.problem, found.hint) if part))

    async def defaults(self, profile: str) -> ProfileDefaults:
        from gpubox.agent.settings import SYSTEM_PROMPT
        from gpubox.profiles.loader import load_catalog

        catalog = await run_in_thread(load_catalog, self.paths)
        known = catalog.profiles.get(profile)
        return ProfileDefaults((known.chat.system if known else "") or SYSTEM_PROMPT, known.sampling if known else {})

    async def save(self, text: str, path: str, folder: str) -> str:
        return await run_in_thread(_save, text, path, folder)


def _save(text: str, path: str, folder: str) -> str:
    try:
        target = Path(folder or ".").expanduser().joinpath(Path(path).expanduser())
        with target.open("x", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
    except FileExistsError:
        raise UsageError(f"{target} is there already.", "Give it another name; nothing is overwritten.") from None
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise GpuboxError(f"{path} cannot be written: {why}.") from None
    return str(target.resolve())


def _import_session() -> None:
    pass
