"""``gpubox export PROFILE --as KIND``."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import click

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.engines.find import choose_engine
from gpubox.errors import GpuboxError
from gpubox.interchange.exporting import KINDS, export_profile, slot_context
from gpubox.interchange.recorded import model_argv
from gpubox.models.resolve import model_of, with_files_found
from gpubox.profiles.argv import server_argv
from gpubox.profiles.model import Profile

_FIXED_PORT = 8080
"""For a profile with any free port: another program has to know it beforehand."""


@click.command("export")
@click.argument("profile")
@click.option("--as", "kind", type=click.Choice(KINDS), required=True, help="Whose format.")
@click.option(
    "--url", help="How the client reaches this box, such as http://box:8080 (default: the profile's address)."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the text in it.")
@click.pass_obj
def command(context: Context, profile: str, kind: str, url: str | None, as_json: bool) -> None:
    """Write PROFILE for another program, on stdout: a user unit, a script, llama-swap, or a client's settings."""
    found = context.profile(profile)
    found = replace(found, port=found.port or _FIXED_PORT)
    text = export_profile(
        found, kind, argv=_argv(found, context), base_url=url or _base_url(found), context=slot_context(found)
    )
    if as_json:
        output.emit_json({"profile": found.name, "kind": kind, "text": text})
    else:
        output.emit_exactly(text.rstrip("\n"))


def _argv(profile: Profile, context: Context) -> list[str]:
    """The profile's own command, without the flags gpubox adds to read the server's log."""
    binary: tuple[str, ...] = ("llama-server",)
    with contextlib.suppress(GpuboxError):  # an engine that is not here may be where the text goes
        binary = choose_engine(context.config, profile.engine).command if profile.engine else _default(context)
    model = model_argv(profile.model)
    if profile.model.startswith("demo:"):
        source = model_of(profile, context.paths, context.config)
        if not source.argv:
            raise GpuboxError(f"The model {profile.model} is not on this machine yet.", "`gpubox demo` fetches it.")
        model = list(source.argv)
    elif not profile.model.startswith(("hf:", "/", "~", "$")):
        with contextlib.suppress(GpuboxError):  # no other program knows what a relative path is meant from
            model = list(model_of(profile, context.paths, context.config).argv)
    return [*binary, *server_argv(with_files_found(profile, context.paths, context.config), model)]


def _default(context: Context) -> tuple[str, ...]:
    engine = choose_engine(context.config, "")
    return engine.command if engine.kind == "llama-server" else ("llama-server",)


def _base_url(profile: Profile) -> str:
    host = "127.0.0.1" if profile.host in {"0.0.0.0", "::", ""} else profile.host.split(",")[0]
    return f"http://[{host}]:{profile.port}" if ":" in host else f"http://{host}:{profile.port}"
