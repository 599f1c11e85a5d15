"""Click options that several verbs have."""

from __future__ import annotations

import click

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
