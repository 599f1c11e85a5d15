"""Makes profiles from what people have: a pasted command, a script, a unit, other programs' settings, a GGUF file."""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange import batch, compose, koboldcpp, llama_swap, lmstudio, modelfile, models_ini, shell, systemd
from gpubox.interchange.conversion import ImportSource, absolute_path, profiles_of, with_changes
from gpubox.interchange.format import Format, Reading
from gpubox.interchange.import_notes import limit_notes
from gpubox.interchange.profile_draft import ImportedProfile, profile_name
from gpubox.interchange.script import MAX_INPUT_CHARS
from gpubox.interchange.yaml_text import mapping_of, omitted_leaves, read_yaml
from gpubox.models.gguf import SHARD_NAME, GgufFile, check_gguf
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.profiles.writer import profile_toml
from gpubox.storage import NotRegularFile, read_bytes, read_json

FORMATS: list[Format] = [
    shell.FORMAT,
    systemd.QUADLET,
    systemd.UNIT,
    modelfile.FORMAT,
    compose.FORMAT,
    llama_swap.FORMAT,
    lmstudio.FORMAT,
    koboldcpp.FORMAT,
    models_ini.FORMAT,
    batch.FORMAT,
]
"""In the order in which a text is tried; what has none of the formats is read as the first one."""
_DEFAULT_CONTEXT = 32768
_EMBEDDING_ARCHITECTURES = {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "modern-bert", "gemma-embedding"}
_SYNTAXES: dict[str, tuple[str, Callable[[str], object]]] = {
    "yaml": (r".*\.ya?ml", re.compile(r"^(?:models|services):", re.M).search),
    "json": (r".*\.(?:json|kcpps)", re.compile(r"\s*\{").match),
}
"""Syntax -> (regular expression of file names, whether a text without a known name has it)."""


@dataclass(frozen=True, slots=True)
class NewProfile:
    """A profile that is not written yet. ``name`` is a proposal."""

    name: str
    text: str


def _hint() -> str:
    return f"gpubox reads {', '.join(form.title for form in FORMATS)} and .gguf files."


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
        return _select([with_changes(import_gguf(path), {"model": model})], [], name)
    return import_text(_read(path), name=name, known=known, file=str(path.absolute()))


def import_text(
    text: str, *, name: str | None = None, known: ImportSource | None = None, file: str = ""
) -> list[ImportedProfile]:
    """The profiles in ``text``. Its format is recognized by the suffix of ``file``, else by the text.

    ``name`` names the only profile, or selects one of several. Notes that belong to no profile go to the first. Raises
    UsageError if the text is broken or starts no server.
    """
    path, known = Path(file), known or ImportSource()
    if not file and re.fullmatch(r"(hf|demo):[^\s\"]+", text.strip()):
        return [ImportedProfile(Profile(name or profile_name(text), model=text.strip()))]
    if len(text) > MAX_INPUT_CHARS or "\0" in text:
        raise UsageError(f"{path.name or 'This'} is not a launch command: it is binary or far too long.", _hint())
    text = text.replace("\r\n", "\n").encode(errors="replace").decode()
    folders = (*known.folders, path.parent) if file else known.folders
    programs = tuple(form.program for form in FORMATS if form.program)
    try:
        reading = read_text(text, file)
        profiles, notes = profiles_of(reading, replace(known, name=path.stem, folders=folders, programs=programs))
    except RecursionError:
        raise UsageError(
            "This is nested too deeply to be a launch command.", "Paste the command line itself."
        ) from None
    if not profiles:
        raise UsageError("There is nothing here that starts llama-server.", _hint())
    return _select(profiles, notes, name)


def read_text(text: str, file: str = "") -> Reading:
    """What ``text`` holds, by the first of FORMATS that decides, knows the name ``file``, or recognizes the text.

    Raises UsageError if the text is broken, or a YAML or JSON text of an unknown program.
    """
    name = Path(file).name.lower()
    texts = [form for form in FORMATS if form.syntax == "text"]
    if form := next((form for form in texts if form.decides and form.matches(text)), None):
        return form.read(text, file)
    if form := next((form for form in texts if form.files and re.fullmatch(form.files, name)), None):
        return form.read(text, file)
    for syntax, (files, _) in _SYNTAXES.items():
        if re.fullmatch(files, name):
            return _read_documents(text, syntax, file)
    for syntax, (_, matches) in _SYNTAXES.items():
        if matches(text):
            return _read_documents(text, syntax, file)
    form = next((form for form in texts if form.matches(text)), FORMATS[0])
    return form.read(text, file)


