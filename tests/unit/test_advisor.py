"""The advisor: every rule on a recording on which it fires and one on which it is silent; what it gathers and keeps."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubox.advisor.advice import Judgement, Rule
from gpubox.advisor.advisor import APPLIED, Advisor
from gpubox.advisor.dismissed import Dismissals
from gpubox.advisor.evidence import BusyWindow, ContextUse, Evidence, LogFacts, ModelFacts, build_number, facts_of_load
from gpubox.advisor.rules import table
from gpubox.advisor.rules.context import wanted_context
from gpubox.advisor.rules.table import RULES, advise
from gpubox.config import Config, load_config
from gpubox.errors import GpuboxError, UsageError
from gpubox.hardware.process import identity_of
from gpubox.paths import Paths
from gpubox.planner.launch_flags import read_launch_flags
from gpubox.server.state import Launch, RunningServer
from gpubox.telemetry.offload import BOTTLENECKS
from gpubox.telemetry.recorder import read_recording
from tests.unit.advice_cases import CASES, DENSE, HYBRID, RECORDINGS, SHIPPED, Case, facts, recorded


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_rule_fires_on_its_recording_alone(case: Case) -> None:
    given = advise(case.evidence)

    assert [advice.rule for advice in given] == ([case.fires] if case.fires else [])
    for advice in given:
        assert advice.word and advice.sentence.endswith(".") and advice.evidence
        assert bool(advice.command) == bool(advice.changes)


def test_every_rule_has_a_recording_on_which_it_fires_and_is_silent_on_the_others() -> None:
    fired = {case.fires for case in CASES} - {""}

    assert fired == {rule.id for rule in RULES}
    assert {case.recording for case in CASES} == {path.stem for path in RECORDINGS.glob("*.jsonl")}
    assert sum(path.stat().st_size for path in RECORDINGS.glob("*.jsonl")) < 600_000


def test_no_rule_fires_on_the_shipped_recording_without_cause() -> None:
    flags = {"rpc": "127.0.0.1:1", "n-cpu-moe": "7", "parallel": "2", "ctx-size": "262144", "spec-type": "draft-mtp"}
    given = advise(recorded(SHIPPED, facts({**flags, "cache-type-k": "bf16", "cache-type-v": "bf16"})))

    assert given == ()


def test_a_rule_is_one_file_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would hold this value; RULES would get one line."""
    judgement = Judgement("Nothing is wrong.", ("seen",), (("parallel", 1),))
    dummy = Rule("dummy", "calm", lambda evidence: judgement)
    monkeypatch.setattr(table, "RULES", (*RULES, dummy))

    given = advise(recorded(SHIPPED, facts({"parallel": "2"})))

    assert given[-1].rule == "dummy" and given[-1].diff == ("- parallel = 2", "+ parallel = 1")


SAID = {
    "PCIe": ("link to the card",),
    "paging": ("waits for weights", "weights from the disk"),
    "CPU": ("CPU is the bottleneck",),
}
"""Words of a sentence that say what slows the server."""


@pytest.mark.parametrize("case", [case for case in CASES if case.fires], ids=lambda case: case.id)
def test_advice_never_contradicts_what_a_pane_says_slows_the_server(case: Case) -> None:
    """Whatever is named now and in most of the last minutes: other programs take the cores, say."""
    evidence = case.evidence
    assert evidence.snapshot
    for now, before in product((None, *BOTTLENECKS), BOTTLENECKS):
        offload = replace(evidence.snapshot.offload, bottleneck=now, threads_asked=1)
        busy = replace(evidence.busy, count=12, bottlenecks={before: 12})
        for advice in advise(replace(evidence, snapshot=replace(evidence.snapshot, offload=offload), busy=busy)):
            for part, words in SAID.items():
                if any(word in advice.sentence for word in words):
                    assert {now, before} - {None, "client"} <= {part, f"{part} experts"}, advice.sentence


def test_rules_are_cheap() -> None:
    evidence = [case.evidence for case in CASES]
    began = time.process_time()
    for each in evidence:
        advise(each)

    assert (time.process_time() - began) / len(evidence) < 0.01  # seconds; measured: 0.2 ms


def test_a_rule_says_nothing_about_a_profile_that_does_not_run() -> None:
    assert advise(facts({"n-cpu-moe": "20", "load-mode": "mmap", "threads": "64"})) == ()
    assert [a.rule for a in advise(facts({}, host="0.0.0.0", exposed=True))] == ["exposed"]


@pytest.mark.parametrize("flags", [{"ctx-size": "many"}, {"parallel": True}, {"tensor-split": "a,b"}])
def test_flags_with_wrong_values_raise_nothing(flags: dict[str, str]) -> None:
    for path in RECORDINGS.glob("*.jsonl"):
        advise(recorded(path, facts(flags)))


