"""Every verb in a real terminal, with escape sequences wherever text can come from."""

# ruff: noqa: E501 - the table is read by verb
from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import pytest

from gpubox.bench.model import Doubt
from gpubox.cli.main import cli, run
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from gpubox.planner.dry_run import run_dry
from tests import hostile_text
from tests.bench_runs import speed_run
from tests.conftest import HELP, WAIT_SECONDS
from tests.hostile_text import ATTACKS, HOSTILE, ONE_LINE, HostileServer, faults, screen_faults
from tests.ports import free_port
from tests.sampling import sampled, some_of

QUICK = ("--prompts", "short", "--depths", "0", "--repeats", "1", "--max-tokens", "8")


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every verb that is no mere group, with its path."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            verb = command.get_command(click.Context(command), name)
            assert verb is not None
            yield from leaves(verb, (*words, name))


VERBS = {" ".join(words): command for words, command in leaves(cli)}


class Terminal:
    """A pty for stdout and stderr of the verbs; its other side keeps the output."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8", buffering=1)
        self.seen = bytearray()
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            with self._news:
                self.seen += data
                self._news.notify_all()

    def close(self) -> None:
        """Ends the reader before its descriptor's number is free: it would read the next terminal's output."""
        self.stream.close()
        self._reader.join(10)
        os.close(self.master)

    def took(self, work: Callable[[], object]) -> bytes:
        """The output of ``work``."""
        with self._news:
            self.seen.clear()
        with pytest.MonkeyPatch.context() as patch:  # only for this call: pytest sets its own streams, too
            patch.setattr(sys, "stdout", self.stream)
            patch.setattr(sys, "stderr", self.stream)
            with Path("/dev/null").open() as nothing:
                patch.setattr(sys, "stdin", nothing)
                work()
        self.stream.write("<END>\n")
        self.stream.flush()
        with self._news:
            assert self._news.wait_for(lambda: self.seen.endswith(b"<END>\r\n"), 60)
            return bytes(self.seen[: -len(b"<END>\r\n")])


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def _served(server: HostileServer) -> HostileServer:
    threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True).start()
    return server


@pytest.fixture
def foreign() -> Iterator[HostileServer]:
    server = _served(HostileServer(short=True))
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def world(paths: Paths, tmp_path: Path, tiny_gguf: Path, write_profile: Callable[[str, str], Path]) -> Iterator[Path]:
    """An engine, profiles, models, runs and folders with hostile text. Returns a file to import."""
    engine = tmp_path / "llama-server"
    words = shlex.quote(ONE_LINE)
    script = Path(hostile_text.__file__)
    engine.write_text(
        "#!/bin/sh\n"
        f'case "$*" in\n  *--help) cat {HELP}; echo "  --odd  "{words} ;;\n'
        f"  *--version) printf 'version: 1 (build 2, commit %s)\\n' {words} >&2 ;;\n"
        f'  *--list-devices) echo \'Available devices:\'; echo "  CUDA0: "{words}" (9 MiB, 8 MiB free)" ;;\n'
        f'  *) PYTHONPATH={script.parent.parent} exec {sys.executable} {script} "$@" ;;\nesac\n'
    )
    engine.chmod(0o755)
    text, port = _toml(ONE_LINE), free_port()
    models = tmp_path / "models"
    models.mkdir()
    (models / f"{ATTACKS[0]}{ATTACKS[5]}\u202e.gguf".replace("/", "_")).write_bytes(tiny_gguf.read_bytes())
    paths.config.mkdir(parents=True)
    paths.config_file.write_text(f'default-engine = "evil"\nmodel-dirs = ["{models}"]\n[engines]\nevil = "{engine}"\n')
    head = f'title = {text}\ndescription = {_toml(HOSTILE)}\nsource = {text}\nmodel = "{tiny_gguf}"\nport = {port}\n'
    more = f"[flags]\nctx-size = 2048\nalias = {text}\n[chat]\nsystem = {text}\n"
    write_profile("evil", head + more)
    write_profile("other", head + more.replace("2048", "4096"))
    write_profile("dies", head + more.replace("2048", "666"))
    write_profile("refused", f'model = "{tiny_gguf}"\n[flags]\nnosuchflag = {text}\n')
    write_profile("broken", f"title = {text}\nmodel = \x1b]52;c;T1dORUQ=\x07 {ONE_LINE}\n")
    (paths.profiles / f"{ATTACKS[5]}\u202ename.toml").write_text(f'title = {text}\nmodel = "{tiny_gguf}"\n')
    run_ = speed_run(paths, profile=ONE_LINE, url="http://evil", doubts=(Doubt("busy", ONE_LINE),))
    info = run_.info
    provenance = {
        name: replace(known, engine_version=ONE_LINE, model_path=ONE_LINE) for name, known in info.provenance.items()
    }
    run_.save(replace(info, message=HOSTILE, provenance=provenance))
    launch = tmp_path / "launch.sh"
    launch.write_text(f"llama-server -m {tiny_gguf} --alias {words} --unknown-flag {words} -c 512\n# {ONE_LINE}\n")
    yield launch
    for identity, _ in find_by_marker(f"{paths.state}|"):
        os.kill(identity.pid, signal.SIGKILL)


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _words(world: Path, url: str, chat: str) -> Mapping[str, Sequence[tuple[str, ...]]]:
    """The arguments to try with each verb. A verb that is missing here fails the test."""
    at = ("--url", url)
    return {
        "": [(), ("--url", ONE_LINE), ("--replay", ONE_LINE), ("--config", ONE_LINE, "ls")],
        "demo": [("--once", ONE_LINE)],
        "ls": [(), ("--json",), (ONE_LINE,)],
        "show": [
            ("evil",), ("evil", "--command"), ("evil", "--json"), ("refused",), ("broken",), ("name",), (ONE_LINE,), ("--schema",),
            ("evil", "other"), ("evil", "refused", "--json"), ("evil", "other", "--all"), (ONE_LINE, "evil"), ("--schema", ONE_LINE),
        ],
        "find": [("evil", "--disk"), ("", "--disk", "--json"), (ONE_LINE, "--disk")],
        "fit": [("evil",), ("evil", "--json"), ("evil", "--set", ONE_LINE), ("evil", "--keep-free", ONE_LINE), (ONE_LINE,)],
        "edit": [
            ("evil", "--set", f"alias={ONE_LINE}"), ("evil", "--unset", "alias", "--print", "--json"), ("evil", "--set", ONE_LINE),
            ("evil", "--copy", "made", "--json"), ("made", "--delete", "--json"), ("made", "--undo"), (ONE_LINE, "--delete"),
            ("evil", "--copy", ONE_LINE), ("evil", "--rename", ONE_LINE), ("broken", "--set", "port=1"), (ONE_LINE, "--set", "port=1"),
        ],
        "try": [("evil", "--set", "ctx-size=666", "--keep", "--no-measure"), ("evil", "--set", ONE_LINE, "--revert", "--json"), ()],
        "start": [("dies",), ("dies", "--json"), ("refused",), (ONE_LINE,), ("evil",), ("evil", "--json")],
        "switch": [("dies",), ("other",), ("evil", "--json"), ("refused",), (ONE_LINE,)],
        "restart": [(), ("--json",), (ONE_LINE,)],
        "status": [
            (), ("--json",), at, (*at, "--json"), ("--url", ONE_LINE), ("--all",), ("--all", "--json"),
            ("--record", str(world.with_name("recording")), "--seconds", "0.1", *at),
            ("--record", "/proc/nowhere/" + ONE_LINE, "--json"),
        ],
        "logs": [(), ("--json",), ("--grep", ONE_LINE), (ONE_LINE,), ("-n", "500")],
        "chat": [
            ("-p", HOSTILE, "--name", chat, *at), ("-p", "hi", "--continue", chat, "--apply", "turn", *at, "--json"),
            ("-p", "hi", "--name", ONE_LINE, *at), ("-p", "hi", "--set", ONE_LINE, *at), ("-p", "hi"), ("-p", HOSTILE, "--json"),
        ],
        "chat ls": [(), ("--json",)],
        "chat agents": [(), ("--json",), (ONE_LINE,)],
        "chat show": [(chat,), (chat, "--turns"), (chat, "--json"), (ONE_LINE,)],
        "chat search": [("evil",), ("evil", "--json"), (ONE_LINE,)],
        "chat branch": [(chat, "branch"), (chat, "branch2", "--json"), (chat, "x", "--at", ONE_LINE), (chat, ONE_LINE)],
        "chat rename": [("branch", "renamed"), (ONE_LINE, "x"), ("renamed", ONE_LINE), ("renamed", "again", "--json")],
        "chat rewind": [(chat,), (chat, ONE_LINE), (chat, "--json")],
        "chat diff": [(chat,), (chat, "--json"), (chat, ONE_LINE), (ONE_LINE,)],
        "chat take": [(chat,), (chat, ONE_LINE, "--json"), (chat, "--allow", ONE_LINE)],
        "chat drop": [(chat, "--why", ONE_LINE), (chat, ONE_LINE), (ONE_LINE, "--json")],
        "chat undo": [(chat, ONE_LINE), (chat, "--json"), (ONE_LINE,)],
        "chat redo": [(chat,), (chat, "--json"), (ONE_LINE,)],
        "chat rm": [(ONE_LINE,), ("again",), ("branch2", "--json")],
        "chat run": [(str(world.with_name("program.py")),), (str(world.with_name("program.py")), "--json"), (ONE_LINE,)],
        "engines": [(), ("--json",)],
        "engines build": [("--cpu", "--name", ONE_LINE), ("--cpu", "--version", ONE_LINE, "--json")],
        "engines use": [(ONE_LINE,), ("evil", "--json")],
        "engines rm": [(ONE_LINE,), ("evil", "--json")],
        "bench speed": [(*at, *QUICK), (*at, *QUICK, "--json"), (*at, "--model", ONE_LINE, *QUICK), (ONE_LINE,)],
        "bench ab": [("evil", ONE_LINE), ("evil", "other", "--set", ONE_LINE), ("evil", "refused", "--json")],
        "bench sweep": [(ONE_LINE, "--over", "ctx-size=1,2"), ("evil", "--over", ONE_LINE), ("evil", "--over", "x=1,2", "--json")],
        "bench quality": [(ONE_LINE,), ("evil", ONE_LINE, "--json"), ("evil", "--set", ONE_LINE)],
        "bench soak": [(*at, "--minutes", "0.001", "--max-tokens", "4"), (ONE_LINE, "--json")],
        "bench humaneval": [(*at, "--limit", "1", "--mode", "chat"), (ONE_LINE, "--json")],
        "bench suite": [(*at, "--tasks", "3.1"), ("--tasks", ONE_LINE, *at, "--json"), (ONE_LINE,)],
        "bench ls": [(), ("--json",)],
        "bench show": [("1",), (), ("--json",), (ONE_LINE,), ("last", "last"), (ONE_LINE, "last"),
                       *(("--as", form) for form in ("leaderboard", "post", "card", "markdown", "csv", "svg")),
                       (ONE_LINE, "--as", "leaderboard", "--json")],
        "bench resume": [(), ("--json",), (ONE_LINE,), ("--rescore",), ("--restore", "--json"), ("--rescore", ONE_LINE)],
        "bench save": [(), ("--cell", ONE_LINE, "--json"), ("--name", ONE_LINE)],
        "bench rm": [(ONE_LINE,), ("last", "--yes"), ("last", "--yes", "--json")],
        "doctor": [(), ("--json",)],
        "import": [
            (str(world), "--print"), (str(world), "--name", "taken"), (str(world), "--print", "--json"), (ONE_LINE,),
            (f"llama-server -m {ONE_LINE}", "--print"), (str(world), "--name", ONE_LINE),
        ],
        "export": [*(("evil", "--as", kind) for kind in ("systemd", "sh", "llama-swap")),
                   ("evil", "--as", ONE_LINE), (ONE_LINE, "--as", "sh"), ("evil", "--as", "sh", "--json")],
        "advice": [(), ("evil",), ("evil", "--all", "--json"), (ONE_LINE,), ("evil", "--dismiss", ONE_LINE)],
        "tune": [(ONE_LINE,), ("evil", "--over", ONE_LINE, "--json"), ("evil", "--goal", ONE_LINE)],
        "history": [(), ("--json",), ("--requests",), ("--by", "day"), ("--since", ONE_LINE)],
        "keys add": [(ONE_LINE,), ("laptop", "--models", ONE_LINE), ("desk", "--json")],
        "keys list": [(), ("--json",)],
        "keys change": [(ONE_LINE, "--weight", "2"), ("laptop", "--expires", ONE_LINE), ("laptop", "--weight", "2", "--json")],
        "keys remove": [(ONE_LINE,), ("laptop", "--json")],
        "keys reset": [("--yes",), ("--yes", "--json")],
        "clients cancel": [("9",), ("9", "--json"), (ONE_LINE,)],
        "clients": [(), ("--json",), ("--requests",), ("--days", "2", "--json"), ("--hold",), ("--release", "--json")],
        "completion": [(ONE_LINE,), ("bash",)],
        "acp": [(ONE_LINE,), ("--any-workdir", ONE_LINE)],
        "mcp": [(ONE_LINE,), ("--allow", ONE_LINE)],
        "launch": [(), ("--json",), (ONE_LINE,), ("--model", ONE_LINE), ("claude", "--json")],
        "web": [("--host", ONE_LINE), ("--host", "192.0.2.1", "--port", "1")],
        "connect": [(), ("opencode",), ("curl", "--json"), (ONE_LINE,), ("aider", "--model", ONE_LINE)],
        "serve": [("--stop",), ("--stop", "--json"), ("--host", ONE_LINE), ("--port", "1", "--install", "--host", ONE_LINE)],
        "stop": [(ONE_LINE,), (), ("--json",)],
    }  # fmt: skip


PARTS = {
    "profiles": (("", "demo", "ls", "show", "find", "fit", "edit", "try", "import", "export", "advice", "tune"), 50_000),
    "servers": (("start", "switch", "restart", "status", "logs", "history", "engines", "doctor", "stop"), 100_000),
    "chats": (("chat",), 100_000),
    "bench": (("bench",), 40_000),
    "gateway": (("keys", "clients", "connect", "serve", "acp", "mcp", "launch", "web", "completion"), 2_500),
}  # fmt: skip
"""The first words of the verbs that are tried one after another in one world, and how many bytes they print at least."""
NIGHTLY = pytest.mark.nightly
WITH_A_SERVER = ("chats", "bench", "gateway")
"""The parts that begin with a server that runs."""


def test_the_table_knows_every_verb() -> None:
    table = _words(Path("x"), "", "")
    assert set(table) == set(VERBS)
    first_words = {verb.split(" ")[0] for verb in VERBS}
    assert sorted(word for verbs, _ in PARTS.values() for word in verbs) == sorted(first_words)
    speaks_json = {name for name, verb in VERBS.items() if any("--json" in p.opts for p in verb.params) and name}
    assert {name for name in speaks_json if not any("--json" in words for words in table[name])} <= {"demo"}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_wrong_words_come_back_harmless(verb: str, terminal: Terminal) -> None:
    for words in ((f"--{ATTACKS[0]}x",), ("--help", ONE_LINE), (ONE_LINE, ONE_LINE, ONE_LINE, "--json")):
        assert faults(terminal.took(lambda words=words: run([*verb.split(), *words]))) == []  # type: ignore[misc]


class Tries:
    """Runs verbs in a terminal and keeps the faults of their output."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal, self.wrong = terminal, dict[str, list[str]]()
        self.printed = 0

    def __call__(self, name: str, *words: str) -> None:
        seen = self.terminal.took(lambda: run([*name.split(), *words]))
        self.printed += len(seen)
        assert b"internal error" not in seen, seen[-2000:]
        if wrong := faults(seen, as_json="--json" in words):
            self.wrong[" ".join([name, *words])[:80]] = wrong


