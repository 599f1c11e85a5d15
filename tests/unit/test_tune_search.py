"""The search of a tune on simulated boxes whose truth is known: its choice, its starts, when it stops."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from gpubox.bench.kinds.tune.course import Course
from gpubox.bench.kinds.tune.search import SearchAxis, SearchSpace, StartOutcome
from gpubox.bench.kinds.tune.verdict import TuneVerdict, read_verdict
from gpubox.bench.start_comparison import MIN_STARTS

LAYERS, THREADS, UBATCHES, WINDOWS = (14, 16, 20, 26), (4, 8, 16), (256, 512), (0, 1, 3)
AXES = (SearchAxis(4, more_vram=-1, more_ram=1), SearchAxis(3), SearchAxis(2, more_vram=1), SearchAxis(3, more_vram=1))
Place = tuple[int, ...]


def space_of(axes: tuple[SearchAxis, ...], own: Place) -> SearchSpace:
    cells = {" ".join(map(str, place)): place for place in itertools.product(*(range(axis.levels) for axis in axes))}
    return SearchSpace(axes, cells, " ".join(map(str, own)))


def step_time(place: Place) -> float:
    """A card and a CPU that share the experts; the window and the threads interact with what the CPU computes."""
    on_cpu, threads, drafted = LAYERS[place[0]], THREADS[place[1]], WINDOWS[place[3]]
    cpu = on_cpu * 0.6 * (1 + 0.25 * drafted) / min(1.0, threads / 8) * (1.3 if threads > 8 else 1)
    return (6 + cpu) / sum(0.7**i for i in range(drafted + 1))


def rate(place: Place) -> float:
    return 1000 / step_time(place)


def fits(place: Place) -> bool:
    return LAYERS[place[0]] + 2 >= 16 + 2 * place[2]


def run(
    space: SearchSpace, truth: Callable[[Place], float], *, seed: int = 0, sd: float = 0.02, drift: float = 0.04,
    budget: float = math.inf, works: Callable[[Place], bool] = lambda place: True,
) -> Course:  # fmt: skip
    """A whole tune; a start takes 10 s."""
    dice = random.Random(f"noise {seed}")
    search: list[StartOutcome] = []
    final: list[StartOutcome] = []
    while (course := Course(space, budget, tuple(search), tuple(final), seed)).phase != "finished":
        part, cell = (search, course.search_step.cell) if course.search_step.cell else (final, course.final_step.cell)
        number, place = len(search) + len(final) + 1, space.cells[cell]
        start = dice.gauss(0, sd) + drift * number / 60
        if works(place):
            log_rates = {name: math.log(truth(place)) + start + dice.gauss(0, sd / 3) for name in ("a", "b", "c")}
            part.append(StartOutcome(number, cell, log_rates, 10.0))
        else:
            part.append(StartOutcome(number, cell, {}, 5.0, "out of VRAM on CUDA0", "VRAM", loaded=False))
    return course


def verdict_of(course: Course) -> TuneVerdict:
    return read_verdict(course, "tok/s")


@pytest.mark.parametrize("seed", range(3))
def test_the_fastest_cell_that_fits_is_kept_with_a_quarter_of_the_starts(seed: int) -> None:
    space = space_of(AXES, (3, 0, 1, 1))

    course = run(space, rate, seed=seed, works=fits)
    verdict = verdict_of(course)

    assert verdict.answer == "faster", verdict.sentence
    best = max(rate(place) for place in space.cells.values() if fits(place))
    assert rate(space.cells[verdict.keep]) > 0.97 * best
    assert len(course.outcomes) <= len(space.cells) * MIN_STARTS / 4
    gain = rate(space.cells[verdict.keep]) / rate(space.cells[space.own])
    assert verdict.low is not None and verdict.high is not None
    assert 0.98 * verdict.low < gain < 1.02 * verdict.high
    assert f"{verdict.keep} is faster by " in verdict.sentence


def faster_upwards(place: Place) -> float:
    return 40.0 * 1.2 ** place[0]


@pytest.mark.parametrize(
    ("cells", "works", "keep", "starts"),
    [
        (2, (0, 1), "1", 9),
        (3, (0, 1, 2), "2", 13),
        (4, (0, 1, 3), "3", 15),  # two starts show that 2 does not load
        (3, (0,), "0", 7),
    ],
)
def test_few_cells_are_all_compared_without_a_search(
    cells: int, works: tuple[int, ...], keep: str, starts: int
) -> None:
    course = run(space_of((SearchAxis(cells),), (0,)), faster_upwards, works=lambda place: place[0] in works)
    verdict = verdict_of(course)

    assert (verdict.keep, len(course.search)) == (keep, 1), verdict.sentence
    assert len(course.outcomes) <= starts
    assert verdict.answer == ("faster" if len(works) > 1 else "as good")


def test_few_cells_are_searched_if_the_time_does_not_allow_to_compare_all() -> None:
    course = run(space_of((SearchAxis(4),), (0,)), faster_upwards, budget=10 * 12)

    assert len(course.search) > 1 and len(course.outcomes) <= 12
    assert verdict_of(course).keep in ("0", "3")


@pytest.mark.parametrize("made", range(1, 4))
def test_few_cells_in_a_time_that_ends_within_the_comparison(made: int) -> None:
    whole = run(space_of((SearchAxis(3),), (0,)), faster_upwards)
    slow = [replace(outcome, seconds=200.0) for outcome in whole.final[:made]]
    course = Course(whole.space, 140.0, whole.search, slow, whole.seed)
    verdict = verdict_of(course)

    assert course.phase == "finished"
    assert (verdict.answer, verdict.keep) == ("too few", "0")
    assert verdict.sentence.startswith("Too few starts to tell")


@pytest.mark.parametrize("seed", range(3))
def test_identical_candidates_are_as_good(seed: int) -> None:
    course = run(space_of((SearchAxis(4), SearchAxis(4)), (1, 2)), lambda place: 40.0, seed=seed)
    verdict = verdict_of(course)

    assert (verdict.answer, verdict.keep) == ("as good", "1 2"), verdict.sentence
    assert verdict.sentence.startswith("Your flags are as good as any: within ")


@pytest.mark.parametrize("seed", range(2))
def test_a_search_that_leaves_cells_that_can_win_does_not_say_that_none_can(seed: int) -> None:
    # the second axis has no effect: its two cells at the best level of the first cannot be told apart
    course = run(
        space_of((SearchAxis(32), SearchAxis(2)), (0, 0)), lambda place: 10 * math.exp(place[0] / 8), seed=seed
    )

    assert course.knowledge.can_win and not course.knowledge.contenders
    assert course.search_step.reason == "every set of flags that can still win was started twice"


def test_own_flags_that_are_the_best_are_kept() -> None:
    space = space_of(AXES, (0, 1, 0, 1))
    best = max((name for name, place in space.cells.items() if fits(place)), key=lambda name: rate(space.cells[name]))
    course = run(space_of(AXES, space.cells[best]), rate, works=fits)

    assert verdict_of(course).keep == best


def test_what_needs_more_memory_than_a_cell_that_ran_out_of_it_is_never_started() -> None:
    course = run(space_of(AXES, (3, 0, 0, 0)), rate, works=fits)
    failed: list[StartOutcome] = []
    for outcome in course.outcomes:
        for other in failed:
            assert not course.space.needs_no_less(outcome.cell, other.cell, "VRAM"), (outcome.cell, other.cell)
        if outcome.lacks:
            failed.append(outcome)
    out = course.knowledge.out
    assert failed and set(out) >= {outcome.cell for outcome in failed}
    assert all(out[name] for name in out)


def test_own_flags_that_do_not_load_are_said_and_replaced() -> None:
    course = run(space_of(AXES, (0, 0, 1, 2)), rate, works=fits)
    verdict = verdict_of(course)

    assert verdict.answer == "own fails"
    assert "out of VRAM on CUDA0" in verdict.sentence
    assert fits(course.space.cells[verdict.keep])


def test_nothing_runs() -> None:
    verdict = verdict_of(run(space_of((SearchAxis(2, more_vram=1),), (0,)), rate, works=lambda place: False))

    assert (verdict.answer, verdict.keep) == ("nothing runs", "")
    assert "out of VRAM on CUDA0" in verdict.sentence


@pytest.mark.parametrize("starts", (1, 3, 8, 20))
def test_a_short_time_is_kept_and_the_verdict_says_what_it_is_worth(starts: int) -> None:
    course = run(space_of(AXES, (3, 0, 0, 0)), rate, budget=10 * starts)

    assert len(course.outcomes) <= starts + 1
    answer = verdict_of(course).answer
    if starts < 2 * MIN_STARTS:
        assert answer in ("too few", "as good")  # as good: nothing else was measured
        assert verdict_of(course).keep == course.space.own
    else:
        assert answer in ("faster", "too few", "as good")


def test_every_step_follows_from_the_outcomes_alone() -> None:
    whole = run(space_of(AXES, (3, 0, 0, 0)), rate, works=fits)
    for count in range(0, len(whole.search), 4):
        again = Course(whole.space, math.inf, whole.search[:count], (), whole.seed)
        assert again.search_step.cell == whole.search[count].cell
    for count in range(0, len(whole.final), 3):
        again = Course(whole.space, math.inf, whole.search, whole.final[:count], whole.seed)
        assert again.final_step.cell == whole.final[count].cell


def test_a_cell_that_changes_the_answers_is_never_kept_for_its_speed() -> None:
    def twice(place: Place) -> float:
        return 40.0 * (2 if place[0] else 1) * (1.2 if place[1] == 2 else 1)

    axes = (SearchAxis(2, ordered=False), SearchAxis(3))
    plain = space_of(axes, (0, 0))
    lossy = frozenset(name for name, place in plain.cells.items() if place[0])
    verdict = verdict_of(run(SearchSpace(axes, plain.cells, plain.own, lossy), twice))

    assert verdict.keep == "0 2"
    assert verdict.answer == "faster"


def test_that_only_cells_with_other_answers_ran_is_said() -> None:
    plain = space_of((SearchAxis(2, ordered=False),), (0,))
    verdict = verdict_of(run(SearchSpace(plain.axes, plain.cells, plain.own, frozenset({"1"})), faster_upwards))

    assert (verdict.answer, verdict.keep) == ("as good", "0")
    assert "No other set of flags that answers as yours do could be measured" in verdict.sentence


def test_a_flaky_start_does_not_rule_a_cell_out() -> None:
    space = space_of((SearchAxis(3),), (0,))
    good: Mapping[str, float] = {"a": 3.0}
    outcomes = [StartOutcome(1, "0", good, 1.0), StartOutcome(2, "2", good, 1.0),
                StartOutcome(3, "2", {}, 1.0, "the server died")]  # fmt: skip
    assert "2" not in Course(space, math.inf, outcomes).knowledge.out
    outcomes.append(StartOutcome(4, "2", {}, 1.0, "the server died"))
    assert Course(space, math.inf, outcomes).knowledge.out == {"2": "the server died"}
