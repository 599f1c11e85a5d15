"""Makes profiles from what people have: a pasted command, a script, a unit, other programs' settings, a GGUF file."""

from __future__ import annotations

import errno
import json
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.batch import looks_like_batch, read_batch
from gpubox.interchange.compose import is_compose, read_compose
from gpubox.interchange.import_notes import limit_notes, omitted
from gpubox.interchange.import_result import (
    ImportResult,
    ImportSource,
    absolute_path,
    import_commands,
    import_server,
    import_settings,
)
from gpubox.interchange.koboldcpp import is_kcpps, read_kcpps
from gpubox.interchange.kubernetes import is_kubernetes, read_kubernetes
from gpubox.interchange.llama_swap import PORT_MACRO, is_llama_swap, read_llama_swap
from gpubox.interchange.llamafile import looks_like_args, read_args_file
from gpubox.interchange.lmstudio import is_lmstudio, read_lmstudio
from gpubox.interchange.modelfile import looks_like_modelfile, read_modelfile
from gpubox.interchange.models_ini import looks_like_models_ini, read_models_ini
from gpubox.interchange.powershell import looks_like_powershell, read_powershell
from gpubox.interchange.profile_draft import ImportedProfile, profile_name
from gpubox.interchange.script import MAX_INPUT_CHARS, ScriptAssignments, ScriptCommand
from gpubox.interchange.server_invocation import ServerInvocation
from gpubox.interchange.shell import read_script
from gpubox.interchange.systemd import read_quadlet, read_unit
from gpubox.interchange.yaml_text import mapping_of, read_yaml
from gpubox.models.gguf import GgufFile, check_gguf
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.storage import NotRegularFile, read_bytes

_FORMATS = (
    "gpubox reads a command line, .sh, .bat, .ps1, systemd and Quadlet units, compose files, Kubernetes manifests,"
    " llama-swap's config.yaml, models.ini, Modelfile, LM Studio's JSON, .kcpps, .args and .gguf files."
)
_SUFFIXES = r"bat|cmd|sh|ps1|service|container|ya?ml|ini|gguf|txt|json|kcpps|args"
_DEFAULT_CONTEXT = 32768
_EMBEDDING_ARCHITECTURES = {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "modern-bert", "gemma-embedding"}
_Reader = Callable[[str, ImportSource], ImportResult]
_ScriptReader = Callable[[str], tuple[list[ScriptCommand], ScriptAssignments]]


def import_source(source: str, *, name: str | None = None, known: ImportSource | None = None) -> list[ImportedProfile]:
    """The profiles in ``source``: a path, or the pasted text itself. ``known`` has the owner's engines.

    Raises GpuboxError if the file cannot be read, or if nothing in it starts llama-server.
    """
    path = source_path(source)
    return import_text(source, name=name, known=known) if path is None else import_file(path, name=name, known=known)


def import_file(path: Path, *, name: str | None = None, known: ImportSource | None = None) -> list[ImportedProfile]:
    """The profiles in a file. Raises as ``import_source``."""
    if path.suffix.lower() == ".gguf":
        known = known or ImportSource()
        model = absolute_path(known.model, (*known.folders, path.absolute().parent))
        return _select(ImportResult([_with(import_gguf(path), model=model)]), name)
    return import_text(_read(path), name=name, known=known, file=str(path.absolute()))


def import_text(
    text: str, *, name: str | None = None, known: ImportSource | None = None, file: str = ""
) -> list[ImportedProfile]:
    """The profiles in ``text``. Its format is recognized by the suffix of ``file``, else by the text.

    ``name`` names the only profile, or selects one of several. Notes that belong to no profile go to the first. Raises
    UsageError if the text is broken or starts no server.
    """
    path, known = Path(file), known or ImportSource()
    if len(text) > MAX_INPUT_CHARS or "\0" in text:
        raise UsageError(f"{path.name or 'This'} is not a launch command: it is binary or far too long.", _FORMATS)
    text = text.replace("\r\n", "\n").encode(errors="replace").decode()
    folders = (*known.folders, path.parent) if file else known.folders
    try:
        result = _reader(text, path)(text, replace(known, name=path.stem, path=file, folders=folders))
    except RecursionError:
        raise UsageError(
            "This is nested too deeply to be a launch command.", "Paste the command line itself."
        ) from None
    if not result.profiles:
        raise UsageError("There is nothing here that starts llama-server.", _FORMATS)
    return _select(result, name)


