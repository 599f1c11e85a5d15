"""A workspace is one folder: no path that a model or its program may try leads out of it."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from pathlib import Path

import pytest

from gpubox.agent import edits, file_tools
from gpubox.agent.tools import truncate_output
from gpubox.agent.workspace import MAX_FILE_BYTES, Workspace
from gpubox.errors import GpuboxError, UsageError
from gpubox.sandbox.steps import MAX_OPEN_LAYERS, Steps
from tests.unit.hand_layers import layer_of, layered

ON = threading.Event()
BUDGET = 8000


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("sesame")
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "sub/b.py").write_text("print('Two')\n")
    return layered(folder, tmp_path / "layers")


def refused(call: object, *arguments: object) -> str:
    with pytest.raises(GpuboxError) as error:
        call(*arguments)  # type: ignore[operator]
    return error.value.message


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt", "sub/../../outside/secret.txt", "/etc/passwd", "~/x", "~root/x", "..", "a\0b",
        "/workspace/../etc/passwd", "x" * 256, "/".join("a" * 40), "\udcff/\ud800",
    ],
)  # fmt: skip
def test_a_path_out_of_the_workspace_is_refused(work: Workspace, outside: Path, path: str) -> None:
    assert refused(file_tools.read_lines, work, path, 1, 10, BUDGET)
    assert refused(edits.plan_write, work, path, "x")
    assert refused(file_tools.list_entries, work, path, False, ON)


@pytest.mark.parametrize("path", ["a.txt", "./a.txt", ".//a.txt", "/workspace/a.txt", "{root}/a.txt"])
def test_the_ways_to_name_a_file(work: Workspace, path: str) -> None:
    assert file_tools.read_lines(work, path.format(root=work.root), 1, 10, BUDGET) == "one\ntwo\nthree"


def test_links_are_never_followed(work: Workspace, outside: Path) -> None:
    (work.root / "leaf").symlink_to(outside / "secret.txt")
    (work.root / "folder").symlink_to(outside)
    (work.root / "inner").symlink_to("a.txt")
    (work.root / "new").symlink_to(outside / "made.txt")

    assert "is a link to a.txt" in refused(file_tools.read_lines, work, "inner", 1, 10, BUDGET)
    for path in ("leaf", "folder/secret.txt", "folder"):
        assert "is a link" in refused(file_tools.read_lines, work, path, 1, 10, BUDGET)
        assert "is a link" in refused(edits.plan_write, work, path, "x")
    assert "is a link" in refused(edits.plan_write, work, "new", "x")
    assert "is a link" in refused(edits.plan_write, work, "folder/made.txt", "x")
    listed = file_tools.list_entries(work, ".", True, ON)
    assert "leaf -> " in listed
    assert "secret.txt\n" not in listed
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]


def test_a_folder_that_becomes_a_link_is_not_written_through(work: Workspace, outside: Path) -> None:
    change = edits.plan_write(work, "sub/made.txt", "x")
    (work.root / "sub").rename(work.root / "old")
    (work.root / "sub").symlink_to(outside)

    assert refused(work.write, change.names, change.after)
    assert not (outside / "made.txt").exists()


def test_a_link_that_a_program_left_in_the_layer_leads_nowhere(work: Workspace, outside: Path) -> None:
    (layer_of(work) / "sub").symlink_to(outside)
    (layer_of(work) / "a.txt").symlink_to(outside / "secret.txt")

    assert "is a link" in refused(file_tools.read_lines, work, "a.txt", 1, 10, BUDGET)
    assert "is a link" in refused(file_tools.read_lines, work, "sub/secret.txt", 1, 10, BUDGET)
    assert refused(work.write, ("sub", "secret.txt"), b"x") and refused(work.write, ("a.txt",), b"x")
    assert (outside / "secret.txt").read_text() == "sesame"


def test_only_regular_files_are_opened(work: Workspace) -> None:
    os.mkfifo(work.root / "pipe")
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(str(work.root / "sock"))
    for path in ("pipe", "sock"):
        assert "a device, a pipe or a socket" in refused(file_tools.read_lines, work, path, 1, 10, BUDGET)
        assert "a device, a pipe or a socket" in refused(edits.plan_write, work, path, "x")
    assert "is a folder" in refused(file_tools.read_lines, work, "sub", 1, 10, BUDGET)


def test_a_device_is_never_opened(tmp_path: Path) -> None:
    device = Workspace(Path("/dev"), any_folder=True)

    assert "a device" in refused(file_tools.read_lines, device, "zero", 1, 10, BUDGET)


def test_large_and_binary_files_are_refused(work: Workspace) -> None:
    with (work.root / "huge").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (work.root / "image").write_bytes(b"\x89PNG\0\0")

    assert "too large" in refused(file_tools.read_lines, work, "huge", 1, 10, BUDGET)
    assert "is not text" in refused(file_tools.read_lines, work, "image", 1, 10, BUDGET)
    assert "larger than" in refused(edits.plan_write, work, "new", "x" * (MAX_FILE_BYTES + 1))


@pytest.mark.parametrize("which", ["/", "/etc", "/usr/share", "/home", "/var", "home", "own", "above own", "in own"])
def test_a_folder_that_is_too_wide_needs_permission(which: str, own_home: Path, tmp_path: Path) -> None:
    own = tmp_path / "config/gpubox"
    (own / "profiles").mkdir(parents=True)
    named = {"home": own_home, "own": own, "above own": own.parent, "in own": own / "profiles"}
    folder = named.get(which, Path(which))

    with pytest.raises(UsageError) as error:
        Workspace(folder, own_folders=(own,))
    assert "--any-workdir" in error.value.hint
    assert Workspace(folder, own_folders=(own,), any_folder=True).root == folder.resolve()


def test_the_folder_above_the_home_and_a_link_to_it_are_too_wide(own_home: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(own_home)

    for folder in (own_home.parent, tmp_path / "way"):
        with pytest.raises(UsageError):
            Workspace(folder)
    with pytest.raises(UsageError, match="not a folder"):
        Workspace(Path(__file__))
    with pytest.raises(UsageError, match="cannot be used"):
        Workspace(tmp_path / "nowhere")


def test_a_workspace_that_was_replaced_is_not_touched(work: Workspace, outside: Path) -> None:
    work.root.rename(work.root.parent / "moved")
    assert "gone" in refused(file_tools.list_entries, work, ".", False, ON)
    outside.rename(work.root)
    assert "replaced by another folder" in refused(file_tools.list_entries, work, ".", False, ON)


def test_listing(work: Workspace) -> None:
    (work.root / "node_modules/x").mkdir(parents=True)
    (work.root / "odd\x1b[31m").write_text("")

    assert file_tools.list_entries(work, ".", False, ON).splitlines() == [
        "a.txt  14 bytes", "node_modules/", "odd\ufffd[31m  0 bytes", "sub/",
    ]  # fmt: skip
    deep = file_tools.list_entries(work, ".", True, ON)
    assert "sub/b.py  13 bytes" in deep
    assert deep.endswith("(skipped: node_modules)")
    assert file_tools.list_entries(work, "node_modules/x", False, ON) == "(empty)"


def test_a_long_listing_is_truncated(work: Workspace) -> None:
    for number in range(file_tools.MAX_ENTRIES + 5):
        (work.root / f"sub/{number}").touch()

    listed = file_tools.list_entries(work, ".", True, ON).splitlines()

    assert len(listed) == file_tools.MAX_ENTRIES + 1
    assert "only the first" in listed[-1]


def test_deep_folders_in_forty_layers_need_few_descriptors(work: Workspace, tmp_path: Path) -> None:
    deep = ("deep",) * 12
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.closing(Steps(work.root, tmp_path / "steps")) as work.steps:
        for number in range(MAX_OPEN_LAYERS):
            work.steps.begin_turn(f"t{number}")
            work.write((*deep, f"f{number}"), b"x\n")
            work.steps.end_turn()
        files = len(list(Path("/proc/self/fd").iterdir())) + 4 * MAX_OPEN_LAYERS
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, limit[1]))
        try:
            listed = file_tools.list_entries(work, ".", True, ON)
            assert "skipped" not in listed
            assert listed.count("/f") == MAX_OPEN_LAYERS
            assert work.read((*deep, "f0")) == b"x\n"
            work.write((*deep, "f0"), b"y\n")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_reading_some_lines(work: Workspace) -> None:
    assert file_tools.read_lines(work, "a.txt", 2, 1, BUDGET) == "two\n(lines 2 to 2 of 3; the next is line 3)"
    assert "has only 3 lines" in refused(file_tools.read_lines, work, "a.txt", 4, 1, BUDGET)
    (work.root / "long").write_text("x" * 1_000_000 + "\nend\n")
    read = file_tools.read_lines(work, "long", 1, 10, BUDGET)
    assert len(read) < BUDGET
    assert "1000000 characters" in read
    assert "(lines 1 to 1 of 2; the next is line 2)" in read


@pytest.mark.parametrize(("width", "budget"), [
    (0, 8000), (1, 8000), (30, 8000), (79, 8000), (400, 8000), (7_000, 8000), (9_000, 8000), (30, 2048), (3_000, 512),
])  # fmt: skip
@pytest.mark.parametrize("numbers", [False, True])
def test_reading_on_from_the_line_that_is_named_loses_nothing(
    work: Workspace, width: int, budget: int, numbers: bool
) -> None:
    written = [f"{number}:".ljust(width, "x") for number in range(1, 1_000 if width < 100 else 60)]
    (work.root / "long").write_text("\n".join(written))
    read: list[str] = []
    first = 1
    while first:
        output = file_tools.read_lines(work, "long", first, 0, budget, numbers=numbers)
        text, dropped = truncate_output(output, budget)
        assert not dropped, "the middle would be lost"
        *lines, note = text.split("\n") if "\n(lines " in text else [*text.split("\n"), ""]
        read += [line.partition(": ")[2] if numbers else line for line in lines]
        assert not note or note.startswith(f"(lines {first} to {len(read)} of {len(written)}")
        first = int(note.rpartition("next is line ")[2].rstrip(")")) if "next is line" in note else 0
    for shown, line in zip(read, written, strict=True):
        begin, cut, _ = shown.partition(" … (")
        assert line.startswith(begin) if cut else shown == line


def test_lines_are_counted_as_the_owner_s_tools_do(work: Workspace) -> None:
    (work.root / "odd").write_bytes(b"a\x0cb\xe2\x80\xa8c\r\nd\x85\n")
    assert file_tools.read_lines(work, "odd", 2, 1, BUDGET).endswith("(lines 2 to 2 of 2)")
