"""Profile -> MemoryPlan: reads the header, the flags and the devices, and adds the compute buffers of a dry run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpubox.config import Config
from gpubox.engines.find import Engine, choose_engine
from gpubox.engines.query import read_capabilities
from gpubox.errors import GpuboxError
from gpubox.hardware.gpu import DriverReading
from gpubox.hardware.nvml import read_driver
from gpubox.models.header_cache import read_model
from gpubox.models.resolve import profile_model
from gpubox.paths import Paths
from gpubox.planner.assembly import assemble
from gpubox.planner.compute import ComputeBuffers, MeasuredRun, Measurement, Structure, estimate, predict
from gpubox.planner.devices import Asking, DeviceMemoryNow, devices_now, learn_addresses, list_engine_devices
from gpubox.planner.dry_run import DryRun, can_dry_run, dry_argv, run_dry, structure_of
from gpubox.planner.formula import FormulaParts, LoadedModel, OffloadDevice, calculate
from gpubox.planner.launch_flags import LaunchFlags, canonical_memory_flag, read_launch_flags
from gpubox.planner.measured import ASSUMED_DRIVER_BYTES, RunStore, Unaccounted, flags_of_argv, read_breakdown
from gpubox.planner.plan import DEFAULT_KEEP_FREE_BYTES, MemoryPlan
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import FlagValue, Profile, check_launched_here
from gpubox.server.instance import instance_names, observe, place_of
from gpubox.server.launch import expand_paths
from gpubox.server.state import RunningServer, load_state
from gpubox.storage import file_stamp
from gpubox.telemetry.device_memory import HOST
from gpubox.units import GIB

_READING_SECONDS = 1.0
_DRY_RUN_VALID_SECONDS = 10.0
"""So long counts what a dry run found free on a card that no driver reports."""
_LIST_SECONDS = 0.4
"""After so long the rest of a list stays unknown. Headers that were read are cached, so the next time is quicker."""
_SPILLING = ("GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_VK_PREFER_HOST_MEMORY", "GGML_VK_ALLOW_SYSMEM_FALLBACK")
"""Variables with which a card takes more than it has."""
DRY_RUN_FREE_BYTES = GIB
"""A dry run opens a driver context beside the running server: so much must be free on each card, and the recurrent
states, which it really allocates."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the plans of one profile have in common: many candidates are calculated from one."""

    profile: Profile
    engine: Engine
    model_path: Path
    model_argv: tuple[str, ...]
    model: LoadedModel
    env: Mapping[str, str]
    devices: tuple[DeviceMemoryNow, ...]
    """The host last."""
    doubts: tuple[str, ...]
    """Why the devices are not certain."""
    busy: bool
    """Whether an RPC server that the profile needs has another client now."""


