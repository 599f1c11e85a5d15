"""``gpubox bench speed|ab|sweep|tune|soak|quality|humaneval|suite``: one verb for each kind."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpubox.bench.model import Plan, Target
from gpubox.bench.options import KIND_OPTIONS, URL_KINDS
from gpubox.cli.bench.execution import resolve_targets, run_plan, target_by_url
from gpubox.cli.bench.flag_overrides import check_overrides, model_file, profile_capabilities, read_overrides
from gpubox.cli.context import Context
from gpubox.cli.options import benchmark_option
from gpubox.errors import UsageError

if TYPE_CHECKING:
    from gpubox.bench.kinds.ab.plan import Side
    from gpubox.bench.kinds.sweep.grid import Axis
    from gpubox.profiles.profile import FlagValue, Profile

PlanMaker = Callable[[Context, dict[str, Any]], Plan]
"""Makes a plan of the given arguments and options. Raises GpuboxError."""
_PROFILES = click.Argument(["profiles"], nargs=-1)


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the command line sets."""
    return {key: value for key, value in values.items() if value not in (None, ()) and value is not False}


def _kind_command(*arguments: click.Argument) -> Callable[[PlanMaker], click.Command]:
    """Makes the verb of a function called ``KIND_command``, whose docstring is its help."""

    def decorate(make_plan: PlanMaker) -> click.Command:
        kind = make_plan.__name__.removesuffix("_command")
        options = [benchmark_option(option) for option in KIND_OPTIONS[kind]]
        if kind in URL_KINDS:
            options += [
                click.Option(["--url"], metavar="URL", help="Measure the OpenAI-compatible server at URL."),
                click.Option(["--model"], metavar="NAME", help="With --url: the model to ask for."),
            ]
        options += [
            click.Option(["--dry-run"], is_flag=True, help="Print the plan only."),
            click.Option(["--now"], is_flag=True, help="Start even if a request is running; it is cut off."),
            click.Option(["--json", "as_json"], is_flag=True, help="Print the report as one JSON object."),
        ]

        @click.pass_obj
        def run(context: Context, /, dry_run: bool, now: bool, as_json: bool, **values: Any) -> None:
            plan = make_plan(context, given_options(values))
            run_plan(context, plan, dry_run=dry_run, now=now, as_json=as_json)

        text = inspect.cleandoc(make_plan.__doc__ or "")
        return click.Command(kind, params=[*arguments, *options], callback=run, help=text)

    return decorate


@_kind_command(_PROFILES)
def speed_command(context: Context, given: dict[str, Any]) -> Plan:
    """Measure the speed of PROFILES, or of the running server.

    Answers have a fixed length, temperature 0 and no thinking. A cell is one combination of prompt, depth and prefix;
    each cell has one warm-up and several repeats. The report shows TTFT, pp, tg and draft acceptance, and where tg has
    halved over depth. 95 % intervals need --starts 2 or more, or --preset chat.

    With an NVIDIA card it shows the energy per generated and per read token: the power of the cards that the server
    uses, idle power included, times the seconds of generating or reading.

    \b
    Presets:
      quick    short and code prompts
      game     one HTML game of 2,000 tokens, ten times
      lengths  128, 512 and 2,048 tokens, three times each
      chat     50 prompts from code, math and general, three seeds
    """
    from gpubox.bench.kinds.speed import llama_bench
    from gpubox.bench.kinds.speed.workloads import parse_options
    from gpubox.engines.find import find_beside_engine

    profiles, url, model = _targets_given(given)
    with_llama_bench = not (given.pop("no_llama_bench", False) or url or given.keys() & {"preset", "streams"})
    if (prefix := given.pop("prefixes", "both")) != "both":
        given["prefixes"] = [prefix]
    if "price" not in given and context.config.price_dollars is not None:
        given["price"] = context.config.price_dollars
    parse_options(given)
    if url and "starts" in given:
        raise UsageError("gpubox cannot restart a server given by its address.", "Leave out --starts.")
    _check_preset(given)
    targets = resolve_targets(context, profiles, url, model)
    if with_llama_bench:
        measured = [context.profile(target.profile) for target in targets]
        targets += [
            llama_bench.llama_bench_target(profile)
            for profile in measured
            if find_beside_engine(context.config, profile.engine, llama_bench.PROGRAM)
        ]
    return Plan("speed", tuple(targets), given, seed=_random_seed() if given.keys() & {"starts", "streams"} else 0)


