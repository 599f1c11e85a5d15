"""Saving and restoring slots with servers that lie, refuse, hang or die: gpubox goes on, and keeps nothing false."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpubox.config import Config, KeptKvSettings
from gpubox.hardware.process import identity_of, own_identity
from gpubox.paths import Paths
from gpubox.server import kept_kv, kv_store
from gpubox.server.kept_kv import KeptKv, KvRestoreKilled
from gpubox.server.kv_store import KvStore, prepare_folder, read_tokens
from gpubox.server.state import Launch, RestoredSlot, RunningServer
from tests.unit.test_kv_store import slot_file

HEADER = [2, 198, 1, 520, 9531]
"""What stands before a reply: ``<|im_end|>\\n<|im_start|>assistant``, of which the last token is left out."""
TEMPLATE = "<u>{}</u><a>"


@dataclass
class FakeSlots:
    """A server with slots. ``mode``: what it does wrong."""

    folder: Path
    prompts: dict[int, list[int]] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    mode: str = ""
    context: int = 8192
    tasks: dict[int, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    dies: subprocess.Popen[bytes] | None = None

    def get(self, path: str) -> Any:
        if self.mode == "silent":
            self.hold.wait(30)
        if path != "/slots":
            return {}
        return [
            {"id": at, "id_task": self.tasks.get(at, 100 - at), "is_processing": at in self.busy, "n_ctx": self.context,
             "n_prompt_tokens": len(self.prompts.get(at, []))}
            for at in range(4)
        ]  # fmt: skip

    def post(self, path: str, body: dict[str, Any]) -> Any:
        self.asked.append(path)
        if path == "/apply-template":
            return {"prompt": "".join(TEMPLATE.format(m["content"]) if m["role"] == "user" else m["content"]
                                      for m in body["messages"])}  # fmt: skip
        if path == "/tokenize":
            return {"tokens": [*HEADER, 198] if body["content"] == "</u><a>" else []}
        if path == "/completion":
            self.prompts[body["id_slot"]] = body["prompt"]
            return {"content": ""}
        if path.endswith("erase"):
            self.prompts.pop(int(path.split("/")[2].partition("?")[0]), None)
            return {"n_erased": 1}
        slot, action = int(path.split("/")[2].partition("?")[0]), path.rpartition("=")[2]
        return self.save(slot, body["filename"]) if action == "save" else self.restore(slot, body["filename"])

    def save(self, slot: int, name: str) -> Any:
        tokens = [] if self.mode == "empty" else self.prompts[slot]
        data = slot_file(tokens)
        if self.mode == "hang":
            (self.folder / name).write_bytes(data[:50])
            self.hold.wait(30)
            return None
        if self.mode == "disk full":
            (self.folder / name).write_bytes(data[:50])
            return None
        (self.folder / name).write_bytes(data[:-20] if self.mode == "short" else data)
        count = len(tokens) + (self.mode == "other tokens")
        return {"filename": name, "n_saved": count, "n_written": len(data)}

    def restore(self, slot: int, name: str) -> Any:
        if self.mode == "refuse":
            return None
        if self.mode == "hang on restore":
            self.mode = "silent"
            self.hold.wait(30)
        if self.dies:
            self.dies.kill()
            self.dies.wait()
            self.mode = "silent"
            return None
        self.prompts[slot] = read_tokens(self.folder / name)
        return {"filename": name, "n_restored": len(self.prompts[slot]), "n_read": 1}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that never answer; the others may be slow on a busy machine."""
    monkeypatch.setattr(kept_kv, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(kept_kv, "_seconds_for", lambda size: 1.0)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUBOX_API_KEY", "LLAMA_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake(paths: Paths) -> Iterator[FakeSlots]:
    prepare_folder(paths.kept_kv)
    yield (fake := FakeSlots(paths.kept_kv))
    fake.hold.set()


@pytest.fixture
def running(fake: FakeSlots, paths: Paths, tiny_gguf: Path) -> Iterator[RunningServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(fake.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(fake.post(self.path, body))

        def answer(self, values: Any) -> None:
            text = json.dumps(values or {"error": {"message": "no"}}).encode()
            self.send_response(400 if values is None else 200)
            self.send_header("Content-Length", str(len(text)))
            with contextlib.suppress(BrokenPipeError):  # gpubox no longer waited
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    argv = ("llama-server", "--model", str(tiny_gguf), "--slot-save-path", str(paths.kept_kv))
    launch = Launch("p", argv, "127.0.0.1", server.server_address[1], model_path=str(tiny_gguf))
    yield RunningServer(launch, "1", "2026", own_identity())
    fake.hold.set()
    server.shutdown()
    server.server_close()


def kept(paths: Paths, **settings: Any) -> KeptKv:
    return KeptKv(paths, Config(kept_kv=KeptKvSettings(**settings)), "main")


def save(paths: Paths, running: RunningServer, log: str = "") -> str:
    path = paths.instance_log("main")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    return asyncio.run(kept(paths).save(running))


def restore(paths: Paths, running: RunningServer) -> tuple[str, tuple[RestoredSlot, ...]]:
    return asyncio.run(kept(paths).restore(running))


def store(paths: Paths) -> KvStore:
    return KvStore(paths.kept_kv, 1 << 30)


def leftovers(paths: Paths) -> list[str]:
    for thread in threading.enumerate():
        if thread.name == "kept KV":  # it still waits for the disk
            thread.join(30)
    names = {state.name for state in store(paths).states()}
    return [path.name for path in paths.kept_kv.iterdir() if path.name != ".lock" and path.stem not in names]


def test_idle_slots_with_enough_tokens_are_saved_the_last_used_one_last(
    fake: FakeSlots, paths: Paths, running: RunningServer
) -> None:
    fake.prompts = {0: [7] * 300, 1: [8] * 400, 2: [9] * 255, 3: [5] * 999}
    fake.busy = {3}

    note = save(paths, running)

    assert note == "2 slots, 700 tokens, 0 MB"
    assert [state.tokens for state in store(paths).states()] == [300, 400]
    fake.prompts = {0: [1] * 256}
    assert restore(paths, replace(running, launch_id="2"))[0] == "2 slots, 700 tokens"
    assert fake.prompts == {0: [1] * 256, 1: [7] * 300, 2: [8] * 400}


def test_each_conversation_that_the_gateway_tells_of_is_saved_under_its_own_name(
    fake: FakeSlots, paths: Paths, running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a known slot, in an unknown one, and in the prompt cache in RAM only: it comes into slot 3."""
    fake.prompts = {0: [1] * 300, 1: [2] * 310}
    cached = {"unknown": [2] * 309, "parked": [4] * 400}

    async def ask_gateway(self: KeptKv, path: str) -> dict[str, int]:
        verb, _, name = path.partition("/")
        if verb == "conversations":
            return {"parked": 6, "lost": 0, "unknown": 0, "known": 101}
        if name not in cached:
            return {}
        at = 1 if name == "unknown" else 3
        fake.prompts[at], fake.tasks[at] = cached[name], 200
        return {"tokens": len(cached[name])}

    monkeypatch.setattr(KeptKv, "_ask_gateway", ask_gateway)
    save(paths, running)
    saved = {state.conversation: state.tokens for state in store(paths).states()}
    assert saved == {"known": 300, "unknown": 309, "parked": 400}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("mode", ["short", "other tokens", "empty", "disk full", "hang", "silent"])
def test_a_server_that_does_not_save_leaves_nothing_and_costs_little_time(
    fake: FakeSlots, paths: Paths, running: RunningServer, mode: str
) -> None:
    fake.prompts, fake.mode = {0: [7] * 300}, mode
    began = time.monotonic()

    note = save(paths, running)

    assert time.monotonic() - began < 10
    assert note == "" if mode == "silent" else note.startswith("not kept: ")
    assert store(paths).states() == []
    assert leftovers(paths) == []


def test_without_room_on_the_disk_nothing_is_asked_of_the_server(
    fake: FakeSlots, paths: Paths, running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.prompts = {0: [7] * 300}
    monkeypatch.setattr(kv_store, "FREE_BYTES", 1 << 62)

    assert save(paths, running) == "not kept: not enough free disk space, or max-gib is too small"
    assert fake.asked == []


def test_a_hybrid_model_is_rolled_back_to_where_its_reply_begins(
    fake: FakeSlots, paths: Paths, running: RunningServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("0.00.381.401 I llama_memory_recurrent:        CPU RS buffer size =     1.50 MiB\n")
    question = [7] * 300
    fake.prompts = {0: [*question, *HEADER, 198, 40, 41, 42]}

    assert save(paths, running, log.read_text()).startswith("1 slot, 305 tokens")

    (state,) = store(paths).states()
    assert state.exact
    assert read_tokens(paths.kept_kv / state.file) == [*question, *HEADER]
    assert leftovers(paths) == []


def test_without_a_chat_it_is_rolled_back_to_the_last_prompt(
    fake: FakeSlots, paths: Paths, running: RunningServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(
        "0.00.381.401 I llama_memory_recurrent:        CPU RS buffer size =     1.50 MiB\n"
        "0.01.000.000 I slot   operator(): id  0 | task 100 | new prompt, n_ctx_slot = 8192, n_keep = 0,"
        " task.n_tokens = 300\n"
    )
    fake.prompts = {0: [7] * 310}

    assert save(paths, running, log.read_text()).startswith("1 slot, 299 tokens")


@pytest.mark.parametrize("prompt", [[7] * 400, [*HEADER, *[7] * 400]])
def test_a_prompt_without_a_reply_is_kept_whole(
    fake: FakeSlots, paths: Paths, running: RunningServer, tmp_path: Path, prompt: list[int]
) -> None:
    log = tmp_path / "log"
    log.write_text("0.00.381.401 I llama_memory_recurrent:        CPU RS buffer size =     1.50 MiB\n")
    fake.prompts = {0: prompt}

    assert save(paths, running, log.read_text()).startswith(f"1 slot, {len(prompt)} tokens")


def test_a_file_that_the_server_refuses_goes(fake: FakeSlots, paths: Paths, running: RunningServer) -> None:
    fake.prompts = {0: [7] * 300}
    save(paths, running)
    fake.prompts, fake.mode = {}, "refuse"

    assert restore(paths, running) == ("not put back: the server refused the file", ())
    assert store(paths).states() == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("hangs", [True, False])
def test_a_file_that_hangs_or_kills_the_server_is_never_tried_again(
    fake: FakeSlots, paths: Paths, running: RunningServer, hangs: bool
) -> None:
    fake.prompts = {0: [7] * 300}
    save(paths, running)
    fake.prompts = {}
    child = subprocess.Popen(["sleep", "60"])
    try:
        running = replace(running, process=identity_of(child.pid))
        if hangs:
            fake.mode = "hang on restore"
        else:
            fake.dies = child
        with pytest.raises(KvRestoreKilled):
            restore(paths, running)
    finally:
        child.kill()
        child.wait()
    assert store(paths).states() == []
    with store(paths).locked():  # the thread that waits for the disk writes, too
        store(paths).sweep()
        assert [path.name for path in paths.kept_kv.iterdir()] == [".lock"]


def test_a_context_without_room_gets_the_newest_only(fake: FakeSlots, paths: Paths, running: RunningServer) -> None:
    fake.prompts = {0: [7] * 300, 1: [8] * 400, 2: [9] * 500}
    save(paths, running)
    fake.prompts, fake.context = {}, 700

    note, restored = restore(paths, running)

    assert note == "1 slot, 300 tokens"
    assert [each.slot for each in restored] == [0]
    fake.prompts, fake.context = {}, 256
    assert restore(paths, running)[0] == "not put back: 300 tokens, and the context holds 256"


WINDOW = (
    "llama_kv_cache_iswa: creating non-SWA KV cache, size = 4096 cells\n"
    "llama_kv_cache: size =   16.00 MiB (  4096 cells,   3 layers,  1/1 seqs), K (f16): 8.00 MiB, V (f16): 8.00 MiB\n"
    "llama_kv_cache_iswa: creating     SWA KV cache, size = {} cells\n"
)


def test_with_a_sliding_window_nothing_is_kept_unless_its_cache_is_whole(
    fake: FakeSlots, paths: Paths, running: RunningServer
) -> None:
    fake.prompts = {0: [7] * 300}
    refusal = "not kept: with a sliding window nothing restored is reused without --swa-full"
    assert save(paths, running, WINDOW.format(1024)) == refusal
    priced = KeptKv(paths, Config(), "main", lambda server: f"{server.launch.profile} GiB")
    assert asyncio.run(priced.save(running)) == f"{refusal} (p GiB more)"
    assert not store(paths).states()
    assert save(paths, running, WINDOW.format(4096)).startswith("1 slot, 300 tokens")


def test_single_states_move_while_the_server_goes_on(fake: FakeSlots, paths: Paths, running: RunningServer) -> None:
    fake.prompts = {0: [7] * 300, 1: [7] * 400}
    head = asyncio.run(kept(paths).save_one(running, 0, "head-x"))
    for conversation in ("a", "b", "b"):
        state = asyncio.run(kept(paths).save_one(running, 1, conversation))
    assert sorted(each.conversation for each in store(paths).states()) == ["a", "b", "head-x"]
    assert kept(paths).find(running, "b", 4096) == next(
        each for each in store(paths).states() if each.name == state.name
    )
    assert kept(paths).find(running, "b", 256) is kept(paths).find(running, "c", 4096) is None
    assert asyncio.run(kept(paths).restore_one(running, 2, head))
    assert fake.prompts[2] == [7] * 300
    fake.prompts = {}
    assert {each.conversation for each in restore(paths, running)[1]} == {"a", "b"}  # no slot for what they share


def test_another_model_is_no_business_of_this_one(
    fake: FakeSlots, paths: Paths, running: RunningServer, tiny_gguf: Path
) -> None:
    fake.prompts = {0: [7] * 300}
    save(paths, running)
    with tiny_gguf.open("ab") as file:
        file.write(b" ")

    assert restore(paths, replace(running, launch=replace(running.launch, profile="q"))) == ("", ())
    assert restore(paths, running) == ("not put back: another model file", ())


def test_where_nothing_is_kept(paths: Paths, running: RunningServer) -> None:
    assert kept(paths).is_on(running)
    assert not kept(paths).may_restore(running)
    assert not kept(paths, enabled=False).is_on(running)
    assert not kept(paths).is_on(replace(running, cold=True))
    assert not KeptKv(paths, Config(), "~once-1").is_on(running)
    assert "mmproj" in kept(paths).why_off(
        replace(running, launch=replace(running.launch, argv=(*running.launch.argv, "--mmproj", "x")))
    )
    sleeping = replace(running.launch, argv=(*running.launch.argv, "--sleep-idle-seconds", "60"))
    assert save(paths, replace(running, launch=sleeping)) == ""
