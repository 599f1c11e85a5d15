"""Ctrl-C at any moment of any verb: no traceback of gpubox, and the exit code of an interrupt.

What Python prints while it starts itself, before the first line of gpubox, nobody can keep from being printed.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import gpubox
from gpubox.cli.diagnostics import run_guarded
from gpubox.cli.main import VERBS

PACKAGE = str(Path(gpubox.__file__).parent)
QUICK = (
    ["ls"], ["status"], ["status", "--all"],
    ["show", "demo"], ["doctor"], ["engines"], ["chat", "ls"], ["bench", "ls"], ["--help"],
    ["export", "demo", "--as", "systemd"], ["history", "--requests"], ["chat", "run", "--", "true"],
)  # fmt: skip


def interrupted(words: list[str], delay: float) -> tuple[int, str]:
    with subprocess.Popen(
        [sys.executable, "-c", "from gpubox.cli.entry import main; main()", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        time.sleep(delay)  # Ctrl-C comes at a random moment
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


@pytest.mark.parametrize("words", QUICK, ids=lambda words: words[0])
def test_ctrl_c_prints_no_traceback_of_gpubox(words: list[str]) -> None:
    generator = random.Random(words[0])
    for _ in range(3):
        code, stderr = interrupted(words, generator.uniform(0.02, 0.4))

        assert PACKAGE not in stderr, stderr
        assert "Exception ignored" not in stderr, stderr
        if "Traceback" not in stderr and "Fatal Python error" not in stderr:  # else Python itself was starting
            assert code in (130, -signal.SIGINT) or code in range(7), (code, stderr)


def test_what_is_imported_before_ctrl_c_is_heard_is_nothing_of_weight() -> None:
    script = (
        "import sys; before = set(sys.modules); import gpubox.cli.interrupts;"
        "print(*sorted(set(sys.modules) - before - {'gpubox', 'gpubox.cli', 'gpubox.cli.interrupts'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) <= {"__future__"}
    assert len(VERBS) > 10


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from gpubox.cli import interrupts; interrupts.exit_on_interrupt(); interrupts.raise_on_interrupt();"
        "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    )

    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"


def test_an_interrupt_in_a_finalizer_is_not_lost_and_not_printed() -> None:
    script = """
import signal, time
from gpubox.cli import interrupts
interrupts.exit_on_interrupt(); interrupts.raise_on_interrupt()
class Late:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
try:
    Late()
    time.sleep(30)
except KeyboardInterrupt:
    print("heard")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert (done.stdout, done.stderr) == ("heard\n", "")


def test_an_interrupt_before_the_first_step_prints_no_warning(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    async def work() -> int:
        return 0

    monkeypatch.setattr(asyncio.Runner, "run", interrupt)
    with warnings.catch_warnings():
        assert run_guarded(lambda: asyncio.run(work())) == 130
        gc.collect()
    assert capfd.readouterr().err == "gpubox: interrupted\n"
