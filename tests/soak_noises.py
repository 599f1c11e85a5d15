"""The speed of a server that does not change, answer by answer: noise that no formula under test knows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

ANSWERS = 360
Noise = Callable[[random.Random, int], list[float]]


def white(sd: float) -> Noise:
    return lambda dice, n: [dice.gauss(0, sd) for _ in range(n)]


def wander(sd: float, seconds: float) -> Noise:
    """Heat, other programs: a process that forgets in ``seconds``; an answer takes 2.5 s."""

    def noise(dice: random.Random, n: int) -> list[float]:
        keep, value, values = math.exp(-2.5 / seconds), dice.gauss(0, sd), []
        for _ in range(n):
            values.append(value + dice.gauss(0, 0.005))
            value = keep * value + dice.gauss(0, sd * math.sqrt(1 - keep * keep))
        return values

    return noise


def two_modes(loss: float, dwell: int) -> Noise:
    def noise(dice: random.Random, n: int) -> list[float]:
        slow, values = dice.random() < 0.5, []
        for _ in range(n):
            values.append((math.log(1 - loss) if slow else 0.0) + dice.gauss(0, 0.01))
            slow ^= dice.random() < 1 / dwell
        return values

    return noise


def hiccups(dice: random.Random, n: int) -> list[float]:
    return [dice.gauss(0, 0.02) + (math.log(0.5) if dice.random() < 0.05 else 0.0) for _ in range(n)]


def bad_start(dice: random.Random, n: int) -> list[float]:
    length = dice.choice((5, 15, 30))
    return [dice.gauss(0, 0.015) - (0.15 if place < length else 0.0) for place in range(n)]


NOISES: dict[str, Noise] = {
    "1 %": white(0.01),
    "5 %": white(0.05),
    **{f"wander {100 * sd:.0f} %, {seconds} s": wander(sd, seconds) for sd in (0.01, 0.03) for seconds in (10, 25, 60)},
    **{f"two modes -{100 * loss:.0f} %, {dwell}": two_modes(loss, dwell)
       for loss in (0.05, 0.1, 0.2) for dwell in (5, 15, 40, 120)},
    "hiccups": hiccups,
    "a bad start": bad_start,
}  # fmt: skip
