"""``gpubox show``: one profile, two side by side, or the schema of the files."""

from __future__ import annotations

import click

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode
from gpubox.profiles.profile import Profile, check_launched_here
from gpubox.sanitize import reveal_hidden
from gpubox.views.fields import json_fields
from gpubox.views.profile import comparison_table, launch_line, profile_facts, profile_values, refusal_text


@click.command("show")
@click.argument("profile", required=False)
@click.argument("other", required=False)
@click.option("--command", "only_command", is_flag=True, help="Print only the command line.")
@click.option("--all", "show_all", is_flag=True, help="With OTHER: also list what is the same.")
@click.option(
    "--schema", type=click.Choice(("profile", "config")), is_flag=False, flag_value="profile",
    help="Print the JSON Schema of profiles, or of config.toml, for an editor.",
)  # fmt: skip
@json_option
@click.pass_obj
def command(
    context: Context, profile: str | None, other: str | None, only_command: bool, show_all: bool, schema: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Show PROFILE: its purpose, its exact command line, its needs. With OTHER, compare the two.

    Editors complete and check profiles with their schema: run gpubox show --schema >
    ~/.config/gpubox/profile.schema.json, and make this the first line of each profile's file: "#:schema
    ../profile.schema.json". Taplo and Even Better TOML read it.

    Exits 2 if the engine of PROFILE does not accept a flag.
    """
    if schema:
        _print_schema(schema)
        return ExitCode.OK
    if profile is None:
        raise click.UsageError("Missing argument 'PROFILE'. `gpubox ls` lists them.")
    if other is not None:
        _compare(context, profile, other, show_all, as_json)
        return ExitCode.OK
    from gpubox.server.launch import preview_launch

    shown = context.profile(profile)
    preview = preview_launch(shown, context.paths, context.config)
    if only_command:
        check_launched_here(shown)
    if as_json:
        output.emit_json(profile_values(shown, preview))
    elif only_command:
        output.emit_verbatim(launch_line(shown, preview))
    else:
        output.emit(f"{shown.name}  {shown.title}".rstrip())
        if shown.description:
            output.emit_text(shown.description)
        output.emit()
        if shown.elsewhere:
            output.emit(f"→ {shown.elsewhere} Its model there: {shown.model}.")
        else:
            output.emit_text(f"{reveal_hidden(launch_line(shown, preview))}\n")
            _print_checks(shown, preview.engine, refusal_text(preview.refusal), preview.model_path, context)
        for label, text in profile_facts(shown):
            output.emit(f"  {label:8} {text}")
    return ExitCode.USAGE if preview.refusal else ExitCode.OK


def _print_checks(profile: Profile, engine: str, refusal: str, model_path: str | None, context: Context) -> None:
    """Whether the engine accepts it, and whether its model is here."""
    from gpubox.server.launch import locate_model

    if refusal:
        output.emit(f"✗ {refusal}")
    elif engine:
        output.emit(f"✓ {engine} accepts every flag")
    if model_path is None:
        _, fetchable, missing = locate_model(profile, context.paths, context.config)
        download = f"the model is not on this machine yet; `gpubox start` downloads it: {profile.model}"
        output.emit(f"! {download if fetchable else missing}")


def _compare(context: Context, left: str, right: str, show_all: bool, as_json: bool) -> None:
    from gpubox.engines.query import canonical_names
    from gpubox.profiles.comparison import compare_profiles

    profiles = context.profile(left), context.profile(right)
    names = canonical_names(profiles[0].engine, context.config, context.paths)
    keys = [key for key in compare_profiles(*profiles, canonical=names) if show_all or not key.same]
    values = {"left": left, "right": right, "keys": [json_fields(key, "same") for key in keys]}
    output.emit_result(comparison_table(left, right, keys), values, as_json=as_json)


def _print_schema(file: str) -> None:
    import json

    from gpubox.config import Config
    from gpubox.toml_table import json_schema

    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"gpubox {file}"}
    either = {"anyOf": [{"required": ["model"]}, {"required": ["upstream"]}]} if file == "profile" else {}
    schema = json_schema(Profile if file == "profile" else Config)
    output.emit_verbatim(json.dumps({**head, **schema, **either}, indent=2, ensure_ascii=False))
