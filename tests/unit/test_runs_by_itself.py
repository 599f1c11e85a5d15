"""What the owner's tools run or obey by themselves is named; source is not."""

from __future__ import annotations

import pytest

from gpubox.sandbox.runs_by_itself import is_bare_repository, why_it_runs

RUNS = (
    ".git/hooks/pre-commit sub/.git .GIT/config git~1/hooks .git./x .g\u200cit/config .git::$INDEX_ALLOCATION/x .envrc "
    ".vscode/tasks.json x.code-workspace AGENTS.md sub/claude.md .cursor/rules venv/bin/python lib/site-packages/x.pth "
    "node_modules/.bin/tsc .npmrc mod.pyc mod.cpython-311-x86_64-linux-gnu.so sitecustomize.py .env .husky/pre-push "
    "lefthook.yml flake.nix .github/copilot-instructions.md .github/workflows/ci.yml .config/x"
)
SOURCE = (
    "src/main.py conftest.py setup.py Makefile package.json .gitignore .editorconfig "
    "docs/a.md hooks/useState.ts config HEAD test.sh README.md env.py activation.py"
)


@pytest.mark.parametrize("path", RUNS.split(" "))
def test_what_runs(path: str) -> None:
    assert why_it_runs(path)


@pytest.mark.parametrize("path", SOURCE.split(" "))
def test_source(path: str) -> None:
    assert not why_it_runs(path)


@pytest.mark.parametrize(
    ("path", "target", "runs"),
    [
        ("a/b", "../c", False),
        ("a/b", "../../c", True),
        ("b", "/etc/passwd", True),
        ("x", ".git/hooks", True),
        ("a/x", "y/../../.envrc", True),
        ("a", "b.py", False),
    ],
)
def test_links(path: str, target: str, runs: bool) -> None:
    assert bool(why_it_runs(path, target)) == runs


def test_a_repository_is_known_by_its_entries() -> None:
    assert is_bare_repository(["HEAD", "objects", "refs", "x"]) and is_bare_repository(["head.", "commondir"])
    assert not is_bare_repository(["HEAD", "objects"])