@pytest.fixture
def tries(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tries]:
    monkeypatch.setenv("COLUMNS", "160")
    tries = Tries(terminal)
    yield tries
    assert not tries.wrong


@pytest.mark.parametrize(
    ("part", "share"),
    [*((part, 1.0) for part in PARTS if part != "bench"), ("bench", 0.4), pytest.param("bench", 1.0, marks=NIGHTLY)],
)
def test_no_verb_lets_anything_raw_through(
    world: Path, foreign: HostileServer, tries: Tries, monkeypatch: pytest.MonkeyPatch, part: str, share: float
) -> None:
    monkeypatch.setattr("gpubox.planner.planner.run_dry", partial(run_dry, timeout=0.3))  # its engine has no table
    world.with_name("program.py").write_text(
        f"print({HOSTILE!r}); open('f\\x1b[31m', 'w')\nraise ValueError({HOSTILE!r})"
    )
    foreign.calls = True
    verbs, least = PARTS[part]
    if part in WITH_A_SERVER:
        tries("start", "evil")
    for name, all_words in _words(world, foreign.url, "mine").items():
        for words in some_of(all_words, share) if name.split(" ")[0] in verbs else ():
            tries(name, *words)
    assert tries.printed > least * share / 2


@pytest.mark.parametrize("dialect", sampled(["llama-server", "ollama", "vllm", "lm-studio"], 0.5))
def test_whatever_a_server_answers(world: Path, foreign: HostileServer, tries: Tries, dialect: str) -> None:
    foreign.dialect = dialect
    at = ("--url", foreign.url)
    for status in (200, 401, 429, 500):
        foreign.status = status
        tries("status", *at)
        tries("chat", "-p", "hi", *at)
        tries("status", "--record", str(world.with_name(f"recording{status}")), "--seconds", "0.01", *at)
    foreign.well = ("/health", "/props", "/slots", "/v1/models")  # only requests to the model fail
    for foreign.status in (500, 429):
        tries("chat", "-p", "hi", *at)
        tries("bench speed", *at, *QUICK)
    foreign.status, foreign.breaks = 200, True
    tries("chat", "-p", "hi", *at)
    tries("bench speed", *at, *QUICK)


