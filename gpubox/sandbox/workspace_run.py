"""One run over a workspace: on an overlay mount, or in a private copy where that cannot be had."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tempfile
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from gpubox.errors import GpuboxError
from gpubox.sandbox import bubblewrap
from gpubox.sandbox.bubblewrap import Place
from gpubox.sandbox.confined_run import finish, run_confined
from gpubox.sandbox.folders import check_workspace, give
from gpubox.sandbox.idmapped_mount import NoIdmappedMountError
from gpubox.sandbox.layers import View
from gpubox.sandbox.policy import Confinement, Outcome, Policy
from gpubox.sandbox.private_copy import PrivateCopy
from gpubox.sandbox.spawn import ConfinedProgram, layer_owner

T = TypeVar("T")
MAX_SPECIAL_FILES = 100
_BUSY_SECONDS = 0.05
_BUSY_TRIES = 20
"""The kernel takes a moment to end the last run's mount."""
_NO_IDMAP = "the workspace's file system cannot show it to another user"
_EOVERFLOW = os.strerror(errno.EOVERFLOW)
_obstacles: dict[Path, str] = {}
"""Folder -> why no overlay can be mounted there. Each is tried once."""
_running: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()


async def run_over_workspace(confinement: Confinement, program: ConfinedProgram, policy: Policy) -> Outcome:
    """Runs ``program``: what it changes lies in the top layer of ``policy`` afterwards, and nothing else is changed.

    Raises GpuboxError.
    """
    assert policy.workspace is not None
    policy = replace(policy, workspace=check_workspace(policy.workspace))
    if not policy.layers:
        return await _read_only(confinement, program, policy)
    # Two mounts with one upper folder are undefined (overlayfs.rst).
    async with _running.setdefault(policy.layers[0], asyncio.Lock()):
        await in_thread_explained(asyncio.to_thread(_prepare, policy))
        chat = policy.layers[0].parent.parent
        program = replace(program, place=Place(cache=chat / "cache"))
        if not (why := _obstacles.get(chat) or _obstacle(confinement, policy)):
            try:
                outcome = await _on_overlay(confinement, program, policy)
            except NoIdmappedMountError:
                why = _NO_IDMAP
            else:
                if not (why := _refusal(outcome)):
                    return _with_owners_explained(outcome, chat)
            _obstacles[chat] = why
        return await _in_copy(confinement, program, policy, chat / "copy", why)


def _prepare(policy: Policy) -> None:
    owner, top = layer_owner(), policy.layers[0]
    folders = (top.parent / "work", top.parent.parent / "cache")
    for folder in folders:
        folder.mkdir(exist_ok=True)
    if owner is not None:
        for folder in (*policy.layers, *folders):
            give(folder, owner)


async def _on_overlay(confinement: Confinement, program: ConfinedProgram, policy: Policy) -> Outcome:
    for _ in range(_BUSY_TRIES):
        outcome = await run_confined(confinement, program, policy)
        with contextlib.suppress(OSError):  # the kernel closes it to everybody, so that no tool of the owner removes it
            (policy.layers[0].parent / "work/work").chmod(0o700)
        if not _refusal(outcome).endswith(os.strerror(errno.EBUSY)):
            break
        await asyncio.sleep(_BUSY_SECONDS)
    return outcome


def _obstacle(confinement: Confinement, policy: Policy) -> str:
    if confinement.isolation != "bubblewrap":
        return f"{confinement.isolation} has no mounts"
    if not bubblewrap.can_overlay(policy):
        return "too many turns wait for a decision"
    assert policy.workspace is not None
    status = policy.workspace.stat()
    if os.geteuid() and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        return "the workspace belongs to another user or group"
    return ""


def _refusal(outcome: Outcome) -> str:
    """Why bwrap did not begin the program; empty if it did."""
    if outcome.signal != "SIGKILL" or outcome.ended_by or not outcome.output.startswith("bwrap: "):
        return ""
    return outcome.output.splitlines()[0].removeprefix("bwrap: ")[-200:]


