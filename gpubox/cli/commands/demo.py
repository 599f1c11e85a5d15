"""``gpubox demo``."""

from __future__ import annotations

import click

from gpubox import units
from gpubox.cancellation import run_cancellable
from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.operations import OperationOutput, ensure_model
from gpubox.cli.temporary_instance import (
    remove_abandoned_instances,
    stop_and_remove,
    stop_and_remove_after_failure,
    temporary_instance,
)
from gpubox.config import api_key
from gpubox.engines.find import choose_engine
from gpubox.errors import GpuboxError
from gpubox.paths import MAIN_INSTANCE
from gpubox.planner.supervisors import make_supervisor
from gpubox.profiles.profile import Profile
from gpubox.server.client import ChatCompletion, connect
from gpubox.server.instance import observe
from gpubox.server.supervisor import Supervisor

PROFILE = "demo"
QUESTION = "In one sentence: what is a GPU?"
MAX_TOKENS = 64


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
    with temporary_instance(context.paths) as instance:
        supervisor = make_supervisor(context.paths, context.config, instance, OperationOutput())
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
    await remove_abandoned_instances(context.paths, context.config)
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
    timings = answer.timings
    return {
        "ok": True,
        "profile": profile.name,
        "model": answer.model,
        "question": question,
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": timings and timings.prompt_tokens,
        "cached_tokens": timings and timings.cached_tokens,
        "generated_tokens": timings and timings.generated_tokens,
        "pp_tokens_per_second": timings and timings.pp_tokens_per_second,
        "tg_tokens_per_second": timings and timings.tg_tokens_per_second,
        "prompt_seconds": timings and timings.prompt_seconds,
        "generation_seconds": timings and timings.generation_seconds,
    }


def _print(question: str, answer: ChatCompletion) -> None:
    output.emit_text(f"> {question}\n{answer.text.strip()}{' …' if answer.finish_reason == 'length' else ''}\n")
    if timings := answer.timings:
        output.emit(
            f"pp {units.rate(timings.pp_tokens_per_second)} tok/s ({units.tokens(timings.prompt_tokens)} tokens)   "
            f"tg {units.rate(timings.tg_tokens_per_second)} tok/s ({units.tokens(timings.generated_tokens)} tokens)   "
            "timed by the server"
        )
