"""The steps of a chat over its workspace: turns with their layers, and what the owner decided; undo and redo.

A folder holds ``steps.json`` and a folder for each step. A *turn* has a layer. A *decision* (a take or a drop) ends
all layers before it: what is left open of them lies in a layer of its own, whose files are other names of theirs; what
was taken lies in both its states (taking.py). ``in_effect`` steps are in effect; those behind it were undone. On the way
to another number ``target`` says where to, and whoever opens the folder next goes on. Blocking; run it in a thread.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from gpubox.errors import GpuboxError, UsageError
from gpubox.line_diff import line_diff
from gpubox.sandbox.changes import (
    MAX_DEPTH,
    Change,
    Choice,
    Comparison,
    State,
    is_replacement,
    open_file,
    printable,
    state_of,
    taken_mode,
)
from gpubox.sandbox.layers import Item, Names, TopLayer, View, is_opaque, is_whiteout, remove_tree
from gpubox.sandbox.runs_by_itself import is_cache
from gpubox.sandbox.taking import Exchange, Put, make_link, names_of, write_file

from gpubox.storage import lock_file, private_folder, read_bytes, read_json, write_atomically

T = TypeVar("T")
MAX_OPEN_LAYERS = 40
MAX_TURNS, MAX_KEPT_BYTES = 50, 4 << 30
"""Turns that can be undone, and what their decided layers and files may hold on disk; older ones are forgotten."""
_MAX_DIGEST_BYTES = 256 << 20
"""Read after a run to know later whether the owner's files are what they were; of others the stamp must be the same."""
_MAX_STEPS_BYTES = 1 << 30
_Bases = dict[str, State | None]


class Step(msgspec.Struct):
    """A turn or a decision."""

    number: int
    kind: Literal["turn", "decision"]
    turn: str
    """Id of the turn; of a decision, of the turn before it."""
    began_ns: int = 0
    has_layer: bool = False
    kept_bytes: int = 0


class _Book(msgspec.Struct):
    """steps.json"""

    workspace: str
    steps: list[Step] = []
    in_effect: int = 0
    target: int = 0
    """Where ``in_effect`` is going."""
    saved: bool = False
    """Whether all is saved to take the next step on that way."""
    turn_is_open: bool = False
    last_number: int = 0


@dataclass(frozen=True, slots=True)
class TakeResult:
    """What a take did."""

    taken: tuple[str, ...]
    """Paths that the workspace now has, or has no more."""
    left: tuple[Change, ...]
    """Changes that were chosen, or all, and could not be taken: conflicts, and what needs a yes of its own."""
    notes: tuple[str, ...] = ()
    """Sentences for the owner, such as a setuid bit that was dropped."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an undo or a redo did."""

    turns: tuple[str, ...]
    """Ids of the turns that were undone (the last first) or redone."""
    files: tuple[str, ...] = ()
    """Paths of the workspace that were put back."""
    kept: tuple[str, ...] = ()
    """Paths that the owner changed since, and that stay as they are."""


