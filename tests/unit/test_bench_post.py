"""Posts of runs: the card and the Markdown block that one pastes into a forum, and what must never be in them."""

from __future__ import annotations

import json
import random
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubox.bench.kinds.sweep.sweep import grid_targets, parse_axis
from gpubox.bench.model import Doubt, Item, Plan, Provenance, RawRecord, Result, RunInfo, Sample, Target
from gpubox.bench.report.post import Post, PostColumn, PostRow, make_post, post_values
from gpubox.bench.report.post_forms import post_markdown, post_svg
from gpubox.bench.report.post_launch import shown_flags
from gpubox.bench.run_store import Run
from gpubox.bench.stats import Estimate
from gpubox.paths import Paths
from tests import gguf_bytes
from tests.bench_course import store_run
from tests.bench_runs import speed_run

SVG = "{http://www.w3.org/2000/svg}"
LETTER = 0.602
"""Of DejaVu Sans Mono, the widest of the card's fonts: its advance over its size."""


@pytest.fixture
def box(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "state", tmp_path / "cache")


def everything(post: Post) -> str:
    return post_markdown(post) + post_svg(post) + json.dumps(post_values(post), ensure_ascii=False) + post.file_stem


# -- flags ----------------------------------------------------------------------------------------------------------


def flags_of(line: str) -> list[str]:
    return list(shown_flags(["/opt/llama-server", *line.split()]).values())


def test_only_flags_that_differ_from_the_defaults_are_shown_in_their_shortest_form() -> None:
    assert flags_of(
        "--model /m/q.gguf --host 10.0.0.7 --port 8080 --n-gpu-layers 99 --n-cpu-moe 20 --batch-size 2048 "
        "--ubatch-size 1024 --flash-attn auto --cache-type-k q8_0 --no-kv-offload --cont-batching --ctx-size 65536 "
        "--jinja --metrics --alias anna --log-file /x --slot-save-path /y --temp 0.7 --threads 8 -t 12 --repack"
    ) == ["-ngl 99", "-ncmoe 20", "-c 65536", "-ctk q8_0", "-ub 1024", "-t 12", "-nkvo"]


def test_values_of_flags_are_shown_only_if_they_have_the_form_of_a_value() -> None:
    assert flags_of(
        "--rpc 10.0.0.7:50052,worker:50053 --device RPC[10.0.0.7:50052],CUDA0 --lora /home/zoe/mine.gguf "
        "--spec-draft-model /home/zoe/Qwen-0.6B-Q8_0.gguf --override-tensor blk.(1|2).ffn=CPU --cache-type-k turbo3 "
        "--turbo-window 4 --turbo-owner zoe --my-api-key hunter2 --load-mode zoe@corp.example --tensor-split 3,1"
    ) == [
        "-ot blk.(1|2).ffn=CPU", "-ts 3,1", "-dev RPC,CUDA0", "--rpc <2 servers>", "-ctk turbo3",
        "-md Qwen-0.6B-Q8_0.gguf", "-lm <value>", "--lora <file>", "--turbo-window 4", "--turbo-owner <value>",
    ]  # fmt: skip


# -- the model ------------------------------------------------------------------------------------------------------


def model_run(box: Paths, path: Path, size: int) -> Run:
    run = speed_run(box)
    (name, own), *_ = run.info.provenance.items()
    own = replace(own, model_path=str(path), model_bytes=size, props={"n_ctx": 8192, "total_slots": 2})
    run.save(replace(run.info, provenance={name: own}))
    return run


