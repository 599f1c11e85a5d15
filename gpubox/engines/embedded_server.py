"""The embedded engine: ``python -m gpubox.engines.embedded_server <llama-server's flags>``.

Runs llama.cpp's own HTTP server from the xllamacpp wheel, for a box without a built llama-server. It behaves like
llama-server where gpubox needs it: the same flags, parsed from left to right, the same error messages, the same log
on stderr, exit code 1 if the model does not load or the port is taken. SIGTERM during the load ends it at once, later
with exit code 0. It does not read llama.cpp's config.ini.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox.engines.capabilities import parse_help
from gpubox.engines.embedded_flags import FLAGS, TRUE, Convert, Setter, boolean, converter_of

_HELP = Path(__file__).with_name("embedded_help.txt")
_NAMES = re.compile(r"(?:^|, +)(--?[A-Za-z][\w-]*)")
_ENV_PREFIX = "LLAMA_ARG_"
_SAMPLING_BIT = "COMMON_PARAMS_SAMPLING_CONFIG_"
"""Begins the bit that gives a flag precedence over the model's own sampling default."""
_BUSY_SECONDS = 2.0
_IDLE = re.compile(r"requests_processing 0\b.*requests_deferred 0\b", re.S)


class RefusedError(Exception):
    """An argument is refused; the text is the message for stderr."""


@dataclass(frozen=True, slots=True)
class EmbeddedFlag:
    """One option of the help text, and what it sets. Names have their dashes."""

    names: tuple[str, ...]
    negatives: frozenset[str]
    env: str | None
    usage: str
    setter: Setter | None
    """``None`` for ``--help``, ``--version`` and ``--list-devices``."""


def read_flags() -> dict[str, EmbeddedFlag]:
    """Every spelling, with its dashes -> its flag."""
    flags: dict[str, EmbeddedFlag] = {}
    for block in re.split(r"\n(?=-)", _HELP.read_text(encoding="utf-8")):
        if block.startswith("-----"):
            continue
        names = tuple(_NAMES.findall(block.splitlines()[0]))
        (option,) = parse_help(block).options
        negatives = frozenset(name for name in names if name.lstrip("-") in option.negatives)
        setter = next((FLAGS[bare] for name in names if (bare := name.lstrip("-")) in FLAGS), None)
        flag = EmbeddedFlag(names, negatives, option.env, block.rstrip() + "\n", setter)
        flags.update(dict.fromkeys(names, flag))
    return flags


