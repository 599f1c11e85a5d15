"""A document: a title, a verdict, tables, charts and notes; and how it becomes rows, Markdown, CSV, JSON or SVG.

Every view of stored runs is made once, as a document, and each form is written once, for all of them.
"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from gpubox.bench.report.chart import Chart, StyledRow, plot
from gpubox.bench.report.formatting import DOUBTFUL, markdown_table, markdown_text
from gpubox.sanitize import sanitize_line
from gpubox.views.fields import json_value

CHART_COLUMNS = 110
"""Charts are not drawn wider than this."""
ROLE_OF_DOUBT = "doubt"
SVG_COLOURS = {
    "": "#c9d1d9", "head": "#f0f4f8", "quiet": "#8b96a3", "good": "#86b970", "bad": "#d9736b", "doubt": "#dcae58",
    "s0": "#6db3c4", "s1": "#d8a657", "s2": "#86b970", "s3": "#a98bd6", "s4": "#d9736b", "s5": "#5a9bd4",
}  # fmt: skip
"""Of the roles, on a dark ground."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    narrow: Sequence[Sequence[int]] = ()
    """The columns that stay where the table is too wide, in turn. Without column 0, its words become headings."""
    roles: Sequence[str] = ()
    """Of the last cell of each row."""
    details: Sequence[str] = ()
    """A longer text for each row (the code of a failed problem): folded in Markdown, left out on a terminal."""


@dataclass(frozen=True, slots=True)
class Document:
    """What stored runs say."""

    title: str
    about: str = ""
    verdict: str = ""
    """The answer, as a sentence."""
    sections: Sequence[Section] = ()
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    """What was measured, for Markdown."""
    records: Sequence[Mapping[str, Any]] = ()
    """The lines of the CSV file."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object, as the services' own values."""


# -- for a terminal and the screen ----------------------------------------------------------------------------------


def document_rows(document: Document, width: int | None = None, *, plots: bool = False) -> Iterator[StyledRow]:
    """Every row: the verdict, the title, the tables.

    Tables are folded to ``width``; ``None``: they may have any width.
    """
    if document.verdict:
        yield from wrapped_rows(document.verdict, _role(document.verdict) or "head", width)
    yield from _heading_rows(document.title, document.about, width)
    for section in document.sections:
        yield ()
        yield from _section_rows(section, width)
    if plots:
        for chart in document.charts:
            yield ()
            yield from plot(chart, min(width or CHART_COLUMNS, CHART_COLUMNS))
    if document.notes:
        yield ()
    for note in document.notes:
        yield from wrapped_rows(note, _role(note), width)


def row_texts(rows: Iterable[StyledRow]) -> Iterator[str]:
    """Rows without their roles."""
    for row in rows:
        yield "".join(text for text, _ in row).rstrip()


def wrapped_rows(text: str, role: str, width: int | None) -> Iterator[StyledRow]:
    """One sentence, wrapped at ``width``."""
    line = sanitize_line(text)
    for part in textwrap.wrap(line, width, subsequent_indent="  ") if width else [line]:
        yield ((part, role),)


def table_rows(rows: Sequence[Sequence[str]], roles: Sequence[str] = ()) -> Iterator[StyledRow]:
    """Columns as wide as their longest text; the first row is the header. ``roles``: of the last cells below it."""
    count = max(len(row) for row in rows)
    cells = [[*map(sanitize_line, row), *[""] * (count - len(row))] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(count)]
    numeric = [_is_numeric([row[i] for row in cells[1:]]) for i in range(count)]
    for number, row in enumerate(cells):
        columns = zip(row, widths, numeric, strict=True)
        texts = [text.rjust(width) if right else text.ljust(width) for text, width, right in columns]
        if number and roles:
            yield ("  ".join([*texts[:-1], ""]), ""), (texts[-1].rstrip(), roles[number - 1])
        else:
            yield (("  ".join(texts).rstrip(), "" if number else "quiet"),)


def _role(note: str) -> str:
    return ROLE_OF_DOUBT if DOUBTFUL in note or note.startswith("! ") else ""


def _heading_rows(title: str, about: str, width: int | None) -> Iterator[StyledRow]:
    """A title and what is said beside it; below it, where there is no room."""
    title, beside = sanitize_line(title), f"  ({sanitize_line(about)})" if about else ""
    if beside and (width is None or len(title) + len(beside) <= width):
        yield ((title, "head"), (beside, "quiet"))
        return
    yield from wrapped_rows(title, "head", width)
    if about:
        yield from wrapped_rows(about, "quiet", width)