def test_parameters_come_from_the_header_of_the_file_that_was_measured(box: Paths, tmp_path: Path) -> None:
    path = tmp_path / "Tiny-1M-Q4_K_M.gguf"
    path.write_bytes(gguf_bytes.model({"general.file_type": 15}, elements=1_000_000))
    run = model_run(box, path, path.stat().st_size)

    side = make_post(run).sides[0]
    assert (side.model.name, side.model.quant, side.model.parameters) == ("Tiny-1M", "Q4_K_M", 1_000_000)
    assert side.model.bits_per_weight == 32  # its tensor is F32, whatever its name says
    assert (side.context_tokens, side.slots) == (8192, 2)

    path.write_bytes(gguf_bytes.model(elements=2_000_000))  # another file by the same name
    model = make_post(run).sides[0].model
    assert (model.name, model.quant, model.parameters, model.size_bytes) == ("Tiny-1M", "Q4_K_M", None, 4_000_192)
    assert "parameters —" in post_svg(make_post(run))


def test_the_largest_reading_of_vram_counts_with_its_number(box: Paths) -> None:
    run = speed_run(box)
    with run.owned():
        for number, item in enumerate(run.items()[:3]):
            samples = (
                Sample(0.0, vram_used_bytes=(10 + number) << 30),
                Sample(0.5),
                Sample(1.0, vram_used_bytes=1 << 30),
            )
            run.add_raw(RawRecord(item.id, "2026-11-21T18:00:00Z", 1.0, {}, samples))

    assert "12.0 GiB of 16.0 GiB (largest of 6 readings, all programs)" in post_markdown(make_post(run))


# -- figures and doubts ---------------------------------------------------------------------------------------------


def test_every_figure_says_its_interval_and_n_or_is_a_dash(box: Paths) -> None:
    markdown = post_markdown(make_post(speed_run(box, draft=True)))
    figures = [line for line in markdown.splitlines() if line.startswith("| short") or line.startswith("| code")]
    cells = [cell.strip() for line in figures for cell in line.split("|")[2:-1]]

    assert len(cells) == 5 * 6
    number = r"[\d.]+"
    wanted = re.compile(rf"—|{number} \((?:—|(?:range )?{number} – {number}), n \d+\)")
    assert not [cell for cell in cells if not wanted.fullmatch(cell)]
    assert "| short prompt, after 8K tokens | 49.65 (range 47.81 – 51.30, n 5)" in markdown


def test_doubts_stay_on_the_card_and_in_the_block(box: Paths) -> None:
    doubts = (Doubt("throttling", "zoe's card was hot"), Doubt("busy CPU", "firefox kept 3.0 cores busy"))
    run = speed_run(box, doubts=doubts, share=0.6, state="interrupted")
    with run.owned():
        run.add_result(Result(run.items()[-1].id, error="10.0.0.7 hung up"))
    post = make_post(run)

    for text in (post_markdown(post), " ".join(ET.fromstring(post_svg(post)).itertext())):
        assert "doubtful: throttling in 1 measurement" in text
        assert "busy CPU" in text
    assert "Not finished: 19 of 30 items" in post_markdown(post)
    assert "1 of 30 items could not be measured" in post_markdown(post)
    assert "firefox" not in everything(post)


def test_a_run_without_figures_says_so(box: Paths) -> None:
    post = make_post(speed_run(box, share=0.0, state="interrupted"))

    assert "No figure was measured" in post_markdown(post)
    assert "No figure was measured" in post_svg(post)


def test_the_cells_of_a_sweep_keep_their_flags_and_the_best_is_first(box: Paths) -> None:
    axis = parse_axis("n-cpu-moe=4,8")
    plan = Plan("sweep", tuple(grid_targets("annas-box", [axis])), {"axes": [axis.flag], "prompts": 1})

    def answer(item: Item) -> Result:
        tg = 40.0 if item.target.endswith("8") else 20.0
        return Result(item.id, {"tg": tg, "pp": 9 * tg, "load_seconds": 4.0}, 2.0)

    post = make_post(store_run(box, plan, answer))

    assert [row.label for row in post.rows] == ["n-cpu-moe=8", "n-cpu-moe=4"]
    assert post.sentences[0] == "n-cpu-moe=8 is faster than the owner's flags."
    assert "tg, n-cpu-moe=8" in post_svg(post)
    assert "annas-box" not in everything(post)


