"""Every change of a TOML text changes the meant line alone, in whatever shape the text is written."""

from __future__ import annotations

import difflib
import random
import re
from typing import Any

import pytest

from gpubox.errors import UsageError
from gpubox.toml_edit import change_toml
from gpubox.toml_table import parse_toml
from tests.sampling import sampled

TABLES = ("flags", "sampling", "env")
VALUES: tuple[Any, ...] = (
    1, -7, 0.5, True, "plain", 'with "quotes" # and a hash', "line\nbreak", "C:\\models", ("a=CPU", "b # c"), "", "],}",
)  # fmt: skip
WRITTEN = (
    "4096", "0.5", "true", '"text"', "'literal # no comment'", '"a \\" quote"', "[1, 2]", '["a", "]#,"]',
    "[\n  1, # one\n  2,\n]",
    '"""\nlong = 1\n[flags]\n"""', "'''\n\"x\" = [\n'''", '"""a"" \\\n  b"""""', "1_000", "0xff", "2026-11-23 07:00:00",
)  # fmt: skip


def written(rng: random.Random) -> str:
    """A profile-like text with a random form for each table."""

    def space() -> str:
        return rng.choice(("", " ", "  ", "\t"))

    def comment() -> str:
        return rng.choice(("", "", " # why", "  # [flags] x = 1 '''"))

    def between() -> str:
        return rng.choice(("", "", "\n", "# above\n", "\n# [env]\n\n"))

    def pair(name: str, indent: str = "") -> str:
        key = rng.choice((name, name.replace("-", "_"), f'"{name}"', f"'{name}'"))
        return f"{indent}{key}{space()}={space()}{rng.choice(WRITTEN)}{comment()}\n"

    keys = {table: [f"{table[:1] or 'top'}-{n}" for n in range(rng.randint(0, 4))] for table in ("", *TABLES)}
    root = [pair(name) for name in keys[""]]
    below: list[str] = []
    for table in TABLES:
        form = rng.choice(("header", "header", "dotted", "inline", "none"))
        if form == "header":
            indent = rng.choice(("", "", "  "))
            head = rng.choice((f"[{table}]", f"[ {table} ]", f'["{table}"]'))
            lines = [f"{head}{comment()}\n", *(between() + pair(name, indent) for name in keys[table])]
            below.append("".join(lines))
        elif form == "dotted":
            root += [f"{table}{space()}.{space()}{pair(name)}" for name in keys[table]]
        elif form == "inline":
            items = [f"{name}{space()}={space()}{rng.choice(WRITTEN[:8])}" for name in keys[table]]
            root.append(f"{table} = {{ {', '.join(items)} }}{comment()}\n")
    rng.shuffle(root)  # dotted keys stand out of order
    rng.shuffle(below)
    below.insert(rng.randint(0, len(below)), "[[reference]]\nf-0 = 1\n[[reference]]\nf-0 = 2\n")
    if rng.random() < 0.3:
        below.append("[chat.template-kwargs]\nx = 1\n")  # a table whose parent stands nowhere
    text = rng.choice(("", "# my box\n\n", "# mine\n")) + "".join(between() + part for part in (*root, *below))
    text = text.rstrip("\n") if rng.random() < 0.2 else text
    text = text.replace("\n", "\r\n") if rng.random() < 0.3 else text
    return rng.choice(("", "", "\ufeff")) + text


def with_change(text: str, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    values = parse_toml(text)
    table = values
    for parent in path[:-1]:
        table = table.setdefault(parent, {})
    key = next((key for key in table if key.replace("_", "-") == path[-1]), path[-1])
    table.pop(key, None)
    if value is not None:
        table[key] = list(value) if isinstance(value, tuple) else value
    return {key: value for key, value in values.items() if value != {}}


@pytest.mark.parametrize("seed", sampled(range(400)))
def test_a_change_of_any_shape_changes_the_meant_line_alone(seed: int) -> None:
    rng = random.Random(seed)
    text = written(rng)
    places = [(f"{table[0]}-{n}",) for table in TABLES for n in range(5)]
    for path in (("top-0",), ("top-3",), *((t, *p) for t in TABLES for p in places if p[0][0] == t[0]), ("chat", "x")):
        value = rng.choice((*VALUES, None))

        after = change_toml(text, {path: value})

        assert {k: v for k, v in parse_toml(after).items() if v != {}} == with_change(text, path, value), (path, value)
        assert after.startswith("\ufeff") == text.startswith("\ufeff")
        if "\r" in text:
            assert after.count("\r\n") == after.count("\n")
        old, new = text.splitlines(), after.splitlines()
        blocks = [
            op for op in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if op[0] != "equal"
        ]
        for _, begin, end, new_begin, new_end in blocks:
            touched = "\n".join((*old[begin:end], *new[new_begin:new_end]))
            assert re.search(path[-1].replace("-", "[-_]"), touched), (path, value, touched)
        assert len(blocks) <= 1
        (before_comments, after_comments) = (text.count("# above"), after.count("# above"))
        assert before_comments == after_comments


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ("flags.a = 1\nport = 2\nflags.b = 3\n", ("flags", "c"), 4,
         "flags.a = 1\nflags.c = 4\nport = 2\nflags.b = 3\n"),
        ("flags.a = 1\nport = 2\nflags.b = 3\n", ("flags", "b"), 4, "flags.a = 1\nport = 2\nflags.b = 4\n"),
        ("chat.kwargs.x = 1 # y\n", ("chat", "system"), "s", 'chat.kwargs.x = 1 # y\nchat.system = "s"\n'),
        ("[flags]\na = 1\n\n# what env is\n[env]\nx = 1\n", ("flags", "b"), 2,
         "[flags]\na = 1\nb = 2\n\n# what env is\n[env]\nx = 1\n"),
        ("[flags] # why\n\n[env]\n", ("flags", "a"), 1, "[flags] # why\na = 1\n\n[env]\n"),
        ("flags = {}\n", ("flags", "a"), 1, "flags = {a = 1}\n"),
        ("flags = { a = 1, b = 2 }\n", ("flags", "a"), None, "flags = {  b = 2 }\n"),
        ("flags = { a = 1, b = 2 }\n", ("flags", "b"), None, "flags = { a = 1  }\n"),
        ("", ("flags", "a"), 1, "[flags]\na = 1\n"),
        ("a = 1\n", ("flags", "a"), None, "a = 1\n"),
        ("a = 1", ("flags", "a"), 1, "a = 1\n[flags]\na = 1\n"),
        ("[flags]\na = 1", ("flags", "b"), 1, "[flags]\na = 1\nb = 1\n"),
    ],
)  # fmt: skip
def test_a_new_value_stands_where_the_owner_would_write_it(
    text: str, path: tuple[str, ...], value: Any, after: str
) -> None:
    assert change_toml(text, {path: value}) == after


@pytest.mark.parametrize("text", ["flags = 3\n", "a = \n", "[flags\n", "flags = [1]\n", "[[flags]]\na = 1\n"])
def test_a_text_without_a_place_for_the_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        change_toml(text, {("flags", "b"): 1}, "by hand")
    assert caught.value.hint == "by hand"
