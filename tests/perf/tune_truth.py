"""Is the tuner right? Simulated boxes with a known best, and a real grid on the lab. Run by hand.

python tests/perf/tune_truth.py simulate [--seeds 40]
python tests/perf/tune_truth.py lab ...
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox.bench.kinds.tune.course import Course
from gpubox.bench.kinds.tune.search import SearchAxis, SearchSpace, StartOutcome
from gpubox.bench.kinds.tune.verdict import read_verdict

STARTS_PER_CELL = 4
"""Of an exhaustive comparison."""


@dataclass(frozen=True)
class Box:
    """A simulated box: the truth that no code of gpubox knows."""

    name: str
    space: SearchSpace
    rate: Callable[[tuple[int, ...]], float]
    """tok/s without noise."""
    fits: Callable[[tuple[int, ...]], bool]
    sd: float
    drift: float
    """Of the log, from the first to the 60th start."""
    wander: float = 0.0
    """Amplitude of a slow wave on top."""


def grid(axes: list[SearchAxis], own: tuple[int, ...]) -> SearchSpace:
    cells = {" ".join(map(str, place)): place for place in itertools.product(*(range(axis.levels) for axis in axes))}
    return SearchSpace(tuple(axes), cells, " ".join(map(str, own)))


def moe_box(dice: random.Random, sd: float) -> Box:
    """n-cpu-moe x threads x ubatch x draft window: time per step of a card and a CPU that share the experts."""
    layers, threads, ubatch, window = [14, 16, 18, 20, 22, 26], [4, 6, 8, 16], [256, 512, 1024], [0, 1, 2, 3, 4, 6]
    axes = [
        SearchAxis(len(layers), more_vram=-1, more_ram=1), SearchAxis(len(threads)),
        SearchAxis(len(ubatch), more_vram=1), SearchAxis(len(window), more_vram=1),
    ]  # fmt: skip
    card_ms, layer_ms = dice.uniform(4, 10), dice.uniform(0.3, 1.2)
    cores, crowd = dice.choice([6, 8]), dice.uniform(0.0, 0.5)
    accept, batch_cost, cpu_batch = dice.uniform(0.4, 0.92), dice.uniform(0.02, 0.2), dice.uniform(0.05, 0.6)
    memory = dice.uniform(16, 23)
    ubatch_cost = dice.uniform(-0.01, 0.01)

    def rate(place: tuple[int, ...]) -> float:
        on_cpu, count, micro, drafted = layers[place[0]], threads[place[1]], ubatch[place[2]], window[place[3]]
        speed = min(count, cores) * (1 - crowd * max(0, count - cores) / cores) / cores
        step = card_ms * (1 + batch_cost * drafted) + on_cpu * layer_ms / speed * (1 + cpu_batch * drafted)
        tokens = sum(accept**i for i in range(drafted + 1))
        return 1000 * tokens / step * (1 + ubatch_cost * math.log2(micro / 256))

    def fits(place: tuple[int, ...]) -> bool:
        return layers[place[0]] >= memory - 4 + 1.2 * place[2] + 0.3 * place[3]

    own = (len(layers) - 1, dice.randrange(4), dice.randrange(3), dice.randrange(6))
    drift, wander = dice.uniform(-0.06, 0.06), dice.uniform(0, 0.01)
    return Box("moe", grid(axes, own), rate, fits, sd, drift, wander)


def odd_box(dice: random.Random, sd: float) -> Box:
    """Random effects and strong random interactions, no order at all."""
    counts = [dice.randint(2, 5) for _ in range(4)]
    while not 60 <= math.prod(counts) <= 300:
        counts = [dice.randint(2, 5) for _ in range(4)]
    main = [[dice.gauss(0, 0.15) for _ in range(count)] for count in counts]
    pairs = {
        pair: [[dice.gauss(0, 0.04) for _ in range(counts[pair[1]])] for _ in range(counts[pair[0]])]
        for pair in itertools.combinations(range(4), 2)
    }

    def rate(place: tuple[int, ...]) -> float:
        log = sum(effects[level] for effects, level in zip(main, place, strict=True))
        return 50 * math.exp(log + sum(table[place[a]][place[b]] for (a, b), table in pairs.items()))

    own = tuple(dice.randrange(count) for count in counts)
    axes = [SearchAxis(count, ordered=dice.random() < 0.7) for count in counts]
    return Box("odd", grid(axes, own), rate, lambda place: True, sd, dice.uniform(-0.06, 0.06))


def flat_box(dice: random.Random, sd: float) -> Box:
    """Every cell is as fast as every other."""
    axes = [SearchAxis(4), SearchAxis(4), SearchAxis(4)]
    return Box("flat", grid(axes, (0, 1, 2)), lambda place: 40.0, lambda place: True, sd, dice.uniform(-0.06, 0.06))


def best_already(dice: random.Random, sd: float) -> Box:
    """The profile's own flags are the best ones."""
    box = moe_box(dice, sd)
    best = max((cell for cell in box.space.cells.values() if box.fits(cell)), key=box.rate)
    space = SearchSpace(box.space.axes, box.space.cells, " ".join(map(str, best)))
    return Box("best already", space, box.rate, box.fits, box.sd, box.drift, box.wander)


