"""The verbs: stdout, stderr and exit code."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpubox import __version__
from gpubox.cli.main import VERBS, run
from gpubox.hardware.gpu import DriverReading
from gpubox.hardware.process import ProcessIdentity, own_identity
from gpubox.paths import Paths, shipped_profiles
from gpubox.profiles import loader
from gpubox.server.state import InstanceState, Launch, Operation, RunningServer, save_state
from gpubox.toml_table import read_toml

MCP_SERVER = Path(__file__).parents[1] / "mcp_server.py"
Write = Callable[[str, str], Path]
DEAD = ProcessIdentity(2**22 + 5, 1, "")


class Box:
    """Runs one command line and returns its exit code, stdout and stderr."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        code = run(list(words))
        out, err = self._capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    def json(self, *words: str) -> dict[str, Any]:
        _, out, _ = self(*words, "--json")

        def never(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        values = json.loads(out, parse_constant=never)
        assert values["schema_version"] == 1
        return dict(values)


@pytest.fixture
def gpubox(capfd: pytest.CaptureFixture[str]) -> Box:
    return Box(capfd)


@pytest.fixture(autouse=True)
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paths: Paths, fake_engine: Path) -> None:
    """A machine without a GPU, with one engine and two shipped profiles."""
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "big.toml").write_text(
        'title = "A big one"\nmodel = "hf:u/big:Q4_K_M"\n[flags]\ncache-type-k = "turbo3"\n'
    )
    (shipped / "small.toml").write_text('title = "A small one"\nmodel = "/m/small.gguf"\n[flags]\nctx-size = 4096\n')
    monkeypatch.setattr(loader, "shipped_profiles", lambda: shipped)
    for module in ("status", "doctor"):
        monkeypatch.setattr(f"gpubox.cli.commands.{module}.read_driver", lambda: DriverReading((), problem="no GPU"))
    paths.config.mkdir(parents=True)
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\nfake = "{fake_engine}"\n')


@pytest.fixture
def crashed(paths: Paths) -> None:
    """A server that ran out of VRAM."""
    launch = Launch("small", ("llama-server",), "127.0.0.1", 8080)
    save_state(
        paths.instance_state("main"), InstanceState(RunningServer(launch, "f00d", "t", DEAD, "t"), last_good=launch)
    )
    paths.logs.mkdir(parents=True)
    paths.instance_log("main").write_text(
        "0.00.304.993 I srv  llama_server: listening on http://127.0.0.1:8080\n"
        "1.00.000.000 E CUDA error: out of memory\n[bold]not markup[/bold]\n"
    )


# -- the command line itself ----------------------------------------------------------------------------


def test_help_lists_every_verb_and_the_exit_codes(gpubox: Box) -> None:
    code, out, err = gpubox("--help")

    assert (code, err) == (0, "")
    assert all(f"\n  {verb} " in out for verb in VERBS)
    assert "3 not running or unreachable" in " ".join(out.split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, gpubox: Box) -> None:
    code, out, err = gpubox(verb, "--help")

    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: gpubox {verb}")


def test_version(gpubox: Box) -> None:
    assert gpubox("--version") == (0, f"gpubox, version {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("stauts", "There is no verb 'stauts'.\n        Did you mean 'status'?"),
        ("xyzzy", "There is no verb 'xyzzy'.\n        `gpubox --help` lists"),
        *((words, "Usage: gpubox")
          for words in ("ls --nope", "show", "start", "status --watch 0", "logs -n many", "ls a b")),
        *((f"{verb} smal", "There is no profile 'smal'.\n        Did you mean 'small'?\n")
          for verb in ("show", "start", "switch", "restart")),
        ("--config /nope/x.toml ls", "/nope/x.toml does not exist.\n        It is named by --config or GPUBOX_CONFIG."),
        ("--url http://box:1 status", "gpubox status --url URL"),
        *((f"status --url {url}", "is not the address of a server")
          for url in ("'b ox'", "ftp://box", "http://", "http://a:x")),
        ("status --all --watch 1", "cannot be combined"),
        ("edit small --delete --rename x", "cannot be combined"),
        ("--url http://box", "`gpubox status`"),
    ],
)  # fmt: skip
def test_wrong_words_are_usage_and_say_what_to_write(words: str, says: str, gpubox: Box) -> None:
    code, out, err = gpubox(*shlex.split(words))

    assert (code, out) == (2, "")
    assert says in err


