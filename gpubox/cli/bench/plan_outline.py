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
    from gpubox.profiles.profile import FlagValue, Profile


def random_seed() -> int:
    """Of a run whose starts stand in a random order: another order for each run, kept in its plan."""
    return secrets.randbelow(1 << 31)


def capabilities_of(context: Context, profile: Profile) -> Capabilities:
    """What the profile's engine accepts. Raises GpuboxError where there is none."""
    from gpubox.engines.find import choose_engine
    from gpubox.engines.query import read_capabilities

    return read_capabilities(choose_engine(context.config, profile.engine), context.paths)


def parse_settings(settings: Sequence[str], profile: Profile, capabilities: Capabilities) -> Mapping[str, FlagValue]:
    """Every ``--set flag=value`` under the profile's own keys. Raises UsageError."""
    from gpubox.bench.overrides import with_flag_keys
    from gpubox.bench.overrides import parse_override

    return with_flag_keys(dict(parse_override(text) for text in settings), profile, capabilities)


def print_outline(context: Context, plan: Plan) -> None:
    """The plan in words on stderr: how many requests, which starts, what runs afterwards, how long it took before."""
    for line in outline_lines(context, plan):
        diagnostics.note(f"  {line}")


def outline_lines(context: Context, plan: Plan) -> list[str]:
    from gpubox import units
    from gpubox.bench.plan_outline import outline_plan

    found = outline_plan(plan, context.paths)
    unit = "windows" if plan.kind == "soak" else "requests"
    lines = [f"{found.items} {unit}; no server is started or stopped"]
    if found.starts:
        shown = [*found.starts[:6], *(["..."] if len(found.starts) > 6 else [])]
        count = len(found.starts)
        lines = [f"{found.items} {unit}; {count} {'start' if count == 1 else 'starts'}: {', '.join(shown)}"]
        back = found.restored_profile
        lines.append(f"afterwards {back} runs again" if back else "afterwards nothing runs, as now")
    if found.seconds is not None:
        lines.append(f"a run like this took {units.duration(found.seconds)}")
    return lines