def test_the_context_must_hold_twice_the_largest_request() -> None:
    flags = read_launch_flags({"ctx-size": 131072, "parallel": 1}, {})

    def wanted(requests: int, largest: int, slots: int = 1) -> int | None:
        return wanted_context(flags, ContextUse(requests, largest, slots, "a test"), 131072, 131072)

    assert wanted(49, 1000) is None  # too few to know
    assert wanted(50, 1000) == 4096
    assert wanted(50, 20_000) == 40_960
    assert wanted(50, 32_768) == 65_536
    assert wanted(50, 32_769) is None  # more than a quarter is used
    assert wanted(50, 0) == 4096


def test_unified_slots_share_the_context_that_is_wanted() -> None:
    flags = read_launch_flags({"ctx-size": 65536}, {})

    assert wanted_context(flags, ContextUse(60, 1000, 3, "a test"), 65536, 65536) == 3 * 4096


# -- what is gathered -------------------------------------------------------------------------------------


def test_the_window_keeps_only_readings_of_a_server_that_works() -> None:
    window = BusyWindow()
    for snapshot in read_recording(RECORDINGS / "mmap-fires.jsonl"):
        window.feed(snapshot)
        window.feed(snapshot)  # the same again counts once
    busy = window.readings
    assert busy.count == 12 and busy.faults_per_second is not None and busy.faults_per_second > 20
    assert busy.share("PCIe") == 0

    other = replace(snapshot, at=snapshot.at + 1, server=replace(snapshot.server, pid=1))
    window.feed(replace(other, throughput=replace(other.throughput, state="idle")))
    assert window.readings.count == 0  # another server: nothing is known of it

    window.feed(replace(other, at=snapshot.at - 1000))
    window.feed(replace(other, at=snapshot.at - 2000))  # the clock went back
    assert window.readings.count == 1


@pytest.mark.parametrize(
    ("version", "build"),
    [
        ("0.1.2-dev (build 10525, commit 2cfdb5fc0)", 10525),
        ("0.6.0-dev (build 0, commit unknown)", None),
        ("version: 9413 (24d6d7c)", 9413),
        ("b9413", 9413),
        ("", None),
    ],
)
def test_the_build_number_is_read_only_where_there_is_one(version: str, build: int | None) -> None:
    assert build_number(version) == build


def test_a_log_tells_how_the_engine_was_built_and_how_it_loads() -> None:
    log = (
        "0.00.1 I cmn common_param: system_info: n_threads = 8 | CUDA : ARCHS = 890 | FA_ALL_QUANTS = 1 | CPU : AVX\n"
        "0.00.2 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)\n"
    )
    assert facts_of_load(log) == LogFacts(all_quants=True, load_mode="mmap")
    assert facts_of_load("nothing of that\x00") == LogFacts()


@pytest.fixture
def advisor(paths: Paths, fake_engine: Path, tiny_gguf: Path, write_profile: Callable[[str, str], Path]) -> Advisor:
    """An advisor on a machine with one profile, that everybody may reach."""
    write_profile("open", f'model = "{tiny_gguf}"\nhost = "0.0.0.0"\n')
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\nfake = "{fake_engine}"\n')
    config = load_config(paths)
    return Advisor(paths, lambda: config)


def test_a_profile_is_judged_by_its_file(advisor: Advisor, paths: Paths) -> None:
    judged = advisor.advise("open")
    assert [advice.rule for advice in judged.shown] == ["exposed"]
    assert judged.shown[0].command == "gpubox try open --set host=127.0.0.1"
    assert judged.shown[0].diff == ("- host = 0.0.0.0", "+ host = 127.0.0.1")

    (paths.config / "api-key").write_text("secret-key-of-a-test\n")
    (paths.config / "api-key").chmod(0o600)
    assert advisor.advise("open").shown == ()


def test_a_profile_may_change_vanish_and_break_while_it_is_judged(advisor: Advisor, paths: Paths) -> None:
    assert advisor.advise("open").shown
    (paths.profiles / "open.toml").write_text("model = 1\n")
    with pytest.raises(UsageError):
        advisor.advise("open")
    (paths.profiles / "open.toml").unlink()
    with pytest.raises(UsageError):
        advisor.advise("open")
    assert advisor.advise("").profile == ""


def test_the_evidence_about_a_server_without_a_file_is_complete(advisor: Advisor) -> None:
    snapshot = list(read_recording(RECORDINGS / "threads-fires.jsonl"))[-1]
    judged = advisor.advise(snapshot=snapshot)  # the profile "threads" is not on this machine

    assert judged.profile == "threads"
    assert all(advice.try_profile is None for advice in judged.advice)


