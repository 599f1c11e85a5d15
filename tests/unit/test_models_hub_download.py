"""Downloads from a hub of the test on loopback: resumed, checked, cancelled, killed, and on a full disk."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models import hub_download
from gpubox.models.fetch import DownloadPlan, fetch_model, fetch_quant, plan_download
from gpubox.models.find import hub_cache
from gpubox.models.hub_client import HubClient, HubPartError
from gpubox.models.hub_download import HubDownload, HubProgress
from gpubox.models.hub_search import HubRepository, read_repository
from gpubox.models.quants import parse_reference
from gpubox.models.resolve import find_cached_model, resolve_model
from gpubox.paths import Paths
from gpubox.storage import lock_file
from tests.conftest import until
from tests.hub import Hub, Stored, running_hub

DATA = b"GGUF" + random.Random(1).randbytes(3_000_000)
SECOND = b"GGUF" + random.Random(2).randbytes(500_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(hub_download, "RETRY_SECONDS", (0.0, 0.0))
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repositories["u/m"] = {
            "m-Q4_K_M-00001-of-00002.gguf": Stored.of(DATA), "m-Q4_K_M-00002-of-00002.gguf": Stored.of(SECOND),
        }  # fmt: skip
        yield hub


@pytest.fixture
def client(hub: Hub) -> Iterator[HubClient]:
    with HubClient() as client:
        yield client


@pytest.fixture
def repository(client: HubClient) -> HubRepository:
    return read_repository(client, "u/m")


def job(repository: HubRepository) -> HubDownload:
    return HubDownload(repository, repository.quants[0].files)


def ignore(progress: HubProgress) -> None:
    pass


def leftovers() -> list[str]:
    return sorted(path.name for path in (hub_cache() / "models--u--m/blobs").glob("*.incomplete"))


def test_both_shards_arrive_where_other_tools_look(client: HubClient, repository: HubRepository) -> None:
    seen: list[HubProgress] = []
    download = job(repository)
    assert download.missing_bytes == download.total_bytes == len(DATA) + len(SECOND)
    path = download.run(client, seen.append)
    assert path.read_bytes() == DATA
    assert path.is_symlink()
    assert path.with_name("m-Q4_K_M-00002-of-00002.gguf").read_bytes() == SECOND
    assert [progress.done_bytes for progress in seen] == sorted(progress.done_bytes for progress in seen)
    assert seen[-1].done_bytes == seen[-1].total_bytes
    assert any(progress.bytes_per_second for progress in seen)
    assert find_cached_model(parse_reference("hf:u/m:Q4_K_M")) == path
    assert (job(repository).is_complete, job(repository).missing_bytes, leftovers()) == (True, 0, [])


def test_a_new_revision_with_the_same_content_costs_no_bytes(
    hub: Hub, client: HubClient, repository: HubRepository
) -> None:
    job(repository).run(client, ignore)
    sent = hub.sent
    newer = HubDownload(replace(repository, revision="f" * 40), repository.quants[0].files)
    assert (newer.is_complete, newer.missing_bytes) == (True, 0)
    assert newer.run(client, ignore).read_bytes() == DATA
    assert hub.sent == sent


def test_a_broken_connection_is_continued(hub: Hub, client: HubClient, repository: HubRepository) -> None:
    hub.cuts = [700_000, 10, 900_000]
    assert job(repository).run(client, ignore).read_bytes() == DATA
    assert hub.sent == len(DATA) + len(SECOND), "no byte is sent twice"


def test_a_hub_that_breaks_off_again_and_again(hub: Hub, client: HubClient, repository: HubRepository) -> None:
    hub.cuts = [1_000_000, *[0] * 9]
    with pytest.raises(GpuboxError, match="broke"):
        job(repository).run(client, ignore)
    hub.cuts = []
    before = hub.sent
    assert job(repository).run(client, ignore).read_bytes() == DATA
    assert hub.sent - before < len(DATA) + len(SECOND) - 900_000, "the part was resumed"


def test_a_cancelled_download_is_resumed(hub: Hub, client: HubClient, repository: HubRepository) -> None:
    def cancel(progress: HubProgress) -> None:
        if progress.done_bytes > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(repository).run(client, cancel)
    assert find_cached_model(parse_reference("hf:u/m:Q4_K_M")) is None
    assert len(leftovers()) == 1
    present = job(repository).present_bytes
    assert present >= 1_000_000
    phases: list[str] = []
    assert job(repository).run(client, lambda progress: phases.append(progress.phase)).read_bytes() == DATA
    assert phases[0] == "check"
    assert leftovers() == []


@pytest.mark.parametrize("listed", [5, 10_000_000])
def test_a_hub_that_lies_about_the_length(hub: Hub, client: HubClient, listed: int) -> None:
    hub.repositories["u/m"]["m-Q4_K_M-00001-of-00002.gguf"].listed_size = listed
    with pytest.raises(GpuboxError, match="two lengths"):
        job(read_repository(client, "u/m")).run(client, ignore)


def test_a_hub_that_sends_only_whole_files(hub: Hub, client: HubClient, repository: HubRepository) -> None:
    hub.cuts = [1_000_000]
    hub.ranges = False
    assert job(repository).run(client, ignore).read_bytes() == DATA


def test_a_hub_that_sends_another_part_than_it_was_asked_for(
    client: HubClient, repository: HubRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def part(url: str, revision: str, name: str, start: int, end: int) -> object:
        assert not asked, "asked again and again, without a pause"
        asked.append(start)
        error = HubPartError("Hugging Face does not serve it in parts.", "")
        error.length = end
        raise error

    monkeypatch.setattr(client, "file_part", part)
    with pytest.raises(GpuboxError, match="does not serve"):
        job(repository).run(client, ignore)


def test_a_login_page_costs_nothing_of_what_is_here(hub: Hub, client: HubClient, repository: HubRepository) -> None:
    hub.cuts = [1_000_000, *[0] * 9]
    with pytest.raises(GpuboxError, match="broke"):
        job(repository).run(client, ignore)
    present = job(repository).present_bytes
    hub.bodies["/resolve/"] = b"<html>log in</html>"
    with pytest.raises(GpuboxError, match="does not serve"):
        job(repository).run(client, ignore)
    assert job(repository).present_bytes == present > 900_000


def test_a_hub_without_checksums(hub: Hub, client: HubClient) -> None:
    for file in hub.repositories["u/m"].values():
        file.sha256 = ""
    assert job(read_repository(client, "u/m")).run(client, ignore).read_bytes() == DATA
    assert job(read_repository(client, "u/m")).is_complete


@pytest.mark.parametrize(
    ("status", "message", "tries"),
    [(401, "HTTP 401", 1), (404, "HTTP 404", 1), (418, "HTTP 418", 1), (429, "limits", 3), (503, "HTTP 503", 3)],
)
def test_refusals(
    hub: Hub, client: HubClient, repository: HubRepository, status: int, message: str, tries: int
) -> None:
    hub.statuses["/resolve/"], hub.retry_after = status, ""
    with pytest.raises(GpuboxError, match=message):
        job(repository).run(client, ignore)
    assert len([path for path in hub.paths if "/resolve/" in path]) == tries


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("retry_after", ["", "0.1", "0", "Mon, 23 Nov 2020 07:00:00 GMT", "-1", "x" * 99])
def test_a_busy_hub_is_asked_again(
    hub: Hub, client: HubClient, repository: HubRepository, status: int, retry_after: str
) -> None:
    hub.busy, hub.retry_after, hub.cuts = [status, status], retry_after, [400_000]
    assert job(repository).run(client, ignore).read_bytes() == DATA


def test_the_pause_that_the_hub_asks_for_is_kept_and_said(
    hub: Hub, client: HubClient, repository: HubRepository
) -> None:
    hub.busy, hub.retry_after = [429], "1"
    sentences: list[str] = []
    started = time.monotonic()
    job(repository).run(client, lambda progress: sentences.append(progress.waiting))
    assert time.monotonic() - started >= 1
    assert "Hugging Face limits your requests (HTTP 429). gpubox asks again in 1 s." in sentences
    assert sentences[-1] == ""


def test_a_hub_that_does_not_answer_is_asked_again(
    hub: Hub, repository: HubRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_download, "RETRY_SECONDS", (0.05,))
    hub.gate = threading.Event()
    with HubClient(read_seconds=0.2) as client:
        said: list[str] = []

        def report(progress: HubProgress) -> None:
            if progress.waiting and hub.gate:
                said.append(progress.waiting)
                hub.gate.set()

        assert job(repository).run(client, report).read_bytes() == DATA
    assert said and "does not answer" in said[0]


def test_a_busy_hub_is_asked_again_for_the_list_of_files(hub: Hub) -> None:
    hub.busy, hub.retry_after = [503, 429], ""
    told: list[str] = []
    path = fetch_quant(parse_reference("hf:u/m"), lambda done, total, waiting: told.append(waiting))
    assert path.read_bytes() == DATA


def test_what_is_no_gguf_is_not_stored_as_a_model(hub: Hub, client: HubClient) -> None:
    page = b"<!DOCTYPE html>" + b"x" * 80_000_000  # more than the buffers of both sockets hold
    hub.repositories["u/m"] = {"m-Q4_K_M.gguf": Stored.of(page)}
    with pytest.raises(GpuboxError, match="not a GGUF: a web page was saved instead"):
        job(read_repository(client, "u/m")).run(client, ignore)
    assert hub.sent < len(page), "the rest is not downloaded"
    assert not [path for path in hub_cache().rglob("*") if path.is_file() and path.stat().st_size]


def test_another_program_downloads_it(client: HubClient, repository: HubRepository) -> None:
    lock = lock_file(hub_cache() / ".locks/models--u--m" / f"{repository.quants[0].files[0].sha256}.lock")
    assert lock is not None
    with pytest.raises(GpuboxError, match="Another program is downloading"):
        job(repository).run(client, ignore)
    os.close(lock)
    assert job(repository).run(client, ignore).read_bytes() == DATA


def test_the_disk_fills_up(client: HubClient, repository: HubRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of a file stands for the full disk: the write fails in the middle in the same way."""
    if hasattr(signal, "SIGXFSZ"):
        monkeypatch.setattr(hub_download, "_FULL", {*hub_download._FULL, 27})  # EFBIG
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, before[1]))
    try:
        with pytest.raises(GpuboxError, match=r"The disk of .* is full"):
            job(repository).run(client, ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert find_cached_model(parse_reference("hf:u/m:Q4_K_M")) is None
    assert job(repository).present_bytes > 1_000_000
    assert job(repository).run(client, ignore).read_bytes() == DATA


def test_killed_in_the_middle_then_resumed(hub: Hub, client: HubClient, repository: HubRepository) -> None:
    hub.gate = threading.Event()
    command = [sys.executable, "-m", "gpubox", "find", "u/m:Q4_K_M", "--download"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: job(repository).present_bytes > 1_000_000)
    process.kill()
    process.wait()
    hub.gate.set()
    assert find_cached_model(parse_reference("hf:u/m:Q4_K_M")) is None
    before = hub.sent
    assert job(repository).run(client, ignore).read_bytes() == DATA
    assert hub.sent - before < len(DATA) + len(SECOND) - 1_000_000


def test_a_model_by_its_reference_needs_no_connection_once_it_is_here(
    hub: Hub, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gpubox.models.fetch.free_bytes", lambda folder: 5_000_000_000
    )  # on a real disk others write, too
    assert plan_download("hf:u/m", paths) == DownloadPlan(len(DATA) + len(SECOND), hub_cache(), 5_000_000_000)
    path = fetch_model("hf:u/m", paths, Config(), lambda done, total, waiting: None)
    assert path.is_relative_to(hub_cache()) and resolve_model("hf:u/m", paths, Config()).path == path
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch_model("hf:u/m", paths, Config(), lambda done, total, waiting: None) == path
    assert plan_download("hf:u/m", paths).size_bytes is None
    with pytest.raises(GpuboxError, match="no connection to Hugging Face"):
        fetch_model("hf:u/other", paths, Config(), lambda done, total, waiting: None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf:u/m:Q5_K_M", "It has: Q4_K_M."),
        ("hf:no/body", "does not exist on Hugging Face, or it is private"),
        ("hf:gated/model", "is gated"),
        ("hf:broken/model", "HTTP 418"),
    ],
)
def test_references_that_name_no_model(hub: Hub, paths: Paths, text: str, message: str) -> None:
    hub.gated, hub.statuses = "gated/", {"broken/": 418}
    with pytest.raises(GpuboxError) as error:
        fetch_model(text, paths, Config(), lambda done, total, waiting: None)
    assert message in str(error.value)