def _check_preset(given: dict[str, Any]) -> None:
    """Raises UsageError for an option that the preset fixes: it would be ignored without a message."""
    from gpubox.bench.kinds.speed.workloads import PRESET_OVERRIDES

    preset = given.get("preset")
    if preset is None:
        return
    free = PRESET_OVERRIDES[preset]
    if fixed := [key for key in given if key not in ("preset", "price", *free)]:
        names = {option.key or option.name.replace("-", "_"): option.name for option in KIND_OPTIONS["speed"]}
        raise UsageError(
            f"The preset {preset} is a fixed protocol: it takes no --{names[fixed[0]]}.",
            f"It takes: {', '.join(f'--{names[key]}' for key in free)}.",
        )


@_kind_command(click.Argument(["first"], metavar="A"), click.Argument(["second"], metavar="[B]", required=False))
def ab_command(context: Context, given: dict[str, Any]) -> Plan:
    """Compare A with B, or with A after one change (--set, --vary).

    A and B are profiles, or http:// addresses of running servers. Both sides get the same prompts, in random order.
    Speed differs from one server start to the next, so each side is started at least four times; a clear verdict ends
    the run. --vary thinking and --vary completion alternate between both settings on one server. gpubox cannot restart
    a server given by its address; the report then says what it could not rule out.
    """
    import msgspec

    sides, targets = _sides(
        context, given.pop("first"), given.pop("second", None), given.pop("set", ()), given.pop("vary", None)
    )
    given["sides"] = [msgspec.to_builtins(side) for side in sides]
    return Plan("ab", tuple(targets), given, seed=_random_seed())


def _sides(
    context: Context, first: str, second: str | None, settings: Sequence[str], vary: str | None
) -> tuple[list[Side], list[Target]]:
    """The two sides and their targets. Raises UsageError, GpuboxError."""
    from gpubox.bench.kinds.ab.plan import Side

    if second is None and not settings and not vary:
        raise UsageError("ab needs two sides.", "Name a second profile, or change a flag: --set spec-type=none")
    if first.startswith("http") or (second or "").startswith("http"):
        return _sides_by_address(first, second, changed=bool(settings or vary))
    if vary and (second is not None or settings):
        raise UsageError("--vary changes one setting of A.", "Leave out B and --set.")
    target = Target(first, profile=first)
    profile = context.profile(first)
    check_overrides(context, target)
    if vary in ("thinking", "completion"):
        label = "thinking" if vary == "thinking" else "as plain text"
        other_side = Side(f"{first} {label}", first, thinking=vary == "thinking", raw=vary == "completion")
        return [Side(first, first), other_side], [target]
    if vary:
        from gpubox.bench.overrides import toggle_mmap, toggle_mtp
        from gpubox.engines.flag_changes import with_flag_keys

        capabilities = profile_capabilities(context, profile)
        label, changes = toggle_mtp(profile) if vary == "mtp" else toggle_mmap(profile, capabilities)
        other = Target(f"{first} {label}", first, with_flag_keys(changes, profile, capabilities))
    else:
        from gpubox.bench.kinds.sweep.grid import cell_name

        name = second or first
        overrides = read_overrides(context, context.profile(name), settings)
        other = Target(" ".join(filter(None, (name, cell_name(overrides)))), name, overrides)
    check_overrides(context, other)
    return _sides_of(target, other)


def _sides_by_address(first: str, second: str | None, *, changed: bool) -> tuple[list[Side], list[Target]]:
    hint = "Name two addresses: ab http://A http://B"
    if second is None or changed:
        raise UsageError("gpubox cannot change the flags of a server given by its address.", hint)
    for url in (first, second):
        if "://" not in url:  # the name of a profile would be taken for a host
            raise UsageError(f"{url!r} is not the address of a server.", hint)
    return _sides_of(target_by_url(first), target_by_url(second))


def _sides_of(*targets: Target) -> tuple[list[Side], list[Target]]:
    """One target if both sides ask the same server."""
    from gpubox.bench.kinds.ab.plan import Side

    names = [target.name for target in targets]
    if targets[0] == targets[1]:
        return [Side(names[0], names[0]), Side(f"{names[0]} again", names[0])], [targets[0]]
    return [Side(name, name) for name in names], list(targets)


