"""The rules of the house that a machine can check, beside the import layers (test_imports.py)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 500
STILL_IN_A_CIRCLE = {
    "gpubox.gateway.own_replies": {"gpubox.gateway.gateway"},
}
"""Circles through types that are left. None may be added."""
TUI_LAYERS = (
    "run web",
    "app",
    "dashboard.screen chat bench clients workshop advice",  # screens, and what the owner does on them
    "dashboard clients.client_lines",  # panes
    "operations",
    "appearance",
    "palette",
    "help_screen",
    "bridge",
    "services remote_services replay_services",
    "chat.chats bench.bench_runs clients.gateway_calls"
    " workshop.profile_files workshop.model_finder workshop.edit_session",
    "base_screen dialogs",
    "widgets",
    "messages operation_progress survival",
    "compositor remembered background actions styled_lines theme",
    "dashboard.layout",
)
"""Inside ``tui`` a file imports files of its own line or below: nothing but ``run`` knows the app's class."""
pytestmark = pytest.mark.xdist_group("structure")  # one worker parses the package
Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Every module of the package. Not at import: each worker would hold them while it runs all other tests."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "gpubox").rglob("*.py"))}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.AST, modules: set[str]) -> set[str]:
    """The modules of gpubox that ``tree`` imports, in functions and for types too."""
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            imported |= submodules or {node.module}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return imported & modules


@pytest.fixture(scope="module")
def imports(trees: Trees) -> dict[str, set[str]]:
    """Each module, and the modules of gpubox that it imports."""
    modules = {module_of(path) for path in trees}
    return {module_of(path): imported_modules(tree, modules) - {module_of(path)} for path, tree in trees.items()}


def test_a_public_class_name_is_defined_once(trees: Trees) -> None:
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_modules_do_not_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter({name: used - STILL_IN_A_CIRCLE.get(name, set()) for name, used in imports.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")


def layer_of(module: str) -> int:
    """The layer of a module of the screen: that of the longest name which is the module or a package around it."""
    names = {name: layer for layer, names in enumerate(TUI_LAYERS) for name in names.split()}
    return names[max((name for name in names if f"{module}.".startswith(f"{name}.")), key=len)]


def test_inside_the_screen_imports_point_down(imports: dict[str, set[str]]) -> None:
    tui = "gpubox.tui."
    upward = [
        f"{module} -> {used}"
        for module in imports
        for used in imports[module]
        if module.startswith(tui) and used.startswith(tui)
        and layer_of(used.removeprefix(tui)) < layer_of(module.removeprefix(tui))
    ]  # fmt: skip

    assert upward == []


def test_files_are_short_enough_to_read(trees: Trees) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in trees}

    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_no_local_is_called_found(trees: Trees) -> None:
    """The name does not say what was found. harlequin's guide for contributors names it as the one not to write."""
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "found"
    ]

    assert places == []


def test_every_supervisor_is_built_with_its_checks(trees: Trees) -> None:
    """``server`` itself only restores what ran before; everybody else asks ``planner.supervisors``."""
    built = {
        str(path.relative_to(ROOT / "gpubox"))
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Supervisor"
    }

    assert {path for path in built if not path.startswith("server/")} == {"planner/supervisors.py"}


def test_there_is_one_table_of_marks(trees: Trees) -> None:
    """Words of a verdict get their mark in ``views/marks.py`` only."""
    words = {"fits", "tight", "short", "faster", "slower"}
    places = {
        str(path.relative_to(ROOT))
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        and len(words & {key.value for key in node.keys if isinstance(key, ast.Constant)}) > 1
        and any(len(str(each.value)) == 1 for each in ast.walk(node) if isinstance(each, ast.Constant))
    }

    assert places == {"gpubox/views/marks.py"}


def test_each_file_stands_once_in_the_map_of_its_package(trees: Trees) -> None:
    """The docstring of a package has a line for each of its files; CONTRIBUTING's map is made of these lines."""
    wrong = {}
    for path, tree in trees.items():
        if path.name != "__init__.py":
            continue
        package = path.parent.relative_to(ROOT).as_posix()
        named = re.findall(r"^(?:\S+ )*(\S+\.(?:py|tcss|txt))(?=\s)", ast.get_docstring(tree) or "", re.MULTILINE)
        files = [file.name for kind in ("py", "tcss", "txt") for file in path.parent.glob(f"*.{kind}")]
        files.remove("__init__.py")
        if sorted(named) != sorted(files):
            wrong[package] = sorted(set(files) ^ set(named)) or named

    assert wrong == {}