class ArgumentReader:
    """Parses environment and arguments into ``params``. ``xllamacpp`` is that module."""

    def __init__(self, xllamacpp: Any) -> None:
        self.xllamacpp = xllamacpp
        self.params = xllamacpp.CommonParams()
        self.params.n_parallel = -1  # "auto", llama-server's default: 4 slots that share one KV cache
        self.params.port = 8080
        self.flags = read_flags()
        self.collected: dict[str, list[str]] = {}

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Reads the variables of llama-server, before the arguments. Raises RefusedError."""
        known = {flag.env: flag for flag in self.flags.values() if flag.env}
        for name, flag in known.items():
            if not name or (value := environ.get(name)) is None:
                continue
            try:
                self._set_from_environment(flag, value)
            except (ValueError, OverflowError) as error:
                raise RefusedError(f'error while handling environment variable "{name}": {error}') from None
        for name in sorted(environ):
            if name.startswith(_ENV_PREFIX) and name not in known and name.replace("_NO_", "_", 1) not in known:
                print(f"warn: the embedded engine ignores {name}", file=sys.stderr)

    def read_arguments(self, argv: Sequence[str]) -> str | None:
        """Parses ``argv``; returns the first flag that asks for an answer (``--version``). Raises RefusedError."""
        arguments = iter(argv)
        for argument in arguments:
            name = argument.replace("_", "-") if argument.startswith("--") else argument
            flag = self.flags.get(name)
            if flag is None:
                raise RefusedError(f"error: invalid argument: {name}")
            if flag.setter is None:
                return flag.names[-1] if name in {"-h", "--usage"} else name
            try:
                if not self._takes_value(flag.setter):
                    self._set(flag.setter, "", negative=name in flag.negatives)
                elif (value := next(arguments, None)) is None:
                    raise ValueError("expected value for argument")
                else:
                    self._set(flag.setter, value)
            except (ValueError, OverflowError) as error:
                raise RefusedError(
                    f'error while handling argument "{name}": {error}\n\nusage:\n{flag.usage}\n\n'
                    "to show complete usage, run with -h"
                ) from None
        return None

    def _set_from_environment(self, flag: EmbeddedFlag, value: str) -> None:
        assert flag.setter
        if self._takes_value(flag.setter):
            self._set(flag.setter, value)
        elif flag.negatives:
            self._set(flag.setter, "", negative=not boolean(value))
        elif value in TRUE:
            self._set(flag.setter, "")

    def _owner(self, target: str) -> tuple[Any, str]:
        """The object that holds the attribute ``target``, and its name there."""
        *parts, name = target.split(".")
        return functools.reduce(getattr, parts, self.params), name

    def _converter(self, setter: Setter) -> Convert | None:
        return converter_of(setter.convert, getattr(*self._owner(setter.targets[0])) if setter.targets else None)

    def _takes_value(self, setter: Setter) -> bool:
        return self._converter(setter) is not None and setter.on is not None

    def _set(self, setter: Setter, text: str, negative: bool = False) -> None:
        convert = self._converter(setter)
        value = convert(self.xllamacpp, text) if convert else setter.on
        if negative:
            value = not value
        for target in setter.targets:
            parent, name = self._owner(target)
            if setter.collect:
                value = ",".join(self.collected.setdefault(target, []) + value)
                self.collected[target] = value.split(",")
            elif isinstance(value, dict):
                value = {**getattr(parent, name), **value}
            setattr(parent, name, value)
            bit = getattr(self.xllamacpp.common_params_sampling_config, f"{_SAMPLING_BIT}{name.upper()}", None)
            if bit is not None and target.startswith("sampling."):
                self.params.sampling.user_sampling_config |= int(bit)
        if setter.then:
            setter.then(self.xllamacpp, self.params, value)


def main(argv: Sequence[str] | None = None) -> int:
    """Answers or serves; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["--help"], ["-h"], ["--usage"]):
        sys.stdout.write(_HELP.read_text(encoding="utf-8"))
        return 0
    try:
        import xllamacpp
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        problem = "is not installed; run: pip install 'gpubox[embedded]'" if missing else f"does not load: {error}"
        print(f"error: xllamacpp {problem}", file=sys.stderr)
        return 1
    parser = ArgumentReader(xllamacpp)
    try:
        parser.read_environment(os.environ)
        question = parser.read_arguments(arguments)
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 1
    if question:
        _answer(xllamacpp, question)
        return 0
    if not parser.params.model.path:
        print("error: --model is required", file=sys.stderr)
        return 1
    return _serve(xllamacpp, parser.params)


def _answer(xllamacpp: Any, name: str) -> None:
    if name == "--version":
        build = xllamacpp.BUILD_INFO
        print(
            f"version: xllamacpp {xllamacpp.__version__} (build {build['build_number']}, commit {build['commit']})\n"
            f"built with {build['compiler']} for {build['build_target']}",
            file=sys.stderr,
        )
    elif name == "--list-devices":
        lines = [
            f"  {d['name']}: {d['description']} ({d['memory_total'] >> 20} MiB, {d['memory_free'] >> 20} MiB free)"
            for d in xllamacpp.get_device_info()
            if not d["type"].name.endswith("TYPE_CPU")
        ]
        print("\n".join(["Available devices:", *(lines or ["  (none)"])]))
    else:
        sys.stdout.write(_HELP.read_text(encoding="utf-8"))


def _serve(xllamacpp: Any, params: Any) -> int:
    # During the load both signals end the process, as with llama-server.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        return 1  # llama.cpp has logged why
    # A signal may arrive on any of llama.cpp's threads; the pipe wakes this one.
    ready, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    os.read(ready, 1)
    _exit_if_busy(server)
    del server  # stops the loop, prints the memory table, frees the model
    return 0


def _exit_if_busy(server: Any) -> None:
    """Ends the process at once, with code 0, unless all slots are known to be idle.

    llama.cpp's own shutdown waits for running requests: for a stream up to a ping interval (30 s), for other requests
    forever in our runs. So the process exits, and the operating system frees its resources.
    """
    timer = threading.Timer(_BUSY_SECONDS, os._exit, [0])  # handle_metrics() itself waits for a running batch
    timer.daemon = True
    timer.start()
    if not _IDLE.search(str(server.handle_metrics())):  # also without --metrics, because then it is unknown
        os._exit(0)
    timer.cancel()


if __name__ == "__main__":
    sys.exit(main())
