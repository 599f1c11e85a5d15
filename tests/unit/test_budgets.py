"""How large the house may become. A package over its budget has its present size as limit, and shrinks from there."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGETS = {
    "leaves": 1_400, "profiles": 1_100, "hardware": 1_400, "models": 2_200, "engines": 2_200, "interchange": 3_300,
    "server": 6_000, "planner": 3_000, "telemetry": 4_200, "sandbox": 2_600, "agent": 3_900, "acp": 2_000,
    "gateway": 5_500, "bench": 14_500, "advisor": 1_400, "views": 1_800, "cli": 4_800, "tui": 12_700,
}  # fmt: skip
"""Lines of a package, comments and docstrings too. ``leaves``: the modules directly in ``gpubox/``."""
NOT_YET: dict[str, int] = {
    "leaves": 2_486, "profiles": 1_159, "models": 2_375, "engines": 2_545, "interchange": 3_907, "server": 6_631,
    "planner": 3_158, "telemetry": 4_995, "sandbox": 5_709, "agent": 7_383, "acp": 2_808, "gateway": 6_564,
    "bench": 15_661, "advisor": 1_403, "views": 2_156, "cli": 6_177, "tui": 19_150, "lines": 95_653, "code": 69_226,
    "files": 508, "tests": 76_659,
}  # fmt: skip
"""What is still over its budget -> the most that it may be until then.

The gateway grew past its budget with slots, conversations and more clients, and some packages with it. Then ``tui``,
``views`` and ``cli`` with the first minutes, explained figures, the palette, undo, a light theme, the screen of another
box and in a browser, completion and notifications; ``bench`` paid a part of that. So much must go again."""
ALL_LINES, CODE_LINES, FILES, TEST_LINES = 72_000, 55_000, 430, 52_000


def files_of(package: str) -> list[Path]:
    folder = ROOT / "gpubox"
    return sorted(folder.glob("*.py") if package == "leaves" else (folder / package).rglob("*.py"))


def lines_of(files: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def code_lines_of(files: list[Path]) -> int:
    """Lines that hold more than a comment, a docstring or nothing."""
    count = 0
    for path in files:
        lines: set[int] = set()
        before = tokenize.NEWLINE
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
                continue
            begins = before == tokenize.NEWLINE
            before = token.type
            if token.type == tokenize.NEWLINE or (token.type == tokenize.STRING and begins):
                continue
            lines.update(range(token.start[0], token.end[0] + 1))
        count += len(lines)
    return count


@pytest.mark.parametrize("package", BUDGETS)
def test_a_package_keeps_its_budget(package: str) -> None:
    assert lines_of(files_of(package)) <= NOT_YET.get(package, BUDGETS[package])


def test_the_whole_house_keeps_its_budget() -> None:
    files = sorted((ROOT / "gpubox").rglob("*.py"))
    tests = [path for path in sorted((ROOT / "tests").rglob("*.py")) if "fixtures" not in path.parts]

    sizes = {"lines": lines_of(files), "code": code_lines_of(files), "files": len(files), "tests": lines_of(tests)}
    limits = {"lines": ALL_LINES, "code": CODE_LINES, "files": FILES, "tests": TEST_LINES}

    assert {name: size for name, size in sizes.items() if size > NOT_YET.get(name, limits[name])} == {}


def test_every_package_has_a_budget() -> None:
    packages = {path.parent.name for path in (ROOT / "gpubox").glob("*/__init__.py")}

    assert packages | {"leaves"} == set(BUDGETS)
    assert set(NOT_YET) <= {*BUDGETS, "lines", "code", "files", "tests"}
