"""The real chats: files under the state folder, the box's server, the sandbox. Slow imports and disks in threads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.errors import GpuboxError, UsageError
from gpubox.threads import in_thread
from gpubox.tui.chat.service import Confined, Defaults

if TYPE_CHECKING:
    from gpubox.agent.serving import Serving
    from gpubox.agent.session import Chat
    from gpubox.agent.tools import Approve
    from gpubox.agent.transcript.search import Hit
    from gpubox.agent.transcript.store import Head
    from gpubox.config import Config
    from gpubox.paths import Paths

READ_ONLY = "A recording is played: nobody answers here."


class LiveChats:
    """The chats of this machine's owner. With ``url`` a server that gpubox did not start answers."""

    def __init__(self, paths: Paths, config: Config, url: str | None = None, *, recording: bool = False) -> None:
        self.paths, self.config, self.url, self.recording = paths, config, url, recording

    async def heads(self) -> list[Head]:
        from gpubox.agent.transcript.store import heads

        return await in_thread(heads, self.paths)

    async def search(self, text: str) -> list[Hit]:
        from gpubox.agent.transcript.search import search

        return await in_thread(search, self.paths, text)

    async def open(self, name: str, approve: Approve) -> Chat:
        await in_thread(_import_session)
        from gpubox.agent.serving import find_serving
        from gpubox.agent.session import Chat

        async def find() -> Serving:
            if self.recording:
                raise GpuboxError(READ_ONLY)
            return await find_serving(self.paths, self.config, url=self.url)

        return Chat(self.paths, self.config, name, find=find, approve=approve)

    async def free_name(self, text: str) -> str:
        from gpubox.agent.transcript.store import free_name

        return await in_thread(free_name, self.paths, text)

    async def rename(self, name: str, new: str) -> None:
        from gpubox.agent.transcript.store import rename

        await in_thread(rename, self.paths, name, new)

    async def remove(self, name: str) -> None:
        from gpubox.agent.transcript.store import remove

        await in_thread(remove, self.paths, name)

    async def confined(self) -> Confined:
        from gpubox.sandbox.runner import Sandbox

        found = await Sandbox.probe(self.config)
        return Confined(found.tier or "", " ".join(part for part in (found.problem, found.hint) if part))

    async def defaults(self, profile: str) -> Defaults:
        from gpubox.agent.settings import SYSTEM_PROMPT
        from gpubox.profiles.loader import load_catalog

        catalog = await in_thread(load_catalog, self.paths)
        known = catalog.profiles.get(profile)
        return Defaults((known.chat.system if known else "") or SYSTEM_PROMPT, known.sampling if known else {})

    async def save(self, text: str, path: str, folder: str) -> str:
        return await in_thread(_save, text, path, folder)


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
    import gpubox.agent.loop
    import gpubox.agent.session  # noqa: F401