def test_a_config_that_is_wrong(gpubox: Box, paths: Paths) -> None:
    paths.config_file.write_text("stall-secnds = 3\n")

    code, _, err = gpubox("status")

    assert code == 2
    assert f"{paths.config_file}: stall-secnds is not a known key.\n" in err
    assert "Did you mean 'stall-seconds'?" in err


@pytest.mark.parametrize(
    "url", ["http://me:sesame@box:8080", "http://me:se/same@box", "me:sesame@box", "http://me@box"]
)
@pytest.mark.parametrize("words", [("status", "--url"), ("--url",), ("status", "--json", "--url")])
def test_a_password_in_a_url_is_never_repeated(url: str, words: tuple[str, ...], gpubox: Box) -> None:
    code, out, err = gpubox(*words, url)

    assert code == 2
    assert "The address contains a user name or a password." in err
    assert "same" not in out + err


def test_the_screen_without_a_terminal_says_what_needs_none(gpubox: Box, write_profile: Write, tiny_gguf: Path) -> None:
    write_profile("demo", f'model = "{tiny_gguf}"')

    assert "`gpubox demo --once` needs none." in gpubox("demo")[2]


def test_a_failure_is_told_once(gpubox: Box) -> None:
    code, out, err = gpubox("start", "small")

    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "✗ flags and memory small"
    assert err.count("/m/small.gguf does not exist") == 1


def test_a_build_that_does_not_know_itself_says_only_its_version(gpubox: Box, fake_engine: Path) -> None:
    fake_engine.write_text(fake_engine.read_text().replace("build 11434, commit abc", "build 0, commit unknown"))

    for words in (("engines",), ("doctor",), ("show", "small"), ("start", "small")):
        out = "".join(map(str, gpubox(*words)))
        assert "0.6.0-dev" in out or words[0] == "start"
        assert "build 0" not in out
    assert gpubox.json("engines")["engines"][0]["version"] == "0.6.0-dev (build 0, commit unknown)"


def test_a_server_that_is_not_there_is_unreachable(gpubox: Box) -> None:
    code, out, _ = gpubox("status", "--url", "http://127.0.0.1:1")

    assert code == 3
    assert "Nothing answers at http://127.0.0.1:1." in out


def test_a_bug_is_one_sentence_and_the_traceback_is_in_a_file(
    gpubox: Box, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("[red]oops[/red]")

    monkeypatch.setattr("gpubox.cli.commands.ls.compatibility_by_profile", broken)

    code, out, err = gpubox("ls")

    assert (code, out) == (1, "")
    assert err.startswith("gpubox: internal error: ZeroDivisionError: [red]oops[/red]\n")
    assert "Traceback" in (paths.logs / "gpubox-error.log").read_text()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("stop",), 3, "Nothing is running."),
        (("logs",), 3, "There is no log yet."),
        (("show", "smal"), 2, "There is no profile 'smal'."),
        (("--config", "/nope.toml", "ls"), 2, "/nope.toml does not exist."),
        (("start",), 2, "Missing argument 'PROFILE'."),
        (("edit", "nosuch"), 2, "There is no profile 'nosuch'."),
        (("chat", "hello", "you"), 2, "There is no verb 'hello'."),
        (("stauts",), 2, "There is no verb 'stauts'."),
    ],
)
def test_an_error_of_a_verb_with_json_is_one_json_object(
    words: tuple[str, ...], code: int, says: str, gpubox: Box
) -> None:
    values = gpubox.json(*words)

    assert values.pop("hint") or True
    assert values == {"schema_version": 1, "ok": False, "error": says, "exit_code": code}
    assert gpubox(*words, "--json")[0] == code


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("start",), "`gpubox ls` lists them."),
        (("edit", "small", "ctx-size=9"), "A change is written after --set: --set ctx-size=VALUE"),
        (("chat", "hello", "you"), "Write: gpubox chat -p 'hello you'"),
        (("chat", "shwo", "x"), "Did you mean 'show'?"),
        (("status", "--explain", "slowd by"), "Did you mean: slowed by?"),
        (("status", "--explain", "slow"), "Did you mean: slowed by, slower since?"),
        (("advice", "small"), ""),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(words: tuple[str, ...], hint: str, gpubox: Box) -> None:
    _, out, err = gpubox(*words)
    assert hint in err if hint else out == "small: the model is not here yet; nothing can be judged.\n"


