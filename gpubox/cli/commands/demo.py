"""``gpubox demo``: on the screen, or with ``--once`` in a server instance of its own, removed at the end."""

from __future__ import annotations

import asyncio

import click

from gpubox import units
from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.operations import OperationOutput, ensure_model
from gpubox.concurrency import run_cancellable
from gpubox.config import api_key
from gpubox.engines.find import choose_engine
from gpubox.errors import GpuboxError
from gpubox.paths import MAIN_INSTANCE
from gpubox.planner.supervisors import make_supervisor
from gpubox.profiles.profile import Profile
from gpubox.server.client import ChatCompletion, connect
from gpubox.server.instance import observe
from gpubox.server.supervisor import Supervisor
from gpubox.storage import held_lock
from gpubox.views.fields import json_fields

PROFILE = "demo"
QUESTION = "In one sentence: what is a GPU?"
MAX_TOKENS = 64
INSTANCE = "~once"
"""No profile can have such a name, so no companion's instance has it."""


@click.command("demo")
@click.option("--once", is_flag=True, help="Without the screen: start, ask one question, stop.")
@click.option("--ask", default=QUESTION, metavar="TEXT", help="With --once: ask TEXT.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print one JSON object.")
@click.pass_obj
def command(context: Context, once: bool, ask: str, as_json: bool) -> None:
    """Run a small model (98 MB, downloaded once) on the embedded engine.

    Without --once the screen opens and starts it there. If another profile runs, nothing is started.
    """
    profile = context.profile(PROFILE)
    choose_engine(context.config, profile.engine)  # raises before the download
    if not once:
        _open(context, profile)
        return
    ensure_model(context, profile)
    lock = context.paths.state / "demo.lock"
    with held_lock(lock, "Another `gpubox demo --once` runs.", "Wait for its answer.", attempts=1):
        supervisor = make_supervisor(context.paths, context.config, INSTANCE, OperationOutput())
        answer = run_cancellable(_ask_once(context, profile, ask, supervisor))
    if as_json:
        output.emit_json(_values(profile, ask, answer))
    else:
        _print(ask, answer)


def _open(context: Context, profile: Profile) -> None:
    running = observe(context.paths, MAIN_INSTANCE).running
    if running and running.launch.profile != profile.name:
        raise GpuboxError(
            f"{running.launch.profile} is running; the demo does not replace it.",
            "`gpubox demo --once` runs beside it; `gpubox switch demo` replaces it.",
        )
    from gpubox.cli.commands.screen import open_screen

    open_screen(context, start=profile.name)


async def _ask_once(context: Context, profile: Profile, question: str, supervisor: Supervisor) -> ChatCompletion:
    await stop_and_remove(supervisor)  # what a killed one left
    try:
        running = await supervisor.start(profile)
        async with connect(running.launch.base_url, api_key(context.paths)) as client:
            answer = await client.chat([{"role": "user", "content": question}], max_tokens=MAX_TOKENS)
    except BaseException:
        await stop_and_remove_after_failure(supervisor)
        raise
    await stop_and_remove(supervisor)
    return answer


def _values(profile: Profile, question: str, answer: ChatCompletion) -> dict[str, object]:
    timings = answer.timings and json_fields(answer.timings, "pp_tokens_per_second", "tg_tokens_per_second")
    shown = {**json_fields(answer, without=("text", "timings")), "answer": answer.text, "timings": timings}
    return {"ok": True, "profile": profile.name, "question": question, **shown}


def _print(question: str, answer: ChatCompletion) -> None:
    output.emit_text(f"> {question}\n{answer.text.strip()}{' …' if answer.finish_reason == 'length' else ''}\n")
    if timings := answer.timings:
        output.emit(
            f"pp {units.rate(timings.pp_tokens_per_second)} tok/s ({units.tokens(timings.prompt_tokens)} tokens)   "
            f"tg {units.rate(timings.tg_tokens_per_second)} tok/s ({units.tokens(timings.generated_tokens)} tokens)   "
            "timed by the server"
        )


async def stop_and_remove(supervisor: Supervisor) -> None:
    """Stops the server and removes the instance's files. An interrupt waits until that is done. Raises GpuboxError."""
    task = asyncio.ensure_future(_stop_and_remove(supervisor))
    interrupted = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            interrupted = True
        except GpuboxError:
            break
    task.result()
    if interrupted:
        raise asyncio.CancelledError


async def stop_and_remove_after_failure(supervisor: Supervisor) -> None:
    """Like ``stop_and_remove``, but only notes an error: the caller raises the first one."""
    try:
        await stop_and_remove(supervisor)
    except asyncio.CancelledError:
        return  # a second interrupt; everything is removed
    except (GpuboxError, OSError) as error:
        diagnostics.note(f"  ! The files of {supervisor.instance} were not removed: {error}")


async def _stop_and_remove(supervisor: Supervisor) -> None:
    await supervisor.stop()
    paths, instance = supervisor.paths, supervisor.instance
    logs = paths.logs.glob(f"{paths.instance_log(instance).name}*")
    state = paths.instance_state(instance)
    states = state.parent.glob(f"{state.name}*")  # a kill during a write leaves a temporary file beside it
    for path in (*states, paths.instance_lock(instance), paths.liveness_lock(instance), *logs):
        path.unlink(missing_ok=True)