class Steps:
    """The steps of one chat over one workspace. One owner at a time: it holds a lock until ``close``."""

    def __init__(self, workspace: Path, folder: Path, owner: int | None = None) -> None:
        """Opens ``folder`` (``chats/NAME.layers``), makes it if needed, and finishes what a killed gpubox had begun.

        ``owner``: the user of root's programs, who gets the layers. Raises GpuboxError.
        """
        self.workspace, self.folder, self.owner = workspace, folder, owner
        self._live = View([workspace])
        self._seen: dict[str, tuple[int, ...]] = {}
        self._noted_ns = now_ns()
        with _errors(f"The steps in {folder}"):
            private_folder(folder)
            lock = lock_file(folder / "lock", attempts=5)
        if lock is None:
            raise GpuboxError(f"Another gpubox has {folder.stem} open.", "Close it there.")
        self._lock = lock
        try:
            with _errors(f"The workspace {workspace}"), self._live.folder():
                pass
            self._book = self._read_book()
            self._remove_strays()
            self._travel()
            if self._book.turn_is_open:
                self.note_changes(self._book.steps[-1].began_ns)
                self.end_turn()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases the lock. An open turn is ended by the next ``Steps``."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    @property
    def can_undo(self) -> str:
        """The id of the turn that ``undo`` would undo; empty: none."""
        return next((step.turn for step in reversed(self._in_effect) if step.kind == "turn"), "")

    @property
    def can_redo(self) -> str:
        """The id of the turn that ``redo`` would redo; empty: none."""
        return self._book.steps[self._book.in_effect].turn if self._book.in_effect < len(self._book.steps) else ""

    def view(self) -> View:
        """The workspace as the model sees it: the top layer first (if a turn is open), the workspace last."""
        return View([*self.layers(), self.workspace])

    def layers(self) -> tuple[Path, ...]:
        """The folders to mount over the workspace, the top first; beside the top one is its ``work``. Empty: none."""
        last = len(self._open) - 1
        return tuple(
            self._path(step) / "up"
            for at, step in reversed(list(enumerate(self._open)))
            if step.has_layer or (self._book.turn_is_open and at == last)
        )

    def begin_turn(self, turn_id: str) -> None:
        """Lays a new, empty layer on top, and forgets what was undone. Raises GpuboxError."""
        self._require_rest()
        if len(self.layers()) >= MAX_OPEN_LAYERS:
            raise GpuboxError(
                f"{MAX_OPEN_LAYERS} turns wait for your decision.", "Take or drop their changes, then ask again."
            )
        self._noted_ns = now_ns()
        with _errors("The turn's layer"):
            step = self._new_step("turn", turn_id)
            for name in ("up", "work"):
                folder = self._path(step) / name
                folder.mkdir()
                if self.owner is not None:
                    os.chown(folder, self.owner, self.owner)
                folder.chmod(0o755 if name == "up" else 0o700)
            self._book.turn_is_open = True
            self._add(step)
            self._book.in_effect = self._book.target
            self._forget_old()
            self._write_book()
        self._seen = {}

    def note_changes(self, began_ns: int | None = None) -> tuple[str, ...]:
        """After each run or write of the open turn: records what the workspace had in place of each new entry.

        ``began_ns``: when the run began (``now_ns()``); ``None``: at the last call. Returns the paths that were
        changed since the last call, ``x (removed)`` for removed ones. Raises GpuboxError.
        """
        if not self._book.turn_is_open:
            return ()
        step = self._book.steps[-1]
        began_ns = self._noted_ns if began_ns is None else began_ns
        known, new, changed = self._bases(), _Bases(), list[str]()
        recorder = _BaseRecorder(self._live, known, new, began_ns)
        seen: dict[str, tuple[int, ...]] = {}
        with _errors("What the program changed"):
            for names, status, hides in _layer_entries(self._path(step) / "up"):
                path = "/".join(names)
                is_folder = stat.S_ISDIR(status.st_mode)
                facts = status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                seen[path] = (hides,) if is_folder else facts
                if self._seen.get(path) == seen[path]:
                    continue
                recorder.record(names, hides=hides or not is_folder)
                if is_folder and (path in self._seen or known.get(path, new.get(path)) is not None):
                    continue  # a copy of the owner's
                if not any(map(is_cache, names)):
                    removed = is_whiteout(status)
                    changed.append(f"{path} (removed)" if removed else f"{path}/" if is_folder else path)
            changed += [f"{path} (removed)" for path in self._seen.keys() - seen.keys() if not _in_cache(path)]
            if new:
                self._write(step, "bases", self._step_bases(step) | new)
        self._seen, self._noted_ns = seen, now_ns()
        return tuple(sorted(changed))

    def end_turn(self) -> None:
        """The open turn's layer is complete. Does nothing if none is open. Raises GpuboxError."""
        if not self._book.turn_is_open:
            return
        self.note_changes()
        with _errors("The turn's layer"):
            step = self._book.steps[-1]
            remove_tree(self._path(step) / "work")
            step.has_layer = any((self._path(step) / "up").iterdir())
            step.kept_bytes = sum(status.st_blocks * 512 for _, status, _ in _layer_entries(self._path(step)))
            self._book.turn_is_open = False
            self._write_book()

    def changes(self) -> list[Change]:
        """What all open layers change in the workspace as it is now, sorted by path. Raises GpuboxError."""
        layers = self.layers()
        with _errors(f"The workspace {self.workspace}"):
            return Comparison(layers, self.workspace, self._bases()).run() if layers else []

    def take(self, choice: Choice | None = None, *, allow: Collection[str] = ()) -> TakeResult:
        """Puts changes into the workspace. ``None``: all but conflicts and what runs by itself.

        ``allow``: paths of what runs by itself that the owner allowed by name. Raises GpuboxError; then nothing has
        changed.
        """
        self._require_rest()
        changes = {change.path: change for change in self.changes()}
        chosen = _chosen(changes, choice)
        held = {path for path in chosen if changes[path].conflict or (changes[path].runs_by_itself and path not in allow)}
        held = {path for path in chosen if held & _unit(changes, path)}
        left = tuple(changes[path] for path in sorted(held))
        chosen = {path: hunks for path, hunks in chosen.items() if path not in held}
        if not chosen:
            return TakeResult((), left)
        step = self._new_step("decision", self.can_undo)
        with _errors("What you take"):
            plan = _Plan(self, step, self._bases())
            for path, hunks in chosen.items():
                plan.add(changes[path], hunks)
            plan.add_folders()
            self._require_space(plan.size)
            exchange = Exchange(self.workspace, self._path(step), plan.stage())
            if others := exchange.save(forward=True):
                raise GpuboxError(f"You changed {printable(others[0].path)} just now: nothing was taken.", "Look again.")
            rest = {path: change for path, change in changes.items() if chosen.get(path, ()) is not None}
            partly = {path: plan.states[path] for path, hunks in chosen.items() if hunks is not None}
            self._lay_rest(step, rest, {}, partly)
            self._write(step, "puts", exchange.puts)
            self._add(step)
            self._book.saved = True
            self._write_book()
        refused = self._travel()
        notes = [*plan.notes, *(f"{printable(path)} changed at the last moment: it stays as it is." for path in refused)]
        return TakeResult(tuple(path for path in chosen if path not in refused), left, tuple(notes))

    def drop(self, choice: Choice | None = None) -> None:
        """Forgets changes; ``None``: all. The workspace stays as it is. Raises GpuboxError."""
        self._require_rest()
        changes = {change.path: change for change in self.changes()} if choice is not None else {}
        chosen = _chosen(changes, choice)
        if not self.layers() or (choice is not None and not chosen):
            return
        step = self._new_step("decision", self.can_undo)
        with _errors("What is left of the changes"):
            partly = {path: hunks for path, hunks in chosen.items() if hunks is not None}
            rest = {path: change for path, change in changes.items() if chosen.get(path, ()) is not None}
            kept = {path: frozenset(range(len(changes[path].hunks))) - hunks for path, hunks in partly.items()}
            contents = {path: self.composed(path, hunks) for path, hunks in kept.items()}
            self._lay_rest(step, rest, contents, {})
            self._add(step)
            self._book.in_effect = self._book.target
            self._write_book()

    def undo(self, turn_id: str = "", *, keep: Collection[str] = ()) -> StepResult:
        """Undoes the last turn in effect with its takes and drops, or all from ``turn_id`` on.

        ``keep``: paths that stay as they are. Raises GpuboxError, and changes nothing, where the owner changed another
        file since.
        """
        turn_id = turn_id or self.can_undo
        turns = [at for at, step in enumerate(self._in_effect) if step.kind == "turn" and step.turn == turn_id]
        if not turns:
            raise UsageError(f"The turn {turn_id} cannot be undone." if turn_id else "There is no turn to undo.")
        return self._go(turns[-1], keep)

    def redo(self, *, keep: Collection[str] = ()) -> StepResult:
        """Redoes the turn that was undone last, with its takes and drops. Raises GpuboxError as ``undo`` does."""
        if not self.can_redo:
            raise UsageError("There is no turn to redo.")
        first = self._book.in_effect + 1
        later = (at for at, step in enumerate(self._book.steps[first:], first) if step.kind == "turn")
        return self._go(next(later, len(self._book.steps)), keep)

    def _go(self, target: int, keep: Collection[str]) -> StepResult:
        self._require_rest()
        forward = target > self._book.in_effect
        low, high = sorted((target, self._book.in_effect))
        steps = self._book.steps[low:high][:: 1 if forward else -1]
        kept, files = set[str](), set[str]()
        with _errors("What you took"):
            puts = {step.number: self._read(step, "puts", list[Put]) or [] for step in steps}
            changed = self._changed_since([put for step in steps for put in puts[step.number]], forward=forward)
            if refused := changed - set(keep):
                names = ", ".join(map(printable, sorted(refused)[:5])) + (" ..." if len(refused) > 5 else "")
                raise GpuboxError(f"You changed {names} since: nothing was {'redone' if forward else 'undone'}.",
                                  "Keep your version of them, or put them back first.")  # fmt: skip
            for step in steps:
                mine = [put for put in puts[step.number] if put.path in changed]
                if mine:
                    self._write(step, "puts", [put for put in puts[step.number] if put not in mine])
                kept |= {put.path for put in mine}
                files |= {put.path for put in puts[step.number] if put not in mine and not put.parent}
            self._require_space(sum(put.after.size for step in steps for put in puts[step.number] if put.after))
            self._book.target = target
            self._write_book()
        kept |= self._travel()
        turns = tuple(step.turn for step in steps if step.kind == "turn")
        return StepResult(turns, tuple(sorted(files - kept)), tuple(sorted(kept)))

    def _changed_since(self, puts: list[Put], *, forward: bool) -> set[str]:
        """Paths of which the workspace has neither the one side nor the other."""
        changed: set[str] = set()
        state: dict[str, State | None] = {}
        exchange = Exchange(self.workspace, self.folder, [])
        for put in puts:
            have, want = (put.before, put.after) if forward else (put.after, put.before)
            if put.parent:
                continue
            if put.path in state:
                same = _content(state[put.path]) == _content(have)
            else:
                same = exchange.has(put.names, have) or exchange.has(put.names, want)
            if not same:
                changed.add(put.path)
            state[put.path] = want
        return changed

    def _travel(self) -> set[str]:
        """Takes one step after the other until ``target`` is in effect. Returns the paths that stayed as they were."""
        refused: set[str] = set()
        book = self._book
        while book.in_effect != book.target:
            forward = book.target > book.in_effect
            step = book.steps[book.in_effect if forward else book.in_effect - 1]
            puts = self._read(step, "puts", list[Put])
            if puts:
                exchange = Exchange(self.workspace, self._path(step), puts)
                try:
                    if not book.saved:
                        exchange.save(forward=forward)
                        self._write(step, "puts", puts)
                        book.saved = True
                        self._write_book()
                    not_mine = exchange.apply(forward=forward)
                    refused |= {put.path for put in not_mine}
                    self._write(step, "puts", [put for put in puts if put not in not_mine])
                except OSError as error:
                    self._turn_back(error, forward=forward)
            book.in_effect += 1 if forward else -1
            book.saved = False
            self._write_book()
        return refused

    def _turn_back(self, error: OSError, *, forward: bool) -> None:
        """Undoes what was begun, and raises GpuboxError."""
        book, reason = self._book, error.strerror or str(error)
        if book.turning_back:
            raise GpuboxError(f"The files of {self.workspace} could not be put back: {reason}.",
                              "Nothing is lost: mend that, then open the chat again.")  # fmt: skip
        book.in_effect += 1 if forward else -1
        book.target, book.saved, book.turning_back = book.origin, False, True
        self._write_book()
        self._travel()
        book.turning_back = False
        self._write_book()
        self._remove_strays()
        raise GpuboxError(f"{self.workspace} cannot be changed: {reason}. All files are as they were.",
                          "Check the owner of its folders and the free disk space.")  # fmt: skip

    def _lay_rest(
        self, step: Step, rest: Mapping[str, Change], contents: Mapping[str, bytes], bases: Mapping[str, State | None]
    ) -> None:
        """Makes the layer of what is still open. ``contents`` and ``bases``: where they are new."""
        up, view, known = self._path(step) / "up", self.view(), self._bases()
        up.mkdir()
        up.chmod(0o755)
        if self.owner is not None:
            os.chown(up, self.owner, self.owner)
        layer = TopLayer(View([up, self.workspace]), self.owner)
        removed = {names_of(path) for path in rest if item_status(view, names_of(path)) is None}
        hidden = removed | emptied_folders(removed, view, self._live)
        for path in sorted(rest):
            names = names_of(path)
            if names in removed:
                top = next(names[:depth] for depth in range(1, len(names) + 1) if names[:depth] in hidden)
                over = (item_status(view, top[:depth]) for depth in range(1, len(top)))
                if all(status is None or stat.S_ISDIR(status.st_mode) for status in over):
                    with contextlib.suppress(FileNotFoundError):
                        layer.remove(top)
                continue
            if is_replacement(rest[path]):
                layer.remove(names)
            _lay(layer, view, names, contents.get(path), whole=bool(rest[path].runs_by_itself))
        step.has_layer = any(up.iterdir())
        self._write(step, "bases", {path: bases.get(path, known.get(path)) for path in rest})

    def composed(self, path: str, hunks: Collection[int]) -> bytes:
        """The workspace's content of a file with these hunks made. Raises OSError."""
        before, after = (read_item(view, names_of(path)) for view in (self._live, self.view()))
        return line_diff(before, after).compose(hunks)

    # The book and its folders

    @property
    def _in_effect(self) -> list[Step]:
        return self._book.steps[: self._book.in_effect]

    @property
    def _open(self) -> list[Step]:
        """The steps whose layers count: from the last decision on."""
        steps = self._in_effect
        last = max((at for at, step in enumerate(steps) if step.kind == "decision"), default=0)
        return steps[last:]

    def _bases(self) -> _Bases:
        """What the workspace had when an open layer first named the path."""
        bases = _Bases()
        for step in reversed(self._open):
            bases |= self._step_bases(step)
        return bases

    def _step_bases(self, step: Step) -> _Bases:
        if step.number not in self._known_bases:
            self._known_bases[step.number] = self._read(step, "bases", _Bases) or {}
        return self._known_bases[step.number]

    def _path(self, step: Step) -> Path:
        return self.folder / f"{step.number:06}"

    def _require_rest(self) -> None:
        """Raises GpuboxError while a turn is open, or what was begun cannot be ended."""
        if self._book.turn_is_open:
            raise GpuboxError("The turn is not over yet.", "Wait for its end, or stop it.")
        self._travel()

    def _new_step(self, kind: Literal["turn", "decision"], turn_id: str) -> Step:
        self._book.last_number += 1
        step = Step(self._book.last_number, kind, turn_id, now_ns())
        with _errors(f"{self.folder}"):
            remove_tree(self._path(step))
            private_folder(self._path(step))
            for side in ("before", "after") if kind == "decision" else ():
                private_folder(self._path(step) / side)
        return step

    def _add(self, step: Step) -> None:
        """The next step: what was undone is forgotten."""
        self._book.steps[self._book.in_effect :] = [step]
        self._book.origin, self._book.target = self._book.in_effect, self._book.in_effect + 1

    def _forget_old(self) -> None:
        """Forgets turns whose changes are decided, beyond the bounds."""
        steps, size = self._book.steps, 0
        kept = turns = 0
        closed = max((at for at, step in enumerate(steps) if step.kind == "decision"), default=0)
        for at in range(len(steps) - 1, -1, -1):
            size += steps[at].kept_bytes
            if steps[at].kind == "turn":
                turns += 1
                kept = at
                if at <= closed and (turns >= MAX_TURNS or size > MAX_KEPT_BYTES):
                    break
        del steps[:kept]
        self._book.in_effect = self._book.target = self._book.origin = self._book.in_effect - kept

    def _remove_strays(self) -> None:
        """Removes folders of steps that are forgotten, or were never complete."""
        book = self._book
        if book.in_effect == book.target and self.can_redo and book.steps[book.in_effect].kind == "decision":
            del book.steps[book.in_effect :]  # a take that failed
        known = {self._path(step).name for step in book.steps}
        for path in self.folder.iterdir():
            if path.name not in known and path.name not in ("lock", "steps.json"):
                remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _require_space(self, size: int) -> None:
        if size > (free := shutil.disk_usage(self.folder).free) * 0.95:
            raise GpuboxError(f"The disk of {self.folder} has {units.file_size(free)} left: {units.file_size(size)} are needed.")

    def _read_book(self) -> _Book:
        path = self.folder / "steps.json"
        try:
            book = msgspec.convert(read_json(read_bytes(path, _MAX_STEPS_BYTES), own=True), _Book)
        except FileNotFoundError:
            return _Book(str(self.workspace))
        except (OSError, ValueError) as error:
            raise GpuboxError(f"{path} cannot be read: {error}.", "Move it away to go on without undo.") from None
        if book.workspace == str(self.workspace):
            return book
        self._book = book
        if book.in_effect != book.target or self.layers():
            raise GpuboxError(f"Changes of this chat wait for your decision in {printable(book.workspace)}.",
                              "Use that workspace, and take or drop them.")  # fmt: skip
        return _Book(str(self.workspace), last_number=book.last_number)

    def _write_book(self) -> None:
        with _errors(f"{self.folder}"):
            _write_json(self.folder / "steps.json", self._book)

    def _read(self, step: Step, name: str, kind: type[T]) -> T | None:
        path = self._path(step) / f"{name}.json"
        try:
            return msgspec.convert(read_json(read_bytes(path, _MAX_STEPS_BYTES), own=True), kind)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise GpuboxError(f"{path} cannot be read: {error}.") from None

    def _write(self, step: Step, name: str, value: Any) -> None:
        """Raises OSError."""
        if name == "bases":
            self._known_bases[step.number] = value
        _write_json(self._path(step) / f"{name}.json", value)


