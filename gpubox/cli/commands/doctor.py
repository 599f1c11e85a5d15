"""``gpubox doctor``."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import click
import psutil

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.config import api_key
from gpubox.engines.built import leftovers
from gpubox.engines.capabilities import engine_words
from gpubox.engines.find import GET_ONE, NOT_FOUND, find_engines
from gpubox.engines.query import list_devices, read_capabilities
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.nvml import read_driver
from gpubox.models.find import find_models
from gpubox.notify import deliver, host_of, last_failure, make_notification
from gpubox.paths import MAIN_INSTANCE
from gpubox.sanitize import sanitize_line
from gpubox.server.instance import instance_names, observe
from gpubox.server.launch import compatibility_by_profile
from gpubox.storage import existing_folder
from gpubox.views.fields import json_value
from gpubox.views.marks import CHECKS


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was checked, the result, what to do."""

    topic: str
    state: str
    """ok | warn | bad; ``bad`` keeps gpubox from working."""
    text: str
    hint: str = ""


@click.command("doctor")
@click.option("--notify", "send", is_flag=True, help="Only send a test to the addresses under [notify].")
@json_option
@click.pass_obj
def command(context: Context, send: bool, as_json: bool) -> int:
    """Check what this machine has and what is missing.

    Nothing is changed. Exits 1 if something keeps gpubox from working.
    """
    findings = [_notifications(context, send)] if send else list(run_checks(context))
    if as_json:
        output.emit_json({"findings": json_value(findings)})
    else:
        for finding in findings:
            output.emit(f"{CHECKS[finding.state].glyph} {finding.topic:9} {finding.text}")
            if finding.hint:
                output.emit(f"            {finding.hint}")
    return ExitCode.FAILED if any(finding.state == "bad" for finding in findings) else ExitCode.OK


def run_checks(context: Context) -> Iterator[Finding]:
    """The findings about the machine, the engines, the files and the servers."""
    yield _memory()
    yield from _gpus()
    yield from _engines(context)
    yield from _profiles(context)
    yield _models(context)
    yield _key(context)
    yield _sandbox(context)
    if context.config.notify.addresses:
        yield _notifications(context)
    yield from _mcp(context)
    yield from _folders(context)
    yield from _servers(context)


def _notifications(context: Context, send: bool = False) -> Finding:
    """Who is told, and with ``send`` whether a test arrives."""
    settings = context.config.notify
    if not (hosts := ", ".join(dict.fromkeys(map(host_of, settings.addresses)))):
        return Finding("notify", "bad", "nobody is told", "Write ntfy or webhook under [notify] in config.toml.")
    if send and (problem := deliver(settings, make_notification("test", "gpubox", "This is a test."))):
        return Finding("notify", "bad", problem, "Correct [notify] in config.toml.")
    failed = "" if send else last_failure(context.paths)
    if failed:
        return Finding("notify", "warn", f"the last one failed: {failed}", "`gpubox doctor --notify` sends a test.")
    return Finding("notify", "ok", f"a test was sent to {hosts}" if send else f"{hosts}: {', '.join(settings.events)}")


def _memory() -> Finding:
    memory, cores = psutil.virtual_memory(), psutil.cpu_count(logical=False) or psutil.cpu_count()
    text = f"{units.memory(memory.total)} RAM, {units.memory(memory.available)} available, {cores} cores"
    return Finding("host", "ok", text)


def _gpus() -> Iterator[Finding]:
    driver = read_driver()
    for gpu in driver.gpus:
        used = f"{units.memory(gpu.vram_used_bytes)} of {units.memory(gpu.vram_total_bytes)} VRAM in use"
        shared = f" ({units.memory(gpu.shared_total_bytes)} of it from the RAM)" if gpu.shared_total_bytes else ""
        yield Finding("gpu", "ok", f"{gpu.index}: {gpu.name or units.UNKNOWN}, {used}{shared}")
    if driver.problem:
        yield Finding("gpu", "warn", driver.problem, "Models run on the CPU; VRAM cannot be shown.")


