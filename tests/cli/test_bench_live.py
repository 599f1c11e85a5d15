"""The progress of a run on a terminal."""

from __future__ import annotations

import pytest

from gpubox.bench.events import ItemFinished, ItemProgress, ItemStarted
from gpubox.bench.model import Item, Result
from gpubox.cli import diagnostics
from gpubox.cli.bench.run_progress import RunProgressOutput


def test_how_long_it_will_take_stays_while_the_next_item_works(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(diagnostics, "stderr_is_terminal", lambda: True)
    monkeypatch.setattr(diagnostics, "redraw", drawn.append)
    live, first, second = RunProgressOutput(), Item("a", "p"), Item("b", "p")

    live(ItemStarted(first, 1, 2))
    assert "left" not in drawn[-1]  # no item has finished yet
    live(ItemFinished(first, Result("a"), 1, 2, 21.0, "tg 50"))
    assert drawn[-1].strip() == "1/2  tg 50  about a minute left"
    live(ItemStarted(second, 2, 2))
    live(ItemProgress("b", "~109 tokens"))
    assert drawn[-1].split("  ")[1:] == ["2/2", "b", "about a minute left", "~109 tokens"]
