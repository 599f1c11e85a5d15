"""Import of containers and other programs' settings. Hostile files end quickly with one error."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError, UsageError
from gpubox.interchange import importing
from gpubox.interchange.format import FileEntry, Format, Reading
from gpubox.interchange.import_notes import MAX_OMITTED_LINES, redacted_line
from gpubox.interchange.importing import import_source, import_text
from gpubox.interchange.profile_draft import ForeignSettings, ImportedProfile


def import_one(text: str, file: str = "") -> ImportedProfile:
    (imported,) = import_text(text, file=file)
    return imported


def noted(imported: ImportedProfile, *words: str) -> bool:
    return any(all(word in note for word in words) for note in imported.notes)


# --- containers


@pytest.mark.parametrize(
    ("options", "host", "port"),
    [
        ("-p 8000:8080", "0.0.0.0", 8000),
        ("-p 127.0.0.1:8000:8080", "127.0.0.1", 8000),
        ("--publish=[::1]:8000:8080/tcp", "::1", 8000),
        ("-p8080", "0.0.0.0", 8080),
        ("-p 9000:9000", "127.0.0.1", 8080),  # another port than the server's: it is not published
        ("", "127.0.0.1", 8080),
        ("--network host", "0.0.0.0", 8080),
        ("-p 99999:8080", "127.0.0.1", 8080),
    ],
)
def test_a_container_answers_where_its_port_is_published(options: str, host: str, port: int) -> None:
    profile = import_one(f"docker run {options} ghcr.io/ggml-org/llama.cpp:server -m /a.gguf --host 0.0.0.0").profile
    assert (profile.host, profile.port) == (host, port)


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ("-v /srv/m:/models", "/srv/m/a.gguf"),
        ("--volume ~/m:/models/:ro,z", "~/m/a.gguf"),
        ("--mount type=bind,source=/srv/m,target=/models", "/srv/m/a.gguf"),
        ("-v /x:/ -v /srv:/models", "/srv/a.gguf"),
        ("-v C:/m:/models", "C:/m/a.gguf"),
        ("-v /srv/m:/models2", "/models/a.gguf"),
    ],
)
def test_paths_of_a_container_become_those_outside(options: str, model: str) -> None:
    imported = import_one(
        f"podman run {options} ghcr.io/ggml-org/llama.cpp:server -m /models/a.gguf --mmproj /models/b.gguf"
    )
    assert imported.profile.model == model
    assert imported.profile.flags["mmproj"] == model.replace("a.gguf", "b.gguf")
    assert noted(imported, "no volume maps it") == (model == "/models/a.gguf")


@pytest.mark.parametrize(
    "service",
    [
        "image: ghcr.io/ggml-org/llama.cpp:server\n    command: -m /a.gguf -c 8",
        "image: ghcr.io/ggml-org/llama.cpp:server\n    command: ['-m', '/a.gguf', '-c', '8']",
        "image: ghcr.io/ggml-org/llama.cpp:server\n    command: [-m /a.gguf, -c 8]",
        "image: ghcr.io/ggml-org/llama.cpp:full\n    command: --server -m /a.gguf -c 8",
        "image: own/image\n    entrypoint: /app/llama-server\n    command: -m /a.gguf -c 8",
        "build: .\n    command: ['sh', '-c', 'exec llama-server -m /a.gguf -c 8']",
        "image: x/llama.cpp:server\n    environment: {LLAMA_ARG_MODEL: /a.gguf, LLAMA_ARG_CTX_SIZE: 8}",
        "image: x/llama.cpp:server\n    environment: [LLAMA_ARG_MODEL=/a.gguf, 'LLAMA_ARG_CTX_SIZE=${CTX:-8}']",
    ],
)
def test_a_service_of_a_compose_file(service: str) -> None:
    imported = import_one(f"services:\n  llm:\n    {service}\n  other:\n    image: postgres\n", "compose.yaml")
    assert (imported.profile.name, imported.profile.model, dict(imported.profile.flags)) == (
        "llm",
        "/a.gguf",
        {"ctx-size": 8},
    )
    assert noted(imported, "services.other.image postgres")


def test_scalars_of_yaml_stay_as_typed() -> None:
    service = "image: llama.cpp:server\n    command: [-m, /a.gguf, -fa, on, --prio, 01]"
    profile = import_one(f"services:\n  llm:\n    {service}\n    ports: [8080:20]", "c.yml").profile
    assert (dict(profile.flags), profile.port) == ({"flash-attn": "on", "prio": "01"}, 8080)


# --- PowerShell


@pytest.mark.parametrize("text", ["& llama-server.exe -m a.gguf -c 8", ".\\llama-server.exe -m a.gguf `\n  -c 8\n"])
def test_a_command_line_of_powershell(text: str) -> None:
    profile = import_one(text, "start.ps1").profile
    assert (profile.model, dict(profile.flags)) == ("a.gguf", {"ctx-size": 8})


@pytest.mark.parametrize(
    "text", ["$m = 'a'\n& llama-server -m $m", "Start-Process llama-server -ArgumentList '-m','a'"]
)
@pytest.mark.parametrize("file", ["start.ps1", ""])
def test_a_script_of_powershell_is_refused(text: str, file: str) -> None:
    with pytest.raises(UsageError, match="PowerShell script"):
        import_text(text, file=file)


# --- secrets


@pytest.mark.parametrize(
    "line",
    [
        "export HF_TOKEN=hush-hush",
        "$env:OPENAI_API_KEY = 'hush-hush'",
        "huggingface-cli login --token hush-hush",
        "curl -H 'Authorization: Bearer hush-hush' x",
        "curl -u me:hush-hush http://x",
        "curl https://me:hush-hush@host/x",
        "sshpass -p hush-hush ssh box",
        "docker login -u me --password=hush-hush",
        "set DB_PASSWORD=hush-hush",
        'apiKey: "hush-hush"',
        "koboldcpp --adminpassword hush-hush --hordekey hush-hush",
        "HUGGING_FACE_HUB_TOKEN=hush-hush",
    ],
)
def test_a_line_that_is_left_out_shows_no_secret(line: str) -> None:
    assert "hush" not in redacted_line(line)
    assert redacted_line(line).split()[0] == line.split()[0].partition("=")[0] or "***" in redacted_line(line)


@pytest.mark.parametrize("line", ["--override-kv tokenizer.ggml.x=int:1", "--ssl-key-file /k.pem", "--max-tokens 5"])
def test_what_only_sounds_like_a_secret_is_shown(line: str) -> None:
    assert redacted_line(line) == line


def test_a_known_kind_of_token_is_hidden_wherever_it_stands() -> None:
    assert redacted_line("echo hf_abcdefghijklmnop sk-abcdefghijklmnop") == "echo *** ***"


def test_an_api_key_file_is_neither_read_nor_kept(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("hush")
    (tmp_path / "start.sh").write_text(f"llama-server -m a.gguf --api-key-file {tmp_path}/keys")
    (imported,) = import_source(str(tmp_path / "start.sh"))
    assert imported.profile.flags == {}
    assert noted(imported, f"--api-key-file {tmp_path}/keys was left out", "api-key file (mode 0600)")
    assert "hush" not in str(imported)


# --- what is no ordinary file, and what is hostile


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("suffix", [".sh", ".yaml", ".gguf", ""])
def test_what_is_no_ordinary_file_is_refused_at_once(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is a pipe, a socket or a device"):
        import_source(str(path))


def test_a_huge_file_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    with path.open("wb") as file:
        file.truncate(40 * 2**30)  # a sparse file
    with pytest.raises(UsageError, match="far too long"):
        import_source(str(path))


_CHAIN = list(zip("abcdefgh", "bcdefghi", strict=True))
LAUGHS = "a: &a [x]\n" + "".join(f"{k}: &{k} [{','.join([f'*{b}'] * 9)}]\n" for b, k in _CHAIN)
MERGES = "a: &a {k: v}\n" + "".join(f"{k}: &{k} {{<<: [{','.join([f'*{b}'] * 9)}], {k}: v}}\n" for b, k in _CHAIN)
SERVER = "image: 'llama.cpp:server', command: '-m /a'"
HOSTILE = {
    "laughs": ("x.yaml", LAUGHS + f"services: {{s: {{{SERVER}, x: *i}}}}"),
    "merges": ("x.yaml", MERGES + f"services: {{s: {{{SERVER}, x: *i}}}}"),
    "itself": ("x.yaml", "services: &a {s: *a}"),
    "deep": ("x.yaml", "services: " + "{a: " * 2000),
    "json": ("x.json", '{"load":' * 30_000),
    "odd kcpps": ("x.kcpps", '{"model_param": ["a"], "contextsize": {"a": 1}, "ropeconfig": [], "lora": [null]}'),
    "one word": ("x.sh", "://" + "a" * 200_000),
    "dashes": ("x.sh", "a-" * 100_000),
    "quadlet": ("x.container", "[Container]\nImage=llama.cpp:server\nExec=" + "-m a " * 10_000),
    "modelfile": ("Modelfile", "FROM a\n" + 'TEMPLATE """\n' * 5000),
    "interpolation": ("x.yml", f"services: {{s: {{{SERVER}, x: '{'${A:-x}' * 20_000}'}}}}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_quickly(name: str) -> None:
    file, text = HOSTILE[name]
    begin = time.process_time()  # CPU time: the machine may be busy
    with contextlib.suppress(GpuboxError):
        import_text(text, file=file)
    assert time.process_time() - begin < 5


def test_tags_of_yaml_run_nothing(tmp_path: Path) -> None:
    text = f"services: {{s: {{{SERVER}, x: !!python/object/apply:os.mkdir ['{tmp_path}/made']}}}}"
    assert import_one(text, "x.yaml").profile.model == "/a"
    assert not list(tmp_path.iterdir())


def test_a_long_file_has_a_bounded_number_of_lines_and_says_how_many_there_are_beside() -> None:
    text = "[Service]\n" + "".join(f"A{i}=b\n" for i in range(1000)) + "ExecStart=llama-server -m a/b\n"
    notes = import_one(text, "x.service").notes
    assert len(notes) == MAX_OMITTED_LINES + 2
    assert notes[-1] == f"Left out: {1000 - MAX_OMITTED_LINES} more lines."
    assert any("a/b is relative" in note for note in notes)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("x.yaml", "services:\n\t- a", ["YAML", "line 2"]),
        ("x.yaml", "a: 1", ["YAML", "it has a", "compose files"]),
        ("x.json", "{", ["JSON"]),
        ("x.json", "[1]", ["JSON", "which program"]),
        ("x.yml", "services: {db: {image: postgres}}", ["nothing here"]),
        ("Modelfile", "", ["nothing here"]),
        ("x.container", "[Container]\nImage=postgres\n", ["nothing here"]),
    ],
)
def test_broken_and_foreign_files_are_errors_of_one_sentence(file: str, text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        import_text(text, file=file)
    assert "\n" not in error.value.message
    for word in words:
        assert word in str(error.value)


def test_a_format_is_one_file_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would hold this value; FORMATS would get one line."""
    dummy = Format(
        "dummy's settings",
        lambda text, path: Reading(entries=[FileEntry(ForeignSettings("d", ["-m", text.split()[1]]))]),
        r".*\.dummy",
        lambda text: text.startswith("dummy "),
    )
    monkeypatch.setattr(importing, "FORMATS", [*importing.FORMATS, dummy])

    for file in ("", "x.dummy"):
        (imported,) = import_text("dummy /a.gguf", file=file)
        assert (imported.profile.name, imported.profile.model) == ("d", "/a.gguf")
    with pytest.raises(UsageError) as error:
        import_text("nothing")
    assert "dummy's settings" in error.value.hint
