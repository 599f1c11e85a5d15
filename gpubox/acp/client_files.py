"""The files that an agent reads and writes through gpubox: those of its workspace, by descriptor, never over a link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpubox.acp.protocol import is_count
from gpubox.agent.workspace import MAX_FILE_BYTES, Workspace, printable_path
from gpubox.errors import GpuboxError
from gpubox.json_rpc import BAD_PARAMETERS, RpcError
from gpubox.sandbox.layers import Names, TopLayer, View
from gpubox.sandbox.spawn import layer_owner


class ClientFiles:
    """Blocking. Methods raise GpuboxError."""

    def __init__(self, folder: Path, cwd: str) -> None:
        """``folder``: where the workspace of the agent is on this machine. ``cwd``: its path for the agent."""
        self._folder, self._cwd = folder, cwd.rstrip("/")

    def read(self, params: dict[str, Any]) -> str:
        """The text of a file, from ``line`` (from 1) on at most ``limit`` lines."""
        workspace, names = self._place(params)
        try:
            text = workspace.read(names).decode("utf-8", "replace")
        except FileNotFoundError:
            raise GpuboxError(f"{printable_path('/'.join(names))} does not exist.") from None
        first, limit = _count(params.get("line")), _count(params.get("limit"))
        if first is None and limit is None:
            return text
        start = max((first or 1) - 1, 0)
        return "".join(text.splitlines(keepends=True)[start : None if limit is None else start + limit])

    def write(self, params: dict[str, Any]) -> None:
        """Makes or replaces a file."""
        workspace, names = self._place(params)
        content = params.get("content")
        if not isinstance(content, str) or not names:
            raise RpcError("A file needs a name and a content.", BAD_PARAMETERS)
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_FILE_BYTES:
            raise GpuboxError(f"The file would be larger than {MAX_FILE_BYTES // 2**20} MiB.")
        try:
            TopLayer(View([workspace.root]), layer_owner()).write(names, data)
        except OSError as error:
            raise GpuboxError(f"{printable_path('/'.join(names))} was not written: {error.strerror}.") from None

    def _place(self, params: dict[str, Any]) -> tuple[Workspace, Names]:
        path = params.get("path")
        if not isinstance(path, str):
            raise RpcError("A file needs a path.", BAD_PARAMETERS)
        if path == self._cwd or path.startswith(f"{self._cwd}/"):
            path = path[len(self._cwd) :].lstrip("/")
        workspace = Workspace(self._folder, any_folder=True)
        return workspace, workspace.parts(path)


def _count(value: Any) -> int | None:
    return int(value) if is_count(value) else None
