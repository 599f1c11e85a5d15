"""Another box through its gateway, with the key that is for that."""

from __future__ import annotations

import json

import pytest

from gpubox.gateway.client_keys import ClientKeys, ClientLimits
from gpubox.paths import Paths
from tests.cli.verbs import gpubox, values
from tests.gateway_process import Gateway
from tests.raw_http import ask


def test_a_watching_key_shows_the_box_and_nothing_else(
    capfd: pytest.CaptureFixture[str], paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway()
    try:
        url = f"http://127.0.0.1:{gateway.port}"
        assert ask(gateway.port, "/gpubox/watch").status == 401, "without any key, nobody watches"
        code, secret, said = gpubox(capfd, "keys", "add", "laptop", "--watch")
        assert code == 0 and "every request to the gateway needs one" in said
        agent = ClientKeys(paths).add("agent", ClientLimits())

        def asked(path: str, key: str) -> tuple[int, str]:
            reply = ask(gateway.port, path, headers={"Authorization": f"Bearer {key}"})
            return reply.status, reply.body.decode()

        assert asked("/gpubox/watch", secret.strip())[0] == 200
        assert asked("/gpubox/watch", agent)[0] == 403
        for path in ("/v1/models", "/metrics", "/gpubox/status", "/gpubox/stop", "/slots", "/gpubox/watch/x"):
            assert asked(path, secret.strip())[0] == 403, path

        monkeypatch.setenv("GPUBOX_URL_KEY", secret.strip())
        there, here = values(capfd, "status", "--url", url), values(capfd, "status")
        assert there[0] == here[0] == 3
        assert there[1]["server"] == here[1]["server"]
        assert [device["total_bytes"] for device in there[1]["memory"]] == [
            device["total_bytes"] for device in here[1]["memory"]
        ]
        code, out, _ = gpubox(capfd, "status", "--url", url, "--record", "-", "--seconds", "0.5")
        assert code == 0 and json.loads(out.splitlines()[0])["format"] == "gpubox-recording"
        monkeypatch.setenv("GPUBOX_URL_KEY", agent)
        code, out, said = gpubox(capfd, "status", "--url", url)
        assert (code, out) == (4, "") and "is for models, not for watching" in said
        paths_asked = {request["path"] for request in gateway.status()["finished"]}
        assert paths_asked == {"/v1/models", "/metrics", "/slots"}, "to watch is no request to a model"
    finally:
        gateway.stop()
    assert not gateway.problems()


def test_a_key_that_watches_has_no_limits_of_models(capfd: pytest.CaptureFixture[str], paths: Paths) -> None:
    code, _, said = gpubox(capfd, "keys", "add", "x", "--watch", "--weight", "2")
    assert code == 2 and "asks for no model" in said
    assert gpubox(capfd, "keys", "add", "x", "--watch", "--expires", "1d")[0] == 0
    assert "none: it watches" in gpubox(capfd, "keys", "list")[1]
