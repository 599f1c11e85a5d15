"""``gpubox completion SHELL``: the shell's script, and the answers that it asks for at each TAB.

click finds which parameter a word belongs to (``click.shell_completion``); ``KINDS`` has what may stand there. An
answer starts no engine, and an error is no answer: it would be written over the line that the owner types.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, _resolve_context, _resolve_incomplete, split_arg_string

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.profiles.profile import SAMPLING_FLAGS, TOP_LEVEL_FLAGS, Profile
from gpubox.sanitize import sanitize_line
from gpubox.toml_table import given_values, json_schema

if TYPE_CHECKING:
    from gpubox.engines.capabilities import Capabilities

VARIABLE = "_GPUBOX_COMPLETE"
"""Set by the scripts in ``cli/scripts``; the line up to the cursor is in COMP_WORDS, its last word in COMP_CWORD."""
SAFE = re.compile(r"-{0,2}\w(?:[\w .,:=/@%+-]*[\w.,:=/@%+-])?")
"""Other values are left out. The shells quote a space."""
HELP_CHARS = 60
Found = Iterable["tuple[str, str] | str"]
"""Values, some with a few words about them."""


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print the script that completes gpubox's command lines in SHELL.

    \b
    bash  put  eval "$(gpubox completion bash)"  into ~/.bashrc
    zsh   put  eval "$(gpubox completion zsh)"  into ~/.zshrc, after compinit
    fish  gpubox completion fish > ~/.config/fish/completions/gpubox.fish
    """
    script = Path(__file__).parents[1] / "scripts" / f"completion.{shell}"
    output.emit_verbatim(script.read_text(encoding="utf-8").removesuffix("\n"))


def answer() -> int:
    """Prints what can follow the words in the environment. Never fails: a shell has no place for an error."""
    with contextlib.suppress(Exception):
        shell, line, typed = (os.environ.pop(name) for name in (VARIABLE, "COMP_WORDS", "COMP_CWORD"))
        output.emit_verbatim("\n".join(completions(line, typed, in_bash=shell.startswith("bash"))))
    return 0


def completions(line: str, typed: str, *, in_bash: bool) -> Iterator[str]:
    """A line for each value that can stand at the end of ``line``: its type, itself, a few words about it.

    ``typed``: what the shell takes for the word there. bash replaces only what follows the last = or : of the word.
    """
    from gpubox.cli.main import cli

    args = split_arg_string(line)
    incomplete = args.pop() if len(args) > 1 and not re.search(r"(?<!\\)\s$", line) else ""
    ctx = _resolve_context(cli, {}, "gpubox", args := args[1:])
    where, word = _resolve_incomplete(ctx, args, incomplete)
    if isinstance(where, click.Option):  # without its value click reads no argument either
        ctx = _resolve_context(cli, {}, "gpubox", args[:-1])
    ours = list(values_of(where, ctx, word) if isinstance(where, click.Parameter) else ())
    kept = (len(word) if typed in ("=", ":") else max(0, len(word) - len(typed))) if in_bash else 0
    before = "" if in_bash else incomplete.removesuffix(word)  # --set=NAME is one word of the others
    for item in ours or where.shell_complete(ctx, word):
        if item.type != "plain" or SAFE.fullmatch(item.value):
            kind = "begun" if item.value.endswith("=") else item.type
            about = sanitize_line(item.help or "").strip()[:HELP_CHARS]
            yield f"{kind}\t{before}{item.value[kept:]}\t{about}"


# -- what may stand where -------------------------------------------------------------------------------


class Given:
    """What the command line says already: the files of ``--config``, the profile, its engine."""

    def __init__(self, ctx: click.Context, name: str) -> None:
        self.params, self.name = ctx.params, name
        """``name``: before the = of NAME=VALUE, while the value is typed."""
        self.context = Context(ctx.find_root().params.get("config"))
        words = [self.params.get(key) for key in ("profile", "profiles", "first", "targets")]
        words = [word[0] if isinstance(word, tuple) and word else word for word in words]
        self.profile: Profile | None = next(
            (profile for word in words if word and (profile := self.context.catalog.profiles.get(str(word)))), None
        )

    @cached_property
    def engine(self) -> Capabilities | None:
        """The options of the profile's own engine, without a profile of the default one, if they were read before."""
        from gpubox.engines.find import choose_engine
        from gpubox.engines.query import cached_capabilities

        engine = choose_engine(self.context.config, self.profile.engine if self.profile else "")
        return cached_capabilities(engine, self.context.paths)


