"""What a confined program may use, how it is confined, and how its run ended."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpubox import units

Isolation = Literal["bubblewrap", "landlock", "none"]
"""The mechanism that confines a run."""
ISOLATIONS: tuple[Isolation, ...] = ("bubblewrap", "landlock", "none")
"""The strongest first."""
EndedBy = Literal["", "wall", "cpu", "memory", "output", "disk", "cancelled"]
"""The limit of the Policy that ended a run; empty if the program ended by itself."""
_MOST, _MOST_CHARACTERS = 20, 600
"""How many files a report names."""
WORKSPACE_MOUNT = "/workspace"
"""The path of the workspace inside bubblewrap."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What one program may touch and use. It gets no other files, and no sockets but socket pairs."""

    workspace: Path | None = None
    """The one folder of the owner that it sees, read-only. None: an empty folder that is removed after the run."""
    layers: tuple[Path, ...] = ()
    """Layers over the workspace (layers.py), the top one first: what the program changes lies in that. The mount uses a
    folder ``work`` beside it. Empty: the program changes nothing. It never writes the workspace itself."""
    network: bool = False
    """The program uses the host's network: the owner said so, for this run."""
    resident: bool = False
    """It stays: no clock ends it, neither the wall's nor its own. It may open internet sockets, in a network of its own
    that leads nowhere."""
    wall_seconds: float = 30.0
    cpu_seconds: int = 30
    """CPU time of one process."""
    memory_bytes: int = units.GIB
    """Data of one process, and memory of all its processes together. What is only reserved does not count."""
    processes: int = 64
    """Processes and threads at one time."""
    open_files: int = 256
    file_bytes: int = 64 * units.MIB
    """Size of one file that it writes."""
    disk_bytes: int = units.GIB
    """Bytes that it may add to the top layer."""
    disk_files: int = 20_000
    """Files and folders that it may add to the top layer."""
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

    @classmethod
    def for_commands(
        cls, workspace: Path, layers: tuple[Path, ...] = (), *, seconds: float, network: bool = False
    ) -> Policy:
        """The policy of a coding agent's commands: wide enough for compilers, Node, Go, Rust and the JVM."""
        return cls(
            workspace, layers, network, wall_seconds=seconds, cpu_seconds=int(seconds * (os.cpu_count() or 1)) + 1,
            memory_bytes=4 * units.GIB, processes=1024, open_files=4096, file_bytes=units.GIB, disk_bytes=8 * units.GIB,
            disk_files=400_000, scratch_bytes=512 * units.MIB, scratch_files=200_000, kernel_bytes=256 * units.MIB,
        )  # fmt: skip

    @classmethod
    def for_agents(cls, workspace: Path, layers: tuple[Path, ...] = ()) -> Policy:
        """The policy of a whole agent that stays: that of its commands, without their clocks."""
        return replace(cls.for_commands(workspace, layers, seconds=1), resident=True, wall_seconds=math.inf)


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
    """Files that it created, changed or removed: relative paths, sorted; also ``x (removed)``. Who keeps the layers
    fills it in."""
    dropped_bytes: int = 0
    """Output that was read but not kept."""
    notes: tuple[str, ...] = ()
    """Sentences about the workspace: what the program could not change, and why."""
    why: str = ""
    """The limit that ended the run, in words: ``files: more than 20,000 were made in /tmp``."""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.ended_by

    @property
    def about_workspace(self) -> list[str]:
        """What became of the workspace, for the owner and the model: a few lines, however many files there are."""
        names = list(self.files_changed[:_MOST])
        while len(names) > 1 and sum(map(len, names)) > _MOST_CHARACTERS:
            names.pop()
        more = len(self.files_changed) - len(names)
        changed = ", ".join(names) + (f" and {more:,} more" if more > 0 else "")
        return [*([f"files changed: {changed}"] if names else []), *self.notes]

    @property
    def weakness(self) -> str:
        """What the isolation of this run does not prevent; empty for bubblewrap."""
        return Confinement(self.isolation).weakness


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
                "it cannot keep a program from seeing the host's processes and, of a file whose path it guesses, that"
                " it exists, its size, owner and times; memory is limited for each process alone without a cgroup; and"
                " programs that set permissions, owners or times of their own files fail"
            )
        if self.isolation == "none":
            return "a program can read and change all that you can, your running programs included"
        return ""
