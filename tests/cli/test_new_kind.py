"""A new kind of benchmark is one file and one line: verb, form, run and report follow from its ``Kind``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpubox.bench import kinds
from gpubox.paths import Paths
from gpubox.tui.bench.plan_form import bench_arguments, plan_fields, plannable_kinds
from tests.bench_server import BenchServer
from tests.cli.verbs import gpubox, values

DUMMY = """
from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kind import BenchOption, Kind
from gpubox.bench.measured_request import measure_request
from gpubox.bench.model import Item, Result
from gpubox.bench.report.model import Report

KIND = Kind(
    "echo",
    "how often the server answers",
    "Count the answers of PROFILES.",
    "echo_kind:Echo",
    (BenchOption("repeats", "Answers", default="2", in_form=True),),
    takes_url=True,
)


class Echo(Benchmark):
    kind = "echo"

    def items(self):
        count = self.plan.options.get("repeats", 2)
        return [Item(f"{n}", target.name) for target in self.plan.targets for n in range(count)]

    async def execute(self, item, target_server):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
        return await measure_request(target_server, item.id, body)

    async def score(self, item, raw):
        return Result(item.id, {"answered": 1})

    def summarise(self, info, results):
        return Report("echo", "Echo", notes=(f"It answered {len(results)} times.",))
"""


def test_a_kind_is_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], paths: Paths
) -> None:
    (tmp_path / "echo_kind.py").write_text(DUMMY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(kinds, "KIND_MODULES", [*kinds.KIND_MODULES, "echo_kind"])

    assert plannable_kinds(url=True)[-1] == "echo"
    assert [(field.label, field.empty) for field in plan_fields("echo")] == [("profile", ""), ("repeats", "2")]
    assert bench_arguments("echo", {"profile": "a", "repeats": "3"}) == ["echo", "a", "--repeats", "3"]
    code, out, _ = gpubox(capfd, "bench", "--help")
    assert "how often the server answers" in out
    code, out, _ = gpubox(capfd, "bench", "echo", "--help")
    assert "--repeats N" in out
    assert "--url URL" in out
    with BenchServer() as server:
        code, out, err = gpubox(capfd, "bench", "echo", "--url", server.url, "--repeats", "3")
    assert (code, "It answered 3 times." in out) == (0, True), err
    assert values(capfd, "bench", "show", "last")[0] == 0


def test_listing_the_kinds_imports_no_benchmark() -> None:
    program = (
        "import sys; from gpubox.bench.kinds import all_kinds; names = list(all_kinds());"
        "print([m for m in sys.modules if m in ('msgspec', 'httpx', 'gpubox.bench.benchmark') or m.endswith('.ab.ab')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"
