"""``gpubox find``: models on this machine and on a hub of the test, their verdicts, and downloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpubox.models.find import hub_cache
from gpubox.paths import Paths
from gpubox.planner import planner
from gpubox.planner.devices import DeviceMemoryNow
from gpubox.planner.dry_run import run_dry
from gpubox.telemetry.device_memory import HOST
from gpubox.units import GIB
from tests.cli.verbs import gpubox, values
from tests.gguf_bytes import model
from tests.hub import Hub, Stored, running_hub, split_model

FOUR_SHARDS = "Large-Q4_K_M"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, paths: Paths, fake_engine: Path) -> Iterator[Hub]:
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\nfake = "{fake_engine}"\n')
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repositories["lab/Large-GGUF"] = {
            **split_model(FOUR_SHARDS, 4, vocabulary=150_000),
            "mmproj-F16.gguf": Stored.of(model({"general.architecture": "clip"})),
            "mtp-Large.gguf": Stored.of(model()),
        }
        hub.repositories["lab/Small-GGUF"] = {"small-Q8_0.gguf": Stored.of(model(elements=40_000))}
        yield hub


def with_card(monkeypatch: pytest.MonkeyPatch, gib: int) -> None:
    """A card and RAM of a size that the machine of the test does not have."""
    devices = [
        DeviceMemoryNow("CUDA0", "gpu", "a card", gib * GIB, gib * GIB),
        DeviceMemoryNow(HOST, "host", "RAM", 64 * GIB, 60 * GIB),
    ]
    monkeypatch.setattr(planner, "devices_now", lambda *_: devices)


@pytest.mark.parametrize(
    ("gib", "verdict", "words"),
    [(24, "fits", "✓ fits, about"), (12, "tight", "too large for CUDA0"), (12, "tight", "fits with n-cpu-moe=")],
)
def test_a_verdict_before_a_download(
    hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gib: int, verdict: str, words: str
) -> None:
    with_card(monkeypatch, gib)
    code, answer = values(capfd, "find", "large")
    (repository,) = answer["on_hub"]
    (quant,) = repository["quants"]
    assert (code, quant["plan"]["verdict"], len(quant["files"])) == (0, verdict, 4)
    assert quant["model"] == "hf:lab/Large-GGUF:Q4_K_M"
    assert repository["projectors"][0]["name"] == "mmproj-F16.gguf"
    assert repository["drafts"][0]["files"][0]["name"] == "mtp-Large.gguf"
    assert hub.sent <= 16_000_000
    _, out, _ = gpubox(capfd, "find", "large")
    assert words in out
    assert "4 shards" in out


def test_flags_of_the_plan(hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with_card(monkeypatch, 12)
    _, plain = values(capfd, "find", "lab/Large-GGUF")
    _, moved = values(capfd, "find", "lab/Large-GGUF", "--set", "n-cpu-moe=48")
    plans = [answer["on_hub"][0]["quants"][0]["plan"] for answer in (plain, moved)]
    assert [plan["verdict"] for plan in plans] == ["tight", "fits"]
    assert plans[0]["solutions"][0]["flags"]["n-cpu-moe"] < 48


def test_a_setting_replaces_every_spelling_of_the_profiles_flag(
    hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, paths: Paths
) -> None:
    with_card(monkeypatch, 24)
    paths.profiles.mkdir(parents=True)
    (paths.profiles / "mine.toml").write_text('model = "m.gguf"\n[flags]\nc = 65536\n')
    _, alone = values(capfd, "find", "lab/Large-GGUF", "--set", "ctx-size=8192")
    _, like = values(capfd, "find", "lab/Large-GGUF", "--set", "ctx-size=8192", "--like", "mine")
    plans = [answer["on_hub"][0]["quants"][0]["plan"] for answer in (alone, like)]
    assert plans[0] == plans[1]


def test_models_of_other_programs(
    own_home: Path, hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = own_home / ".lmstudio/models/who/Tiny/tiny-Q8_0.gguf"
    studio.parent.mkdir(parents=True)
    studio.write_bytes(model())
    store = own_home / ".ollama/models"
    digest = "ab" * 32
    (store / "blobs").mkdir(parents=True)
    (store / f"blobs/sha256-{digest}").write_bytes(model())
    for name, layers in (
        ("library/tiny/7b", [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}]),
        ("library/tiny/gone", [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'0' * 64}"}]),
        ("library/tiny/evil", [{"mediaType": "application/vnd.ollama.image.model", "digest": "../../../etc/passwd"}]),
        ("library/tiny/broken", 7),
    ):
        manifest = store / "manifests/host" / name
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps({"layers": layers}))
    code, answer = values(capfd, "find", "tiny", "--disk")
    assert code == 0
    assert [(row["name"], row["place"]) for row in answer["on_disk"]] == [
        ("tiny-Q8_0", "LM Studio"), ("tiny:7b", "Ollama"),
    ]  # fmt: skip
    assert [row["path"] for row in values(capfd, "find")[1]["on_disk"]] == [row["path"] for row in answer["on_disk"]]
    assert hub.paths == []


def test_offline(own_home: Path, hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, out, err = gpubox(capfd, "find", "small")
    assert (code, out) == (1, "")
    assert err.count("There is no connection to Hugging Face.") == 1
    (own_home / "models").mkdir()
    (own_home / "models/small.gguf").write_bytes(model())
    code, out, err = gpubox(capfd, "find", "small")
    assert code == 0
    assert "~/models" in out
    assert "no connection" in err


@pytest.mark.parametrize(
    ("status", "sentence"), [(401, "refuses the search"), (404, "refuses"), (429, "Try again in 7 s."), (500, "500")]
)
def test_a_hub_that_refuses(hub: Hub, capfd: pytest.CaptureFixture[str], status: int, sentence: str) -> None:
    hub.statuses["/api/"] = status
    code, _, err = gpubox(capfd, "find", "small")
    assert code == 1
    assert sentence in err


def test_a_quant_that_cannot_be_planned_is_still_listed(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    hub.repositories["lab/Small-GGUF"]["page-Q4_0.gguf"] = Stored.of(b"<html>\x1b[31m")
    hub.repositories["lab/Small-GGUF"]["head-Q6_K.gguf"] = Stored.of(model({"llama.nextn_predict_layers": 1}))
    code, out, _ = gpubox(capfd, "find", "lab/Small-GGUF")
    assert code == 0
    assert "is not a GGUF" in out
    assert "Q8_0" in out
    _, answer = values(capfd, "find", "lab/Small-GGUF")
    quants = {quant["label"]: quant["draft_head"] for quant in answer["on_hub"][0]["quants"]}
    assert (quants["Q4_0"], quants["Q6_K"]) == (None, True)


def test_a_download(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = gpubox(capfd, "find", "lab/Small-GGUF:Q8_0", "--download")
    assert code == 0, err
    path = Path(out.split()[-1])
    assert path.read_bytes() == hub.repositories["lab/Small-GGUF"]["small-Q8_0.gguf"].head
    assert path.is_relative_to(hub_cache())
    assert "free" in err
    sent = hub.sent
    assert gpubox(capfd, "find", "lab/Small-GGUF", "--download")[0] == 0
    assert hub.sent == sent
    assert "on disk" in gpubox(capfd, "find", "lab/Small-GGUF")[1]
    assert values(capfd, "find", "small", "--disk")[1]["on_disk"][0]["place"] == "Hugging Face"


@pytest.mark.parametrize("text", ["HF:lab/Small-GGUF:Q8_0", " lab/Small-GGUF:Q8_0 "])
def test_a_reference_in_any_spelling(
    hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("gpubox.planner.planner.run_dry", partial(run_dry, timeout=0.2))  # the fake prints no table
    code, answer = values(capfd, "find", text)
    assert (code, [quant["label"] for quant in answer["on_hub"][0]["quants"]]) == (0, ["Q8_0"])
    assert gpubox(capfd, "find", text, "--download")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["small"], "names no repository"),
        (["lab/Small-GGUF:Q2_K"], "It has: Q8_0"),
        (["lab/None"], "does not exist"),
        (["lab/Small-GGUF", "--mmproj"], "no vision projector"),
        (["lab/Large-GGUF:Q4_K_M"], "are free in"),
    ],
)
def test_downloads_that_cannot_be(
    hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1_000_000})())
    code, _, err = gpubox(capfd, "find", *words, "--download")
    assert code != 0
    assert message in err
    assert not hub_cache().exists() or not any(hub_cache().glob("models--*/blobs/*"))


def test_a_profile_whose_model_is_not_here_is_judged_by_the_header_on_the_hub(
    hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, paths: Paths
) -> None:
    with_card(monkeypatch, 24)
    monkeypatch.setattr(planner, "can_dry_run", lambda _: False)  # the fake engine would serve instead, for 30 s
    paths.profiles.mkdir(parents=True, exist_ok=True)
    (paths.profiles / "far.toml").write_text('model = "hf:lab/Large-GGUF:Q4_K_M"\n')
    code, out, _ = gpubox(capfd, "fit", "far")
    assert code == 0 and "CUDA0" in out
    hub.repositories.clear()
    _, out, _ = gpubox(capfd, "fit", "far")
    assert "far: memory unknown: the model is not on this machine yet, and its header cannot be read: " in out
