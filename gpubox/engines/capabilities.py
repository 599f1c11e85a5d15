"""The options of an engine, parsed from its own ``--help``. Pure.

The format is that of llama.cpp's common/arg.cpp ``common_arg::to_string`` (build 11434): comma-separated names from
column 0, the placeholder of the value after the last name, the help text from column 40. ik_llama.cpp writes its help
by hand (common/common.cpp, 8337e4cd3): indented, long names in a column of their own, not every placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from gpubox.engines.find import Engine
from gpubox.engines.replaced_flags import advice_for
from gpubox.profiles.argv import FLAGS_WITHOUT_NO
from gpubox.profiles.profile import FlagValue
from gpubox.toml_table import closest_match

_NAME = re.compile(r"--?[A-Za-z][\w-]*")
_HEAD = re.compile(r"( *)--?[A-Za-z]")
_HEAD_SHIFT = 12
"""So much farther than the first name of another option may a name be indented; continued help is farther right."""
_REPEATED_VALUE = re.compile(r"^((?:--?[\w-]+,)*--?[A-Za-z][\w-]*) ([^\s,]+), *(?=-.* \2$)")
_NAMES = re.compile(r"^(?:--?[A-Za-z][\w-]*,\s+)*")
_ALLOWED = re.compile(r"allowed values: *([^()\n]+)")
_BRACED = re.compile(r"^[\[{<(]([\w+-]+(?:[|,][\w+-]+)+)[\]}>)]$|^([a-z][\w+-]*(?:,[a-z][\w+-]*){2,})$")
_ENV = re.compile(r"\(env: *(\w+)\)")
_FOLDER = re.compile(r"PATH|DIR|FOLDER", re.I)
DISK_CACHES = ("cache-disk", "cache-disk-dir", "cache-disk-path", "kv-cache-dir", "prompt-cache-dir")
"""What forks and pull requests of llama.cpp call a prompt cache on disk."""
_REPEATABLE = re.compile(r"can be repeated|specified multiple times")
_REMOVED = re.compile(r"the argument has been removed\.? *(.*)", re.S)


@dataclass(frozen=True, slots=True)
class EngineOption:
    """One option of the engine. Names have no leading dashes."""

    names: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    """The names that switch it off: ``no-mmap`` for ``mmap``."""
    value: str | None = None
    """The placeholder of its value in the help; ``None`` for a switch."""
    allowed: tuple[str, ...] = ()
    env: str | None = None
    removed: str | None = None
    """For an option that the help lists as removed: what to use instead."""
    help: str = ""
    long: str = ""
    """The canonical spelling: the one of the environment variable (``ctx-checkpoints`` of ``ctx-checkpoints,
    swa-checkpoints``), else the last ``--`` name (``n-gpu-layers`` of ``ngl, gpu-layers, n-gpu-layers``)."""
    loose: bool = False
    """Whether it takes a value is unknown: its help, written by hand, shows none."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the engine does not accept one flag of a profile."""

    flag: str
    why: str
    hint: str = ""
    needs_fork: bool = False

    @property
    def short(self) -> str:
        """The reason in a few words, the cure first."""
        if self.hint.endswith("?"):
            return f"unknown flag {self.flag}; {self.hint}"
        return f"{self.flag} {self.hint or self.why}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine reports about itself: its version and options."""

    version: str
    options: tuple[EngineOption, ...]
    by_name: Mapping[str, EngineOption] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, version: str, options: tuple[EngineOption, ...]) -> Capabilities:
        """The capabilities with an index of all names."""
        # the first of a name counts: ik_llama.cpp lists the options of its other programs after those of the server
        return cls(version, options, {name: o for o in reversed(options) for name in (*o.names, *o.negatives)})

    def option(self, name: str) -> EngineOption | None:
        """The option called ``name``: any alias, with or without dashes, also with ``_`` for ``-``."""
        return self.by_name.get(name.lstrip("-").replace("_", "-"))

    def canonical(self, name: str) -> str:
        """The canonical spelling of an alias; ``name`` itself if the engine has no such option."""
        option = self.option(name)
        bare = name.lstrip("-").replace("_", "-")
        if option is None:
            return bare
        return f"no-{option.long}" if bare in option.negatives else option.long


def engine_label(path: Path | str | None, version: str) -> str:
    """``llama-server b11434``: the binary's name and the build, or the version if it has no build number."""
    name = PurePath(path or "").name.split(".")[0]
    build = re.search(r"\(build ([1-9]\d*)", version)
    label = f"b{build[1]}" if build else version.split(" (")[0].removeprefix(name).strip()
    return f"{name} {label}".strip()


