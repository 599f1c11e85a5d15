"""``gpubox start``, ``stop``, ``restart`` and ``switch``: what runs changes."""

from __future__ import annotations

from functools import partial

import click

from gpubox import units
from gpubox.cli import operations, output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option, yes_option
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE
from gpubox.profiles.profile import Profile
from gpubox.server.instance import find_instance, instance_names, observe, running_servers
from gpubox.server.supervisor import Supervisor, check_place_free, instance_of


@click.command("start")
@click.argument("profile")
@operations.anyway_option
@yes_option
@json_option
@click.pass_obj
def start_command(context: Context, profile: str, anyway: bool, yes: bool, as_json: bool) -> None:
    """Start PROFILE if nothing runs, and wait for its first token.

    A companion, which is a profile with companion = true, runs beside the active one.
    """
    started = context.profile(profile)
    check_place_free(started, observe(context.paths, instance_of(started, context.paths)).running)  # no download first
    _run(context, started, lambda s: s.start(started, allow_exposed=yes), as_json=as_json, anyway=anyway)


@click.command("switch")
@click.argument("profile")
@operations.waiting_options
@operations.anyway_option
@yes_option
@json_option
@click.pass_obj
def switch_command(
    context: Context, profile: str, now: bool, wait: float | None, anyway: bool, yes: bool, as_json: bool
) -> None:
    """Replace the running profile by PROFILE; restore it if PROFILE fails.

    All checks are done while the old server still answers. A profile that certainly would not fit into memory is
    refused. Ctrl-C restores the old server, too.
    """
    operations.check_waiting_options(now, wait)
    target = context.profile(profile)
    if target.companion:
        raise UsageError(f"{profile} runs beside the active profile.", f"`gpubox start {profile}` starts it.")
    work = partial(Supervisor.switch, profile=target, stop_now=now, allow_exposed=yes, wait=wait)
    _run(context, target, work, as_json=as_json, anyway=anyway)


@click.command("restart")
@click.argument("profile", required=False)
@operations.waiting_options
@operations.anyway_option
@yes_option
@json_option
@click.pass_obj
def restart_command(
    context: Context, profile: str | None, now: bool, wait: float | None, anyway: bool, yes: bool, as_json: bool
) -> None:
    """Restart the running profile, or another running PROFILE, reading its file again."""
    operations.check_waiting_options(now, wait)
    restarted = context.profile(profile or _active_profile(context))
    instance = instance_of(restarted, context.paths)
    running = observe(context.paths, instance).running
    if profile and running and running.launch.profile != profile:
        raise GpuboxError(f"{running.launch.profile} runs, not {profile}.", f"`gpubox switch {profile}` replaces it.")
    work = partial(Supervisor.restart, profile=restarted, stop_now=now, allow_exposed=yes, wait=wait)
    _run(context, restarted, work, as_json=as_json, anyway=anyway)


def _run(context: Context, profile: Profile, work: operations.OperationWork, *, as_json: bool, anyway: bool) -> None:
    """Downloads the model if it is missing, then does ``work`` on the profile's instance."""
    operations.ensure_model(context, profile)
    operations.run_and_report(context, instance_of(profile, context.paths), work, as_json=as_json, anyway=anyway)


def _active_profile(context: Context) -> str:
    view = observe(context.paths, MAIN_INSTANCE)
    launch = view.running.launch if view.running else view.state.last_good
    if launch is None:
        raise GpuboxError(
            "Nothing runs, and no profile ran before.", "`gpubox start PROFILE` starts one.", code=ExitCode.NOT_RUNNING
        )
    return launch.profile


@click.command("stop")
@click.argument("profile", required=False)
@click.option("--all", "everything", is_flag=True, help="Stop all servers.")
@json_option
@click.pass_obj
def stop_command(context: Context, profile: str | None, everything: bool, as_json: bool) -> None:
    """Stop the active server, or that of PROFILE, and free its memory. Running requests are cut off."""
    instances = instance_names(context.paths) if everything else [_instance(context, profile)]
    running = [instance for instance in instances if observe(context.paths, instance).running]
    if not running:
        message = observe(context.paths, instances[0]).message if instances else ""
        if beside := running_servers(context.paths, *instance_names(context.paths)):
            names = " and ".join(server.launch.profile for server in beside)
            raise GpuboxError(
                f"The active server does not run; {names} {'runs' if len(beside) == 1 else 'run'} beside it.",
                "`gpubox stop PROFILE` stops one, `gpubox stop --all` all.",
                code=ExitCode.NOT_RUNNING,
            )
        raise GpuboxError("Nothing is running.", message, code=ExitCode.NOT_RUNNING)
    if everything:
        _stop_all(context, running, as_json)
    else:
        operations.run_and_report(context, running[0], lambda s: s.stop(), as_json=as_json)


def _stop_all(context: Context, instances: list[str], as_json: bool) -> None:
    """Stops each of ``instances``, also after an error. Raises the first one."""
    first: GpuboxError | None = None
    results = []
    for instance in instances:
        finished, error = operations.run_on_instance(context, instance, lambda s: s.stop())
        results.append(operations.outcome_values(context, instance, finished, error))
        first = first or error
        if finished and not error and not as_json:
            output.emit(f"{finished.message} ({units.duration(finished.seconds)})")
        if error and error.code == ExitCode.INTERRUPTED:
            break
    if as_json:
        output.emit_json({**output.error_values(first), "results": results})
    if first:
        raise first


def _instance(context: Context, profile: str | None) -> str:
    if profile is None:
        return MAIN_INSTANCE
    if instance := find_instance(context.paths, profile):
        return instance
    raise GpuboxError(f"{profile} is not running.", "`gpubox status --all` lists what runs.", code=ExitCode.NOT_RUNNING)
