"""A wrong TOML file gives one sentence that says where and what, and the same declaration gives the schema."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpubox.errors import UsageError
from gpubox.toml_table import (
    MAX_TOML_DEPTH,
    TomlTable,
    closest_match,
    given_values,
    json_schema,
    parse_toml,
    read_toml,
    toml_key,
)

FILE = Path("/somewhere/box.toml")


@dataclass(frozen=True)
class Inner:
    size: int = toml_key("integer", "A size.", 7, between=(1, 9))
    word: str = toml_key("text", "A word.", "a", choices=("a", "b", "c"))


@dataclass(frozen=True)
class Settings:
    stall_seconds: float = toml_key("number", "A time.", 60.0, above=0)
    allow_exposed: bool = toml_key("boolean", "A choice.", False)
    name: str = toml_key("text", "A name.", "")
    count: int = toml_key("integer", "A count.", 8080)
    texts: tuple[str, ...] = toml_key("list", "Texts.", tuple, items="text")
    inner: Inner = toml_key("table", "A table.", Inner, table=Inner)  # noqa: RUF009
    inners: tuple[Inner, ...] = toml_key("list", "Tables.", tuple, table=Inner, name="each")
    numbers: Mapping[str, float] = toml_key("map", "Numbers.", dict, items="number", choices=("x", "y"))
    untold: int = 3
    """No key of the file."""


@dataclass(frozen=True)
class Required:
    what: str = toml_key("text", "Say what.")


def read(kind: type = Settings, **values: Any) -> Any:
    return kind(**TomlTable(FILE, "", {key.replace("_", "-"): value for key, value in values.items()}).read(kind))


def refusal(kind: type = Settings, **values: Any) -> str:
    with pytest.raises(UsageError) as caught:
        read(kind, **values)
    return str(caught.value)


def test_a_typo_names_file_key_and_the_nearest_right_key() -> None:
    assert refusal(stall_secnds=3) == (
        "/somewhere/box.toml: stall-secnds is not a known key.  Did you mean 'stall-seconds'?"
    )


def test_a_key_like_no_other_lists_the_known_ones() -> None:
    assert refusal(zzz=3).endswith("Known: allow-exposed, count, each, inner, name, numbers, stall-seconds, texts.")


def test_a_key_of_an_inner_table_is_named_with_its_table() -> None:
    assert "box.toml: [inner] sze is not a known key" in refusal(inner={"sze": 1})
    assert "box.toml: [each] sze is not a known key" in refusal(each=[{}, {"sze": 1}])
    assert "box.toml: [numbers] z is not a known key" in refusal(numbers={"z": 1})


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("name", 3, "must be a string, not 3"),
        ("name", True, "must be a string, not True"),
        ("count", "3", "must be a whole number, not '3'"),
        ("count", True, "must be a whole number, not True"),
        ("count", 3.0, "must be a whole number, not 3.0"),
        ("stall_seconds", True, "must be a number, not True"),
        ("stall_seconds", "1.5", "must be a number"),
        ("stall_seconds", float("nan"), "must be a finite number"),
        ("stall_seconds", float("inf"), "must be a finite number"),
        ("stall_seconds", 10**400, "must be a finite number"),
        ("stall_seconds", 0, "must be more than 0, not 0"),
        ("allow_exposed", 1, "must be true or false, not 1"),
        ("allow_exposed", "yes", "must be true or false"),
        ("texts", "one", "must be a list of strings"),
        ("texts", ["one", 2], "must be a list of strings"),
        ("inner", [1], "must be a table"),
        ("each", {}, "written as [[each]]"),
        ("each", [{}, 3], "written as [[each]]"),
    ],
)
def test_a_wrong_value_is_refused_with_the_type_it_must_have(key: str, value: Any, problem: str) -> None:
    message = refusal(**{key: value})

    assert message.startswith(f"/somewhere/box.toml: {key.replace('_', '-')} must be")
    assert problem in message


def test_limits_and_choices_are_named() -> None:
    assert "[inner] size must be 1 to 9, not 10" in refusal(inner={"size": 10})
    assert '[inner] word must be "a", "b" or "c", not \'d\'' in refusal(inner={"word": "d"})


def test_an_absent_key_is_its_default_and_a_required_one_is_missing() -> None:
    assert read() == Settings()
    assert "what is missing.  Say what." in refusal(Required)
    assert "what is missing" in refusal(Required, what="")


def test_a_whole_number_is_a_number() -> None:
    assert read(stall_seconds=3).stall_seconds == 3.0


def test_given_values_omits_defaults() -> None:
    assert given_values(read(stall_seconds=3, each=[{}], count=8080)) == {"stall-seconds": 3.0, "each": (Inner(),)}
    assert given_values(Required("x")) == {"what": "x"}


def test_the_schema_has_all_that_the_reader_checks() -> None:
    schema = json_schema(Settings)
    inner = {"size": {"description": "A size.", "type": "integer", "default": 7, "minimum": 1, "maximum": 9}}
    inner["word"] = {"description": "A word.", "type": "string", "enum": ["a", "b", "c"], "default": "a"}

    assert schema["additionalProperties"] is False and "required" not in schema
    properties = schema["properties"]
    assert list(properties) == ["stall-seconds", "allow-exposed", "name", "count", "texts", "inner", "each", "numbers"]
    assert properties["stall-seconds"] == {
        "description": "A time.",
        "type": "number",
        "default": 60.0,
        "exclusiveMinimum": 0,
    }
    assert properties["texts"] == {"description": "Texts.", "type": "array", "items": {"type": "string"}}
    assert properties["inner"]["properties"] == inner == properties["each"]["items"]["properties"]
    assert properties["numbers"]["properties"] == {"x": {"type": "number"}, "y": {"type": "number"}}
    assert json_schema(Required)["required"] == ["what"]


def test_broken_toml_says_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('model = "a"\nport = = 3\n')

    with pytest.raises(UsageError, match=r"x\.toml is not valid TOML: .*line 2, column 8"):
        read_toml(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is not UTF-8 text"),
        ("model = 'ä'".encode("latin-1"), "is not UTF-8 text"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"port = " + b"9" * 5000, "too long"),
        (b"a = 1\na = 2\n", "not valid TOML"),
        (b"\x00\x00\x00", "not valid TOML"),
    ],
)
def test_hostile_bytes_are_a_sentence(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)

    with pytest.raises(UsageError) as caught:
        read_toml(path)

    assert str(path) in caught.value.message
    assert problem in caught.value.message


def test_a_folder_and_an_absent_file_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used: it is a folder"):
        read_toml(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_toml(tmp_path / "nope.toml")


def test_the_byte_order_mark_of_windows_editors_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\n")

    assert read_toml(path) == {"a": 1}


def test_closest_match() -> None:
    assert closest_match("stauts", ["start", "status", "stop"]) == "status"
    assert closest_match("qqq", ["start"]) is None
    assert closest_match("x", []) is None


DEEP = {
    "dotted key": "a." * 100_000 + "a = 1", "table": "[" + "a." * 50_000 + "a]", "spaced": "a . " * 50_000 + "a = 1",
    "lists": "a = " + "[" * 100_000, "inline tables": "a = " + "{a=" * 50_000, "quoted": '"a".' * 50_000 + "a = 1",
    "inline key": "a = {" + "a." * 50_000 + "a = 1}", "over lines": "a = [\n[" * 30_000,
    "after a string": 'b = "#"\na = ' + "[" * 50_000, "after quotes": 'a = [""""b"""", ' + "[" * 50_000,
    "after single quotes": "a = [''''b'''', " + "[" * 50_000,
}  # fmt: skip


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_file_is_refused_at_once(name: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_toml(DEEP[name])
    assert time.process_time() - began < 1


def test_strings_comments_and_numbers_are_not_deep() -> None:
    dots = "." * 99
    text = (
        f"a = \"{dots}[[[\" # {dots}\nb = '{dots}{{'\nc = \"\"\"\n{'[' * 99}\n\"\"\"\nd = '''{'{' * 99}'''\n"
        f"e = [{', '.join(['1.5'] * 99)}]\nf = [{', '.join(['[1]'] * 99)}]\n"
        + "\n".join(f"[t{n}.u.v]" for n in range(99))
    )
    assert len(parse_toml(text)) == 105
    whole = ".".join("a" * MAX_TOML_DEPTH)
    assert parse_toml(f"{whole} = 1")
