"""What the HTTP side of a server does not tell, in one short sentence each. Pure."""

from __future__ import annotations

from gpubox.telemetry.sources import STALE_SECONDS, HttpReading, HttpSource


def response_delay(source: HttpSource, at: float) -> tuple[float, list[str]]:
    """Seconds for which an answer is waited for already, and what to say of it."""
    seconds = at - (source.asking_since or at)
    return seconds, [f"the server has not answered for {seconds:.0f} s"] if seconds > STALE_SECONDS else []


def http_problems(source: HttpSource, answer: HttpReading) -> list[str]:
    """Which endpoints are off, refuse, or answer with something else."""
    if answer.status == "loading":
        return []
    if answer.status != "ok":
        if answer.status == "error":
            return [f"{source.client.base_url} answers with {answer.detail}"]
        return [f"nothing answers at {source.client.base_url} ({answer.detail})"]
    if answer.too_long:
        return [answer.too_long]
    if answer.other_server:
        wants = ["it wants an API key that gpubox does not have"] if answer.denied else []
        return [*wants, answer.other_server.not_reported]
    if answer.denied:
        return ["/slots and /metrics want an API key that gpubox does not have"]
    problems = []
    if not source.may_ask_slots:
        problems.append("/slots is not asked, it would keep the server awake: no live speed, no context fill")
    elif not answer.slots:
        problems.append("/slots is off or unreadable: no live speed, no context fill")
    if answer.counters is None:
        problems.append("/metrics is off: no totals")
    return problems
