"""``gpubox engines``."""

from __future__ import annotations

import click

from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.engines.capabilities import display_version
from gpubox.engines.find import INSTALL_EMBEDDED, find_engines
from gpubox.engines.query import list_devices, read_capabilities
from gpubox.errors import ExitCode, GpuboxError


@click.command("engines")
@json_option
@click.pass_obj
def command(context: Context, as_json: bool) -> int:
    """List llama-server binaries and the embedded engine, with builds and devices."""
    values = []
    for engine in find_engines(context.config):
        entry: dict[str, object] = {"name": engine.name, "kind": engine.kind, "path": str(engine.path)}
        try:
            capabilities = read_capabilities(engine, context.paths)
            entry |= {"version": capabilities.version, "options": len(capabilities.options)}
            entry |= {"devices": list_devices(engine), "problem": None}
        except GpuboxError as error:
            entry |= {"version": None, "options": None, "devices": None, "problem": str(error)}
        values.append(entry)
    if as_json:
        output.emit_json({"engines": values})
    elif not values:
        output.emit(f"There is no engine. {INSTALL_EMBEDDED}, put llama-server on PATH, or name it in config.toml.")
    else:
        for entry in values:
            _print(entry)
    return ExitCode.OK if any(entry["problem"] is None for entry in values) else ExitCode.FAILED


def _print(entry: dict[str, object]) -> None:
    if entry["problem"]:
        output.emit(f"✗ {entry['name']}  {entry['path']}")
        output.emit(f"    {entry['problem']}")
        return
    output.emit(
        f"✓ {entry['name']}  {display_version(str(entry['version']))}  {entry['options']} options  {entry['path']}"
    )
    devices = entry["devices"]
    for name in devices if isinstance(devices, list) and devices else ["no GPU device: this build computes on the CPU"]:
        output.emit(f"    {name}")
