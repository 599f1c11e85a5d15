"""``gpubox bench``: a group of verbs, each imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import ClassVar

import click

from gpubox.bench.options import KIND_SUMMARIES
from gpubox.cli.main import VerbGroup

RUN_VERBS = {
    "ls": "list all runs",
    "show": "show the report of a run",
    "compare": "compare two runs row by row",
    "leaderboard": "rank the profiles",
    "frontier": "quality against speed against VRAM",
    "export": "write a report, comparison, leaderboard or frontier",
    "post": "write one card and one Markdown block for a forum",
    "resume": "continue an interrupted run",
    "rescore": "score the stored replies of a run again",
    "save": "save the best of a sweep or tune as a profile",
    "restore": "restore the server that ran before a killed run",
    "rm": "delete runs",
}


class BenchGroup(VerbGroup):
    """Finds a sub-verb in ``gpubox.cli.bench.kinds`` or ``gpubox.cli.bench.runs``."""

    sections: ClassVar[dict[str, Mapping[str, str]]] = {"Kinds": KIND_SUMMARIES, "Runs": RUN_VERBS}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"gpubox.cli.bench.{'runs' if cmd_name in RUN_VERBS else 'kinds'}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command


@click.group("bench", cls=BenchGroup)
def command() -> None:
    """Measure speed and quality, and read the results.

    Every run is a folder with the raw replies, the results, and a description of model, engine and machine. Ctrl-C, a
    crash or kill -9 loses at most the current item; `gpubox bench resume` continues. After a run, gpubox restores the
    server that ran before.
    """
