"""The interface of every kind of benchmark: its items and their course, how to execute one, how to score its record.

A course is a generator that yields the next items and is sent all results so far. A kind that knows all its items
yields them at once. One that chooses what it measures next by what it has seen is the same generator, only longer; a
resumed run sends it the stored results until it yields an item without one. The same results give the same items.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubox.bench.kind import Kind, PlanContext
from gpubox.bench.kinds import all_kinds
from gpubox.bench.model import Item, Plan, Provenance, RawRecord, Result, RunInfo, ScoredItems, Target
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError

if TYPE_CHECKING:
    from gpubox.bench.report.model import Report
    from gpubox.bench.target_server import ActiveTarget, TargetServer
    from gpubox.sandbox.runner import Sandbox


@dataclass(frozen=True, slots=True)
class Batch:
    """What is done next, in this order."""

    items: Sequence[Item]
    later: int = 0
    """The most items that may follow."""


Course = Generator[Batch, ScoredItems, str]
"""Is sent the results of all its items so far, and returns why it ended; empty: all is done."""


@dataclass(frozen=True, slots=True)
class Played:
    """A course as far as the results go."""

    items: tuple[Item, ...]
    """All that it has yielded."""
    later: int
    reason: str | None
    """Why it ended; ``None``: some of ``items`` have no result yet."""


def play(course: Course, results: Mapping[str, Result]) -> Played:
    """Sends ``course`` the stored results of each batch, up to the first batch that is not complete."""
    items: list[Item] = []
    batch = next(course)
    while True:
        items += batch.items
        if any(item.id not in results for item in batch.items):
            return Played(tuple(items), batch.later, None)
        try:
            batch = course.send([(item, results[item.id]) for item in items])
        except StopIteration as end:
            return Played(tuple(items), 0, end.value)


MAX_ITEMS = 20_000
"""Per run: a day of one request every four seconds."""
MAX_COUNT = 10_000_000
"""For every number in the options (tokens, repeats, rounds): above the context size of any model."""


class Benchmark(ABC):
    """One kind with the options of one plan. ``course`` and ``score`` depend only on the plan and their arguments."""

    kind: str

    def __init__(self, plan: Plan) -> None:
        """Raises UsageError if an option is invalid."""
        self.plan = plan
        self.config = Config()
        """Its ``weakest_confinement`` applies to model-written programs that scoring runs."""
        self._sandbox: Sandbox | None = None
        self.scratch = Path()
        """A folder for large files that ``execute`` needs, which it makes itself; the end of a session deletes it."""

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        """The plan of the given arguments and options; here: profiles, an address or what runs. Raises GpuboxError."""
        from gpubox.bench.overrides import given_targets

        return Plan(cls.kind, tuple(given_targets(context, given)), given)

    def items(self) -> Sequence[Item]:
        """All items in the order of execution, for a kind that knows them before it starts."""
        raise NotImplementedError

    def course(self) -> Course:
        """What is done, step by step; here: all items."""
        yield Batch(self.items())
        return ""

    @abstractmethod
    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        """Executes ``item`` on the active target. Returns whole requests and replies, JSON values only.

        Raises GpuboxError if the server refuses (stored as the result's error) or is gone (tried once more).
        """

    @abstractmethod
    async def score(self, item: Item, raw: RawRecord) -> Result:
        """The numbers of one stored record."""

    @abstractmethod
    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        """The report of the results so far. ``results`` include warm-ups; the kind leaves them out."""

    async def prepare(self, pairs: Sequence[tuple[Item, RawRecord]]) -> None:
        """Called before ``score`` with every record that will be scored, for kinds that score faster in batches."""
        return

    async def stopped_provenance(
        self, target: Target, target_server: TargetServer, say: Callable[[str], None]
    ) -> Provenance | None:
        """What a program measures in place of a server (``Target.stopped``); ``None``: it is not recorded."""
        return None

    async def sandbox_isolation(self, target_server: TargetServer) -> str:
        """How model-written programs are confined; empty if the kind runs none. Raises GpuboxError if nothing can."""
        return ""

    def shared_sandbox(self) -> Sandbox:
        """The sandbox for model-written programs, created once."""
        if self._sandbox is None:
            from gpubox.sandbox.runner import Sandbox

            self._sandbox = Sandbox(self.config)
        return self._sandbox

    def best(self, results: ScoredItems) -> Target | None:
        """The target that ``bench save`` writes as a profile; ``None`` if the kind has no single best one."""
        return None

    def headline(self, results: ScoredItems) -> str:
        """The main figure so far, for the progress line."""
        return ""

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        """Why earlier results make ``item`` pointless; empty: execute it.

        Called before the item's target is started (``active`` is then another target or ``None``) and again after.
        """
        return ""

    def load_failure_reason(self, target: Target, error: GpuboxError) -> str:
        """Why a target cannot load, if that is a result (its items are skipped); empty: the run ends with ``error``.

        ``error`` is an OperationFailed if an engine was started, a UsageError if its flags were refused before that.
        """
        return ""


def doubtful_headline(benchmark: Benchmark, results: ScoredItems) -> str:
    """The headline, followed by the kinds of doubts about it."""
    headline = benchmark.headline(results)
    kinds = dict.fromkeys(doubt.kind for item, result in results if not item.warmup for doubt in result.doubts)
    return f"{headline}  ! {', '.join(kinds)}" if headline and kinds else headline


def make_benchmark(plan: Plan) -> Benchmark:
    """The benchmark of ``plan``. Raises UsageError if the kind or an option is unknown."""
    return benchmark_class(find_kind(plan.kind))(plan)


def find_kind(name: str) -> Kind:
    """The kind called ``name``. Raises UsageError."""
    kinds = all_kinds()
    if name not in kinds:
        raise UsageError(f"There is no benchmark {name!r}.", f"There are: {', '.join(kinds)}.")
    return kinds[name]


def benchmark_class(kind: Kind) -> type[Benchmark]:
    """Imports the benchmark of ``kind``."""
    module, _, name = kind.benchmark.partition(":")
    own: type[Benchmark] = getattr(importlib.import_module(module), name)
    return own


def check_numbers(options: Mapping[str, Any]) -> None:
    """Raises UsageError if a number in the options is NaN, infinite or above MAX_COUNT."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            check_numbers(value)
            continue
        for number in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if isinstance(number, int | float) and not -MAX_COUNT <= number <= MAX_COUNT:  # also true of NaN
                shown = f"{number:g}" if isinstance(number, float) else str(number)[:24]
                limit = "a number" if isinstance(number, float) and math.isnan(number) else f"at most {MAX_COUNT:,}"
                raise UsageError(f"{name.replace('_', '-')} must be {limit}, not {shown}.")


def check_items(count: int) -> None:
    """Raises UsageError if a run would have more than MAX_ITEMS items; called before they are created."""
    if count > MAX_ITEMS:
        raise UsageError(
            f"That is {count:,} items.", f"A run has at most {MAX_ITEMS:,} items: ask for fewer repeats or minutes."
        )
