"""Import: repeated flags are combined as in the engine, and old spellings are replaced."""

from __future__ import annotations

import tomllib

import pytest

from gpubox.engines.capabilities import find_refusals, parse_help, repeated_flags
from gpubox.engines.replaced_flags import FORK_FLAGS, FORK_NAMES, FORMER_SWITCHES, REPLACED_FLAGS
from gpubox.interchange.given_options import TargetEngine
from gpubox.interchange.profile_draft import REFERENCE_ENGINE, ProfileDraft, draft_from_arguments
from gpubox.interchange.reference_options import long_names, reference_options
from gpubox.profiles.argv import flag_argv
from gpubox.profiles.flag_values import (
    COMMA_LISTS,
    LARGEST_WINS,
    QUOTED_LISTS,
    REPEATED_FLAGS,
    TWO_WORD_FLAGS,
    split_values,
)
from gpubox.profiles.writer import profile_toml

OLD_HELP = """\
-m,    --model FNAME                    model path
-c,    --ctx-size N                     context
-fa,   --flash-attn                     enable Flash Attention
--no-mmap                               do not memory-map model
--draft-max, --draft, --draft-n N       number of tokens to draft
--lora FNAME                            path to LoRA adapter (can be repeated to use multiple adapters)
--override-kv KEY=TYPE:VALUE            advanced option to override model metadata by key. may be specified
                                        multiple times.
-fmoe, --fused-moe                      enable fused MoE
"""
OLD = parse_help(OLD_HELP)


def read(*args: str) -> ProfileDraft:
    return draft_from_arguments(["-m", "a.gguf", *args], {})


def argv(draft: ProfileDraft) -> list[str]:
    return [word for name, value in draft.flags.items() for word in flag_argv(name, value)]


@pytest.mark.parametrize(
    ("args", "value", "given"),
    [
        ("-ot a=CPU -ot b=CUDA0,c=CPU", ("a=CPU", "b=CUDA0", "c=CPU"), "--override-tensor a=CPU,b=CUDA0,c=CPU"),
        ("--lora a --lora b", ("a", "b"), "--lora a,b"),
        ('--lora "a,b" --lora c', ("a,b", "c"), '--lora "a,b",c'),
        ("--lora-scaled a:1 --lora-scaled b:2", ("a:1", "b:2"), "--lora-scaled a:1,b:2"),
        ("--control-vector a --control-vector b", ("a", "b"), "--control-vector a,b"),
        ("--override-kv a=int:1 --override-kv b=int:2", ("a=int:1", "b=int:2"), "--override-kv a=int:1,b=int:2"),
        ("-l 1+1 --logit-bias 2-1", ("1+1", "2-1"), "--logit-bias 1+1 --logit-bias 2-1"),
        ("-r a,b -r c", ("a,b", "c"), "--reverse-prompt a,b --reverse-prompt c"),
        ("-Cr 0-3 -Cr 8-11", ("0-3", "8-11"), "--cpu-range 0-3 --cpu-range 8-11"),
        ("--rpc h:1 --rpc i:2", ("h:1", "i:2"), "--rpc h:1,i:2"),
        ("-a x --alias y", ("x", "y"), "--alias x,y"),
        ("--spec-type ngram-mod --spec-type ngram-simple", ("ngram-mod", "ngram-simple"), "--spec-type "
         "ngram-mod,ngram-simple"),
        ("--control-vector-layer-range 3 9", (3, 9), "--control-vector-layer-range 3 9"),
        ("-ncmoe 20 --n-cpu-moe 8", 20, "--n-cpu-moe 20"),
        ("-dev CUDA0 -dev CUDA1", "CUDA1", "--device CUDA1"),
        ("-ts 1,2 -ts 3", 3, "--tensor-split 3"),
    ],
)  # fmt: skip
def test_a_flag_given_twice_becomes_what_llama_server_makes_of_it(args: str, value: object, given: str) -> None:
    draft = read(*args.split())
    assert list(draft.flags.values()) == [value]
    assert argv(draft) == given.split()
    assert argv(read(*argv(draft))) == argv(draft)


@pytest.mark.parametrize("name", sorted(COMMA_LISTS | QUOTED_LISTS | REPEATED_FLAGS))
@pytest.mark.parametrize("items", [("a",), ("a", "b"), ("a b", "-c", '"q"', "é")], ids=len)
def test_several_values_survive_the_profile_and_the_command_line(name: str, items: tuple[str, ...]) -> None:
    if name not in COMMA_LISTS:
        items = (*items, "x,y", '"x",y')
    draft = ProfileDraft(model="m")
    draft.flags[name] = items
    assert tuple(tomllib.loads(profile_toml(draft.finish("p").profile))["flags"][name]) == items
    words = flag_argv(name, items)
    assert [item for at in range(1, len(words), 2) for item in split_values(name, words[at])] == list(items)


def test_every_flag_with_a_rule_is_one_the_engine_has() -> None:
    assert {
        name
        for name in COMMA_LISTS | QUOTED_LISTS | REPEATED_FLAGS | LARGEST_WINS | TWO_WORD_FLAGS
        if not reference_options().option(name)
    } == set()