@dataclass
class Tuned:
    answer: str
    regret: float
    starts: int
    share: float
    seconds: float
    """Of the slowest decision."""


def tune(box: Box, seed: int, budget: float = math.inf) -> Tuned:
    """One tune of ``box``; a start takes 10 s."""
    dice = random.Random(f"noise {seed}")
    search: list[StartOutcome] = []
    final: list[StartOutcome] = []
    slowest = 0.0
    while True:
        course = Course(box.space, budget, search, final, seed)
        began = time.perf_counter()
        phase = course.phase
        slowest = max(slowest, time.perf_counter() - began)
        if phase == "finished":
            break
        cell = (course.search_step if phase in ("screening", "narrowing") else course.final_step).cell
        number = len(search) + len(final) + 1
        place = box.space.cells[cell]
        if box.fits(place):
            log = math.log(box.rate(place)) + box.drift * number / 60 + box.wander * math.sin(number / 7)
            prompts = {f"p{i}": log + dice.gauss(0, box.sd / 3) for i in range(3)}
            start = dice.gauss(0, box.sd)
            outcome = StartOutcome(number, cell, {name: value + start for name, value in prompts.items()}, 10.0)
        else:
            outcome = StartOutcome(number, cell, {}, 5.0, "out of VRAM on CUDA0", "VRAM", loaded=False)
        (search if phase in ("screening", "narrowing") else final).append(outcome)
    verdict = read_verdict(course, "tok/s")
    chosen = verdict.keep
    best = max(box.rate(place) for place in box.space.cells.values() if box.fits(place))
    regret = 1 - box.rate(box.space.cells[chosen]) / best if chosen else 1.0
    starts = len(search) + len(final)
    share = starts / (STARTS_PER_CELL * len(box.space.cells))
    return Tuned(verdict.answer, regret, starts, share, slowest)


def simulate(seeds: int, budget: float) -> None:
    makers = [moe_box, odd_box, flat_box, best_already]
    for make, sd in itertools.product(makers, (0.01, 0.02, 0.03)):
        runs = [tune(make(random.Random(f"box {make.__name__} {seed}"), sd), seed, budget) for seed in range(seeds)]
        regrets = sorted(run.regret for run in runs)
        starts = [run.starts for run in runs]
        good = sum(run.regret <= 0.03 for run in runs)
        answers = Counter(run.answer for run in runs)
        print(
            f"{make.__name__:<13} sd {sd:.0%}: regret <= 3 % {good}/{seeds}, p90 {regrets[int(0.9 * seeds)]:.1%}, "
            f"worst {regrets[-1]:.1%}; {dict(answers)}; starts {statistics.fmean(starts):.0f} (max {max(starts)}, "
            f"share max {max(run.share for run in runs):.0%}); slowest decision {max(r.seconds for r in runs):.2f} s",
            flush=True,
        )


# -- the lab ------------------------------------------------------------------------------------------

AXES: Mapping[str, Sequence[int]] = {
    "n-cpu-moe": (0, 3, 6, 8), "threads": (1, 2), "ubatch-size": (64, 256), "spec-draft-n-max": (1, 2, 3, 4),
}  # fmt: skip
OWN = {"n-cpu-moe": 8, "threads": 1, "ubatch-size": 256, "spec-draft-n-max": 1}
SAME = ("slot-prompt-similarity=0.1,0.2,0.3", "cache-ram=0,64,128")
"""Flags without any effect on tg."""
SAME_FLAGS = {"ctx-size": 1024, "parallel": 1, "threads": 1}
"""Of the tune of identical cells: on the CPU alone, where starts differ least."""
FLAGS = {"ctx-size": 1024, "parallel": 1, "n-gpu-layers": 99, "spec-type": "draft-mtp", "spec-synth-len": 1.9,
         "no-repack": True}  # fmt: skip
PROMPTS = (
    "Write a function that merges two sorted lists.", "How many prime numbers are below 50?", "Describe a lighthouse.",
)  # fmt: skip
TOKENS, TUNES, TOP, FRESH = 96, 5, 3, 24


