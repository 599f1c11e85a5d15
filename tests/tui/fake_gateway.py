"""A gateway that a test controls: what it says of itself, and what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpubox.errors import GpuboxError
from gpubox.gateway.gateway_status import (
    SCHEMA,
    ClientSums,
    FinishedRequest,
    GatewayStatus,
    GatewaySwitch,
    LiveRequest,
    ProfileStatus,
    WaitsFor,
)
from gpubox.profiles.profile import Profile
from gpubox.tui.messages import GatewayView
from tests.tui.fake import MINE, QWEN, QWEN_256K, READY, FakeServices
from tests.tui.snapshots import ANSWERING, IDLE_SLOT, SLOT

BASE = "http://127.0.0.1:8080"
CHAT = "/v1/chat/completions"
A, B = QWEN.name, QWEN_256K.name
PROFILES = {profile.name: profile for profile in (QWEN, QWEN_256K, MINE)}


def done(at: str, client: str, profile: str = A, **more: Any) -> FinishedRequest:
    """A finished request of one day."""
    values: dict[str, Any] = {
        "status": 200, "outcome": "done", "stream": True,
        "prefill_seconds": 2.2, "generation_seconds": 7.3, "ttft_seconds": 2.2, "seconds": 9.5,
        "prompt_tokens": 43_000, "cached_tokens": 41_200, "generated_tokens": 512, "tg_tokens_per_second": 70.2,
    }  # fmt: skip
    return FinishedRequest(f"2026-11-21T{at}Z", client, profile, CHAT, **(values | more))


def failed(at: str, client: str, error: str, status: int = 503, outcome: Any = "failed") -> FinishedRequest:
    return FinishedRequest(f"2026-11-21T{at}Z", client, "", CHAT, status, outcome, seconds=0.02, error=error)


FINISHED = (
    done("13:02:20.500", "opencode"),
    failed("13:02:14.100", "aider", "qwen36-turbo cannot start: cache-type-k only in a TurboQuant fork"),
    failed("13:02:13.100", "127.0.0.1", "this key is not known", 401, "refused"),
    done("13:02:02.000", "lm-eval", prompt_tokens=310, cached_tokens=0, generated_tokens=1, stream=False,
         prefill_seconds=None, generation_seconds=None, ttft_seconds=None, tg_tokens_per_second=None, seconds=0.4),
    done("13:01:59.000", "opencode", outcome="left", status=0, prompt_tokens=None, cached_tokens=None,
         generated_tokens=88, tg_tokens_per_second=None, queue_seconds=3.1, generation_seconds=1.3, ttft_seconds=5.3,
         seconds=6.6),
    done("13:01:20.200", "opencode", prompt_tokens=12_300, cached_tokens=12_000, generated_tokens=1100, seconds=18.2,
         prefill_seconds=0.4, generation_seconds=17.8, ttft_seconds=0.4, tg_tokens_per_second=61.7),
)  # fmt: skip
"""The dashboard's requests of these times are the same ones."""
DAY = "2026-11-21T"
SUMS = ClientSums(
    214, 0, 3, 5_120_000, 4_930_000, 61_200, 31.0, 14.0, 234.0, 871.8, 14.0, 0.4, 70.2, f"{DAY}13:02:20.500Z"
)
AIDER = ClientSums(41, 2, 0, 210_000, 185_000, 20_100, 9.0, 62.0, 45.1, 456.8, 9.0, 1.1, 44.0, f"{DAY}13:02:14.100Z")
EVAL = ClientSums(280, 0, 0, 88_000, 0, 280, 0.1, wait_seconds_max=0.1, last_at=f"{DAY}13:02:02.000Z")
STATUS = GatewayStatus(
    SCHEMA, BASE, "2026-11-21T09:00:00.000Z", "1.0", False, True, "", (),
    (
        ProfileStatus(A, "up", ("gpt-4o",), "http://127.0.0.1:40001", 2, 1, slots=2),
        ProfileStatus(B, "down", waiting=1), ProfileStatus("mine", "down"),
    ),
    (
        LiveRequest(71, "opencode", A, CHAT, "generating", True, 0.0, 8.055, 2.2, 412, prefill_seconds=2.2,
                    generation_seconds=5.855),
        LiveRequest(72, "aider", B, CHAT, "waiting", True, 0.0, 3.2, swap_seconds=3.2,
                    waits_for=WaitsFor("swap", ((A, 2),))),
        LiveRequest(73, "continue", A, CHAT, "reading", True, 0.1, 1.4),
        LiveRequest(74, "lm-eval", A, CHAT, "waiting", False, 0.6, 0.6,
                    waits_for=WaitsFor("slot", (("opencode", 1), ("continue", 1)))),
    ),
    {
        "aider": AIDER, "lm-eval": EVAL, "opencode": SUMS, "cline": ClientSums(),
        "127.0.0.1": ClientSums(1, 1, last_at=f"{DAY}13:02:13.100Z"),
    },
    FINISHED,
    ("qwen36-mtp-16gb: 1 kept KV cache came back from disk; 41,200 of the 41,200 tokens were reused, not read anew.",),
)  # fmt: skip
SWITCHING = replace(
    STATUS,
    operations=(GatewaySwitch("start", B, "aider", "wait", (A,), 4.2),),
    profiles=(
        ProfileStatus(A, "up", ("gpt-4o",), running=1),
        ProfileStatus(B, "starting", waiting=1),
        STATUS.profiles[2],
    ),
    requests=(STATUS.requests[0], replace(STATUS.requests[1], waits_for=WaitsFor("swap", ((A, 1),)))),
)
TWO_SLOTS: dict[str, Any] = {
    "throughput": replace(ANSWERING, context_size_tokens=65_536, slots=2),
    "slots": (replace(SLOT, context_used_tokens=43_412, context_size_tokens=65_536, generated_tokens=412, seconds=8.1),
              replace(IDLE_SLOT, index=1, context_used_tokens=0, context_size_tokens=65_536)),
}  # fmt: skip
"""What the dashboard reads while ``SWITCHING``: one of two slots is busy."""
HELD = replace(
    STATUS, paused=True,
    requests=tuple(
        replace(each, waits_for=WaitsFor("hold")) if each.state == "waiting" else each for each in STATUS.requests
    ),
)  # fmt: skip
QUIET = replace(STATUS, requests=(), clients={}, finished=(), kept_kv=(), has_keys=False)


