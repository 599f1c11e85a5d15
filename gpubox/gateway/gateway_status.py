"""What the gateway knows now, the JSON of GET /gpubox/status, and what it reports while it works: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

SCHEMA = 1
RequestState = Literal["waiting", "reading", "generating"]
"""waiting: see WaitsFor. reading: sent to the server, and no token has come back. generating: tokens come."""
STAGES = ("queue", "swap", "prefill", "generation")
"""The four parts of a request's time: fields with ``_seconds`` behind them."""
WaitKind = Literal["slot", "limit", "swap", "load", "hold"]
"""slot: for a free slot of its profile. limit: for others of its client, whose key allows no more. swap: for its
profile, after the turn of others. load: its profile is being loaded. hold: the owner holds all requests."""
Outcome = Literal["done", "left", "failed", "refused", "cancelled"]
"""done: the whole answer was passed on. left: the client went away. failed: the server or the profile failed.
refused: the gateway answered by itself (a wrong key, a full queue, broken HTTP). cancelled: the owner ended it."""
ProfileState = Literal["up", "starting", "down", "broken", "upstream"]
OperationKind = Literal["start", "stop"]


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One request that is over: a line of the ledger. It holds no text of the prompt or the answer."""

    at: str
    """When it ended: ISO-8601 UTC."""
    client: str
    profile: str
    """The profile that answered; empty if there was none."""
    path: str
    status: int
    """The HTTP status that the client got; 0 if it left before."""
    outcome: Outcome
    stream: bool = False
    queue_seconds: float = 0.0
    """How long it waited for a slot, and while all requests were held."""
    swap_seconds: float = 0.0
    """How long it waited for its profile to be up."""
    prefill_seconds: float | None = None
    """From the end of its wait to its first token. None: no token, or not streamed and the server did not say."""
    generation_seconds: float | None = None
    """From its first token to its last."""
    ttft_seconds: float | None = None
    """From its last byte in to the first token out, as the client saw it. None: not streamed, or no token."""
    seconds: float = 0.0
    """From its first byte in to the last byte out."""
    prompt_tokens: int | None = None
    """Of the whole prompt, with the cached ones. None: the server did not say."""
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    tg_tokens_per_second: float | None = None
    """As the server reports it."""
    error: str = ""
    """One sentence."""
    asked: str = ""
    """The model that the request named, if another one answered: an unknown one, or one that did not load."""

    @property
    def began_at(self) -> str:
        """When its first byte came: ISO-8601. ``at``, if that is no time: a file or a gateway can say anything."""
        try:
            return (datetime.fromisoformat(self.at) - timedelta(seconds=self.seconds)).isoformat()
        except (ValueError, OverflowError):
            return self.at

    @property
    def read_tokens(self) -> int | None:
        """Prompt tokens that did not come from the cache."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return max(0, self.prompt_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """What a request waits for."""

    kind: WaitKind
    behind: tuple[tuple[str, int], ...] = ()
    """Who goes first, each with the number of requests. slot, limit: clients, those that run too. swap: the profiles
    that must stop for it."""


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """One request that is not over yet."""

    id: int
    """Counts up from 1 since the gateway started."""
    client: str
    profile: str
    path: str
    state: RequestState
    stream: bool
    queue_seconds: float
    """How long it waited for a slot, or has been waiting."""
    seconds: float
    """Since its first byte."""
    ttft_seconds: float | None = None
    generated_tokens: int | None = None
    """The tokens passed on so far, one for each event of the stream that carries text."""
    swap_seconds: float = 0.0
    prefill_seconds: float | None = None
    """So far, as all of them. None: the gateway cannot tell it from the generation."""
    generation_seconds: float | None = None
    waits_for: WaitsFor | None = None
    """None: it does not wait."""


@dataclass(frozen=True, slots=True)
class ClientSums:
    """The requests of one client on one day."""

    requests: int = 0
    errors: int = 0
    """Requests with outcome failed or refused."""
    left: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    queue_seconds: float = 0.0
    """Of all requests together, as the other three parts of their time."""
    swap_seconds: float = 0.0
    prefill_seconds: float = 0.0
    generation_seconds: float = 0.0
    wait_seconds_max: float = 0.0
    """The longest wait of one request, for a slot and for its profile."""
    ttft_seconds_median: float | None = None
    tg_tokens_per_second_median: float | None = None
    last_at: str = ""
    """When the last one ended: ISO-8601 UTC."""

    @property
    def read_tokens(self) -> int:
        """Prompt tokens that did not come from the cache."""
        return max(0, self.prompt_tokens - self.cached_tokens)

    @property
    def spent_tokens(self) -> int:
        """What a key's tokens-per-day counts: tokens that were read, and generated ones."""
        return self.read_tokens + self.generated_tokens