def now_ns() -> int:
    """The time by the clock of the files' own times, for ``note_changes``."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME_COARSE)


class _Plan:
    """What a take puts into the workspace."""

    def __init__(self, steps: Steps, step: Step, bases: _Bases) -> None:
        self.view, self.live = steps.view(), View([steps.workspace])
        self.states: _Bases = {}
        """What is put, by path."""
        self.notes: list[str] = []
        self.size = 0
        self._steps, self._side, self._bases = steps, steps._path(step) / "after", bases
        self._puts: dict[str, Put] = {}
        self._contents: dict[str, bytes] = {}

    def add(self, change: Change, hunks: frozenset[int] | None) -> None:
        """Plans one change, or some hunks of it. Raises OSError."""
        names = names_of(change.path)
        if hunks is not None:
            self._contents[change.path] = self._steps.composed(change.path, hunks)
        self._add(names, item_status(self.view, names))
        if change.kind == "folder" and change.runs_by_itself:
            for inner, item in walk(self.view, names):
                self._add(inner, item.status)

    def _add(self, names: Names, status: os.stat_result | None) -> None:
        path, before = "/".join(names), self._bases.get("/".join(names))
        if before and before.kind == "folder":
            before = self._state(names)
        after = None
        if status is not None:
            mode = self._folder_mode(names, status) if stat.S_ISDIR(status.st_mode) else taken_mode(status)
            if status.st_mode & 0o6000 and not stat.S_ISDIR(status.st_mode):
                self.notes.append(f"{printable(path)}: its setuid or setgid bit is not taken.")
            if path in self._contents and before:
                mode = before.mode
            with self.view.folder(names[:-1]) as folder:
                after = state_of(folder.find(names[-1]).folder, names[-1], digest=False)
            assert after is not None
            after = msgspec.structs.replace(after, mode=mode, mtime_ns=0 if after.kind == "folder" else after.mtime_ns)
            self.size += after.size + (before.size if before else 0)
        self._puts[path] = Put(path, before, after)

    def _state(self, names: Names) -> State | None:
        if not names:
            with self.live.folder() as folder:
                return state_of(folder.descriptors[0], ".", digest=False)
        with contextlib.suppress(OSError), self.live.folder(names[:-1]) as folder:
            return state_of(folder.descriptors[0], names[-1], digest=False)
        return None

    def _folder_mode(self, names: Names, status: os.stat_result) -> int:
        """With the setgid bit of the folder that is there, or of the one above it, which hands down its group."""
        above = next(state for depth in range(len(names), -1, -1) if (state := self._state(names[:depth])))
        own = self._state(names)
        return taken_mode(status) | (own.mode & 0o6000 if own and own.kind == "folder" else above.mode & 0o2000)

    def add_folders(self) -> None:
        """Plans the folders that come and go with what is in them, and the times of those that stay. Raises OSError."""
        for put in list(self._puts.values()):
            for depth in range(1, len(put.names)) if put.after else ():
                names = put.names[:depth]
                if "/".join(names) not in self._puts and self._state(names) is None:
                    self._add(names, item_status(self.view, names))
        removed = {put.names for put in self._puts.values() if put.after is None}
        for names in emptied_folders(removed, self.view, self.live):
            self._puts["/".join(names)] = Put("/".join(names), self._state(names), None)
        for put in list(self._puts.values()):
            path, state = "/".join(put.names[:-1]), self._state(put.names[:-1])
            if path not in self._puts and state and state.kind == "folder":
                after = msgspec.structs.replace(state, mtime_ns=0)
                self._puts[path] = Put(path, state, after, parent=True)

    def stage(self) -> list[Put]:
        """Makes what is put, complete and on the disk. Raises OSError."""
        puts = list(self._puts.values())
        for number, put in enumerate(puts):
            slot = self._side / str(number)
            if put.after and put.after.kind == "link":
                make_link(slot, put.after)
            elif put.after and put.after.kind == "file":
                put.after = self._stage_file(put, put.after, slot)
                self.states[put.path] = put.after
        return puts

    def _stage_file(self, put: Put, after: State, slot: Path) -> State:
        mtime_ns = None if put.path in self._contents else after.mtime_ns
        with contextlib.ExitStack() as stack:
            like = None
            if put.before and put.before.kind == "file":
                live = stack.enter_context(self.live.folder(put.names[:-1])).descriptors[0]
                like = Path(f"/proc/self/fd/{live}/{put.names[-1]}")
            folder = stack.enter_context(self.view.folder(put.names[:-1]))
            item = folder.find(put.names[-1])
            if item is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            content = self._contents.get(put.path)
            file = open_file(item.folder, item.name) if content is None else io.BytesIO(content)
            with file:
                state = write_file(slot, file, like, after.mode, mtime_ns)
        if like is None:
            above = next(state for depth in range(len(put.names) - 1, -1, -1) if (state := self._status(put.names[:depth])))
            if os.geteuid() == 0 or above.st_mode & stat.S_ISGID:
                os.chown(slot, above.st_uid if os.geteuid() == 0 else -1, above.st_gid)
        return state

    def _status(self, names: Names) -> os.stat_result | None:
        return item_status(self.live, names)


class _BaseRecorder:
    """Records what the workspace has under each name that a layer hides."""

    def __init__(self, live: View, known: _Bases, new: _Bases, began_ns: int) -> None:
        self._live, self._known, self._new, self._began_ns = live, known, new, began_ns
        self._bytes = _MAX_DIGEST_BYTES
        self._missing: set[Names] = set()
        """Folders that the workspace lacks: nothing in them needs a look."""

    def record(self, names: Names, *, hides: bool) -> None:
        """``hides``: the layer also hides what is in the workspace's folder of this name. Raises OSError."""
        pending = [names]
        while pending:
            names = pending.pop()
            path = "/".join(names)
            if path not in self._known and path not in self._new:
                self._new[path] = self._state(names)
            state = self._new.get(path, self._known.get(path))
            if not hides or not state or state.kind != "folder" or len(names) > MAX_DEPTH:
                continue
            with contextlib.suppress(OSError), self._live.folder(names) as folder:
                pending += [(*names, name) for name in os.listdir(folder.descriptors[0])]  # noqa: PTH208

    def _state(self, names: Names) -> State | None:
        if names[:-1] in self._missing:
            self._missing.add(names)
            return None
        state = None
        with contextlib.suppress(OSError), self._live.folder(names[:-1]) as folder:
            here = folder.descriptors[0]
            state = state_of(here, names[-1], digest=False)
            if state and state.kind == "file" and state.size <= self._bytes:
                self._bytes -= state.size
                with contextlib.suppress(PermissionError):
                    state = state_of(here, names[-1])
        if state is None:
            self._missing.add(names)
        elif state.kind != "folder" and state.stamp[2] > self._began_ns:
            return State("late")
        return state