def _read_documents(text: str, syntax: str, file: str) -> Reading:
    """The documents of a YAML or JSON text, each read by the first format that knows it."""
    documents: list[Any] = list(read_yaml(text)) if syntax == "yaml" else [_json(text)]
    forms = [form for form in FORMATS if form.syntax == syntax]
    known = {form.title: [document for document in documents if form.matches(document)] for form in forms}
    result = Reading()
    for form in forms:
        if own := known[form.title]:
            reading = form.read(own, file)
            result.entries = [*result.entries, *reading.entries]
            result.notes += reading.notes
    unknown = [document for document in documents if not any(document in own for own in known.values())]
    if len(unknown) == len(documents):
        keys = ", ".join(list(mapping_of(documents[0] if documents else None))[:6])
        has = f": it has {keys}" if keys else ""
        raise UsageError(f"gpubox does not know which program this {syntax.upper()} is from{has}.", _hint())
    for document in unknown:
        result.notes += omitted_leaves(document)
    return result


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        raise UsageError("This is not valid JSON.", "Check that the file is complete.") from None


def draft_profile(source: str, config: Config, *, name: str | None = None) -> NewProfile:
    """The profile of a .gguf file, of ``hf:USER/REPO:QUANT``, or of a llama-server command line.

    Raises UsageError for anything else, and if ``source`` holds several profiles.
    """
    profiles = import_source(source, name=name, known=ImportSource(engines=config.engines, folders=(Path.cwd(),)))
    if len(profiles) != 1:
        raise UsageError(f"{source} holds {len(profiles)} profiles.", "`gpubox import` imports them.")
    (imported,) = profiles
    text = profile_toml(imported.profile, "\n".join(f"! {note}" for note in imported.notes))
    return NewProfile(imported.profile.name, text)


def import_gguf(path: Path) -> ImportedProfile:
    """A profile for one model file, with the model's context up to 32K; the engine decides the rest.

    Raises GpuboxError if the file is not a complete model.
    """
    model = check_gguf(path)
    if model.architecture == "clip":
        raise UsageError(f"{path} is a projector, not a model.", "Import the model; name this file as its `mmproj`.")
    title = SHARD_NAME.sub("", path.name).removesuffix(".gguf")
    return ImportedProfile(Profile(profile_name(path.name), str(path.absolute()), title, flags=default_flags(model)))


def default_flags(model: GgufFile) -> dict[str, FlagValue]:
    """The flags of a new profile for ``model``."""
    if model.architecture in _EMBEDDING_ARCHITECTURES:
        return {"embeddings": True}
    trained = model.metadata.get(f"{model.architecture}.context_length")
    context = min(trained, _DEFAULT_CONTEXT) if isinstance(trained, int) and trained > 0 else _DEFAULT_CONTEXT
    return {"ctx-size": context, "parallel": 1}  # llama-server's default of four slots would share the context


def source_path(source: str) -> Path | None:
    """The file that ``source`` names, or ``None`` for a pasted text. Raises UsageError if it cannot be read."""
    if not source.strip() or "\n" in source or len(source) > 1024 or source.lstrip().startswith(("-", "hf:", "demo:")):
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
    files = [form.files for form in FORMATS if form.files] + [files for files, _ in _SYNTAXES.values()]
    name = Path(source.strip()).name.lower()
    known_name = any(re.fullmatch(pattern, name) for pattern in (*files, r".*\.(?:gguf|txt)"))
    if (known_name or "/" in source) and not re.search(r"\s", source.strip()):
        raise UsageError(f"{path} does not exist.", _hint())
    return None


def _read(path: Path) -> str:
    try:
        raw = read_bytes(path, 4 * MAX_INPUT_CHARS)
    except NotRegularFile as error:
        problem = "is far too long for a launch command" if error.errno == errno.EFBIG else "is not a regular file"
        raise UsageError(f"{path} {problem}.", _hint()) from None
    except OSError as error:
        raise GpuboxError(f"{path} cannot be read: {error.strerror}.") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16, from Windows editors
        return raw.decode("utf-16", errors="replace")
    return raw.decode("utf-8-sig", errors="replace")


def _distinct(profiles: list[ImportedProfile]) -> list[ImportedProfile]:
    """Each profile once, with a unique name."""
    distinct: list[ImportedProfile] = []
    for imported in profiles:
        if imported.profile in [other.profile for other in distinct]:
            continue
        names, name, number = {other.profile.name for other in distinct}, imported.profile.name, 2
        while name in names:
            name, number = f"{imported.profile.name}-{number}", number + 1
        distinct.append(with_changes(imported, {"name": name}))
    return distinct


def _select(profiles: list[ImportedProfile], notes: list[str], name: str | None) -> list[ImportedProfile]:
    profiles = _distinct(profiles)
    if name is not None and len(profiles) == 1:
        profiles = [replace(profiles[0], profile=replace(profiles[0].profile, name=name))]
    elif name is not None:
        selected = [imported for imported in profiles if imported.profile.name == profile_name(name)]
        if not selected:
            names = ", ".join(imported.profile.name for imported in profiles[:12])
            raise UsageError(f"SOURCE has no model {name!r}.", f"It has {len(profiles)}: {names}.")
        profiles = selected
    first = replace(profiles[0], notes=(*profiles[0].notes, *notes))
    return [replace(imported, notes=limit_notes(imported.notes)) for imported in (first, *profiles[1:])]
