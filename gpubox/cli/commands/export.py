"""``gpubox export PROFILE --as KIND``."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import click

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.engines.find import choose_engine
from gpubox.errors import GpuboxError
from gpubox.interchange.exporting import KINDS, export_profile
from gpubox.interchange.reference_options import model_arguments
from gpubox.models.resolve import profile_model, with_resolved_flag_paths
from gpubox.profiles.argv import server_argv
from gpubox.profiles.profile import Profile, check_launched_here

_DEFAULT_PORT = 8080
"""For a profile with port 0 (any free port): the other program needs a fixed one."""


@click.command("export")
@click.argument("profile")
@click.option(
    "--as", "kind", type=click.Choice(KINDS), required=True, metavar="KIND",
    help=f"Format: {', '.join(KINDS[:-1])} or {KINDS[-1]}.",
)  # fmt: skip
@json_option
@click.pass_obj
def command(context: Context, profile: str, kind: str, as_json: bool) -> None:
    """Print PROFILE in the format of another program. `gpubox connect` prints the settings of clients."""
    exported = context.profile(profile)
    exported = replace(exported, port=exported.port or _DEFAULT_PORT)
    text = export_profile(exported, kind, _argv(exported, context))
    if as_json:
        output.emit_json({"profile": exported.name, "kind": kind, "text": text})
    else:
        output.emit_verbatim(text.rstrip("\n"))


def _argv(profile: Profile, context: Context) -> list[str]:
    """The profile's own command, without the flags that gpubox adds to read the server's log. Raises GpuboxError."""
    check_launched_here(profile)
    binary: tuple[str, ...] = ("llama-server",)
    with contextlib.suppress(GpuboxError):  # the text may be for a machine that has the engine
        engine = choose_engine(context.config, profile.engine)
        if profile.engine or engine.kind == "llama-server":
            binary = engine.command
    model = model_arguments(profile.model)
    if profile.model.startswith("demo:"):
        source = profile_model(profile, context.paths, context.config)
        if not source.argv:
            raise GpuboxError(f"The model {profile.model} is not on this machine yet.", "`gpubox demo` downloads it.")
        model = list(source.argv)
    elif not profile.model.startswith(("hf:", "/", "~", "$")):
        with contextlib.suppress(GpuboxError):  # another program would resolve a relative path elsewhere
            model = list(profile_model(profile, context.paths, context.config).argv)
    return [*binary, *server_argv(with_resolved_flag_paths(profile, context.paths, context.config), model)]
