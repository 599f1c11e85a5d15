"""The import rule of the house is part of the test run."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_imports_point_down(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)

    failed = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)

    assert not failed, capsys.readouterr().out


def test_the_rule_knows_every_room() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {room.strip() for layer in contracts[0]["layers"] for room in layer.replace("|", ":").split(":")}
    rooms = {
        f"gpubox.{p.stem}" for p in (ROOT / "gpubox").iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
    }

    assert rooms - layers == {"gpubox.__init__", "gpubox.__main__"}
    assert layers - {"gpubox.tui"} == set(contracts[1]["source_modules"])


@pytest.mark.parametrize("writer", ["print", "sys.stdout.write", "sys.stderr.write"])
def test_only_output_and_diagnostics_print(writer: str) -> None:
    guilty, name = [], writer.rpartition(".")[2]
    for path in (ROOT / "gpubox").rglob("*.py"):
        if name not in (source := path.read_text(encoding="utf-8")):
            continue  # most files: parsing all of them takes seconds
        calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
        if any(ast.unparse(call.func) == writer for call in calls):
            guilty.append(str(path.relative_to(ROOT)))

    # The embedded engine is a program of its own, and speaks as llama-server does; so is what measures a trial, which
    # answers the screen; the screen draws.
    free = (
        "gpubox/cli/output.py", "gpubox/cli/diagnostics.py", "gpubox/engines/embedded_", "gpubox/tui/",
        "gpubox/bench/trial_measurement.py",
    )  # fmt: skip
    assert [path for path in guilty if not path.startswith(free)] == []


def test_the_first_paint_imports_nothing_that_is_needed_only_later() -> None:
    painting = "import gpubox.cli.commands.screen, gpubox.tui.app, gpubox.tui.run, gpubox.tui.services"
    later = [
        "gpubox.acp", "gpubox.advisor", "gpubox.agent", "gpubox.hardware", "gpubox.sandbox", "gpubox.server",
        "gpubox.telemetry",
        "gpubox.tui.chat", "click", "httpx", "markdown_it", "msgspec", "psutil", "pygments", "pynvml",
        "textual.widgets._markdown",
    ]  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-c", f"{painting}, sys; print(sorted(set({later!r}) & set(sys.modules)))"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    assert result.stdout.strip() == "[]"


def test_a_chat_imports_nothing_of_other_agents_before_one_answers() -> None:
    program = (
        "import gpubox.agent.chat, gpubox.agent.loop, gpubox.tui.chat.chat_screen, sys; print(sorted(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert "gpubox.tui.chat.chat_screen" in result.stdout
    assert "gpubox.acp" not in result.stdout
