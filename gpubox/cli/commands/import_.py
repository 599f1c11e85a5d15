"""``gpubox import SOURCE``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.engines.find import choose_engine
from gpubox.engines.query import read_capabilities
from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.conversion import ImportSource
from gpubox.interchange.given_options import TargetEngine
from gpubox.interchange.importing import import_file, import_text, source_path
from gpubox.interchange.profile_draft import REFERENCE_ENGINE, ImportedProfile
from gpubox.interchange.script import MAX_INPUT_CHARS
from gpubox.paths import Paths, shipped_profiles
from gpubox.profiles.writer import profile_toml, save_profile
from gpubox.views.fields import json_value


# SOURCE may be a pasted list of flags that begins with dashes.
@click.command("import", context_settings={"ignore_unknown_options": True})
@click.argument("source")
@click.option("--name", metavar="NAME", help="Name the profile. With several models in SOURCE, import only NAME.")
@click.option("--model", metavar="MODEL", help="Use this model instead of the source's.")
@click.option("--print", "only_print", is_flag=True, help="Print the TOML and write nothing.")
@click.option("--force", is_flag=True, help="Replace profiles with the same name.")
@json_option
@click.pass_obj
def command(
    context: Context, source: str, name: str | None, model: str | None, only_print: bool, force: bool, as_json: bool
) -> None:
    """Make profiles from SOURCE.

    SOURCE is a command line in quotes, a file, a model on Hugging Face (hf:USER/REPO:QUANT), or - for stdin. Nothing in
    it is run. Settings that a profile cannot hold are printed, and kept as a comment in the profile's file.

    \b
    Files:
      shell and batch scripts      llama-swap's config.yaml
      systemd and Quadlet units    llama.cpp's models.ini
      compose files                Ollama's Modelfile
      LM Studio's JSON             KoboldCpp's .kcpps
      .gguf models
    """
    known = ImportSource(
        engines=context.config.engines,
        target=lambda engine: _target_engine(engine, context),
        model=model or "",
        folders=(Path.cwd(),),
    )
    if path := None if source == "-" else source_path(source):
        label, profiles = path.name, import_file(path, name=name, known=known)
    else:  # a pasted text is no label: it may hold a key
        label, text = "a pasted text", source
        if source == "-":
            label, text = "a text on stdin", sys.stdin.read(MAX_INPUT_CHARS + 1)
        profiles = import_text(text, name=name, known=known)
    headers = {
        i.profile.name: "\n".join([f"Imported by gpubox from {label}.", *(f"! {note}" for note in i.notes)])
        for i in profiles
    }
    written: dict[str, Path] = {}
    if not only_print:
        _check_writable(profiles, context.paths, force)
        for profile in (imported.profile for imported in profiles):
            header = headers[profile.name]
            written[profile.name] = save_profile(profile, context.paths, overwrite=force, header=header)
    if as_json:
        output.emit_json({"profiles": [_values(imported, written) for imported in profiles]})
    elif only_print:
        if len(profiles) > 1:
            headers = {name: f"{name}.toml\n{header}" for name, header in headers.items()}
        output.emit_verbatim("\n".join(profile_toml(i.profile, headers[i.profile.name]) for i in profiles))
    else:
        for imported in profiles:
            path = written[imported.profile.name]
            output.emit(f"{imported.profile.name}  {path}")
            if (shipped_profiles() / path.name).exists():
                diagnostics.note("  ! It replaces the shipped profile of that name.")
            for note in imported.notes:
                diagnostics.note(f"  ! {note}")


def _target_engine(engine: str, context: Context) -> TargetEngine:
    """The engine whose spellings the profile gets: the source's, else the owner's default.

    The reference build replaces an engine that is not installed, and the embedded one, which has fewer flags.
    """
    try:
        chosen = choose_engine(context.config, engine)
        if chosen.kind == "llama-server":
            return TargetEngine(f"the engine {chosen.name}", read_capabilities(chosen, context.paths))
    except GpuboxError:
        pass
    return REFERENCE_ENGINE


def _check_writable(profiles: list[ImportedProfile], paths: Paths, force: bool) -> None:
    """Raises UsageError before any file is written if one of them cannot be."""
    for profile in (imported.profile for imported in profiles):
        if not profile.model:
            raise UsageError(f"{profile.name}: the source names no model, and a profile needs one.", "Give --model.")
        path = paths.profiles / f"{profile.name}.toml"
        if path.exists() and not force:
            way = "--name NEW, or --force" if len(profiles) == 1 else "--force, or --name with one of the others"
            raise UsageError(f"There is a profile {profile.name!r} already: {path}.", f"Give {way}.")


def _values(imported: ImportedProfile, written: dict[str, Path]) -> dict[str, Any]:
    shown = ("name", "model", "engine", "host", "port", "flags", "sampling")
    values = {name: json_value(getattr(imported.profile, name)) for name in shown}
    return {**values, "path": json_value(written.get(imported.profile.name)), "notes": list(imported.notes)}
