"""``gpubox advice [PROFILE]``."""

from __future__ import annotations

import asyncio

import click

from gpubox.advisor.advice import Advice
from gpubox.advisor.advisor import AdviceList, Advisor
from gpubox.advisor.rules.table import RULES
from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.hardware.nvml_reader import DriverReader
from gpubox.telemetry.sampler import Sampler
from gpubox.telemetry.snapshot import Snapshot
from gpubox.toml_table import closest_match
from gpubox.views.fields import json_fields

WATCH_READINGS, WATCH_PAUSE = 12, 0.25
"""A server that works is read so often, because rules follow no single reading."""


@click.command("advice")
@click.argument("profile", required=False)
@click.option("--dismiss", "dismissed", metavar="ID", help="Never show this advice for the profile again.")
@click.option("--restore", "restored", metavar="ID", help="Show a dismissed advice again.")
@click.option("--all", "show_all", is_flag=True, help="Also print what was dismissed.")
@json_option
@click.pass_obj
def command(
    context: Context, profile: str | None, dismissed: str | None, restored: str | None, show_all: bool, as_json: bool
) -> None:
    """Say what to change on PROFILE, else on what runs: evidence, one sentence, the flags, and how to try them.

    A server that works on a request is watched for some seconds first. Exits 0 with or without advice, 2 for an unknown
    PROFILE or ID, 3 if nothing runs and no PROFILE is named.
    """
    if dismissed and restored:
        raise UsageError("--dismiss and --restore cannot be combined.", "Leave one of them out.")
    advisor = Advisor(context.paths, lambda: context.config)
    snapshot = asyncio.run(_watch(context, advisor))
    name = profile or (snapshot.server.profile if snapshot.server.pid else None)
    if not name:
        raise GpuboxError(
            "Nothing is running.", "`gpubox advice PROFILE` judges the flags of a profile.", code=ExitCode.NOT_RUNNING
        )
    if rule := dismissed or restored:
        _change(context, advisor, profile, name, rule, dismiss=bool(dismissed), as_json=as_json)
        return
    judged = advisor.advise(profile or "", snapshot)
    shown = judged.advice if show_all else judged.shown
    if as_json:
        offload = snapshot.offload if snapshot.server.profile == name else None
        slowed = {key: offload and (getattr(offload, key) or None) for key in ("bottleneck", "bottleneck_reason")}
        advice = [json_fields(each, "diff", "command", without=("before",)) for each in shown]
        dismissed_count = len(judged.advice) - len(judged.shown)
        output.emit_json({"profile": judged.profile, **slowed, "advice": advice, "dismissed": dismissed_count})
        return
    if not judged.advice and snapshot.server.profile != name and _lacks_model(context, name):
        output.emit(f"{name}: the model is not here yet; nothing can be judged.")
        return
    _print(judged, shown)


def _lacks_model(context: Context, name: str) -> bool:
    from gpubox.models.resolve import profile_model

    profile = context.profile(name)
    if profile.upstream:
        return False
    try:
        path = profile_model(profile, context.paths, context.config).path
    except GpuboxError:
        return True
    return path is None or not path.exists()


async def _watch(context: Context, advisor: Advisor) -> Snapshot:
    """The newest readings; of a server that works, after several of them."""
    with DriverReader() as driver:
        async with Sampler(context.paths, context.config, driver.latest) as sampler:
            snapshot = await sampler.sample(wait=True)
            advisor.observe(snapshot)
            for _ in range(WATCH_READINGS - 1):
                if not snapshot.throughput.working:
                    break
                await asyncio.sleep(WATCH_PAUSE)
                snapshot = await sampler.sample(wait=True)
                advisor.observe(snapshot)
            return snapshot


def _change(
    context: Context, advisor: Advisor, given: str | None, name: str, rule: str, *, dismiss: bool, as_json: bool
) -> None:
    ids = [each.id for each in RULES]
    if rule not in ids:
        near = closest_match(rule, ids)
        raise UsageError(
            f"There is no advice {rule!r}.", f"Did you mean {near!r}?" if near else f"Choose one of {', '.join(ids)}."
        )
    if given:
        context.profile(given)  # a misspelt name must not be dismissed in silence
    if dismiss:
        advisor.dismissals.dismiss(name, rule)
        text = f"{rule} is dismissed for {name}. `gpubox advice {name} --restore {rule}` shows it again."
    else:
        advisor.dismissals.restore(name, rule)
        text = f"{rule} is shown for {name} again."
    output.emit_result(text, {"profile": name, "rule": rule, "dismissed": dismiss}, as_json=as_json)


def _print(judged: AdviceList, shown: tuple[Advice, ...]) -> None:
    hidden = len(judged.advice) - len(shown)
    more = f" {hidden} dismissed; --all shows {'it' if hidden == 1 else 'them'}." if hidden else ""
    if not shown:
        output.emit(f"{judged.profile}: nothing to advise.{more}")
        return
    for advice in shown:
        mark = " (dismissed)" if advice.dismissed else ""
        output.emit(f"{advice.word}: {advice.sentence}{mark}")
        for text in advice.evidence:
            output.emit(f"    {text}")
        for line in advice.diff:
            output.emit(f"  {line}")
        if advice.command:
            output.emit(f"    try:      {advice.command}")
        if not advice.dismissed:
            output.emit(f"    dismiss:  gpubox advice {judged.profile} --dismiss {advice.rule}")
        output.emit()
    if hidden:
        output.emit(more.strip())
