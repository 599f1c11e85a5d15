"""The workspace of an open chat: which folder it is, and the Work over it, opened at the first need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.agent.workspace import Workspace
from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.paths import Paths

if TYPE_CHECKING:
    from gpubox.agent.mcp import McpServers
    from gpubox.agent.projects import ProjectTests
    from gpubox.agent.work import Work
    from gpubox.sandbox.runner import Sandbox


class ChatWork:
    """``close`` it."""

    def __init__(self, paths: Paths, config: Config, sandbox: Sandbox | None, *, any_folder: bool) -> None:
        self._paths, self._config, self._sandbox, self._any_folder = paths, config, sandbox, any_folder
        self._workspace: Workspace | None = None
        self._servers: McpServers | None = None
        self.opened: Work | None = None

    def change(self, workdir: str) -> str:
        """Another folder from now on; empty: none. Returns its whole path. Raises UsageError if it cannot be one."""
        workspace = self._new(workdir) if workdir else None
        self.close_layers()
        self._workspace = workspace
        return str(workspace.root) if workspace else ""

    async def open(self, chat: Path, workdir: str) -> Work:
        """The workspace with its layers, and the tools over them. Raises GpuboxError if it is no longer usable."""
        if self.opened is None:
            from gpubox.agent import mcp, work
            from gpubox.sandbox.runner import Sandbox

            self._sandbox = self._sandbox or Sandbox(self._config)
            if self._config.mcp and not self._servers:
                self._servers = mcp.McpServers(self._config.mcp, self._paths.logs)
            workspace = self.known(workdir) if workdir else None
            opening = (self._paths, chat, workspace, self._sandbox, self._servers)
            self.opened = await run_in_thread(work.open_work, *opening)
        return self.opened

    def known(self, workdir: str) -> Workspace:
        """Raises UsageError: there is none, or it is not usable."""
        if not workdir:
            raise UsageError("This chat has no workspace.", "Give it one: --workdir, or its settings.")
        self._workspace = self._workspace or self._new(workdir)
        return self._workspace

    def tests(self, workdir: str) -> ProjectTests:
        """How the project is tested. Raises UsageError as ``known``."""
        from gpubox.agent.projects import ProjectTests

        return ProjectTests(self._paths, self.known(workdir))

    def close_layers(self) -> None:
        """Another gpubox may open the layers now."""
        if self.opened:
            self.opened.close()
        self.opened = None

    async def close(self) -> None:
        """Ends the MCP servers, too. May be called twice."""
        if self._servers:
            await self._servers.close()
        self.close_layers()

    def _new(self, folder: str) -> Workspace:
        own_folders = (self._paths.config, self._paths.state, self._paths.cache)
        return Workspace(Path(folder), any_folder=self._any_folder, own_folders=own_folders)
