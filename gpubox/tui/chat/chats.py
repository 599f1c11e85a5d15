"""What the chat screen asks for: stored chats, the sandbox, the profile's defaults, and a file for a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.agent.files_named import Prompt, read_named, workspace_names
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError, UsageError
from gpubox.sandbox.layers import View

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat
    from gpubox.agent.chat_files import ChatSummary, SearchHit
    from gpubox.agent.endpoint import ServerEndpoint
    from gpubox.agent.hosting import HostedAgent
    from gpubox.agent.tools import AskOwner
    from gpubox.config import Config
    from gpubox.paths import Paths
    from gpubox.sandbox.policy import Confinement


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent that gpubox can host."""

    name: str
    install: str = ""
    """The command that installs it; empty: it is installed."""

    @property
    def about(self) -> str:
        return f"not installed; Enter copies this:\n{self.install}" if self.install else "confined, through the gateway"


READ_ONLY = "This is a recording: no model answers here."


class Chats:
    """The chats of this machine. Methods raise GpuboxError; slow imports and disk access run in threads."""

    def __init__(self, paths: Paths, config: Config, url: str | None = None, *, recording: bool = False) -> None:
        """``url``: a server that gpubox did not start answers. ``recording``: no server answers."""
        self.paths, self.config, self.url, self.recording = paths, config, url, recording

    async def summaries(self) -> list[ChatSummary]:
        """Every chat, the last changed one first."""
        from gpubox.agent.chat_files import chat_summaries

        return await run_in_thread(chat_summaries, self.paths)

    async def search(self, text: str) -> list[SearchHit]:
        from gpubox.agent.chat_files import search

        return await run_in_thread(search, self.paths, text)

    async def matching(self, text: str) -> list[ChatSummary]:
        """The chats with ``text`` in their names, or in a prompt or an answer, which is their title then."""
        chats = await self.summaries()
        if not text:
            return chats
        excerpts = {hit.chat: hit.excerpt for hit in reversed(await self.search(text))}
        return [
            replace(chat, title=excerpts.get(chat.name, chat.title))
            for chat in chats
            if chat.name in excerpts or text.casefold() in chat.name.casefold()
        ]

    async def open(self, name: str, ask: AskOwner) -> Chat:
        """Opens chat ``name``; empty: a new one. ``ask`` asks the owner."""
        await run_in_thread(_import_agent)
        from gpubox.agent.chat import Chat
        from gpubox.agent.endpoint import find_endpoint

        async def find() -> ServerEndpoint:
            if self.recording:
                raise GpuboxError(READ_ONLY)
            return await find_endpoint(self.paths, self.config, url=self.url)

        def host(agent: str, ask: AskOwner) -> HostedAgent:
            from gpubox.acp.host import host_agents  # not before an agent is hosted

            return host_agents(self.paths, self.config)(agent, ask)

        return Chat(self.paths, self.config, name, find=find, ask=ask, host=host)

    async def agents(self) -> list[AgentRow]:
        """The agents that can be hosted, those that are not installed last."""
        from gpubox.acp.registry import known_agents

        def read() -> list[AgentRow]:
            agents = known_agents(self.config).values()
            rows = [AgentRow(a.name, "" if a.program else a.install or f"its program {a.command[0]}") for a in agents]
            return sorted(rows, key=lambda row: bool(row.install))

        return await run_in_thread(read)

    async def free_name(self, text: str) -> str:
        from gpubox.agent.chat_files import free_name

        return await run_in_thread(free_name, self.paths, text)

    async def rename(self, name: str, new: str) -> None:
        from gpubox.agent.chat_files import rename_chat

        await run_in_thread(rename_chat, self.paths, name, new)

    async def loses(self, name: str) -> str:
        """What the owner loses with a chat that is not open, a sentence; empty: nothing waits."""
        from gpubox.agent.work import loses

        return await run_in_thread(loses, self.paths, name)

    async def delete(self, name: str) -> None:
        from gpubox.agent.chat_files import remove_chat

        await run_in_thread(remove_chat, self.paths, name)

    async def confinement(self) -> Confinement:
        """How the model's programs are confined on this machine; found by trying, once."""
        from gpubox.sandbox.runner import probe

        return await probe(self.config)

    async def profile_defaults(self, profile: str) -> tuple[str, Mapping[str, float]]:
        """The system prompt and the sampling that a chat inherits from the running profile."""
        from gpubox.agent.settings import SYSTEM_PROMPT
        from gpubox.profiles.loader import load_catalog

        known = (await run_in_thread(load_catalog, self.paths)).profiles.get(profile)
        return (known.chat.system if known else "") or SYSTEM_PROMPT, known.sampling if known else {}

    async def workspace_names(self, chat: Chat | None, workdir: str) -> list[str]:
        """The files and folders of the workspace, as the model sees them; none without a workspace."""
        view = _view(chat, workdir)
        return await run_in_thread(workspace_names, view) if view else []

    async def read_named(self, chat: Chat, text: str) -> Prompt:
        """The prompt ``text`` with what the files hold that it names."""
        if chat.settings.agent:
            await run_in_thread(import_module, "gpubox.acp.host")
        return await run_in_thread(read_named, text, _view(chat, chat.settings.workdir))

    async def project(self) -> tuple[Path | None, bool | None]:
        """The folder in which gpubox was started, and whether it may be a workspace; ``None``: it cannot be one."""
        from gpubox.agent.projects import project_here

        return (None, None) if self.recording else await run_in_thread(project_here, self.paths)

    async def remember_project(self, root: Path, allowed: bool) -> None:
        from gpubox.agent.projects import remember_allowed

        await run_in_thread(remember_allowed, self.paths, root, allowed)

    async def save_file(self, text: str, path: str, folder: str) -> str:
        """Writes ``text`` to a new file, relative to ``folder``. Returns the absolute path."""
        return await run_in_thread(_save_file, text, path, folder)


def _view(chat: Chat | None, workdir: str) -> View | None:
    if not workdir:
        return None
    return (chat.view() if chat else None) or View((Path(workdir),))


def _save_file(text: str, path: str, folder: str) -> str:
    try:
        target = Path(folder or ".").expanduser().joinpath(Path(path).expanduser())
        with target.open("x", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
    except FileExistsError:
        raise UsageError(f"{target} already exists.", "Choose another name; no file is overwritten.") from None
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GpuboxError(f"{path} cannot be written: {reason}.") from None
    return str(target.resolve())


def _import_agent() -> None:
    import gpubox.agent.chat
    import gpubox.agent.loop  # noqa: F401