def test_the_beginning_of_a_figures_name_is_enough(gpubox: Box) -> None:
    assert gpubox("status", "--explain", "slowed")[1] == gpubox("status", "--explain", "slowed by")[1]


# -- ls and show ----------------------------------------------------------------------------------------


def test_ls(gpubox: Box) -> None:
    assert gpubox("ls", "--all") == (
        0,
        "!  big    A big one    not with your llama-server: cache-type-k only in a TurboQuant fork\n"
        "?  small  A small one  model missing: /m/small.gguf\n",
        "",
    )


def test_ls_narrows_by_name_and_text(gpubox: Box) -> None:
    assert gpubox("ls", "SMALL ONE")[1].count("\n") == 1
    assert gpubox("ls", "zzz") == (1, "", "gpubox: No profile contains 'zzz'.\n        `gpubox ls` lists them all.\n")
    assert gpubox("ls", "zzz", "--json")[0] == 1
    assert gpubox.json("ls", "zzz")["profiles"] == []


def test_ls_tells_a_model_to_download_from_one_that_is_missing(
    gpubox: Box, write_profile: Write, tiny_gguf: Path
) -> None:
    write_profile("here", f'model = "{tiny_gguf}"')
    write_profile("later", 'model = "hf:u/m:Q4_K_M"')
    write_profile("lost", 'model = "lost.gguf"')

    rows = {line[3:].split()[0]: line for line in gpubox("ls")[1].splitlines()}

    assert rows["here"] == "   here"
    assert rows["later"].split("  ", 1)[0] == "↓"
    assert rows["later"].endswith("model not here yet, start downloads it")
    assert rows["lost"].startswith("?")
    assert "There is no model 'lost.gguf'" in rows["lost"]
    values = {row["name"]: row for row in gpubox.json("ls")["profiles"]}
    assert [values[n]["model_fetchable"] for n in ("here", "later", "lost")] == [False, True, False]
    assert values["here"]["model_missing"] is None
    assert "lost.gguf" in values["lost"]["model_missing"]
    code, out, _ = gpubox("show", "lost")
    assert (code, "! There is no model 'lost.gguf'" in out, "--model lost.gguf" in out) == (0, True, True)
    assert "`gpubox start` downloads it: hf:u/m:Q4_K_M" in gpubox("show", "later")[1]


def test_the_demos_are_the_first_of_the_shipped_profiles(gpubox: Box, tmp_path: Path, write_profile: Write) -> None:
    (tmp_path / "shipped/tour.toml").write_text('model = "demo:smollm2"\n')
    write_profile("zz", 'model = "m"')

    assert [row["name"] for row in gpubox.json("ls")["profiles"]] == ["zz", "tour", "big", "small"]


def test_ls_of_a_broken_profile_lists_the_others_and_says_one_sentence(gpubox: Box, write_profile: Write) -> None:
    path = write_profile("mine", 'model = "m"\nport = "eighty"\n')

    code, out, err = gpubox("ls", "--all")

    assert code == 0
    assert [line.split()[1] for line in out.splitlines()] == ["big", "small"]
    assert err == f"gpubox: {path}: port must be a whole number, not 'eighty'.\n"


