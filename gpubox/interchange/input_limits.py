"""What a text somebody pasted may cost to read."""

from __future__ import annotations

from gpubox.errors import UsageError

MAX_INPUT_CHARS = 256 * 1024
"""Characters of a file or of a pasted text."""
_MAX_EXPANDED = 1024 * 1024


class ExpansionBudget:
    """Counts the characters that expansions produce: a variable that doubles itself in each line ends in an error."""

    def __init__(self) -> None:
        self._left = _MAX_EXPANDED

    def spend(self, count: int) -> None:
        """Raises UsageError once everything is spent."""
        self._left -= count
        if self._left < 0:
            raise UsageError("The variables of this text expand beyond all measure.", "Paste the command line itself.")
