"""``gpubox export PROFILE --as KIND``."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.engines.find import choose_engine
from gpubox.errors import GpuboxError
from gpubox.interchange.exporting import CLIENT_KINDS, KINDS, context_per_slot, export_profile
from gpubox.interchange.reference_options import model_arguments
from gpubox.models.resolve import profile_model, with_resolved_flag_paths
from gpubox.profiles.argv import server_argv
from gpubox.profiles.profile import Profile
from gpubox.server.instance import instance_names, observe

_FIXED_PORT = 8080
"""For a profile with any free port: another program has to know it beforehand."""


@click.command("export")
@click.argument("profile")
@click.option("--as", "kind", type=click.Choice(KINDS), required=True, help="Whose format.")
@click.option(
    "--url",
    help="How the client reaches this box, such as http://box:8080 (default: where it runs now, else its own port).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the text in it.")
@click.pass_obj
def command(context: Context, profile: str, kind: str, url: str | None, as_json: bool) -> None:
    """Write PROFILE for another program, on stdout: a user unit, a script, llama-swap, or a client's settings."""
    found = context.profile(profile)
    base_url, note = _where(found, context) if url is None else (url, "")
    found = replace(found, port=found.port or _FIXED_PORT)
    asks = kind in CLIENT_KINDS
    argv = [] if asks else _argv(found, context)
    text = export_profile(found, kind, argv=argv, base_url=base_url, context=context_per_slot(found))
    if as_json:
        output.emit_json({"profile": found.name, "kind": kind, "base_url": base_url if asks else None, "text": text})
    else:
        output.emit_verbatim(text.rstrip("\n"))
    if asks and note:
        diagnostics.note(f"  ! {note}")


def _where(profile: Profile, context: Context) -> tuple[str, str]:
    """Where the profile answers: where it runs now, else where it will by its own port; and what to say of that."""
    views = (observe(context.paths, slot) for slot in instance_names(context.paths))
    launch = next((v.running.launch for v in views if v.running and v.running.launch.profile == profile.name), None)
    changes = "its port changes at each start: write `port` into the profile to keep it"
    if launch is not None:
        running = f"{profile.name} runs at {launch.base_url}: the settings name that"
        return launch.base_url, f"{running}; {changes}." if profile.port == 0 else f"{running}."
    if profile.port:
        base_url = _base_url(profile)
        return base_url, f"{profile.name} does not run; by its own port it will answer at {base_url}."
    fixed = _base_url(replace(profile, port=_FIXED_PORT))
    return fixed, f"{profile.name} does not run, and {changes}. The settings name {fixed} until then."


def _argv(profile: Profile, context: Context) -> list[str]:
    """The profile's own command, without the flags gpubox adds to read the server's log."""
    binary: tuple[str, ...] = ("llama-server",)
    with contextlib.suppress(GpuboxError):  # an engine that is not here may be where the text goes
        binary = choose_engine(context.config, profile.engine).command if profile.engine else _default(context)
    model = model_arguments(profile.model)
    if profile.model.startswith("demo:"):
        source = profile_model(profile, context.paths, context.config)
        if not source.argv:
            raise GpuboxError(f"The model {profile.model} is not on this machine yet.", "`gpubox demo` fetches it.")
        model = list(source.argv)
    elif not profile.model.startswith(("hf:", "/", "~", "$")):
        with contextlib.suppress(GpuboxError):  # no other program knows what a relative path is meant from
            model = list(profile_model(profile, context.paths, context.config).argv)
    return [*binary, *server_argv(with_resolved_flag_paths(profile, context.paths, context.config), model)]


def _default(context: Context) -> tuple[str, ...]:
    engine = choose_engine(context.config, "")
    return engine.command if engine.kind == "llama-server" else ("llama-server",)


def _base_url(profile: Profile) -> str:
    host = "127.0.0.1" if profile.host in {"0.0.0.0", "::", ""} else profile.host.split(",")[0]
    return f"http://[{host}]:{profile.port}" if ":" in host else f"http://{host}:{profile.port}"
