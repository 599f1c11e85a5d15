"""``gpubox bench``: a group of verbs, each imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from gpubox.bench.kinds import all_kinds
from gpubox.cli.main import VerbGroup

TUNE = "tune"
"""A kind that is a verb of its own: ``gpubox tune``."""
RUN_VERBS = {
    "ls": "list all runs",
    "show": "show a run, compare two, rank many; or write a file or a forum post",
    "resume": "continue an interrupted run",
    "save": "save the best of a sweep or tune as a profile",
    "rm": "delete runs",
}


class BenchGroup(VerbGroup):
    """A sub-verb is a kind of benchmark, or a function of ``gpubox.cli.bench.runs``."""

    @property
    def sections(self) -> dict[str, Mapping[str, str]]:  # type: ignore[override] # the kinds may grow
        kinds = {kind.name: kind.summary for kind in all_kinds().values() if kind.name != TUNE}
        return {"Kinds": kinds, "Runs": RUN_VERBS}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (kind := all_kinds().get(cmd_name)) and cmd_name != TUNE:
            from gpubox.cli.bench.kinds import kind_command

            return kind_command(kind)
        if cmd_name not in RUN_VERBS:
            return None
        command: click.Command = getattr(importlib.import_module("gpubox.cli.bench.runs"), f"{cmd_name}_command")
        return command


@click.group("bench", cls=BenchGroup)
def command() -> None:
    """Measure speed and quality, and read the results.

    A run may stop the server: for another profile, other flags, or fresh starts (ab, sweep, tune). Afterwards gpubox
    restores what ran before. --dry-run says what a run would do, and how long it takes as far as that is known.
    Ctrl-C, a crash or kill -9 loses at most the measurement under way; `gpubox bench resume` continues.
    """
