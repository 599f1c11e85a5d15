"""What ab, sweep and soak share of the command line: flags for one run, and the plan in words before it begins."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpubox.cli import diagnostics
from gpubox.cli.context import Context

if TYPE_CHECKING:
    from gpubox.bench.model import Plan
    from gpubox.engines.capabilities import Capabilities
    from gpubox.profiles.model import FlagValue, Profile


def drawn_seed() -> int:
    """Of a run whose starts stand in a random order: another order for each run, kept in its plan."""
    return secrets.randbelow(1 << 31)


def engine_of(context: Context, profile: Profile) -> Capabilities:
    """What the profile's engine accepts. Raises GpuboxError where there is none."""
    from gpubox.engines.find import choose_engine
    from gpubox.engines.probe import probe

    return probe(choose_engine(context.config, profile.engine), context.paths)


def flags_of(settings: Sequence[str], profile: Profile, capabilities: Capabilities) -> Mapping[str, FlagValue]:
    """Every ``--set flag=value`` under the profile's own keys. Raises UsageError."""
    from gpubox.bench.flags import spelled_all
    from gpubox.bench.planning import parse_override

    return spelled_all(dict(parse_override(text) for text in settings), profile, capabilities)


def announce(context: Context, plan: Plan) -> None:
    """The plan in words on stderr: how many requests, which starts, what runs afterwards, how long it took before."""
    for line in in_words(context, plan):
        diagnostics.note(f"  {line}")


def in_words(context: Context, plan: Plan) -> list[str]:
    from gpubox import units
    from gpubox.bench.planning import outline

    found = outline(plan, context.paths)
    unit = "windows" if plan.kind == "soak" else "requests"
    lines = [f"{found.items} {unit}; no server is started or stopped"]
    if found.starts:
        shown = [*found.starts[:6], *(["..."] if len(found.starts) > 6 else [])]
        count = len(found.starts)
        lines = [f"{found.items} {unit}; {count} {'start' if count == 1 else 'starts'}: {', '.join(shown)}"]
        back = found.gives_back
        lines.append(f"afterwards {back} runs again" if back else "afterwards nothing runs, as now")
    if found.seconds is not None:
        lines.append(f"a run like this took {units.seconds(found.seconds)}")
    return lines
