"""A profile that runs elsewhere: every verb says so in one sentence, and none looks for its model or its engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.verbs import gpubox, values

SENTENCE = "far runs elsewhere, at http://box2:11434; gpubox does not start it."


@pytest.fixture(autouse=True)
def far(write_profile: Callable[[str, str], Path]) -> None:
    """Nothing that it names is on this machine."""
    write_profile("far", 'upstream = "http://box2:11434/v1"\nmodel = "qwen3:8b"\nengine = "none"\naliases = ["big"]\n')


@pytest.mark.parametrize(
    "words",
    ["start far", "switch far", "restart far", "try far --set port=1 --revert --no-measure", "bench speed far",
     "export far --as systemd", "show far --command"],
)  # fmt: skip
def test_it_is_not_launched(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = gpubox(capfd, *words.split())
    assert (code, out) == (2, "")
    assert SENTENCE in err


def test_it_is_listed_and_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert ["→", "far", *SENTENCE.split()] in [line.split() for line in gpubox(capfd, "ls")[1].splitlines()]
    (row,) = [each for each in values(capfd, "ls")[1]["profiles"] if each["name"] == "far"]
    assert (row["upstream"], row["engine_accepts"], row["memory_verdict"]) == ("http://box2:11434", True, "unknown")
    assert f"→ {SENTENCE} Its model there: qwen3:8b." in gpubox(capfd, "show", "far")[1]
    code, shown = values(capfd, "show", "far")
    assert (code, shown["command"], shown["engine_accepts"], shown["aliases"]) == (0, None, None, ["big"])
    assert SENTENCE in gpubox(capfd, "fit", "far")[1]
    settings = json.loads(gpubox(capfd, "connect", "opencode", "--model", "far")[1])
    assert "http://box2:11434/v1" in json.dumps(settings) and settings["model"] == "gpubox/qwen3:8b"


def test_a_copy_has_no_aliases_and_a_clash_is_named(
    capfd: pytest.CaptureFixture[str], write_profile: Callable[[str, str], Path]
) -> None:
    assert gpubox(capfd, "edit", "far", "--copy", "copy")[0] == 0
    assert values(capfd, "show", "copy")[1]["aliases"] == []
    assert gpubox(capfd, "edit", "copy", "--set", "aliases=copy2,big")[0] == 0

    _, _, err = gpubox(capfd, "ls")

    assert "copy and far have the same alias 'big': it means neither of them." in err
    assert values(capfd, "ls")[1]["alias_clashes"] == [
        "copy and far have the same alias 'big': it means neither of them."
    ]
    assert values(capfd, "show", "copy")[1]["aliases"] == ["copy2"]
    assert "have the same alias 'big'" in gpubox(capfd, "doctor")[1]