@_kind_command(click.Argument(["profiles"], nargs=-1, required=True))
def sweep_command(context: Context, given: dict[str, Any]) -> Plan:
    """Find the fastest cell of a grid of flags, models and PROFILES.

    Each cell, one combination of values, is started once. Then the fastest cells and the unchanged profile are
    compared on new starts, in random order. A cell that does not load stays in the report, with its reason; cells
    that need at least as much memory as a cell that failed are skipped. `gpubox bench save` writes the best cell as a
    profile.

    Over models or several profiles, the table shows quant, file size, context and VRAM of each cell as well.

    \b
    gpubox bench sweep PROFILE --over n-cpu-moe=16..28:2
    gpubox bench sweep PROFILE --over model=Q4_K_M.gguf,Q5_K_M.gguf --over ctx-size=8192,131072
    gpubox bench sweep PROFILE OTHER THIRD
    """
    from gpubox.bench.kinds.sweep.grid import grid_targets, model_labels, parse_axis
    from gpubox.bench.overrides import MODEL
    from gpubox.engines.flag_changes import DRAFT_WINDOW_FLAGS, flag_key

    profiles = [context.profile(name) for name in dict.fromkeys(given.pop("profiles"))]
    profile = profiles[0]
    axes = [parse_axis(text) for text in given.pop("over", ())]
    overrides = read_overrides(context, profile, given.pop("set", ()))
    capabilities = profile_capabilities(context, profile)
    axes = [replace(axis, flag=flag_key(axis.flag, profile, capabilities)) for axis in axes]
    axes = [_with_model_files(context, profile, axis) if axis.flag == MODEL else axis for axis in axes]
    labels = model_labels([str(value) for axis in axes if axis.flag == MODEL for value in axis.values])
    targets = grid_targets([own.name for own in profiles], axes, overrides, labels)
    flags: dict[str, FlagValue] = {**profile.flags, **overrides}
    if any(axis.flag in DRAFT_WINDOW_FLAGS for axis in axes):
        if flags.get("spec-synth-rates", "") != "":
            raise UsageError(
                "spec-synth-rates needs exactly as many rates as the draft window is long.",
                "Sweep the window with --set spec-synth-rates= --set spec-synth-len=2.5",
            )
        given.setdefault("context_tokens", 0)
    targets = [_under_own_names(context, target) for target in targets] if len(profiles) > 1 else targets
    for target in {target.profile: target for target in reversed(targets)}.values():
        check_overrides(context, target)
    given.setdefault("by", "tg")
    given["axes"] = [*(["profile"] if len(profiles) > 1 else []), *(axis.flag for axis in axes)]
    if labels:
        given["labels"] = labels
        flags[MODEL] = model_file(context, profile, profile.model)
    own = {axis.flag: flags[axis.flag] for axis in axes if axis.flag in flags}
    if own and len(profiles) == 1:
        given["profile_values"] = {
            flag: list(value) if isinstance(value, tuple) else value for flag, value in own.items()
        }
    return Plan("sweep", tuple(targets), given, seed=_random_seed())


def _with_model_files(context: Context, profile: Profile, axis: Axis) -> Axis:
    """The axis ``model`` with the file of each value. Raises GpuboxError if one is missing or no complete model."""
    files = [model_file(context, profile, str(value)) for value in axis.values]
    if len(set(files)) != len(files):
        raise UsageError("--over model names a file twice.")
    return replace(axis, values=tuple(files))


def _under_own_names(context: Context, target: Target) -> Target:
    """``target`` without its profile's flags that an override names in another way (``c`` and ``ctx-size``)."""
    from gpubox.engines.flag_changes import flag_key

    profile = context.profile(target.profile)
    capabilities = profile_capabilities(context, profile)
    keys = {flag_key(name, profile, capabilities) for name in target.overrides}
    removed = {key: "" for key in keys if key in profile.flags and key not in target.overrides}
    return replace(target, overrides={**removed, **target.overrides})


@_kind_command(click.Argument(["profile"]))
def tune_command(context: Context, given: dict[str, Any]) -> Plan:
    """Find the fastest flags of PROFILE that fit.

    gpubox chooses values of n-cpu-moe or n-gpu-layers, threads, batch sizes, flash-attn, draft window and, with --goal
    agent, slots; what would not fit is left out. Each start of a server is chosen by what the earlier ones showed. At
    the end the best sets of flags are compared with the profile's own on new starts, in random order. --over names
    the flags and values instead. `gpubox bench save` writes the result as a profile.
    """
    return tune_plan(context, given)