def test_ls_as_json(gpubox: Box, write_profile: Write) -> None:
    write_profile("mine", "oops")

    values = gpubox.json("ls")

    assert values["profiles"][0] == {
        "name": "big", "title": "A big one", "running": False, "shipped": True, "companion": False, "upstream": None,
        "aliases": [], "engine": "default", "engine_accepts": False,
        "refusal": "cache-type-k only in a TurboQuant fork", "model_present": False, "model_fetchable": True,
        "model_missing": None, "memory_verdict": "unknown", "memory_spare_bytes": None,
    }  # fmt: skip
    assert list(values["broken"]) == ["mine"]


def test_ls_without_any_engine(gpubox: Box, paths: Paths) -> None:
    paths.config_file.write_text('default-engine = "gone"\n')

    code, out, _ = gpubox("ls", "--all")

    assert code == 0
    assert out.count("There is no engine 'gone'.") == 2


def test_show(gpubox: Box, fake_engine: Path, paths: Paths, tmp_path: Path) -> None:
    code, out, err = gpubox("show", "small")

    assert (code, err) == (0, "")
    assert out.replace(str(tmp_path), "TMP") == (
        "small  A small one\n"
        "\n"
        "TMP/llama-server --model /m/small.gguf --host 127.0.0.1 --port 8080 --ctx-size 4096"
        " --log-verbosity 4 --log-colors off --metrics --slots --jinja"
        f" --slot-save-path {paths.kept_kv} --alias small\n"
        "\n"
        "✓ fake (llama-server b11434) accepts every flag\n"
        "! model missing: /m/small.gguf\n"
        "  file     TMP/shipped/small.toml\n"
    )


def test_show_of_what_the_engine_refuses_exits_2_and_says_why(gpubox: Box) -> None:
    code, out, _ = gpubox("show", "big")

    assert code == 2
    assert "✗ big: cache-type-k: does not accept 'turbo3'" in out
    assert "--hf-repo u/big:Q4_K_M" in out


def test_show_command_pastes_and_json_agrees(gpubox: Box) -> None:
    _, line, _ = gpubox("show", "small", "--command")
    values = gpubox.json("show", "small")

    assert shlex.split(line) == values["argv"]
    assert values["command"] == line.strip()
    assert gpubox.json("show", "small", "--command") == values
    assert (values["engine_accepts"], values["refusal"], values["model_path"]) == (True, None, None)


def test_show_hides_secrets_of_env(gpubox: Box, write_profile: Write) -> None:
    write_profile(
        "mine", 'model = "/m"\nenv = { HF_TOKEN = "sesame", MY_PASSWORD = "sesame", CUDA_VISIBLE_DEVICES = "0" }'
    )

    for words in (("show", "mine"), ("show", "mine", "--json"), ("show", "mine", "--command")):
        _, out, err = gpubox(*words)
        assert "sesame" not in out + err
        assert "HF_TOKEN='***'" in out
        assert "CUDA_VISIBLE_DEVICES=0" in out


def test_show_of_a_broken_profile(gpubox: Box, write_profile: Write) -> None:
    path = write_profile("small", "oops")

    code, out, err = gpubox("show", "small")

    assert (code, out) == (2, "")
    assert err.startswith(f"gpubox: {path} is not valid TOML")


# -- where nothing runs ---------------------------------------------------------------------------------


def test_status_of_nothing(gpubox: Box) -> None:
    assert gpubox("status") == (3, "○ no server  stopped\n  gpu       —  no GPU\n", "")
    values = gpubox.json("status")

    assert values["server"]["state"] == "stopped"
    assert {k: v for k, v in values["server"].items() if v is not None} == {"state": "stopped"}
    assert {"server", "gpus", "memory", "offload", "throughput", "totals"} <= set(values)
    assert gpubox("status", "--all") == (3, "Nothing is running.\n", "")
    assert gpubox.json("status", "--all")["servers"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("stop",), "Nothing is running."),
        (("stop", "--all"), "Nothing is running."),
        (("stop", "small"), "small is not running."),
        (("logs",), "There is no log yet."),
        (("logs", "small"), "small has no log"),
        (("logs", "../../etc/passwd"), "has no log"),
        (("restart",), "Nothing runs, and no profile ran before."),
    ],
)
def test_verbs_that_need_a_server_exit_3(words: tuple[str, ...], says: str, gpubox: Box, paths: Paths) -> None:
    code, out, err = gpubox(*words)

    assert (code, out) == (3, "")
    assert err.startswith("gpubox: ")
    assert says in err
    assert not paths.instance_state("main").exists()


