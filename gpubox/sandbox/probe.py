"""Which isolation works here, proven by running a program in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.sandbox import bubblewrap, cgroup, landlock, remedies
from gpubox.sandbox.confined_run import run_confined
from gpubox.sandbox.interpreter import find_interpreter
from gpubox.sandbox.policy import ISOLATIONS, Confinement, Policy

_PROBE = Policy(wall_seconds=20.0, cpu_seconds=10, output_bytes=4096)
_known: dict[str, Confinement] = {}


async def probe(config: Config) -> Confinement:
    """The strongest isolation that works here and that the owner accepts. Each is tried once in this process."""
    accepted = config.weakest_isolation
    if accepted not in _known:
        _known[accepted] = await _probe(accepted, Path("/"))
    return _known[accepted]


async def _probe(accepted: str, root: Path) -> Confinement:
    installed = bool(bubblewrap.installed())
    problems = [] if installed else ["bubblewrap is not installed"]
    hint = remedies.remedy(root, installed=installed)
    for candidate in candidates(accepted):
        if problem := await try_confinement(candidate):
            problems.append(problem)
            continue
        group = cgroup.find()
        candidate = replace(
            candidate,
            detail=f"{_name(candidate)}, Python {find_interpreter().version}",
            cgroup=group.version if group else 0,
        )
        if candidate.isolation == "bubblewrap":
            return candidate
        return replace(candidate, problem="; ".join(problems), hint=hint)
    return Confinement(None, problem="; ".join(dict.fromkeys(problems)) + ".", hint=hint)


def candidates(accepted: str) -> Iterator[Confinement]:
    """Everything to try, the strongest first, down to the weakest isolation that the owner accepts."""
    as_root = os.geteuid() == 0
    for program in bubblewrap.installed():
        if as_root:
            yield Confinement("bubblewrap", program=program, as_root=True)
        yield Confinement("bubblewrap", program=program)
    for isolation in ISOLATIONS[1 : ISOLATIONS.index(accepted) + 1]:
        yield Confinement(isolation)


async def try_confinement(candidate: Confinement) -> str:
    """Runs ``print(1)``. Returns why that failed, or an empty text."""
    if candidate.isolation == "landlock" and landlock.version() < 1:
        return "this kernel has no Landlock"
    try:
        outcome = await run_confined(candidate, "print(1)", _PROBE)
    except GpuboxError as error:
        return error.message.rstrip(".")
    if outcome.ok and outcome.output == "1\n":
        return ""
    lines = outcome.output.strip().splitlines()
    name = candidate.program or candidate.isolation
    return f"{name}: {lines[-1][:200] if lines else outcome.ended_by or outcome.signal or outcome.exit_code}"


def _name(candidate: Confinement) -> str:
    if candidate.isolation == "landlock":
        return f"Landlock (version {landlock.version()}) and seccomp"
    if candidate.isolation != "bubblewrap":
        return "no isolation, only limits"
    try:
        done = subprocess.run([candidate.program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return candidate.program
    return f"{done.stdout.strip() or 'bubblewrap'} ({candidate.program})"
