"""What every verb gets: paths, settings, profiles; and options that several verbs have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpubox.config import Config, load_config
from gpubox.paths import Paths

if TYPE_CHECKING:
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile


def server_url(url: str | None) -> str | None:
    """The root of the server at ``--url``; a client's form with ``/v1`` is accepted. Raises UsageError."""
    if url is None:
        return None
    from gpubox.address import server_root

    return server_root(url)


@dataclass
class Context:
    """What every verb gets. Files are read at the first use."""

    config_file: Path | None = None

    @cached_property
    def paths(self) -> Paths:
        return Paths.default(self.config_file)

    @cached_property
    def config(self) -> Config:
        return load_config(self.paths)

    @cached_property
    def catalog(self) -> ProfileCatalog:
        from gpubox.profiles.loader import load_catalog

        return load_catalog(self.paths)

    def profile(self, name: str) -> Profile:
        """The profile called ``name``. Raises UsageError."""
        return self.catalog.get(name)


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