def test_sides_are_called_by_what_differs_and_never_by_their_profile(box: Paths) -> None:
    sides = ("annas-box", "annas-box flash-attn=off")
    targets = (Target(sides[0], "annas-box"), Target(sides[1], "annas-box", {"flash-attn": "off"}))
    plan = Plan("ab", targets, {"sides": [{"name": name, "target": name} for name in sides], "prompts": 1, "starts": 4})

    def answer(item: Item) -> Result:
        tg = (30.0 if item.target == sides[0] else 20.0) + item.start % 3
        return Result(item.id, {"tg": tg, "pp": 9 * tg, "load_seconds": 4.0}, 2.0)

    run = store_run(box, plan, answer)
    with run.owned():
        argv = ("llama-server", "--model", "/m/q.gguf", "--ctx-size", "4096")
        own = Provenance(sides[0], "annas-box", argv=argv, model_path="/m/Qwen3-8B-Q8_0.gguf")
        other = replace(own, target=sides[1], argv=(*argv, "--flash-attn", "off"))
        run.save(replace(run.info, state="finished", provenance={sides[0]: own, sides[1]: other}))
    post = make_post(run)

    assert [side.label for side in post.sides] == ["-fa auto", "-fa off"]
    assert post.flags == ("-c 4096",)
    assert post.title == "-fa off against -fa auto"
    assert post.sentences[0] == "-fa off is slower than -fa auto."
    assert "annas-box" not in everything(post)


# -- nothing private ------------------------------------------------------------------------------------------------

SHAPED = (
    "/home/zoe/secretdir/x.txt", "file:///home/zoe/secretdir/y.txt", "~zoe/z", "zoe@corp.example", "mybox.lan",
    "https://zoe:pw1234@mybox.lan:8080/v1", "10.20.30.40:50052", "fd12:3456:789a::7", "hf_abcdefghijklmnop1234",
    "sk-abcdefghijklmnop1234", "Bearer t0psecretbearer", "AKIA0123456789ABCDEFGHIJ0123456789AB",
    "GPU-12345678-1234-1234-1234-123456789abc", "aa:bb:cc:dd:ee:ff",
)  # fmt: skip
"""Secrets that their form gives away, wherever they stand."""
LEAKS = (
    "zoe", "secretdir", "corp.example", "mybox", "pw1234", "10.20.30", "789a::7", "abcdefghijklmnop", "t0psecret",
    "AKIA0", "12345678-1234", "aa:bb:cc", "hunter2",
)  # fmt: skip
PUBLIC = ("cpu", "gpus", "driver", "engine_version", "gpubox")
"""The fields whose own words are to be read; a plain word (``hunter2``) is planted in all others."""
ATTACKED_FLAGS = (
    "--alias --api-key --lora --override-tensor --device --spec-draft-model --chat-template --my-flag --rpc --host "
    "--cache-type-k --ctx-size --mmproj --spec-draft-hf --tensor-split --log-file --reasoning-effort --numa"
)
KEPT = ("id", "model_path", "kind", "state", "created_at", "started_at", "schema", "dialect")


def planted(value: Any, name: str = "") -> Any:
    """``value`` with secrets behind every text."""
    if isinstance(value, str) and name not in KEPT:
        shaped = " ".join(SHAPED)
        return f"{value} {shaped}" if name in PUBLIC else f"{value} hunter2 {shaped}"
    if isinstance(value, dict):
        return {key: planted(field, key if name not in PUBLIC else name) for key, field in value.items()}
    return [planted(element, name) for element in value] if isinstance(value, list) else value


