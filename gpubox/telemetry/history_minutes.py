"""Snapshots of one minute, put together. Pure: the clock is in the Snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubox.telemetry.history_rows import scaled
from gpubox.telemetry.snapshot import Request, Snapshot

BUSY_STATES = ("prefill", "answering", "stuck")
STALE_SECONDS = 10.0
"""An older reading of the driver is no reading of this minute."""
COLUMNS = (
    "observed", "busy", "tg", "tg_time", "tg_max", "pp", "pp_time", "pp_max", "vram", "ram", "power", "power_time",
    "power_max", "temperature", "temperature_max", "drafted", "accepted", "generated", "context",
)  # fmt: skip
"""Of the table ``readings``."""


@dataclass(slots=True)
class Mean:
    """The mean of a value over the time in which it was known, and its maximum."""

    total: float = 0.0
    seconds: float = 0.0
    highest: float | None = None

    def add(self, value: float | None, seconds: float) -> None:
        if value is not None:
            self.total += value * seconds
            self.seconds += seconds
            self.highest = value if self.highest is None else max(self.highest, value)

    @property
    def value(self) -> float | None:
        return self.total / self.seconds if self.seconds > 0 else self.highest

    @classmethod
    def stored(cls, mean: int | None, unit: float, seconds: float, highest: int | None = None) -> Mean:
        """What a row holds."""
        if mean is None:
            return cls()
        top = mean if highest is None else highest
        return cls(mean / unit * seconds, seconds, top / unit)


@dataclass(slots=True)
class MinuteReadings:
    """The running means of one minute and one launch."""

    observed: float = 0.0
    """Seconds; as ``busy``."""
    busy: float = 0.0
    tg: Mean = field(default_factory=Mean)
    pp: Mean = field(default_factory=Mean)
    vram: Mean = field(default_factory=Mean)
    ram: Mean = field(default_factory=Mean)
    power: Mean = field(default_factory=Mean)
    temperature: Mean = field(default_factory=Mean)
    drafted: int = 0
    accepted: int = 0
    generated: int = 0
    """By requests that ended while the power was known."""
    context: int | None = None

    def add(self, snapshot: Snapshot, seconds: float, ended: Sequence[Request]) -> None:
        """Adds one Snapshot, which stands for the ``seconds`` before it, and the requests that ended in them."""
        speeds, gpus = snapshot.throughput, snapshot.driver.gpus
        self.observed += seconds
        if speeds.state in BUSY_STATES:
            self.busy += seconds
        self.tg.add(speeds.tg_tokens_per_second, seconds)
        self.pp.add(speeds.pp_tokens_per_second if speeds.state == "prefill" else None, seconds)
        if host := snapshot.host:
            self.ram.add(host.ram_total_bytes - host.ram_available_bytes, seconds)
        power = None
        if gpus and (snapshot.driver.stale_seconds or 0.0) <= STALE_SECONDS:
            self.vram.add(_sum([gpu.vram_used_bytes for gpu in gpus]), seconds)
            power = _sum([gpu.power_watts for gpu in gpus])
            self.power.add(power, seconds)
            self.temperature.add(
                max((t for gpu in gpus if (t := gpu.temperature_celsius) is not None), default=None), seconds
            )
        for request in ended:
            if request.draft_tokens and request.draft_tokens_accepted is not None:
                self.drafted += request.draft_tokens
                self.accepted += request.draft_tokens_accepted
            self.generated += (request.generated_tokens or 0) if power is not None else 0
        if speeds.context_used_tokens is not None:
            self.context = max(self.context or 0, speeds.context_used_tokens)

    def row(self) -> tuple[Any, ...]:
        """The values of COLUMNS."""
        return (
            scaled(self.observed, 10),
            scaled(self.busy, 10),
            *_scaled(self.tg, 1e3),
            *_scaled(self.pp, 1e3),
            scaled(self.vram.value, 1),
            scaled(self.ram.value, 1),
            *_scaled(self.power, 1e3),
            scaled(self.temperature.value, 10),
            scaled(self.temperature.highest, 10),
            self.drafted or None,
            self.accepted if self.drafted else None,
            self.generated,
            self.context,
        )

    @classmethod
    def stored(cls, row: Sequence[Any]) -> MinuteReadings:
        """The minute that another gpubox began, from the values of COLUMNS."""
        (
            observed, busy, tg, tg_time, tg_max, pp, pp_time, pp_max, vram, ram, power, power_time, power_max,
            temperature, temperature_max, drafted, accepted, generated, context,
        ) = row  # fmt: skip
        seconds = observed / 10
        return cls(
            observed=seconds,
            busy=busy / 10,
            tg=Mean.stored(tg, 1e3, (tg_time or 0) / 10, tg_max),
            pp=Mean.stored(pp, 1e3, (pp_time or 0) / 10, pp_max),
            vram=Mean.stored(vram, 1, seconds),
            ram=Mean.stored(ram, 1, seconds),
            power=Mean.stored(power, 1e3, (power_time or 0) / 10, power_max),
            temperature=Mean.stored(temperature, 10, seconds, temperature_max),
            drafted=drafted or 0,
            accepted=accepted or 0,
            generated=generated or 0,
            context=context,
        )


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum over all cards; unknown if that of one card is, because a part would pass for the whole."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _scaled(mean: Mean, unit: float) -> tuple[int | None, int | None, int | None]:
    return scaled(mean.value, unit), scaled(mean.seconds, 10), scaled(mean.highest, unit)
