"""The file with what the screen showed last: kept whole, ignored where gpubox did not write it."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from gpubox.tui.remembered import LastSeen, read_last_seen, write_last_seen

SEEN = LastSeen("2026-11-27T07:41:00.000Z", "idle", "a", (("VRAM", 13, 16),), 18.9, ("a", "b"))


def test_what_is_written_is_read_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "last-seen.json"
    write_last_seen(path, SEEN)
    assert read_last_seen(path) == SEEN
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_age_has_the_date_of_another_day() -> None:
    at = datetime.fromisoformat(SEEN.at).astimezone()
    assert SEEN.age(at) == f"as of {at:%H:%M}"
    assert SEEN.age(at.replace(day=28)) == f"as of 27 Nov {at:%H:%M}"
    assert SEEN.age(at.replace(year=2027)) == f"as of 27 Nov 2026 {at:%H:%M}"


GOOD = SEEN._asdict()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", '{"at": 1}', "\xff", "[" * 100_000, " " * 100_000 + json.dumps(GOOD),
        *(json.dumps(GOOD | change) for change in (
            {"at": "yesterday"}, {"at": None}, {"state": 1}, {"memory": [["VRAM", "13", 16]]}, {"memory": [[1, 2]]},
            {"memory": [["VRAM", -1, 16]]}, {"tokens_per_second": 1e300}, {"profiles": [None]}, {"profiles": 5},
        )),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_ignored(text: str, tmp_path: Path) -> None:
    path = tmp_path / "last-seen.json"
    path.write_text(text, encoding="latin-1")
    assert read_last_seen(path) is None


def test_a_fifo_blocks_nothing_and_text_is_harmless(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_last_seen(tmp_path / "fifo") is None
    write_last_seen(tmp_path / "fifo", SEEN)  # no failure reaches the screen

    path = tmp_path / "file"
    write_last_seen(path, SEEN._replace(profile="\x1b[2J" + "x" * 500, profiles=("n",) * 500))
    seen = read_last_seen(path)
    assert seen and len(seen.profile) <= 80 and seen.profile.isprintable() and len(seen.profiles) == 100
