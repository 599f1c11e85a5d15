"""Everything that can be checked before the old server is stopped."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from gpubox.server.launch import beside_gateway, check_exposure, check_port, free_port, prepare_launch, preview_launch
from gpubox.server.state import GatewayRecord, Launch, save_gateway
from tests import ports


@pytest.fixture
def config(fake_engine: Path) -> Config:
    return Config(engines={"fake": str(fake_engine)}, default_engine="fake")


@pytest.fixture
def profile(tiny_gguf: Path) -> Profile:
    return Profile("p", str(tiny_gguf), port=ports.free_port())


@pytest.fixture
def used_port() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def refusal(profile: Profile, paths: Paths, config: Config, **options: Any) -> GpuboxError:
    with pytest.raises(GpuboxError) as caught:
        prepare_launch(profile, paths, config, **options)
    return caught.value


def test_the_launch_of_a_whole_profile(
    profile: Profile, paths: Paths, config: Config, fake_engine: Path, tiny_gguf: Path
) -> None:
    notes: list[str] = []
    whole = replace(profile, flags={"ctx-size": 4096}, env={"X": "1"})

    launch = prepare_launch(whole, paths, config, on_checked=notes.append)

    assert launch.argv[:7] == (
        str(fake_engine), "--model", str(tiny_gguf), "--host", "127.0.0.1", "--port", str(profile.port)
    )  # fmt: skip
    assert launch.argv[7:] == (
        "--ctx-size", "4096", "--log-verbosity", "4", "--log-colors", "off", "--metrics", "--slots", "--jinja",
        "--slot-save-path", str(paths.kept_kv), "--alias", "p",
    )  # fmt: skip
    assert paths.kept_kv.stat().st_mode & 0o777 == 0o700
    assert (launch.profile, launch.engine, launch.engine_path) == ("p", "fake", str(fake_engine))
    assert launch.engine_version == "0.6.0-dev (build 11434, commit abc)"
    assert (launch.model_path, launch.model_bytes, dict(launch.env)) == (str(tiny_gguf), 24, {"X": "1"})
    assert notes == ["engine fake (llama-server b11434)", "model tiny.gguf", "flags accepted"]
    assert not paths.state.exists()


@pytest.mark.parametrize(("flags", "proven"), [({}, False), ({"embeddings": True}, True), ({"embedding": True}, True)])
def test_an_embedding_server_is_proven_by_an_embedding(
    flags: dict[str, Any], proven: bool, profile: Profile, paths: Paths, config: Config
) -> None:
    assert prepare_launch(replace(profile, flags=flags), paths, config).embeddings is proven


# -- exposure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_an_open_host_without_a_key_is_refused(host: str, profile: Profile, paths: Paths) -> None:
    with pytest.raises(UsageError) as caught:
        check_exposure(replace(profile, host=host), paths, allow_exposed=False)

    assert f"host {host} opens the server to other machines without an API key" in caught.value.message
    assert str(paths.api_key_file) in caught.value.hint


def test_a_key_or_the_owners_word_opens_it(profile: Profile, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = replace(profile, host="0.0.0.0")
    check_exposure(profile, paths, allow_exposed=False)
    check_exposure(wide, paths, allow_exposed=True)
    monkeypatch.setenv("LLAMA_API_KEY", "sesame")
    check_exposure(wide, paths, allow_exposed=False)


def test_config_may_allow_it(profile: Profile, paths: Paths, config: Config) -> None:
    wide = replace(profile, host="0.0.0.0")

    assert "without an API key" in refusal(wide, paths, config).message
    assert prepare_launch(wide, paths, replace(config, allow_exposed=True)).host == "0.0.0.0"


def test_a_key_file_that_others_can_read_stops_an_open_launch(profile: Profile, paths: Paths) -> None:
    paths.config.mkdir(parents=True)
    paths.api_key_file.write_text("sesame")
    paths.api_key_file.chmod(0o644)

    with pytest.raises(UsageError, match="can be read by other users"):
        check_exposure(replace(profile, host="0.0.0.0"), paths, allow_exposed=False)


def test_the_key_stands_in_no_part_of_the_launch(
    profile: Profile, paths: Paths, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "sesame")

    assert "sesame" not in repr(prepare_launch(replace(profile, host="0.0.0.0"), paths, config))


# -- engine and flags -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"no-such-flag": 1}, "p: no-such-flag: this engine has no such flag"),
        ({"draft-max": 4}, "draft-max: was removed from this engine"),
        ({"cache-type-k": "turbo3"}, "only in a TurboQuant fork"),
        ({"spec-type": "mtp"}, "draft-mtp"),
        ({"ctx-sizes": 1, "cache-type-k": "q9"}, "(and cache-type-k)"),
        ({"ctx-size": 13}, "the engine fake refuses: error while handling argument"),
    ],
)
def test_a_flag_that_the_engine_refuses_is_usage(
    flags: dict[str, Any], words: str, profile: Profile, paths: Paths, config: Config
) -> None:
    error = refusal(replace(profile, flags=flags), paths, config)

    assert words in str(error)
    assert error.code == 2


def test_an_engine_that_is_not_there(profile: Profile, paths: Paths, config: Config) -> None:
    assert "Did you mean 'fake'?" in str(refusal(replace(profile, engine="fakee"), paths, config))
    gone = replace(config, engines={"fake": "/opt/gone/llama-server"})
    assert "/opt/gone/llama-server does not exist" in refusal(profile, paths, gone).message


# -- files ----------------------------------------------------------------------------------------------


def test_a_missing_model_names_the_nearest(profile: Profile, paths: Paths, config: Config, tiny_gguf: Path) -> None:
    error = refusal(replace(profile, model=str(tiny_gguf.with_name("tinny.gguf"))), paths, config)

    assert "tinny.gguf does not exist" in error.message
    assert error.hint == "Did you mean tiny.gguf?"


@pytest.mark.parametrize("flag", ["spec-draft-model", "mmproj", "model-draft"])
def test_draft_and_mmproj_must_be_there_and_whole(
    flag: str, profile: Profile, paths: Paths, config: Config, tmp_path: Path, tiny_gguf: Path
) -> None:
    (tmp_path / "bad.gguf").write_text("not a model")

    assert "gone.gguf does not exist" in refusal(replace(profile, flags={flag: "/x/gone.gguf"}), paths, config).message
    bad = replace(profile, flags={flag: str(tmp_path / "bad.gguf")})
    assert "is not a GGUF" in refusal(bad, paths, config).message
    assert prepare_launch(replace(profile, flags={flag: str(tiny_gguf)}), paths, config)


def test_a_home_in_a_flag_is_expanded_for_the_check_and_for_the_engine(
    profile: Profile, paths: Paths, config: Config, own_home: Path, tiny_gguf: Path
) -> None:
    shutil.copy(tiny_gguf, own_home / "draft.gguf")

    launch = prepare_launch(replace(profile, flags={"spec-draft-model": "~/draft.gguf"}), paths, config)

    assert str(own_home / "draft.gguf") in launch.argv
    assert (
        "~/nope.gguf" not in refusal(replace(profile, flags={"spec-draft-model": "~/nope.gguf"}), paths, config).message
    )
    assert (
        "nope.gguf does not exist"
        in refusal(replace(profile, flags={"spec-draft-model": "~/nope.gguf"}), paths, config).message
    )


def test_a_home_in_the_model_is_expanded(
    profile: Profile, paths: Paths, config: Config, own_home: Path, tiny_gguf: Path
) -> None:
    shutil.copy(tiny_gguf, own_home / "m.gguf")

    assert prepare_launch(replace(profile, model="~/m.gguf"), paths, config).model_path == str(own_home / "m.gguf")


def test_relative_files_are_found_beside_the_profile_wherever_gpubox_is_called(
    profile: Profile, paths: Paths, config: Config, tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(profile, model="tiny.gguf", flags={"mmproj": "tiny.gguf"}, path=tmp_path / "p.toml")
    monkeypatch.chdir("/")

    launch = prepare_launch(own, paths, config)

    assert launch.argv[launch.argv.index("--mmproj") + 1] == launch.model_path == str(tiny_gguf)
    assert preview_launch(own, paths, config).model_path == str(tiny_gguf)


def test_a_template_file_must_be_there(profile: Profile, paths: Paths, config: Config) -> None:
    error = refusal(replace(profile, flags={"chat-template-file": "/x/t.jinja"}), paths, config)

    assert error.message == "p: chat-template-file names /x/t.jinja, which does not exist."


def test_a_model_to_download_is_said_to_be_one(profile: Profile, paths: Paths, config: Config) -> None:
    error = refusal(replace(profile, model="hf:user/repo:Q4_K_M"), paths, config)

    assert "is not on this machine" in error.message
    assert "gpubox start p" in error.hint


def test_a_disk_without_room_for_the_log(
    profile: Profile, paths: Paths, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=99_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)

    assert refusal(profile, paths, config).message.startswith("Only 99 MB are free in the log folder")


# -- the port -------------------------------------------------------------------------------------------


def test_a_held_port_names_the_program(used_port: int, profile: Profile, paths: Paths, config: Config) -> None:
    error = refusal(replace(profile, port=used_port), paths, config)

    assert re.fullmatch(rf"Port {used_port} is used by .+ \(pid {os.getpid()}\)\.", error.message)
    assert error.code == 1


def test_a_port_held_on_every_address_is_held_on_loopback(paths: Paths) -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        with pytest.raises(GpuboxError, match="is used by"):
            check_port("127.0.0.1", listener.getsockname()[1], paths)


def test_a_port_that_is_bound_but_not_listened_on_is_not_blamed_on_anybody(paths: Paths) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(GpuboxError, match="cannot be used: Address already in use"):
            check_port("127.0.0.1", bound.getsockname()[1], paths)


def test_a_port_whose_connections_linger_is_free(paths: Paths) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller:
            accepted, _ = listener.accept()
            accepted.close()  # the server closes first: its side is left in TIME_WAIT
            caller.recv(1)

    check_port("127.0.0.1", port, paths)


@pytest.mark.usefixtures("need_ipv6")
def test_a_free_port_is_free_on_both_families(paths: Paths) -> None:
    check_port("127.0.0.1", free_port("127.0.0.1"), paths)
    check_port("::1", free_port("::1"), paths)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300])
def test_a_host_that_is_none_is_usage(host: str, paths: Paths) -> None:
    with pytest.raises(UsageError, match="is unknown on this machine"):
        check_port(host, 8080, paths)


def test_an_address_of_another_machine_is_a_sentence(paths: Paths) -> None:
    with pytest.raises(GpuboxError, match=r"192\.0\.2\.1:\d+ cannot be used: Cannot assign requested address"):
        check_port("192.0.2.1", free_port("127.0.0.1"), paths)


def test_a_port_below_1024_without_root(monkeypatch: pytest.MonkeyPatch, paths: Paths) -> None:
    def denied(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", denied, raising=False)

    with pytest.raises(GpuboxError, match="Port 80 needs root"):
        check_port("127.0.0.1", 80, paths)


@pytest.fixture
def gateway(used_port: int, paths: Paths) -> int:
    """The port of a gateway: this process."""
    save_gateway(paths, GatewayRecord(own_identity(), "127.0.0.1", used_port, "token", "now"))
    return used_port


def test_a_profile_with_the_port_of_the_gateway_takes_a_free_one_and_keeps_it(
    gateway: int, profile: Profile, paths: Paths, config: Config
) -> None:
    notes: list[str] = []
    behind = replace(profile, port=gateway)

    launch = prepare_launch(behind, paths, config, on_checked=notes.append)
    again = prepare_launch(behind, paths, config, old=launch)

    assert launch.port == again.port != gateway
    assert f"port {launch.port}, because the gateway listens on {gateway}" in notes
    assert prepare_launch(profile, paths, config).port == profile.port


def test_a_launch_whose_port_the_gateway_has_taken_comes_back_beside_it(
    gateway: int, profile: Profile, paths: Paths, config: Config
) -> None:
    paths.gateway_record.unlink()
    before = replace(prepare_launch(profile, paths, config), port=gateway)
    before = replace(before, argv=tuple(str(gateway) if word == str(profile.port) else word for word in before.argv))
    assert beside_gateway(before, paths) == before
    with pytest.raises(GpuboxError, match=r"is used by .+ \(pid"):
        check_port("127.0.0.1", gateway, paths)

    save_gateway(paths, GatewayRecord(own_identity(), "127.0.0.1", gateway, "token", "now"))
    after = beside_gateway(before, paths)

    assert after.port != gateway and after.argv[after.argv.index("--port") + 1] == str(after.port)
    assert after.base_url.endswith(f":{after.port}")
    with pytest.raises(GpuboxError, match="is used by the gateway"):
        check_port("127.0.0.1", gateway, paths)


def test_what_runs_elsewhere_is_not_launched(profile: Profile, paths: Paths, config: Config) -> None:
    error = refusal(replace(profile, upstream="http://box2:8080"), paths, config)

    assert error.message == "p runs elsewhere, at http://box2:8080; gpubox does not start it."
    assert error.code == 2


def test_the_port_of_the_server_that_will_be_stopped_counts_as_free(
    used_port: int, profile: Profile, paths: Paths, config: Config
) -> None:
    old = Launch("old", (), "127.0.0.1", used_port)

    assert prepare_launch(replace(profile, port=used_port), paths, config, old=old).port == used_port


def test_any_free_port_stays_the_same_for_the_same_profile(
    used_port: int, profile: Profile, paths: Paths, config: Config
) -> None:
    anywhere = replace(profile, port=0)
    mine, other = Launch("p", (), "127.0.0.1", used_port), Launch("q", (), "127.0.0.1", used_port)

    assert prepare_launch(anywhere, paths, config, old=mine).port == used_port
    assert prepare_launch(anywhere, paths, config, old=other).port not in (0, used_port)
    assert prepare_launch(anywhere, paths, config).argv[6] != "0"


# -- the preview ----------------------------------------------------------------------------------------


def test_a_preview_looks_at_no_port_and_needs_no_model(
    used_port: int, profile: Profile, paths: Paths, config: Config
) -> None:
    shown = preview_launch(replace(profile, port=used_port, model="hf:u/r:Q4_K_M"), paths, config)

    assert (shown.model_path, shown.refusal) == (None, None)
    assert shown.argv[1:3] == ("--hf-repo", "u/r:Q4_K_M")


def test_a_preview_of_what_cannot_run_shows_the_line_and_says_why(
    profile: Profile, paths: Paths, config: Config
) -> None:
    for wrong, words in (
        (replace(profile, engine="gone"), "There is no engine 'gone'"),
        (replace(profile, flags={"no-such-flag": 1}), "no such flag"),
        (replace(profile, flags={"ctx-size": 13}), "13 brings bad luck"),
    ):
        shown = preview_launch(wrong, paths, config)
        assert words in str(shown.refusal)
        assert "--model" in shown.argv
