"""``gpubox completion SHELL``: the shell's script, and the answers that it asks for at each TAB.

click finds which parameter a word belongs to (``click.shell_completion``); ``VALUES`` has what may stand there. An
answer starts no engine, and an error is no answer: it would be written over the line that the owner types.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, _resolve_context, _resolve_incomplete, split_arg_string

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.sanitize import sanitize_line

if TYPE_CHECKING:
    from gpubox.engines.capabilities import Capabilities
    from gpubox.profiles.profile import Profile

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


def profiles(given: Given) -> Found:
    """Those of `gpubox ls`; a broken one can be named, too, to mend it."""
    from gpubox.profiles.loader import hides_shipped

    catalog = given.context.catalog
    hidden = hides_shipped(catalog.profiles.values(), given.context.config.shipped_profiles)
    return [
        *((name, profile.title) for name, profile in catalog.profiles.items() if not (hidden and profile.shipped)),
        *((name, "broken") for name in catalog.broken),
    ]


def runs(given: Given) -> Found:
    """The newest first; the folders' names, because a file of each would be read for more."""
    from gpubox.bench.run_store import list_runs

    return [("last", "the newest run"), *(run.id for run in reversed(list_runs(given.context.paths)))]


def chats(given: Given) -> Found:
    from gpubox.agent.chat_files import chat_names

    return chat_names(given.context.paths)


def keys_of_clients(given: Given) -> Found:
    from gpubox.gateway.client_keys import ClientKeys

    return ClientKeys(given.context.paths).clients


def client_programs(given: Given) -> Found:
    from gpubox.interchange.client_settings import CLIENTS

    return CLIENTS.items()


def engines(given: Given) -> Found:
    from gpubox.engines.find import find_engines

    return [engine.name for engine in find_engines(given.context.config)]


def sampling(given: Given) -> Found:
    from gpubox.profiles.profile import SAMPLING_FLAGS

    return () if given.name else [f"{name}=" for name in SAMPLING_FLAGS]


def kv_types(given: Given) -> Found:
    option = given.engine.option("cache-type-k") if given.engine else None
    return option.allowed if option else ()


def flags(given: Given) -> Found:
    """The flags of the engine, those of the profile first; after the = what they accept, and what the profile has."""
    from gpubox.profiles.profile import TOP_LEVEL_FLAGS

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
    from gpubox.profiles.profile import Profile
    from gpubox.toml_table import json_schema

    keys = json_schema(Profile)["properties"]
    if not given.name:
        return [*flags(given), *((f"{name}=", key["description"]) for name, key in keys.items() if name != "flags")]
    key = keys.get(given.name)
    if key is None:
        return flags(given)
    if given.name == "engine":
        return engines(given)
    return ("true", "false") if key.get("type") == "boolean" else key.get("enum", ())


def set_names(given: Given) -> Found:
    """What --unset can leave out: the keys that the profile has."""
    from gpubox.toml_table import given_values

    return [*given.profile.flags, *given_values(given.profile)] if given.profile else ()


VALUES: Mapping[str, Callable[[Given], Found]] = {
    **dict.fromkeys(("profile", "profiles", "other", "first", "second", "targets", "reference", "like"), profiles),
    **dict.fromkeys(("connect model", "keys add models", "keys change models"), profiles),
    **dict.fromkeys(("run", "runs"), runs),
    **dict.fromkeys(("chat chat", "chat branch name", "chat rename name", "chat rewind name", "chat rm names"), chats),
    "chat show name": chats,
    **dict.fromkeys(("keys change name", "keys remove name"), keys_of_clients),
    **dict.fromkeys(("engines use name", "engines rm name"), engines),
    "client": client_programs,
    "unset": set_names,
    "kv_types": kv_types,
    "NAME=VALUE": settings,
    "FLAG=VALUE": flags,
    "FLAG=VALUES": flags,
    "KEY=N": sampling,
}
"""Values by the verb and the name of its parameter, by that name, or by its metavar."""
FILES = {"FILE": "file", "FOLDER": "dir", "import source": "file"}
"""What the shell itself completes, likewise."""
LISTS = ("LIST", "A,B", "FLAG=VALUES")
"""Of values separated by commas."""


def values_of(parameter: click.Parameter, ctx: click.Context, word: str) -> Iterator[CompletionItem]:
    """The values of ``parameter`` that begin with ``word``; none if nothing is known about it."""
    names = (f"{ctx.command_path.partition(' ')[2]} {parameter.name}", parameter.name, parameter.metavar)
    if kind := next((FILES[str(name)] for name in names if name in FILES), ""):
        yield CompletionItem(word, kind)
        return
    find = next((VALUES[str(name)] for name in names if name in VALUES), None)
    if find is None:
        return
    name, equals, _ = word.partition("=") if "=" in str(parameter.metavar) else ("", "", "")
    head = f"{name}=" if equals else ""
    if parameter.metavar in LISTS and "," in word:
        head = word[: word.rfind(",") + 1]
    for each in find(Given(ctx, name if equals else "")):
        value, about = each if isinstance(each, tuple) else (each, "")
        if (whole := head + value).startswith(word):
            yield CompletionItem(whole, help=about)
