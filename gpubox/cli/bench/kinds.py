"""``gpubox bench KIND``: a verb for each kind of benchmark, made from its ``Kind``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from gpubox.bench.kind import BenchOption, Kind, PlanContext
from gpubox.bench.model import Plan
from gpubox.cli import diagnostics
from gpubox.cli.bench.execution import run_plan
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption
from gpubox.errors import UsageError


class CommaList(click.ParamType):  # type: ignore[type-arg] # not subscriptable before click 8.3
    """Words separated by commas."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        return value if isinstance(value, list) else [part.strip() for part in value.split(",") if part.strip()]


class CommaIntegers(CommaList):
    """Whole numbers separated by commas. Raises UsageError."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        try:
            return [int(word) for word in super().convert(value, param, ctx)]
        except ValueError:
            name = param.opts[0] if param else "The list"
            raise UsageError(f"{name} takes whole numbers, not {value!r}.", f"Write: {name} 0,8192") from None


def benchmark_option(option: BenchOption) -> click.Option:
    """The option of the command line for ``option``; its parameter is called like its key in ``Plan.options``."""
    types: dict[str, Any] = {
        "integer": click.IntRange(int(option.minimum), option.maximum),
        "number": click.FloatRange(option.minimum, min_open=option.exclusive),
        "text": click.STRING,
        "list": CommaList(),
        "integers": CommaIntegers(),
        "choice": click.Choice(option.values),
        "switch": click.BOOL,
    }
    text = option.help
    if option.type == "choice":
        *others, last = option.values
        text += f": {', '.join(others)} or {last}"
    text += f", such as {option.example}" if option.example else ""
    text += f"; {option.detail}" if option.detail else ""
    text += f". [default: {option.default}]" if option.default else "."
    return PlainHelpOption(
        [f"--{option.name}", option.key or option.name.replace("-", "_")], type=types[option.type], help=text,
        metavar=option.metavar, is_flag=option.type == "switch", multiple=option.repeated, required=option.required,
    )  # fmt: skip


def kind_params(kind: Kind) -> list[click.Parameter]:
    """Arguments and options of the verb."""
    params: list[click.Parameter] = [
        click.Argument(
            [argument.key],
            nargs=-1 if argument.many else 1,
            required=argument.required,
            **({"metavar": argument.metavar} if argument.metavar else {}),
        )
        for argument in kind.arguments
    ]
    params += [benchmark_option(option) for option in kind.options]
    if kind.takes_url:
        params += [
            click.Option(["--url"], metavar="URL", help="Measure the OpenAI-compatible server at URL."),
            click.Option(["--model"], metavar="NAME", help="With --url: the model to ask for."),
        ]
    return [
        *params,
        click.Option(["--dry-run"], is_flag=True, help="Print the plan only."),
        click.Option(["--now"], is_flag=True, help="Start even if a request is running; it is cut off."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the report as one JSON object."),
    ]


def kind_command(kind: Kind) -> click.Command:
    """The verb of ``kind``."""
    return click.Command(kind.name, params=kind_params(kind), callback=partial(_run, kind), help=kind.help)


def make_plan(context: Context, kind: Kind, values: Mapping[str, Any]) -> Plan:
    """The plan that a command line asks for. Raises GpuboxError."""
    from gpubox.bench.benchmark import benchmark_class

    given = {key: value for key, value in values.items() if value not in (None, ()) and value is not False}
    plan_context = PlanContext(
        context.paths, context.config, context.profile, lambda text: diagnostics.note(f"  {text}")
    )
    return benchmark_class(kind).make_plan(plan_context, given)


@click.pass_obj
def _run(context: Context, kind: Kind, /, dry_run: bool, now: bool, as_json: bool, **values: Any) -> None:
    run_plan(context, make_plan(context, kind, values), dry_run=dry_run, now=now, as_json=as_json)
