"""``gpubox keys``: made, listed, changed, removed, and forgotten only on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from gpubox.clock import utc_now
from gpubox.gateway.agent_keys import agent_key
from gpubox.gateway.client_keys import ClientKeys, ClientLimits
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from tests.cli.verbs import gpubox, values

Capture = pytest.CaptureFixture[str]


def test_keys_are_made_listed_changed_and_removed(capfd: Capture, paths: Paths) -> None:
    assert values(capfd, "keys", "list")[1] == {
        "schema_version": 1, "required": False, "box_key": False, "problem": None, "keys": [],
    }  # fmt: skip
    code, secret, said = gpubox(capfd, "keys", "add", "laptop")
    assert (code, len(secret), said.count("laptop")) == (0, 47, 1)  # the key, alone on its line
    assert ClientKeys(paths).client_of(secret.strip()) == "laptop"
    assert secret.strip() not in said

    limits = ("--weight", "2", "--requests-at-once", "3", "--tokens-per-day", "200000", "--models", "demo, nowhere")
    code, out, err = gpubox(capfd, "keys", "add", "desk", *limits, "--expires", "12h")
    in_12_hours = (datetime.now(UTC) + timedelta(hours=12)).isoformat()[:15]
    kept = ClientKeys(paths).limits_of("desk")
    assert kept == ClientLimits(2.0, 3, 200_000, ("demo", "nowhere"), kept.expires_at)
    assert (kept.expires_at or "")[:15] == in_12_hours and "No profile is called nowhere." in err

    for read, cached, out_tokens in ((900, 800, 50), (1000, 1000, 7)):
        Ledger(paths.ledger).add(
            FinishedRequest(
                utc_now(), "desk", "demo", "/v1/x", 200, "done", prompt_tokens=read, cached_tokens=cached,
                generated_tokens=out_tokens,
            )
        )  # fmt: skip
    code, listed = values(capfd, "keys", "list")
    assert (code, listed["required"], out.strip() in str(listed)) == (0, True, False)
    assert [(key["name"], key["tokens_today"], key["weight"]) for key in listed["keys"]] == [
        ("laptop", 0, 1.0), ("desk", 157, 2.0),
    ]  # fmt: skip
    desk = gpubox(capfd, "keys", "list")[1].splitlines()[2]
    assert "157 of 200,000" in desk and "demo, nowhere" in desk and desk.split()[-1].startswith("20")

    code, changed = values(
        capfd, "keys", "change", "desk", "--requests-at-once", "0", "--models", "all", "--expires", "never"
    )
    assert (code, changed["requests_at_once"], changed["expires_at"]) == (0, None, None)
    assert ClientKeys(paths).limits_of("desk") == ClientLimits(2.0, None, 200_000)
    ClientKeys(paths).change("desk", expires_at="2001-01-01T00:00:00.000Z")
    assert "expired 20" in gpubox(capfd, "keys", "list")[1]

    assert gpubox(capfd, "keys", "remove", "laptop")[:2] == (0, "laptop's key is removed.\n")
    for words in (("remove", "desk"), ("list",)):
        assert "the gateway refuses every client" in gpubox(capfd, "keys", *words)[2]


def test_the_keys_of_agents_are_listed_and_removed(capfd: Capture, paths: Paths) -> None:
    agent_key(paths, "codex")
    assert "still answers codex" in gpubox(capfd, "keys", "remove", "codex")[2]
    secret = agent_key(paths, "opencode")
    code, listed = values(capfd, "keys", "list")
    assert (code, listed["required"], secret in str(listed)) == (0, False, False)
    assert [(key["name"], key["agent"]) for key in listed["keys"]] == [("opencode", True)]
    assert "opencode (agent)" in gpubox(capfd, "keys", "list")[1]

    gpubox(capfd, "keys", "add", "opencode", "--weight", "2")
    listed = values(capfd, "keys", "list")[1]
    assert [(key["agent"], key["weight"]) for key in listed["keys"]] == [(False, 2.0), (True, 2.0)]
    assert gpubox(capfd, "keys", "remove", "opencode")[:2] == (0, "opencode's key is removed.\n")
    assert values(capfd, "keys", "list")[1]["keys"] == []
    assert gpubox(capfd, "keys", "remove", "opencode")[0] == 2


def test_keys_are_forgotten_only_on_purpose(capfd: Capture, paths: Paths) -> None:
    gpubox(capfd, "keys", "add", "laptop")
    paths.client_keys.unlink()
    for code, words in ((0, ("list",)), (2, ("add", "desk"))):
        result, _, said = gpubox(capfd, "keys", *words)
        assert (result, "client-keys.json is gone; the gateway refuses every client" in said) == (code, True)
    for refused in (("reset",), ("reset", "--json")):
        code, _, said = gpubox(capfd, "keys", *refused)
        assert (code, "Add --yes" in said) == (2, True)
    assert gpubox(capfd, "keys", "reset", "--yes")[:2] == (0, "All keys are forgotten.\n")
    gpubox(capfd, "keys", "add", "laptop")
    assert values(capfd, "keys", "reset", "--yes") == (
        0, {"schema_version": 1, "removed": ["laptop"], "required": False},
    )  # fmt: skip
    paths.api_key_file.write_text("secret")
    paths.api_key_file.chmod(0o600)
    assert "The box's own API key is still needed." in gpubox(capfd, "keys", "reset", "-y")[1]
    assert values(capfd, "keys", "list")[1]["box_key"] is True


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("add", "a b"), "'a b' cannot be a client's name."),
        (("add", "box"), "The name 'box' means the box's own API key."),
        (("add", "laptop"), "There is a key for 'laptop' already."),
        (("remove", "desk"), "There is no key for 'desk'."),
        (("add",), "Missing argument 'NAME'."),
        (("revoke", "laptop"), "There is no verb 'revoke'."),
        (("change", "laptop"), "Nothing is to be changed."),
        (("change", "desk", "--weight", "2"), "There is no key for 'desk'."),
        (("add", "desk", "--expires", "soon"), "--expires 'soon' is no span of time."),
        (("add", "desk", "--models", ""), "--models '' has an empty name."),
        (("add", "desk", "--weight", "0"), "not in the range"),
    ],
)
def test_wrong_names_are_one_sentence(capfd: Capture, words: tuple[str, ...], sentence: str) -> None:
    gpubox(capfd, "keys", "add", "laptop")

    code, out, err = gpubox(capfd, "keys", *words)

    assert (code, out) == (2, "")
    assert sentence in err or "No such command" in err


def test_a_damaged_key_file_is_said_and_not_written_over(capfd: Capture, paths: Paths) -> None:
    gpubox(capfd, "keys", "add", "laptop")
    paths.client_keys.write_text("{")

    for code, words in ((2, ("add", "desk")), (2, ("remove", "laptop")), (0, ("list",))):
        result, _, err = gpubox(capfd, "keys", *words)
        assert (result, "is damaged" in err) == (code, True)
        assert "the gateway refuses every client until this is mended" in err
    assert paths.client_keys.read_text() == "{"


def test_a_key_that_nobody_could_read_is_not_kept(paths: Paths) -> None:
    """Stdout is closed or full."""
    for stdout in ("/dev/full", "closed"):
        words = [sys.executable, "-m", "gpubox", "keys", "add", "laptop"]
        if stdout == "closed":
            reader, writer = os.pipe()
            os.close(reader)
        else:
            writer = os.open(stdout, os.O_WRONLY)
        subprocess.run(words, stdout=writer, stderr=subprocess.DEVNULL, timeout=60)
        os.close(writer)
        assert not ClientKeys(paths).clients