def tune_plan(context: Context, given: dict[str, Any]) -> Plan:
    """The plan of ``tune``. Raises GpuboxError."""
    from gpubox.bench.kinds.tune.planning import DEFAULT_KEEP_FREE_BYTES, TuneRequest, plan_tune
    from gpubox.planner.settings import parse_size

    profile = context.profile(given.pop("profile"))
    size = given.pop("keep_free", None)
    keep_free = parse_size(size) if size else DEFAULT_KEEP_FREE_BYTES
    over, kv_types = tuple(given.pop("over", ())), tuple(given.pop("kv_types", ()))
    request = TuneRequest(given.pop("goal", "tg"), keep_free, over, kv_types, given)
    return plan_tune(profile, request, context.paths, context.config)


@_kind_command(_PROFILES)
def soak_command(context: Context, given: dict[str, Any]) -> Plan:
    """Run an agent's load on PROFILES, or on the running server, for many minutes.

    Each conversation gets tool results until it reaches --context tokens; then a new one begins. The report shows
    speed, TTFT, acceptance, memory, temperature, clocks and power over time. It names falling speed, growing memory
    and cycles of fast and slow answers.
    """
    targets = resolve_targets(context, *_targets_given(given))
    return Plan("soak", tuple(targets), {"minutes": 15.0, **given})


@_kind_command(click.Argument(["targets"], nargs=-1, required=True, metavar="A [B]..."))
def quality_command(context: Context, given: dict[str, Any]) -> Plan:
    """Measure how far the answers of A, B, ... are from those of a reference: KL divergence and perplexity.

    The reference is the first, or --reference. A target is a profile, a profile with other flags
    (A:cache-type-k=q8_0), or the http:// address of a llama-server. All must have the same vocabulary, as the quants
    of one model have.

    llama-perplexity beside the engine computes it; without that program, the servers are asked for their most likely
    tokens, which gives a lower bound of the KL divergence. The chunk of text is the sampling unit of all intervals.

    \b
    gpubox bench quality mine-q8 mine-q4 mine-iq3
    gpubox bench quality mine --set cache-type-k=q8_0 --set cache-type-v=q8_0
    gpubox bench quality mine mine:cache-type-k=q8_0 mine:cache-type-k=q4_0
    """
    from gpubox.cli.bench.quality_plan import make_quality_plan

    return make_quality_plan(context, given)


@_kind_command(_PROFILES)
def humaneval_command(context: Context, given: dict[str, Any]) -> Plan:
    """Measure pass@1 of PROFILES, or of the running server, on HumanEval.

    \b
    Modes:
      vanilla  the bare completion, as lm-eval asks it
      chat     one chat answer
      agentic  up to five rounds with a sandbox
      all      all of them, compared

    The model's programs and the grader run in the sandbox. The run is refused if no sandbox works here.
    """
    from gpubox.bench.kinds.humaneval.options import MODES, parse_options

    profiles, url, model = _targets_given(given)
    parallel = given.pop("parallel", 1)
    mode = given.pop("modes", "vanilla")
    given["modes"] = list(MODES) if mode == "all" else [mode]
    _move_temperature(given)
    parse_options(given)
    return Plan("humaneval", tuple(resolve_targets(context, profiles, url, model)), given, parallel)


@_kind_command(_PROFILES)
def suite_command(context: Context, given: dict[str, Any]) -> Plan:
    """Run twelve tasks on PROFILES, or on the running server, and rank the profiles.

    \b
    Groups of tasks, with their share of the total:
      1, 2  code generation, multi-file edits  40 %
      3     reasoning                          20 %
      4     tool use                           20 %
      5     speed                              20 %

    Programs run in the sandbox. A task whose program cannot run here shows a keyword score, which counts in no total.
    --compat computes the totals as the article "Round 3: twelve tasks, five local models" does.
    """
    from gpubox.bench.kinds.suite.tasks import parse_options

    profiles, url, model = _targets_given(given)
    _move_temperature(given)
    parse_options(given)
    return Plan("suite", tuple(resolve_targets(context, profiles, url, model)), given)


def _targets_given(given: dict[str, Any]) -> tuple[Sequence[str], str | None, str]:
    return given.pop("profiles", ()), given.pop("url", None), given.pop("model", "")


def _move_temperature(given: dict[str, Any]) -> None:
    if "temperature" in given:
        given["sampling"] = {"temperature": given.pop("temperature")}


def _random_seed() -> int:
    """The seed of the order of the server starts; another one for each run, kept in its plan."""
    return secrets.randbelow(1 << 31)