def test_a_companion_cannot_be_switched_to(gpubox: Box, write_profile: Write) -> None:
    write_profile("embed", 'model = "/m"\ncompanion = true')

    code, _, err = gpubox("switch", "embed")

    assert code == 2
    assert "`gpubox start embed` starts it." in err


# -- after a crash --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("crashed")
def test_a_crash_is_told_by_status_stop_and_doctor(gpubox: Box) -> None:
    code, out, _ = gpubox("status")
    assert code == 3
    died = "small died: out of VRAM while running. Try a higher n-cpu-moe"
    assert out.splitlines()[0] == "○ no server  crashed"
    assert out.splitlines()[1].startswith(f"  note      {died}")

    code, _, err = gpubox("stop")
    assert code == 3
    assert died in err
    assert died in gpubox("doctor")[1]


@pytest.mark.usefixtures("crashed")
def test_logs_show_the_last_lines_as_they_stand(gpubox: Box, paths: Paths) -> None:
    assert gpubox("logs", "-n", "1") == (0, "[bold]not markup[/bold]\n", "")
    assert gpubox("logs", "--grep", "CUDA") == (0, "1.00.000.000 E CUDA error: out of memory\n", "")
    assert gpubox("logs", "-n", "0") == (0, "", "")
    assert gpubox("logs")[1].count("\n") == 3
    assert gpubox("logs", "--path") == (0, f"{paths.instance_log('main')}\n", "")


@pytest.mark.usefixtures("crashed")
def test_logs_as_json(gpubox: Box, paths: Paths) -> None:
    values = gpubox.json("logs", "-n", "2")

    assert values["path"] == str(paths.instance_log("main"))
    assert values["lines"] == [
        {"text": "CUDA error: out of memory", "seconds": 60.0, "level": "E"},
        {"text": "[bold]not markup[/bold]", "seconds": None, "level": None},
    ]
    assert gpubox.json("logs", "--path")["path"] == str(paths.instance_log("main"))


def test_a_switch_that_was_cut_off_is_told(gpubox: Box, paths: Paths) -> None:
    launch = Launch("small", ("llama-server",), "127.0.0.1", 8080)
    save_state(paths.instance_state("main"), InstanceState(None, Operation("switch", "big", "load", DEAD, "t"), launch))

    assert (
        "A switch to big was interrupted at the step 'load'; nothing runs. `gpubox start small`" in gpubox("status")[1]
    )


def test_a_switch_that_another_gpubox_is_doing_is_told(gpubox: Box, paths: Paths) -> None:
    save_state(
        paths.instance_state("main"), InstanceState(None, Operation("switch", "big", "load", own_identity(), "t"))
    )

    code, out, _ = gpubox("status")

    assert code == 0
    assert out.splitlines()[:2] == ["○ big  loading", "  doing     switch big: load"]


def test_a_state_folder_that_is_a_file_is_a_sentence(gpubox: Box, paths: Paths) -> None:
    paths.state.parent.mkdir(parents=True, exist_ok=True)
    paths.state.write_text("")

    for words in (("status",), ("status", "--all"), ("ls",), ("logs",)):
        code, _, err = gpubox(*words)
        assert code in (0, 3)
        assert "internal error" not in err


# -- the rest -------------------------------------------------------------------------------------------


def test_engines(gpubox: Box, paths: Paths, fake_engine: Path) -> None:
    with paths.config_file.open("a") as file:
        file.write('gone = "/opt/gone/llama-server"\n')

    code, out, _ = gpubox("engines")
    values = {entry["name"]: entry for entry in gpubox.json("engines")["engines"]}

    assert code == 0
    assert f"{fake_engine}\n    no GPU device: this build computes on the CPU" in out
    assert "✗ gone  /opt/gone/llama-server" in out
    assert (values["fake"]["version"], values["fake"]["devices"]) == ("0.6.0-dev (build 11434, commit abc)", [])
    assert values["fake"]["options"] > 100
    assert "does not exist" in values["gone"]["problem"]


