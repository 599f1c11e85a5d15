"""The shipped profiles: every configuration of the articles, checked against current llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.engines.capabilities import Capabilities, find_refusals, parse_help
from gpubox.paths import shipped_profiles
from gpubox.profiles.loader import load_profile
from gpubox.profiles.profile import Profile

HELP = Path(__file__).parents[1] / "fixtures" / "llama-server-b11434.help.txt"
FORK = {"qwen36-mtp-16gb", "qwen36-128k", "qwen36-256k"}
DEMO = {"demo", "demo-parallel"}
STOCK = {
    "qwen36-mtp-16gb-stock", "qwen36-128k-stock", "qwen36-256k-stock", "qwen35-24gb", "qwen36-mtp-24gb",
    "qwen36-hifi-mtp", "bench12-qwen35", "bench12-gemma4", "bench12-devstral", "bench12-deepseek-r1",
    "bench12-codestral", "nomic-embed",
}  # fmt: skip
FILES = sorted(shipped_profiles().glob("*.toml"))


@pytest.fixture(scope="module")
def stock_engine() -> Capabilities:
    return parse_help(HELP.read_text())


def shipped(name: str) -> Profile:
    return load_profile(shipped_profiles() / f"{name}.toml", shipped=True)


def test_every_configuration_of_the_articles_is_there() -> None:
    assert {path.stem for path in FILES} == FORK | STOCK | DEMO


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_loads_and_says_what_it_is_for(path: Path) -> None:
    profile = load_profile(path)
    assert profile.title
    assert profile.description
    assert profile.loopback
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("name", sorted(FORK | STOCK))
def test_a_configuration_of_an_article_names_its_source(name: str) -> None:
    profile = shipped(name)
    assert profile.source
    for reference in profile.references:
        assert reference.what
        assert reference.unit
        assert reference.hardware
        assert reference.article


@pytest.mark.parametrize("name", sorted(STOCK | DEMO))
def test_current_llama_cpp_takes_every_flag(name: str, stock_engine: Capabilities) -> None:
    assert find_refusals(stock_engine, shipped(name).flags) == []


@pytest.mark.parametrize("name", sorted(FORK))
def test_a_forks_profile_is_refused_with_a_way_out_for_each_flag(name: str, stock_engine: Capabilities) -> None:
    profile = shipped(name)
    refusals = find_refusals(stock_engine, profile.flags)
    assert profile.needs.engine
    assert {r.flag for r in refusals if r.needs_fork} == {"cache-type-k", "cache-type-v"}
    assert all(r.hint for r in refusals)


def test_the_recorded_help_of_the_package_is_the_one_tests_use() -> None:
    from gpubox.interchange import reference_options

    assert reference_options._HELP.read_text() == HELP.read_text()


def test_the_16gb_profile_has_the_articles_figures() -> None:
    figures = {reference.what: reference.value for reference in shipped("qwen36-mtp-16gb").references}
    assert figures["peak generation"] == 70
    assert figures["HumanEval pass@1, agentic"] == 96.95
    assert figures["draft acceptance"] == 98.3


def test_the_companion_and_the_demo() -> None:
    embed, demo = shipped("nomic-embed"), shipped("demo")
    assert (embed.companion, embed.port, embed.flags["embeddings"]) == (True, 8084, True)
    assert (demo.engine, demo.model, demo.port) == ("embedded", "demo:smollm2", 0)


@pytest.mark.parametrize(
    ("name", "temperature", "top_p"),
    [
        ("bench12-qwen35", 0.6, 0.95),
        ("bench12-gemma4", 0.0, 1.0),
        ("bench12-devstral", 0.0, 1.0),
        ("bench12-codestral", 0.2, 1.0),
        ("bench12-deepseek-r1", 0.6, 0.95),
    ],
)
def test_the_twelve_task_models_have_their_vendors_sampling(name: str, temperature: float, top_p: float) -> None:
    profile = shipped(name)
    assert dict(profile.sampling) == {"temperature": temperature, "top_p": top_p}
    assert profile.flags["chat-template"] == "chatml"
    assert profile.flags["n-gpu-layers"] == 99
