"""Profile -> MemoryPlan: reads the header, the flags and the devices, and adds the compute buffers of a dry run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.config import Config
from gpubox.engines.find import Engine, choose_engine
from gpubox.errors import GpuboxError
from gpubox.models.header_cache import read_model
from gpubox.models.resolve import profile_model
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.planner.devices import DeviceMemoryNow, devices_now, list_engine_devices
from gpubox.planner.formula import FormulaParts, LoadedModel, OffloadDevice, calculate
from gpubox.planner.launch_flags import LaunchFlags, canonical_memory_flag, read_launch_flags
from gpubox.planner.plan import DEFAULT_KEEP_FREE_BYTES, DevicePlan, MemoryPlan
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.server.instance import instance_names, observe
from gpubox.server.launch import expand_paths
from gpubox.server.state import RunningServer
from gpubox.telemetry.memory_breakdown import HOST


@dataclass(frozen=True, slots=True)
class Situation:
    """What the plans of one profile have in common: many candidates are calculated from one."""

    profile: Profile
    engine: Engine
    model: LoadedModel
    env: Mapping[str, str]
    devices: tuple[DeviceMemoryNow, ...]
    """The host last."""
    doubts: tuple[str, ...]
    """Why the devices are not certain."""


class Planner:
    """Predicts the memory of launches. Blocks; safe to use from several threads."""

    def __init__(self, paths: Paths, config: Config) -> None:
        self._paths, self._config = paths, config
        self._models: dict[tuple[str, int, int], LoadedModel] = {}

    def plan(
        self, profile: Profile, *, overrides: Mapping[str, FlagValue | None] | None = None,
        replaces: RunningServer | None = None, keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES,
        may_run_engine: bool = False, may_dry_run: bool | None = None,
    ) -> MemoryPlan:  # fmt: skip
        """The plan of ``profile`` with ``overrides`` of its flags (None removes one).

        ``replaces``: the server that stops first; what it holds counts as free. ``may_run_engine``: whether the engine
        may be asked for its devices and for a dry run; both are cached. Never raises: a problem is part of the plan.
        """
        try:
            situation = self.situation(profile, replaces=replaces, may_run_engine=may_run_engine)
            return self.plan_in(situation, overrides or {}, keep_free_bytes=keep_free_bytes)
        except GpuboxError as error:
            return MemoryPlan(profile.name, (), "formula", keep_free_bytes, problem=error.message)

    def situation(
        self, profile: Profile, *, replaces: RunningServer | None = None, may_run_engine: bool = False
    ) -> Situation:
        """Reads engine, model and devices. Raises GpuboxError if engine or model cannot be used."""
        engine = choose_engine(self._config, profile.engine)
        profile = expand_paths(profile, self._paths, self._config)
        source = profile_model(profile, self._paths, self._config)
        if source.path is None:
            raise GpuboxError("the model is not on this machine")
        env = {**os.environ, **profile.env}
        flags = _read_flags(profile.flags, env)
        listed = list_engine_devices(
            engine, flags.rpc, profile.env, self._paths,
            busy_rpc=bool(flags.rpc) and self._uses_rpc(flags.rpc, replaces), may_ask=may_run_engine,
        )  # fmt: skip
        log = self._paths.instance_log(MAIN_INSTANCE) if replaces else None
        devices = tuple(devices_now(listed, replaces, log))
        doubts = (listed.problem,) if listed.problem else ()
        return Situation(profile, engine, self.model(source.path), env, devices, doubts)

    def plan_in(
        self, situation: Situation, overrides: Mapping[str, FlagValue | None], *,
        keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES,
    ) -> MemoryPlan:  # fmt: skip
        """As ``plan``, for one candidate of a situation. Fast: reads no file that it has read before."""
        name = situation.profile.name
        try:
            flags = _read_flags(changed_flags(situation.profile.flags, overrides), situation.env)
            parts = self.calculate(situation, flags)
        except GpuboxError as error:
            return MemoryPlan(name, (), "formula", keep_free_bytes, problem=error.message)
        devices = tuple(_device_plan(device, parts, flags) for device in situation.devices)
        doubts = tuple(dict.fromkeys((*situation.doubts, *parts.doubts)))
        return MemoryPlan(name, devices, "formula", keep_free_bytes, doubts=doubts)

    def calculate(self, situation: Situation, flags: LaunchFlags) -> FormulaParts:
        """The formula's parts. Raises GpuboxError if the flags contradict the model."""
        draft = None
        if flags.draft and flags.draft.model:
            draft = self.model(Path(flags.draft.model))
        devices = [OffloadDevice(device.key, device.free_bytes) for device in situation.devices if device.key != HOST]
        try:
            return calculate(situation.model, draft, flags, devices)
        except ValueError as error:
            raise GpuboxError(str(error)) from None

    def model(self, path: Path) -> LoadedModel:
        """The prepared header of a model file. Raises GpuboxError if it cannot be read."""
        try:
            status = path.stat()
            key = (str(path), status.st_mtime_ns, status.st_size)
        except OSError:
            key = (str(path), 0, 0)
        if key not in self._models:
            self._models[key] = LoadedModel.of(read_model(path, self._paths))
        return self._models[key]

    def _uses_rpc(self, endpoints: Sequence[str], replaces: RunningServer | None) -> bool:
        """Whether a running server of gpubox is a client of one of these RPC servers."""
        running = [replaces, *(observe(self._paths, name).running for name in instance_names(self._paths))]
        words = {word for server in running if server for word in server.launch.argv}
        return any(endpoint in word.split(",") for endpoint in endpoints for word in words)


def changed_flags(flags: Mapping[str, FlagValue], overrides: Mapping[str, FlagValue | None]) -> dict[str, FlagValue]:
    """``flags`` with ``overrides``; an override replaces every spelling of its flag. None removes it."""
    names = {canonical_memory_flag(name) or name: name for name in overrides}
    changed: dict[str, FlagValue] = {}
    for name, value in flags.items():
        given = names.get(canonical_memory_flag(name) or name)
        new = overrides[given] if given is not None else value
        if new is not None:
            changed[name] = new
    present = {canonical_memory_flag(name) or name for name in changed}
    changed |= {
        name: value
        for name, value in overrides.items()
        if value is not None and (canonical_memory_flag(name) or name) not in present
    }
    return changed


def _read_flags(flags: Mapping[str, FlagValue], env: Mapping[str, str]) -> LaunchFlags:
    try:
        return read_launch_flags(flags, env)
    except ValueError as error:
        raise GpuboxError(str(error)) from None


def _device_plan(device: DeviceMemoryNow, parts: FormulaParts, flags: LaunchFlags) -> DevicePlan:
    key = device.key
    weights = parts.weights.get(key, 0)
    return DevicePlan(
        device=key,
        kind=device.kind,
        weights_bytes=weights,
        kv_bytes=parts.kv.get(key, 0),
        recurrent_bytes=parts.recurrent.get(key, 0),
        compute_bytes=None,
        draft_bytes=parts.draft_kv.get(key, 0) + parts.draft_weights.get(key, 0),
        draft_compute_bytes=None,
        free_bytes=device.free_bytes,
        total_memory_bytes=device.total_bytes,
        other_processes=device.other_processes,
        reclaimable_bytes=weights if key == HOST and flags.mapped else 0,
    )


def at_least(plan: MemoryPlan, keep_free_bytes: int) -> MemoryPlan:
    """``plan`` judged with another reserve."""
    return replace(plan, keep_free_bytes=keep_free_bytes)
