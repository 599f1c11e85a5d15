"""Whether each profile's engine takes it: from the engines' help alone, so that a whole list is quick."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpubox.config import Config
from gpubox.engines.capabilities import Capabilities, find_refusals
from gpubox.engines.find import choose_engine
from gpubox.engines.query import read_capabilities
from gpubox.errors import GpuboxError
from gpubox.models.resolve import profile_model
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class EngineCompatibility:
    """What the engine says to one profile, and whether the model is here."""

    engine: str
    ok: bool
    why: str = ""
    needs_fork: bool = False
    model_present: bool = False
    fetchable: bool = False
    """The model is not here, and a start downloads it."""
    missing: str = ""
    """Where the model should be and is not, in a few words; empty where it is here or fetchable."""

    @property
    def words(self) -> str:
        """One short line; empty when there is nothing to say."""
        if not self.ok:
            return f"needs a fork: {self.why}" if self.needs_fork else self.why
        if self.model_present:
            return ""
        return self.missing or f"model not here yet{', start downloads it' if self.fetchable else ''}"


def compatibility_by_profile(
    profiles: Iterable[Profile], paths: Paths, config: Config
) -> dict[str, EngineCompatibility]:
    """The Fit of each profile by name. Each engine is probed at most once; nothing is raised."""
    probed: dict[str, Capabilities | GpuboxError] = {}
    fits: dict[str, EngineCompatibility] = {}
    for profile in profiles:
        if profile.engine not in probed:
            probed[profile.engine] = _probe(profile.engine, paths, config)
        present, fetchable, missing = locate_model(profile, paths, config)
        fit = _fit(profile, probed[profile.engine], present)
        fits[profile.name] = replace(fit, fetchable=fetchable, missing=missing)
    return fits


def _probe(wanted: str, paths: Paths, config: Config) -> Capabilities | GpuboxError:
    try:
        return read_capabilities(choose_engine(config, wanted), paths)
    except GpuboxError as error:
        return error


def _fit(profile: Profile, found: Capabilities | GpuboxError, present: bool) -> EngineCompatibility:
    if isinstance(found, GpuboxError):
        return EngineCompatibility(profile.engine, False, found.message, model_present=present)
    refusals = find_refusals(found, profile.flags)
    if not refusals:
        return EngineCompatibility(profile.engine or "default", True, model_present=present)
    fork = next((r for r in refusals if r.needs_fork), None)
    first = fork or refusals[0]
    more = f" (+{len(refusals) - 1} more)" if len(refusals) > 1 else ""
    return EngineCompatibility(
        profile.engine or "default", False, f"{first.flag} {first.hint or first.why}{more}", fork is not None, present
    )


def locate_model(profile: Profile, paths: Paths, config: Config) -> tuple[bool, bool, str]:
    """Whether the profile's model is here; if not, whether a start downloads it, else what is missing."""
    try:
        source = profile_model(profile, paths, config)
        if source.path is not None and source.path.exists():
            return True, False, ""
    except GpuboxError as error:
        return False, False, error.message
    except OSError as error:
        return False, False, f"model {profile.model}: {error.strerror}"
    return False, bool(source.fetch), "" if source.fetch else f"model missing: {source.path}"
