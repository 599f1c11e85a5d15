"""``gpubox advice``: exit codes, JSON, dismissing, and a server that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.paths import Paths
from tests.cli.verbs import gpubox, values

pytestmark = pytest.mark.usefixtures("box")


def test_without_a_server_and_a_profile_it_exits_3(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = gpubox(capfd, "advice")
    assert (code, out) == (3, "") and "gpubox advice PROFILE" in err


def test_an_unknown_profile_or_advice_exits_2(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    assert gpubox(capfd, "advice", "nope")[0] == 2
    assert gpubox(capfd, "advice", "nope", "--dismiss", "mmap")[0] == 2
    code, _, err = gpubox(capfd, "advice", "a", "--dismiss", "mmapp")
    assert code == 2 and "Did you mean 'mmap'?" in err
    assert gpubox(capfd, "advice", "a", "--dismiss", "mmap", "--restore", "mmap")[0] == 2
    assert not paths.dismissed_advice.exists()


def test_advice_names_evidence_flags_and_the_verb_that_tries_them(
    capfd: pytest.CaptureFixture[str], paths: Paths, tiny_gguf: Path
) -> None:
    (paths.profiles / "open.toml").write_text(f'model = "{tiny_gguf}"\nhost = "0.0.0.0"\n')
    code, out, _ = gpubox(capfd, "advice", "open")
    assert code == 0 and out.startswith("exposed: Every machine that reaches this one may use the model")
    assert "+ host = 127.0.0.1" in out and "gpubox try open --set host=127.0.0.1" in out

    code, said = values(capfd, "advice", "open")
    (advice,) = said["advice"]
    assert code == 0 and said["profile"] == "open" and said["bottleneck"] is None
    assert (advice["rule"], advice["word"], advice["changes"]) == ("exposed", "exposed", {"host": "127.0.0.1"})
    assert advice["try_profile"] == "open" and not advice["dismissed"] and advice["evidence"]


def test_a_dismissed_advice_is_shown_only_with_all(
    capfd: pytest.CaptureFixture[str], paths: Paths, tiny_gguf: Path
) -> None:
    (paths.profiles / "open.toml").write_text(f'model = "{tiny_gguf}"\nhost = "0.0.0.0"\n')
    assert gpubox(capfd, "advice", "open", "--dismiss", "exposed")[0] == 0
    assert gpubox(capfd, "advice", "open")[1] == "open: nothing to advise. 1 dismissed; --all shows it.\n"
    said = values(capfd, "advice", "open")[1]
    assert said["advice"] == [] and said["dismissed"] == 1
    assert [each["dismissed"] for each in values(capfd, "advice", "open", "--all")[1]["advice"]] == [True]
    assert gpubox(capfd, "advice", "open", "--restore", "exposed")[0] == 0
    assert len(values(capfd, "advice", "open")[1]["advice"]) == 1


def test_what_runs_is_judged_without_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert gpubox(capfd, "start", "a")[0] == 0
    code, said = values(capfd, "advice")
    assert (code, said["profile"], said["advice"]) == (0, "a", [])
    assert said["bottleneck"] or said["bottleneck_reason"]
    assert values(capfd, "advice", "b")[1]["profile"] == "b"  # another one, by its file
