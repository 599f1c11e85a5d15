"""Try once: runs a changed profile that is not written yet. It is kept (written), or what ran before comes back.

The record ``trial.json`` exists from before the switch until one of the two is done. The gpubox that tries holds
``trial.lock``. If it dies first, the watcher of the instance brings back what ran before. If the watcher was killed
too, the next trial, or ``recover_trial``, does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from gpubox.clock import utc_now
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.profiles.edit import ProfileEdit, save_edit
from gpubox.server.held_instance import InstanceBusy
from gpubox.server.instance import InstanceView, observe
from gpubox.server.state import STATE_BYTES, TrialRecord, pending_trial
from gpubox.server.supervisor import Supervisor
from gpubox.server.watcher import replace_watcher
from gpubox.storage import is_locked, lock_file, read_text, write_atomically

_LOCK_ATTEMPTS = 50


class Trial:
    """One trial, from the switch to its end. Made by ``begin``; exactly one of ``keep`` and ``revert`` ends it."""

    def __init__(self, edit: ProfileEdit, record: TrialRecord, supervisor: Supervisor, lock: int) -> None:
        self.edit, self.record = edit, record
        self._supervisor, self._paths, self._lock = supervisor, supervisor.paths, lock

    @classmethod
    async def begin(
        cls, edit: ProfileEdit, supervisor: Supervisor, *, stop_now: bool = False, allow_exposed: bool = False
    ) -> Trial:
        """Switches to the changed profile. Raises GpuboxError if it does not start: then nothing has changed."""
        paths, profile = supervisor.paths, edit.profile
        lock = _take_lock(paths)
        try:
            if (record := pending_trial(paths)) is not None:
                await _end_interrupted(record, paths, supervisor.config)
            view = observe(paths, supervisor.instance)
            record = TrialRecord(
                profile.name, supervisor.instance, utc_now(), str(edit.path), edit.after,
                view.running.launch if view.running else None, own_identity(),
            )  # fmt: skip
            _write(record, paths)
            replace_watcher(paths, supervisor.instance, view.watched)
            try:
                await supervisor.switch(profile, stop_now=stop_now, allow_exposed=allow_exposed)
            except BaseException:
                _forget(paths)  # the switch has restored what ran before
                raise
        except BaseException:
            os.close(lock)
            raise
        return cls(edit, record, supervisor, lock)

    async def keep(self) -> Path:
        """Writes the changed profile; its server goes on. Returns the file.

        Raises GpuboxError if the file has changed meanwhile or the disk refuses: the trial is not over then.
        """
        path = await asyncio.to_thread(save_edit, self.edit, self._paths, "trial")
        self._close()
        return path

    async def revert(self) -> None:
        """Brings back what ran before, unless another server was started or stopped since: that was the owner's choice.

        Raises GpuboxError if that fails. If it is cancelled, it is done when this gpubox ends.
        """
        try:
            if _is_in_place(observe(self._paths, self.record.instance), self.record):
                await _restore(self.record, self._supervisor)
        except GpuboxError:
            self._close()
            raise
        except BaseException:
            os.close(self._lock)
            raise
        self._close()

    def _close(self) -> None:
        _forget(self._paths)
        os.close(self._lock)


def trial_profile(paths: Paths) -> str | None:
    """The profile that another gpubox, or this one, tries now; ``None`` if there is no trial. Cheap."""
    record = pending_trial(paths)
    return record.profile if record and is_locked(paths.trial_lock) else None


async def recover_trial(paths: Paths, config: Config) -> str | None:
    """Ends a trial whose gpubox died: what ran before comes back. Returns the profile that was tried.

    ``None`` if there is nothing to do. Raises GpuboxError if what ran before does not start.
    """
    if pending_trial(paths) is None:
        return None
    lock = await asyncio.to_thread(lock_file, paths.trial_lock, _LOCK_ATTEMPTS)
    if lock is None:
        return None  # its gpubox lives
    try:
        if (record := pending_trial(paths)) is None:
            return None
        await _end_interrupted(record, paths, config)
        return record.profile
    finally:
        os.close(lock)


async def _end_interrupted(record: TrialRecord, paths: Paths, config: Config) -> None:
    """Ends the trial as its gpubox would have: kept if the file was written already, else reverted."""
    kept = False
    with contextlib.suppress(OSError, UnicodeDecodeError):
        kept = read_text(Path(record.path), STATE_BYTES) == record.after
    if not kept and _is_in_place(observe(paths, record.instance), record):
        try:
            supervisor = Supervisor(paths, config, record.instance, gives_way=True)
            await _restore(record, supervisor, f"The trial of {record.profile} was killed; what ran before is back.")
        except InstanceBusy:
            raise
        except GpuboxError:
            _forget(paths)  # the instance's record says why
            raise
    _forget(paths)


def _is_in_place(view: InstanceView, record: TrialRecord) -> bool:
    """Whether the tried server, or a half-finished switch to it, is still there. Else the owner chose otherwise."""
    if view.operation:
        return False
    if view.running is None:
        return view.crashed or view.state.operation is not None  # killed between stop and start
    launch = view.running.launch
    return launch.profile == record.profile and launch != record.previous


async def _restore(record: TrialRecord, supervisor: Supervisor, note: str = "") -> None:
    if record.previous:
        await supervisor.restore_launch(record.previous, note)
    else:
        await supervisor.stop()


def _take_lock(paths: Paths) -> int:
    try:
        lock = lock_file(paths.trial_lock, _LOCK_ATTEMPTS)
    except OSError as error:
        raise GpuboxError(f"{paths.trial_lock} cannot be written: {error.strerror}.") from None
    if lock is None:
        raise GpuboxError("A trial is under way in another gpubox.", "Keep or revert it there first.")
    return lock


def _write(record: TrialRecord, paths: Paths) -> None:
    try:
        write_atomically(paths.trial_record, json.dumps(asdict(record)).encode())
    except OSError as error:
        raise GpuboxError(f"A trial is refused: {paths.trial_record} cannot be written: {error.strerror}.") from None


def _forget(paths: Paths) -> None:
    with contextlib.suppress(OSError):
        paths.trial_record.unlink()
