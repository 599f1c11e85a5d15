"""The figures of the screen: what each one is, whether it is good for this box and model, and what moves it.

The one source for the panes, the help screen, the palette, the documents and ``gpubox status --explain``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.views.unknown_reasons import unknown_reason

if TYPE_CHECKING:
    from gpubox.planner.plan import MemoryPlan
    from gpubox.telemetry.history.queries import HistoryQueries
    from gpubox.telemetry.history.values import UsageSum
    from gpubox.telemetry.snapshot import Snapshot

USUAL_DAYS, LEAST_REQUESTS = 30, 5
"""How far back the usual figures of a profile go, and of how many requests they are at least."""
AS_USUAL = 0.1
"""Up to this share from the usual figure it is the same."""
NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Box:
    """What is known of this box: the readings of now, what is usual of the profile, what was planned for it."""

    now: Snapshot
    usual: UsageSum | None = None
    plan: MemoryPlan | None = None

    def compared(self, value: float | None, name: str, text: Callable[[float | None], str]) -> str:
        """``value`` beside the field ``name`` of what is usual of this profile; empty if one is not known."""
        past, usual = self.usual, getattr(self.usual, name, None)
        if value is None or not usual or past is None or past.requests < LEAST_REQUESTS:
            return ""
        word = "As" if abs(value / usual - 1) <= AS_USUAL else "More than" if value > usual else "Less than"
        return f"{word} usual here: {text(usual)}, the median of {past.requests:,} requests in {USUAL_DAYS} days."

    def planned(self, kind: str) -> str:
        """One kind of memory on the cards beside its plan; empty without one."""
        name = f"{kind}_bytes"
        cards = {device.device: getattr(device, name) or 0 for device in self.now.memory if device.kind != "host"}
        plans = [getattr(device, name) for device in self.plan.devices if device.device in cards] if self.plan else []
        if not plans or not sum(cards.values()):
            return ""
        more, planned = sum(cards.values()) - sum(plans), f"the plan said {units.memory(sum(plans))}"
        return f"As planned: {planned}." if abs(more) <= AS_USUAL * sum(plans) else f"Not as planned: {planned}."


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. ``meaning``: what it is. ``moves``: what changes it; empty: nothing, it is a word or a mark."""

    meaning: str
    moves: str = ""
    path: str = ""
    """Where it is in ``gpubox status --json``, which knows why it is unknown."""
    here: Callable[[Box], str] = lambda box: ""
    """Whether it is good here, in one line; empty if that cannot be said."""


def explain(name: str, box: Box | None = None) -> list[tuple[str, str]]:
    """What a figure is, whether it is good here, and what moves it: (label, sentence). Raises KeyError."""
    figure, here = FIGURES[name], ""
    if box and figure.path:
        section, key = figure.path.split(".")
        if getattr(getattr(box.now, section), key) is None:
            here = f"Not known: {unknown_reason(box.now, (section, key))}."
    here = here or (figure.here(box) if box else "")
    return [pair for pair in (("is", figure.meaning), ("here", here), ("moved by", figure.moves)) if pair[1]]


def usual_of(profile: str, history: HistoryQueries, now: float) -> UsageSum | None:
    """The medians of a profile's requests of the last weeks. Raises GpuboxError if the history cannot be read."""
    sums = history.sums(now - USUAL_DAYS * 86_400, now, "profile")
    return next((usage for usage in sums if usage.key == profile), None)


# -- whether it is good here ----------------------------------------------------------------------------


def _rate(value: float | None) -> str:
    return f"{units.rate(value)} tok/s"


def _tg(box: Box) -> str:
    """The history has the speeds of single requests, so of several at once a single one is compared."""
    now = box.now.throughput
    several = (now.busy_slots or 0) > 1
    value = now.request_tg_median if several else now.tg_tokens_per_second or now.request_tg_median
    return box.compared(value, "tg_median", _rate)


