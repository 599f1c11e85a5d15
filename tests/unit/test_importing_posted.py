"""Launch files as people post them (issues, READMEs, forum answers, repositories), in their shortest form.

Private data is replaced. Each gives exactly the expected profiles, and loses no word without a note.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.errors import UsageError
from gpubox.interchange.importing import import_source
from gpubox.interchange.profile_draft import ImportedProfile, draft_from_arguments
from gpubox.interchange.reference_options import model_arguments
from gpubox.profiles.argv import server_argv
from gpubox.profiles.writer import profile_toml
from tests.unit.launch_words import IK, STOCK, lost_words

LAUNCHES = Path(__file__).parents[1] / "fixtures" / "launches"
POSTED = sorted((LAUNCHES / "posted").iterdir())
UNREAD = {"52-variables.ps1", "90-launchd.plist", "91-Dockerfile", "92-vllm.yml", "93-llama-cpp-python.sh"}
READ = [path for path in POSTED if path.name not in UNREAD]
SECRETS = ("hf_abcdefghijklmnop", "sk-abcdefghijklmnop", "YOUR_SECRET_HERE", "correct-horse")
everyone = pytest.mark.parametrize("path", READ, ids=lambda path: path.name)


def written(profiles: list[ImportedProfile]) -> str:
    return "\n".join(profile_toml(imported.profile, imported.profile.name) for imported in profiles)


def test_there_are_enough_of_them() -> None:
    assert len(POSTED) >= 72
    assert len(READ) >= 66


@everyone
def test_a_posted_file_gives_exactly_these_profiles(path: Path) -> None:
    assert written(import_source(str(path))) == (LAUNCHES / "expected" / f"{path.name}.toml").read_text()


@everyone
def test_no_word_of_it_is_lost_without_a_note(path: Path) -> None:
    assert lost_words(path.read_text(), path.suffix, import_source(str(path)), SECRETS) == []


@everyone
def test_no_secret_of_it_is_repeated(path: Path) -> None:
    profiles = import_source(str(path))
    text = written(profiles) + "\n".join(note for imported in profiles for note in imported.notes)
    assert not [secret for secret in SECRETS if secret in text]


@everyone
def test_its_profiles_come_back_from_their_own_command_line(path: Path) -> None:
    for imported in import_source(str(path)):
        argv = server_argv(imported.profile, model_arguments(imported.profile.model) if imported.profile.model else [])
        again = draft_from_arguments(argv, {}).finish(imported.profile.name).profile
        assert server_argv(again, model_arguments(again.model) if again.model else []) == argv


@everyone
def test_what_the_engine_refuses_is_said(path: Path) -> None:
    for imported in import_source(str(path)):
        for name in imported.profile.flags:
            option = STOCK.option(name)
            if option is None or option.removed:
                assert any(f"--{name} " in note and "refuses" in note for note in imported.notes), name


@everyone
def test_no_foreign_word_is_a_flag(path: Path) -> None:
    """A flag is llama-server's or ik_llama.cpp's; of any other a note says that it is kept, or why it is refused."""
    for imported in import_source(str(path)):
        for name in imported.profile.flags:
            assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", name)
            assert STOCK.option(name) or IK.option(name) or any(f"--{name}" in note for note in imported.notes), name


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("llama-server -m /a.gguf -c 4096 -FilePath C:\\log.txt", "-FilePath C:\\log.txt"),
        ("llama-server -m /a.gguf -c 4096 -NoNewWindow -Wait", "-NoNewWindow"),
        ("llama-server -m /a.gguf -c 4096 --Foo=1", "--Foo=1"),
        ("llama-server -m /a.gguf -c 4096 > /tmp/x 2>&1", "> /tmp/x"),
        ("llama-server -m /a.gguf -c 4096 2>&1 | tee -a x.log", "tee -a x.log"),
        ("llama-server -m /a.gguf -c 4096 |& tee -i x.log", "tee -i x.log"),
        ("llama-server -m /a.gguf -c 4096 &> x.log &", "&> x.log"),
        ("llama-server -m /a.gguf -c 4096 </dev/null", "</dev/null"),
        ("llama-server -m /a.gguf -c 4096 2> >(grep -v slot)", "grep -v slot"),
        ("& llama-server -m /a.gguf -c 4096 | Out-File -FilePath x -Append", "Out-File -FilePath x"),
        ("if ($x) { & llama-server -m /a.gguf -c 4096 | Tee-Object -FilePath x }", "Tee-Object -FilePath x"),
        ('powershell -NoExit -Command "& llama-server -m /a.gguf -c 4096"', "-NoExit"),
    ],
)
def test_what_surrounds_the_server_is_named_and_never_a_flag(text: str, left_out: str) -> None:
    (imported,) = import_source(text)

    assert imported.profile.model == "/a.gguf"
    assert dict(imported.profile.flags) == {"ctx-size": 4096}
    assert any(left_out in note for note in imported.notes), imported.notes


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_what_gpubox_does_not_read_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(UsageError) as error:
        import_source(str(LAUNCHES / "posted" / name))
    assert "\n" not in error.value.message


def test_the_accounting_finds_what_a_missing_note_would_lose() -> None:
    """Without the notes about omitted lines, words are lost."""
    unseen = []
    for path in READ:
        profiles = import_source(str(path))
        silent = [
            replace(imported, notes=tuple(note for note in imported.notes if not note.startswith("Left out: ")))
            for imported in profiles
        ]
        if silent != profiles and not lost_words(path.read_text(), path.suffix, silent, SECRETS):
            unseen.append(path.name)
    assert unseen == []