def import_gguf(path: Path) -> ImportedProfile:
    """A profile for one model file, with the model's context up to 32K; the engine decides the rest.

    Raises GpuboxError if the file is not a complete model.
    """
    model = check_gguf(path)
    if model.architecture == "clip":
        raise UsageError(f"{path} is a projector, not a model.", "Import the model; name this file as its `mmproj`.")
    return ImportedProfile(
        Profile(name=profile_name(path.name), model=str(path.absolute()), title=model.name, flags=default_flags(model))
    )


def default_flags(model: GgufFile) -> dict[str, FlagValue]:
    """The flags of a new profile for ``model``."""
    if model.architecture in _EMBEDDING_ARCHITECTURES:
        return {"embeddings": True}
    trained = model.metadata.get(f"{model.architecture}.context_length")
    context = min(trained, _DEFAULT_CONTEXT) if isinstance(trained, int) and trained > 0 else _DEFAULT_CONTEXT
    return {"ctx-size": context, "parallel": 1}  # llama-server's default of four slots would share the context


def source_path(source: str) -> Path | None:
    """The file that ``source`` names, or ``None`` for a pasted text. Raises UsageError if it cannot be read."""
    if not source.strip() or "\n" in source or len(source) > 1024 or source.lstrip().startswith("-"):
        return None
    try:
        path = Path(source.strip()).expanduser()
        mode = path.stat().st_mode
    except (OSError, RuntimeError, ValueError):  # too long a name, an unknown user
        path, mode = Path(source.strip()), 0
    if stat.S_ISREG(mode):
        return path
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder.", "Name a file in it.")
    if mode:
        raise UsageError(f"{path} is a pipe, a socket or a device.", "`gpubox import -` reads stdin.")
    looks_like_file = re.fullmatch(rf"\S+\.(?:{_SUFFIXES})|(?:\S*/)?Modelfile", source.strip(), re.I)
    if looks_like_file or ("/" in source and not re.search(r"\s", source.strip())):
        raise UsageError(f"{path} does not exist.", _FORMATS)
    return None


def _read(path: Path) -> str:
    try:
        raw = read_bytes(path, 4 * MAX_INPUT_CHARS)
    except NotRegularFile as error:
        problem = "is far too long for a launch command" if error.errno == errno.EFBIG else "is not a regular file"
        raise UsageError(f"{path} {problem}.", _FORMATS) from None
    except OSError as error:
        raise GpuboxError(f"{path} cannot be read: {error.strerror}.") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16, from Windows editors
        return raw.decode("utf-16", errors="replace")
    return raw.decode("utf-8-sig", errors="replace")


def _from_script(read: _ScriptReader, text: str, source: ImportSource) -> ImportResult:
    commands, assignments = read(text)
    result = import_commands(commands, source)
    texts = [command.line or command.text for command in result.commands]
    unused = assignments.unused(texts, [name for command in result.commands for name in command.env])
    result.notes += [omitted(assignment, "no command of a server uses it") for assignment in unused]
    return result


def _from_unit(text: str, source: ImportSource) -> ImportResult:
    unit = read_unit(text)
    result = import_commands(unit.commands, source)
    result.profiles = [_with(imported, title=unit.title, restart=unit.restart) for imported in result.profiles]
    result.notes += unit.notes
    return result


def _from_yaml(text: str, source: ImportSource) -> ImportResult:
    documents = read_yaml(text)
    if any(map(is_kubernetes, documents)):
        return _from_containers(*read_kubernetes(documents), source)
    result = ImportResult()
    for document in documents or [None]:
        if is_llama_swap(document):
            models, notes = read_llama_swap(document)
            result.notes += notes
            for model in models:
                part = import_commands([model.command], replace(source, name=model.name, port_word=PORT_MACRO))
                for imported in part.profiles:
                    imported = _with(
                        imported, title=model.title, description=model.description, aliases=model.aliases,
                        idle_seconds=model.idle_seconds,
                    )  # fmt: skip
                    result.profiles.append(replace(imported, notes=(*imported.notes, *model.notes)))
                if not part.profiles:
                    result.notes += [f"{note} (models.{model.name})" for note in part.notes]
        elif is_compose(document):
            part = _from_containers(*read_compose(document), source)
            result.profiles += part.profiles
            result.notes += part.notes
        else:
            keys = ", ".join(list(mapping_of(document))[:6])
            raise UsageError(
                "This YAML has no models, services or manifests" + (f" (it has {keys})." if keys else "."),
                "gpubox reads llama-swap's config.yaml (`models`), compose files and Kubernetes manifests.",
            )
    return result


def _from_quadlet(text: str, source: ImportSource) -> ImportResult:
    return _from_containers(*read_quadlet(text), source)


