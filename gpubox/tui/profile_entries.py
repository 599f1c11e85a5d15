"""The rows of the profile list: profiles, files that are no profile yet, and files that are broken. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpubox.errors import GpuboxError

if TYPE_CHECKING:
    from gpubox.profiles.loader import ProfileCatalog
    from gpubox.profiles.profile import Profile
    from gpubox.server.engine_compatibility import EngineCompatibility

UNASKED = "its engine has not been asked yet"


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """One row. ``id`` is unique in the list and stays the same for the same thing."""

    id: str
    kind: Literal["profile", "broken", "model"]
    name: str
    profile: Profile | None = None
    fit: EngineCompatibility | None = None
    """``None``: not known yet."""
    error: GpuboxError | None = None
    model: Path | None = None

    @property
    def words(self) -> str:
        """What the row says beside the name."""
        if self.kind == "broken" and self.error:
            # The row has no room for the folder, and the name stands beside.
            file = re.escape(f"{self.name.removesuffix('.toml')}.toml")
            return re.sub(rf"^.*?{file}:? (is )?", "", self.error.message, count=1)
        if self.kind == "model":
            return "a model without a profile: Enter makes one"
        assert self.profile is not None
        if self.fit and self.fit.summary and not (self.fit.ok and (self.fit.model_present or self.fit.fetchable)):
            return self.fit.summary
        return self.profile.title

    @property
    def text(self) -> str:
        """What a search looks at."""
        more = f"{self.profile.title} {self.profile.description} {self.profile.model}" if self.profile else ""
        return f"{self.name} {self.words} {more} {self.model or ''}".lower()


def make_entries(
    catalog: ProfileCatalog, fits: Mapping[str, EngineCompatibility], models: Iterable[Path]
) -> tuple[ProfileEntry, ...]:
    """What is broken, the profiles in the catalog's order, and the models that no profile names."""
    rows = [ProfileEntry(f"broken:{n}", "broken", n, error=e) for n, e in sorted(catalog.broken.items())]
    rows += [
        ProfileEntry(f"profile:{p.name}", "profile", p.name, p, fits.get(p.name)) for p in catalog.profiles.values()
    ]
    rows += [ProfileEntry(f"model:{m}", "model", m.name, model=m) for m in models]
    return tuple(rows)


def filter_entries(entries: Iterable[ProfileEntry], search: str) -> tuple[ProfileEntry, ...]:
    """The rows that hold every word of ``search``: those that hold it in their name first."""
    words = search.lower().split()
    found = [entry for entry in entries if all(word in entry.text for word in words)]
    return tuple(sorted(found, key=lambda entry: not all(word in entry.name.lower() for word in words)))
