"""Where in a file a model's edit belongs. Pure.

A model copies the old text from what it has read, and loses what it does not see: blanks at line ends, the kind of line
end, the depth of the whole block, tabs. Such an edit is placed if it can mean one place only. All else is refused with
the nearest places: one wrong character may be another meaning, so nothing is ever placed by likeness.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from gpubox.errors import GpuboxError

NEAREST = 3
_SHOWN_LINES = 6
"""Of each near place."""
_MOST_WINDOWS = 40
"""Places that are compared in full, of those that share a line with the old text."""
_NUMBERED = re.compile(r"\s*(\d+)(?:: ?|\t| ?\| ?|→)(.*)", re.DOTALL)
"""The line numbers of read, ``cat -n`` and other tools."""


_LINE = re.compile(r"[^\n]*\n|[^\n]+")
"""With its end; not as splitlines, which counts form feeds and others, too."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The edit as it fits the file: ``text[begin:end]`` becomes ``new``."""

    begin: int
    end: int
    new: str


def place_edit(text: str, old: str, new: str) -> Placed:
    """The only place of ``old``. Raises GpuboxError: there is none, or there are several; it names them."""
    if not old.strip():
        raise GpuboxError("The old text is empty.", "Give some lines around the place, or write the whole file.")
    old, new = with_line_ends(old, text), with_line_ends(new, text)
    if places := _occurrences(text, old):
        return _only(text, [(begin, begin + len(old), new) for begin in places])
    for forms in (_as_it_is, _without_numbers, _with_line_breaks):
        for told_old, told_new in forms(old, new):
            if told_old != old and (places := _occurrences(text, told_old)):
                return _only(text, [(begin, begin + len(told_old), told_new) for begin in places])
            if matches := list(_whole_lines(text, told_old, told_new)):
                return _only(text, matches)
    raise GpuboxError("The old text is not in the file.", _nearest(text, old))


def _only(text: str, matches: Sequence[tuple[int, int, str]]) -> Placed:
    if len(matches) == 1:
        return Placed(*matches[0])
    lines = [text.count("\n", 0, begin) + 1 for begin, _, _ in matches]
    shown = ", ".join(map(str, lines[:10])) + (" ..." if len(lines) > 10 else "")
    raise GpuboxError(
        f"The old text is in the file {len(matches)} times, at lines {shown}.",
        "Copy more of the lines around the place that is meant.",
    )


def _occurrences(text: str, part: str) -> list[int]:
    return [match.start() for match in re.finditer(f"(?={re.escape(part)})", text)]


def with_line_ends(new: str, text: str) -> str:
    """``new`` with the line ends of the file: models write ``\\n`` whatever it has."""
    if "\r\n" in text and "\r\n" not in new and text.count("\r\n") == text.count("\n"):
        return new.replace("\n", "\r\n")
    return new


# -- the forms in which a model may have copied it -------------------------------------------------


def _as_it_is(old: str, new: str) -> Iterator[tuple[str, str]]:
    yield old, new


def _without_numbers(old: str, new: str) -> Iterator[tuple[str, str]]:
    """The line numbers of a tool's output were copied too."""
    if (bare := _bare(old)) is not None:
        told = _bare(new)
        yield bare, new if told is None else told


def _bare(text: str) -> str | None:
    lines = text.rstrip("\n").split("\n")
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    numbers = [int(match[1]) for match in matches if match]
    if len(numbers) < len(lines) or any(two - one != 1 for one, two in pairwise(numbers)):
        return None
    return "\n".join(match[2] for match in matches if match) + ("\n" if text.endswith("\n") else "")


