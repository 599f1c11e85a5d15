"""Models on a hub of the test on loopback: what is found, and headers read by range. Nothing is downloaded."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.models import hub_client, remote_header
from gpubox.models.find import find_models
from gpubox.models.gguf import check_gguf
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_search import HubRepository, read_repository, repository_name, search_hub
from gpubox.models.remote_header import MAX_HEADER_BYTES, fetch_header_file, read_heads
from gpubox.paths import Paths
from tests.gguf_bytes import header, pair, tensor
from tests.hub import GB, Hub, Stored, running_hub, shard, split_model, tensor_table


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def client(hub: Hub) -> Iterator[HubClient]:
    with HubClient() as client:
        yield client


def only(hub: Hub, client: HubClient, **files: Stored) -> HubRepository:
    hub.repositories["u/m"] = {f"{name}.gguf": file for name, file in files.items()}
    return read_repository(client, "u/m")


def test_a_repository_is_listed_with_quants_shards_projectors_and_drafts(hub: Hub, client: HubClient) -> None:
    hub.repositories["unsloth/Large-GGUF"] = {
        **split_model("Q4_K_M/Large-Q4_K_M", 4),
        "Large-Q8_0.gguf": Stored.of(b"x" * 100),
        "Large-UD-IQ2_XXS.gguf": Stored.of(b"x" * 50),
        "mmproj-F16.gguf": Stored.of(b"x"),
        "MTP/Large-MTP-Q8_0.gguf": Stored.of(b"x"),
        "imatrix.gguf": Stored.of(b"x"),
        "README.md": Stored.of(b"x"),
        "../../evil-Q4_0.gguf": Stored.of(b"x"),
        "Large-BF16-00001-of-99999.gguf": Stored.of(b"x"),
        "Large-F16-00001-of-00000.gguf": Stored.of(b"x"),
    }
    assert search_hub(client, "large gguf", 5) == ["unsloth/Large-GGUF"]
    repository = read_repository(client, "unsloth/Large-GGUF")
    assert [(quant.label, len(quant.files)) for quant in repository.quants] == [
        ("F16", 1), ("UD-IQ2_XXS", 1), ("Q8_0", 1), ("Q4_K_M", 4),
    ]  # fmt: skip
    assert [file.name for file in repository.projectors] == ["mmproj-F16.gguf"]
    assert [draft.files[0].name for draft in repository.drafts] == ["MTP/Large-MTP-Q8_0.gguf"]
    assert (repository.quants[-1].size_bytes or 0) > 10 * GB
    assert repository.reference(repository.quants[-1]) == "hf:unsloth/Large-GGUF:Q4_K_M"
    assert repository.updated == "2026-11-20"


@pytest.mark.parametrize(
    "text", ["u/m", "hf:u/m", "hf:u/m:Q4_K_M", "u/m:Q4", "https://hub.example/u/m", "https://hub.example/u/m/tree/main"]
)
def test_a_repository_is_recognized(text: str) -> None:
    assert repository_name(text) == "u/m"


@pytest.mark.parametrize("text", ["qwen3", "qwen 3/8", "../etc", "a/b/c", "", "https://hub.example/u"])
def test_other_texts_are_searched(text: str) -> None:
    assert repository_name(text) is None


def test_the_header_of_four_shards_takes_a_few_megabytes_of_seventeen_gigabytes(
    hub: Hub, client: HubClient, paths: Paths
) -> None:
    hub.repositories["u/m"] = split_model("m-Q4_K_M", 4, vocabulary=150_000)
    quant = read_repository(client, "u/m").quants[0]
    path = fetch_header_file(client, read_repository(client, "u/m"), quant, paths)
    model = check_gguf(path)
    assert len(model.tensors) == len(tensor_table())
    assert model.architecture == "qwen3moe"
    assert model.size == quant.size_bytes
    assert hub.sent <= MAX_HEADER_BYTES
    assert sum(row.size_bytes for row in model.tensors) < (quant.size_bytes or 0)
    assert sum(shard.stat().st_blocks * 512 for shard in model.shards) <= 2 * MAX_HEADER_BYTES
    sent = hub.sent
    assert fetch_header_file(client, read_repository(client, "u/m"), quant, paths) == path
    assert hub.sent == sent, "a header is fetched once"
    model.shards[2].unlink()  # as after a kill in the middle of a removal
    assert check_gguf(fetch_header_file(client, read_repository(client, "u/m"), quant, paths)).size == model.size
    assert find_models(Config(), paths) == [], "a header is no model"


def test_a_redirect_to_another_host_gets_no_token(hub: Hub, client: HubClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with running_hub() as cdn, HubClient() as client_with_token:
        hub.repositories["u/m"] = cdn.repositories["u/m"] = split_model("m-Q4_K_M", 1)
        hub.redirects["/resolve/"] = f"{cdn.url}/cdn/u/m/resolve/x/m-Q4_K_M.gguf"
        repository = read_repository(client_with_token, "u/m")
        assert read_heads(client_with_token, repository, repository.quants[0])
        assert any(headers.get("authorization", headers.get("Authorization")) for headers in hub.headers)
        assert not any(headers.get("authorization", headers.get("Authorization")) for headers in cdn.headers)


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({}, "Bearer hf_kept"),  # as `hf auth login` keeps it
        ({"HF_TOKEN": "hf_secret"}, "Bearer hf_secret"),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_old"}, "Bearer hf_old"),
        ({"HF_TOKEN_PATH": "/nowhere"}, None),
        ({"HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, None),
    ],
)
def test_the_owners_token_and_no_other_question(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], sent: str | None
) -> None:
    (tmp_path / "token").write_text("hf_kept\n")
    for name, value in {"HF_HOME": str(tmp_path), **variables}.items():
        monkeypatch.setenv(name, value)
    hub.repositories["u/m"] = split_model("m-Q4_K_M", 1)
    with HubClient() as client:
        read_repository(client, "u/m")

    assert hub.paths == ["/api/models/u/m"]
    (headers,) = ({name.lower(): value for name, value in headers.items()} for headers in hub.headers)
    assert headers.get("authorization") == sent
    assert headers["user-agent"].startswith("gpubox/")


def test_offline_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(GpuboxError, match="HF_HUB_OFFLINE is set"):
        HubClient()


LONG = struct.pack("<Q", 1 << 63)
GOOD = header([pair("general.architecture", "llama")], [tensor("w", [64], 0, 0)])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"<!doctype html>", "is not a GGUF"),
        (b"GGUF" + struct.pack("<Iqq", 3, -1, 2), "claims"),
        (b"GGUF" + struct.pack("<Iqq", 3, 1, -5), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + LONG + b"key", "would be 9223372036854775808 bytes"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 63),
            "longer",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 63),
            "longer|long",
        ),
        (GOOD.replace(struct.pack("<Q", 64), LONG), "would end at"),
        (b"GGUF" + struct.pack("<IQQ", 77, 1, 1), "version 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 5, 5) + bytes(4096), "no name"),
    ],
)
def test_a_header_that_lies_is_refused(hub: Hub, client: HubClient, head: bytes, message: str) -> None:
    repository = only(hub, client, model=Stored(head, 5 * GB, "0" * 64))
    with pytest.raises(GpuboxError, match=message):
        read_heads(client, repository, repository.quants[0])
    assert hub.sent <= MAX_HEADER_BYTES


def test_a_header_without_end_costs_no_more_than_the_limit(hub: Hub, client: HubClient) -> None:
    endless = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IQ", 8, 1 << 40)
    repository = only(hub, client, model=Stored(endless, 1 << 45, "0" * 64))
    with pytest.raises(GpuboxError, match="longer than 16 MB"):
        read_heads(client, repository, repository.quants[0])
    assert hub.sent <= MAX_HEADER_BYTES


def _two(first: Stored, second: Stored) -> dict[str, Stored]:
    return {"m-Q4_0-00001-of-00002.gguf": first, "m-Q4_0-00002-of-00002.gguf": second}


def _whole(**changes: Any) -> dict[str, Stored]:
    return {"m.gguf": replace(split_model("m", 1)["m.gguf"], **changes)}


ROWS = tensor_table()


@pytest.mark.parametrize(
    ("files", "cuts", "message"),
    [
        (_two(shard(ROWS[:9], 1, 2), shard(ROWS[9:], 1, 2)), [], "calls itself 2 of 2"),
        (_two(shard(ROWS[:9], 0, 9), shard(ROWS[9:], 1, 2)), [], "calls itself 1 of 9"),
        (_two(shard(ROWS, 0, 2), shard(ROWS, 1, 2)), [], "repeat each other"),
        (_whole(size=GB), [], "incomplete on Hugging Face: it has 1.0 GB of"),
        (_whole(listed_size=7), [], "two lengths|shorter"),
        (_whole(), [5_000], "broke|stops in the middle"),
    ],
)
def test_files_that_contradict_themselves(
    hub: Hub, client: HubClient, files: dict[str, Stored], cuts: list[int], message: str
) -> None:
    hub.repositories["u/m"], hub.cuts = files, cuts
    repository = read_repository(client, "u/m")
    with pytest.raises(GpuboxError, match=message):
        read_heads(client, repository, repository.quants[0])


def test_a_hub_without_ranges_is_read_no_further_than_needed(hub: Hub, client: HubClient) -> None:
    hub.ranges = False
    repository = only(hub, client, model=split_model("m", 1)["m.gguf"])
    assert len(read_heads(client, repository, repository.quants[0])) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "does not exist.*HTTP 401"), (404, "private"), (403, "private"), (429, "limits your"), (503, "HTTP 503")],
)
def test_refusals_of_the_hub(hub: Hub, client: HubClient, status: int, message: str) -> None:
    hub.repositories["u/m"] = {}
    hub.statuses["/api/models"] = status
    with pytest.raises(GpuboxError, match=message):
        read_repository(client, "u/m")
    with pytest.raises(GpuboxError, match=str(status)):
        search_hub(client, "m", 5)


@pytest.mark.parametrize(
    "body",
    [b"<html>login</html>", b"", b"[" * 100_000, b"42", b'{"siblings": 3}', b'{"siblings": [1, null, {}]}', b"[]"],
    ids=["a page", "nothing", "deep", "a number", "no list", "odd files", "no object"],
)
def test_garbage_is_one_sentence_or_no_quants(hub: Hub, client: HubClient, body: bytes) -> None:
    hub.bodies["/api/models"] = body
    try:
        assert read_repository(client, "u/m").quants == ()
    except GpuboxError as error:
        assert error.message.count(". ") == 0
    try:
        assert search_hub(client, "m", 5) == []
    except GpuboxError as error:
        assert "Hugging Face" in error.message


@pytest.mark.parametrize(
    ("target", "message"), [("{url}/api/models", "in a circle"), ("file:///etc/passwd", "Hugging Face")]
)
def test_redirects_that_lead_nowhere(hub: Hub, client: HubClient, target: str, message: str) -> None:
    hub.redirects["/api/models"] = target.format(url=hub.url)
    with pytest.raises(GpuboxError, match=message):
        search_hub(client, "m", 5)


@pytest.mark.parametrize(("shards", "vocabulary", "same"), [(2, 50_000, True), (1, 50_001, False)])
def test_the_vocabulary_of_a_repository_is_fetched_once(
    hub: Hub, client: HubClient, paths: Paths, shards: int, vocabulary: int, same: bool
) -> None:
    """And another one is not taken for it."""
    hub.repositories["u/m"] = {**split_model("m-Q4_K_M", shards, 50_000), **split_model("m-Q8_0", 1, vocabulary)}
    repository = read_repository(client, "u/m")
    one, other = sorted(repository.quants, key=lambda quant: quant.label)
    first = fetch_header_file(client, repository, one, paths)
    before = hub.sent
    second = fetch_header_file(client, repository, other, paths, first)
    assert (hub.sent - before < 250_000) == same
    with second.open("rb") as file:
        head = hub.repositories["u/m"]["m-Q8_0.gguf"].head
        assert file.read(len(head)) == head


def test_a_hub_that_trickles(hub: Hub, client: HubClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_header, "_SECONDS", -1.0)
    monkeypatch.setattr(hub_client, "ANSWER_SECONDS", 60.0)
    repository = only(hub, client, model=split_model("m", 1)["m.gguf"])
    with pytest.raises(GpuboxError, match="does not answer for"):
        read_heads(client, repository, repository.quants[0])
    monkeypatch.setattr(hub_client, "ANSWER_SECONDS", -1.0)
    with pytest.raises(GpuboxError, match="does not answer for"):
        search_hub(client, "m", 5)


def test_a_hub_that_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with HubClient(read_seconds=0.05) as client, pytest.raises(GpuboxError, match="does not answer for the search"):
            search_hub(client, "m", 5)


def test_old_headers_are_removed(hub: Hub, client: HubClient, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_header, "_CACHE_BYTES", 1_000_000)
    hub.repositories["u/m"] = {
        name: file for number in range(3) for name, file in split_model(f"m{number}-Q4_0", 1, 20_000 + number).items()
    }
    repository = read_repository(client, "u/m")
    made = [fetch_header_file(client, repository, quant, paths) for quant in repository.quants]
    assert [path.exists() for path in made] == [False, True, True]


def test_a_full_disk_is_one_sentence(
    hub: Hub, client: HubClient, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remote_header, "_write_sparse", full)
    repository = only(hub, client, model=split_model("m", 1)["m.gguf"])
    with pytest.raises(GpuboxError, match=r"cannot be stored in .*: No space left"):
        fetch_header_file(client, repository, repository.quants[0], paths)
    assert list((paths.headers / "hub").iterdir()) == []
