"""Values as JSON and as tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
import pytest

from gpubox.views.fields import json_fields
from gpubox.views.marks import MEMORY, SPEED, legend
from gpubox.views.rows import Table


class Colour(Enum):
    RED = "red"


class Point(msgspec.Struct, frozen=True):
    x: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Thing:
    name: str
    where: Path
    colour: Colour
    weight: float
    points: tuple[Point, ...] = ()
    words: tuple[str, ...] = ()
    by_name: dict[str, int | None] | None = None
    flag: bool = False

    @property
    def heavy(self) -> bool:
        return self.weight > 1


def test_fields_become_json_by_their_names() -> None:
    thing = Thing("", Path("/m/a.gguf"), Colour.RED, math.nan, (Point(1),), ("a", ""), {"b": None})

    assert json_fields(thing, "heavy", without=("flag",)) == {
        "name": None, "where": "/m/a.gguf", "colour": "red", "weight": None, "points": [{"x": 1, "note": None}],
        "words": ["a", ""], "by_name": {"b": None}, "heavy": False,
    }  # fmt: skip


def test_what_has_no_fields_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no fields"):
        json_fields(object())


def test_a_table_knows_its_widths() -> None:
    assert Table([("a", "bcd"), ("ef", "")], header=("X", "Y")).widths == (2, 3)
    assert Table([]).widths == ()


def test_marks_of_a_table_differ() -> None:
    for marks in (MEMORY, SPEED):
        assert len({mark.glyph for mark in marks.values()}) == len(marks)
    assert legend(MEMORY, "unknown").splitlines()[1] == "✓  it fits"