def test_lines_of_a_megabyte(world: Path, foreign: HostileServer, tries: Tries) -> None:
    foreign.short = False
    for words in (("status",), ("status", "--json"), ("chat", "-p", "hi", "--name", "mine")):
        tries(words[0], *words[1:], "--url", foreign.url)
    for verb in (("chat ls",), ("chat show", "mine")):
        tries(*verb)
    foreign.status = 500
    tries("status", "--url", foreign.url)
    tries("chat", "-p", "hi", "--continue", "mine", "--url", foreign.url)


@pytest.mark.parametrize("words", [("status",), ("chat", "-p", "hi"), ("ls",), ("show", "broken")])
def test_a_process_of_its_own(world: Path, foreign: HostileServer, terminal: Terminal, words: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        "-m",
        "gpubox",
        *words,
        *(("--url", foreign.url) if words[0] in ("status", "chat") else ()),
    ]
    out = terminal.stream
    seen = terminal.took(lambda: subprocess.run(command, stdout=out, stderr=out, timeout=60, check=False))
    assert faults(seen) == [] and (b"evil" in seen or b"broken.toml" in seen)


@pytest.mark.parametrize("watched", ["its own server", "another's"])
def test_the_screen(world: Path, foreign: HostileServer, paths: Paths, watched: str) -> None:
    assert run(["start", "evil"]) == 0
    run(["chat", "-p", HOSTILE, "--name", "mine"])
    words, shows = ((), b"evil") if watched == "its own server" else (("--url", foreign.url), b"Next:")
    seen = _screen(words, shows, ["d", "esc", "l", "esc", "t", "esc", "2", "esc", "1", "3", "enter", "1", "^q"])
    assert shows in seen
    assert screen_faults(seen) == []


def _screen(words: Sequence[str], shows: bytes, keys: Sequence[str]) -> bytes:
    """The output of the screen until it ends. The next key is pressed after a pause of the output, or after a second."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
    end = time.monotonic() + WAIT_SECONDS
    seen = bytearray()
    with subprocess.Popen(
        [sys.executable, "-m", "gpubox", *words], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as process:
        os.close(slave)
        waiting, pressed = list(keys), time.monotonic()
        while time.monotonic() < end:
            ready, _, _ = select.select([master], [], [], 0.2)
            if ready:
                try:
                    seen += os.read(master, 65536)
                except OSError:
                    break
            if waiting and shows in seen and (not ready or time.monotonic() - pressed > 1):
                pressed = time.monotonic()
                os.write(master, {"esc": b"\x1b", "enter": b"\r", "^q": b"\x11"}.get(waiting[0], waiting[0].encode()))
                waiting = waiting[1:] or waiting  # the last key quits
        else:
            process.kill()
            raise AssertionError("the screen was not left")
    os.close(master)
    return bytes(seen)