def _session(box: Box) -> str:
    now = box.now.throughput
    speeds = (
        ("fastest", now.tg_peak),
        ("with waiting", now.effective_tokens_per_second),
        ("a request alone", now.request_tg_median),
    )
    known = ", ".join(f"{label} {_rate(value)}" for label, value in speeds if value is not None)
    return f"This session: {known}." if known else ""


def _reused(box: Box) -> str:
    last = next((r for r in box.now.requests if r.prompt_tokens and r.cached_tokens is not None), None)
    share = (last.cached_tokens or 0) / (last.prompt_tokens or 1) if last else None
    return box.compared(share, "reuse", lambda value: f"{value or 0:.0%}")


def _draft(box: Box) -> str:
    from gpubox.advisor.rules.drafts import LEAST_ACCEPTANCE

    share = box.now.throughput.draft_acceptance or 0.0
    if share < LEAST_ACCEPTANCE:
        return f"Too low: below about {LEAST_ACCEPTANCE:.0%} drafts cost more than they save."
    return f"Drafts pay here, most likely: they do from about {LEAST_ACCEPTANCE:.0%} on. Only a trial without tells."


def _context(box: Box) -> str:
    used, size = box.now.throughput.context_used_tokens, box.now.throughput.context_size_tokens
    if used is None or not size:
        return ""
    if used >= NEARLY_FULL * size:
        return f"Nearly full: {size - used:,} tokens are left, then the answer ends."
    return f"{size - used:,} tokens are left in the fullest slot."


def _slots(box: Box) -> str:
    queued = box.now.throughput.queued_requests
    return f"{queued} requests wait for a slot: more slots would take them at once." if queued else ""


def _layers(box: Box) -> str:
    now = box.now.offload
    if now.layers_on_gpu is None or not now.layers_total:
        return ""
    if now.layers_on_gpu < now.layers_total:
        return f"The CPU computes {now.layers_total - now.layers_on_gpu} layers, for each token." + _room(box, "layer")
    return "All are on the card." + (" The CPU computes experts." if now.expert_layers_on_cpu else "")


def _experts(box: Box) -> str:
    return "None: the card computes them all." if box.now.offload.expert_layers_on_cpu == 0 else _room(box, "layer")


def _room(box: Box, of: str) -> str:
    """How many more layers the free memory of the fullest card would hold. An estimate: layers differ in size."""
    host, now = box.now.host_memory, box.now.offload
    on_cpu = now.expert_layers_on_cpu or (now.layers_total or 0) - (now.layers_on_gpu or 0)
    free = [device.free_bytes for device in box.now.memory if device.kind == "gpu" and device.free_bytes is not None]
    if not host or not host.weights_bytes or not free or on_cpu <= 0:
        return ""
    each = host.weights_bytes / on_cpu
    more = min(on_cpu, int(min(free) / each))
    room = f"room for ~{more} more" if more else "no room for another"
    return f" ~{units.memory(each)} a {of}, {units.memory(min(free))} free on the card: {room}.".lstrip()


def _threads(box: Box) -> str:
    now = box.now.offload
    if now.bottleneck in ("CPU", "CPU experts", "other programs"):
        return f"They slow the server: {now.bottleneck_reason}."
    return ""


def _disk(box: Box) -> str:
    from gpubox.telemetry.offload import FAULTS_PER_SECOND

    faults = box.now.offload.major_faults_per_second or 0.0
    if faults > FAULTS_PER_SECOND:
        return "Bad: each token waits for the disk."
    return "Good: what the server computes with is in RAM." if faults < 1 else "Few: the file is still being read."


def _slowed_by(box: Box) -> str:
    reason = box.now.offload.bottleneck_reason
    return f"{reason[:1].upper()}{reason[1:]}."


def _conversations(box: Box) -> str:
    return "It is reserved at load, so a long conversation takes no more." + (
        f" {planned}" if (planned := box.planned("kv")) else ""
    )


def _other(box: Box) -> str:
    programs = [program for device in box.now.memory for program in device.other_processes]
    largest = sorted(programs, key=lambda program: -program[1])[:3]
    words = ", ".join(f"{name.rsplit('/', 1)[-1]} {units.memory(size)}" for name, size in largest)
    return f"The largest: {words}." if words else ""


