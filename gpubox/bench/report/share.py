"""One text for what the owner wants to share, in one of four forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpubox.bench.report import export
from gpubox.bench.report.build import compared, ranked, report_values, told
from gpubox.bench.store import find_run
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.model import Profile

FORMS = ("md", "json", "csv", "svg")


def share(paths: Paths, profile_of: Callable[[str], Profile], what: Sequence[str], form: str) -> str:
    """``what``: a run; ``compare`` and one or two; ``leaderboard`` and perhaps a kind. Raises GpuboxError."""
    shapes: dict[str, Callable[[], str]]
    value: Callable[[], dict[str, Any]]
    if what[0] == "compare":
        if len(what) not in (2, 3):
            raise UsageError("compare takes two runs.", "gpubox bench export compare A B --md")
        pair = compared(find_run(paths, what[1]), find_run(paths, what[2] if len(what) > 2 else "last"))
        shapes = {
            "md": lambda: export.comparison_markdown(pair),
            "csv": lambda: export.comparison_csv(pair),
            "svg": lambda: export.comparison_svg(pair),
        }
        value = lambda: {"comparison": export.values(pair)}  # noqa: E731
    elif what[0] == "leaderboard":
        if len(what) > 2:
            raise UsageError("leaderboard takes at most one kind.")
        found = ranked(paths, what[1] if len(what) > 1 else "")
        shapes = {
            "md": lambda: export.boards_markdown(found),
            "csv": lambda: export.boards_csv(found),
            "svg": lambda: export.boards_svg(found),
        }
        value = lambda: {"boards": export.values(found)}  # noqa: E731
    elif len(what) > 1:
        raise UsageError("One run at a time.", "`gpubox bench export compare A B` sets two side by side.")
    else:
        one = told(find_run(paths, what[0]), profile_of)
        shapes = {
            "md": lambda: export.report_markdown(one.info, one.report, one.beside),
            "csv": lambda: export.report_csv(one.info, one.report),
            "svg": lambda: export.report_svg(one.info, one.report),
        }
        value = lambda: report_values(one)  # noqa: E731
    return export.json_text(value()) if form == "json" else shapes[form]()


def write(text: str, path: Path) -> None:
    """Puts it in a file. Raises GpuboxError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None
