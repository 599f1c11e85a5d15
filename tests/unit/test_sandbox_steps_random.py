"""Random turns, takes, drops, undos and redos against plain copies: of the workspace, and of what the model sees."""

from __future__ import annotations

import os
import random
import shutil
import stat
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gpubox.sandbox.layers import View
from gpubox.sandbox.steps import Steps
from tests.sampling import sampled
from tests.unit.test_sandbox_steps import Tree, tree, turn

OWN = "own"
"""A folder that the owner works in meanwhile, and the model does not."""
ROUND_TRIPS = 10


class Plain:
    """What the model sees, as a plain folder that the same is done to by plain means."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, names: tuple[str, ...], data: bytes, mode: int) -> None:
        path = self.folder.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(mode)

    def remove(self, names: tuple[str, ...]) -> None:
        path = self.folder.joinpath(*names)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def seen(view: View) -> Tree:
    """As ``tree``, of what the layers show."""
    entries: Tree = {}
    for names, item in view.walk():
        content: object = None
        if item.is_link:
            content = item.link_target()
        elif item.is_file:
            descriptor = os.open(item.name, os.O_RDONLY, dir_fd=item.folder)
            with os.fdopen(descriptor, "rb") as file:
                content = file.read()
        mode = item.status.st_mode
        entries["/".join(names)] = (stat.S_IFMT(mode), stat.S_IMODE(mode), content)
    return entries


def plain(entries: Tree) -> Tree:
    """Without times and owners, and without the workspace itself."""
    return {path: entry[:3] for path, entry in entries.items() if path != "."}


def others(entries: Tree) -> Tree:
    """Without what the owner did meanwhile."""
    return {path: entry for path, entry in entries.items() if not path.startswith(OWN)}


def one_turn(chance: random.Random, steps: Steps, turn_id: str, copy: Plain) -> None:
    with turn(steps, turn_id) as layer:
        for _ in range(chance.randrange(1, 7)):
            names = tuple(chance.choice("abc") for _ in range(chance.randrange(1, 4)))
            for depth in range(1, len(names) + 1):
                path = copy.folder.joinpath(*names[:depth])
                is_folder = path.is_dir() and not path.is_symlink()
                if os.path.lexists(path) and is_folder == (depth == len(names)):
                    layer.remove(names[:depth])
                    copy.remove(names[:depth])
            path = copy.folder.joinpath(*names)
            kind = chance.choice(["write", "write", "write", "remove", "link", "folder"])
            if kind == "write":
                old = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
                data = new_content(chance, old)
                mode = chance.choice([0o644, 0o755, 0o600])
                if path.is_symlink():
                    layer.remove(names)
                layer.write(names, data, mode)
                copy.write(names, data, mode)
            elif os.path.lexists(path):
                layer.remove(names)
                copy.remove(names)
            if kind == "link":
                with layer._folder(names[:-1]) as folder:
                    with suppress(FileNotFoundError):
                        os.unlink(names[-1], dir_fd=folder)  # a whiteout
                    os.symlink("b", names[-1], dir_fd=folder)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to("b")
            elif kind == "folder":
                mode = chance.choice([0o755, 0o700])
                with layer._folder(names) as folder:
                    os.fchmod(folder, mode)
                path.mkdir(parents=True)
                path.chmod(mode)
            if chance.random() < 0.3:
                steps.note_changes()


def new_content(chance: random.Random, old: bytes) -> bytes:
    lines = old.splitlines(keepends=True) or [b"%d\n" % number for number in range(chance.randrange(30))]
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(lines) + 1)
        lines[at : at + chance.randrange(2)] = [chance.choice([b"new\n", b"\xff\r\n", b"same\n"])]
    return b"".join(lines)[: -1 if chance.random() < 0.2 else None]


@pytest.mark.parametrize("seed", sampled(range(100)))
def test_random_round_trips_are_equal_byte_for_byte(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    chance = random.Random(seed)
    workspace, copy = tmp_path / "workspace", Plain(tmp_path / "copy")
    (workspace / OWN).mkdir(parents=True)
    (workspace / OWN / "notes").write_text("0")
    for name in ("a", "b", "c/a", "c/b/a"):
        (workspace / name).parent.mkdir(exist_ok=True, parents=True)
        (workspace / name).write_text("".join(f"{number}\n" for number in range(25)))
    shutil.copytree(workspace, copy.folder, symlinks=True)
    steps = Steps(workspace, tmp_path / "chat.layers")
    done: list[tuple[Tree, Path]] = []  # before each turn in effect
    undone: list[tuple[Tree, Path]] = []
    trips = number = 0
    with closing(steps):
        while trips < ROUND_TRIPS:
            number += 1
            action = chance.choice(["turn", "turn", "take", "take some", "drop some", "drop", "own", "trip", "open"])
            before_live, before_seen = tree(workspace), seen(steps.view())
            if action == "turn":
                kept = tmp_path / f"kept{number}"
                shutil.copytree(copy.folder, kept, symlinks=True)
                done.append((before_live, kept))
                undone.clear()
                one_turn(chance, steps, f"t{number}", copy)
                assert tree(workspace) == before_live
            elif action == "take":
                undone = undone if not steps.changes() else []
                assert not steps.take().left
                assert plain(tree(workspace)) == before_seen
                assert not steps.changes() and not steps.layers()
            elif action in ("take some", "drop some"):
                changes = {change.path: change for change in steps.changes()}
                chosen = [path for path in changes if chance.random() < 0.4]
                undone = undone if not chosen else []
                if action == "take some":
                    taken = set(steps.take(dict.fromkeys(chosen)).taken)
                    assert set(chosen) <= taken
                    for path in changes:
                        now = plain(tree(workspace)).get(path)
                        kind = changes[path].kind
                        if path in taken:
                            assert now == before_seen.get(path), (path, kind)
                        elif not (now and now[0] == stat.S_IFDIR):
                            assert now == plain(before_live).get(path), (path, kind)
                    assert {change.path for change in steps.changes()} <= changes.keys() - taken, (
                        changes,
                        steps.changes(),
                    )
                else:
                    steps.drop(dict.fromkeys(chosen))
                    assert tree(workspace) == before_live
                    assert {change.path for change in steps.changes()} <= changes.keys() - set(chosen)
                    shutil.rmtree(copy.folder)
                    show(steps.view(), copy.folder)
            elif action == "drop":
                undone = undone if not steps.layers() else []
                steps.drop()
                shutil.rmtree(copy.folder)
                shutil.copytree(workspace, copy.folder, symlinks=True)
            elif action == "own":
                for folder in (workspace, copy.folder):
                    (folder / OWN / "notes").write_text(str(number))
            elif action == "open":
                steps.close()
                steps = Steps(workspace, tmp_path / "chat.layers")
            elif done:
                turns = chance.randrange(1, len(done) + 1)
                end = tree(workspace), tmp_path / f"end{number}"
                shutil.copytree(copy.folder, end[1], symlinks=True)
                states = [end]
                for _ in range(turns):
                    steps.undo()
                    states.append(done.pop())
                    assert others(tree(workspace)) == others(states[-1][0])
                    assert others(seen(steps.view())) == others(plain(tree(states[-1][1])))
                back = turns if chance.random() < 0.8 else chance.randrange(turns + 1)
                for at in range(turns - 1, turns - 1 - back, -1):
                    steps.redo()
                    assert others(tree(workspace)) == others(states[at][0])
                    assert others(seen(steps.view())) == others(plain(tree(states[at][1])))
                    done.append(states[at + 1])
                shutil.rmtree(copy.folder)
                shutil.copytree(states[turns - back][1], copy.folder, symlinks=True)
                shutil.copytree(workspace / OWN, copy.folder / OWN, dirs_exist_ok=True)
                trips += turns
            assert seen(steps.view()) == plain(tree(copy.folder)), action


def show(view: View, folder: Path) -> None:
    """A plain copy of what the layers show."""
    folder.mkdir()
    for path, (kind, mode, content) in seen(view).items():
        target = folder / path
        if kind == stat.S_IFDIR:
            target.mkdir()
            target.chmod(int(str(mode)))
        elif kind == stat.S_IFLNK:
            target.symlink_to(str(content))
        else:
            target.write_bytes(content)  # type: ignore[arg-type]
            target.chmod(int(str(mode)))