class Planner:
    """Predicts the memory of launches. Blocks; safe to use from several threads."""

    def __init__(self, paths: Paths, config: Config) -> None:
        self._paths, self._config = paths, config
        self._models: dict[tuple[Path, tuple[int, ...]], LoadedModel] = {}
        self._store = RunStore(paths)
        self._failures: dict[Structure, str] = {}
        """Why a dry run failed. It is not tried again."""
        self._unaccounted = Unaccounted(paths)
        self._reading: tuple[float, DriverReading] | None = None
        self._dry_runs = 0
        self._free_in_dry_run: dict[str, tuple[float, int]] = {}
        """When a dry run found how much free on a device, by its key."""

    def plan(
        self, profile: Profile, *, replaces: Sequence[RunningServer] = (),
        keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES, ask_devices: Asking = "always", may_dry_run: bool = False,
    ) -> MemoryPlan:  # fmt: skip
        """As ``prepare``, without the situation. Never raises: a problem is part of the plan."""
        options: dict[str, Any] = {"keep_free_bytes": keep_free_bytes, "ask_devices": ask_devices}
        try:
            return self.prepare(profile, replaces=replaces, may_dry_run=may_dry_run, **options)[1]
        except GpuboxError as error:
            return no_plan(profile.name, error, keep_free_bytes)

    def prepare(
        self, profile: Profile, *, replaces: Sequence[RunningServer] = (),
        keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES, ask_devices: Asking = "always", may_dry_run: bool = False,
    ) -> tuple[Situation, MemoryPlan]:  # fmt: skip
        """The situation of ``profile`` and its plan. Raises GpuboxError if engine or model cannot be used.

        ``replaces``: the servers that stop first; what they hold counts as free. ``ask_devices``, ``may_dry_run``:
        whether the engine may be run for that; both are cached. What a dry run says of the devices counts at once.
        """
        # One reading for both: after a dry run the driver still counts what it held (520 MiB on an H200).
        reading, dry_runs = self._driver(), self._dry_runs
        situation = self.situation(profile, replaces=replaces, ask_devices=ask_devices, reading=reading)
        plan = self.plan_in(situation, {}, keep_free_bytes=keep_free_bytes, may_dry_run=may_dry_run)
        if self._dry_runs > dry_runs and any(device.kind == "gpu" for device in situation.devices):
            situation = self.situation(profile, replaces=replaces, ask_devices=ask_devices, reading=reading)
            plan = self.plan_in(situation, {}, keep_free_bytes=keep_free_bytes)
        return situation, plan

    def situation(
        self, profile: Profile, *, replaces: Sequence[RunningServer] = (), ask_devices: Asking = "always",
        reading: DriverReading | None = None,
    ) -> Situation:  # fmt: skip
        """Reads engine, model and devices. Raises GpuboxError if engine or model cannot be used."""
        check_launched_here(profile)
        engine = choose_engine(self._config, profile.engine)
        profile = expand_paths(profile, self._paths, self._config)
        path, argv = self._model_path(profile)
        env = {**os.environ, **profile.env}
        rpc = _read_flags(profile.flags, env).rpc
        busy = bool(rpc) and self._uses_rpc(rpc, replaces)
        reading, logs = reading or self._driver(), self._logs_of(replaces)
        for running, log in logs:
            if self._unaccounted.is_new(running):
                self._learn(running, log, reading)
        listed = list_engine_devices(engine, rpc, profile.env, self._paths, busy_rpc=busy, ask=ask_devices)
        beyond = self._unaccounted.of_devices(profile.name, engine.name, [device.key for device in listed.listed])
        devices = tuple(
            self._with_driver(device, engine.name, beyond.get(device.key), [log for _, log in logs])
            for device in devices_now(listed, replaces, [log for _, log in logs], reading)
        )
        doubts = [listed.problem] if listed.problem else []
        if any(env.get(name, "0") not in ("", "0") for name in _SPILLING):
            doubts.append("memory that moves from the card to RAM")
        return Situation(profile, engine, path, argv, self.model(path), env, devices, tuple(doubts), busy)

    def _with_driver(
        self, device: DeviceMemoryNow, engine: str, beyond: int | None, logs: Sequence[Path]
    ) -> DeviceMemoryNow:
        """A device with what the driver's own context takes, which the engine's own reading has left out already."""
        if device.kind != "gpu":
            return device
        at, free = self._free_in_dry_run.get(device.key, (float("-inf"), 0))
        recent = time.monotonic() - at < _DRY_RUN_VALID_SECONDS
        if device.free_now_bytes is None:
            if device.free_bytes is None and recent:
                free += sum(read_breakdown(log).total_of(device.key) for log in logs)
                return replace(device, free_bytes=free)
            return device
        if beyond is None and recent:
            beyond = min(max(0, device.free_now_bytes - free), GIB)  # more is another program's
            self._unaccounted.learn_driver(engine, {device.key: beyond})
        if beyond is None:
            return replace(device, unaccounted_bytes=ASSUMED_DRIVER_BYTES, driver_assumed=True)
        return replace(device, unaccounted_bytes=beyond)

    def _model_path(self, profile: Profile) -> tuple[Path, tuple[str, ...]]:
        source = profile_model(profile, self._paths, self._config)
        if source.path is None:
            raise GpuboxError("the model is not on this machine")
        return source.path, source.argv

    def plan_in(
        self, situation: Situation, overrides: Mapping[str, FlagValue | None], *,
        keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES, may_dry_run: bool = False,
    ) -> MemoryPlan:  # fmt: skip
        """The plan of one candidate: a situation with ``overrides`` of its flags (None removes one).

        Never raises. Without a dry run it reads no file that it has read before.
        """
        profile = replace(situation.profile, flags=changed_flags(situation.profile.flags, overrides))
        try:
            flags = _read_flags(profile.flags, situation.env)
            parts = self._calculate(situation, flags)
        except GpuboxError as error:
            return no_plan(profile.name, error, keep_free_bytes)
        structure = self._structure(situation, profile, flags, parts)
        buffers, run = self._measured(structure)
        problem = ""
        if may_dry_run and run is None and (buffers is None or buffers.certainty == "near" or parts.doubts):
            problem = self._dry_run(situation, profile, flags, parts, structure)
            buffers, run = self._measured(structure)
        if buffers is None:
            cards = [device.key for device in situation.devices if device.key != HOST and parts.weights.get(device.key)]
            flash = flags.flash_attention != "off"
            buffers = estimate(situation.model.file, parts.ubatch, parts.cells.context, cards, HOST, flash=flash)
        return assemble(
            profile.name, situation.devices, flags, parts, buffers, run,
            keep_free_bytes=keep_free_bytes, doubts=situation.doubts, problem=problem,
        )  # fmt: skip

    def model(self, path: Path) -> LoadedModel:
        """The prepared header of a model file. Raises GpuboxError if it cannot be read."""
        key = (path, file_stamp(path))
        if key not in self._models:
            self._models[key] = LoadedModel.of(read_model(path, self._paths))
        return self._models[key]

    def _driver(self) -> DriverReading:
        """The cards now; for many plans at once they are read once."""
        if self._reading is None or time.monotonic() - self._reading[0] > _READING_SECONDS:
            self._reading = (time.monotonic(), read_driver())
        return self._reading[1]

    def _calculate(self, situation: Situation, flags: LaunchFlags) -> FormulaParts:
        draft = self.model(Path(flags.draft.model)) if flags.draft and flags.draft.model else None
        devices = [OffloadDevice(device.key, device.free_bytes) for device in situation.devices if device.key != HOST]
        try:
            tensors = self.model(Path(flags.encoder)).file.tensors if flags.encoder else ()
            encoder = sum(tensor.size_bytes for tensor in tensors)
            parts = calculate(situation.model, draft, flags, devices, encoder)
        except ValueError as error:
            raise GpuboxError(str(error)) from None
        if any(file.is_file() for file in _engine_settings(situation.env)):
            return replace(parts, doubts=(*parts.doubts, "llama.cpp's own config.ini"))
        return parts

    def _structure(self, situation: Situation, profile: Profile, flags: LaunchFlags, parts: FormulaParts) -> Structure:
        files = [*situation.model.file.shards]
        if flags.draft and flags.draft.model:
            files.append(Path(flags.draft.model))
        devices = [device.key for device in situation.devices]
        return structure_of(profile, flags, parts, situation.engine, files, devices, situation.env)

    def _measured(self, structure: Structure) -> tuple[ComputeBuffers | None, MeasuredRun | None]:
        """The compute buffers, and the run of exactly this structure if there is one."""
        runs = self._store.runs(structure.family)
        exact = next((run for run in reversed(runs) if run.structure == structure), None)
        return predict(structure, runs), exact

    def _dry_run(
        self, situation: Situation, profile: Profile, flags: LaunchFlags, parts: FormulaParts, structure: Structure
    ) -> str:
        """Measures a structure and keeps the result. Returns why it could not; empty if it did."""
        if structure in self._failures:
            return self._failures[structure]
        if why := _why_no_dry_run(situation, parts):
            return why  # not kept: it may be possible later
        try:
            capabilities = read_capabilities(situation.engine, self._paths)
            if not can_dry_run(capabilities):
                raise GpuboxError(f"the engine {situation.engine.name} cannot do a dry run")
            argv = dry_argv(profile, flags, parts, situation.model_argv, capabilities)
            run = run_dry(situation.engine, argv, situation.profile.env, draft=flags.draft is not None)
        except GpuboxError as error:
            self._failures[structure] = error.message.rstrip(".")
            return self._failures[structure]
        self._store.add(MeasuredRun(structure, run.main, run.draft))
        self._dry_runs += 1
        self._learn_devices(situation, flags, parts, run)
        return ""

    def _learn_devices(self, situation: Situation, flags: LaunchFlags, parts: FormulaParts, run: DryRun) -> None:
        """Keeps what a dry run says of the devices: addresses, and what is free beside the driver's context."""
        learn_addresses(situation.engine, flags.rpc, situation.profile.env, self._paths, run.seen)
        now = time.monotonic()
        self._free_in_dry_run |= {key: (now, size + parts.recurrent.get(key, 0)) for key, size in run.free.items()}

    def _learn(self, running: RunningServer, log: Path, reading: DriverReading) -> None:
        """Keeps what a real run took: its own compute buffers are truer than those of a dry run."""
        breakdown = read_breakdown(log)
        self._unaccounted.learn(running, breakdown, reading)
        launch = running.launch
        compute = {key: size for key in breakdown.keys if (size := breakdown.bytes_of("compute", key))}
        if not compute or launch.model_path is None:
            return
        try:
            engine = choose_engine(self._config, launch.engine)
            flags = flags_of_argv(launch.argv[len(engine.command) :], read_capabilities(engine, self._paths))
            profile = Profile(launch.profile, launch.model_path, engine=launch.engine, env=launch.env, flags=flags)
            values = _read_flags(flags, {**os.environ, **launch.env})
            learn_addresses(engine, values.rpc, launch.env, self._paths, breakdown.devices.values())
            situation = self.situation(profile, ask_devices="never")
            parts = self._calculate(situation, values)
            structure = self._structure(situation, profile, values, parts)
        except GpuboxError:
            return
        if situation.doubts or parts.doubts:
            return  # its weights and caches would be taken for proved
        draft = {key: size for key in breakdown.keys if (size := breakdown.bytes_of("compute", key, draft=True))}
        context = {key: parts.kv.get(key, 0) + parts.recurrent.get(key, 0) for key in {*parts.kv, *parts.recurrent}}
        main = Measurement(parts.weights, context, compute)
        self._store.add(MeasuredRun(structure, main, Measurement(parts.draft_weights, parts.draft_kv, draft)))

    def _logs_of(self, servers: Sequence[RunningServer]) -> list[tuple[RunningServer, Path]]:
        """Each server that is on record, with its log."""
        names = instance_names(self._paths) if servers else []
        recorded = {running.launch_id: name for name in names
                    if (running := load_state(self._paths.instance_state(name)).running)}  # fmt: skip
        return [(server, self._paths.instance_log(name))
                for server in servers if (name := recorded.get(server.launch_id))]  # fmt: skip

    def _uses_rpc(self, endpoints: Sequence[str], replaces: Sequence[RunningServer]) -> bool:
        """Whether a running server of gpubox is a client of one of these RPC servers."""
        running = [*replaces, *(observe(self._paths, name).running for name in instance_names(self._paths))]
        words = {word for server in running if server for word in server.launch.argv}
        return any(endpoint in word.split(",") for endpoint in endpoints for word in words)


