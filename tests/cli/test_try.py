"""``gpubox try`` with a fake engine."""

from __future__ import annotations

import os
import re

import pytest

from gpubox.hardware.process import ProcessIdentity, own_identity
from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server.state import TrialRecord
from gpubox.server.trial import _write
from gpubox.storage import lock_file
from tests.cli.verbs import gpubox, values

pytestmark = pytest.mark.usefixtures("box")


def test_try_reverts_and_keeps(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    assert gpubox(capfd, "start", "b")[0] == 0
    code, tried = values(capfd, "try", "a", "--set", "ctx-size=512", "--revert", "--no-measure")
    assert (code, tried["kept"], tried["changed"]) == (0, False, ["- ctx-size = 2048", "+ ctx-size = 512"])
    assert values(capfd, "status")[1]["server"]["profile"] == "b"
    code, out, _ = gpubox(capfd, "try", "a", "--set", "ctx-size=512", "--keep", "--no-measure")
    assert (code, out) == (0, f"a is written: {paths.profiles / 'a.toml'}\n")
    assert values(capfd, "status")[1]["server"]["profile"] == "a"
    assert load_catalog(paths).get("a").flags["ctx-size"] == 512


def test_try_measures_both_sides(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    assert gpubox(capfd, "start", "a")[0] == 0
    code, tried = values(capfd, "try", "a", "--set", "ctx-size=512", "--revert")
    assert code == 0
    assert tried["before_run"] and tried["after_run"] and tried["before_run"] != tried["after_run"]
    assert [row["ratio"] for row in tried["comparison"]["rows"] if row["name"] == "tg"]
    assert re.search(r"cannot be told .*`gpubox bench ab a --set ctx-size=512` tells it in at most", tried["sentence"])


def test_try_needs_somebody_to_ask(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = gpubox(capfd, "try", "a", "--set", "ctx-size=512")
    assert code == 2 and "There is no terminal to ask at" in err


def test_try_refuses_a_flag_before_anything_stops(capfd: pytest.CaptureFixture[str]) -> None:
    assert gpubox(capfd, "start", "b")[0] == 0
    code, _, err = gpubox(capfd, "try", "a", "--set", "ctx-sise=512", "--keep")
    assert code == 2 and "ctx-sise" in err
    assert values(capfd, "status")[1]["server"]["profile"] == "b"


def test_without_a_trial_there_is_nothing_to_recover(capfd: pytest.CaptureFixture[str]) -> None:
    assert gpubox(capfd, "try") == (0, "No trial was left behind.\n", "")


@pytest.mark.parametrize("killed", [True, False])
def test_who_ends_a_trial_is_named(capfd: pytest.CaptureFixture[str], paths: Paths, killed: bool) -> None:
    """Most often the watcher reverts the trial of a killed gpubox, at the moment when the owner asks for it."""
    owner = ProcessIdentity(2**22 + 9, 1, "") if killed else own_identity()
    _write(TrialRecord("a", "main", "", "a.toml", "", None, owner), paths)
    lock = lock_file(paths.trial_lock)
    assert lock is not None

    code, _, err = gpubox(capfd, "try")

    os.close(lock)
    assert code == 1
    assert ("The trial of a is being reverted already." in err, "is being tried in another gpubox" in err) == (
        killed, not killed,
    )  # fmt: skip
