"""Profiles out of what people have: a pasted command, a script, a unit, other programs' settings, a GGUF."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.batch import looks_like_batch, read_batch_file
from gpubox.interchange.compose import ContainerServer, is_compose, read_compose
from gpubox.interchange.import_notes import limit_notes
from gpubox.interchange.import_result import ImportResult, ImportSource, import_commands, import_server
from gpubox.interchange.koboldcpp import is_kcpps, read_kcpps
from gpubox.interchange.kubernetes import is_kubernetes, read_kubernetes
from gpubox.interchange.llama_swap import PORT_MACRO, is_llama_swap, read_llama_swap, unknown_yaml_error
from gpubox.interchange.llamafile import looks_like_args, read_args_file
from gpubox.interchange.lmstudio import is_lmstudio, read_lmstudio
from gpubox.interchange.modelfile import looks_like_modelfile, read_modelfile
from gpubox.interchange.models_ini import read_models_ini
from gpubox.interchange.powershell import looks_like_powershell, read_powershell
from gpubox.interchange.profile_draft import ImportedProfile, draft_from_arguments, profile_name
from gpubox.interchange.quadlet import read_quadlet
from gpubox.interchange.script import MAX_INPUT_CHARS, ScriptAssignments, ScriptCommand
from gpubox.interchange.shell import read_script
from gpubox.interchange.systemd import read_unit
from gpubox.interchange.yaml_text import YamlValue, read_yaml
from gpubox.models.gguf import GgufFile, check_gguf
from gpubox.profiles.profile import FlagValue, Profile

_NOTHING = "There is nothing here that starts llama-server."
_READS = (
    "gpubox reads a command line, .sh, .bat, .ps1, systemd and Quadlet units, compose files, Kubernetes manifests,"
    " llama-swap's config.yaml, models.ini, Modelfile, LM Studio's JSON, .kcpps, .args and .gguf files."
)
_SUFFIXES = r"bat|cmd|sh|ps1|service|container|ya?ml|ini|gguf|txt|json|kcpps|args"
_COMFORTABLE_CONTEXT = 32768
_POOLED = {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "modern-bert", "gemma-embedding"}
"""Architectures that embed and do not answer."""
_Reader = Callable[[str, ImportSource], ImportResult]


def import_source(source: str, *, name: str | None = None, known: ImportSource | None = None) -> list[ImportedProfile]:
    """The profiles in ``source``: a path, or the pasted text itself. ``known`` has the owner's engines.

    Raises GpuboxError where the file is missing or unreadable or nothing in it starts llama-server.
    """
    path = _path(source)
    if path is None:
        return import_text(source, name=name, known=known)
    if path.suffix.lower() == ".gguf":
        return _chosen(ImportResult([import_gguf(path)]), name)
    return import_text(_read(path), name=name, known=known, file=str(path.absolute()))


def import_text(
    text: str, *, name: str | None = None, known: ImportSource | None = None, file: str = ""
) -> list[ImportedProfile]:
    """The profiles in ``text``, whose format ``file``'s suffix tells, else its look.

    ``name`` names the one profile, or picks one of several. What belongs to none of them is noted in the first. Raises
    UsageError where the text is broken or starts nothing.
    """
    path = Path(file)
    if len(text) > MAX_INPUT_CHARS or "\0" in text:
        raise UsageError(f"{path.name or 'This'} is no launch command: it is binary or far too long.", _READS)
    text = text.replace("\r\n", "\n").encode(errors="replace").decode()
    try:
        reading = _reader(text, path)(text, replace(known or ImportSource(), name=path.stem, path=file))
    except RecursionError:
        raise UsageError(
            "This is nested too deeply to be a launch command.", "Paste the command line itself."
        ) from None
    if not reading.found:
        raise UsageError(_NOTHING, _READS)
    return _chosen(reading, name)


def import_gguf(path: Path) -> ImportedProfile:
    """A profile for one model file: its own context up to 32K, everything else left to the engine.

    Raises GpuboxError where the file is no whole model.
    """
    model = check_gguf(path)
    if model.architecture == "clip":
        raise UsageError(f"{path} is a projector, not a model.", "Import the model; name this file as its `mmproj`.")
    profile = Profile(
        name=profile_name(path.name), model=str(path.absolute()), title=model.name, flags=_sane_flags(model)
    )
    return ImportedProfile(profile)


def _sane_flags(model: GgufFile) -> dict[str, FlagValue]:
    if model.architecture in _POOLED:
        return {"embeddings": True}
    trained = model.metadata.get(f"{model.architecture}.context_length")
    context = min(trained, _COMFORTABLE_CONTEXT) if isinstance(trained, int) and trained > 0 else _COMFORTABLE_CONTEXT
    # One slot, because one owner asks: four would share the context between them.
    return {"ctx-size": context, "parallel": 1}


def _path(source: str) -> Path | None:
    """The file that ``source`` names, or ``None`` for a pasted text."""
    if not source.strip() or "\n" in source or len(source) > 1024 or source.lstrip().startswith("-"):
        return None
    try:
        path = Path(source.strip()).expanduser()
        mode = path.stat().st_mode
    except (OSError, RuntimeError, ValueError):  # no path: too long a name, a user that is not there
        path, mode = Path(source.strip()), 0
    if stat.S_ISREG(mode):
        return path
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder.", "Name a file in it.")
    if mode:
        raise UsageError(
            f"{path} is no ordinary file (a pipe, a socket or a device).", "`gpubox import -` reads stdin."
        )
    looks_like_file = re.fullmatch(rf"\S+\.(?:{_SUFFIXES})|(?:\S*/)?Modelfile", source.strip(), re.I)
    if looks_like_file or ("/" in source and not re.search(r"\s", source.strip())):
        raise UsageError(f"{path} does not exist.", _READS)
    return None


def _read(path: Path) -> str:
    try:
        # A pipe that took the file's place since it was looked at must not be waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{path} is no ordinary file.", "`gpubox import -` reads stdin.")
            raw = file.read(4 * MAX_INPUT_CHARS + 1)
    except OSError as error:
        raise GpuboxError(f"{path} cannot be read: {error.strerror}.") from None
    if len(raw) > 4 * MAX_INPUT_CHARS:
        raise UsageError(f"{path} is far too long for a launch command.", _READS)
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as Windows' editors save scripts
        return raw.decode("utf-16", errors="replace")
    return raw.decode("utf-8-sig", errors="replace")


def _reader(text: str, path: Path) -> _Reader:
    suffix = path.suffix.lower()
    by_suffix: dict[str, _Reader] = {
        ".service": _from_unit, ".container": _from_quadlet, ".yaml": _from_yaml, ".yml": _from_yaml,
        ".ini": _from_ini, ".json": _from_json, ".kcpps": _from_json, ".bat": _from_batch, ".cmd": _from_batch,
        ".ps1": _from_powershell, ".args": _from_args, ".sh": _from_shell, ".bash": _from_shell,
        ".modelfile": _from_modelfile,
    }  # fmt: skip
    if re.search(r"^\[Container\]\s*$", text, re.M):
        return _from_quadlet
    if re.search(r"^\[(?:Service|Unit)\]\s*$", text, re.M):
        return _from_unit
    if suffix in by_suffix:
        return by_suffix[suffix]
    looks: list[tuple[bool, _Reader]] = [
        (path.name.lower().startswith("modelfile") or looks_like_modelfile(text), _from_modelfile),
        (bool(re.search(r"^(?:models|services|apiVersion):", text, re.M)), _from_yaml),
        (text.lstrip().startswith("{"), _from_json),
        (_looks_like_ini(text), _from_ini),
        (looks_like_args(text), _from_args),
        (looks_like_powershell(text), _from_powershell),
        (looks_like_batch(text), _from_batch),
    ]
    return next((read for looks_so, read in looks if looks_so), _from_shell)


def _looks_like_ini(text: str) -> bool:
    """Whether a section comes before anything but comments and ``version = 1``."""
    for line in map(str.strip, text.splitlines()):
        if line and not re.fullmatch(r"[;#].*|version\s*=.*", line):
            return bool(re.fullmatch(r"\[[\w*][^\]]*\]", line))
    return False


def _from_shell(text: str, source: ImportSource) -> ImportResult:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("```"))
    return _scripted(*read_script("\n".join(lines)), source)


def _from_batch(text: str, source: ImportSource) -> ImportResult:
    return _scripted(*read_batch_file(text), source)


def _from_powershell(text: str, source: ImportSource) -> ImportResult:
    return _scripted(*read_powershell(text), source)


def _scripted(commands: list[ScriptCommand], assigned: ScriptAssignments, source: ImportSource) -> ImportResult:
    reading = import_commands(commands, source)
    texts = [command.line or command.text for command in reading.servers]
    unused = assigned.unused(texts, [name for command in reading.servers for name in command.env])
    reading.leave(unused, "no server here uses it")
    return reading


def _from_args(text: str, source: ImportSource) -> ImportResult:
    return import_commands(read_args_file(text), source)


def _from_unit(text: str, source: ImportSource) -> ImportResult:
    unit = read_unit(text)
    reading = import_commands(unit.commands, source)
    reading.found = [_with(imported, title=unit.title, restart=unit.restart) for imported in reading.found]
    reading.left += unit.notes
    return reading


def _from_quadlet(text: str, source: ImportSource) -> ImportResult:
    return _contained(*read_quadlet(text), source)


def _from_yaml(text: str, source: ImportSource) -> ImportResult:
    documents: list[YamlValue] = read_yaml(text)
    if any(map(is_kubernetes, documents)):
        return _contained(*read_kubernetes(documents), source)
    reading = ImportResult()
    for document in documents:
        if is_llama_swap(document):
            models, left = read_llama_swap(document)
            reading.left += left
            for model in models:
                one = import_commands([model.command], source, name=model.name, port_word=PORT_MACRO)
                reading.found += [
                    replace(_with(i, title=model.title, description=model.description), notes=(*i.notes, *model.notes))
                    for i in one.found
                ]
                if not one.found:
                    reading.left += [f"{note} (models.{model.name})" for note in one.left]
        elif is_compose(document):
            part = _contained(*read_compose(document), source)
            reading.found += part.found
            reading.left += part.left
        else:
            raise unknown_yaml_error(document)
    if not documents:
        raise unknown_yaml_error(None)
    return reading


def _contained(servers: list[ContainerServer], left: list[str], source: ImportSource) -> ImportResult:
    found = []
    for name, server, command, restart in servers:
        imported = import_server(server, command, source, name=name)
        if restart:
            imported = replace(
                imported, notes=(*imported.notes, f"Its restart ({restart}) is restart = true in the profile.")
            )
        found.append(_with(imported, restart=bool(restart), title=server.container.title if server.container else ""))
    return ImportResult(found, left=left)


def _from_ini(text: str, source: ImportSource) -> ImportResult:
    found = []
    for preset in read_models_ini(text):
        draft = draft_from_arguments(preset.args, {}, preset.notes, target=source.target(""))
        draft.note_address()
        found.append(ImportedProfile(draft.profile(preset.name), tuple(draft.notes)))
    return ImportResult(found)


def _from_modelfile(text: str, source: ImportSource) -> ImportResult:
    found = read_modelfile(text)
    if not (found.args or found.notes or found.system):
        return ImportResult()
    draft = draft_from_arguments(found.args, {}, found.notes, target=source.target(""))
    draft.note_address()
    name = "" if source.name.lower() in {"modelfile", ""} else source.name
    return ImportResult([ImportedProfile(draft.profile(name, system=found.system), tuple(draft.notes))])


def _from_json(text: str, source: ImportSource) -> ImportResult:
    try:
        values: Any = json.loads(text)
    except ValueError:
        raise UsageError("This is not valid JSON.", "Is the file whole?") from None
    if is_kcpps(values):
        return ImportResult([import_server(read_kcpps(values), ScriptCommand((), {}), source)])
    if not is_lmstudio(values):
        raise UsageError("This JSON holds settings of no program that gpubox knows.", _READS)
    settings = read_lmstudio(values, source.path)
    draft = draft_from_arguments(settings.args, {}, settings.notes, target=source.target(""))
    draft.note_address()
    profile = draft.profile(settings.name or source.name.removesuffix(".preset"), system=settings.system)
    return ImportResult([ImportedProfile(profile, tuple(draft.notes))])


def _with(imported: ImportedProfile, **changes: Any) -> ImportedProfile:
    """``imported`` with what ``changes`` say, as far as they say anything."""
    return replace(imported, profile=replace(imported.profile, **{k: v for k, v in changes.items() if v}))


def _distinct(found: list[ImportedProfile]) -> list[ImportedProfile]:
    """Each profile once, under a name of its own."""
    kept: list[ImportedProfile] = []
    for imported in found:
        if imported.profile in [other.profile for other in kept]:
            continue
        taken, name, number = {other.profile.name for other in kept}, imported.profile.name, 2
        while name in taken:
            name, number = f"{imported.profile.name}-{number}", number + 1
        kept.append(replace(imported, profile=replace(imported.profile, name=name)))
    return kept


def _chosen(reading: ImportResult, name: str | None) -> list[ImportedProfile]:
    found = _distinct(reading.found)
    if name is not None and len(found) == 1:
        found = [replace(found[0], profile=replace(found[0].profile, name=name))]
    elif name is not None:
        picked = [imported for imported in found if imported.profile.name == profile_name(name)]
        if not picked:
            names = ", ".join(imported.profile.name for imported in found[:12])
            raise UsageError(f"There is no {name!r} in it.", f"It has {len(found)} profiles: {names}.")
        found = picked
    first = replace(found[0], notes=(*found[0].notes, *reading.left))
    return [replace(imported, notes=limit_notes(imported.notes)) for imported in (first, *found[1:])]
