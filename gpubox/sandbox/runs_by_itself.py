"""Names of files that the owner's tools run or obey by themselves: they are shown with a reason and need a yes."""

from __future__ import annotations


def why_it_runs(path: str, link_target: str = "") -> str:
    """Why a tool of the owner would run or obey the file or folder ``path``, in words; empty: nothing does."""
    raise NotImplementedError
