"""Figures of the quality benchmark: what the program prints, probabilities of a server, intervals, needles."""

from __future__ import annotations

import math
import random
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.kinds.quality.figures import SERVER_KL, differences, figures_of, over_chunks
from gpubox.bench.kinds.quality.needle import haystack, needle_of
from gpubox.bench.kinds.quality.probabilities import (
    TokenProbabilities,
    chosen_positions,
    divergence,
    read_probabilities,
)
from gpubox.bench.kinds.quality.program import BaseFile, logits_bytes, read_base, read_divergence, read_perplexity
from gpubox.bench.kinds.quality.quality_options import (
    POSITIONS,
    TEXT_FILE,
    QualityOptions,
    items_of,
    parse_options,
    text_hash,
)
from gpubox.bench.kinds.quality.quality_report import summarise
from gpubox.bench.model import Item, Plan, Result, RunInfo, Target
from gpubox.errors import GpuboxError, UsageError

RECORDED = Path(__file__).parents[1] / "fixtures" / "quality"


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q2_k"])
def test_chunks_add_up_to_what_the_program_says(name: str) -> None:
    text = (RECORDED / f"{name}.txt").read_text()
    figures = read_divergence(text, 19, 512)

    def printed(pattern: str) -> float:
        match = re.search(pattern + r" *: *([\d.]+)", text)
        assert match
        return float(match[1])

    assert statistics.fmean(figures.kl) == pytest.approx(printed("Mean +KLD"), abs=1e-5)
    assert 100 * statistics.fmean(figures.same_top) == pytest.approx(printed("Same top p"), abs=1e-3)
    assert math.exp(statistics.fmean(figures.log_perplexity)) == pytest.approx(printed(r"Mean PPL\(Q\)"), abs=1e-3)
    assert figures.total("kl_median") == printed("Median +KLD")
    assert figures.total("kl_99") == printed(r"99\.0% +KLD")


def test_a_model_against_itself_differs_in_nothing() -> None:
    reference = read_perplexity((RECORDED / "f16.txt").read_text(), 19)
    itself = read_divergence((RECORDED / "f16-itself.txt").read_text(), 19, 512)  # its errors are -nan

    assert max(map(abs, itself.kl)) < 1e-9
    assert itself.log_perplexity == reference.log_perplexity
    assert min(itself.same_top) > 0.99  # 16 bits per logit: two near ties of 4,845 tokens


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "", "0 of 19 chunks"),
        (lambda text: text.replace("\n   7 ", "\n   8 "), "19 of 19 chunks"),
        (lambda text: re.sub(r"\n   7 .*", "", text), "18 of 19 chunks"),
        (lambda text: text.replace("Median  KLD", "Middle  KLD"), "lack kl_median"),
        (lambda text: text.replace("21.1196 ±", "-nan ±"), "computes -nan in chunk 19"),
    ],
)
def test_other_output_is_refused(damage: Any, message: str) -> None:
    text = (RECORDED / "q4_0.txt").read_text()

    with pytest.raises(GpuboxError, match=re.escape(message)):
        read_divergence(damage(text), 19, 512)


def test_the_size_of_the_logits_is_known_before(tmp_path: Path) -> None:
    # 100,286,452 bytes: 4 chunks of 512 tokens of SmolLM2 (49,152 tokens), as build 11434 wrote them
    base = BaseFile(512, 49152, 4)
    assert base.size_bytes == 100_286_452
    assert logits_bytes(49153, 512) > logits_bytes(49152, 512)
    path = tmp_path / "base"
    path.write_bytes(b"_logits_" + bytes(12))
    assert read_base(tmp_path / "none") is None
    path.write_bytes(b"_logits_" + (512).to_bytes(4, "little") + (4).to_bytes(4, "little") + (1).to_bytes(4, "little"))
    assert read_base(path) is None  # cut off
    with path.open("ab") as file:
        file.truncate(BaseFile(512, 4, 1).size_bytes)
    assert read_base(path) == BaseFile(512, 4, 1)


def distribution(dice: random.Random, size: int) -> list[float]:
    weights = [math.exp(3 * dice.gauss(0, 1)) for _ in range(size)]
    return [weight / sum(weights) for weight in weights]


def top_of(distribution: list[float], count: int, following: int = 0) -> TokenProbabilities:
    order = sorted(range(len(distribution)), key=lambda token: -distribution[token])[:count]
    logs = [math.log(value) for value in distribution]
    return TokenProbabilities(following, logs[following], tuple(order), tuple(logs[token] for token in order))


@pytest.mark.parametrize("seed", range(20))
def test_the_divergence_of_the_top_tokens_is_a_lower_bound(seed: int) -> None:
    dice = random.Random(seed)
    p = distribution(dice, 400)
    q = [value * math.exp(dice.gauss(0, 0.3)) for value in p]
    q = [value / sum(q) for value in q]
    true = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    bounds = [divergence(top_of(p, count), top_of(q, count)).kl for count in (5, 50, 400)]

    assert all(-1e-9 <= bound <= true + 1e-9 for bound in bounds)
    assert bounds[-1] == pytest.approx(true, abs=1e-4)  # with all tokens it is the divergence itself
    assert divergence(top_of(p, 50), top_of(p, 50)).kl == 0