def _from_containers(servers: list[ServerInvocation], notes: list[str], source: ImportSource) -> ImportResult:
    return ImportResult([import_server(server, source) for server in servers], notes=notes)


def _from_args(text: str, source: ImportSource) -> ImportResult:
    return import_commands(read_args_file(text), source)


def _from_ini(text: str, source: ImportSource) -> ImportResult:
    return ImportResult([import_settings(preset, source) for preset in read_models_ini(text)])


def _from_modelfile(text: str, source: ImportSource) -> ImportResult:
    settings = read_modelfile(text)
    if not (settings.args or settings.notes or settings.system):
        return ImportResult()
    if source.name.lower() == "modelfile":
        source = replace(source, name="")
    return ImportResult([import_settings(settings, source)])


def _from_json(text: str, source: ImportSource) -> ImportResult:
    try:
        values: Any = json.loads(text)
    except ValueError:
        raise UsageError("This is not valid JSON.", "Check that the file is complete.") from None
    if is_kcpps(values):
        return ImportResult([import_server(read_kcpps(values), source)])
    if not is_lmstudio(values):
        raise UsageError("gpubox does not know which program this JSON is from.", _FORMATS)
    source = replace(source, name=source.name.removesuffix(".preset"))
    return ImportResult([import_settings(read_lmstudio(values, source.path), source)])


_from_shell = partial(_from_script, read_script)
_from_batch = partial(_from_script, read_batch)
_from_powershell = partial(_from_script, read_powershell)
_BY_SUFFIX: dict[str, _Reader] = {
    ".service": _from_unit, ".container": _from_quadlet, ".yaml": _from_yaml, ".yml": _from_yaml, ".ini": _from_ini,
    ".json": _from_json, ".kcpps": _from_json, ".bat": _from_batch, ".cmd": _from_batch, ".ps1": _from_powershell,
    ".args": _from_args, ".sh": _from_shell, ".bash": _from_shell, ".modelfile": _from_modelfile,
}  # fmt: skip
_BY_TEXT: tuple[tuple[Callable[[str], object], _Reader], ...] = (
    (looks_like_modelfile, _from_modelfile),
    (re.compile(r"^(?:models|services|apiVersion):", re.M).search, _from_yaml),
    (re.compile(r"\s*\{").match, _from_json),
    (looks_like_models_ini, _from_ini),
    (looks_like_args, _from_args),
    (looks_like_powershell, _from_powershell),
    (looks_like_batch, _from_batch),
)
"""(whether a text without a known suffix has the format, its reader), in this order."""


def _reader(text: str, path: Path) -> _Reader:
    if re.search(r"^\[Container\]\s*$", text, re.M):
        return _from_quadlet
    if re.search(r"^\[(?:Service|Unit)\]\s*$", text, re.M):
        return _from_unit
    if reader := _BY_SUFFIX.get(path.suffix.lower()):
        return reader
    if path.name.lower().startswith("modelfile"):
        return _from_modelfile
    return next((reader for matches, reader in _BY_TEXT if matches(text)), _from_shell)


def _with(imported: ImportedProfile, **changes: Any) -> ImportedProfile:
    """``imported`` with those ``changes`` of its profile that are not empty."""
    return replace(imported, profile=replace(imported.profile, **{k: v for k, v in changes.items() if v}))


def _distinct(profiles: list[ImportedProfile]) -> list[ImportedProfile]:
    """Each profile once, with a unique name."""
    distinct: list[ImportedProfile] = []
    for imported in profiles:
        if imported.profile in [other.profile for other in distinct]:
            continue
        names, name, number = {other.profile.name for other in distinct}, imported.profile.name, 2
        while name in names:
            name, number = f"{imported.profile.name}-{number}", number + 1
        distinct.append(_with(imported, name=name))
    return distinct


def _select(result: ImportResult, name: str | None) -> list[ImportedProfile]:
    profiles = _distinct(result.profiles)
    if name is not None and len(profiles) == 1:
        profiles = [replace(profiles[0], profile=replace(profiles[0].profile, name=name))]
    elif name is not None:
        selected = [imported for imported in profiles if imported.profile.name == profile_name(name)]
        if not selected:
            names = ", ".join(imported.profile.name for imported in profiles[:12])
            raise UsageError(f"SOURCE has no model {name!r}.", f"It has {len(profiles)}: {names}.")
        profiles = selected
    first = replace(profiles[0], notes=(*profiles[0].notes, *result.notes))
    return [replace(imported, notes=limit_notes(imported.notes)) for imported in (first, *profiles[1:])]
