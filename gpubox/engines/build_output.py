"""What pip, CMake, ninja and make print during a build: progress, and the line that says why it failed. Pure.

Recorded with pip 26.3 (``pip wheel -v``), CMake 4.4, ninja 1.11 and GNU make 4.3. Ninja counts ``[12/276]``, make
prints ``[ 12%]``. pip indents the output of the programs that it runs by two columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gpubox.errors import GpuboxError

BuildPhase = Literal["download", "prepare", "configure", "compile", "install", "check"]
PHASES: dict[BuildPhase, str] = {
    "download": "download the source",
    "prepare": "fetch the build tools",
    "configure": "configure",
    "compile": "compile",
    "install": "install",
    "check": "check",
}
"""Phase -> what it does. In their order."""
_STARTS: tuple[tuple[str, BuildPhase], ...] = (
    (r"Installing build dependencies: started", "prepare"),
    (r"Running command Building wheel", "configure"),
    (r"installing to build/bdist|Created wheel for", "install"),
)
_NINJA = re.compile(r"\[(\d+)/(\d+)\] ")
_MAKE = re.compile(r"\[ *(\d+)%\] ")
_NO_VERSION = re.compile(r"Could not find a version that satisfies the requirement (\S+).* \(from versions: (.*)\)")
_NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|NameResolutionError|Temporary failure in name resolution"
    r"|Network is unreachable|ConnectTimeout|Read timed out|ReadTimeout|Max retries exceeded|Connection aborted"
    r"|connection broken|IncompleteRead|CERTIFICATE_VERIFY_FAILED|ProxyError|HTTP error \d+"
    r"|\d{3} (?:Client|Server) Error"
)
_NETWORK_REASON = re.compile(
    r"\[Errno -?\d+\] ([A-Za-z][^\"'()\[\]\\]*)|(CERTIFICATE_VERIFY_FAILED)|(timed out)|(\d{3} (?:Client|Server) Error)"
    r"|HTTP error (\d+)"
)
# What names the cause, most telling first. Only the first line that matches is kept for each.
_CAUSES: tuple[tuple[str, str], ...] = (
    ("disk", r"No space left on device|Disk quota exceeded"),
    ("memory", r"Killed signal terminated program|virtual memory exhausted|Cannot allocate memory|\w: out of memory"),
    ("hash", r"DO NOT MATCH THE HASHES"),
    ("cmake", r"CMake Error"),
    ("compiler", r"(?:fatal )?error(?: #?\d+|:)|nvcc fatal|undefined reference to|cannot find -l|collect2: "),
    ("tool", r"FAILED: |\*\*\* .* Error \d+|No such file or directory|Permission denied"),
    ("pip", r"ERROR: "),
)
_PIP_TALK = re.compile(r"error: subprocess-exited-with-error|ERROR: Failed to build|ERROR: Failed building wheel")
_CMAKE_LINES = 3
"""So many lines of CMake's message are kept; the first one only names the place in its own files."""
_CMAKE_END = re.compile(r"Call Stack|-- |\* ")


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is."""

    phase: BuildPhase
    percent: float | None = None
    """Of the phase, by the build tool's own count."""
    seconds: float = 0.0
    """Since the build began."""


class BuildOutput:
    """Reads the output of a build line by line."""

    def __init__(self, folder: str = "") -> None:
        """``folder``: the build's temporary folder, which is cut from messages."""
        self.phase: BuildPhase = "download"
        self.percent: float | None = None
        self._folder = folder
        self._first: dict[str, str] = {}
        self._last = ""
        self._offline = ""
        self._versions: tuple[str, str] | None = None
        self._cmake: list[str] | None = None
        """The lines of CMake's message, while it is read."""

    def read(self, line: str) -> bool:
        """Takes one line; True if phase or percent changed."""
        text = line.strip()
        before = self.phase, self.percent
        for pattern, phase in _STARTS:
            if re.match(pattern, text) and _order(phase) > _order(self.phase):
                self.phase, self.percent = phase, None
        if _order(self.phase) in (_order("configure"), _order("compile")):
            self._count(text)
        self._remember(text)
        return (self.phase, self.percent) != before

    def _count(self, text: str) -> None:
        percent = None
        if match := _NINJA.match(text):
            percent = 100 * int(match[1]) / max(1, int(match[2]))
        elif match := _MAKE.match(text):
            percent = float(match[1])
        if percent is not None:
            self.phase = "compile"
            self.percent = min(100.0, max(self.percent or 0.0, percent))  # several jobs of make count out of order

    def _remember(self, text: str) -> None:
        if text and self._cmake is not None:
            if len(self._cmake) == _CMAKE_LINES or _CMAKE_END.match(text):
                sentence = re.split(r"\.(?:\s|$)", " ".join(self._cmake))[0]
                self._first["cmake"], self._cmake = sentence or self._first["cmake"], None
            else:
                self._cmake.append(text)
        if not text or _PIP_TALK.match(text):
            return
        self._last = text
        if match := _NO_VERSION.search(text):
            self._versions = match[1], match[2]
        if _NO_NETWORK.search(text):
            reason = _NETWORK_REASON.search(text)
            self._offline = next(filter(None, reason.groups()), "").strip() if reason else "it does not answer"
        for cause, pattern in _CAUSES:
            if cause not in self._first and re.search(pattern, text):
                self._first[cause] = text
                if cause == "cmake":
                    self._cmake = []
                break

    def failure(self, code: int) -> GpuboxError:
        """Why the build failed, in one sentence with the line that matters. ``code``: pip's exit status."""
        cause = next((cause for cause, _ in _CAUSES if cause in self._first), "")
        line = self._shortened(self._first.get(cause, self._last))
        if cause == "disk":
            return GpuboxError("The disk is full: the build was given up.", "Free some space and build again.")
        if cause == "memory":
            return GpuboxError(f"The compiler ran out of memory: {line}.", "Build with fewer jobs: --jobs 1")
        if _order(self.phase) < _order("configure"):
            if self._offline and (cause == "pip" or self._versions):
                return GpuboxError(
                    f"The package index cannot be reached: {self._offline}.",
                    "Check the network. pip's own settings (index, proxy) are used.",
                )
            if self._versions:
                return _no_such_version(*self._versions)
            if cause == "hash":
                return GpuboxError(
                    "The source that was downloaded is not the one that gpubox knows. Nothing of it was run.",
                    "Try again. If it happens again, do not build this version.",
                )
        if code < 0:
            return GpuboxError(
                f"The build was killed (signal {-code}).", "The cause may be too little memory: try --jobs 1."
            )
        what = {"configure": "CMake refuses", "compile": "It does not compile"}.get(self.phase, "The build failed")
        return GpuboxError(f"{what}: {line or f'pip exited with {code}'}.".replace("..", "."))

    def _shortened(self, line: str) -> str:
        """The line without the build's temporary folders: ``llama.cpp/src/llama.cpp:12:3: error: ...``."""
        if self._folder:
            line = re.sub(rf"{re.escape(self._folder)}/(?:\S*?/)?(?=llama\.cpp/)|{re.escape(self._folder)}/", "", line)
        return line.rstrip(".")


def _order(phase: BuildPhase) -> int:
    return list(PHASES).index(phase)


def _no_such_version(requirement: str, versions: str) -> GpuboxError:
    known = [version.strip() for version in versions.split(",") if version.strip() not in ("", "none")]
    newest = sorted(known, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])[-3:]
    hint = f"The newest are: {', '.join(version.split('.')[0] for version in reversed(newest))}." if newest else ""
    return GpuboxError(f"The package index has no {requirement}.", hint)
