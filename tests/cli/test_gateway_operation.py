"""The child program of the gateway: what it stops, what it brings back, and what a kill at any step leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.model import Plan, Target
from gpubox.bench.run_store import create_run
from gpubox.cli.main import run
from gpubox.config import Config, load_config
from gpubox.errors import GpuboxError
from gpubox.gateway.operation import OperationChannel, run_operation
from gpubox.gateway.servers import ProfileTable
from gpubox.hardware.process import find_by_marker, own_identity
from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server.held_instance import InstanceBusy
from gpubox.server.instance import instance_names, observe
from gpubox.server.state import TrialRecord
from gpubox.server.supervisor import Supervisor
from gpubox.storage import lock_file
from tests.conftest import until
from tests.gateway_child import Child

Start = Callable[..., Child]


@pytest.fixture
def start(paths: Paths, fake_engine: Path, tiny_gguf: Path, tmp_path: Path,
          write_profile: Callable[[str, str], Path]) -> Iterator[Start]:  # fmt: skip
    """Profiles a and b, c beside them; bad ones: a wrong flag, no model, an engine that dies, and one that hangs."""
    dies, hangs, own = (tmp_path / name for name in ("dies", "hangs", "own"))
    for script, does in ((dies, "echo 'error: no room' >&2; exit 1"), (hangs, "sleep 3600"), (own, "")):
        case = f"  *'--port'*) {does} ;;\n" if does else ""
        script.write_text(fake_engine.read_text().replace("  *) exec", f"{case}  *) exec"))
        script.chmod(0o755)
    for name, more in {
        "a": 'host = "0.0.0.0"\n', "b": "", "c": "companion = true\n", "pinned": "pinned = true\n",
        "busy": '[env]\nFAKE_BUSY = "1"\n', "flag": "[flags]\nnope = 1\n", "gone": "",
        "dies": 'engine = "dies"\n', "hangs": 'engine = "hangs"\n',
        "own": 'engine = "own"\ncompanion = true\n',
    }.items():  # fmt: skip
        model = tmp_path / "no.gguf" if name == "gone" else tiny_gguf
        write_profile(name, f'model = "{model}"\nport = 0\n{more}')
    write_profile("far", 'upstream = "http://box2:8080"\n')
    engines = f'fake = "{fake_engine}"\ndies = "{dies}"\nhangs = "{hangs}"\nown = "{own}"\n'
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\n{engines}')
    children: list[Child] = []

    def child(profile: str, kind: str = "start", **more: object) -> Child:
        children.append(Child(paths, {"kind": kind, "profile": profile, "asked_by": "opencode", **more}))
        return children[-1]

    yield child
    for each in children:
        each.process.kill()
        each.process.wait()
        with contextlib.suppress(OSError):
            each.leave()
    for identity, _ in find_by_marker(f"{paths.state}|"):
        os.kill(identity.pid, signal.SIGKILL)


def at_once(paths: Paths, *lines: object) -> list[dict[str, Any]]:
    """What the program prints that finds these lines on its stdin. It runs in this process."""
    (source, said), (heard, sink) = os.pipe(), os.pipe()
    os.write(said, "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode())
    os.close(said)
    try:
        code = run_operation(OperationChannel(source, sink), ProfileTable(paths, Config()))
    finally:
        os.close(source)
        os.close(sink)
    with os.fdopen(heard, "rb") as file:
        events = [json.loads(line) for line in file]
    assert code == events[-1].get("exit_code", 0)
    return events


def running(paths: Paths) -> dict[str, str]:
    """Instance -> profile of all running servers."""
    views = (observe(paths, name) for name in instance_names(paths))
    return {view.instance: view.running.launch.profile for view in views if view.running}


def pids(paths: Paths) -> set[int]:
    return {identity.pid for identity, _ in find_by_marker(f"{paths.state}|")}


def test_start_switch_and_unload(start: Start, paths: Paths) -> None:
    child = start("a")
    assert child.until("placed") == {"event": "placed", "instances": ["main"]}
    assert running(paths) == {}
    assert child.end() == 0
    launch = observe(paths, "main").state.last_good
    assert launch and (launch.host, launch.profile) == ("127.0.0.1", "a") and launch.port > 1024

    child = start("b", idle_seconds={"main": 3.5}, new=1)
    assert child.until("placed")["instances"] == ["main"]
    view = observe(paths, "main")
    assert view.operation and (view.operation.kind, view.operation.asked_by) == ("switch", "opencode")
    assert child.end() == 0
    finished = next(each for each in child.seen if each["event"] == "OperationFinished")
    assert (finished["kind"], finished["asked_by"], finished["ok"]) == ("switch", "opencode", True)
    assert running(paths) == {"main": "b"}

    child = start("b")
    assert child.until("placed")["instances"] == ["main"]
    assert child.until("finished")["ok"] is True and child.wait() == 0  # it ran already

    child = start("c")  # a companion: beside
    assert child.until("placed") == {"event": "placed", "instances": ["c"]}
    assert child.end() == 0
    assert running(paths) == {"main": "b", "c": "c"}

    child = start("b", "stop")
    assert child.until("placed") == {"event": "placed", "instances": ["main"]}
    assert child.end() == 0
    assert running(paths) == {"c": "c"}
    assert observe(paths, "main").message == "b was unloaded: idle, or a client asked for it."


@pytest.mark.parametrize(
    ("profile", "kind", "code", "says"),
    [
        ("flag", "start", 2, "nope"),
        ("gone", "start", 1, "no.gguf"),
        ("far", "start", 1, "far runs elsewhere, at http://box2:8080"),
        ("nobody", "start", 2, "There is no profile 'nobody'"),
        ("b", "stop", 3, "b is not running"),
    ],
)
@pytest.mark.usefixtures("start")
def test_what_a_check_refuses_touches_nothing(paths: Paths, profile: str, kind: str, code: int, says: str) -> None:
    assert run(["start", "c"]) == 0
    before = pids(paths)

    *events, failed = at_once(paths, {"kind": kind, "profile": profile}, "go")

    assert (failed["event"], failed["exit_code"], failed["temporary"]) == ("failed", code, False)
    assert says in failed["message"]
    assert "placed" not in [each["event"] for each in events]
    assert pids(paths) == before


def test_what_dies_in_its_load_brings_back_all_that_stopped_for_it(start: Start, paths: Paths) -> None:
    assert run(["start", "c"]) == 0
    assert start("a").end() == 0
    before, launches = pids(paths), [observe(paths, name).state.last_good for name in ("main", "c")]

    supervisor = Supervisor(paths, load_config(paths), asked_by="aider")
    with pytest.raises(GpuboxError, match=r"dies: .*no room.*a is restored .* c is restored"):
        asyncio.run(supervisor.place(load_catalog(paths).get("dies"), displaces=("c", "main")))

    assert running(paths) == {"main": "a", "c": "c"}
    assert before.isdisjoint(pids(paths)) and len(pids(paths)) == 2
    assert [observe(paths, name).running.launch for name in ("main", "c")] == launches  # type: ignore[union-attr]
    assert all(observe(paths, name).operation is None for name in ("main", "c"))


def test_one_that_cannot_come_back_is_named_and_the_others_do(start: Start, paths: Paths, tmp_path: Path) -> None:
    assert run(["start", "own"]) == 0
    assert start("a").end() == 0
    (tmp_path / "own").unlink()  # its engine is gone: what runs goes on, and cannot be started again

    with pytest.raises(GpuboxError, match=r"no room.* a is restored .*own could not be restored: .* cannot be "):
        asyncio.run(Supervisor(paths, load_config(paths)).place(load_catalog(paths).get("dies"), displaces=("own",)))

    assert running(paths) == {"main": "a"}
    assert observe(paths, "own").message.startswith("own could not be restored: ")
    assert observe(paths, "own").state.running is None and observe(paths, "main").message == ""


def test_a_server_that_is_killed_in_its_load_is_started_once_more(start: Start, paths: Paths, tmp_path: Path) -> None:
    assert start("a").end() == 0
    own, mark = tmp_path / "own", tmp_path / "killed"
    kills = f"""*) case "$*" in *log-jsonl*) ;; *) [ -e '{mark}' ] || {{ : >'{mark}'; kill -9 $$; }} ;; esac; exec"""
    own.write_text(own.read_text().replace("*) exec", kills))

    child = start("own")

    assert child.end() == 0 and mark.exists()
    assert "killed by SIGKILL" in next(each["sentence"] for each in child.seen if each["event"] == "StepFailed")
    assert running(paths) == {"main": "a", "own": "own"}


def test_the_gateway_gives_up_before_go(start: Start, paths: Paths) -> None:
    assert start("a").end() == 0
    before = pids(paths)

    left = start("b")
    left.until("placed")
    left.leave()  # kill -9 of the gateway
    assert left.wait() == 130
    ended = start("b")
    ended.until("placed")
    ended.process.send_signal(signal.SIGTERM)
    failed = ended.until("failed")
    assert (ended.wait(), failed["temporary"], failed["message"]) == (
        130, True, "It was cancelled; nothing was touched."
    )  # fmt: skip

    assert pids(paths) == before
    assert observe(paths, "main").operation is None and observe(paths, "main").message == ""


@pytest.mark.parametrize("step", ["stop", "load"])
def test_the_gateway_is_killed_after_go(start: Start, paths: Paths, step: str) -> None:
    assert start("a").end() == 0

    child = start("b")
    child.until("placed")
    child.say("go")
    child.until("StepStarted", step=step)
    child.leave()

    assert child.wait() == 0
    assert running(paths) == {"main": "b"}


def test_sigterm_after_go_brings_back_what_it_stopped(start: Start, paths: Paths) -> None:
    assert start("a").end() == 0

    child = start("hangs")
    child.until("placed")
    child.say("go")
    child.until("StepStarted", step="load")
    child.process.send_signal(signal.SIGTERM)
    failed = child.until("failed")

    assert child.wait() == failed["exit_code"] == 130
    assert failed["message"].startswith("hangs: interrupted. a is restored (")
    assert running(paths) == {"main": "a"}


def test_kill_9_of_the_child_leaves_a_true_record(start: Start, paths: Paths) -> None:
    assert start("a").end() == 0
    early = start("b")
    early.until("placed")
    early.process.kill()
    early.wait()
    assert observe(paths, "main").operation is None and running(paths) == {"main": "a"}

    late = start("hangs")
    late.until("placed")
    late.say("go")
    late.until("StepStarted", step="load")
    until(lambda: observe(paths, "main").running)  # the new server is loading
    late.process.kill()
    late.wait()

    view = observe(paths, "main")
    assert view.operation is None and view.running and view.running.ready_at is None
    assert view.message == "The gpubox that started it has exited (at the step 'load')."
    child = start("b")  # the next gateway goes on
    assert child.until("placed")["instances"] == ["main"]
    assert child.end() == 0
    assert running(paths) == {"main": "b"}


@pytest.mark.usefixtures("start")
def test_a_busy_server_is_not_unloaded(paths: Paths) -> None:
    assert run(["start", "busy"]) == 0

    assert "still answers requests" in at_once(paths, {"kind": "stop", "profile": "busy"}, "go")[-1]["message"]

    assert running(paths) == {"main": "busy"}


@pytest.mark.usefixtures("start")
def test_a_pinned_server_is_named(paths: Paths) -> None:
    assert run(["start", "pinned"]) == 0

    failed = at_once(paths, {"kind": "start", "profile": "b"})[-1]

    assert failed["message"].startswith("b is not started: pinned is pinned, and whether both fit is not certain")
    assert running(paths) == {"main": "pinned"}


def test_another_gpubox_that_is_at_it_is_no_fault_of_the_profile(start: Start, paths: Paths) -> None:
    assert start("a").end() == 0
    first = start("b")
    first.until("placed")

    failed = at_once(paths, {"kind": "start", "profile": "hangs"})[-1]

    assert failed["temporary"] is True and "is changing this server (switch b)" in failed["message"]
    assert first.end() == 0


def test_two_operations_on_different_instances_run_side_by_side(start: Start, paths: Paths) -> None:
    assert start("a").end() == 0
    first = start("b")
    first.until("placed")
    beside = {"b": ["main"]}

    assert start("c", beside=beside).end() == 0
    waits = start("a", beside=beside).until("failed")

    assert running(paths) == {"main": "a", "c": "c"}
    assert (waits["temporary"], waits["message"]) == (True, "a waits for b.")
    assert first.end() == 0
    assert running(paths) == {"main": "b", "c": "c"}


@pytest.mark.usefixtures("start")
def test_an_instance_that_another_gpubox_holds_leaves_the_others_untouched(paths: Paths) -> None:
    assert run(["start", "b"]) == 0 and run(["start", "c"]) == 0
    before, busy = pids(paths), lock_file(paths.instance_lock("main"))  # c is locked first, then main is found busy
    assert busy is not None
    try:
        supervisor = Supervisor(paths, load_config(paths))
        with pytest.raises(InstanceBusy):
            asyncio.run(supervisor.place(load_catalog(paths).get("a"), displaces=("c",)))
    finally:
        os.close(busy)

    assert pids(paths) == before
    assert observe(paths, "c").operation is None and observe(paths, "c").message == ""


@pytest.mark.usefixtures("start")
def test_two_profiles_never_share_an_rpc_server(
    paths: Paths, tiny_gguf: Path, write_profile: Callable[[str, str], Path]
) -> None:
    for name, flags in (("near", 'rpc = "127.0.0.1:9"'), ("far-too", 'rpc = "localhost:9"')):
        write_profile(name, f'model = "{tiny_gguf}"\nport = 0\ncompanion = true\n[flags]\n{flags}\n')
    assert at_once(paths, {"kind": "start", "profile": "near"}, "go")[-1]["instance"] == "near"

    events = at_once(paths, {"kind": "start", "profile": "far-too"}, "go")

    assert next(each for each in events if each["event"] == "placed")["instances"] == ["far-too", "near"]
    assert running(paths) == {"far-too": "far-too"}


@pytest.mark.usefixtures("start")
def test_it_refuses_while_a_benchmark_or_a_trial_is_under_way(paths: Paths) -> None:
    here = create_run(paths, Plan("speed", (Target("t", "a"),)), ())
    with here.owned():
        failed = at_once(paths, {"kind": "start", "profile": "a"})[-1]
        assert failed["temporary"] is True
        assert failed["message"] == f"The benchmark {here.id} is under way."
    elsewhere = create_run(paths, Plan("speed", (Target("t", url="http://127.0.0.1:1"),)), ())
    with elsewhere.owned():  # it may be measuring through the gateway
        assert at_once(paths, {"kind": "start", "profile": "a"}, "go")[-1]["event"] == "finished"
    trial = TrialRecord("a", "main", "", "", "", None, own_identity())
    (paths.state / "trial.json").write_text(json.dumps(asdict(trial)))
    lock = lock_file(paths.state / "trial.lock")
    assert lock is not None
    try:
        assert at_once(paths, {"kind": "start", "profile": "b"})[-1]["message"] == "A trial of a is under way."
    finally:
        os.close(lock)


def test_a_gateway_that_does_not_read_holds_nothing_up(start: Start, paths: Paths) -> None:
    child = start("a")
    child.until("placed")
    child.say("go")  # nothing is read from now on

    until(lambda: (view := observe(paths, "main")).running and view.running.ready_at)
    assert child.wait() == 0


@pytest.mark.parametrize("line", ["", "no json", '{"kind": "dance", "profile": "a"}', "[]"])
def test_a_request_that_is_none(paths: Paths, line: str) -> None:
    (failed,) = at_once(paths, line)

    assert (failed["event"], failed["exit_code"]) == ("failed", 1) and "cannot be read" in failed["message"]
