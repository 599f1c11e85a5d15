"""Click options that several verbs have, and those of ``gpubox bench KIND``."""

from __future__ import annotations

from typing import Any

import click

from gpubox.bench.kind import BenchOption
from gpubox.errors import UsageError

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
yes_option = click.option(
    "--yes", "-y", is_flag=True, help="Start even if other machines can reach the server and it has no API key."
)
url_option = click.option("--url", metavar="URL", help="Read a server that gpubox did not start.")


class PlainHelpOption(click.Option):
    """An option whose help is its text alone: click would append the range of the number."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return (record[0], self.help or "") if record else None


list_requests_option = click.option(
    "--requests", "list_requests", is_flag=True, help="List single requests, the newest last."
)
listed_lines_option = click.option(
    "--lines", "-n", type=click.IntRange(0), default=20, metavar="N", cls=PlainHelpOption,
    help="With --requests: the last N. [default: 20]",
)  # fmt: skip


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