def test_positions_are_those_that_the_program_predicts_from() -> None:
    places = chosen_positions(512)
    assert len(set(places)) == POSITIONS
    assert min(places) == 256
    assert max(places) < 511


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({}, "reports no probabilities"),
        ({"completion_probabilities": [{"id": 7, "logprob": -1.0}]}, "reports no probabilities"),
        ({"completion_probabilities": [{"id": 8, "logprob": -1.0, "top_logprobs": [{"id": 1, "logprob": -1.0}]}]},
         "did not choose the token"),
        ({"completion_probabilities": [{"id": 7, "logprob": 3.0, "top_logprobs": [{"id": 1, "logprob": -1.0}]}]},
         "that are none"),
        ({"completion_probabilities": [{"id": 7, "logprob": -1.0, "top_logprobs": [{"id": "x"}]}]}, "cannot be read"),
    ],
)  # fmt: skip
def test_other_probabilities_are_refused(reply: Any, message: str) -> None:
    with pytest.raises(GpuboxError, match=message):
        read_probabilities(reply, 7)


def server_run(names: tuple[str, ...], shifts: dict[str, float], vocabularies: dict[str, str] | None = None) -> Any:
    """Results of the server method: each target's logits are the reference's, shifted at random by ``shifts``."""
    options = QualityOptions(names[0], "server", chunks=6, needle=False)
    results = []
    for name in names:
        for chunk in range(1, 7):
            positions = []
            for place in range(POSITIONS):
                dice = random.Random(f"{chunk} {place}")
                p = distribution(dice, 60)
                q = [value * math.exp(shifts[name] * dice.gauss(0, 1)) for value in p]
                own = top_of([value / sum(q) for value in q], 40, place)
                positions.append({"token": own.token, "logprob": own.logprob, "ids": list(own.ids),
                                  "logprobs": list(own.logprobs)})  # fmt: skip
            item = Item(f"{name}:{chunk:03d}", name, {"part": "chunk", "chunk": chunk})
            sha = (vocabularies or {}).get(name, "same")
            results.append((item, Result(item.id, {"text_sha256": sha, "positions": positions})))
    plan = Plan("quality", tuple(Target(name, name) for name in names), {"reference": names[0], "method": "server"})
    return options, RunInfo("r", plan, "2026-11-22T10:00:00Z", len(results)), results


def test_a_servers_figures_are_ordered_and_named_as_a_bound() -> None:
    options, info, results = server_run(("ref", "same", "near", "far"), {"ref": 0, "same": 0, "near": 0.2, "far": 0.6})
    figures = figures_of(options, results)
    same, near, far = (over_chunks(list(figures[name].kl.values())) for name in ("same", "near", "far"))

    assert same.value == 0
    assert near.low is not None and near.high is not None and far.low is not None
    assert 0 < near.low < near.high < far.low
    assert set(figures["same"].same_top.values()) == {1.0}
    report = summarise(options, info, results)
    assert {metric.name for metric in report.metrics if metric.name.startswith("KL")} == {
        SERVER_KL, f"{SERVER_KL}, median", f"{SERVER_KL}, 99 %",
    }  # fmt: skip
    assert "lower bound" in report.notes[0]
    verdicts = {(pair.first, pair.second): pair.verdict for pair in differences(figures)}
    assert verdicts["near", "far"] == "farther"
    assert verdicts["ref", "same"] == "no difference shown"


def test_two_vocabularies_give_no_divergence() -> None:
    options, info, results = server_run(("ref", "alien"), {"ref": 0, "alien": 0}, {"alien": "other"})
    report = summarise(options, info, results)

    assert not [metric for metric in report.metrics if metric.name.startswith("KL")]
    assert any("alien has another vocabulary than ref" in note for note in report.notes)


def test_a_needle_is_at_its_depth_and_the_same_for_every_target() -> None:
    text = " ".join(f"This is sentence number {number}." for number in range(200))
    items = [
        item
        for item in items_of(QualityOptions("a", "server", chunks=2, needle=True), (Target("a", "a"), Target("b", "b")))
        if item.values["part"] == "needle"
    ]
    assert len(items) == 2 * 2 * 5 * 3
    for item in items:
        place, number = needle_of(item)
        hidden = haystack(text, item)
        at = hidden.index(f"The code of the {place} is {number}.")
        assert at / len(hidden) == pytest.approx(item.values["depth"] / 100, abs=0.02)
    assert needle_of(items[0]) == needle_of(items[len(items) // 2])


def test_the_text_never_changes() -> None:
    text = TEXT_FILE.read_text(encoding="utf-8")
    assert 20_000 < len(text.encode()) < 40_000
    assert text_hash(text)[:16] == "870e7e9078675a8f"


def test_an_item_that_no_target_needs_is_refused() -> None:
    with pytest.raises(UsageError, match="is no target"):
        parse_options({"reference": "gone"}, (Target("a", "a"),))
