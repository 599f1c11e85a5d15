"""``gpubox bench quality`` with recorded output of llama-perplexity, through the verbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.run_store import find_run
from gpubox.paths import Paths
from tests.cli.verbs import gpubox
from tests.quality_program import write_model, write_program


@pytest.fixture
def quants(box: int, tmp_path: Path, write_profile: Any) -> Path:
    """Profiles f16, q8_0, q4_0, q2_k, other (another vocabulary), broken and slow."""
    write_program(tmp_path)
    for name in ("f16", "q8_0", "q4_0", "q2_k", "broken", "slow"):
        path = write_model(tmp_path, name)
        write_profile(name, f'model = "{path}"\nport = 0\n[flags]\nthreads = 2\nctx-size = 4096\n')
    other = write_model(tmp_path, "other", ["<s>", "x", "y", "z"])
    write_profile("other", f'model = "{other}"\nport = 0\n')
    return tmp_path


def calls(folder: Path) -> list[str]:
    path = folder / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_quants_are_ordered_with_disjoint_intervals(quants: Path, paths: Paths, capfd: Any) -> None:
    code, out, err = gpubox(capfd, "bench", "quality", "f16", "f16", "q8_0", "q4_0", "q2_k", "--json")

    assert code == 0, err
    assert "The logits of the reference need up to" in err  # the size is said before
    values = json.loads(out)
    by_target: dict[str, dict[str, Any]] = {}
    for metric in values["report"]["metrics"]:
        by_target.setdefault(metric["target"], {})[metric["name"]] = metric["estimate"]
    kls = [by_target[name]["KL"] for name in ("f16 again", "q8_0", "q4_0", "q2_k")]
    assert kls[0]["value"] == pytest.approx(0, abs=1e-6)
    assert values["report"]["verdict"].startswith("f16 again is closest to f16. f16 again expects the same next word")
    assert all(a["high"] < b["low"] for a, b in pairwise(kls))
    # What llama-perplexity itself printed for q4_0: mean, median and 99 % of KL, same top token, perplexity.
    q4 = by_target["q4_0"]
    assert q4["KL"]["value"] == pytest.approx(0.280339, abs=2e-5)
    assert q4["same top token"]["value"] == pytest.approx(71.868, abs=1e-3)
    assert q4["perplexity"]["value"] == pytest.approx(21.119621, abs=1e-3)
    assert values["run"]["provenance"]["q4_0"]["model_sha256"]
    assert calls(quants) == ["f16 base", "f16 compared", "q8_0 compared", "q4_0 compared", "q2_k compared"]
    assert not list(find_run(paths, "last").folder.glob("scratch*"))  # the logits are deleted
    code, out, _ = gpubox(capfd, "bench", "show", "last", "--as", "markdown")
    assert code == 0
    assert "| q2_k − q4_0 |" in out
    assert "farther" in out


def test_a_kv_type_is_a_target(quants: Path, capfd: Any) -> None:
    words = ("f16", "f16:cache-type-k=q8_0", "--set", "cache-type-k=q4_0", "--dry-run", "--json")
    code, out, err = gpubox(capfd, "bench", "quality", *words)

    assert code == 0, err
    assert json.loads(out)["targets"] == ["f16", "f16 cache-type-k=q8_0", "f16 cache-type-k=q4_0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("f16",), "nothing to compare with"),
        (("f16", "nope"), "nope"),
        (("f16", "other"), "f16 and other have two vocabularies (4 and 4 tokens with other texts)"),
        (("f16", "q8_0", "--reference", "gone"), "gone"),
        (("f16", "q8_0:threads"), "sets no flag"),
        (("f16", "q8_0:thread=2"), "no such flag"),
        (("f16", "q8_0", "--chunks", "1"), "--chunks"),
        (("f16", "q8_0", "--context", "129"), "even number"),
        (("f16", "q8_0", "--text", "/no/such/file"), "cannot be read"),
        (("f16", "beside"), "companion"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    words: tuple[str, ...], message: str, quants: Path, capfd: Any
) -> None:
    code, out, err = gpubox(capfd, "bench", "quality", *words)

    assert code != 0
    assert message in err
    assert not out
    assert calls(quants) == []


def test_an_engine_without_the_program_is_named(quants: Path, capfd: Any) -> None:
    (quants / "llama-perplexity").unlink()

    code, _, err = gpubox(capfd, "bench", "quality", "f16", "q4_0")

    assert code != 0
    assert "f16 has no llama-perplexity beside its engine" in err and "gpubox engines build" in err


def test_a_full_disk_is_said_before_anything_runs(quants: Path, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("gpubox.bench.kinds.quality.program.free_bytes", lambda folder: 1 << 29)

    code, _, err = gpubox(capfd, "bench", "quality", "f16", "q4_0")

    assert code == 1
    assert "The logits of the reference need up to" in err and "Ask for fewer --chunks" in err
    assert calls(quants) == []


def test_logits_that_were_cut_off_are_no_reference(quants: Path, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FAKE_DISK_FULL", "1")

    code, out, _ = gpubox(capfd, "bench", "quality", "f16", "q4_0")

    assert code == 0  # the run is complete: its outcome is that nothing could be measured
    assert "did not write all logits" in out
    assert "the reference f16 was not measured" in out
    assert calls(quants) == ["f16 base"]


def test_a_target_that_does_not_load_is_a_result(quants: Path, capfd: Any) -> None:
    code, out, _ = gpubox(capfd, "bench", "quality", "f16", "broken", "q4_0")

    assert code == 0
    assert "missing tensor 'w'" in out
    assert "0.2803" in out


def test_a_killed_run_goes_on_and_the_program_does_not_outlive_gpubox(quants: Path, paths: Paths, capfd: Any) -> None:
    command = [sys.executable, "-m", "gpubox", "bench", "quality", "f16", "slow"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _until(lambda: calls(quants) == ["f16 base", "slow compared"])
        program = _pid_of(str(quants / "slow.gguf"))
        process.kill()
    _until(lambda: not Path(f"/proc/{program}").exists())
    scratch = find_run(paths, "last").folder / "scratch"
    assert (scratch / "reference.logits").is_file()
    (quants / "go").touch()

    code, out, err = gpubox(capfd, "bench", "resume", "--json")

    assert code == 0, err
    assert calls(quants) == ["f16 base", "slow compared", "slow compared"]  # the logits of before are used
    assert not scratch.exists()
    metrics = json.loads(out)["report"]["metrics"]
    assert [m["estimate"]["n"] for m in metrics if (m["name"], m["target"]) == ("KL", "slow")] == [19]


def test_logits_that_are_gone_are_written_again(quants: Path, paths: Paths, capfd: Any) -> None:
    assert gpubox(capfd, "bench", "quality", "f16", "q4_0")[0] == 0
    run = find_run(paths, "last")
    results = run.folder / "results.jsonl"
    for path in (results, run.folder / "raw.jsonl"):  # as if it had been killed after the reference
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    (run.folder / "run.json").write_text((run.folder / "run.json").read_text().replace('"finished"', '"interrupted"'))

    code, _, err = gpubox(capfd, "bench", "resume")

    assert code == 0, err
    assert "are written again" in err
    assert calls(quants)[2:] == ["f16 base", "q4_0 compared"]


def _pid_of(word: str) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words and int(path.parent.name) != os.getpid() and b"bench" not in words:
            return int(path.parent.name)
    raise AssertionError(f"no process has {word}")


def _until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
