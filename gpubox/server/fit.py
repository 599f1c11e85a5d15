"""Whether each profile's engine takes it: from the engines' help alone, so that a whole list is quick."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpubox.config import Config
from gpubox.engines.capabilities import Capabilities, judge
from gpubox.engines.find import choose_engine
from gpubox.engines.probe import probe
from gpubox.errors import GpuboxError
from gpubox.models.resolve import model_of
from gpubox.paths import Paths
from gpubox.profiles.model import Profile


@dataclass(frozen=True, slots=True)
class Fit:
    """What the engine says to one profile, and whether the model is here."""

    engine: str
    ok: bool
    why: str = ""
    needs_fork: bool = False
    model_present: bool = False

    @property
    def words(self) -> str:
        """One short line; empty when there is nothing to say."""
        if not self.ok:
            return f"needs a fork: {self.why}" if self.needs_fork else self.why
        return "" if self.model_present else "model not here yet"


def engine_fits(profiles: Iterable[Profile], paths: Paths, config: Config) -> dict[str, Fit]:
    """The Fit of each profile by name. Each engine is probed at most once; nothing is raised."""
    probed: dict[str, Capabilities | GpuboxError] = {}
    fits: dict[str, Fit] = {}
    for profile in profiles:
        if profile.engine not in probed:
            probed[profile.engine] = _probe(profile.engine, paths, config)
        fits[profile.name] = _fit(profile, probed[profile.engine], _present(profile, paths, config))
    return fits


def _probe(wanted: str, paths: Paths, config: Config) -> Capabilities | GpuboxError:
    try:
        return probe(choose_engine(config, wanted), paths)
    except GpuboxError as error:
        return error


def _fit(profile: Profile, found: Capabilities | GpuboxError, present: bool) -> Fit:
    if isinstance(found, GpuboxError):
        return Fit(profile.engine, False, found.message, model_present=present)
    refusals = judge(found, profile.flags)
    if not refusals:
        return Fit(profile.engine or "default", True, model_present=present)
    fork = next((r for r in refusals if r.needs_fork), None)
    first = fork or refusals[0]
    more = f" (+{len(refusals) - 1} more)" if len(refusals) > 1 else ""
    return Fit(
        profile.engine or "default", False, f"{first.flag} {first.hint or first.why}{more}", fork is not None, present
    )


def _present(profile: Profile, paths: Paths, config: Config) -> bool:
    try:
        path = model_of(profile, paths, config).path
        return path is not None and path.exists()
    except GpuboxError:
        return False
