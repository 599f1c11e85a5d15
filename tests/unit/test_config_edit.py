"""``default-engine`` in config.toml changes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.config import load_config
from gpubox.engines.built import changed_text, set_default_engine
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'default-engine = "new"\n'),
        ("# my box\n\n# forks\n[engines]\n", '# my box\n\ndefault-engine = "new"\n# forks\n[engines]\n'),
        ("# mine\n[engines]\na = '/x'\n", "default-engine = \"new\"\n# mine\n[engines]\na = '/x'\n"),
        ('a = 1\ndefault-engine  =  "old" # why\n[engines]\n', 'a = 1\ndefault-engine  =  "new" # why\n[engines]\n'),
        ("default-engine = 'old'\r\n# last\r\n", 'default-engine = "new"\r\n# last\r\n'),
        ("\ufeffb = 2\r\n", '\ufeffb = 2\r\ndefault-engine = "new"\r\n'),
        ('default-engine = """\nold""" # why\n', 'default-engine = "new" # why\n'),
        ('[engines]\ndefault-engine = "/x"\n', 'default-engine = "new"\n[engines]\ndefault-engine = "/x"\n'),
        ('# default-engine = "x"\nc = 1', '# default-engine = "x"\nc = 1\ndefault-engine = "new"\n'),
    ],
)  # fmt: skip
def test_one_line_changes(before: str, after: str) -> None:
    assert changed_text(Path("config.toml"), before, "new") == after


def test_a_text_that_is_not_toml_is_refused_with_the_line_to_write() -> None:
    with pytest.raises(UsageError, match=r"config\.toml: ") as caught:
        changed_text(Path("config.toml"), "x = [", "new")
    assert 'default-engine = "new"' in caught.value.hint


def test_a_link_stays_a_link_and_a_refused_disk_is_one_sentence(paths: Paths, tmp_path: Path) -> None:
    paths.config.mkdir(parents=True)
    target = tmp_path / "dotfiles.toml"
    target.write_text("stop-seconds = 3 # patient\n")
    paths.config_file.symlink_to(target)

    set_default_engine(paths, "b1-cpu")

    assert paths.config_file.is_symlink()
    assert target.read_text() == 'stop-seconds = 3 # patient\ndefault-engine = "b1-cpu"\n'
    assert load_config(paths).default_engine == "b1-cpu"
    paths.config_file.unlink()
    paths.config_file.mkdir()
    with pytest.raises(GpuboxError):
        set_default_engine(paths, "other")
