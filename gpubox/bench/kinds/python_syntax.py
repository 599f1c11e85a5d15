"""Whether a text is a Python program."""

from __future__ import annotations

import ast
import warnings


def parse_python(code: str) -> ast.Module | None:
    """The tree of a Python program; ``None`` where it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
