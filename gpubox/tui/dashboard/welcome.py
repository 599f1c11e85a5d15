"""What the profiles pane shows an owner without a profile: models that are here, how to find one, the demo. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpubox import units
from gpubox.tui.messages import ProfileEntry

QUESTION = "No profile yet. What do you have?"
LOOKING = ProfileEntry("choice:file", "choice", "a model file", text="looking for models …")
NO_FILE = ProfileEntry("choice:file", "choice", "a model file", text="none here; Enter: its path")
FIND = ProfileEntry("choice:find", "choice", "find a model", text="on Hugging Face")


def choices(entries: Sequence[ProfileEntry], kept: Iterable[str], *, looked: bool) -> list[ProfileEntry]:
    """The rows: the shipped profiles named ``kept`` (which run or ran), then what one can begin with."""
    from gpubox.models.demo_model import SMOLLM2  # not before the first paint
    from gpubox.profiles.loader import DEMO

    models = [entry for entry in entries if entry.kind == "model"]
    rows = [entry for entry in entries if entry.name in {*kept}]
    rows += models or [NO_FILE if looked else LOOKING]
    rows.append(FIND)
    for entry in entries:
        if entry.name == DEMO and entry.profile and entry not in rows:
            here = bool(entry.compatibility and entry.compatibility.model_present)
            size = "is here" if here else units.file_size(SMOLLM2.size)
            rows.append(replace(entry, text=f"{size}, on the CPU"))
    return rows
