"""Profiles out of what people have: a pasted command, a script, a unit, llama-swap, models.ini, a GGUF."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.batch import looks_like_batch, read_batch
from gpubox.interchange.commandline import Imported, engine_of, profile_name, read_arguments
from gpubox.interchange.limits import MAX_TEXT
from gpubox.interchange.llama_swap import PORT_MACRO, read_llama_swap
from gpubox.interchange.locate import Found, find_server, only_flags
from gpubox.interchange.models_ini import read_models_ini
from gpubox.interchange.shell import Command, read_shell
from gpubox.interchange.systemd import read_unit
from gpubox.models.gguf import GgufFile, check_gguf
from gpubox.profiles.model import FlagValue, Profile

Engines = Mapping[str, str]
"""Engine name -> path of its binary, as config.toml has them."""
_NOTHING = "There is nothing here that starts llama-server."
_READS = "gpubox reads a command line, .sh, .bat, a systemd unit, llama-swap's config.yaml, models.ini and .gguf files."
_COMFORTABLE_CONTEXT = 32768
_POOLED = {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "modern-bert", "gemma-embedding"}
"""Architectures that embed and do not answer."""


def import_source(source: str, *, name: str | None = None, engines: Engines | None = None) -> list[Imported]:
    """The profiles in ``source``: a path, or the pasted text itself.

    Raises GpuboxError where the file is missing or unreadable or nothing in it starts llama-server.
    """
    path = _path(source)
    if path is None:
        return import_text(source, name=name, engines=engines)
    if path.suffix.lower() == ".gguf":
        return _chosen([import_gguf(path)], name)
    return import_text(_read(path), name=name, engines=engines, file=path.name)


def import_text(
    text: str, *, name: str | None = None, engines: Engines | None = None, file: str = ""
) -> list[Imported]:
    """The profiles in ``text``, whose format ``file``'s suffix tells, else its look.

    ``name`` names the one profile, or picks one of several. Raises UsageError where it is broken or starts nothing.
    """
    if len(text) > MAX_TEXT or "\0" in text:
        raise UsageError(f"{file or 'This'} is no launch command: it is binary or far too long.", _READS)
    text = text.replace("\r\n", "\n").encode(errors="replace").decode()
    read = _reader(text, Path(file).suffix.lower())
    try:
        found = read(text, Path(file).stem, engines or {})
    except RecursionError:
        raise UsageError(
            "This is nested too deeply to be a launch command.", "Paste the command line itself."
        ) from None
    if not found:
        raise UsageError(_NOTHING, _READS)
    return _chosen(found, name)


def import_gguf(path: Path) -> Imported:
    """A profile for one model file: its own context up to 32K, everything else left to the engine.

    Raises GpuboxError where the file is no whole model.
    """
    model = check_gguf(path)
    if model.architecture == "clip":
        raise UsageError(f"{path} is a projector, not a model.", "Import the model; name this file as its `mmproj`.")
    profile = Profile(
        name=profile_name(path.name), model=str(path.absolute()), title=model.name, flags=_sane_flags(model)
    )
    return Imported(profile)


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
        if path.is_file():
            return path
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", "Name a file in it.")
    except (OSError, RuntimeError):  # no path: too long a name, a user that is not there
        return None
    looks_like_file = re.fullmatch(r"\S+\.(?:bat|cmd|sh|service|ya?ml|ini|gguf|txt)", source.strip(), re.I)
    if looks_like_file or ("/" in source and not re.search(r"\s", source.strip())):
        raise UsageError(f"{path} does not exist.", _READS)
    return None


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > 4 * MAX_TEXT:
            raise UsageError(f"{path} is far too long for a launch command.", _READS)
        raw = path.read_bytes()
    except OSError as error:
        raise GpuboxError(f"{path} cannot be read: {error.strerror}.") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as Windows' editors save scripts
        return raw.decode("utf-16", errors="replace")
    return raw.decode("utf-8-sig", errors="replace")


def _reader(text: str, suffix: str) -> Callable[[str, str, Engines], list[Imported]]:
    if suffix in {".service"} or re.search(r"^\[(?:Service|Unit)\]\s*$", text, re.M):
        return _from_unit
    if suffix in {".yaml", ".yml"} or re.search(r"^models:\s*(?:#.*)?$", text, re.M):
        return _from_llama_swap
    if suffix == ".ini" or _looks_like_ini(text):
        return _from_ini
    if suffix in {".bat", ".cmd"} or (suffix not in {".sh", ".bash"} and looks_like_batch(text)):
        return _from_batch
    return _from_shell


def _looks_like_ini(text: str) -> bool:
    """Whether a section comes before anything but comments and ``version = 1``."""
    for line in map(str.strip, text.splitlines()):
        if line and not re.fullmatch(r"[;#].*|version\s*=.*", line):
            return bool(re.fullmatch(r"\[[\w*][^\]]*\]", line))
    return False


def _from_shell(text: str, name: str, engines: Engines) -> list[Imported]:
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("```"))
    return _from_commands(read_shell("\n".join(lines)), name, engines)


def _from_batch(text: str, name: str, engines: Engines) -> list[Imported]:
    return _from_commands(read_batch(text), name, engines)


def _from_unit(text: str, name: str, engines: Engines) -> list[Imported]:
    commands, notes = read_unit(text)
    found = _from_commands(commands, name, engines)
    return [replace(imported, notes=(*imported.notes, *notes)) for imported in found]


def _from_llama_swap(text: str, name: str, engines: Engines) -> list[Imported]:
    found: list[Imported] = []
    for model in read_llama_swap(text):
        for imported in _from_commands([model.command], model.name, engines, PORT_MACRO):
            profile = replace(imported.profile, title=model.title, description=model.description)
            found.append(Imported(profile, (*imported.notes, *model.notes)))
    return found


def _from_ini(text: str, name: str, engines: Engines) -> list[Imported]:
    found = []
    for preset in read_models_ini(text):
        draft = read_arguments(preset.args, {}, preset.notes)
        found.append(Imported(draft.profile(preset.name), tuple(draft.notes)))
    return found


def _from_commands(commands: Iterable[Command], name: str, engines: Engines, port_word: str = "") -> list[Imported]:
    """``port_word`` is what stands for a port that another program chooses at each start."""
    commands = list(commands)
    found: list[Imported] = []
    for server in filter(None, map(find_server, commands)):
        engine, note = engine_of(server.binary, engines)
        notes = (*server.notes, *_open_questions(server, port_word), *([note] if note else []))
        draft = read_arguments(server.args, server.env, notes, port_word)
        found.append(Imported(draft.profile(name, engine=engine), tuple(draft.notes)))
    if not found and (flags := only_flags(commands)):
        draft = read_arguments(flags.words, {})
        found.append(Imported(draft.profile(name), tuple(draft.notes)))
    return found


def _open_questions(server: Found, port_word: str) -> Iterator[str]:
    if raws := [raw for raw in server.unresolved if raw != port_word]:
        shown = ", ".join(raw if len(raw) < 40 else f"{raw[:36]}..." for raw in raws[:5])
        yield f"Not resolved, because gpubox runs nothing: {shown}."
    if server.branched:
        names = ", ".join(server.branched)
        yield f"The script sets {names} in branches (if, case); the last value written was taken: check it."


def _distinct(found: list[Imported]) -> list[Imported]:
    """Each profile once, under a name of its own."""
    kept: list[Imported] = []
    for imported in found:
        if imported.profile in [other.profile for other in kept]:
            continue
        taken, name, number = {other.profile.name for other in kept}, imported.profile.name, 2
        while name in taken:
            name, number = f"{imported.profile.name}-{number}", number + 1
        kept.append(replace(imported, profile=replace(imported.profile, name=name)))
    return kept


def _chosen(found: list[Imported], name: str | None) -> list[Imported]:
    found = _distinct(found)
    if name is None:
        return found
    if len(found) == 1:
        return [replace(found[0], profile=replace(found[0].profile, name=name))]
    if picked := [imported for imported in found if imported.profile.name == profile_name(name)]:
        return picked
    names = ", ".join(imported.profile.name for imported in found[:12])
    raise UsageError(f"There is no {name!r} in it.", f"It has {len(found)} profiles: {names}.")
