"""A client's settings file: only what gpubox sets changes; a broken or changed file is never overwritten."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange.client_settings import ClientModel, ClientTarget, Snippet, client_snippet
from gpubox.interchange.jsonc import set_values
from gpubox.interchange.settings_file import settings_change, undo_settings, write_settings

VALUES = {"model": "gpubox/a", "provider": {"gpubox": {"npm": "x", "models": {"a": {"name": "ä"}}}}}


def plain(text: str) -> object:
    """The JSON without its comments and last commas."""
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", re.sub(r"//.*|/\*.*?\*/", "", text)))


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "{ }\n", '{"a":1}', '{\n  // hi\n  "a": 1 // one\n}\n', '{"model":"old", "a": [1,2,]}', "{/*c*/}",
        '{\n\t"provider": {\n\t\t"x": {"y": "}"} // keep\n\t},\n}', '{\r\n  "a": "\\"//\\" é"\r\n}\r\n',
        '{"provider":{"gpubox":{"npm":"old","mine":{"k":1}}}}', '{"provider": null}', "{\n// only\n}",
    ],
)  # fmt: skip
def test_values_are_set_and_everything_else_stays(text: str) -> None:
    after = set_values(text, VALUES)

    assert set_values(after, VALUES) == after
    for kept in (*re.findall(r"//[^\n\r\"]*|/\*.*?\*/", text), '"mine":{"k":1}', '"a": [1,2,]', '{"y": "}"}'):
        assert kept in after or kept not in text
    if "\\" not in text:
        got = plain(after)
        assert isinstance(got, dict) and got["model"] == "gpubox/a" and got["provider"]["gpubox"]["npm"] == "x"
        assert {key for key in plain(text or "{}")} <= set(got)  # type: ignore[attr-defined]
    assert ("\r\n" in text) == ("\r\n" in after)


@pytest.mark.parametrize("text", ["[1]", '{"a" 1}', '{"a":1', "no", '{"a":1}{}', "{,}", '{"a":tru}', '{"a":' * 200])
def test_what_is_no_json_object_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"line 1: "):
        set_values(text, VALUES)


@pytest.fixture
def snippet() -> Snippet:
    return client_snippet("opencode", ClientTarget("gpubox", "http://box:8080", (ClientModel("a", "A", 4096),)))


def test_a_file_is_written_with_a_copy_beside_it_and_undone(own_home: Path, snippet: Snippet) -> None:
    first = settings_change(snippet)
    assert first and first.before is None and write_settings(first) is None
    assert first.path.name == "opencode.json" and json.loads(first.path.read_text())["model"] == "gpubox/a"
    undo_settings(first)
    assert not first.path.exists()

    file = first.path.with_suffix(".jsonc")
    file.write_text('{\n  "theme": "x" // mine\n}\n')
    change = settings_change(snippet)
    assert change and change.path == file and any(line.startswith("+") for line in change.diff())
    backup = write_settings(change)
    assert backup and backup.read_text() == change.before and '"theme": "x", // mine' in file.read_text()
    again = settings_change(snippet)
    assert again and again.before == again.after and write_settings(again) is None
    file.write_text("{}")
    with pytest.raises(GpuboxError, match="was changed meanwhile"):
        undo_settings(change)
    assert file.read_text() == "{}"


def test_clients_without_such_a_file_are_left_to_their_owner(own_home: Path, snippet: Snippet) -> None:
    target = ClientTarget("gpubox", "http://box:8080", (ClientModel("a", "A"),), "YOUR-KEY")
    assert settings_change(client_snippet("aider", target)) is None
    change = settings_change(client_snippet("opencode", target))
    assert change
    with pytest.raises(UsageError, match="asks for a key"):
        write_settings(change)
