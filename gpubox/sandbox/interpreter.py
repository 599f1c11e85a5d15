"""The Python that runs confined programs: the system's if it is new enough, else the one that runs gpubox."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OLDEST = (3, 10)
"""Models write match statements."""
PYTHON_MOUNT = "/opt/python"
"""The path inside the sandbox of an interpreter that is not the system's: its real path stays private."""
_PARTS = ("asyncio/__init__.py", "unittest/__init__.py", "sqlite3/__init__.py")
"""Parts of the standard library that minimal packages of distributions leave out."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One Python without its site-packages."""

    path: str
    """Inside the sandbox."""
    version: str
    prefix: Path | None = None
    """Bound read-only at PYTHON_MOUNT; None for the system's Python."""
    masked: tuple[str, ...] = ()
    """Folders of installed packages, as paths inside the sandbox. They are hidden."""

    def command(self, script: str, *, on_host: bool = False) -> list[str]:
        """The command for ``script``: without site-packages, without PYTHON* variables, and without .pyc files."""
        path = self.path
        if on_host and self.prefix:
            path = str(self.prefix / Path(path).relative_to(PYTHON_MOUNT))
        return [path, "-I", "-S", "-B", "-X", "utf8", script]

    @property
    def env(self) -> dict[str, str]:
        """Lets the loader find a shared libpython at PYTHON_MOUNT."""
        return {"LD_LIBRARY_PATH": f"{PYTHON_MOUNT}/lib"} if self.prefix else {}


@cache
def find_interpreter() -> Interpreter:
    """The interpreter of this machine's sandbox. Reads folders and runs nothing."""
    return system_interpreter(Path("/usr")) or _gpubox_interpreter()


def system_interpreter(usr: Path) -> Interpreter | None:
    """The python3 of ``usr``, if it is complete and at least OLDEST."""
    match = re.fullmatch(r"python(3)\.(\d+)", (usr / "bin/python3").resolve().name)
    if not match:
        return None
    version = (int(match[1]), int(match[2]))
    stdlib = usr / f"lib/python{match[1]}.{match[2]}"
    if version < OLDEST or not all((stdlib / part).is_file() for part in _PARTS):
        return None
    return Interpreter(str(usr / "bin" / match[0]), f"{match[1]}.{match[2]}", masked=_packages(usr, usr))


def _gpubox_interpreter() -> Interpreter:
    prefix = Path(sys.base_prefix).resolve()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Interpreter(f"{PYTHON_MOUNT}/bin/python{version}", version, prefix, _packages(prefix, Path(PYTHON_MOUNT)))


def _packages(prefix: Path, seen_as: Path) -> tuple[str, ...]:
    folders = [
        folder
        for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages")
        for folder in prefix.glob(pattern)
        if folder.is_dir() and not folder.is_symlink()
    ]
    return tuple(sorted(str(seen_as / folder.relative_to(prefix)) for folder in folders))
