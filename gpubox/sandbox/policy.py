"""What a confined program may use, and how its run ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpubox import units

Isolation = Literal["bubblewrap", "landlock", "none"]
"""What confined a run, strongest first."""
EndedBy = Literal["", "wall", "cpu", "memory", "output", "disk", "cancelled"]
"""Which limit of the Policy ended a run; empty: the program ended by itself."""
ISOLATIONS: tuple[Isolation, ...] = ("bubblewrap", "landlock", "none")
WORKSPACE_MOUNT = "/workspace"
"""Where bubblewrap shows the workspace to a program."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What one program may touch and use. It has no socket but pairs of its own and no files but these."""

    workspace: Path | None = None
    """The one folder it may write and that outlives it; None: an empty one that dies with the run.

    What tools of the owner's run there unasked (``.git``, ``.envrc``, ``.vscode``...) can only be read, and what a
    program makes of the kind is moved out. Landlock cannot except a folder: what was changed is told afterwards.
    """
    read_only: bool = False
    """Whether even the workspace may only be read: the owner wants to see each change first."""
    wall_seconds: float = 30.0
    cpu_seconds: int = 30
    """CPU time of one process."""
    memory_bytes: int = units.GIB
    """Address space of one process, and the memory of all of them together."""
    processes: int = 64
    """Processes and threads at one time."""
    open_files: int = 256
    file_bytes: int = 64 * units.MIB
    """The longest file it may write."""
    disk_bytes: int = units.GIB
    """How much it may add to the workspace."""
    disk_files: int = 20_000
    """How many files and folders it may add to the workspace."""
    scratch_bytes: int = 64 * units.MIB
    """Size of each folder that dies with the run: /tmp, /dev/shm, and the workspace where none was given."""
    scratch_files: int = 20_000
    """Files in each of those."""
    kernel_bytes: int = 128 * units.MIB
    """What the kernel may hold for all of them beyond that memory: page tables, sockets, locks, names. Looked at
    every 10 ms; about as much again can be taken between two looks."""
    allow_seccomp_filters: bool = False
    """Whether it may add seccomp filters of its own: gpubox's judge does, before it runs a stranger's program."""
    output_bytes: int = 256 * units.KIB
    """What is kept of stdout and stderr; more ends the run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended. The output is text of an untrusted program: never markup."""

    exit_code: int | None
    """None where a signal ended the program."""
    signal: str | None
    """``SIGKILL``, ``SIGSEGV``...; None where it exited."""
    output: str
    """stdout and stderr as they came; what is no UTF-8 is replaced."""
    ended_by: EndedBy
    seconds: float
    """From the call to the death of the last process."""
    isolation: Isolation
    files_changed: tuple[str, ...] = ()
    """Made or changed regular files, relative to the workspace, sorted; empty without a workspace."""
    dropped_bytes: int = 0
    """Output that was read but not kept."""
    quarantined: tuple[str, ...] = ()
    """What it made that tools of the owner's would have run: moved out of the workspace. ``.git (a repository)``"""
    not_quarantined: tuple[str, ...] = ()
    """What it made or changed of the kind that is there still."""
    quarantine: str = ""
    """The folder that ``quarantined`` lies in now; empty where there is none."""
    why: str = ""
    """Which limit that was, in a few words: ``files: more than 20,000 were made in /tmp``; empty where none was."""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.ended_by


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a real run on this machine has shown: which isolation confines here, and why not a better one."""

    isolation: Isolation | None
    """None: nothing that the owner accepts; code is not run."""
    detail: str = ""
    """``bubblewrap 0.8.0, Python 3.11.2``: one line for the screen."""
    problem: str = ""
    """Why no better isolation confines, in one sentence; empty at the best one."""
    hint: str = ""
    """What the owner can do about it."""
    program: str = ""
    """Path of the bwrap that works; empty at the other tiers."""
    as_root: bool = False
    """Whether bwrap itself runs as root; the program never does."""
    cgroup: int = 0
    """Version of the cgroup that bounds memory; 0 where this box has none for gpubox."""

    @property
    def memory(self) -> str:
        """How memory, the kernel's own included, is bounded: for the owner."""
        if self.cgroup:
            return f"memory bounded by a cgroup (version {self.cgroup})"
        return "no cgroup here: memory is watched, and the kernel's own a hundred times a second"

    @property
    def weaker(self) -> str:
        """What this isolation cannot hold that bubblewrap does: for the owner."""
        if self.isolation == "landlock":
            return (
                "it cannot keep a program from changing the .git of its work folder (a change is told afterwards),"
                " nor from seeing the host's processes and the names of its files"
            )
        if self.isolation == "none":
            return "a program can read and change all that you can, your running programs included"
        return ""