def engine_words(engine: Engine, version: str) -> str:
    """``mine (llama-server b11434)``; an engine that is called as its binary is named once."""
    label = engine_label(engine.path, version)
    return label if label.split(" ")[0] == engine.name else f"{engine.name} ({label})"


def parse_help(text: str, version: str = "") -> Capabilities:
    """The capabilities in a ``--help`` text. Skips lines that it does not understand."""
    blocks = _blocks(text)
    loose = any(lines[0].startswith(" ") for lines in blocks)
    return Capabilities.of(version, tuple(option for lines in blocks if (option := _parse_block(lines, loose=loose))))


def find_refusals(capabilities: Capabilities, flags: Mapping[str, FlagValue]) -> list[Refusal]:
    """The flags that the engine refuses according to its help. The engine's own check may find more.

    A help that is written by hand omits names that the engine accepts, so it says nothing about unknown ones.
    """
    refusals: list[Refusal] = []
    complete = not any(option.loose for option in capabilities.options)
    for name, value in flags.items():
        option = capabilities.option(name)
        if option is None and value is False:
            option = capabilities.option(f"no-{name}")
        if option is None and not complete:
            continue
        if option is None:
            advice, fork = advice_for(name, None)
            near = closest_match(name, capabilities.by_name)
            hint = advice or (f"did you mean {near}?" if near else "")
            refusals.append(Refusal(name, "this engine has no such flag", hint, fork))
        elif option.removed is not None:
            refusals.append(Refusal(name, "was removed from this engine", option.removed))
        elif shape := _bad_shape(option, value):
            refusals.append(Refusal(name, *shape))
        elif bad := _bad_value(option, value):
            advice, fork = advice_for(name, bad)
            hint = advice or f"allowed: {', '.join(option.allowed)}"
            refusals.append(Refusal(name, f"does not accept {bad!r}", hint, fork))
    return refusals


def repeated_flags(capabilities: Capabilities) -> frozenset[str]:
    """The flags that must be repeated for each value, according to the help. Newer builds accept a list instead."""
    return frozenset(option.long for option in capabilities.options if _REPEATABLE.search(option.help))


def reads_key_variable(capabilities: Capabilities) -> bool:
    """Whether the engine reads LLAMA_API_KEY, as llama.cpp does; ik_llama.cpp has only ``--api-key-file``."""
    option = capabilities.option("api-key")
    return option is None or option.env is not None or capabilities.option("api-key-file") is None


def added_flags(
    capabilities: Capabilities, flags: Mapping[str, FlagValue], kept_kv: Path | None = None, *, name: str = ""
) -> dict[str, FlagValue]:
    """The flags that gpubox adds if the profile does not set them and the engine has them.

    gpubox reads the buffer sizes from the log (``-lv 4``, without escape codes) and counters from /metrics and /slots.
    ``kept_kv``: the folder for KV caches. ``name``: what the server calls its model in its
    answers; without it that is the path of the file, which clients need not know.

    ``--no-cache-idle-slots`` is not among them: more slots could be saved, but conversations that together need more
    than the context lose their prompts (build 11434, three of 0.4 context: 78 % of the tokens read again, else 34 %).
    """
    defaults: dict[str, FlagValue] = {
        "log-verbosity": 4, "log-colors": "off", "metrics": True, "slots": True, "jinja": True,
    }  # fmt: skip
    if kept_kv:
        defaults |= kept_kv_flag(capabilities, kept_kv)
    if name:
        defaults["alias"] = name
    given = {capabilities.canonical(flag).removeprefix("no-") for flag in flags}
    return {
        flag: value
        for flag, value in defaults.items()
        if (option := capabilities.option(flag)) and not option.removed and option.long not in given
        and not (flag == "log-verbosity" and capabilities.canonical("verbose") in given)
    }  # fmt: skip


def kept_kv_flag(capabilities: Capabilities, folder: Path) -> dict[str, FlagValue]:
    """The flag with which KV caches are kept in ``folder``: the engine's own prompt cache on disk, if its help has one
    that takes a folder (forks, and pull requests of llama.cpp); else the slot files that gpubox writes and reads."""
    for name in DISK_CACHES:
        option = capabilities.option(name)
        if option and not option.removed and _FOLDER.search(option.value or ""):
            return {option.long: str(folder)}
    return {"slot-save-path": str(folder)}


