"""The declared options of the benchmark kinds: their defaults are the benchmarks' own, their rows fit the form."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest

from gpubox.bench.kinds import all_kinds
from gpubox.bench.kinds.ab.ab import AbOptions
from gpubox.bench.kinds.humaneval.humaneval import HumanEvalOptions
from gpubox.bench.kinds.quality.quality_options import QualityOptions
from gpubox.bench.kinds.soak.soak import SoakOptions
from gpubox.bench.kinds.speed.workloads import SpeedOptions
from gpubox.bench.kinds.suite.suite import SuiteOptions
from gpubox.bench.kinds.sweep.sweep import SweepOptions
from gpubox.bench.kinds.tune.protocol import Protocol, TuneOptions
from gpubox.cli.commands.bench import command as bench_command
from gpubox.cli.commands.tune import command as tune_command

OPTIONS: dict[str, Any] = {
    "speed": SpeedOptions, "ab": AbOptions, "sweep": SweepOptions, "soak": SoakOptions, "humaneval": HumanEvalOptions,
    "suite": SuiteOptions, "tune": TuneOptions, "quality": QualityOptions,
}  # fmt: skip


@pytest.mark.parametrize("kind", all_kinds())
def test_declared_defaults_are_those_of_the_benchmark(kind: str) -> None:
    declared = (*dataclasses.fields(OPTIONS[kind]), *(dataclasses.fields(Protocol) if kind == "tune" else ()))
    defaults = {field.name: field.default for field in declared}
    numbers = 0
    for option in all_kinds()[kind].options:
        default = defaults.get(option.key or option.name.replace("-", "_"))
        if option.default.isdecimal() and option.name not in ("limit", "parallel", "temperature"):
            assert default == float(option.default), option.name
            numbers += 1
    assert numbers or kind == "suite"


@pytest.mark.parametrize("kind", all_kinds())
def test_help_lists_every_option_in_one_column(kind: str) -> None:
    assert isinstance(bench_command, click.Group)
    command = tune_command if kind == "tune" else bench_command.get_command(click.Context(bench_command), kind)
    assert command
    lines = command.get_help(click.Context(command, info_name=kind, terminal_width=80)).splitlines()
    for option in all_kinds()[kind].options:
        assert any(line.startswith(f"  --{option.name} ") for line in lines), option.name
    options = lines[lines.index("Options:") + 1 :]
    column = options[0].index(all_kinds()[kind].options[0].help)
    assert all(line[column - 1] == " " and line[column] != " " for line in options), options
