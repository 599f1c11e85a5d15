"""What the owner has said about his projects: whether a folder may be a workspace, and what tests it. Blocking.

And what a project says of itself: AGENTS.md, and the files from which its test command can be told.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec

from gpubox.agent.workspace import Workspace, decode_text
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.storage import DECODE_ERRORS, private_folder, read_bytes, read_json, unwritable, write_atomically

RULES = ("AGENTS.md", "CLAUDE.md")
"""The first one that is there."""
MAX_RULES_CHARACTERS = 8000
"""About 2,000 tokens."""
_TEST_FILE = re.compile(r"test_\w+\.py")
PROJECT_FILES = (
    ".git", ".hg", "pyproject.toml", "setup.py", "package.json", "Cargo.toml", "go.mod", "CMakeLists.txt", "Makefile",
    "pom.xml", "build.gradle", "composer.json", "Gemfile", *RULES,
)  # fmt: skip
"""A folder with one of them is a project: it is offered as workspace."""
_NPM_DEFAULT = "no test specified"


class Project(msgspec.Struct, frozen=True, omit_defaults=True):
    """One workspace."""

    allowed: bool | None = None
    """Whether gpubox, started in this folder, uses it as workspace; ``None``: the owner was not asked yet."""
    test_command: str = ""
    """A shell command line that the owner has confirmed; empty: none."""


def load_project(paths: Paths, root: Path) -> Project:
    """What is known of the workspace ``root``. A file that cannot be read says nothing."""
    return _load(paths).get(str(root), Project())


def save_project(paths: Paths, root: Path, project: Project) -> None:
    """Remembers it. Raises GpuboxError if the file cannot be written."""
    try:
        private_folder(paths.projects.parent)
        write_atomically(paths.projects, msgspec.json.encode({**_load(paths), str(root): project}))
    except OSError as error:
        raise unwritable(paths.projects, error) from None


def _load(paths: Paths) -> dict[str, Project]:
    try:
        return msgspec.json.decode(read_bytes(paths.projects, 2**22), type=dict[str, Project])
    except (OSError, *DECODE_ERRORS):
        return {}


def project_here(paths: Paths) -> tuple[Path | None, bool | None]:
    """The folder in which gpubox was started, and whether the owner allowed it as workspace (``None``: ask him).

    No folder: it cannot be a workspace, or nothing in it says that it is a project.
    """
    try:
        root = Workspace(Path.cwd(), own_folders=(paths.config, paths.state, paths.cache)).root
    except (GpuboxError, OSError):
        return None, None
    allowed = load_project(paths, root).allowed
    if allowed is None and not any((root / name).exists() for name in PROJECT_FILES):
        return None, None
    return root, allowed


def remember_allowed(paths: Paths, root: Path, allowed: bool) -> None:
    """Keeps the owner's answer. Raises GpuboxError."""
    save_project(paths, root, msgspec.structs.replace(load_project(paths, root), allowed=allowed))


class ProjectTests:
    """The test command of one workspace."""

    def __init__(self, paths: Paths, workspace: Workspace) -> None:
        self._paths, self._workspace = paths, workspace

    @property
    def command(self) -> str:
        """What the owner has confirmed; empty: nothing."""
        return load_project(self._paths, self._workspace.root).test_command

    def find(self) -> str:
        """The command that the project's files point to, for the owner to confirm; empty: they point to none."""
        return find_test_command(self._workspace)

    def confirm(self, command: str) -> None:
        """The owner has confirmed it; empty: there is none. Raises GpuboxError if that cannot be remembered."""
        project = load_project(self._paths, self._workspace.root)
        save_project(self._paths, self._workspace.root, msgspec.structs.replace(project, test_command=command))


def find_test_command(workspace: Workspace) -> str:
    """What the files in the root of the workspace say; empty: nothing."""
    python = _text(workspace, "pyproject.toml") + _text(workspace, "setup.cfg") + _text(workspace, "tox.ini")
    names = _names(workspace)
    tests = _python_tests(workspace, names)
    if python or names & {"setup.py", "pytest.ini", "conftest.py"} or tests:
        folder = next((name for name in (".venv", "venv") if name in names), "")
        program = f"{folder}/bin/python" if folder else "python3"
        texts = "\n".join(_text(workspace, path) for path in tests[:20])
        # as an import, or by functions that only pytest runs
        imported = re.search(r"^(import pytest|from pytest|def test_)", texts, re.M)
        wanted = "pytest" in python or names & {"pytest.ini", "conftest.py"} or imported
        hidden = _hidden_tests(workspace, tests)
        if wanted or (hidden and _has_pytest(workspace, folder)):
            return f"{program} -m pytest -q -p no:cacheprovider"
        if tests:
            alone = hidden and all("/" in path for path in tests)
            return f"{program} -m unittest{f' discover -s {hidden[0]}' if alone else ''}"
    scripts = _object(_object(_parsed(_text(workspace, "package.json"))).get("scripts"))
    if isinstance(script := scripts.get("test"), str) and _NPM_DEFAULT not in script:
        return "npm test --silent"
    if "Cargo.toml" in names:
        return "cargo test --offline"
    if "go.mod" in names:
        return "go test ./..."
    make = next((_text(workspace, name) for name in ("Makefile", "makefile", "GNUmakefile") if name in names), "")
    target = re.search(r"^(test|check)\s*:(?!=)", make, re.M)
    return f"make {target[1]}" if target else ""


def _python_tests(workspace: Workspace, names: set[str]) -> list[str]:
    """The test files in the root and in the folders of tests, which other languages have, too."""
    inner = [
        f"{folder}/{name}" for folder in ("test", "tests") if folder in names for name in _names(workspace, folder)
    ]
    return sorted(path for path in (*names, *inner) if _TEST_FILE.fullmatch(path.rpartition("/")[2]))


def _hidden_tests(workspace: Workspace, tests: list[str]) -> list[str]:
    """The folders of ``tests`` that are no packages: unittest looks into none of them by itself."""
    folders = sorted({path.partition("/")[0] for path in tests if "/" in path})
    return [folder for folder in folders if "__init__.py" not in _names(workspace, folder)]


def _has_pytest(workspace: Workspace, venv: str) -> bool:
    """Whether the Python that runs the tests can run pytest."""
    if venv:
        return "pytest" in _names(workspace, f"{venv}/bin")
    return shutil.which("pytest", path="/usr/local/bin:/usr/bin") is not None


def project_rules(workspace: Workspace) -> tuple[str, str]:
    """``(name, text)`` of the project's AGENTS.md, else CLAUDE.md, cut after a line; empty texts: there is none."""
    for name in RULES:
        text = _text(workspace, name).strip()
        if not text:
            continue
        if len(text) > MAX_RULES_CHARACTERS:
            text = text[:MAX_RULES_CHARACTERS]
            text = text[: text.rfind("\n") + 1 or None] + f"(the rest is left out: read {name})"
        return name, text
    return "", ""


def _text(workspace: Workspace, path: str) -> str:
    """Empty if there is no such file, or it is a link."""
    try:
        return decode_text(workspace.read(workspace.parts(path)))[0].encode(errors="replace").decode()
    except GpuboxError:
        return ""


def _names(workspace: Workspace, path: str = "") -> set[str]:
    try:
        with workspace.folder(workspace.parts(path)) as folder:
            return {item.name for item in folder.items()}
    except (GpuboxError, OSError):
        return set()


def _parsed(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
