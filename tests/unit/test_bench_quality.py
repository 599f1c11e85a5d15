"""Figures of the quality benchmark: what the program prints, intervals."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench.kinds.quality.program import BaseFile, logits_bytes, read_base, read_divergence, read_perplexity
from gpubox.bench.kinds.quality.quality_options import TEXT_FILE, parse_options, text_hash
from gpubox.bench.model import Target
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


def test_the_text_never_changes() -> None:
    text = TEXT_FILE.read_text(encoding="utf-8")
    assert 20_000 < len(text.encode()) < 40_000
    assert text_hash(text)[:16] == "870e7e9078675a8f"


def test_an_item_that_no_target_needs_is_refused() -> None:
    with pytest.raises(UsageError, match="is no target"):
        parse_options({"reference": "gone"}, (Target("a", "a"),))
