"""What happens while nobody looks reaches ntfy and the webhook of the owner: once, and without secrets."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench import plan_runner
from gpubox.cli.main import run
from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.process import find_by_marker
from gpubox.notify import make_notification, notify
from gpubox.paths import Paths
from gpubox.server.watcher import ensure_watcher
from gpubox.storage import lock_holder
from gpubox.telemetry.history import tables
from gpubox.telemetry.history.values import Slowdown
from gpubox.telemetry.history.writer import HistoryWriter
from tests.bench_server import BenchServer
from tests.cli.verbs import gpubox, values
from tests.conftest import until
from tests.unit.test_history_writer import snapshot


@dataclass
class Listener:
    """A local address that takes notifications: path, headers and body of each."""

    url: str
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    refuses: int = 0
    """So many requests are answered with 503 first."""

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for path, _, body in self.got if path == "/hook"]

    def one(self) -> dict[str, Any]:
        """The only event."""
        until(lambda: self.events)
        (event,) = self.events
        return event


@pytest.fixture
def listener(box: int, paths: Paths) -> Iterator[Listener]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            ours.refuses -= 1
            if ours.refuses < 0:
                ours.got.append((self.path, dict(self.headers), body))
            self.send_response(503 if ours.refuses >= 0 else 302 if self.path == "/moved" else 200)
            self.send_header("Location", f"{ours.url}/hook")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    ours = Listener(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    text = paths.config_file.read_text()
    paths.config_file.write_text(f'{text}[notify]\nwebhook = "{ours.url}/hook"\nntfy = "{ours.url}/my-topic"\n')
    yield ours
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_crash_is_told_once_however_many_watchers_see_it(
    listener: Listener, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUBOX_WATCHER")
    assert run(["start", "a"]) == 0
    ((identity, _),) = find_by_marker(f"{paths.state}|")

    os.kill(identity.pid, signal.SIGKILL)

    event = listener.one()
    assert (event["event"], event["profile"], event["title"]) == ("crash", "a", "a died")
    assert "a died: " in event["text"] and event["schema_version"] == 1
    until(lambda: lock_holder(paths.watcher_lock("main")) is None)
    assert ensure_watcher(paths, "main", identity)  # as each later command does while the record says that it crashed
    until(lambda: lock_holder(paths.watcher_lock("main")) is None)
    notify(paths, "gpu", "the next event", "")
    until(lambda: len(listener.events) > 1)
    assert [event["event"] for event in listener.events] == ["crash", "gpu"]


def test_a_rollback_says_what_failed_and_what_runs(
    listener: Listener, paths: Paths, tiny_gguf: Path, fake_engine: Path, write_profile: Callable[[str, str], Path],
    box: int,
) -> None:  # fmt: skip
    script = fake_engine.with_name("dies")
    script.write_text(f'#!/bin/sh\ncase "$*" in *--help|*--version|*--list-devices) exec {fake_engine} "$@" ;; esac\n'
                      f'echo "error: no room in /secret/folder/big.gguf" >&2; exit 1\n')  # fmt: skip
    script.chmod(0o755)
    paths.config_file.write_text(paths.config_file.read_text().replace("[engines]", f'[engines]\ndies = "{script}"'))
    write_profile("bad", f'model = "{tiny_gguf}"\nport = {box}\nengine = "dies"\n')
    assert run(["start", "a"]) == 0

    assert run(["switch", "bad"]) != 0
    assert run(["switch", "bad"]) != 0  # within the hour, for the same reason

    event = listener.one()
    assert (event["event"], event["profile"]) == ("rollback", "bad")
    assert "a is restored" in event["text"]
    assert "/secret" not in event["text"]


def test_an_ended_run_is_told_if_it_was_long(
    listener: Listener, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ("--prompts", "short", "--depths", "0", "--repeats", "1", "--max-tokens", "8")
    with BenchServer() as server:
        assert gpubox(capfd, "bench", "speed", "--url", server.url, *quick)[0] == 0  # a short one: nobody is told
        monkeypatch.setattr(plan_runner, "LONG_RUN_SECONDS", 0)
        assert gpubox(capfd, "bench", "speed", "--url", server.url, *quick)[0] == 0

    event = listener.one()
    assert event["event"] == "run"
    assert "is finished" in event["title"]
    assert "writes 50.0 tok/s" in event["text"]


def test_a_lost_card_is_told_once_by_whoever_writes_the_history(listener: Listener, paths: Paths) -> None:
    for _ in range(2):
        writer = HistoryWriter(paths)
        for second in (0, 1):
            lost = DriverReading((Gpu(0, name="RTX 3090", lost=True),), problem="GPU 0 is lost since 12:00:01")
            writer.push(replace(snapshot(second), driver=lost))
        writer.step()
        writer.step(last=True)
        writer._release()

    event = listener.one()
    assert (event["event"], event["profile"], event["title"]) == ("gpu", None, "GPU 0 RTX 3090 is lost")


def test_a_slowdown_is_told_on_the_day_it_is_found_and_not_again(
    listener: Listener, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = Slowdown("coder", "tg", 1_790_000_000.0, 41.0, 35.2, -0.16, -0.12, ("driver 550.1 -> 560.2",))
    monkeypatch.setattr(tables, "judging", lambda connection, now: iter([[slower]]))
    for day in (0, 1, 2):
        monkeypatch.setattr("time.time", partial(float, 1_795_000_000 + day * 86400))
        HistoryWriter(paths, clock=time.time).catch_up(5.0)

    event = listener.one()
    assert (event["event"], event["profile"], event["text"]) == ("slowdown", "coder", slower.sentence)
    assert "driver 550.1" in event["text"]


def test_ntfy_gets_a_text_with_a_title_and_a_token_from_its_file(listener: Listener, paths: Paths) -> None:
    token = paths.config / "ntfy-token"
    token.write_text("tk_secret\n")
    token.chmod(0o600)
    paths.config_file.write_text(paths.config_file.read_text() + f'token-file = "{token}"\n')

    notify(paths, "crash", "a\ndied", "a died: out of memory in /home/me/models/x.gguf. http://box:1/v1 is gone.")

    until(lambda: len(listener.got) == 2)
    _, headers, body = next(each for each in listener.got if each[0] == "/my-topic")
    assert headers["Title"].startswith("a died (") and (headers["Priority"], headers["Tags"]) == ("4", "rotating_light")
    assert headers["Authorization"] == "Bearer tk_secret"
    assert body.decode() == "a died: out of memory in x.gguf. http:v1 is gone."


def test_an_address_that_refuses_is_asked_once_more_and_then_a_line_says_so(
    listener: Listener, paths: Paths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubox.notify.RETRY_SECONDS", 0)
    listener.refuses = 1
    assert gpubox(capfd, "doctor", "--notify")[0] == 0
    assert [path for path, *_ in listener.got] == ["/my-topic", "/hook"]

    listener.refuses = 9
    code, out, _ = gpubox(capfd, "doctor", "--notify")

    assert code == 1
    assert "127.0.0.1" in out and "took no notification: HTTP Error 503" in out
    assert "my-topic" not in out  # it is as good as a key
    assert len(listener.got) == 2

    listener.refuses = 0
    paths.config_file.write_text(paths.config_file.read_text().replace("/hook", "/moved"))
    code, out, _ = gpubox(capfd, "doctor", "--notify")
    assert code == 1 and "HTTP Error 302" in out  # what follows would be a GET without the text
    assert "/hook" not in [path for path, *_ in listener.got[2:]]


def test_without_an_address_doctor_says_what_to_write(box: int, capfd: pytest.CaptureFixture[str]) -> None:
    code, answer = values(capfd, "doctor", "--notify")

    assert code == 1
    assert "[notify]" in answer["findings"][0]["hint"]


@pytest.mark.parametrize("wrong", ['events = ["crash", "lottery"]', 'events = "crash"', "webhook = 1"])
def test_a_mistake_in_the_table_is_named(wrong: str, paths: Paths, box: int, capfd: pytest.CaptureFixture[str]) -> None:
    paths.config_file.write_text(paths.config_file.read_text() + f"[notify]\n{wrong}\n")

    code, _, err = gpubox(capfd, "doctor")

    assert code == 2
    assert "[notify]" in err


def test_an_event_that_is_not_wanted_starts_no_process(
    listener: Listener, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths.config_file.write_text(paths.config_file.read_text() + 'events = ["run"]\n')
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("started"))

    notify(paths, "crash", "a died", "")
    notify(Paths(paths.config, Path("/proc/no"), paths.cache), "crash", "a died", "")


def test_a_text_from_a_log_is_one_harmless_line() -> None:
    message = make_notification("crash", "a\x1b[2J", "x" * 5000 + "\r\nX-Evil: 1")

    assert message["title"] == "a" and len(message["text"]) == 1000
    assert "\n" not in message["text"] and "tok/s" in make_notification("run", "", "41 tok/s")["text"]
