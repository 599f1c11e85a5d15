"""gpubox connect: the settings name the gateway that runs, and a key is made only to be shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.cli import output
from gpubox.cli.commands import connect
from gpubox.clock import utc_now
from gpubox.errors import ExitCode, GpuboxError
from gpubox.gateway.client_keys import ClientKeys
from gpubox.gateway.gateway_status import SCHEMA, GatewayStatus, ProfileStatus
from gpubox.hardware.process import own_identity
from gpubox.interchange.client_settings import CLIENTS
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.state import InstanceState, Launch, RunningServer, save_state
from tests.cli.verbs import gpubox, values
from tests.gateway_process import paced_server

STATUS = GatewayStatus(
    SCHEMA, "http://127.0.0.1:8080", "", "1", False, False, "", (),
    (ProfileStatus("a", "down"), ProfileStatus("b", "up", ("gpt-4o",))), (), {}, (),
)  # fmt: skip


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, write_profile: Callable[[str, str], Path]) -> list[GatewayStatus | None]:
    """What the gateway says, one answer for each question; the last one stays."""
    for name in "ab":
        write_profile(name, 'model = "~/x.gguf"\n[flags]\nctx-size = 2048\n')
    answers: list[GatewayStatus | None] = [STATUS]
    monkeypatch.setattr(connect, "read_gateway", lambda paths: answers.pop(0) if len(answers) > 1 else answers[0])
    return answers


def test_the_settings_name_the_address_and_a_loaded_profile(running: object, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = gpubox(capfd, "connect", "opencode")

    assert code == 0 and "opencode.json" in err
    assert json.loads(out)["model"] == "gpubox/b"
    assert json.loads(out)["provider"]["gpubox"]["models"]["b"]["limit"]["context"] == 2048
    assert "gpt-4o" in gpubox(capfd, "connect", "curl", "--model", "gpt-4o")[1]


def test_it_writes_the_clients_own_file(running: object, capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    file = paths.config.parent / "opencode/opencode.json"
    assert gpubox(capfd, "connect", "opencode", "--write")[0] == 0
    assert json.loads(file.read_text())["model"] == "gpubox/b"
    file.write_text('{"model": "mine", "theme": "x"}')
    code, out, err = gpubox(capfd, "connect", "opencode", "--write")

    assert code == 0 and '"theme": "x"' in file.read_text() and '+{"model": "gpubox/b"' in out
    assert "undoes it" in err and [*file.parent.glob("opencode.json.before-gpubox-*")]
    assert gpubox(capfd, "connect", "aider", "--write")[0] == 2


def test_a_client_is_known_by_the_name_that_people_use(running: object, capfd: pytest.CaptureFixture[str]) -> None:
    for said, meant in (("python", "openai"), ("Continue", "continue"), ("Cline", "cline")):
        assert values(capfd, "connect", said)[1]["client"] == meant


def test_json_has_the_text_and_what_it_still_needs(running: object, capfd: pytest.CaptureFixture[str]) -> None:
    code, result = values(capfd, "connect", "aider")

    assert code == 0 and result["model"] == "b" and not result["needs_key"]
    assert "openai-api-base: http://127.0.0.1:8080/v1" in result["text"]


def test_a_new_key_is_in_the_settings_and_nowhere_else(
    running: object, capfd: pytest.CaptureFixture[str], paths: Paths
) -> None:
    code, out, _ = gpubox(capfd, "connect", "curl", "--new-key", "laptop")

    secret = out.split("Bearer ")[1].split("'")[0]
    assert code == 0 and ClientKeys(paths).client_of(secret) == "laptop"
    written = [path for path in paths.config.parent.rglob("*") if path.is_file()]
    assert written and all(secret not in path.read_text(errors="replace") for path in written)


def test_a_key_that_nobody_saw_is_revoked(
    running: object, capfd: pytest.CaptureFixture[str], paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(text: str) -> None:
        raise GpuboxError("The output cannot be written: No space left on device.")

    monkeypatch.setattr(output, "emit_verbatim", full)
    code, _, err = gpubox(capfd, "connect", "curl", "--new-key", "laptop")

    assert code == 1 and "cannot be written" in err and not ClientKeys(paths).clients


def test_a_gateway_with_keys_leaves_a_place_for_one(
    running: list[GatewayStatus | None], capfd: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    running[:] = [replace(STATUS, has_keys=True)]
    _, out, err = gpubox(capfd, "connect", "openai")
    assert "YOUR-KEY" in out and "--new-key" in err


def test_without_a_gateway_it_says_how_to_start_one(
    running: list[GatewayStatus | None], capfd: pytest.CaptureFixture[str]
) -> None:
    running[:] = [None]
    for words in ((), ("--new-key", "laptop")):
        code, _, err = gpubox(capfd, "connect", "curl", *words)
        assert code == ExitCode.NOT_RUNNING and "serve --detach" in err


def test_without_a_client_it_lists_them_and_starts_nothing(
    running: list[GatewayStatus | None], capfd: pytest.CaptureFixture[str]
) -> None:
    running[:] = [None]
    assert all(client in gpubox(capfd, "connect")[1] for client in CLIENTS)
    assert {client["name"] for client in values(capfd, "connect")[1]["clients"]} == set(CLIENTS)
    assert gpubox(capfd, "connect", "--new-key", "x")[0] == ExitCode.USAGE


@pytest.mark.parametrize("words", [("emacs",), ("curl", "--model", "c"), ("curl", "--new-key", "a b")])
def test_wrong_words_are_refused(running: object, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert gpubox(capfd, "connect", *words)[0] == ExitCode.USAGE


def test_without_a_gateway_the_settings_name_the_server_itself(
    running: list[GatewayStatus | None], capfd: pytest.CaptureFixture[str], write_profile: Callable[[str, str], Path]
) -> None:
    running[:] = [None]
    write_profile("far", 'upstream = "http://box:9000"\n')
    write_profile("open", 'model = "~/x.gguf"\nhost = "0.0.0.0"\n')

    assert json.loads(gpubox(capfd, "connect", "opencode", "--model", "far")[1])["provider"]["gpubox"]["options"] == {
        "baseURL": "http://box:9000/v1"
    }
    code, out, err = gpubox(capfd, "connect", "opencode", "--model", "a", "--url", "http://here:1/v1/")
    assert code == 0 and '"http://here:1/v1"' in out and "a's own address" in err and "YOUR-KEY" not in out
    assert "YOUR-KEY" in gpubox(capfd, "connect", "curl", "--model", "open", "--url", "http://here:1")[1]
    assert gpubox(capfd, "connect", "curl", "--url", "http://here:1")[0] == ExitCode.USAGE


def test_without_a_gateway_the_settings_name_the_server_that_runs(
    running: list[GatewayStatus | None], capfd: pytest.CaptureFixture[str], paths: Paths
) -> None:
    running[:] = [None]
    server = RunningServer(Launch("b", ("x",), "127.0.0.1", 41999), "id", utc_now(), own_identity())
    save_state(paths.instance_state(MAIN_INSTANCE), InstanceState(server))

    for words in ((), ("--model", "b")):
        code, out, err = gpubox(capfd, "connect", "opencode", *words)
        assert code == 0 and '"http://127.0.0.1:41999/v1"' in out and "b's own address" in err
    assert gpubox(capfd, "connect", "opencode", "--model", "a")[0] == ExitCode.NOT_RUNNING


def test_the_context_is_that_of_the_server_that_runs(
    running: list[GatewayStatus | None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its model may be trained for less than the profile asks for."""
    running[:] = [None]
    with paced_server() as (port, _):
        out = gpubox(capfd, "connect", "opencode", "--model", "a", "--url", f"http://127.0.0.1:{port}")[1]
    assert json.loads(out)["provider"]["gpubox"]["models"]["a"]["limit"]["context"] == 4096
