"""Near misses of an edit: what can mean one place only is placed, all else is refused with the nearest places."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpubox.agent.edit_match import place_edit
from gpubox.errors import GpuboxError
from tests.sampling import batches

FILE = """\
import re


class Parser:
    def parse(self, text):
        total = 0
        for number, unit in re.findall(r"(\\d+)([hms])", text):
            total += int(number) * UNITS[unit]
        return total

    def check(self, text):
        if not text:
            return None
        return self.parse(text)
"""
OLD = """\
        if not text:
            return None
        return self.parse(text)
"""
NEW = """\
        if not text.strip():
            return 0
        return self.parse(text)
"""
WANTED = FILE.replace(OLD, NEW)


def edited(text: str, old: str, new: str) -> str:
    place = place_edit(text, old, new)
    return text[: place.begin] + place.new + text[place.end :]


def mapped(change: Callable[[str], str]) -> tuple[str, str]:
    """Both texts of the edit, each line changed in the same way."""
    return tuple("".join(f"{change(line)}\n" for line in part.splitlines()) for part in (OLD, NEW))  # type: ignore[return-value]


def numbered(part: str, first: int, form: str) -> str:
    return "".join(form.format(number, line) for number, line in enumerate(part.splitlines(), first))


NEAR = {
    "as it is": (OLD, NEW),
    "no line break at the end": (OLD.rstrip("\n"), NEW.rstrip("\n")),
    "blanks at line ends": mapped(lambda line: f"{line}  "),
    "indentation lost": mapped(lambda line: line.removeprefix("        ")),
    "indentation too deep": mapped(lambda line: f"  {line}"),
    "tabs for spaces": mapped(lambda line: line.replace("    ", "\t")),
    "line ends of Windows": (OLD.replace("\n", "\r\n"), NEW.replace("\n", "\r\n")),
    "line numbers": (numbered(OLD, 12, "{:6}\t{}\n"), numbered(NEW, 12, "{:6}\t{}\n")),
    "line numbers of the old text alone": (numbered(OLD, 12, "{}: {}\n"), NEW),
    "escaped line breaks": (OLD.replace("\n", "\\n"), NEW.replace("\n", "\\n")),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_that_is_certain_is_placed(name: str) -> None:
    assert edited(FILE, *NEAR[name]) == WANTED


@pytest.mark.parametrize("name", NEAR)
def test_the_line_ends_of_the_file_stay(name: str) -> None:
    assert edited(FILE.replace("\n", "\r\n"), *NEAR[name]) == WANTED.replace("\n", "\r\n")


def test_a_file_with_tabs_gets_tabs() -> None:
    tabbed = FILE.replace("    ", "\t")
    assert edited(tabbed, OLD, NEW) == tabbed.replace(OLD.replace("    ", "\t"), NEW.replace("    ", "\t"))


@pytest.mark.parametrize(
    ("old", "line"),
    [
        (OLD.replace("not text", "not test"), "12: "),  # one wrong character may be another meaning
        (OLD.replace("            return None\n", "            ...\n"), "12: "),
        ("    def parse(self, text):\n        total = 1\n", "5: "),
        ("        total += int(numbr) * UNITS[unit]\n", "8: "),
    ],
)
def test_what_is_not_certain_is_refused_with_the_place(old: str, line: str) -> None:
    with pytest.raises(GpuboxError, match="not in the file") as refused:
        place_edit(FILE, old, NEW)
    assert f"\n{line}" in refused.value.hint


def test_two_places_are_named() -> None:
    twice = FILE + FILE
    with pytest.raises(GpuboxError, match="2 times, at lines 12, 26"):
        place_edit(twice, OLD, NEW)
    with pytest.raises(GpuboxError, match="2 times, at lines 12, 26"):
        place_edit(twice, NEAR["indentation lost"][0], NEW)


def test_a_block_is_not_bent_to_another_shape() -> None:
    with pytest.raises(GpuboxError):
        place_edit(FILE, "if not text:\nreturn None\n", "pass\n")  # the depths within it do not agree


@pytest.mark.parametrize("seeds", batches(range(1000)))
def test_fuzzed_edits_never_land_elsewhere(seeds: tuple[int, ...]) -> None:
    placed = 0
    for seed in seeds:
        chance = random.Random(seed)
        words = [f"{chance.choice('abcd')}{chance.randrange(6)}" for _ in range(12)]
        lines = [
            " " * (4 * chance.randrange(4)) + chance.choice(words) + f"({chance.choice(words)})" for _ in range(60)
        ]
        begin, size = chance.randrange(55), chance.randrange(1, 5)
        block = lines[begin : begin + size]
        shift = min(len(line) - len(line.lstrip()) for line in block)
        told = [line[shift:] + " " * chance.randrange(3) for line in block]
        try:
            result = edited(
                "\n".join([*lines, ""]), "\n".join(told), "\n".join(f"{line}!" for line in map(str.rstrip, told))
            )
        except GpuboxError:
            bare = [line.strip() for line in lines]
            same = [at for at in range(60) if bare[at : at + size] == bare[begin : begin + size]]
            assert len(same) > 1  # it was refused because the text is there twice
            continue
        placed += 1
        assert result.split("\n") == [*lines[:begin], *(f"{line}!" for line in block), *lines[begin + size :], ""]
    assert placed > 10