def plan_profiles(profiles: Iterable[Profile], paths: Paths, config: Config) -> dict[str, MemoryPlan]:
    """The plans by profile, without the unknown ones; from formulas and earlier measurements alone, so that
    a list is quick. An engine is run once, for its devices. Never raises.
    """
    planner = Planner(paths, config)
    plans: dict[str, MemoryPlan] = {}
    deadline = time.monotonic() + _LIST_SECONDS
    try:
        running = {name: observe(paths, name).running for name in instance_names(paths)}
        for profile in profiles:
            if time.monotonic() > deadline:
                break
            replaces = running.get(place_of(profile, running.get(profile.name)))
            plan = planner.plan(profile, replaces=(replaces,) if replaces else (), ask_devices="once")
            if judge(plan).fit != "unknown":
                plans[profile.name] = plan
    except Exception:  # a list without verdicts is better than none
        return plans
    return plans


def no_plan(name: str, error: GpuboxError, keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES) -> MemoryPlan:
    """In place of a plan: why there is none."""
    return MemoryPlan(name, (), "formula", keep_free_bytes, problem=error.message.rstrip("."))


def _engine_settings(env: Mapping[str, str]) -> tuple[Path, Path]:
    """Files with default flags that llama-server reads by itself (common/arg.cpp, build 11434)."""
    home = env.get("XDG_CONFIG_HOME") or f"{env.get('HOME', '')}/.config"
    return Path("/etc/llama.cpp/config.ini"), Path(home, "llama.cpp", "config.ini")


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


def read_flags(situation: Situation, overrides: Mapping[str, FlagValue | None]) -> LaunchFlags:
    """The memory flags of a candidate. Raises GpuboxError for a wrong value."""
    return _read_flags(changed_flags(situation.profile.flags, overrides), situation.env)


def _read_flags(flags: Mapping[str, FlagValue], env: Mapping[str, str]) -> LaunchFlags:
    try:
        return read_launch_flags(flags, env)
    except ValueError as error:
        raise GpuboxError(str(error)) from None


def _why_no_dry_run(situation: Situation, parts: FormulaParts) -> str:
    """Why a dry run now is impossible, would disturb the running server, or wait for ever; empty if nothing speaks
    against it."""
    if situation.busy:
        return "the running server uses the RPC server that a dry run needs"
    for device in situation.devices:
        now = device.free_now_bytes
        needed = DRY_RUN_FREE_BYTES + parts.recurrent.get(device.key, 0)
        if device.kind == "gpu" and now is not None and now < needed:
            return f"a dry run needs 1 GiB free on {device.key}"
    return ""
