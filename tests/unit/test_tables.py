"""A wrong TOML file is one sentence that says where and what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpubox.errors import UsageError
from gpubox.toml_table import TomlTable, closest_match, read_toml

FILE = Path("/somewhere/box.toml")


def table(**values: Any) -> TomlTable:
    return TomlTable(FILE, "", values)


def refusal(table: TomlTable, method: str, *args: Any) -> str:
    with pytest.raises(UsageError) as caught:
        getattr(table, method)(*args)
    return str(caught.value)


def test_a_typo_names_file_key_and_the_nearest_right_key() -> None:
    read = table(stall_secnds=3)
    read.number("stall-seconds")
    read.flag("allow-exposed")

    assert refusal(read, "done") == (
        "/somewhere/box.toml: stall_secnds is not a key gpubox knows.  Did you mean 'stall-seconds'?"
    )


def test_a_key_like_no_other_lists_the_known_ones() -> None:
    read = table(zzz=3)
    read.flag("b")
    read.flag("a")

    assert refusal(read, "done").endswith("Known: a, b.")


def test_a_key_of_an_inner_table_is_named_with_its_table() -> None:
    inner = table(chat={"kwargs": {"sytem": 1}}).table("chat").table("kwargs")
    inner.text("system")

    assert "box.toml: [chat.kwargs] sytem is not a key" in refusal(inner, "done")


@pytest.mark.parametrize(
    ("method", "value", "words"),
    [
        ("text", 3, "must be a text, not 3"),
        ("text", True, "must be a text, not True"),
        ("integer", "3", "must be a whole number, not '3'"),
        ("integer", True, "must be a whole number, not True"),
        ("integer", 3.0, "must be a whole number, not 3.0"),
        ("number", True, "must be a number, not True"),
        ("number", "1.5", "must be a number"),
        ("number", float("nan"), "must be a number of ordinary size"),
        ("number", float("inf"), "must be a number of ordinary size"),
        ("number", 10**400, "must be a number of ordinary size"),
        ("flag", 1, "must be true or false, not 1"),
        ("flag", "yes", "must be true or false"),
        ("texts", "one", "must be a list of texts"),
        ("texts", ["one", 2], "must be a list of texts"),
        ("table", [1], "must be a table"),
        ("tables", {}, "written as [[k]]"),
        ("tables", [{}, 3], "written as [[k]]"),
    ],
)
def test_a_wrong_type_is_refused_with_what_it_must_be(method: str, value: Any, words: str) -> None:
    args = (8080,) if method == "integer" else ()

    said = refusal(table(k=value), method, "k", *args)

    assert said.startswith("/somewhere/box.toml: k must be")
    assert words in said


def test_an_absent_key_is_its_default() -> None:
    read = table()

    assert (read.text("a"), read.integer("b", 7), read.number("c"), read.flag("d")) == ("", 7, None, False)
    assert (read.texts("e"), read.tables("f"), read.table("g").text_map()) == ((), [], {})
    read.done()


def test_a_whole_number_is_a_number() -> None:
    assert table(k=3).number("k") == 3.0


def test_broken_toml_says_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('model = "a"\nport = = 3\n')

    with pytest.raises(UsageError, match=r"x\.toml is not valid TOML: .*line 2, column 8"):
        read_toml(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is not a text file"),
        ("model = 'ä'".encode("latin-1"), "is not a text file"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nest too deep"),
        (b"port = " + b"9" * 5000, "too long"),
        (b"a = 1\na = 2\n", "not valid TOML"),
        (b"\x00\x00\x00", "not valid TOML"),
    ],
)
def test_hostile_bytes_are_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)

    with pytest.raises(UsageError) as caught:
        read_toml(path)

    assert str(path) in caught.value.message
    assert words in caught.value.message


def test_a_folder_and_an_absent_file_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not read: it is a folder"):
        read_toml(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_toml(tmp_path / "nope.toml")


def test_the_byte_order_mark_of_windows_editors_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\n")

    assert read_toml(path) == {"a": 1}


def test_nearest() -> None:
    assert closest_match("stauts", ["start", "status", "stop"]) == "status"
    assert closest_match("qqq", ["start"]) is None
    assert closest_match("x", []) is None
