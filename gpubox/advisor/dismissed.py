"""The advice that the owner dismissed for good: a file with the rules of each profile, changed under a lock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.storage import held_lock, read_bytes, read_json, write_atomically

_SCHEMA = 1
_FILE_BYTES = 1 << 20


class Dismissals:
    """One file for all profiles. A damaged one counts as empty, and is kept beside the new one."""

    def __init__(self, paths: Paths) -> None:
        self._file = paths.dismissed_advice

    def of(self, profile: str) -> frozenset[str]:
        """The dismissed rules of a profile. Never raises."""
        return frozenset(self._read().get(profile, ()))

    def dismiss(self, profile: str, rule: str) -> None:
        """Dismisses the advice of a rule for a profile. Raises GpuboxError if it cannot be written."""
        self._change(profile, rule, dismiss=True)

    def restore(self, profile: str, rule: str) -> None:
        """Shows the advice again. Raises GpuboxError if it cannot be written."""
        self._change(profile, rule, dismiss=False)

    def _change(self, profile: str, rule: str, *, dismiss: bool) -> None:
        try:
            with held_lock(self._file.with_suffix(".lock"), "Another gpubox is changing the dismissed advice."):
                stored = {name: set(rules) for name, rules in self._read(keep_damaged=True).items()}
                rules = stored.setdefault(profile, set())
                rules.add(rule) if dismiss else rules.discard(rule)
                kept = {name: sorted(each) for name, each in sorted(stored.items()) if each}
                data = json.dumps({"schema": _SCHEMA, "dismissed": kept}, indent=2)
                write_atomically(self._file, data.encode() + b"\n")
        except OSError as error:
            raise GpuboxError(f"{self._file} cannot be written: {error.strerror}.") from None

    def _read(self, *, keep_damaged: bool = False) -> Mapping[str, list[str]]:
        try:
            stored: Any = read_json(read_bytes(self._file, _FILE_BYTES), own=True)
            return {str(name): [str(rule) for rule in rules] for name, rules in stored["dismissed"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            if keep_damaged and self._file.is_file():
                self._file.replace(self._file.with_suffix(".damaged"))
            return {}
