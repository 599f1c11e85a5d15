"""``gpubox diff A B``."""

from __future__ import annotations

from typing import Any

import click

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import GpuboxError
from gpubox.profiles.comparison import ComparedKey, compare_profiles
from gpubox.profiles.profile import Profile


@click.command("diff")
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@click.option("--all", "show_all", is_flag=True, help="Also list what is the same.")
@json_option
@click.pass_obj
def command(context: Context, left: str, right: str, show_all: bool, as_json: bool) -> None:
    """Compare the profiles A and B: flags, keys and sampling defaults."""
    profiles = context.profile(left), context.profile(right)
    keys = compare_profiles(*profiles, canonical=canonical_names(profiles[0], context))
    shown = [key for key in keys if show_all or not key.same]
    if as_json:
        output.emit_json({"left": left, "right": right, "keys": [_values(key) for key in shown]})
        return
    if not shown:
        output.emit(f"{left} and {right} have the same flags and keys.")
        return
    rows = [("", left, right), *((_label(key), _text(key.left), _text(key.right)) for key in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, one, two in rows:
        output.emit(f"{name:<{widths[0]}}  {one:<{widths[1]}}  {two}".rstrip())


def canonical_names(profile: Profile, context: Context) -> Any:
    """Maps aliases of the profile's engine to main names; without an engine, names stay."""
    from gpubox.engines.find import choose_engine
    from gpubox.engines.query import read_capabilities

    try:
        return read_capabilities(choose_engine(context.config, profile.engine), context.paths).canonical
    except GpuboxError:
        return lambda name: name


def _label(key: ComparedKey) -> str:
    return key.name if key.table in ("", "flags") else f"{key.table}.{key.name}"


def _text(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _values(key: ComparedKey) -> dict[str, Any]:
    return {"table": key.table or None, "name": key.name, "left": key.left, "right": key.right, "same": key.same}
