"""``gpubox bench``: a group of verbs, each imported when it is called."""

from __future__ import annotations

import importlib

import click

from gpubox.cli.context import Context
from gpubox.cli.main import VerbGroup

KINDS = {
    "speed": "TTFT, pp, tg and draft acceptance of the served path",
    "ab": "two profiles, or one with a flag changed: faster, slower or indistinguishable",
    "sweep": "one profile over a grid of flags: the best cell, and what is as good",
    "soak": "minutes of an agent's load: what sinks, creeps or goes in cycles",
    "humaneval": "pass@1 of 164 programming problems, bare, in the chat and with a sandbox",
    "suite": "twelve tasks of coding, reasoning, tool use and speed: a leaderboard of points",
}
RUNS = {
    "ls": "every run, and how far it is",
    "show": "the report of a run",
    "compare": "two runs row by row: better, a regression, or noise",
    "leaderboard": "the profiles in order of what they reached",
    "export": "a report, comparison or leaderboard to share",
    "resume": "go on with a run that was cut off",
    "rescore": "score the stored replies of a run again",
    "save": "write the best cell of a sweep as a profile",
    "restore": "bring back what ran before a run that was killed",
    "rm": "delete a run",
}
_MODULES = {name: "runs" for name in RUNS} | dict.fromkeys(("show", "compare", "leaderboard", "export"), "reports")
_MODULES |= dict.fromkeys(("save", "restore"), "keep")


class BenchGroup(VerbGroup):
    """Finds a sub-verb in its module of ``gpubox.cli.bench``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*KINDS, *RUNS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"gpubox.cli.bench.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in (("Kinds", KINDS), ("Runs", RUNS)):
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


@click.group("bench", cls=BenchGroup)
@click.option("--plan", is_flag=True, help="Only say what a kind would do: requests, restarts, how long.")
@click.pass_obj
def command(context: Context, plan: bool) -> None:
    """Measure, and keep what was measured. Every run is a folder: raw replies, results, provenance.

    Ctrl-C, a crash or kill -9 lose at most the item in flight; `gpubox bench resume last` goes on. What ran before
    runs again afterwards.
    """
    context.dry_run = plan