class Lab:
    """One folder with everything: the state, gpubox's own folders, the RPC device."""

    def __init__(
        self, folder: Path, engine: str, models: tuple[str, str], rpc_server: str, axes: Mapping[str, Sequence[int]]
    ) -> None:
        self.folder, self.engine, self.rpc_server, self.axes = folder, engine, rpc_server, axes
        self.model, self.dense = models
        self.file = folder / "truth.json"
        self.state: dict[str, Any] = {"axes": {name: list(values) for name, values in axes.items()},
                                      "reference": [], "tunes": [], "fresh": []}  # fmt: skip
        if self.file.exists():
            self.state = json.loads(self.file.read_text())
            assert self.state["axes"] == {name: list(values) for name, values in axes.items()}, "another grid"
        self.rpc_port, self.port = free_port(), free_port()
        self.cells = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def save(self) -> None:
        """In one step: a kill leaves the old file or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.state))
        new.replace(self.file)

    @contextlib.contextmanager
    def device(self) -> Iterator[None]:
        """The RPC server that plays the card, on a core of its own.

        Unpinned it lands now on the engine's core, now on another: starts of one cell then differ by 20 to 30 %,
        pinned by 3 to 9 %. A card does not share its cores either.
        """
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores)})
        process = subprocess.Popen(
            [self.rpc_server, "-H", "127.0.0.1", "-p", str(self.rpc_port), "-t", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.sched_setaffinity(0, cores)
        try:
            deadline = time.monotonic() + 10
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.rpc_port), 1):
                    break
                assert time.monotonic() < deadline, "the RPC server does not answer"
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait()

    def measure(self, cell: Mapping[str, int]) -> float:
        """tok/s of one start, by plain HTTP; the geometric mean over prompts."""
        flags = {**FLAGS, **cell, "rpc": f"127.0.0.1:{self.rpc_port}", "port": self.port, "model": self.model}
        words = [word for name, value in flags.items()
                 for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]  # fmt: skip
        process = subprocess.Popen([self.engine, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                    break
                assert process.poll() is None and time.monotonic() < deadline, f"{cell} does not load"
                time.sleep(0.05)
            rates = [self.ask(prompt) for prompt in (PROMPTS[0], *PROMPTS)][1:]
        finally:
            process.terminate()
            process.wait()
        return statistics.geometric_mean(rates)

    def ask(self, prompt: str) -> float:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS, "temperature": 0, "top_k": 1,
                "cache_prompt": False, "ignore_eos": True}  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=120) as reply:
            return float(json.load(reply)["timings"]["predicted_per_second"])

    def reference(self) -> None:
        """Every cell, STARTS_PER_CELL times, in random blocks of one start of each."""
        rows = self.state["reference"]
        while len(rows) < STARTS_PER_CELL * len(self.cells):
            block, at = divmod(len(rows), len(self.cells))
            cell = random.Random(f"block {block}").sample(self.cells, len(self.cells))[at]
            rows.append([cell, self.measure(cell)])
            self.save()
            if not len(rows) % 16:
                print(f"  reference {len(rows)}/{STARTS_PER_CELL * len(self.cells)}", flush=True)

    def tune(
        self, name: str, model: str, flags: Mapping[str, Any], over: Sequence[str], *, prompts: int, tokens: int
    ) -> dict[str, Any]:
        """One ``gpubox tune`` of a new profile."""
        home = self.folder / "home"
        places = {name: str(home / name.lower()) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
        config = home / "xdg_config_home" / "gpubox"
        (config / "profiles").mkdir(parents=True, exist_ok=True)
        (config / "config.toml").write_text(f'[engines]\nlab = "{self.engine}"\n')
        lines = [f"{flag} = {json.dumps(value)}" for flag, value in flags.items()]
        text = f'model = "{model}"\nengine = "lab"\nport = {self.port}\n\n[flags]\n' + "\n".join(lines) + "\n"
        (config / "profiles" / f"{name}.toml").write_text(text)
        command = [sys.executable, "-m", "gpubox", "tune", name, "--json", "--minutes", "15", "--prompts", str(prompts),
                   "--max-tokens", str(tokens), "--context", "0", "--keep-free", "1MiB"]  # fmt: skip
        for axis in over:
            command += ["--over", axis]
        began = time.monotonic()
        done = subprocess.run(command, env={**os.environ, **places, "HOME": str(home)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        report = json.loads(done.stdout)
        (self.folder / "last.json").write_text(done.stdout)
        return {"notes": report["report"]["notes"], "tables": report["report"]["tables"],
                "seconds": time.monotonic() - began}  # fmt: skip

    def tunes(self) -> None:
        over = [f"{name}={','.join(map(str, values))}" for name, values in self.axes.items()]
        while len(self.state["tunes"]) < TUNES + 1:
            last = len(self.state["tunes"]) == TUNES
            if last:
                tuned = self.tune("same", self.dense, SAME_FLAGS, SAME, prompts=1, tokens=48)
            else:
                flags = {**FLAGS, **OWN, "rpc": f"127.0.0.1:{self.rpc_port}"}
                tuned = self.tune("moe", self.model, flags, over, prompts=3, tokens=TOKENS)
            self.state["tunes"].append(tuned)
            self.save()
            print(f"  tune {len(self.state['tunes'])}: {self.state['tunes'][-1]['notes'][0]}", flush=True)

    def chosen(self, tuned: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """The cell that a tune keeps, and its starts."""
        table = next(table for table in tuned["tables"] if table["title"] == "Evidence")
        row = next(row for row in table["rows"] if str(row[-1]).startswith("keep"))
        starts = sum(int(row[len(self.axes)] or 1) for row in table["rows"])
        return {name: int(value) for name, value in zip(self.axes, row, strict=False)}, starts

    def fresh(self) -> None:
        """The chosen cells and the best of the reference, FRESH starts each, in random blocks."""
        means = self.means("reference")
        best = sorted(means, key=lambda key: -means[key])[:TOP]
        sides = sorted({*best, *(key_of(self.chosen(tuned)[0]) for tuned in self.state["tunes"][:TUNES])})
        rows = self.state["fresh"]
        while len(rows) < FRESH * len(sides):
            block, at = divmod(len(rows), len(sides))
            side = random.Random(f"fresh {block}").sample(sides, len(sides))[at]
            rows.append([json.loads(side), self.measure(json.loads(side))])
            self.save()

    def logs(self, part: str) -> dict[str, list[float]]:
        logs: dict[str, list[float]] = {}
        for cell, rate in self.state[part]:
            logs.setdefault(key_of(cell), []).append(math.log(rate))
        return logs

    def means(self, part: str) -> dict[str, float]:
        return {key: math.exp(statistics.fmean(values)) for key, values in self.logs(part).items()}

    def report(self) -> None:
        means, fresh = self.means("reference"), self.means("fresh")
        sd = math.sqrt(statistics.fmean(map(statistics.variance, self.logs("reference").values())))
        best = max(fresh, key=lambda key: fresh[key])
        print(f"{len(means)} cells, {len(self.state['reference'])} starts; starts of a cell differ with sd {sd:.1%}")
        print(f"reference: best {max(means, key=lambda key: means[key])}, {max(means.values()):.1f} tok/s; "
              f"slowest {min(means.values()):.1f}; on fresh starts the best is {best}")  # fmt: skip
        for number, tuned in enumerate(self.state["tunes"][:TUNES], 1):
            cell, starts = self.chosen(tuned)
            regret = 1 - fresh[key_of(cell)] / fresh[best]
            first = 1 - means[key_of(cell)] / max(means.values())
            share = starts / len(self.state["reference"])
            print(f"tune {number}: {cell}, {regret:.1%} below the best on fresh starts ({first:.1%} in the reference), "
                  f"{starts} starts = {share:.0%}, {tuned['seconds']:.0f} s; {tuned['notes'][0]}")  # fmt: skip
        print(f"identical: {self.state['tunes'][TUNES]['notes'][0]}")


def key_of(cell: Mapping[str, int]) -> str:
    return json.dumps(dict(cell), sort_keys=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_lab(arguments: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that the engine and the device are ended
    axes = {"n-cpu-moe": (0, 8), "threads": (1, 2), "spec-draft-n-max": (1, 3)} if arguments.small else AXES
    lab = Lab(arguments.folder, arguments.engine, (arguments.model, arguments.dense), arguments.rpc_server, axes)
    with lab.device():
        began = time.monotonic()
        for part in (lab.reference, lab.tunes, lab.fresh):
            part()
            print(f"{part.__name__}: done after {time.monotonic() - began:.0f} s", flush=True)
    lab.report()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parts = parser.add_subparsers(dest="part", required=True)
    simulation = parts.add_parser("simulate")
    simulation.add_argument("--seeds", type=int, default=20)
    simulation.add_argument("--time", type=float, default=math.inf, help="the time for so many starts")
    laboratory = parts.add_parser("lab")
    laboratory.add_argument("folder", type=Path)
    laboratory.add_argument("--engine", required=True)
    laboratory.add_argument("--model", required=True, help="a MoE model with an MTP head")
    laboratory.add_argument("--dense", required=True, help="a dense model")
    laboratory.add_argument("--rpc-server", required=True)
    laboratory.add_argument("--small", action="store_true", help="a grid of 8 cells, to try the script")
    given = parser.parse_args()
    if given.part == "simulate":
        simulate(given.seeds, 10 * given.time)
    else:
        run_lab(given)
