"""The verbs where the gateway has started a profile beside others: each acts on the server that the owner names."""

from __future__ import annotations

import asyncio

import pytest

from gpubox.config import load_config
from gpubox.paths import Paths
from gpubox.profiles.loader import load_catalog
from gpubox.server.instance import find_instance
from gpubox.server.supervisor import Supervisor
from tests.cli.verbs import gpubox, values

pytestmark = pytest.mark.usefixtures("box")


def place(paths: Paths, profile: str, instance: str) -> None:
    """Starts a profile as the gateway does."""
    wanted = load_catalog(paths).get(profile)
    asyncio.run(Supervisor(paths, load_config(paths), instance).place(wanted))


def test_each_verb_acts_on_the_server_of_its_profile(paths: Paths, capfd: pytest.CaptureFixture[str]) -> None:
    place(paths, "b", "b")
    code, _, err = gpubox(capfd, "stop")
    assert code == 3 and "The active server does not run; b runs beside it." in err
    assert "  beside    b at http://127.0.0.1:" in gpubox(capfd, "status")[1]
    assert "listening on" in gpubox(capfd, "logs", "b")[1]
    assert gpubox(capfd, "edit", "a", "--set", "port=0")[0] == 0

    assert gpubox(capfd, "start", "a")[0] == 0
    before = {row["profile"]: (row["instance"], row["pid"]) for row in values(capfd, "status", "--all")[1]["servers"]}
    assert {name: instance for name, (instance, _) in before.items()} == {"a": "main", "b": "b"}
    assert values(capfd, "switch", "b")[1]["message"] == "b is already running."
    assert values(capfd, "start", "b")[1]["message"] == "b is already running."
    assert "listening on" in gpubox(capfd, "logs", "a")[1]
    assert {
        row["profile"]: (row["instance"], row["pid"]) for row in values(capfd, "status", "--all")[1]["servers"]
    } == before

    assert values(capfd, "restart", "b")[1]["answering"] == "b"
    assert find_instance(paths, "b") == "b"
    assert values(capfd, "stop", "b")[1]["message"] == "b is stopped."
    assert (find_instance(paths, "a"), find_instance(paths, "b")) == ("main", None)

    assert gpubox(capfd, "edit", "b", "--set", "port=0")[0] == 0
    assert values(capfd, "switch", "b")[1]["answering"] == "b"
    assert (find_instance(paths, "a"), find_instance(paths, "b")) == (None, "main")  # nothing of it is left beside
    assert gpubox(capfd, "stop", "--all")[0] == 0