def _blocks(text: str) -> list[list[str]]:
    blocks: list[list[str]] = []
    lines = text.expandtabs().splitlines()
    farthest = min((len(match[1]) for line in lines if (match := _HEAD.match(line))), default=0) + _HEAD_SHIFT
    for line in lines:
        if (match := _HEAD.match(line)) and len(match[1]) <= farthest:
            blocks.append([line])
        elif line.startswith(" ") and blocks:
            blocks[-1].append(line)
    return blocks


def _parse_block(lines: list[str], *, loose: bool) -> EngineOption | None:
    # "-c,    --ctx-size N    help": short names are padded after the comma, so remove that before splitting
    head, _, rest = _NAMES.sub(lambda names: re.sub(r",\s+", ",", names[0]), lines[0].strip()).partition("  ")
    head = _REPEATED_VALUE.sub(r"\1,", head)  # "-ctx-ckpt N, --ctx-checkpoints N"
    head = re.sub(r"(--[\w-]+)\(s\)", r"\1,\1s", head)  # "--embedding(s)"
    names: list[str] = []
    position = 0
    while match := _NAME.match(head, position):
        names.append(match.group())
        position = match.end()
        if head[position : position + 1] != ",":
            break
        position += 1
    if not names:
        return None
    value = head[position:].strip() or None
    help_text = " ".join([rest.strip(), *(line.strip() for line in lines[1:])]).strip()
    longs = [n[2:] for n in names if n.startswith("--")]
    names = [name.lstrip("-") for name in names]
    negatives = _negatives(names)
    removed = _REMOVED.search(help_text)
    env = match[1] if (match := _ENV.search(help_text)) else None
    by_env = (env or "").removeprefix("LLAMA_ARG_").lower().replace("_", "-")
    return EngineOption(
        names=tuple(n for n in names if n not in negatives),
        negatives=tuple(negatives),
        value=value,
        allowed=_allowed(value, "\n".join([rest, *lines[1:]])),
        env=env,
        removed=_ENV.sub("", removed[1]).strip() if removed else None,
        help=help_text,
        loose=loose and value is None,
        long=by_env if by_env in longs else next((n for n in reversed(longs) if n not in negatives), names[0]),
    )


def _negatives(names: list[str]) -> list[str]:
    """The names that switch the option off: ``--no-x`` and the short names printed just before it.

    arg.cpp prints all positive names first (``-kvo, --kv-offload, -nkvo, --no-kv-offload``).
    """
    first_no = next((i for i, n in enumerate(names) if n.startswith("no-")), len(names))
    if first_no in (0, len(names)):
        return []
    while first_no > 1 and names[first_no - 1].startswith("n") and "-" not in names[first_no - 1]:
        first_no -= 1
    return names[first_no:]


def _allowed(value: str | None, help_text: str) -> tuple[str, ...]:
    if match := _ALLOWED.search(help_text):
        return tuple(word.strip() for word in match[1].split(",") if word.strip())
    if value and (match := _BRACED.match(value)):
        return tuple(re.split(r"[|,]", match[1] or match[2]))
    listed = re.findall(r"^\s*- ([\w+-]+)(?: \(default\))?:", help_text, re.M)
    return tuple(listed) if value in {"MODE", "TYPE"} else ()


def _bad_shape(option: EngineOption, value: FlagValue) -> tuple[str, str] | None:
    """The problem and a hint if a switch has a value, or an option with a value has none."""
    if option.loose:
        return None
    if value is False and not option.negatives and option.long not in FLAGS_WITHOUT_NO:
        return "cannot be switched off", "leave it out"
    if value is True and option.value is not None:
        return "needs a value", f"its value is {option.value}"
    if not isinstance(value, bool) and option.value is None:
        return "takes no value", "write true" + (" or false" if option.negatives else "")
    return None


def _bad_value(option: EngineOption, value: FlagValue) -> str | None:
    if not option.allowed or isinstance(value, bool):
        return None
    values = [str(item) for item in value] if isinstance(value, tuple) else str(value).split(",")
    # on/off options also accept the spellings of common/arg.cpp is_truthy/is_falsey
    accepted = {*option.allowed, "1", "0", "true", "false", "enabled", "disabled", "-1"} if (
        "on" in option.allowed
    ) else set(option.allowed)  # fmt: skip
    return next((item for item in values if item not in accepted), None)
