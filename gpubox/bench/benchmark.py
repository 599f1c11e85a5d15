"""What every kind of benchmark is: items, one way to execute one, one way to score what was stored."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, Target
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError

if TYPE_CHECKING:
    from gpubox.bench.report.model import Report
    from gpubox.bench.report.noise_history import NoiseHistory
    from gpubox.bench.target_server import ActiveTarget, TargetServer
    from gpubox.sandbox.runner import Sandbox

KINDS = {
    "speed": "gpubox.bench.kinds.speed.kind:Speed",
    "humaneval": "gpubox.bench.kinds.humaneval.kind:HumanEval",
    "suite": "gpubox.bench.kinds.suite.kind:Suite",
    "ab": "gpubox.bench.kinds.ab.kind:Ab",
    "sweep": "gpubox.bench.kinds.sweep.kind:Sweep",
    "soak": "gpubox.bench.kinds.soak.kind:Soak",
}
"""Kind -> ``module:class``, imported when it is used."""


class Benchmark(ABC):
    """One kind, with the options of one plan. ``items`` and ``score`` must depend on the plan alone."""

    kind: str
    takes_parallel = False

    def __init__(self, plan: Plan) -> None:
        """Raises UsageError for options that cannot be."""
        self.plan = plan
        self.config = Config()
        """Says what may confine the model's code, where it is run to be scored."""
        self._sandbox: Sandbox | None = None
        self.history: NoiseHistory | None = None
        """What past runs of this shared_sandbox say of its noise, for ``summarise``."""

    @abstractmethod
    def items(self) -> Sequence[Item]:
        """All items in the order of execution; the same plan gives the same ids."""

    @abstractmethod
    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        """Does the item on the target that ``target_server`` has up. Returns whole requests and replies, JSON values only.

        Raises GpuboxError where the server refuses (kept as the result's error) or is gone (tried once more).
        """

    @abstractmethod
    async def score(self, item: Item, raw: RawRecord) -> Result:
        """The numbers of one stored record. Reads nothing else, so that scoring again gives the same."""

    @abstractmethod
    def summarise(self, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
        """The report of what there is so far, warm-ups left out by the kind."""

    async def prepare(self, pairs: Sequence[tuple[Item, RawRecord]]) -> None:
        """Told before all of these are scored: a kind that can do many together keeps what it needs for ``score``."""
        return

    async def sandbox(self, target_server: TargetServer) -> str:
        """The isolation that confines the model's code; empty where none is run. Raises GpuboxError where none confines."""
        return ""

    def shared_sandbox(self) -> Sandbox:
        """Where the model's code runs; always the same one."""
        if self._sandbox is None:
            from gpubox.sandbox.runner import Sandbox

            self._sandbox = Sandbox(self.config)
        return self._sandbox

    def best(self, results: Sequence[tuple[Item, Result]]) -> Target | None:
        """The target that ``bench save`` keeps as a profile; ``None`` where the kind has none to choose."""
        return None

    def headline(self, results: Sequence[tuple[Item, Result]]) -> str:
        """The run so far in a few words, for the progress line."""
        return ""

    def skip_reason(self, item: Item, results: Sequence[tuple[Item, Result]], server: ActiveTarget | None) -> str:
        """Why ``item`` need not be done, given what came before it; empty: it must.

        Asked before the item's target is brought up (``server`` is then another's, or ``None``) and again after it.
        """
        return ""

    def unneeded_reason(self, item: Item, results: Sequence[tuple[Item, Result]]) -> str:
        """Why ``item`` is not needed any more (a verdict is clear); empty: it is. Asked before ``skip_reason``."""
        return ""

    def target_of(self, item: Item, results: Sequence[tuple[Item, Result]]) -> str:
        """The name of the target that ``item`` is done on; what came before it may decide it."""
        return item.target

    def load_failure_reason(self, target: Target, error: GpuboxError) -> str:
        """Why a target does not come up, where that is a result (its items are skipped with it); empty: the run ends.

        ``error`` is a ChangeFailed where an engine was started, a UsageError where its flags were refused before.
        """
        return ""


def flagged_headline(benchmark: Benchmark, results: Sequence[tuple[Item, Result]]) -> str:
    """The run so far in a few words, with the kinds of flags that make them doubtful."""
    words = benchmark.headline(results)
    kinds = dict.fromkeys(flag.kind for item, result in results if not item.warmup for flag in result.flags)
    return f"{words}  ! {', '.join(kinds)}" if words and kinds else words


def make_benchmark(plan: Plan) -> Benchmark:
    """The benchmark of ``plan``. Raises UsageError where there is no such kind, or its options are wrong."""
    if plan.kind not in KINDS:
        raise UsageError(f"There is no benchmark {plan.kind!r}.", f"There are: {', '.join(KINDS)}.")
    module, _, name = KINDS[plan.kind].partition(":")
    made: Benchmark = getattr(importlib.import_module(module), name)(plan)
    return made