def _chosen(changes: Mapping[str, Change], choice: Choice | None) -> dict[str, frozenset[int] | None]:
    """Each path with its hunks (``None``: all of it), those that belong together completed. Raises UsageError."""
    chosen: dict[str, frozenset[int] | None] = {}
    for path, hunks in (dict.fromkeys(changes) if choice is None else choice).items():
        change = changes.get(path)
        if change is None:
            raise UsageError(f"{printable(path)} has no change that waits.", "Look at the changes again.")
        if hunks is not None and not hunks <= set(range(len(change.hunks))):
            raise UsageError(f"{printable(path)} has {len(change.hunks)} hunks, counted from 0.")
        if hunks is None or len(hunks) == len(change.hunks):
            chosen |= dict.fromkeys(_unit(changes, path))
        elif hunks:
            chosen.setdefault(path, hunks)
    return chosen


def _unit(changes: Mapping[str, Change], path: str) -> set[str]:
    """The changes that only make sense together: all in a folder that takes another thing's place, or gives it up."""
    parts = path.split("/")
    above = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    top = next((each for each in above if each in changes and is_replacement(changes[each])), None)
    return {path} if top is None else {each for each in changes if each == top or each.startswith(f"{top}/")}


def emptied_folders(removed: Collection[Names], view: View, live: View) -> set[Names]:
    """The folders of the workspace that are gone in the view, and hold nothing but what is ``removed``."""
    gone = set(removed)
    above = {names[:depth] for names in removed for depth in range(1, len(names))}
    for names in sorted(above, key=len, reverse=True):
        if item_status(view, names) is None:
            with contextlib.suppress(OSError), live.folder(names) as folder:
                if all((*names, name) in gone for name in os.listdir(folder.descriptors[0])):  # noqa: PTH208
                    gone.add(names)
    return gone - set(removed)


