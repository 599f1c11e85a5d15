"""Which files of a Hugging Face repository form a model, and which quant to take. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpubox.errors import GpuboxError
from gpubox.models.gguf import SHARD_NAME, shard_names
from gpubox.toml_table import closest_match

_LABEL = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|BF16|F16|F32))$", re.I)
_REFERENCE = re.compile(r"hf:([\w.-]+/[\w.-]+)(?::(.+))?")
_DRAFT = re.compile(r"(?:^|/)(?:mtp|draft|eagle3?|dflash|dspark)(?:[-_./][^/]*|/.*)\.gguf$|[-_.]draft(?=[-_.])", re.I)
DEFAULT_QUANT = "Q4_K_M"


@dataclass(frozen=True, slots=True)
class HfReference:
    """A model on Hugging Face: ``hf:user/repo[:quant]``."""

    repo: str
    quant: str
    """The label of a quant, or a file name; empty: the default quant."""

    def __str__(self) -> str:
        return f"hf:{self.repo}:{self.quant}" if self.quant else f"hf:{self.repo}"


def parse_reference(text: str) -> HfReference:
    """The parts of ``hf:user/repo[:quant]``. Raises GpuboxError."""
    match = _REFERENCE.fullmatch(text)
    if not match or ".." in match[1]:
        raise GpuboxError(f"{text!r} does not name a model on Hugging Face.", 'Write "hf:user/repo:quant".')
    return HfReference(match[1], match[2] or "")


def is_companion(name: str) -> bool:
    """Whether a file is a vision projector or an importance matrix, and not a model."""
    lower = name.rsplit("/", 1)[-1].lower()
    return is_projector(name) or "imatrix" in lower


def is_projector(name: str) -> bool:
    """Whether a file is a vision projector (``--mmproj``)."""
    return "mmproj" in name.rsplit("/", 1)[-1].lower()


def is_draft(name: str) -> bool:
    """Whether a file is a draft head or a draft model for another one, by its name or its folder.

    Repositories call them ``mtp-NAME.gguf`` or ``NAME-draft-Q8_0.gguf``, or put them into a folder ``MTP``. A model
    that contains its draft head (``NAME-MTP-Q4_K_M.gguf``) is none.
    """
    return bool(_DRAFT.search(name))


def quant_label(name: str) -> str:
    """The quant in a file name (``Q4_K_M``, ``UD-Q4_K_XL``), in capitals; empty if it has none."""
    stem = SHARD_NAME.sub("", name.rsplit("/", 1)[-1]).removesuffix(".gguf")
    match = _LABEL.search(stem)
    return match[1].upper() if match else ""


def group_shards(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """First file -> all files, for every complete model among ``names``."""
    every = set(names)
    models: dict[str, tuple[str, ...]] = {}
    for name in sorted(every):
        if not name.lower().endswith(".gguf") or is_companion(name):
            continue
        if (shard := SHARD_NAME.search(name)) and (int(shard[1]) > 1 or int(shard[2]) > len(every)):
            continue  # a name may claim 99,999 shards
        shards = shard_names(name)
        if every.issuperset(shards):
            models[name] = shards
    return models


def choose_files(reference: HfReference, names: Iterable[str]) -> tuple[str, ...]:
    """The files of the wanted quant, in order.

    The default quant is Q4_K_M, else another Q4_K, else the only model there is. Raises GpuboxError that lists the
    quants.
    """
    models = group_shards(names)
    if not models:
        raise GpuboxError(f"{reference.repo} holds no GGUF model.", "Look for a repository whose name ends in -GGUF.")
    labels = {first: quant_label(first) for first in models}
    shown = ", ".join(sorted({label or first for first, label in labels.items()}))
    if wanted := reference.quant:
        matches = [first for first in models if _matches(first, labels[first], wanted)]
        if not matches:
            near = closest_match(wanted.upper(), [label for label in labels.values() if label])
            hint = f"Did you mean {near}? " if near else ""
            raise GpuboxError(f"{reference.repo} has no {wanted!r}.", f"{hint}It has: {shown}.")
    else:
        matches = _default(labels)
        if not matches:
            raise GpuboxError(
                f"{reference.repo} has no {DEFAULT_QUANT}, so name a quant.",
                f'Write "hf:{reference.repo}:QUANT"; it has: {shown}.',
            )
    if len(matches) > 1:
        raise GpuboxError(
            f"{reference} names {len(matches)} models.",
            f'Write the file\'s name, as in "hf:{reference.repo}:{matches[0]}".',
        )
    return models[matches[0]]


def _matches(first: str, label: str, wanted: str) -> bool:
    wanted = wanted.lower()
    if wanted.endswith(".gguf"):
        return wanted in {first.lower(), first.rsplit("/", 1)[-1].lower()}
    return wanted == label.lower()


def _default(labels: dict[str, str]) -> list[str]:
    exact = [first for first, label in labels.items() if label == DEFAULT_QUANT]
    if exact:
        return exact
    near = sorted((label, first) for first, label in labels.items() if label.removeprefix("UD-").startswith("Q4_K"))
    if near:
        return [first for label, first in near if label == near[0][0]]
    return list(labels) if len(labels) == 1 else []