@pytest.mark.parametrize(("part", "damaged"), [(bytes(1_000_000), True), (bytes(len(DATA) + 1), False)])
def test_a_part_that_is_not_of_this_file(
    client: HubClient, repository: HubRepository, part: bytes, damaged: bool
) -> None:
    """One that is too long cannot be of it; another one shows in the checksum, and is deleted."""
    file = hub_cache() / "models--u--m/blobs" / f"{repository.quants[0].files[0].sha256}.incomplete"
    file.parent.mkdir(parents=True)
    file.write_bytes(part)
    if damaged:
        with pytest.raises(GpuboxError, match="is damaged: its checksum"):
            job(repository).run(client, ignore)
        assert not file.exists()
    assert job(repository).run(client, ignore).read_bytes() == DATA


def _lie(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["u/m"]["m-Q4_K_M-00001-of-00002.gguf"].head = DATA[:-1] + b"!"


def _ask_for_an_hour(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.busy, hub.retry_after = [429], "3600"


def _fill(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 3_000_000})())


def _put_a_file(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_cache().parent.mkdir(parents=True)
    hub_cache().write_text("a file")


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (_lie, "checksum is not the one"),
        (_ask_for_an_hour, "Try again in 3600 s"),
        (_fill, "needs 4 MB, and 3 MB are free"),
        (_put_a_file, "cannot be written"),
    ],
)
def test_what_ends_a_download(
    hub: Hub, client: HubClient, repository: HubRepository, monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[Hub, pytest.MonkeyPatch], None], message: str,
) -> None:  # fmt: skip
    happens(hub, monkeypatch)
    with pytest.raises(GpuboxError) as error:
        job(repository).run(client, ignore)
    assert message in f"{error.value} {error.value.hint}"
    assert find_cached_model(parse_reference("hf:u/m:Q4_K_M")) is None
