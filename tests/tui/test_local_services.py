"""LocalServices reading profiles and settings from files."""

from __future__ import annotations

import os

from gpubox.config import load_config
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.tui.messages import ProfileEntry, build_entries
from gpubox.tui.services import LocalServices


def write(paths: Paths, text: str, at: int) -> None:
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(text)
    os.utime(paths.config_file, (at, at))


def test_changed_settings_are_used_at_once(paths: Paths) -> None:
    services = LocalServices(paths, load_config(paths))
    before = services.profiles_marker()
    write(paths, 'default-engine = "mine"\n[engines]\nmine = "/opt/llama-server"\n', 100)
    assert services.profiles_marker() != before
    assert not services.catalog().broken
    assert services.config.default_engine == "mine"


def test_broken_settings_are_listed_and_the_last_valid_ones_stay_in_use(paths: Paths) -> None:
    write(paths, 'default-engine = "mine"\n[engines]\nmine = "/opt/llama-server"\n', 100)
    services = LocalServices(paths, load_config(paths))
    before = services.profiles_marker()
    write(paths, 'default-engine = "m', 200)
    assert services.profiles_marker() != before
    row = next(entry for entry in build_entries(services.catalog(), {}, []) if entry.kind == "broken")
    assert (row.name, services.config.default_engine) == ("config.toml", "mine")
    assert row.summary.startswith("not valid TOML: ")
    write(paths, 'default-engine = ""\n', 300)
    assert not services.catalog().broken


def test_the_row_of_a_broken_file_begins_with_what_is_wrong() -> None:
    for message in (
        "/home/me/profiles/coder.toml: port must be a number.",
        "/home/me/coder.toml is port must be a number.",
    ):
        assert (
            ProfileEntry("broken:coder", "broken", "coder", error=UsageError(message)).summary
            == "port must be a number."
        )