def test_doctor_names_what_is_missing_and_changes_nothing(gpubox: Box, paths: Paths, write_profile: Write) -> None:
    write_profile("mine", "oops")
    write_profile("lost", 'upstream = "http://127.0.0.1:9"\nfallback = "nobody"\n')

    code, out, _ = gpubox("doctor")
    topics = {finding["topic"] for finding in gpubox.json("doctor")["findings"]}

    assert code == 0
    assert "! gpu       no GPU" in out
    assert "The fallback of lost, nobody, is no profile." in out
    assert "✓ profiles  1 profile of your own, 2 examples\n" in out  # one of these is refused: no fault of the owner
    assert "mine.toml is not valid TOML" in out
    assert {"host", "gpu", "engine", "profiles", "models", "api key", "config", "state", "cache"} <= topics
    assert not paths.state.exists()
    write_profile("odd", 'model = "/m/odd.gguf"\n[flags]\nnope = 1\n')
    assert "! profiles  2 profiles of your own, 2 examples; the engine refuses 1 of yours\n" in gpubox("doctor")[1]


def test_doctor_lists_the_tools_of_mcp_servers(gpubox: Box, paths: Paths) -> None:
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(
        f"[mcp.good]\ncommand = {json.dumps([sys.executable, str(MCP_SERVER), 'good'])}\n"
        f"[mcp.broken]\ncommand = {json.dumps([sys.executable, str(MCP_SERVER), 'start-dies'])}\n"
    )

    _, out, _ = gpubox("doctor")

    assert "✓ mcp       good: echo, environment, parts" in out
    assert "! mcp       The MCP server broken ended. Its last line: no license\n            Its messages are in " in out


def test_doctor_calls_a_key_that_leaked_bad(gpubox: Box, paths: Paths) -> None:
    paths.api_key_file.write_text("sesame")
    paths.api_key_file.chmod(0o644)

    code, out, _ = gpubox("doctor")

    assert code == 1
    assert "chmod 600" in out
    assert "sesame" not in out


@pytest.mark.parametrize("file", ["profile", "config"])
def test_schema_is_the_json_schema_of_the_file(gpubox: Box, file: str) -> None:
    code, out, _ = gpubox("show", "--schema", file)
    schema = json.loads(out)

    assert (code, schema["title"], schema["additionalProperties"]) == (0, f"gpubox {file}", False)
    if file == "profile":
        assert schema["anyOf"] == [{"required": ["model"]}, {"required": ["upstream"]}]
        assert schema["properties"]["port"]["maximum"] == 65535
        assert set(schema["properties"]["needs"]["properties"]) == {"vram-gib", "ram-gib", "engine"}
        shipped = {key for path in shipped_profiles().glob("*.toml") for key in read_toml(path)}
        assert shipped <= set(schema["properties"])
    assert gpubox("show", "--schema")[1] == gpubox("show", "--schema", "profile")[1]


def test_shipped_profiles_are_listed_where_they_are_asked_for(
    gpubox: Box, write_profile: Callable[[str, str], Path], paths: Paths
) -> None:
    write_profile("mine", 'model = "/m/small.gguf"\n')
    _, few, err = gpubox("ls")
    assert "big" not in few and "`gpubox ls --all` lists them" in err
    assert "big" in gpubox("ls", "--all")[1]
    assert "big" in gpubox("ls", "big")[1]
    assert "big" in {profile["name"] for profile in gpubox.json("ls")["profiles"]}

    config = paths.config_file.read_text() if paths.config_file.exists() else ""
    paths.config_file.write_text(f'shipped-profiles = "show"\n{config}')
    assert "big" in gpubox("ls")[1]
    paths.config_file.write_text(f'shipped-profiles = "some"\n{config}')
    assert gpubox("ls")[0] == 2
