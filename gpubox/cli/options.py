"""Click options that several verbs have."""

from __future__ import annotations

import click

from gpubox.errors import UsageError

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
yes_option = click.option(
    "--yes", "-y", is_flag=True, help="Start even if other machines can reach the server and it has no API key."
)
url_option = click.option("--url", metavar="URL", help="Read a server that gpubox did not start.")


class Verbs(click.Group):
    """A group that says which verb was perhaps meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from gpubox.toml_table import closest_match

            near = closest_match(args[0], self.list_commands(ctx))
            hint = f"Did you mean {near!r}?" if near else self.without_near(ctx, args)
            raise UsageError(f"There is no verb {args[0]!r}.", hint) from error

    def without_near(self, ctx: click.Context, args: list[str]) -> str:
        """What to do if no verb is like the one that was written."""
        return f"`{ctx.command_path} --help` lists the verbs."


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
