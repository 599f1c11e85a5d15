"""``gpubox import SOURCE``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.engines.find import choose_engine
from gpubox.engines.query import read_capabilities
from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.import_result import ImportSource
from gpubox.interchange.importing import import_source, import_text, with_absolute_paths
from gpubox.interchange.option_updates import TargetEngine
from gpubox.interchange.profile_draft import REFERENCE_ENGINE, ImportedProfile
from gpubox.interchange.script import MAX_INPUT_CHARS
from gpubox.paths import Paths, shipped_profiles
from gpubox.profiles.writer import profile_toml, save_profile


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

    SOURCE is a command line in quotes, a file, or - for stdin. Nothing in it is run. Settings that a profile
    cannot hold are printed, and kept as a comment in the profile's file.

    \b
    Files:
      .sh .bat .ps1 scripts        llama-swap's config.yaml
      systemd and Quadlet units    llama.cpp's models.ini
      compose files                Ollama's Modelfile
      Kubernetes manifests         LM Studio's JSON
      .gguf models                 KoboldCpp's .kcpps, llamafile's .args
    """
    profiles, label, folders = _read(source, name, context)
    if model:
        profiles = [_with_model(imported, model) for imported in profiles]
    profiles = [with_absolute_paths(imported, folders) for imported in profiles]
    headers = ["\n".join([f"Imported by gpubox from {label}.", *(f"! {n}" for n in i.notes)]) for i in profiles]
    written: list[Path | None] = [None] * len(profiles)
    if not only_print:
        _check_writable(profiles, context.paths, force)
        written = [
            save_profile(i.profile, context.paths, overwrite=force, header=header)
            for i, header in zip(profiles, headers, strict=True)
        ]
    if as_json:
        output.emit_json({"profiles": [_values(i, path) for i, path in zip(profiles, written, strict=True)]})
        return
    if only_print:
        if len(profiles) > 1:
            headers = [f"{i.profile.name}.toml\n{header}" for i, header in zip(profiles, headers, strict=True)]
        texts = [profile_toml(i.profile, header) for i, header in zip(profiles, headers, strict=True)]
        output.emit_verbatim("\n".join(texts))
        return
    for imported, path in zip(profiles, written, strict=True):
        assert path is not None
        output.emit(f"{imported.profile.name}  {path}")
        if (shipped_profiles() / path.name).exists():
            diagnostics.note("  ! It replaces the shipped profile of that name.")
        for note in imported.notes:
            diagnostics.note(f"  ! {note}")


def _read(source: str, name: str | None, context: Context) -> tuple[list[ImportedProfile], str, list[Path]]:
    """The profiles, a label of the source (not a pasted text itself: it may hold a key), and folders for its paths."""
    known = ImportSource(engines=context.config.engines, target=lambda engine: _target_engine(engine, context))
    folders = [Path.cwd()]
    if source == "-":
        return import_text(sys.stdin.read(MAX_INPUT_CHARS + 1), name=name, known=known), "a text on stdin", folders
    profiles = import_source(source, name=name, known=known)
    try:
        path = Path(source).expanduser()
        if path.is_file():
            return profiles, path.name, [*folders, path.absolute().parent]
    except (OSError, RuntimeError):
        pass
    return profiles, "a pasted text", folders


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


def _with_model(imported: ImportedProfile, model: str) -> ImportedProfile:
    old = imported.profile.model
    notes = [note for note in imported.notes if "names no model" not in note and not (old and note.startswith(old))]
    return ImportedProfile(replace(imported.profile, model=model), tuple(notes))


def _check_writable(profiles: list[ImportedProfile], paths: Paths, force: bool) -> None:
    """Raises UsageError before any file is written if one of them cannot be."""
    for profile in (imported.profile for imported in profiles):
        if not profile.model:
            raise UsageError(f"{profile.name}: the source names no model, and a profile needs one.", "Give --model.")
        path = paths.profiles / f"{profile.name}.toml"
        if path.exists() and not force:
            raise UsageError(f"There is a profile {profile.name!r} already: {path}.", "Give --name NEW, or --force.")


def _values(imported: ImportedProfile, path: Path | None) -> dict[str, Any]:
    profile = imported.profile
    return {
        "name": profile.name,
        "path": str(path) if path else None,
        "model": profile.model or None,
        "engine": profile.engine or None,
        "host": profile.host,
        "port": profile.port,
        "flags": {key: list(value) if isinstance(value, tuple) else value for key, value in profile.flags.items()},
        "sampling": dict(profile.sampling),
        "notes": list(imported.notes),
    }
