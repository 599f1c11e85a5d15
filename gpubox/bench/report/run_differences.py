"""What was not the same between two runs: their protocols, engines, models, flags, machines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpubox.bench.model import Provenance, RunInfo

_NOT_TOLD = ("--port", "--model", "-m", "--log-file", "--alias", "--host", "--api-key", "--hf-token", "-hft")


def run_differences(first: RunInfo, second: RunInfo) -> Iterator[str]:
    """A sentence for each."""
    if first.plan.options != second.plan.options:
        names = sorted(
            name
            for name in {*first.plan.options, *second.plan.options}
            if first.plan.options.get(name) != second.plan.options.get(name)
        )
        yield f"The protocols differ: {', '.join(names)}."
    pairs = list(zip(first.provenance.values(), second.provenance.values(), strict=False))
    for one, two in pairs:
        mark = f"{one.target} and {two.target}: " if len(pairs) > 1 and one.target != two.target else ""
        mark = mark or (f"{one.target}: " if len(pairs) > 1 else "")
        yield from (mark + words for words in _setups(one, two))
    if first.machine and second.machine:
        for what in ("driver", "gpus", "gpu_processes", "cpu", "ram_bytes"):
            if getattr(first.machine, what) != getattr(second.machine, what):
                yield f"The machines differ: {what.replace('_', ' ')}."
    for info in (first, second):
        if info.flags:
            yield f"{info.id} is flagged: {', '.join(dict.fromkeys(flag.kind for flag in info.flags))}."


def _setups(one: Provenance, two: Provenance) -> Iterator[str]:
    known = one.model_sha256 and two.model_sha256
    if one.model_sha256 != two.model_sha256 or (not known and one.model_path != two.model_path):
        yield f"Another model file: {_name(one.model_path)} and {_name(two.model_path)}."
    if (one.dialect, one.engine_version, one.engine_sha256) != (two.dialect, two.engine_version, two.engine_sha256):
        names = [found.engine_version or found.dialect or "—" for found in (one, two)]
        yield f"Another engine: {names[0]} and {names[1]}."
    ours, theirs = _flags(one.argv), _flags(two.argv)
    changed = [
        f"{name} {ours.get(name, 'not given')} → {theirs.get(name, 'not given')}"
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name) and name not in _NOT_TOLD
    ]
    if changed:
        yield f"Other flags: {'; '.join(changed)}."


def _flags(argv: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for word in argv[1:]:
        if word.startswith("-") and not re.match(r"-\d", word):
            name = word
            found[name] = "on"
        elif name:
            found[name] = word.rpartition("/")[2] if word.startswith("/") else word
    return found


def _name(path: str) -> str:
    return path.rpartition("/")[2] or "—"
