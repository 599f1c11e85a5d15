"""``gpubox import SOURCE``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.engines.find import choose_engine
from gpubox.engines.query import read_capabilities
from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.absolute_paths import with_absolute_paths
from gpubox.interchange.import_result import ImportSource
from gpubox.interchange.importing import import_source, import_text
from gpubox.interchange.input_limits import MAX_INPUT_CHARS
from gpubox.interchange.option_updates import TargetEngine
from gpubox.interchange.profile_draft import REFERENCE_ENGINE, ImportedProfile
from gpubox.paths import Paths, shipped_profiles
from gpubox.profiles.writer import profile_toml, save_profile


# A pasted list of flags begins with dashes, too: one word with blanks in it is no option of ours.
@click.command("import", context_settings={"ignore_unknown_options": True})
@click.argument("source")
@click.option("--name", help="The profile's name; of a file with several profiles, the one to take.")
@click.option("--model", help="The model, where the source names none or another machine's.")
@click.option("--print", "only_print", is_flag=True, help="Show the TOML, write nothing.")
@click.option("--force", is_flag=True, help="Replace profiles of the same name.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def command(
    context: Context, source: str, name: str | None, model: str | None, only_print: bool, force: bool, as_json: bool
) -> None:
    """Make profiles of SOURCE: a command line in quotes, a file that starts llama-server, a .gguf, or - (stdin).

    Files: .sh, .bat, .ps1, systemd and Quadlet units, compose files, Kubernetes manifests, llama-swap's config.yaml,
    llama.cpp's models.ini, Ollama's Modelfile, LM Studio's JSON, KoboldCpp's .kcpps, llamafile's .args. Nothing in them
    is run. What has no place in a profile is named, and stands as a comment in its file.
    """
    found, label, folders = _read(source, name, context)
    if model:
        found = [_with_model(imported, model) for imported in found]
    found = [with_absolute_paths(imported, folders) for imported in found]
    headers = ["\n".join([f"Imported by gpubox from {label}.", *(f"! {n}" for n in i.notes)]) for i in found]
    written: list[Path | None] = [None] * len(found)
    if only_print:
        if len(found) > 1:
            headers = [f"{i.profile.name}.toml\n{header}" for i, header in zip(found, headers, strict=True)]
        texts = [profile_toml(i.profile, header) for i, header in zip(found, headers, strict=True)]
        if not as_json:
            output.emit_verbatim("\n".join(texts))
    else:
        _check(found, context.paths, force)
        written = [
            save_profile(i.profile, context.paths, overwrite=force, header=header)
            for i, header in zip(found, headers, strict=True)
        ]
    if as_json:
        output.emit_json({"profiles": [_values(i, path) for i, path in zip(found, written, strict=True)]})
        return
    for imported, path in zip(found, written, strict=True):
        if path:
            output.emit(f"{imported.profile.name}  {path}")
            if (shipped_profiles() / path.name).exists():
                diagnostics.note("  ! it takes the place of the profile of that name that comes with gpubox")
        for note in imported.notes if path else ():
            diagnostics.note(f"  ! {note}")


def _read(source: str, name: str | None, context: Context) -> tuple[list[ImportedProfile], str, list[Path]]:
    """The profiles, what to call the source (never a pasted text itself, which may hold a key), and where it was."""
    known, here = (
        ImportSource(engines=context.config.engines, target=lambda engine: _target(engine, context)),
        Path.cwd(),
    )
    if source == "-":
        return import_text(sys.stdin.read(MAX_INPUT_CHARS + 1), name=name, known=known), "a text on stdin", [here]
    found = import_source(source, name=name, known=known)
    try:
        path = Path(source).expanduser()
        if path.is_file():
            return found, path.name, [here, path.absolute().parent]
    except (OSError, RuntimeError):
        pass
    return found, "a pasted text", [here]


def _target(engine: str, context: Context) -> TargetEngine:
    """The engine that old spellings are brought to: the one that the source ran, else the owner's default.

    The recorded llama.cpp stands for an engine that is not here, and for the embedded one, which takes a part of it.
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


def _check(found: list[ImportedProfile], paths: Paths, force: bool) -> None:
    """Nothing is written where one of the profiles could not be."""
    for profile in (imported.profile for imported in found):
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