@pytest.mark.parametrize("url", ["", "http://mybox.lan:8080", "http://127.0.0.1:8080"])
def test_no_secret_of_any_field_of_a_run_is_in_its_post(box: Paths, url: str) -> None:
    doubts = (Doubt("busy CPU", "x"), Doubt("crash", "y"))
    run = speed_run(box, "hunter2", draft=True, doubts=doubts, url=url)
    own = run.info.provenance["hunter2"]
    own = replace(own, env={"HF_TOKEN": "hunter2"}, props={"n_ctx": 4096, "model_alias": "hunter2"},
                  model_path=f"/home/zoe/secretdir/{own.model_path.rpartition('/')[2]}")  # fmt: skip
    values = msgspec.to_builtins(replace(run.info, message="m", doubts=doubts))
    plan = values.pop("plan")
    plan["options"]["note"] = planted("note")
    plan["targets"] = [plan["targets"][0] | {"model": planted("model"), "overrides": {"alias": planted("alias")}}]
    argv = ["/home/zoe/secretdir/llama-server"]
    for flag in ATTACKED_FLAGS.split():
        for secret in ("hunter2", *SHAPED):
            argv += [flag, secret]
    provenance = planted(msgspec.to_builtins(own)) | {"argv": argv}
    attacked = planted(values) | {"plan": plan, "provenance": {"hunter2": provenance}, "applied_argv": argv}
    run.save(msgspec.convert(attacked, RunInfo))
    with run.owned():
        for item in run.items()[-4:]:
            run.add_result(Result(item.id, error=" ".join(("hunter2", *SHAPED))))

    text = everything(make_post(run))
    assert "Qwen3.6-35B-A3B" in text
    assert ("Ryzen" in text) == (url != "http://mybox.lan:8080")  # the machine of another server is unknown
    assert "busy CPU" in text
    assert [leak for leak in LEAKS if leak in text] == []


@pytest.mark.parametrize(
    ("path", "name"),
    [("/home/zoe/models/zoe-tune-Q4_K_M.gguf", "***-tune Q4_K_M"), ("/srv/box/Qwen3-8B-Q8_0.gguf", "Qwen3-8B Q8_0"),
     ("/home/user/llama-3-8B-UD-Q4_K_XL.gguf", "llama-3-8B UD-Q4_K_XL"),
     ("/home/zoe/Big-Q5_K_M-00001-of-00003.gguf", "Big Q5_K_M")],
)  # fmt: skip
def test_a_models_name_is_its_files_without_the_owners(box: Paths, path: str, name: str) -> None:
    assert make_post(model_run(box, Path(path), 5)).name == name


def test_markdown_of_hostile_names_renders_no_link_and_no_tag(box: Paths) -> None:
    path = Path("/m/![x](http:evil)<img src=x>**|`\x1b[31m\u202e.gguf")
    markdown = post_markdown(make_post(model_run(box, path, 5)))

    assert not re.search(r"(?<!\\)[\[<]", markdown)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", markdown)


# -- the card -------------------------------------------------------------------------------------------------------


def extent(element: ET.Element) -> tuple[float, float, float, float]:
    """left, top, right, bottom of a text, in DejaVu Sans Mono."""
    size, text = float(element.attrib["font-size"]), element.text or ""
    cells = sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
    x, y, width = float(element.attrib["x"]), float(element.attrib["y"]), cells * size * LETTER
    left = x - width if element.attrib.get("text-anchor") == "end" else x
    return left, y - 0.76 * size, left + width, y + 0.24 * size


def faults(svg: str) -> list[str]:
    """Texts that leave the card or lie over each other, and shapes that leave it."""
    root = ET.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = [(element.text, extent(element)) for element in root.iter(f"{SVG}text") if element.text]
    wrong = [
        f"{t!r} leaves the card" for t, (a, b, c, d) in texts if a < 20 or b < 8 or c > width - 20 or d > height - 8
    ]
    for (first, a), (second, b) in combinations(texts, 2):
        if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 3:
            wrong.append(f"{first!r} lies over {second!r}")
    for rect in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        if x < 0 or y < 0 or w < 0 or h < 0 or x + w > width or y + h > height:
            wrong.append(f"a shape leaves the card: {rect.attrib}")
    return wrong


