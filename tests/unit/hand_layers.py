"""A layer over a workspace, laid by hand: what ``Steps`` gives the tools while a turn is open."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from gpubox.agent.workspace import Workspace
from gpubox.sandbox.layers import View
from gpubox.sandbox.steps import Steps


class HandSteps:
    """One open turn."""

    owner = None

    def __init__(self, workspace: Path, folder: Path) -> None:
        self.workspace, self.folder = workspace, folder
        self.top = folder / "1/up"
        self.top.mkdir(parents=True)
        (folder / "1/work").mkdir()
        self._seen: dict[str, Any] = {}

    def layers(self) -> tuple[Path, ...]:
        """The open turn's."""
        return (self.top,)

    def view(self) -> View:
        """It and the workspace."""
        return View([self.top, self.workspace])

    def note_changes(self, began_ns: int | None = None) -> tuple[str, ...]:
        """What is new in the layer."""
        now = {
            str(path.relative_to(self.top)): path.lstat().st_mtime_ns
            for path in self.top.rglob("*")
            if not path.is_dir()
        }
        changed = tuple(sorted(name for name, stamp in now.items() if self._seen.get(name) != stamp))
        self._seen = now
        return changed


def layered(folder: Path, layers: Path) -> Workspace:
    """``folder`` as a workspace with an open turn, whose layers lie in ``layers``."""
    workspace = Workspace(folder)
    workspace.steps = cast(Steps, HandSteps(workspace.root, layers))
    return workspace


def layer_of(workspace: Workspace) -> Path:
    """What the model has changed."""
    return workspace.layers()[0]
