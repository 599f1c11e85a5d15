"""One text for what the owner wants to share, in one of four forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpubox.bench.report import formats
from gpubox.bench.report.load import bundle_values, load_comparison, load_leaderboards, load_report
from gpubox.bench.run_store import find_run
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile

FORMS = ("md", "json", "csv", "svg")


def export_text(paths: Paths, profile_of: Callable[[str], Profile], what: Sequence[str], form: str) -> str:
    """``what``: a run; ``compare`` and one or two; ``leaderboard`` and perhaps a kind. Raises GpuboxError."""
    shapes: dict[str, Callable[[], str]]
    value: Callable[[], dict[str, Any]]
    if what[0] == "compare":
        if len(what) not in (2, 3):
            raise UsageError("compare takes two runs.", "gpubox bench export compare A B --md")
        pair = load_comparison(find_run(paths, what[1]), find_run(paths, what[2] if len(what) > 2 else "last"))
        shapes = {
            "md": lambda: formats.comparison_markdown(pair),
            "csv": lambda: formats.comparison_csv(pair),
            "svg": lambda: formats.comparison_svg(pair),
        }
        value = lambda: {"comparison": formats.values(pair)}  # noqa: E731
    elif what[0] == "leaderboard":
        if len(what) > 2:
            raise UsageError("leaderboard takes at most one kind.")
        found = load_leaderboards(paths, what[1] if len(what) > 1 else "")
        shapes = {
            "md": lambda: formats.leaderboards_markdown(found),
            "csv": lambda: formats.leaderboards_csv(found),
            "svg": lambda: formats.leaderboards_svg(found),
        }
        value = lambda: {"boards": formats.values(found)}  # noqa: E731
    elif len(what) > 1:
        raise UsageError("One run at a time.", "`gpubox bench export compare A B` sets two side by side.")
    else:
        one = load_report(find_run(paths, what[0]), profile_of)
        shapes = {
            "md": lambda: formats.report_markdown(one.info, one.report, one.beside),
            "csv": lambda: formats.report_csv(one.info, one.report),
            "svg": lambda: formats.report_svg(one.info, one.report),
        }
        value = lambda: bundle_values(one)  # noqa: E731
    return formats.json_text(value()) if form == "json" else shapes[form]()


def write_export(text: str, path: Path) -> None:
    """Puts it in a file. Raises GpuboxError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None
