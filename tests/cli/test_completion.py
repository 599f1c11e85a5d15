"""TAB in a shell: what the scripts ask, what gpubox answers, and the real shells that are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.cli.commands.completion import completions
from gpubox.cli.main import run
from gpubox.paths import Paths
from tests.cli.verbs import gpubox

SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(gpubox completion bash)"'),
    "zsh": (["-f", "-i"], 'autoload -Uz compinit; compinit -u -D; eval "$(gpubox completion zsh)"'),
    "fish": (["--no-config", "-i"], "gpubox completion fish | source"),
}


def asked(line: str, shell: str = "zsh") -> subprocess.CompletedProcess[str]:
    """What gpubox answers to a shell in which ``line`` stands up to the cursor."""
    word = line.rpartition(" ")[2]
    environment = {**os.environ, "_GPUBOX_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": word}
    return subprocess.run([sys.executable, "-m", "gpubox"], env=environment, capture_output=True, text=True, timeout=60)


def words(line: str, shell: str = "zsh", word: str = "") -> list[str]:
    """The values of the answer, without a process."""
    return [row.split("\t")[1] for row in completions(line, word, in_bash=shell == "bash")]


@pytest.fixture(autouse=True)
def _known_engine(box: int, paths: Paths, write_profile: Callable[[str, str], Path], tiny_gguf: Path) -> None:
    """Its --help is in the cache after the first look; a profile whose flags are worth completing."""
    more = '[flags]\nctx-size = 4096\ncache-type-k = "q8_0"\n'
    write_profile("coder", f'title = "The coder"\nmodel = "{tiny_gguf}"\nport = {box}\n{more}')
    run(["show", "a"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gpubox sw", ["switch"]),
        ("gpubox bench sw", ["sweep"]),
        ("gpubox bench show la", ["last"]),
        ("gpubox switch --no", ["--now"]),
        ("gpubox switch co", ["coder"]),
        ("gpubox bench ab a co", ["coder"]),
        ("gpubox export coder --as s", ["systemd", "sh"]),
        ("gpubox connect op", ["open-webui", "openai", "opencode"]),
        ("gpubox edit coder --set ctx-s", ["ctx-size="]),
        ("gpubox edit coder --set restart=", ["restart=true", "restart=false"]),
        ("gpubox edit coder --set ctx-size=", ["ctx-size=4096"]),
        ("gpubox edit coder --set=ctx-size=", ["--set=ctx-size=4096"]),
        ("gpubox edit coder --unset cache", ["cache-type-k"]),
        ("gpubox try coder --set cache-type-k=q8", ["cache-type-k=q8_0"]),
        ("gpubox bench ab coder --set cache-type-v=q8", ["cache-type-v=q8_0"]),
        ("gpubox bench sweep coder --over cache-type-k=f16,q8", ["cache-type-k=f16,q8_0"]),
        ("gpubox fit coder --set cache-type-v=q8", ["cache-type-v=q8_0"]),
        ("gpubox tune coder --kv-types f16,q8", ["f16,q8_0"]),
        ("gpubox fit coder --solve ctx", ["ctx-size"]),
        ("gpubox chat --set top_k", ["top_k="]),
        ("gpubox keys add x --models a,co", ["a,coder"]),
        ('gpubox switch "a', ["a"]),
    ],
)
def test_what_can_follow(line: str, expected: list[str]) -> None:
    assert sorted(words(line)) == sorted(expected)


def test_the_flags_of_the_profile_stand_first_with_a_word_about_them() -> None:
    rows = asked("gpubox edit coder --set ").stdout.splitlines()

    assert [row.split("\t")[1] for row in rows[:2]] == ["ctx-size=", "cache-type-k="]
    assert len(rows) > 100 and rows[0].split("\t")[2].startswith("size of the prompt context")
    assert "model=" not in [row.split("\t")[1] for row in rows[2:100]]  # the engine's; gpubox has a key for it


def test_bash_gets_what_stands_after_the_equals_sign() -> None:
    assert words("gpubox try coder --set cache-type-k=q8", "bash", "q8") == ["q8_0"]
    assert words("gpubox try coder --set ctx-size=", "bash", "=") == ["4096"]
    assert words('gpubox try coder --set "cache-type-k=q8', "bash", '"cache-type-k=q8') == ["cache-type-k=q8_0"]


def test_files_are_left_to_the_shell() -> None:
    assert asked("gpubox --config x").stdout == "file\tx\t\n"
    assert asked("gpubox chat --workdir ").stdout == "dir\t\t\n"
    assert asked("gpubox import ").stdout == "file\t\t\n"


def test_an_engine_that_was_never_asked_is_not_started(paths: Paths, tmp_path: Path) -> None:
    engine = tmp_path / "other"
    engine.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    engine.chmod(0o755)
    paths.config_file.write_text(f'default-engine = "other"\n[engines]\nother = "{engine}"\n')

    assert words("gpubox edit coder --set ctx") == ["ctx-size="]  # the profile's own flags are known without it
    assert not (tmp_path / "started").exists()


def test_odd_names_are_left_out_or_reach_the_shell_whole(paths: Paths) -> None:
    paths.chats.mkdir(parents=True)
    for name in ("a plan", "x$(touch evil)", "y;z", "n\nplain\tinjected\t"):
        (paths.chats / f"{name}.jsonl").write_text("{}\n")

    assert words("gpubox chat show ") == ["a plan"]


def test_a_mistake_is_no_answer_and_no_traceback(paths: Paths) -> None:
    paths.config_file.write_text("default-engine = [")

    for line in ("gpubox edit coder --set ctx", "gpubox switch ", "gpubox 'open"):
        done = asked(line)
        assert (done.stdout.strip(), done.stderr) == ("", ""), line


def test_no_screen_and_no_http_client_is_loaded() -> None:
    code = (
        "import sys; from gpubox.cli.commands.completion import answer; answer(); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env={**os.environ, "_GPUBOX_COMPLETE": "zsh_complete", "COMP_WORDS": "gpubox switch co", "COMP_CWORD": "co"},
    )  # fmt: skip
    assert "coder" in done.stdout
    assert not {"textual", "httpx", "aiohttp", "pynvml"} & set(done.stderr.split())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes(shell: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if not (program := shutil.which(shell)):
        pytest.skip(f"{shell} is not installed")
    assert gpubox(capfd, "completion", shell)[0] == 0
    (tmp_path / "gpubox").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpubox "$@"\n')
    (tmp_path / "gpubox").chmod(0o755)
    options, setup = SHELLS[shell]
    path, root = f"{tmp_path}:{os.environ['PATH']}", str(Path(__file__).parents[2])
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PATH": path, "TERM": "dumb", "PYTHONPATH": root, "PS1": "$ ", "HOME": str(tmp_path)}
        os.environ["XDG_RUNTIME_DIR"] = str(tmp_path)  # fish puts a pipe there, else into the current folder
        os.execv(program, [shell, *options])
    seen = ""

    def typed(keys: str, until: str) -> None:
        nonlocal seen
        seen, deadline = "", time.monotonic() + 30
        os.write(terminal, keys.encode())
        while not re.search(until, seen):
            assert time.monotonic() < deadline, seen
            if select.select([terminal], [], [], 0.1)[0]:
                data = os.read(terminal, 65536)
                if b"\x1b[c" in data:  # fish waits for a terminal to say what it is
                    os.write(terminal, b"\x1b[?1;2c")
                seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))

    try:
        typed(f"{setup}; echo rea''dy\n", "ready")
        typed("gpubox swit\t", "switch ")
        typed("co\t", "coder")
        typed("\x15gpubox edit coder --set cache-type-k=q8\t", "cache-type-k=q8_0")
        typed("\x15gpubox edit coder --set ctx-s\t", "ctx-size=")
        typed("\t", "=?4096")
        typed("\x01echo is \x05\n", r"\nis gpubox edit coder --set ctx-size=4096")  # no space stood between
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)
