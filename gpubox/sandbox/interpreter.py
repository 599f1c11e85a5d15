"""The Python that runs confined programs: the system's where it is new enough, else the one under gpubox."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OLDEST = (3, 10)
"""match statements: what models write today."""
PYTHON_MOUNT = "/opt/python"
"""Where an interpreter from elsewhere stands inside the sandbox: its path at home is nobody's business."""
_PARTS = ("asyncio/__init__.py", "unittest/__init__.py", "sqlite3/__init__.py")
"""What a minimal package of a distribution leaves out."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One Python without its site-packages."""

    path: str
    """Inside the sandbox."""
    version: str
    prefix: Path | None = None
    """To be bound read-only at INSIDE; None: the system's."""
    masked: tuple[str, ...] = ()
    """Folders of installed packages, as the sandbox would see them: hidden."""

    def command(self, script: str, *, on_host: bool = False) -> list[str]:
        """Runs ``script`` without site-packages, without anything of the environment, and writes no .pyc files."""
        path = self.path
        if on_host and self.prefix:
            path = str(self.prefix / Path(path).relative_to(PYTHON_MOUNT))
        return [path, "-I", "-S", "-B", "-X", "utf8", script]

    @property
    def env(self) -> dict[str, str]:
        """What a shared libpython needs to be found at INSIDE."""
        return {"LD_LIBRARY_PATH": f"{PYTHON_MOUNT}/lib"} if self.prefix else {}


@cache
def find_interpreter() -> Interpreter:
    """The interpreter of this machine's sandbox; reads folders, runs nothing."""
    return system_interpreter(Path("/usr")) or _own()


def system_interpreter(usr: Path) -> Interpreter | None:
    """``usr``'s python3 where it is whole and at least OLDEST."""
    found = re.fullmatch(r"python(3)\.(\d+)", (usr / "bin/python3").resolve().name)
    if not found:
        return None
    version = (int(found[1]), int(found[2]))
    stdlib = usr / f"lib/python{found[1]}.{found[2]}"
    if version < OLDEST or not all((stdlib / part).is_file() for part in _PARTS):
        return None
    return Interpreter(str(usr / "bin" / found[0]), f"{found[1]}.{found[2]}", masked=_packages(usr, usr))


def _own() -> Interpreter:
    prefix = Path(sys.base_prefix).resolve()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Interpreter(f"{PYTHON_MOUNT}/bin/python{version}", version, prefix, _packages(prefix, Path(PYTHON_MOUNT)))


def _packages(prefix: Path, seen_as: Path) -> tuple[str, ...]:
    found = [
        folder
        for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages")
        for folder in prefix.glob(pattern)
        if folder.is_dir() and not folder.is_symlink()
    ]
    return tuple(sorted(str(seen_as / folder.relative_to(prefix)) for folder in found))