def _section_rows(section: Section, width: int | None) -> Iterator[StyledRow]:
    if section.title:
        yield from _heading_rows(section.title, section.note, width)
    for columns in (range(len(section.header)), *section.narrow):
        cells = [[row[i] for i in columns] for row in (section.header, *section.rows)]
        if width is None or _table_width(cells) <= width:
            break
    if 0 in columns:
        yield from table_rows(_without_repeats(cells) if section.narrow else cells, section.roles)
        return
    indented = [[f"  {row[0]}".rstrip(), *row[1:]] for row in cells]
    header, *rows = table_rows(indented, section.roles)
    yield header
    last = ""
    for group, row in zip((row[0] for row in section.rows), rows, strict=True):
        if group != last:
            last = group
            yield ((sanitize_line(group), "quiet"),)
        yield row


def _without_repeats(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The group of a row is written once."""
    groups = ["", *(row[0] for row in rows)]
    return [["" if row[0] == above else row[0], *row[1:]] for above, row in zip(groups, rows, strict=False)]


def _is_numeric(column: Sequence[str]) -> bool:
    return any(column) and all(not text or text[0].isdigit() or text[0] in "-+±—" for text in column)


def _table_width(rows: Sequence[Sequence[str]]) -> int:
    return sum(max(len(row[i]) for row in rows) for i in range(len(rows[0]))) + 2 * (len(rows[0]) - 1)


# -- for other programs ---------------------------------------------------------------------------------------------


def document_text(documents: Sequence[Document], form: str) -> str:
    """``markdown``, ``csv``, ``json`` or ``svg``."""
    if form == "json":
        merged: dict[str, Any] = {}
        for document in documents:
            for key, value in document.values.items():
                merged[key] = [*merged.get(key, ()), *value] if isinstance(value, list) else value
        return json.dumps({"schema_version": 1, **json_value(merged)}, indent=2) + "\n"
    if form == "csv":
        return _csv([record for document in documents for record in document.records])
    if form == "svg":
        return _svg(
            [row for document in documents for row in (*document_rows(document, CHART_COLUMNS, plots=True), ())]
        )
    return "\n".join("\n".join(_markdown_lines(document)) + "\n" for document in documents)


def _svg(rows: Sequence[StyledRow]) -> str:
    """The rows as a picture of a terminal: each text stands in its column, whatever font draws it."""
    letter, line = 8.6, 19
    width = round(40 + letter * max(sum(len(text) for text, _ in row) for row in rows))
    lines = []
    for number, row in enumerate(rows):
        column = 0
        for text, role in row:
            if words := sanitize_line(text).rstrip():
                at = f'x="{20 + letter * column:.1f}" y="{34 + line * number}"'
                style = f'fill="{SVG_COLOURS[role]}" textLength="{letter * len(words):.1f}"'
                bold = ' font-weight="700"' if role == "head" else ""
                lines.append(f'<text {at} {style}{bold} xml:space="preserve">{escape(words)}</text>')
            column += len(text)
    size = f'width="{width}" height="{line * len(rows) + 34}"'
    fonts = "'DejaVu Sans Mono', ui-monospace, Menlo, Consolas, 'Liberation Mono', monospace"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}" font-size="14">'
    return "\n".join([head, '<rect width="100%" height="100%" rx="12" fill="#0f1317"/>', *lines, "</svg>", ""])


def _csv(records: Sequence[Mapping[str, Any]]) -> str:
    """A line for each record; the fields of a field are columns of their own: ``estimate_low``."""
    flat = [dict(_flattened(json_value(record))) for record in records]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for own in flat for name in own)), "", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flattened(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}_")
        else:
            yield prefix + name, "; ".join(map(str, value)) if isinstance(value, list) else value


def _markdown_lines(document: Document) -> Iterator[str]:
    yield from (f"## {markdown_text(document.title)}", "")
    if document.verdict:
        yield from (f"**{markdown_text(document.verdict)}**", "")
    if document.about:
        yield markdown_text(document.about)
    for section in document.sections:
        if section.title:
            yield from ("", f"### {markdown_text(section.title)}")
        yield ""
        if section.note:
            yield from (markdown_text(section.note), "")
        yield from markdown_table(section.header, section.rows)
        for row, text in zip(section.rows, section.details, strict=False):
            if text:
                name = escape(sanitize_line(row[0])) if row else ""
                code = (f"    {sanitize_line(line)}".rstrip() for line in text.splitlines())  # no backtick can end it
                yield from ("", f"<details><summary>{name}</summary>", "", *code, "", "</details>")
    if document.notes:
        yield ""
    yield from (f"- {markdown_text(note)}" for note in document.notes)
    if document.facts:
        yield from ("", "### What was measured", "")
        yield from markdown_table(("", ""), document.facts)
