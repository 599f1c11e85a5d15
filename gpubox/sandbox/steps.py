"""The steps of a chat over its workspace: turns with their layers, and what the owner decided; undo and redo.

A folder holds ``steps.json`` and a folder for each step. A *turn* has a layer. A *decision* (a take or a drop) ends
all layers before it: what is left open of them lies in a layer of its own, whose files are other names of theirs; what
was taken lies in both its states (taking.py). ``in_effect`` steps are in effect, those behind it were undone. On the
way to another number ``target`` says where to, and whoever opens the folder next goes on. Blocking; run it in a thread.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from gpubox import units
from gpubox.errors import GpuboxError, UsageError
from gpubox.sandbox.changes import Change, Choice, Comparison, chosen_paths, unit_of
from gpubox.sandbox.layers import TopLayer, View, is_whiteout, make_layer, remove_tree
from gpubox.sandbox.owners_git import as_git_sees
from gpubox.sandbox.runs_by_itself import is_cache
from gpubox.sandbox.states import BaseRecorder, Bases, Caches, names_of
from gpubox.sandbox.step_book import StepBook, StepRecord, errors, read_record, write_record
from gpubox.sandbox.take_plan import TakePlan, composed, lay_rest
from gpubox.sandbox.taking import FileExchange, Put, changed_since
from gpubox.sanitize import show_name
from gpubox.storage import lock_file, private_folder

T = TypeVar("T")
MAX_OPEN_LAYERS = 40
_CLOCK_STEP_NS = 50_000_000
MAX_TURNS, MAX_KEPT_BYTES = 50, 4 << 30
"""Turns that can be undone, and what their decided layers and files may hold on disk; older ones are forgotten."""


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


class ChangedSince(GpuboxError):
    """The owner changed files that an undo or a redo would write: he must say that they stay."""


class Steps:
    """The steps of one chat over one workspace. One owner at a time: it holds a lock until ``close``."""

    def __init__(self, workspace: Path, folder: Path, owner: int | None = None) -> None:
        """Opens ``folder`` (``chats/NAME.layers``), makes it if needed, and finishes what a killed gpubox had begun.

        ``owner``: the user of root's programs, who gets the layers. Raises GpuboxError.
        """
        self.workspace, self.folder, self.owner = workspace, folder, owner
        self._live = View([workspace])
        self._seen: dict[str, tuple[int, ...]] = {}
        self._note_time()
        self._known_bases: dict[int, Bases] = {}
        with errors(f"The steps in {folder}"):
            private_folder(folder)
            lock = lock_file(folder / "lock", attempts=5)
        if lock is None:
            raise GpuboxError(f"Another gpubox has {folder.stem} open.", "Close it there.")
        self._lock = lock
        try:
            self._book = self._read_book()
            self._know_workspace()
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
        """The folders to mount over the workspace, the top first. Empty: none."""
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
        self._note_time()
        with errors("The turn's layer"):
            step = self._new_step("turn", turn_id)
            make_layer(self._path(step) / "up", self.owner)
            self._book.turn_is_open = True
            self._add(step)
            self._book.in_effect = self._book.target
            self._book.forget_old(MAX_TURNS, MAX_KEPT_BYTES)
            self._write_book()
            self._remove_strays()
        self._seen = {}

    def note_changes(self, began_ns: int | None = None) -> tuple[str, ...]:
        """After each run or write of the open turn: records what the workspace had in place of each new entry.

        ``began_ns``: when the run began (``now_ns()``); ``None``: at the last call. Returns the paths that were
        changed since the last call, ``x (removed)`` for removed ones. Raises GpuboxError.
        """
        if not self._book.turn_is_open:
            return ()
        step = self._book.steps[-1]
        set_back = self._clock - clock_offset()
        began_ns = (self._noted_ns if began_ns is None else began_ns) - (set_back if set_back > _CLOCK_STEP_NS else 0)
        known, new, changed = self._bases(), Bases(), list[str]()
        recorder, caches = BaseRecorder(self._live, known, new, began_ns), Caches(self.view())
        seen: dict[str, tuple[int, ...]] = {}
        with errors("What the program changed"):
            for names, item in View([self._path(step) / "up"]).walk(whiteouts=True):
                path, status, is_folder, hides = "/".join(names), item.status, item.is_folder, item.hides
                facts = status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                whiteout = is_whiteout(status)  # overlayfs links one file to all of them, so that its ctime changes
                seen[path] = (hides,) if is_folder else () if whiteout else facts
                if self._seen.get(path) == seen[path]:
                    continue
                recorder.record(names, hides=hides)
                if is_folder and (path in self._seen or known.get(path, new.get(path)) is not None):
                    continue  # a copy of the owner's
                if not (is_cache(names[-1]) or caches.has(names if is_folder else names[:-1])):
                    changed.append(f"{path} (removed)" if whiteout else f"{path}/" if is_folder else path)
            gone = [path for path in self._seen.keys() - seen.keys() if not caches.has(names_of(path)[:-1])]
            changed += [f"{path} (removed)" for path in gone if not is_cache(names_of(path)[-1])]
            if new:
                self._write(step, "bases", self._step_bases(step) | new)
        self._seen = seen
        self._note_time()
        return tuple(sorted(changed))

    def _note_time(self) -> None:
        self._noted_ns, self._clock = now_ns(), clock_offset()

    def end_turn(self) -> None:
        """The open turn's layer is complete. Does nothing if none is open. Raises GpuboxError."""
        if not self._book.turn_is_open:
            return
        self.note_changes()
        with errors("The turn's layer"):
            step = self._book.steps[-1]
            remove_tree(self._path(step) / "work")
            step.has_layer = any((self._path(step) / "up").iterdir())
            items = View([self._path(step)]).walk(whiteouts=True)
            step.kept_bytes = sum(item.status.st_blocks * 512 for _, item in items)
            self._book.turn_is_open = False
            self._write_book()

    def changes(self) -> list[Change]:
        """What all open layers change in the workspace as it is now, sorted by path. Raises GpuboxError."""
        layers = self.layers()
        with errors(f"The workspace {self.workspace}"):
            changes = Comparison(layers, self.workspace, self._bases()).run() if layers else []
        return as_git_sees(self.workspace, changes)

    def take(self, choice: Choice | None = None, *, allow: Collection[str] = ()) -> TakeResult:
        """Puts changes into the workspace. ``None``: all but conflicts and what runs by itself.

        ``allow``: what runs by itself and the owner allowed by name, or by its folder. Raises GpuboxError; then
        nothing has changed.
        """
        self._require_rest()
        changes = {change.path: change for change in self.changes()}
        chosen = chosen_paths(changes, choice)
        allowed = tuple(f"{path}/" for path in allow)
        held = {path for path in chosen if changes[path].conflict or
                (changes[path].runs_by_itself and not f"{path}/".startswith(allowed))}  # fmt: skip
        held = {path for path in chosen if held & unit_of(changes, path)}
        left = tuple(changes[path] for path in sorted(held))
        chosen = {path: hunks for path, hunks in chosen.items() if path not in held}
        if not chosen:
            return TakeResult((), left)
        step = self._new_step("decision", self.can_undo)
        with errors("What you take"):
            plan = TakePlan(self.view(), self._path(step) / "after", self._bases())
            for path, hunks in chosen.items():
                plan.add(changes[path], hunks)
            plan.add_folders()
            self._require_space(plan.size)
            exchange = FileExchange(self.workspace, self._path(step), plan.stage())
            if others := exchange.save(forward=True):
                raise GpuboxError(
                    f"You changed {show_name(others[0].path)} just now: nothing was taken.", "Look again."
                )
            rest = {path: change for path, change in changes.items() if chosen.get(path, ()) is not None}
            partly = {path: plan.states[path] for path, hunks in chosen.items() if hunks is not None}
            self._lay_rest(step, rest, {}, partly, chosen)
            self._write(step, "puts", exchange.puts)
            self._add(step)
            self._book.saved = True
            self._write_book()
        refused = self._travel()
        self._remove_strays()
        notes = [
            *plan.notes,
            *(f"{show_name(path)} changed at the last moment: it stays as it is." for path in refused),
        ]
        return TakeResult(tuple(path for path in chosen if path not in refused), left, tuple(notes))

    def drop(self, choice: Choice | None = None) -> None:
        """Forgets changes; ``None``: all. The workspace stays as it is. Raises GpuboxError."""
        self._require_rest(anywhere=True)
        changes = {change.path: change for change in self.changes()} if choice is not None else {}
        chosen = chosen_paths(changes, choice)
        if not self.layers() or (choice is not None and not chosen):
            return
        step = self._new_step("decision", self.can_undo)
        with errors("What is left of the changes"):
            partly = {path: hunks for path, hunks in chosen.items() if hunks is not None}
            rest = {path: change for path, change in changes.items() if chosen.get(path, ()) is not None}
            kept = {path: frozenset(range(len(changes[path].hunks))) - hunks for path, hunks in partly.items()}
            contents = {path: composed(self.view(), names_of(path), hunks) for path, hunks in kept.items()}
            self._lay_rest(step, rest, contents, {}, ())
            self._add(step)
            self._book.in_effect = self._book.target
            self._write_book()
            self._remove_strays()

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
        with errors("What you took"):
            puts = {step.number: self._read(step, "puts", list[Put]) or [] for step in steps}
            changed = changed_since(
                self.workspace, [put for step in steps for put in puts[step.number]], forward=forward
            )
            if refused := changed - set(keep):
                names = ", ".join(map(show_name, sorted(refused)[:5])) + (" ..." if len(refused) > 5 else "")
                raise ChangedSince(f"You changed {names} since: nothing was {'redone' if forward else 'undone'}.",
                                   "Keep your version of them, or put them back first.")  # fmt: skip
            for step in steps:
                mine = [put for put in puts[step.number] if put.path in changed]
                if mine:
                    self._write(step, "puts", [put for put in puts[step.number] if put not in mine])
                kept |= {put.path for put in mine}
                files |= {put.path for put in puts[step.number] if put not in mine and not put.parent}
            self._require_space(sum(put.after.size for step in steps for put in puts[step.number] if put.after))
            self._book.origin, self._book.target = self._book.in_effect, target
            self._write_book()
        kept |= self._travel()
        turns = tuple(step.turn for step in steps if step.kind == "turn")
        return StepResult(turns, tuple(sorted(files - kept)), tuple(sorted(kept)))

    def _travel(self) -> set[str]:
        """Takes one step after the other until ``target`` is in effect. Returns the paths that stayed as they were."""
        refused: set[str] = set()
        book = self._book
        if book.in_effect != book.target:
            self._require_workspace()
        while book.in_effect != book.target:
            forward = book.target > book.in_effect
            step = book.steps[book.in_effect if forward else book.in_effect - 1]
            puts = self._read(step, "puts", list[Put])
            if puts:
                exchange = FileExchange(self.workspace, self._path(step), puts)
                try:
                    if not book.saved:
                        exchange.save(forward=forward, turning_back=book.turning_back)
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
            book.turning_back = book.turning_back and book.in_effect != book.target
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
        self._remove_strays()
        raise GpuboxError(f"{self.workspace} cannot be changed: {reason}. All files are as they were.",
                          "Check the owner of its folders and the free disk space.")  # fmt: skip

    def _lay_rest(
        self,
        step: StepRecord,
        rest: Mapping[str, Change],
        contents: Mapping[str, bytes],
        bases: Bases,
        taken: Collection[str],
    ) -> None:
        """Makes the layer of what is still open. ``contents`` and ``bases``: where they are new."""
        up, known = self._path(step) / "up", self._bases()
        make_layer(up, self.owner)
        lay_rest(TopLayer(View([up, self.workspace]), self.owner), self.view(), rest, contents, taken)
        step.has_layer = any(up.iterdir())
        self._write(step, "bases", {path: bases.get(path, known.get(path)) for path in rest})

    # The book and its folders

    @property
    def _in_effect(self) -> list[StepRecord]:
        return self._book.steps[: self._book.in_effect]

    @property
    def _open(self) -> list[StepRecord]:
        """The steps whose layers count: from the last decision on."""
        steps = self._in_effect
        last = max((at for at, step in enumerate(steps) if step.kind == "decision"), default=0)
        return steps[last:]

    def _bases(self) -> Bases:
        """What the workspace had when an open layer first named the path."""
        bases = Bases()
        for step in reversed(self._open):
            bases |= self._step_bases(step)
        return bases

    def _step_bases(self, step: StepRecord) -> Bases:
        if step.number not in self._known_bases:
            self._known_bases[step.number] = self._read(step, "bases", Bases) or {}
        return self._known_bases[step.number]

    def _path(self, step: StepRecord) -> Path:
        return self.folder / f"{step.number:06}"

    def _require_rest(self, *, anywhere: bool = False) -> None:
        """Raises GpuboxError while a turn is open, what was begun cannot be ended, or the workspace is another."""
        if self._book.turn_is_open:
            raise GpuboxError("The turn is not over yet.", "Wait for its end, or stop it.")
        self._travel()
        if not anywhere:
            self._require_workspace()

    def _new_step(self, kind: Literal["turn", "decision"], turn_id: str) -> StepRecord:
        self._book.last_number += 1
        step = StepRecord(self._book.last_number, kind, turn_id, now_ns())
        with errors(f"{self.folder}"):
            remove_tree(self._path(step))
            private_folder(self._path(step))
            for side in ("before", "after") if kind == "decision" else ():
                private_folder(self._path(step) / side)
        return step

    def _add(self, step: StepRecord) -> None:
        """The next step: what was undone is forgotten."""
        self._book.steps[self._book.in_effect :] = [step]
        self._book.origin, self._book.target = self._book.in_effect, self._book.in_effect + 1

    def _remove_strays(self) -> None:
        """Removes folders of steps that are forgotten, or were never complete."""
        book = self._book
        if book.in_effect == book.target and self.can_redo and book.steps[book.in_effect].kind == "decision":
            del book.steps[book.in_effect :]  # a take that failed
        known = {self._path(step).name for step in book.steps}
        for path in self.folder.iterdir():
            if path.name not in known and path.name.isdigit():
                remove_tree(path)
            elif path.name.startswith("steps.json."):  # a kill cut it off
                path.unlink()

    def _require_space(self, size: int) -> None:
        if size > (free := shutil.disk_usage(self.folder).free) * 0.95:
            raise GpuboxError(
                f"The disk of {self.folder} has {units.file_size(free)} left: {units.file_size(size)} are needed."
            )

    def _know_workspace(self) -> None:
        """What waits for a decision belongs to the folder that it was made over, whatever has its path now."""
        device, inode = self._workspace_identity()
        book = self._book
        if not (book.in_effect != book.target or self.layers()) or book.identity[1] == inode:
            book.identity = device, inode  # the same folder has another device after a restart of the box

    def _require_workspace(self) -> None:
        if self._workspace_identity() != self._book.identity:
            raise GpuboxError(
                "The workspace was replaced by another folder.",
                "Put the old one back at its path, or drop the changes and open the chat again.",
            )

    def _workspace_identity(self) -> tuple[int, int]:
        with errors(f"The workspace {self.workspace}"), self._live.folder() as folder:
            status = os.fstat(folder.descriptors[0])
        return status.st_dev, status.st_ino

    def _read_book(self) -> StepBook:
        book = read_record(self.folder / "steps.json", StepBook) or StepBook(str(self.workspace))
        if book.workspace == str(self.workspace):
            return book
        self._book = book
        if book.in_effect != book.target or self.layers():
            raise GpuboxError(f"Changes of this chat wait for your decision in {show_name(book.workspace)}.",
                              "Use that workspace, and take or drop them.")  # fmt: skip
        return StepBook(str(self.workspace), last_number=book.last_number)

    def _write_book(self) -> None:
        with errors(f"{self.folder}"):
            write_record(self.folder / "steps.json", self._book)

    def _read(self, step: StepRecord, name: str, kind: type[T]) -> T | None:
        return read_record(self._path(step) / f"{name}.json", kind)

    def _write(self, step: StepRecord, name: str, value: Any) -> None:
        """Raises OSError."""
        if name == "bases":
            self._known_bases[step.number] = value
        write_record(self._path(step) / f"{name}.json", value)


def now_ns() -> int:
    """The time, for ``note_changes``. What the owner writes in the tick before it counts as written before it."""
    return time.time_ns()


def clock_offset() -> int:
    """The time less that since the boot (ns): it only changes where somebody sets the clock."""
    return now_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