def _engines(context: Context) -> Iterator[Finding]:
    engines = find_engines(context.config)
    if not engines:
        yield Finding("engine", "bad", NOT_FOUND, GET_ONE)
    for engine in engines:
        try:
            capabilities, names = read_capabilities(engine, context.paths), list_devices(engine)
        except GpuboxError as error:
            yield Finding("engine", "warn", error.message, error.hint)
            continue
        devices = ", ".join(names) if names else "CPU only" if names == [] else "it does not list its devices"
        yield Finding("engine", "ok", f"{engine_words(engine, capabilities.version)}, {devices}")
    for folder in leftovers(context.paths):
        yield Finding("engine", "warn", f"a killed build left {folder}", "The next `gpubox engines build` removes it.")


def _profiles(context: Context) -> Iterator[Finding]:
    catalog = context.catalog
    checked = compatibility_by_profile(catalog.profiles.values(), context.paths, context.config)
    own = [name for name in checked if not catalog.profiles[name].shipped]
    refused = sum(not checked[name].ok for name in own)  # an example whose model or card is not here is no fault
    text = f"{len(own)} profile{'s' * (len(own) != 1)} of your own, {len(checked) - len(own)} examples"
    if refused:
        hint = "`gpubox ls --all` says why."
        yield Finding("profiles", "warn", f"{text}; the engine refuses {refused} of yours", hint)
    else:
        yield Finding("profiles", "ok", text)
    for error in catalog.broken.values():
        yield Finding("profiles", "warn", error.message, error.hint)
    for clash in catalog.clashes:
        yield Finding("profiles", "warn", clash, "Change `aliases` in one of them.")
    for lost in (each for each in catalog.profiles.values() if each.fallback not in ("", *catalog.profiles)):
        yield Finding("profiles", "warn", f"The fallback of {lost.name}, {lost.fallback}, is no profile.")


def _models(context: Context) -> Finding:
    models = find_models(context.config, context.paths)
    if models:
        return Finding("models", "ok", f"{len(models)} GGUF file{'s' * (len(models) != 1)} found")
    return Finding("models", "warn", "no GGUF files found", "Add folders to model-dirs in config.toml.")


def _key(context: Context) -> Finding:
    try:
        key = api_key(context.paths)
    except GpuboxError as error:
        return Finding("api key", "bad", error.message, error.hint)
    return Finding(
        "api key", "ok", "set" if key else "none; none is needed while only this machine can reach the server"
    )


def _sandbox(context: Context) -> Finding:
    from gpubox.sandbox.runner import probe

    confinement = asyncio.run(probe(context.config))
    if confinement.isolation is None:
        text = f"no sandbox works, so the model's programs are not run: {confinement.problem}"
        return Finding("sandbox", "warn", text, confinement.hint)
    if confinement.isolation != "bubblewrap":
        text = f"weaker: {confinement.detail} ({confinement.problem}); {confinement.weakness}"
        return Finding("sandbox", "warn", text, confinement.hint)
    return Finding("sandbox", "ok", f"{confinement.detail}; {confinement.memory}")


def _mcp(context: Context) -> Iterator[Finding]:
    if not context.config.mcp:
        return
    from gpubox.agent.mcp import list_once

    for name, tools in asyncio.run(list_once(context.config.mcp, context.paths.logs)).items():
        if isinstance(tools, GpuboxError):
            yield Finding("mcp", "warn", tools.message, tools.hint or f"Correct [mcp.{name}] in config.toml.")
        else:
            yield Finding("mcp", "ok", f"{name}: {sanitize_line(', '.join(tools)) or 'no tools'}")


def _folders(context: Context) -> Iterator[Finding]:
    paths = context.paths
    for name, folder in (("config", paths.config), ("state", paths.state), ("cache", paths.cache)):
        existing = existing_folder(folder)
        free = shutil.disk_usage(existing).free
        if os.access(existing, os.W_OK):
            yield Finding(name, "ok", f"{folder}, {units.file_size(free)} free")
        else:
            yield Finding(name, "bad", f"{folder} cannot be written", "Change its owner, or set the XDG folders.")


def _servers(context: Context) -> Iterator[Finding]:
    for instance in instance_names(context.paths) or [MAIN_INSTANCE]:
        view = observe(context.paths, instance)
        if view.running:
            launch = view.running.launch
            yield Finding("server", "ok", f"{launch.profile} runs at {launch.base_url}")
        elif view.crashed:
            yield Finding("server", "warn", view.message, "`gpubox logs` shows its last lines.")