def _with_owners_explained(outcome: Outcome, chat: Path) -> Outcome:
    if _EOVERFLOW not in outcome.output:
        return outcome
    _obstacles[chat] = "files of the workspace belong to another user or group"
    note = (
        f'Where "{_EOVERFLOW}" was said, the file belongs to another user or group and could not be changed. Run it'
        " again: from now on programs of this chat work in a copy."
    )
    return replace(outcome, notes=(*outcome.notes, note))


async def _read_only(confinement: Confinement, program: ConfinedProgram, policy: Policy) -> Outcome:
    assert policy.workspace is not None
    try:
        if confinement.isolation != "none":  # there, nothing else keeps it from writing the workspace
            return await _read_only_in_place(confinement, program, policy, policy.workspace)
    except NoIdmappedMountError:
        pass
    with tempfile.TemporaryDirectory(prefix="gpubox-copy-") as folder:
        return await _in_copy(confinement, program, policy, Path(folder, "copy"), "")


async def _read_only_in_place(
    confinement: Confinement, program: ConfinedProgram, policy: Policy, workspace: Path
) -> Outcome:
    if confinement.isolation == "bubblewrap" and workspace not in _obstacles:
        outcome = await run_confined(confinement, program, policy)
        if not (why := _refusal(outcome)):
            return outcome
        _obstacles[workspace] = why
    special = await asyncio.to_thread(_special_files, workspace)
    if len(special) > MAX_SPECIAL_FILES:
        raise GpuboxError(
            f"The workspace {workspace} holds more than {MAX_SPECIAL_FILES} sockets, FIFOs or devices.",
            "gpubox hides each of them from programs: choose another folder.",
        )
    doors = [name for name in special if not (workspace / name).is_socket()]
    if doors and confinement.isolation == "landlock":
        raise GpuboxError(
            f"The workspace holds {doors[0]}, which lets a program get around Landlock.",
            "Remove it: only bubblewrap hides a FIFO or a device.",
        )
    place = Place(overlay=False, masked=tuple(special))
    return await run_confined(confinement, replace(program, place=place), policy)


def _special_files(workspace: Path) -> list[str]:
    """Sockets, FIFOs and devices, through which a program writes even where it may only read."""
    special: list[str] = []
    for names, item in View([workspace]).walk():
        if not item.is_ordinary:
            special.append("/".join(names))
            if len(special) > MAX_SPECIAL_FILES:
                break
    return special


async def _in_copy(
    confinement: Confinement, program: ConfinedProgram, policy: Policy, folder: Path, why: str
) -> Outcome:
    copy = PrivateCopy(policy, folder, layer_owner(), heavy=confinement.isolation == "bubblewrap")
    await in_thread_explained(asyncio.to_thread(copy.synchronize))
    place = replace(program.place, overlay=False, copy=folder, read_only=copy.read_only)
    try:
        outcome = await run_confined(confinement, replace(program, place=place), policy)
    finally:
        if policy.layers:
            await in_thread_explained(finish(asyncio.to_thread(copy.harvest)))
    notes = outcome.notes
    if copy.read_only and outcome.exit_code:
        names = " and ".join(copy.read_only)
        notes += (f"{names}: read-only, because programs work in a copy of the workspace ({why}).",)
    return replace(outcome, notes=notes)


async def in_thread_explained(work: Awaitable[T]) -> T:
    """What ``work`` on the layers returns; its OSError as a GpuboxError."""
    try:
        return await work
    except OSError as error:
        name = f" ({error.filename})" if isinstance(error.filename, str) else ""
        raise GpuboxError(
            f"The layers over the workspace cannot be used{name}: {error.strerror}.",
            "Look at the disk that holds the chats: its free space, and whose the folders are.",
        ) from None