def _with_line_breaks(old: str, new: str) -> Iterator[tuple[str, str]]:
    """A JSON string was escaped twice: its line breaks are two characters."""
    if "\\n" in old and "\n" not in old:
        yield (*(part.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"') for part in (old, new)),)  # type: ignore[misc]


# -- whole lines, whatever their blanks ------------------------------------------------------------


def _whole_lines(text: str, old: str, new: str) -> Iterator[tuple[int, int, str]]:
    """The runs of lines that are ``old`` but for blanks at line ends and one change of all indentation."""
    wanted = [line.rstrip() for line in old.strip("\n").replace("\r\n", "\n").split("\n")]
    while wanted and not wanted[0]:
        del wanted[0]
    lines = _LINE.findall(text)
    if not wanted or len(lines) > 200_000:
        return
    bodies = [line.strip() for line in lines]
    first, begin = wanted[0].strip(), 0
    for at, line in enumerate(lines):
        if bodies[at] == first and len(lines) - at >= len(wanted):
            own = lines[at : at + len(wanted)]
            if all(body.strip() == want.strip() for body, want in zip(own, wanted, strict=True)):
                reindent = _reindent([body.rstrip() for body in own], wanted)
                if reindent is not None and (told := _told(new, reindent)) is not None:
                    end = begin + sum(map(len, own))
                    yield begin, end, _ended(told, own[-1], text)
        begin += len(line)


def _reindent(own: Sequence[str], wanted: Sequence[str]) -> Callable[[str], str | None] | None:
    """How an indentation of ``wanted`` is one of the file: by the same step for each line; ``None``: by none."""
    pairs = [(_indent(want), _indent(line)) for line, want in zip(own, wanted, strict=True) if want]
    if all(want == line for want, line in pairs):
        return lambda indent: indent
    tabs = any("\t" in line for _, line in pairs)
    for unit in (None, 4, 8, 2):  # as written; else what the file has as tabs is so many spaces, or the other way round
        spelled = [(_spelled(want, unit, tabs=tabs), line) for want, line in pairs]
        if any(want is None for want, _ in spelled):
            continue
        known = [(want or "", line) for want, line in spelled]
        want, line = min(known, key=lambda pair: len(pair[0]))
        if line.endswith(want):
            added = line[: len(line) - len(want)]
            if all(added + each == own_indent for each, own_indent in known):
                return partial(_added, unit, tabs, added)
        if want.endswith(line):
            removed = want[: len(want) - len(line)]
            if all(each == removed + own_indent for each, own_indent in known):
                return partial(_removed, unit, tabs, removed)
    return None


def _added(unit: int | None, tabs: bool, added: str, indent: str) -> str | None:
    spelled = _spelled(indent, unit, tabs=tabs)
    return None if spelled is None else added + spelled


def _removed(unit: int | None, tabs: bool, removed: str, indent: str) -> str | None:
    spelled = _spelled(indent, unit, tabs=tabs)
    return spelled.removeprefix(removed) if spelled is not None and spelled.startswith(removed) else None


def _spelled(indent: str, unit: int | None, *, tabs: bool) -> str | None:
    """An indentation with tabs for ``unit`` spaces, or spaces for tabs; ``None`` if it does not come out even."""
    if unit is None:
        return indent
    if not tabs:
        return indent.replace("\t", " " * unit)
    count, rest = divmod(len(indent.replace("\t", " " * unit)), unit)
    return None if rest else "\t" * count


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _told(new: str, reindent: Callable[[str], str | None]) -> str | None:
    """``new`` with the file's indentation; ``None`` if a line of it cannot have one."""
    lines = []
    for line in new.strip("\n").replace("\r\n", "\n").split("\n") if new.strip() else []:
        indent = reindent(_indent(line))
        if indent is None and line.strip():
            return None
        lines.append(f"{indent}{line.strip()}" if line.strip() else "")
    return "\n".join(lines)


def _ended(told: str, last: str, text: str) -> str:
    """With the line end of the last line that it replaces; nothing for a deletion."""
    end = last[len(last.rstrip("\r\n")) :]
    return with_line_ends(told, text) + end if told else ""


# -- why not ---------------------------------------------------------------------------------------


def _nearest(text: str, old: str) -> str:
    """The places that look most like it, with their line numbers."""
    lines, wanted = text.split("\n"), old.strip("\n").splitlines()
    places = _near_places(lines, wanted)
    if not places:
        return "No line of it is in the file. Read the file again."
    shown = []
    for at in places:
        part = lines[at : at + min(len(wanted), _SHOWN_LINES)]
        shown.append("\n".join(f"{number}: {line[:200]}" for number, line in enumerate(part, at + 1)))
    return "The nearest places:\n" + "\n--\n".join(shown)


def _near_places(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    bodies = [line.strip() for line in lines]
    counts = Counter(bodies)
    starts: Counter[int] = Counter()
    index: dict[str, list[int]] = {}
    for at, body in enumerate(bodies):
        if body and counts[body] <= 50:
            index.setdefault(body, []).append(at)
    for offset, want in enumerate(wanted):
        for at in index.get(want.strip(), ()):
            starts[max(0, at - offset)] += 1
    if not starts:  # no equal line: the lines that look like the longest one of it
        longest = max(wanted, key=lambda line: len(line.strip()))
        alike = difflib.get_close_matches(longest.strip(), list(index)[:5000], NEAREST, 0.6)
        starts.update(max(0, index[body][0] - list(wanted).index(longest)) for body in alike)
    target = "\n".join(line.strip() for line in wanted)[:4000]

    def likeness(at: int) -> float:
        window = "\n".join(bodies[at : at + len(wanted)])[:4000]
        return difflib.SequenceMatcher(None, target, window, autojunk=False).quick_ratio()

    best = sorted((at for at, _ in starts.most_common(_MOST_WINDOWS)), key=lambda at: (-likeness(at), at))
    return list(_apart(best, len(wanted)))[:NEAREST]


def _apart(places: Iterable[int], size: int) -> Iterator[int]:
    taken: list[int] = []
    for at in places:
        if all(abs(at - other) >= max(1, size // 2) for other in taken):
            taken.append(at)
            yield at