def view(status: GatewayStatus = STATUS) -> GatewayView:
    return GatewayView(status.base_url, status)


class FakeGateway:
    """Notes what was asked, and changes what the services say of the gateway accordingly."""

    def __init__(self, services: FakeServices) -> None:
        self.services = services
        self.asked: list[Any] = []
        self.error: GpuboxError | None = None
        self.listed: Mapping[str, Profile] = PROFILES

    def address(self) -> tuple[str, int]:
        return "127.0.0.1", 8080

    def start(self) -> str:
        self._ask("start")
        self.services.gateway_view = view(QUIET)
        return BASE

    def stop(self) -> None:
        self._ask("stop")
        self.services.gateway_view = None

    def pause(self, paused: bool) -> None:
        self._ask("pause" if paused else "resume")
        self._change(paused=paused)

    def cancel(self, number: int) -> LiveRequest:
        self._ask(("cancel", number))
        now = self.services.gateway_view
        assert now and now.status
        self._change(requests=tuple(each for each in now.status.requests if each.id != number))
        return next(each for each in now.status.requests if each.id == number)

    def profiles(self) -> Mapping[str, Profile]:
        return self.listed

    def add_key(self, client: str) -> str:
        self._ask(("key", client))
        self._change(has_keys=True)
        return "gb-" + "x" * 43

    def remove_key(self, client: str) -> None:
        self._ask(("remove key", client))

    def _ask(self, what: Any) -> None:
        self.asked.append(what)
        if self.error:
            raise self.error

    def _change(self, **values: Any) -> None:
        now = self.services.gateway_view
        if now and now.status:
            self.services.gateway_view = view(replace(now.status, **values))


def services_with_gateway(status: GatewayStatus | None = STATUS, server: Any = READY) -> FakeServices:
    """The usual services, with a gateway that runs if ``status`` is given."""
    services = FakeServices(server)
    services.gateways = FakeGateway(services)
    services.gateway_view = view(status) if status else None
    return services
