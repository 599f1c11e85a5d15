"""``gpubox new NAME``."""

from __future__ import annotations

from dataclasses import replace

import click

from gpubox.cli import output
from gpubox.cli.commands.edit import check_edit, parse_changes
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import UsageError
from gpubox.profiles.edit import change_text, copied_text, new_edit, save_edit


@click.command("new", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("source", required=False)
@click.option("--copy", "copied", metavar="PROFILE", help="Copy PROFILE, with its comments.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a flag or another key; repeatable.")
@click.option("--force", is_flag=True, help="Write flags that the engine refuses.")
@json_option
@click.pass_obj
def command(
    context: Context,
    name: str,
    source: str | None,
    copied: str | None,
    sets: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Make the profile NAME from SOURCE or from another profile.

    SOURCE is a .gguf file, hf:USER/REPO:QUANT, or a llama-server command line in quotes.
    """
    if (source is None) == (copied is None):
        raise UsageError("A new profile needs SOURCE or --copy.", f"Write: gpubox new {name} ~/models/model.gguf")
    text = copied_text(context.profile(copied)) if copied else _text_of(source or "", name, context)
    edit = new_edit(name, text, context.paths)
    changes = parse_changes(sets, (), edit.profile, context)
    edit = replace(edit, after=change_text(edit.after, changes))
    if not force:
        check_edit(edit, context)
    path = save_edit(edit, context.paths)
    output.emit_result(f"{name}  {path}", {"name": name, "path": str(path), "text": edit.after}, as_json=as_json)


def _text_of(source: str, name: str, context: Context) -> str:
    from gpubox.interchange.importing import draft_profile

    return draft_profile(source, context.config, name=name).text