def test_a_running_server_has_the_variables_of_the_gpubox_that_started_it(
    advisor: Advisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = list(read_recording(RECORDINGS / "threads-fires.jsonl"))[-1]
    launch = Launch("open", ("llama-server",), "127.0.0.1", 8080, env={"LLAMA_ARG_UBATCH": "64"})
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "LLAMA_ARG_N_PARALLEL": "3"}) as server:
        running = RunningServer(launch, "id", "2026-01-01T00:00:00Z", identity_of(server.pid))
        monkeypatch.setattr("gpubox.advisor.advisor.observe", lambda *_: SimpleNamespace(running=running))
        flags = advisor.evidence("open", None, snapshot).memory_flags
        server.kill()

    assert flags and (flags.slots, flags.ubatch) == (3, 64)


@pytest.mark.parametrize("name", ["threads", "t"])
def test_a_change_that_the_file_has_already_is_not_suggested(
    advisor: Advisor, paths: Paths, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    import gpubox.advisor.advisor as module

    case = next(case for case in CASES if case.fires == "threads")
    (paths.profiles / "open.toml").write_text(f'model = "x.gguf"\n[flags]\n{name} = 2\n')
    monkeypatch.setattr(module.Advisor, "evidence", lambda *_: replace(case.evidence, profile="open"))
    (advice,) = advisor.advise("open").advice

    assert advice.sentence.endswith(APPLIED) and not advice.changes and not advice.command


def test_a_flag_to_remove_may_have_another_name_in_the_file(
    advisor: Advisor, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = recorded(RECORDINGS / "re-reads-fires.jsonl", facts({"parallel": "1", "ctx-checkpoints": "8"}))
    (paths.profiles / "open.toml").write_text('model = "x.gguf"\n[flags]\nswa-checkpoints = 8\n')
    monkeypatch.setattr(Advisor, "evidence", lambda *_: replace(evidence, profile="open"))
    (advice,) = (advice for advice in advisor.advise("open").advice if advice.rule == "re-reads")

    assert advice.command == "gpubox try open --unset ctx-checkpoints"


def test_threads_take_turns(advisor: Advisor, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[int] = []
    most: list[int] = []

    def evidence(*_: object) -> Evidence:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return facts({})

    monkeypatch.setattr(Advisor, "evidence", evidence)
    threads = [threading.Thread(target=advisor.advise, args=("open",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert most == [1, 1, 1]


# -- dismissing -------------------------------------------------------------------------------------------


def test_an_advice_is_dismissed_for_one_profile_and_for_good(advisor: Advisor, paths: Paths) -> None:
    advisor.dismissals.dismiss("open", "exposed")
    advisor.dismissals.dismiss("other", "mmap")
    later = Advisor(paths, Config)

    assert Dismissals(paths).of("open") == {"exposed"}
    assert [advice.dismissed for advice in later.advise("open").advice] == [True]
    assert later.advise("open").shown == ()
    later.dismissals.restore("open", "exposed")
    assert len(later.advise("open").shown) == 1
    assert Dismissals(paths).of("other") == {"mmap"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"dismissed": 3}', '{"dismissed": {"a": null}}', "[" * 100_000])
def test_a_damaged_file_counts_as_empty_and_is_kept(paths: Paths, text: str) -> None:
    paths.state.mkdir(parents=True, exist_ok=True)
    paths.dismissed_advice.write_text(text)
    dismissals = Dismissals(paths)
    assert dismissals.of("a") == frozenset()

    dismissals.dismiss("a", "mmap")
    assert dismissals.of("a") == {"mmap"}
    assert paths.dismissed_advice.with_suffix(".damaged").read_text() == text


def test_a_full_disk_is_said(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpubox.advisor.dismissed.write_atomically", full)
    with pytest.raises(GpuboxError, match="No space left"):
        Dismissals(paths).dismiss("a", "mmap")


def _dismiss_many(paths: Paths, name: str) -> None:
    for rule in RULES:
        Dismissals(paths).dismiss(name, rule.id)


def test_two_gpuboxes_dismiss_at_once(paths: Paths) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_dismiss_many, args=(paths, name)) for name in ("a", "b")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)

    everything = {rule.id for rule in RULES}
    assert Dismissals(paths).of("a") == everything == Dismissals(paths).of("b")
    assert json.loads(paths.dismissed_advice.read_text())["schema"] == 1


def test_a_model_is_described_by_its_header(tiny_gguf: Path, paths: Paths) -> None:
    from gpubox.models.header_cache import read_model

    model = ModelFacts.of(read_model(tiny_gguf, paths))
    assert not model.hybrid and not model.thinks
    assert Evidence("p", model=DENSE).model != HYBRID