def test_what_the_last_of_several_replaces_is_named_and_what_is_the_same_twice_is_no_note() -> None:
    assert any("--top-k" in note and "5 was dropped" in note for note in read("--top-k", "5", "--top-k", "6").notes)
    assert read("-c", "5", "-c", "5", "--jinja", "--jinja").notes == []
    (note,) = read("--jinja", "--no-jinja").notes
    assert "--jinja was dropped" in note
    (note,) = [note for note in read("--new-flag", "a", "--new-flag", "b").notes if "dropped" in note]
    assert "a was dropped" in note and "may add them up" in note


def test_template_kwargs_of_several_flags_are_one_object() -> None:
    draft = read("--chat-template-kwargs", '{"a": 1, "b": 2}', "--chat-template-kwargs", '{"b": 3}')
    assert draft.template_kwargs == {"a": 1, "b": 3}
    assert any('{"b": 2} was dropped' in note for note in draft.notes)


def test_an_order_that_a_profile_cannot_keep_is_said() -> None:
    assert any("order" in note for note in read("-ot", "a=CPU", "--cpu-moe", "-ot", "b=CPU").notes)
    assert read("-ot", "a=CPU", "-ot", "b=CPU", "--cpu-moe").notes == []


@pytest.mark.parametrize("name", sorted(REPLACED_FLAGS))
def test_every_old_option_becomes_one_the_engine_takes_or_is_left_out_and_is_named(name: str) -> None:
    typed = f"--{name}" if len(name) > 3 else f"-{name}"
    draft = read(typed, *["7", "8"][: REPLACED_FLAGS[name].takes], "-c", "512")
    assert find_refusals(reference_options(), draft.flags) == []
    assert draft.flags["ctx-size"] == 512
    assert any(typed in note for note in draft.notes)


@pytest.mark.parametrize("name", sorted(FORMER_SWITCHES))
def test_a_switch_that_takes_a_value_today_is_on(name: str) -> None:
    draft = read(f"--{name}", "-c", "512")
    assert draft.flags == {name: "on", "ctx-size": 512}
    assert read(f"--{name}", "off").flags == {name: "off"}


@pytest.mark.parametrize(
    ("args", "mode"),
    [
        ("--no-mmap", "none"),
        ("--mlock", "mmap+mlock"),
        ("--mlock --no-mmap", "mlock"),
        ("--no-mmap --mlock", "mlock"),
        ("--mmap", "mmap"),
        ("-dio --no-mmap", "dio"),
    ],
)
def test_the_switches_of_loading_become_one_mode(args: str, mode: str) -> None:
    draft = read(*args.split())
    assert draft.flags == {"load-mode": mode}
    (note,) = draft.notes
    assert args in note and mode in note


@pytest.mark.parametrize(
    ("args", "flags"),
    [
        ("-md d.gguf", {"model-draft": "d.gguf", "spec-type": "draft-simple"}),
        ("-md eagle3-x.gguf", {"model-draft": "eagle3-x.gguf"}),
        ("-md d.gguf --spec-type draft-eagle3", {"model-draft": "d.gguf", "spec-type": "draft-eagle3"}),
        ("--spec-type mtp", {"spec-type": "draft-mtp"}),
        ("-ctk fp16", {"cache-type-k": "f16"}),
        ("--spec-type ngram-map-k --spec-ngram-size-n 9", {"spec-type": "ngram-map-k",
                                                           "spec-ngram-map-k-size-n": 9}),
        ("--mtp", {"spec-type": "draft-mtp"}),
    ],
)  # fmt: skip
def test_drafting_as_older_builds_wrote_it(args: str, flags: dict[str, object]) -> None:
    draft = read(*args.split())
    assert {reference_options().canonical(k): v for k, v in draft.flags.items()} == {
        reference_options().canonical(k): v for k, v in flags.items()
    }
    assert find_refusals(reference_options(), draft.flags) == []


@pytest.mark.parametrize("name", sorted(FORK_FLAGS))
def test_a_forks_option_gets_its_long_name_and_its_own_values_and_keeps_its_neighbours_as_typed(name: str) -> None:
    typed = f"--{name}" if len(name) > 5 or "-" in name else f"-{name}"
    draft = read(typed, *["7"][: FORK_FLAGS[name][0]], "--no-mmap", "-fa")
    long = FORK_NAMES.get(name, name)
    assert draft.flags == {long: 7 if FORK_FLAGS[name][0] else True, "no-mmap": True, "flash-attn": True}
    assert any("fork" in note for note in draft.notes)


def test_nothing_is_respelled_for_an_engine_that_still_takes_it() -> None:
    args = ["-m", "a", "-fa", "--no-mmap", "--draft-max", "8", "-fmoe", "-c", "8"]
    draft = draft_from_arguments(args, {}, target=TargetEngine("mine", OLD))
    assert draft.flags == {"flash-attn": True, "no-mmap": True, "draft-max": 8, "fused-moe": True, "ctx-size": 8}
    assert draft.notes == []


def test_an_engine_that_wants_a_flag_repeated_gets_it_so() -> None:
    again = repeated_flags(OLD)
    assert again == {"lora", "override-kv"}
    assert flag_argv("lora", ("a,b", "c"), again) == ["--lora", "a,b", "--lora", "c"]
    assert repeated_flags(REFERENCE_ENGINE.capabilities) == set()


def test_values_are_taken_as_llama_server_takes_them() -> None:
    # the next word is the value unless it is a known option
    assert read("--grammar", "-x", "--alias", "–y").flags == {"grammar": "-x", "alias": "–y"}
    assert read("-fa", "-ngl", "9").flags == {"flash-attn": "on", "n-gpu-layers": 9}
    assert "ngl" not in long_names()
