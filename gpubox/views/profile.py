"""A profile in words and as JSON: its row in a list, all of it, and two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpubox import units
from gpubox.profiles.argv import argument_text, command_line, redacted_env
from gpubox.views.fields import json_fields, json_value
from gpubox.views.marks import PROFILES
from gpubox.views.rows import Table

if TYPE_CHECKING:
    from gpubox.errors import GpuboxError
    from gpubox.planner.verdict import MemoryVerdict
    from gpubox.profiles.comparison import ComparedKey
    from gpubox.profiles.profile import Profile
    from gpubox.server.launch import EngineCompatibility, LaunchPreview

_LISTED = ("name", "title", "shipped", "companion", "upstream", "aliases")
_SHOWN = (
    *_LISTED, "description", "path", "model", "pinned", "idle_seconds", "fallback", "requests", "personas", "sampling",
    "source", "references",
)  # fmt: skip


def profile_state(
    profile: Profile, compatibility: EngineCompatibility | None, memory: MemoryVerdict | None, *, running: bool
) -> str:
    """A key of ``marks.PROFILES``."""
    if running:
        return "running"
    if profile.elsewhere:
        return "elsewhere"
    if compatibility is None:
        return "not checked"
    if not compatibility.ok or (memory and memory.fit == "short"):
        return "refused"
    if compatibility.model_present:
        return "ready"
    return "download" if compatibility.fetchable else "no model"


def profile_row(
    profile: Profile, compatibility: EngineCompatibility, memory: MemoryVerdict | None, *, running: bool
) -> tuple[str, ...]:
    """Mark, name, title, and what is to be said of it."""
    mark = PROFILES[profile_state(profile, compatibility, memory, running=running)]
    remark = profile.elsewhere or compatibility.summary or (memory.words if memory else "")
    return (mark.glyph, profile.name, profile.title, remark)


def profile_row_values(
    profile: Profile, compatibility: EngineCompatibility, memory: MemoryVerdict | None, *, running: bool
) -> dict[str, Any]:
    """The same as JSON."""
    return {
        **{name: json_value(getattr(profile, name)) for name in _LISTED},
        "running": running,
        "engine": compatibility.engine or None,
        "engine_accepts": compatibility.ok,
        "refusal": compatibility.why or None,
        "model_present": compatibility.model_present,
        "model_fetchable": compatibility.fetchable,
        "model_missing": compatibility.missing or None,
        "memory_verdict": memory.fit if memory else "unknown",
        "memory_spare_bytes": memory.spare_bytes if memory else None,
    }


def launch_line(profile: Profile, preview: LaunchPreview) -> str:
    """The command line as a shell takes it, without secrets; empty if it runs elsewhere."""
    return command_line(preview.argv, redacted_env(profile.env)) if preview.argv else ""


def refusal_text(error: GpuboxError | None) -> str:
    """Why the engine refuses the profile, and what to do; empty if it accepts it."""
    return f"{error.message} {error.hint}".strip() if error else ""


def profile_values(profile: Profile, preview: LaunchPreview) -> dict[str, Any]:
    """All of a profile and its launch, as JSON."""
    return {
        **{name: json_value(getattr(profile, name)) for name in _SHOWN},
        **json_fields(preview),
        "command": launch_line(profile, preview) or None,
        "engine_accepts": preview.refusal is None if preview.argv else None,
        "refusal": refusal_text(preview.refusal) or None,
    }


def profile_facts(profile: Profile) -> list[tuple[str, str]]:
    """Label and text of what a profile is made for, who measured it, and where it stands."""
    needs = profile.needs
    vram = f"{needs.vram_gib:g} GiB VRAM" if needs.vram_gib else ""
    ram = f"{needs.ram_gib:g} GiB RAM" if needs.ram_gib else ""
    facts = [("made for", ", ".join(filter(None, (vram, ram, needs.engine))))]
    for reference in profile.references:
        note = f"  ({reference.note})" if reference.note else ""
        figure = f"{reference.what}: {reference.value:g} {reference.unit}  {reference.hardware}{note}"
        facts.append(("measured", figure))
    facts += [("aliases", ", ".join(profile.aliases)), ("source", profile.source), ("file", str(profile.path))]
    return [(label, text) for label, text in facts if text]


def comparison_table(left: str, right: str, keys: Sequence[ComparedKey]) -> Table:
    """What two profiles have different."""
    rows = [(key.label, *(value_text(value, units.UNKNOWN) for value in (key.left, key.right))) for key in keys]
    return Table(rows, ("", left, right), empty=f"{left} and {right} have the same flags and keys.")


def value_text(value: Any, unset: str = "") -> str:
    """The value of a flag or key as it is shown; ``unset`` for None."""
    if value is None:
        return unset
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(argument_text, value)) if isinstance(value, tuple) else argument_text(value)
