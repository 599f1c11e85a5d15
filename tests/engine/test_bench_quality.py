"""The quality of a KV type through a real server, which is asked for its probabilities."""

from __future__ import annotations

import json

import pytest

from tests.engine.conftest import Box
from tests.engine.outside import gpubox

pytestmark = pytest.mark.engine


def test_a_coarse_kv_type_is_farther_than_none(box: Box) -> None:
    box.profile("plain")
    words = ("plain", "plain:cache-type-k=q4_0,cache-type-v=q4_0,flash-attn=on", "--method", "server")
    done = gpubox("bench", "quality", *words, "--chunks", "2", "--context", "128", "--json")

    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    metrics = {(m["target"], m["name"]): m["estimate"]["value"] for m in values["report"]["metrics"]}
    coarse = "plain cache-type-k=q4_0 cache-type-v=q4_0 flash-attn=on"
    assert 0.01 < metrics[coarse, "KL of top 256 (≥)"] < 5
    assert 10 < metrics[coarse, "same top token"] < 100
    assert 1 < metrics["plain", "perplexity"] < metrics[coarse, "perplexity"]
    assert values["run"]["provenance"][coarse]["argv"]
    gpubox("stop")