KINDS: Mapping[str, tuple[str, ...]] = {
    "profile": ("profile", "profiles", "other", "first", "second", "targets", "reference", "like", "connect model",
                "keys add models", "keys change models"),
    "run": ("run", "runs"),
    "chat": ("chat chat", "chat branch name", "chat rename name", "chat rewind name", "chat rm names",
             "chat show name"),
    "key": ("keys change name", "keys remove name"),
    "engine": ("engines use name", "engines rm name"),
    "client": ("client",), "agent": ("launch agent",), "unset": ("unset",), "kv-type": ("kv_types",),
    "setting": ("NAME=VALUE",), "flag": ("FLAG=VALUE", "FLAG=VALUES"), "sampling": ("KEY=N",),
    "file": ("FILE", "import source"), "dir": ("FOLDER",),
}  # fmt: skip
"""What stands where -> the verb and the name of its parameter, that name, or its metavar."""
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
LISTS = ("LIST", "A,B", "FLAG=VALUES")
"""Of values separated by commas."""


def values_of(parameter: click.Parameter, ctx: click.Context, word: str) -> Iterator[CompletionItem]:
    """The values of ``parameter`` that begin with ``word``; none if nothing is known about it."""
    names = (f"{ctx.command_path.partition(' ')[2]} {parameter.name}", parameter.name, parameter.metavar)
    kind = next((KIND_OF[str(name)] for name in names if name in KIND_OF), "")
    if kind in ("file", "dir"):  # the shell's own
        yield CompletionItem(word, kind)
        return
    name, equals, _ = word.partition("=") if "=" in str(parameter.metavar) else ("", "", "")
    head = f"{name}=" if equals else ""
    if parameter.metavar in LISTS and "," in word:
        head = word[: word.rfind(",") + 1]
    for each in known(kind, Given(ctx, name if equals else "")):
        value, about = each if isinstance(each, tuple) else (each, "")
        if (whole := head + value).startswith(word):
            yield CompletionItem(whole, help=about)


def known(kind: str, given: Given) -> Found:
    """All values of a kind, the likeliest first."""
    paths, profile = given.context.paths, given.profile
    if kind == "profile":
        return profiles(given)
    if kind == "run":
        from gpubox.bench.run_store import list_runs

        return [("last", "the newest run"), *(run.id for run in reversed(list_runs(paths)))]
    if kind == "chat":
        from gpubox.agent.chat_files import chat_names

        return chat_names(paths)
    if kind == "key":
        from gpubox.gateway.client_keys import ClientKeys

        keys = ClientKeys(paths)
        return keys.clients | keys.agents
    if kind == "agent":
        from gpubox.interchange.agent_launch import LAUNCHED

        return [(name, agent.title) for name, agent in LAUNCHED.items()]
    if kind == "client":
        from gpubox.interchange.client_settings import CLIENTS

        return CLIENTS.items()
    if kind == "engine":
        from gpubox.engines.find import find_engines

        return [engine.name for engine in find_engines(given.context.config)]
    if kind == "unset":
        return [*profile.flags, *given_values(profile)] if profile else ()
    if kind == "kv-type":
        return option.allowed if given.engine and (option := given.engine.option("cache-type-k")) else ()
    if kind == "sampling":
        return () if given.name else [f"{name}=" for name in SAMPLING_FLAGS]
    return settings(given) if kind == "setting" else flags(given) if kind == "flag" else ()


def profiles(given: Given) -> Found:
    """Those of `gpubox ls`; a broken one can be named, too, to mend it."""
    catalog = given.context.catalog
    hidden = given.context.config.shipped_profiles == "hide"
    named = [(name, each.title) for name, each in catalog.profiles.items() if not (hidden and each.shipped)]
    return [*named, *((name, "broken") for name in catalog.broken)]


def flags(given: Given) -> Found:
    """The flags of the engine, those of the profile first; after the = what they accept, and what the profile has."""
    own = given.profile.flags if given.profile else {}
    options = given.engine.options if given.engine else ()
    if not given.name:
        usual = (option for option in options if option.removed is None and option.long not in TOP_LEVEL_FLAGS)
        about = {option.long: option.help for option in usual if not option.help.startswith(("print ", "show "))}
        return [(f"{name}=", about.get(name, "")) for name in dict.fromkeys([*own, *about])]
    option, now = given.engine.option(given.name) if given.engine else None, own.get(given.name)
    if isinstance(now, bool) or (option and option.value is None):
        return "true", "false"
    old = () if now is None or isinstance(now, tuple) else ((str(now), "as it is"),)
    return [*old, *(value for value in (option.allowed if option else ()) if value != now)]


def settings(given: Given) -> Found:
    """The flags, and the other keys of a profile."""
    keys = json_schema(Profile)["properties"]
    if not given.name:
        return [*flags(given), *((f"{name}=", key["description"]) for name, key in keys.items() if name != "flags")]
    key = keys.get(given.name)
    if key is None:
        return flags(given)
    if given.name == "engine":
        return known("engine", given)
    return ("true", "false") if key.get("type") == "boolean" else key.get("enum", ())