def long_names(post: Post) -> Post:
    model = replace(
        post.sides[0].model, name="Organisation_" * 12 + "Instruct", quant="UD-Q4_K_XL", parameters=1 << 39,
        active_parameters=1 << 36, bits_per_weight=4.83,
    )  # fmt: skip
    side = replace(
        post.sides[0], model=model, context_tokens=1 << 20, slots=16, vram_used_bytes=90 << 30, vram_readings=9**9
    )
    return replace(
        post, sides=(side,), cpu="C" * 60, gpus=("NVIDIA " + "X" * 48, "Y" * 48), flags=("--flag-of-a-fork 1",) * 40,
        doubts=("doubtful: " + "word " * 30,) * 6, sentences=("A long sentence " * 40,) * 4,
    )  # fmt: skip


def wide_letters(post: Post) -> Post:
    model = replace(post.sides[0].model, name="日本語モデル" * 12)
    row = replace(post.rows[0], group="深さ" * 60)
    return replace(post, sides=(replace(post.sides[0], model=model),), rows=(row, *post.rows))


def many_sides(post: Post) -> Post:
    sides = tuple(replace(post.sides[0], label=f"side {n} " + "L" * 20, flags=("-ncmoe 20",) * 20) for n in range(9))
    rows = tuple(replace(row, side=side.label) for side in sides for row in post.rows)
    return replace(post, sides=sides, rows=rows, kind="ab", sentences=("B is faster than A " * 12,))


def one_figure(post: Post) -> Post:
    return replace(post, columns=post.columns[:1], rows=(replace(post.rows[0], cells=post.rows[0].cells[:1]),))


def many_columns(post: Post) -> Post:
    columns = tuple(PostColumn(f"quantity number {n}", "parts per million", "") for n in range(9))
    rows = tuple(
        PostRow("", f"cell {n}", (Estimate(1e12 / 7, 10**6, low=-1e12 / 3, high=1e12),) * 9) for n in range(40)
    )
    return replace(post, columns=columns, rows=rows, kind="sweep")


def no_machine(post: Post) -> Post:
    side = replace(post.sides[0], engine="", flags=None)
    return replace(post, gpus=(), driver="", cpu="", ram_bytes=None, gpubox="", sides=(side,), flags=())


def markup(post: Post) -> Post:
    return replace(post, title="</svg><script>alert(1)</script>", sentences=("a < b & c > d \x1b[31m\x00 \ud800",))


@pytest.mark.parametrize(
    "change", [lambda post: post, long_names, wide_letters, many_sides, one_figure, many_columns, no_machine, markup]
)
def test_a_card_is_well_formed_and_no_text_is_cut_or_covered(box: Paths, change: Callable[[Post], Post]) -> None:
    svg = post_svg(change(make_post(speed_run(box, draft=True, doubts=(Doubt("busy CPU", "x"),)))))

    assert faults(svg) == []
    assert not re.search(r"<script|href|url\(|@import|<style|<image|<foreignObject", svg)


def test_no_random_card_has_a_text_out_of_its_place(box: Paths) -> None:
    base = make_post(speed_run(box, draft=True))
    dice = random.Random(5)
    for _ in range(60):
        changes = dice.sample([long_names, wide_letters, many_sides, no_machine, many_columns], dice.randint(0, 3))
        post = base
        for change in changes:
            post = change(post)
        rows = post.rows[: dice.randint(0, 12)]
        doubts, sentences = post.doubts[: dice.randint(0, 3)], post.sentences[: dice.randint(0, 3)]
        post = replace(
            post, rows=rows, doubts=doubts, sentences=sentences, flags=(post.flags or ())[: dice.randint(0, 40)]
        )
        assert faults(post_svg(post)) == []