def _free(box: Box) -> str:
    from gpubox.planner.plan import DEFAULT_KEEP_FREE_BYTES

    free = [device.free_bytes for device in box.now.memory if device.kind == "gpu" and device.free_bytes is not None]
    if not free:
        return ""
    kept = box.plan.keep_free_bytes if box.plan else DEFAULT_KEEP_FREE_BYTES
    enough = "Enough" if min(free) >= kept else "Tight"
    return f"{enough}: the planner keeps {units.memory(kept)} free on each card."


FIGURES: dict[str, Figure] = {
    "pp": Figure(
        "prompt processing, the reading speed, tok/s: prompt tokens / processing time, both without cached tokens.",
        "ubatch-size and batch-size, experts on the CPU, the depth of the context.", "throughput.pp_tokens_per_second",
        lambda box: box.compared(box.now.throughput.pp_tokens_per_second, "pp_median", _rate)),
    "tg": Figure(
        "token generation, the writing speed in tokens per second (tok/s): (n - 1) / generation time. Thinking tokens "
        "count, the first token does not. Now: all slots together over the last 3 s.",
        "how much of the model the CPU computes, drafts, the depth of the context, and how many slots are busy.",
        "throughput.tg_tokens_per_second", _tg),
    "usual": Figure(
        "the median tg of all slots together, over the periods of this session in which tokens were generated without "
        "a pause. The highest is the peak. A request: the median tg of a single request.",
        "as tg.", "throughput.tg_median", _session),
    "with waiting": Figure(
        "effective tok/s: all generated tokens / wall time of the turn or session, including tools and pauses. While "
        "writing: tg.", "how long the client, its tools and its owner take.", "throughput.effective_tokens_per_second"),
    "TTFT": Figure(
        "time to first token: from the request's arrival at the server, including the wait for a slot. ≥: the log "
        "does not show that wait. In the chat and in benchmarks the client measures it, to the first token of text or "
        "thinking. On the Clients screen the gateway does, from the request's last byte in to the first token out.",
        "how many prompt tokens are read and not reused, pp, and the wait for a slot.", "throughput.ttft_seconds",
        lambda box: box.compared(box.now.throughput.ttft_seconds, "ttft_median", units.duration)),
    "reused": Figure(
        "prompt tokens that came from the cache: the server did not have to read them.",
        "clients that keep the beginning of their prompts, enough slots, and checkpoints on hybrid models.",
        "", _reused),
    "draft": Figure(
        "acceptance of speculative decoding (a draft model or MTP): accepted / drafted tokens. tokens/step: 1 + "
        "accepted tokens / verification steps.",
        "spec-draft-n-max, the draft model, thinking, and how predictable the text is.",
        "throughput.draft_acceptance", _draft),
    "context": Figure(
        "tokens of the fullest slot, of those that a slot can hold.", "the length of the conversation; ctx-size, "
        "parallel.", "throughput.context_used_tokens", _context),
    "slots": Figure("conversations that the server can work on at once. Others wait.",
                    "parallel; each slot has its share of ctx-size, unless they share one cache.",
                    "throughput.slots", _slots),
    "layers": Figure("layers of the model on the cards. The CPU computes the others.", "n-gpu-layers, a smaller quant.",
                     "offload.layers_on_gpu", _layers),
    "experts on CPU": Figure(
        "layers whose experts (the larger part of a MoE model) stay in RAM and are computed by the CPU.",
        "n-cpu-moe: each layer less is faster, and takes VRAM.", "offload.expert_layers_on_cpu", _experts),
    "RAM": Figure("RAM in use by all programs. The model's file counts where it is in RAM.",
                  "what else runs, n-cpu-moe, cache-ram."),
    "model file in RAM": Figure(
        "the weights that the CPU computes with. A mapped file is in RAM as far as the kernel keeps it there.",
        "n-cpu-moe, the quant; load-mode none reads it whole at the start."),
    "saved prompts": Figure("conversations that left their slot and can come back without being read again, in RAM.",
                            "cache-ram is their limit.", "offload.prompt_cache_bytes"),
    "checkpoints": Figure("states that hybrid and sliding-window models keep, to go back to the middle of a prompt.",
                          "ctx-checkpoints, checkpoint-min-step.", "offload.checkpoints_bytes"),
    "pinned RAM": Figure("RAM that the driver holds for fast copies to the card.", "weights on the CPU.",
                     "offload.pinned_bytes"),
    "threads": Figure("how many of the server's threads compute now.", "threads; other programs on the cores.",
                      "offload.threads_busy", _threads),
    "disk reads": Figure("major faults: parts of the model that had left RAM and were read from the disk, a second.",
                         "load-mode none, a smaller model, fewer programs in RAM.",
                         "offload.major_faults_per_second", _disk),
    "PCIe": Figure("traffic to and from the busiest card, and what its link can carry.",
                   "weights in RAM while a prompt is read; ubatch-size; the slot of the card."),
    "slowed by": Figure("the part of this machine that limits the server now.",
                        "what is named: more of the model on the card, more threads, or fewer other programs.",
                        "offload.bottleneck", _slowed_by),
    "weights": Figure("the model itself.", "the quant, n-gpu-layers, n-cpu-moe.", "", lambda b: b.planned("weights")),
    "conversations": Figure("the KV cache: what the model keeps of each token of the conversations.",
                            "ctx-size, cache-type-k and -v.", "", _conversations),
    "recurrent": Figure("the state of hybrid models, of the same size for any length.", "parallel."),
    "compute": Figure("room for intermediate results.", "ubatch-size, ctx-size, flash-attn.", "",
                      lambda box: box.planned("compute")),
    "draft memory": Figure("all of the draft model or MTP head.", "spec-type, the draft model.",
                           "", lambda box: box.planned("draft")),
    "quant": Figure("how few bits the weights have: Q4_K_M is smaller and less exact than Q8_0, and read faster."),
    "growth": Figure("what the server took since its load; its log does not show it.", "its use; CUDA's own pools."),
    "other programs": Figure("programs beside this server on the card.", "what else runs.", "", _other),
    "the rest": Figure(
        "what the driver or the kernel counts and nobody names. On a card: the desktop and the driver's own memory. In "
        "RAM: the server's own memory beside the model.", "the desktop, the driver, the build of the engine."),
    "free": Figure("memory that a program can still take.", "the model, its context, and what else runs.", "", _free),
    "waiting, reading": Figure(
        "a request waits in the gateway until the server of its profile takes it; the server reads the prompt until "
        "the first token comes. `working`: not streamed, so the gateway sees no token before the end."),
    "end": Figure(
        "why an answer ended: stop (the model was done), token limit, context full, cancelled, error. ↻ (reread): why "
        "the prompt was read again instead of reused."
    ),
    "history": Figure(
        "what gpubox recorded while it was open: a graph of 1 h, 1 day or 30 days, and the requests of all launches. "
        "A column is the mean over the time in which tokens were generated (tg) or only prompts were read (pp). "
        "·: nothing was observed. ▲ start or switch, ▽ stop, ✗ crash, ◆ another engine, ◇ another driver."),
    "slower since": Figure("tg or pp of comparable requests of a profile fell at that moment, beyond its usual noise."),
    "~": Figure("marks an estimate; every other number was read or measured."),
    units.UNKNOWN: Figure("not known; never shown as 0. Enter on it says why."),
}  # fmt: skip
"""Every figure, and the words and marks beside them, by the name that the owner would ask for."""
ALSO_CALLED = {
    "KV": "conversations", "each request": "usual", "writing now": "tg", "reading": "pp", "last prompt": "pp",
    "effective": "with waiting", "drafts accepted": "draft", "fullest slot": "context", "other": "the rest",
    "desktop+driver": "the rest", "experts": "experts on CPU", "reread": "end",
}  # fmt: skip
"""Other words that stand on the screen or in a verb's output -> their figure."""