def item_status(view: View, names: Names) -> os.stat_result | None:
    """The status of a file, link or folder of the view; ``None``: there is none that could be taken."""
    try:
        status = view.status(names)
    except OSError:
        return None
    return status if status and stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR) else None


def read_item(view: View, names: Names) -> bytes:
    """The content of a file of the view. Raises OSError."""
    with view.folder(names[:-1]) as folder:
        item = folder.find(names[-1])
        if item is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with open_file(item.folder, item.name) as file:
            return file.read()


def walk(view: View, names: Names) -> Iterator[tuple[Names, Item]]:
    """The files, links and folders below a folder of the view, as deep as they may be. Holds one folder open."""
    pending = [names]
    while pending:
        names = pending.pop()
        with contextlib.suppress(OSError), view.folder(names) as folder:
            for item in list(folder.items()):
                if item.is_folder and len(names) < MAX_DEPTH:
                    pending.append((*names, item.name))
                if item.is_folder or item.is_file or item.is_link:
                    yield (*names, item.name), item


def _lay(layer: TopLayer, view: View, names: Names, content: bytes | None, *, whole: bool) -> None:
    """Gives a layer what the view has at ``names``; ``whole``: a folder with all that is in it. Raises OSError."""
    with view.folder(names[:-1]) as folder, layer.folder(names[:-1]) as target:
        item = folder.find(names[-1])
        if item is None:
            return
        for depth in range(1, len(names)):
            ...
