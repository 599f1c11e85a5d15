"""What a confined program may use, how it is confined, and how its run ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpubox import units

Isolation = Literal["bubblewrap", "landlock", "none"]
"""The mechanism that confines a run."""
ISOLATIONS: tuple[Isolation, ...] = ("bubblewrap", "landlock", "none")
"""The strongest first."""
EndedBy = Literal["", "wall", "cpu", "memory", "output", "disk", "cancelled"]
"""The limit of the Policy that ended a run; empty if the program ended by itself."""
_MOST, _FEW = 20, 5
"""How many files a report names, and how many of those moved out for the same reason."""
WORKSPACE_MOUNT = "/workspace"
"""The path of the workspace inside bubblewrap."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What one program may touch and use. It gets no other files, and no sockets but socket pairs."""

    workspace: Path | None = None
    """The one folder that it may write and that outlives it. None: an empty folder that is removed after the run.

    Files that the owner's tools run by themselves (``.git``, ``node_modules``, names with a dot...) are read-only, and
    those that the program creates are quarantined. All other changes are reported. Landlock cannot protect a subfolder:
    changes there are reported, too.
    """
    read_only: bool = False
    """The program may only read the workspace: the owner approves each change first."""
    wall_seconds: float = 30.0
    cpu_seconds: int = 30
    """CPU time of one process."""
    memory_bytes: int = units.GIB
    """Address space of one process, and memory of all its processes together."""
    processes: int = 64
    """Processes and threads at one time."""
    open_files: int = 256
    file_bytes: int = 64 * units.MIB
    """Size of one file that it writes."""
    disk_bytes: int = units.GIB
    """Bytes that it may add to the workspace."""
    disk_files: int = 20_000
    """Files and folders that it may add to the workspace."""
    scratch_bytes: int = 64 * units.MIB
    """Size of each temporary folder: /tmp, /dev/shm, and the workspace if none was given."""
    scratch_files: int = 20_000
    """Files in each temporary folder."""
    kernel_bytes: int = 128 * units.MIB
    """Kernel memory for all its processes: page tables, sockets, locks, names. Checked every 10 ms; between two checks
    the program can take about as much again."""
    allow_seccomp_filters: bool = False
    """The program may add seccomp filters. The benchmark's judge does so before it runs a candidate."""
    output_bytes: int = 256 * units.KIB
    """Bytes of stdout and stderr that are kept; more ends the run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended. The output comes from an untrusted program: never render it as markup."""

    exit_code: int | None
    """None if a signal ended the program."""
    signal: str | None
    """``SIGKILL``, ``SIGSEGV``...; None if the program exited."""
    output: str
    """stdout and stderr in the order written; bytes that are not UTF-8 are replaced."""
    ended_by: EndedBy
    seconds: float
    """From the call to the death of the last process."""
    isolation: Isolation
    files_changed: tuple[str, ...] = ()
    """Files created or changed in the workspace: relative paths, sorted; also ``x (removed)``, and ``folder/``."""
    dropped_bytes: int = 0
    """Output that was read but not kept."""
    quarantined: tuple[str, ...] = ()
    """Auto-run files that the program created and that were moved out of the workspace: ``.git (a repository)``"""
    not_quarantined: tuple[str, ...] = ()
    """Auto-run files that the program created or changed and that are still in the workspace."""
    quarantine: str = ""
    """The folder with the quarantined files; empty if there are none."""
    unchecked: tuple[str, ...] = ()
    """What in the workspace could not be read or moved afterwards, each in a few words. The owner must look at it."""
    notes: tuple[str, ...] = ()
    """Sentences about the workspace: what the program found read-only, and why."""
    why: str = ""
    """The limit that ended the run, in words: ``files: more than 20,000 were made in /tmp``."""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0, and left nothing that could not be checked."""
        return self.exit_code == 0 and not self.ended_by and not self.unchecked

    @property
    def about_workspace(self) -> list[str]:
        """What became of the workspace, for the owner and the model: a few lines, however many files there are."""
        kinds: dict[str, list[str]] = {}
        for text in self.quarantined:
            path, _, kind = text.removesuffix(")").rpartition(" (")
            kinds.setdefault(kind, []).append(path)
        moved = [f"{_some(sorted({*paths}), _FEW)} ({kind})" for kind, paths in kinds.items()]
        place = f"moved out of the workspace to {self.quarantine}, because the owner's tools would run it"
        lists = ((place, moved), ("changed, although the owner's tools will run it", self.not_quarantined),
                 ("could not be checked, so the owner must look at it", self.unchecked),
                 ("files changed", self.files_changed))  # fmt: skip
        return [*(f"{what}: {_some(names)}" for what, names in lists if names), *self.notes]

    @property
    def weakness(self) -> str:
        """What the isolation of this run does not prevent; empty for bubblewrap."""
        return Confinement(self.isolation).weakness


def _some(names: Sequence[str], most: int = _MOST) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True, slots=True)
class Confinement:
    """The isolation that works on this machine, proven by a real run, and why none stronger does."""

    isolation: Isolation | None
    """None: nothing that the owner accepts works, so no code is run."""
    detail: str = ""
    """``bubblewrap 0.8.0, Python 3.11.2``: one line for the screen."""
    problem: str = ""
    """Why no stronger isolation works, in one sentence; empty at the strongest."""
    hint: str = ""
    """What the owner can do about it."""
    program: str = ""
    """Path of the bwrap that works; empty for the other mechanisms."""
    as_root: bool = False
    """Whether bwrap itself runs as root; the program never does."""
    cgroup: int = 0
    """Version of the cgroup that bounds memory; 0 if gpubox can make none."""

    @property
    def memory(self) -> str:
        """How memory, kernel memory included, is bounded: a sentence for the owner."""
        if self.cgroup:
            return f"memory bounded by a cgroup (version {self.cgroup})"
        return "no cgroup here: gpubox polls the memory, and the kernel memory a hundred times a second"

    @property
    def weakness(self) -> str:
        """What this isolation does not prevent and bubblewrap does: a sentence for the owner."""
        if self.isolation == "landlock":
            return (
                "it cannot keep a program from changing the .git of its workspace and other files that your tools run"
                " (a change is reported afterwards), nor from seeing the host's processes and, of a file whose path it"
                " guesses, that it exists, its size, owner and times; memory is limited for each process alone without"
                " a cgroup; and programs that set permissions, owners or times of their own files fail"
            )
        if self.isolation == "none":
            return "a program can read and change all that you can, your running programs included"
        return ""