@dataclass(frozen=True, slots=True)
class ProfileStatus:
    """One profile behind the gateway."""

    name: str
    state: ProfileState
    aliases: tuple[str, ...] = ()
    base_url: str | None = None
    running: int = 0
    """Requests that its server works on for the gateway."""
    waiting: int = 0
    slots: int | None = None
    """So many requests its server works on at once; None: unknown."""
    context: int | None = None
    """Tokens of one slot, as its server says; None: it does not run, or does not say."""
    pinned: bool = False
    unload_seconds: float | None = None
    """Until it is unloaded because nobody asks it; None: not now."""
    message: str = ""
    """Why it is broken, or what is done to it."""


@dataclass(frozen=True, slots=True)
class GatewaySwitch:
    """A server is started or stopped for a request, or because nobody asks it."""

    kind: OperationKind
    profile: str
    asked_by: str = ""
    """The client whose request caused it; empty: nobody's."""
    step: str = "begin"
    """begin, wait (for the requests of what it displaces), the Supervisor's steps, then done or failed."""
    displaces: tuple[str, ...] = ()
    """The profiles that stop for it."""
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """The gateway now."""

    schema_version: int
    base_url: str
    started_at: str
    version: str
    paused: bool
    has_keys: bool
    exposed: str
    """Who else can reach it: ``LAN, no key`` or ``LAN, key``; empty on loopback."""
    operations: tuple[GatewaySwitch, ...]
    """Under way, the oldest first."""
    profiles: tuple[ProfileStatus, ...]
    requests: tuple[LiveRequest, ...]
    """In the order of their arrival."""
    clients: Mapping[str, ClientSums]
    """Who has sent a request today, or has a key: the sums of today by name."""
    finished: tuple[FinishedRequest, ...]
    """The last 50, newest first."""
    kept_kv: tuple[str, ...] = ()
    """What kept KV and shared prefixes did lately, or why they are off: sentences, newest first."""
    problems: tuple[str, ...] = ()
    """What the owner should mend: keys that cannot be read, a ledger that cannot be written; a sentence each."""


@dataclass(frozen=True, slots=True)
class BoxNews:
    """The last line of GET /gpubox/watch, after the header and the Snapshot of a recording."""

    gateway: GatewayStatus
    log: tuple[str, ...]
    """Lines since the position that was asked for; the end of the log if none was."""
    log_position: str


@dataclass(frozen=True, slots=True)
class GatewayListening:
    """The gateway takes requests."""

    base_url: str
    pid: int
    has_keys: bool
    exposed: str
    """Who else can reach it: ``LAN, no key`` or ``LAN, key``; empty on loopback."""
    profiles_up: tuple[str, ...]
    """The profiles whose servers it has taken over."""


@dataclass(frozen=True, slots=True)
class GatewayStopped:
    """The gateway takes no more requests. The servers keep running."""

    message: str


GatewayEvent = GatewayListening | GatewaySwitch | FinishedRequest | GatewayStopped
EVENT_NAMES: dict[type, str] = {
    GatewayListening: "listening",
    GatewaySwitch: "switch",
    FinishedRequest: "request",
    GatewayStopped: "stopped",
}
"""The ``event`` of each in JSON."""
