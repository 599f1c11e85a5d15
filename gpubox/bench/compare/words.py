"""The answer of a comparison as one sentence; where nothing can be told, the whole command that tells it. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpubox.bench.compare.contest import Contest
from gpubox.bench.compare.starts import MIN_STARTS, Contrast, Judged
from gpubox.bench.kinds.ab import USUAL_PROMPTS, USUAL_STARTS, USUAL_TOKENS
from gpubox.bench.model import Doubt, Plan, RunInfo, Target
from gpubox.bench.overrides import format_flag_value
from gpubox.bench.provenance import comparable_argv
from gpubox.bench.questions import DOMAINS
from gpubox.bench.report.formatting import format_change
from gpubox.bench.report.model import SPEED_UNITS, Metric
from gpubox.bench.stats import MARGIN
from gpubox.profiles.argv import given_flags
from gpubox.profiles.profile import Profile

LOAD_SECONDS = 20
"""Assumed for the load of a model that no run has started yet."""
_MORE = 3
"""So many times more answers."""
_PROBLEMS = 164
"""Of HumanEval."""


def ab_command(first: Target, second: Target, starts: int = USUAL_STARTS) -> str:
    """The command line that compares two targets."""
    names = [target.url or target.profile for target in (first, second)]
    words = ["gpubox", "bench", "ab", *dict.fromkeys(names)]
    for flag, value in second.overrides.items():
        words += ["--set", f"{flag}={format_flag_value(value)}" if value != "" else f"{flag}="]
    return shlex.join([*words, *(["--starts", str(starts)] if starts != USUAL_STARTS else [])])


def ab_tells(first: Target, second: Target, slower_rate: float | None) -> str:
    """That ``ab`` tells which is faster, and in what time. ``slower_rate``: tg of the slower one, tok/s."""
    takes = ""
    if slower_rate:
        seconds = 2 * USUAL_STARTS * (LOAD_SECONDS + (1 + USUAL_PROMPTS * len(DOMAINS)) * USUAL_TOKENS / slower_rate)
        takes = f" in at most {about_time(seconds)}"
    return f"`{ab_command(first, second)}` tells it{takes}."


def change_tells(before: Profile, after: Profile, slower_rate: float | None) -> str:
    """The same for a profile and its changed form, which is not written."""
    old, new = ({**profile.flags, "model": profile.model} for profile in (before, after))
    changed = {name: new.get(name, "") for name in (*old, *new) if old.get(name) != new.get(name)}
    target = Target(before.name, before.name)
    if not changed:
        other = Target("changed", f"{before.name}-changed")
        return f"Copy the profile, change the copy, then {ab_tells(target, other, slower_rate)}"
    return ab_tells(target, Target("changed", before.name, changed), slower_rate)


def runs_tell(first: tuple[RunInfo, Metric], second: tuple[RunInfo, Metric], looks: int) -> str:
    """The same for two stored runs and the row they are compared for. ``looks``: needed; 0: what adds a run of each."""
    (info, metric), (other_info, other) = first, second
    commands = dict.fromkeys(f"`{_command(info.plan.kind, _target(*own))}`" for own in (first, second))
    if not looks:
        return " and ".join(commands) + (
            "; between them `gpubox edit NAME --set FLAG=VALUE`." if len(commands) == 1 else "."
        )
    if metric.unit not in SPEED_UNITS:
        return more_answers(info, other_info)
    if sides := _sides(first, second):
        slower = min(metric.estimate.value, other.estimate.value) if metric.unit == "tok/s" else None
        return ab_tells(*sides, slower)
    seconds = looks * sum(own.seconds or 0.0 for own in (info, other_info))
    takes = f" It takes about {about_time(seconds)}." if seconds else ""
    return f"Measured in turn, {looks} times each, with {' and '.join(commands)}, they tell it.{takes}"


def about_time(seconds: float) -> str:
    """``4 minutes``; less than one in seconds."""
    if seconds <= 45:
        return f"{seconds:.0f} seconds"
    minutes = math.ceil(seconds / 60)
    if minutes > 90:
        return f"{math.ceil(minutes / 60)} hours"
    return f"{minutes} minutes" if minutes > 1 else "a minute"


def _target(info: RunInfo, metric: Metric) -> Target:
    named = [target for target in info.plan.targets if target.name in (metric.group, metric.target)]
    return named[0] if named else Target(metric.target, metric.target)


def _sides(first: tuple[RunInfo, Metric], second: tuple[RunInfo, Metric]) -> tuple[Target, Target] | None:
    """Two targets that ``ab`` can start; ``None``: it has no words for what differs."""
    (one, other) = sides = _target(*first), _target(*second)
    same = (one.url or one.profile) == (other.url or other.profile)
    if one.overrides or other.overrides:
        plain = [side for side in sides if not side.overrides]
        return (plain[0], other if plain[0] is one else one) if same and plain else None
    if not same:
        return sides
    older, newer = sorted((first[0], second[0]), key=lambda info: info.created_at)
    changed = _older_flags(older, newer, one.name)
    return (one, Target("as it was", one.profile, changed)) if changed and not one.url else None


def _older_flags(older: RunInfo, newer: RunInfo, target: str) -> Mapping[str, str]:
    """What a profile had before it was changed: its flags are those of the newer run."""
    argvs = [info.provenance[target].argv if target in info.provenance else () for info in (older, newer)]
    old, new = (given_flags(comparable_argv(argv)) for argv in argvs)
    changed = [name for name in (*old, *new) if old.get(name) != new.get(name)]
    return {name.lstrip("-"): old[name] or "true" if name in old else "" for name in changed}


def more_answers(*runs: RunInfo) -> str:
    """The command that asks more than these runs of one kind did, and about how long it takes."""
    kind, options = runs[0].plan.kind, runs[0].plan.options
    infos = {info.id: info for info in runs}
    command = _command(kind, *(target for info in infos.values() for target in info.plan.targets))
    times: float = _MORE
    if kind == "suite":
        command += f" --repeats {_MORE * int(options.get('repeats') or 1)}"
    elif kind == "quality":
        command += " --text FILE"
    elif (limit := options.get("limit")) and limit < _PROBLEMS:
        command += " --mode all" if len(options.get("modes", ())) > 1 else ""
        times = _PROBLEMS / limit
    else:  # 108 answers of at most 4096 tokens, in place of 164 of 1024
        command = command.replace(f"bench {kind}", "bench suite", 1) + " --repeats 9"
    seconds = times * sum(info.seconds or 0.0 for info in infos.values())
    text = ", with a text three times as long," if kind == "quality" else ""
    return f"`{command}`{text} tells more{f', in about {about_time(seconds)}' if seconds else ''}."


def _command(kind: str, *targets: Target) -> str:
    words = dict.fromkeys(target.url or target.profile or target.name for target in targets)
    urls = [word for word in words if "://" in word]
    return shlex.join(["gpubox", "bench", kind, *(("--url", urls[0]) if urls else words)])


CAUSES = {
    "busy CPU": "your CPU was busy",
    "other GPU process": "another program used the GPU",
    "foreign request": "another client used the server",
    "throttling": "the GPU was throttled",
    "swap": "memory was short",
    "clocks": "the GPU changed its clocks",
}
"""Kind of doubt -> why speeds differed."""
_MOST_STARTS = 40
_FINE = 0.02
"""A difference below it needs no further starts."""
Label = Callable[[str], str]
"""The name of a cell in a sentence."""


def winner(contest: Contest, judged: dict[str, Judged], *, lossy: bool = False) -> str:
    """The fastest cell that is faster than the present flags beyond doubt; empty: none. ``lossy``: of those too."""
    faster = [cell for cell, row in judged.items() if row.answer == "faster"]
    faster = [cell for cell in faster if lossy or cell not in contest.rules.lossy]
    return max(faster, key=lambda cell: contest.mean(cell) or -math.inf, default="")


def leader(contest: Contest, judged: dict[str, Judged]) -> str:
    """The cell that the figures below the sentence are about."""
    best = winner(contest, judged) or winner(contest, judged, lossy=True)
    return best or max(judged, key=lambda cell: contest.mean(cell) or -math.inf, default="")


def answer_sentence(
    contest: Contest, judged: dict[str, Judged], label: Label, doubts: Iterable[Doubt], plan: Plan
) -> str:
    """Faster, slower, equal, or why it cannot be told and what would settle it."""
    own_cell, count = contest.rules.own, contest.compared
    own = label(own_cell)
    many = len(contest.rules.cells) > 2
    if why := contest.failure_of(own_cell):
        others = [cell for cell in contest.rules.cells[1:] if contest.starts_of(cell)]
        could = f" {label(others[0])} could." if others else ""
        return f"{_capital(own)} could not be measured: {why}.{could}"
    if not judged:
        if any(not contest.hopeless(cell) for cell in contest.rules.cells[1:]):
            return f"Nothing can be told: there was no time to compare others.{_longer(contest, plan.targets)}"
        return f"No other set of flags could be measured: keep {own}."
    if best := winner(contest, judged):
        return f"{_capital(label(best))} is faster than {own}{f': the best of the {count} compared' if many else ''}."
    if lossy := winner(contest, judged, lossy=True):
        return (
            f"{_capital(label(lossy))} is faster than {own}, but it changes the answers: `gpubox bench quality` "
            "compares them before you keep it."
        )
    cell = leader(contest, judged)
    open_rows = [row for row in judged.values() if row.answer != "slower"]
    if many and not open_rows:
        return f"Nothing is faster than {own}, of the {count} compared: keep {own}."
    if many and all(row.answer == "equal" for row in open_rows):
        within = max(row.within or 0.0 for row in open_rows)
        return f"The best of the {count} compared and {own} are equally fast, within {within:.0%}: keep {own}."
    cause, settled = _cause(judged[cell].contrast, doubts), _settled(contest, judged, cell, plan)
    if many:
        return f"Whether one of the {count} compared is faster than {own} cannot be told: {cause}. Keep {own}.{settled}"
    return pair_sentence(judged[cell], label(cell), own, f"{cause}.{settled}")


def pair_sentence(row: Judged, second: str, first: str, why: str) -> str:
    """One of two beside the other. ``why`` it cannot be told, and what would settle it."""
    if row.answer == "equal":
        return f"{second} and {first} are equally fast, within {row.within or 0:.0%}."
    if row.answer == "cannot tell":
        return f"Whether {second} is faster than {first} cannot be told: {why}"
    return f"{second} is {row.answer} than {first}."


def figures(measure: str, cell: str, label: Label, row: Judged) -> str:
    """The figures below the sentence; empty without a measured pair."""
    contrast = row.contrast
    if contrast is None:
        return ""
    ends = ""
    if row.interval:
        low, high = map(format_change, row.interval)
        ends = f", 95 % interval {low} to {high}"
    count = contrast.starts
    sample = f"{count} {'start' if count == 1 else 'starts'} of each"
    return f"{_capital(label(cell))} measured {format_change(contrast.ratio)} {measure}{ends}, {sample}."


def _cause(contrast: Contrast | None, doubts: Iterable[Doubt]) -> str:
    seen = {doubt.kind for doubt in doubts}
    if known := [text for kind, text in CAUSES.items() if kind in seen]:
        return " and ".join(known[:2])
    if contrast is None or contrast.starts < MIN_STARTS:
        return "there were too few starts"
    return "speeds differ more from start to start than between them" if contrast.enough else "nothing was restarted"


def _settled(contest: Contest, judged: dict[str, Judged], cell: str, plan: Plan) -> str:
    """The command that would settle it, and its time."""
    by_name = {target.name: target for target in plan.targets}
    contrast, starts = judged[cell].contrast, USUAL_STARTS
    if contrast and contrast.enough:
        needed = max(abs(contrast.log_ratio) - math.log1p(MARGIN), _FINE)
        counts = range(contrast.starts + 2, _MOST_STARTS + 1, 2)
        starts = next((count for count in counts if contrast.half_width(count) <= needed), 0)
    sides = by_name[contest.rules.own], by_name[cell]
    command = ab_command(*sides, starts or USUAL_STARTS) + _asked(plan)
    took = f"in about {about_time(2 * (starts or USUAL_STARTS) * contest.per_start)}" if contest.per_start else ""
    if any(side.url for side in sides):
        again = f"`{command}` asks again{took and f' {took}'}"
        return f" gpubox cannot restart a server by its address: restart it, then {again}."
    if not starts:
        return (
            " More starts now would hardly settle it: end what disturbs the box (other programs, heat, a power limit), "
            f"then `{command}` tells more{took and f' {took}'}."
        )
    return f" `{command}` would settle it{took and f', {took}'}."


def _asked(plan: Plan) -> str:
    """The options of an ``ab`` run that decide how long a start takes."""
    flags = {"prompts": "--prompts", "max_tokens": "--max-tokens", "context_tokens": "--context"}
    given = plan.options if plan.kind == "ab" else {}
    return "".join(f" {flag} {given[name]}" for name, flag in flags.items() if given.get(name) is not None)


def _longer(contest: Contest, targets: Sequence[Target]) -> str:
    per_start = contest.per_start
    if not per_start:
        return ""
    cells = min(len(contest.rules.cells), contest.rules.finalists + 1)
    minutes = math.ceil(per_start * (len(contest.rules.cells[:24]) + (MIN_STARTS + 2) * cells) / 60)
    return f" `gpubox tune {shlex.quote(targets[0].profile)} --minutes {minutes}` would do."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("your ") else text
