"""Which of many random or long cases the quick run tries: a seeded tenth. The nightly run tries all of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
SEED = int(os.environ.get("GPUBOX_TEST_SEED", "0"))
"""Chooses the tenth. All xdist workers read the same variable, so that they collect the same tests."""


def sampled(cases: Sequence[Any], share: float = 0.1, always: Sequence[Any] = ()) -> list[Any]:
    """All ``cases`` for ``parametrize``; those outside the seeded ``share`` (at least one case) are marked nightly.

    ``always`` are cases that the quick run tries with each seed: those that once found a fault.
    """
    quick = set(some_of(range(len(cases)), share))
    return [case if number in quick or case in always else _nightly(case) for number, case in enumerate(cases)]


def some_of(cases: Sequence[T], share: float) -> list[T]:
    """A seeded ``share`` of ``cases``, at least one, in their order."""
    number = max(1, round(len(cases) * share)) if cases else 0
    chosen = random.Random(f"{SEED} {len(cases)}").sample(range(len(cases)), number)
    return [cases[at] for at in sorted(chosen)]


def batches(cases: Sequence[Any], share: float = 0.1) -> list[Any]:
    """For ``parametrize``, where cases are tried together: a tuple of the seeded ``share``, and at night one of all."""
    chosen = [case for case in sampled(list(enumerate(cases)), share) if not isinstance(case, type(pytest.param()))]
    some = tuple(case for _, case in chosen)
    return [pytest.param(some, id="some"), pytest.param(tuple(cases), id="all", marks=pytest.mark.nightly)]


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which is pure, computed once in a process for each of its arguments."""
    known: dict[str, Any] = {}

    def answer(*arguments: Any, **named: Any) -> Any:
        key = repr((arguments, named))
        if key not in known:
            known[key] = function(*arguments, **named)
        return known[key]

    return answer


def _nightly(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):  # a case that has an id or marks of its own
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.nightly])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
