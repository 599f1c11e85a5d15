"""Real client programs against a gateway, with another model asked by another client between their requests.

usage: gateway_clients.py LLAMA-SERVER MODEL.gguf [--python PYTHON] [--js FOLDER] [--aider AIDER] [--lm-eval LM_EVAL]
                          [--opencode OPENCODE] [--problems 12] [--only NAME,NAME]
Each program is installed by hand, in a venv of its own, and gets the address, a key and a model name:
    uv venv /tmp/py && uv pip install --python /tmp/py/bin/python openai anthropic ollama litellm langchain-openai
                                                                                       --python /tmp/py/bin/python
    npm install openai @anthropic-ai/sdk ollama ai @ai-sdk/openai-compatible           --js the folder
    uv venv /tmp/ai && uv pip install --python /tmp/ai/bin/python aider-chat           --aider /tmp/ai/bin/aider
    uv venv /tmp/lm && uv pip install --python /tmp/lm/bin/python 'lm_eval[api]'       --lm-eval /tmp/lm/bin/lm_eval
    npm install opencode-ai (the program is in its package opencode-linux-x64)         --opencode .../bin/opencode
Two profiles share one RPC device, which serves one server at a time: so every switch is a real one. LLAMA-SERVER needs
ggml-rpc-server beside it. lm-eval must give the same answers and scores as without the gateway and without switches.
Prints a line for each client, and exits 1 if one does not work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from box import gpubox, options, own_folders
from fit_truth import rpc_servers
from gateway_box import base_port, chat, gateway_config, launch_profile

from tests.gateway_process import Gateway

PACKAGES = ("openai", "anthropic", "litellm", "ollama", "open_webui")
PROGRAMS = Path(__file__).parent / "client_programs"
SECONDS = 900.0
LINE_SECONDS = 5.0
"""Within so long after an answer the gateway says that it was given."""
WAIT_SECONDS = 6
"""The gateway's: short, so that a client that is always busy sees switches too."""


class Box:
    """The gateway, and the client that asks for the other model."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.keys = gateway, {"swapper": self._key("swapper")}

    def key(self, client: str) -> str:
        """The key of a client, made when it is asked for first."""
        if client not in self.keys:
            self.keys[client] = self._key(client)
        return self.keys[client]

    def _key(self, client: str) -> str:
        return gpubox("keys", "add", client).strip().splitlines()[-1]

    def swap(self) -> None:
        """Another client asks for the other model, which takes the place of the first. Ends the script on an error."""
        headers = {"Authorization": f"Bearer {self.keys['swapper']}"}
        reply = chat(self.gateway.port, "second", "Say hello", 2, stream=False, headers=headers, timeout=SECONDS)
        if reply.status != 200:
            sys.exit(f"the other client's request failed: {reply.status} {reply.body[:300]!r} {reply.error}")

    @property
    def loads(self) -> int:
        """How often the first model was loaded."""
        done = [
            event for _, event in self.gateway.named("switch") if (event["kind"], event["step"]) == ("start", "done")
        ]
        return sum(event["profile"] == "first" for event in done)

    def requests(self, client: str) -> list[dict[str, Any]]:
        """The finished requests of one client."""
        return [event for _, event in self.gateway.named("request") if event["client"] == client]

    def answered(self, client: str, before: int) -> bool:
        """Whether all requests of the client since its first ``before`` ones were answered; there is one at least."""
        end = time.monotonic() + LINE_SECONDS
        while len(self.requests(client)) == before and time.monotonic() < end:
            time.sleep(0.02)
        new = self.requests(client)[before:]
        return bool(new) and all(request["outcome"] == "done" for request in new)

    @contextmanager
    def swapping(self, client: str) -> Iterator[None]:
        """Meanwhile the other client asks as soon as this one has got an answer."""
        ended = threading.Event()

        def work() -> None:
            seen = 0
            while not ended.wait(0.02):
                if len(self.requests(client)) > seen:
                    seen = len(self.requests(client))
                    self.swap()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def main() -> None:
    arguments = options(__doc__, "engine", "model", "--python", "--js", "--aider", "--lm-eval", "--opencode",
                        problems=12, only="")  # fmt: skip
    checks: dict[str, tuple[str | None, Callable[[Box, str], str]]] = {
        **{name: (arguments.python, partial(client_program, program=f"{name}_client.py")) for name in PACKAGES},
        "js": (arguments.js, partial(client_program, program="js_client.mjs")),
        "aider": (arguments.aider, aider),
        "opencode": (arguments.opencode, opencode),
        "lm-eval": (arguments.lm_eval, lambda box, path: lm_eval(box, path, arguments.problems)),
    }
    failed = 0
    with own_folders(arguments.engine) as folder, rpc_servers(Path(arguments.engine).parent, 1) as (rpc,):
        write_profiles(folder, arguments, rpc)
        gateway = Gateway()
        try:
            box = Box(gateway)
            for name, (program, run) in checks.items():
                if arguments.only and name not in arguments.only.split(","):
                    continue
                if program is None:
                    print(f"{name:<10} not given")
                    continue
                began, loads = time.monotonic(), box.loads
                problem = run(box, program)
                failed += bool(problem)
                print(
                    f"{name:<10} {'FAILED' if problem else 'works '}  {len(box.requests(name))} requests, "
                    f"{box.loads - loads} loads of its model, {time.monotonic() - began:.0f} s\n{problem}".rstrip(),
                    flush=True,
                )
        finally:
            seconds = gateway.stop()
            print(f"the gateway ended in {seconds:.1f} s{gateway.problems()}")
    sys.exit(failed > 0)


def write_profiles(folder: Path, arguments: argparse.Namespace, rpc: str) -> None:
    """Two profiles that exclude each other, one beside them, and two that are broken."""
    dies = folder / "dies"
    dies.write_text(
        '#!/bin/sh\ncase "$*" in *--help*|*--version*|*--list-devices*|*--log-jsonl*) '
        f'exec "{arguments.engine}" "$@";; esac\nsleep 7\n'
        'echo "llama_model_load: error loading model: it dies" >&2\nexit 1\n'
    )
    dies.chmod(0o755)
    gateway_config(folder, {"dies": dies}, wait_seconds=WAIT_SECONDS)
    (folder / "tools.jinja").write_text(TEMPLATE)
    shared = {"rpc": rpc, "n-gpu-layers": 99, "parallel": 1, "threads": 2, "n-predict": 80, "cache-prompt": False}
    launch_profile(folder, "first", arguments.model, "real",
                   {**shared, "ctx-size": 8192, "chat-template-file": str(folder / "tools.jinja")})  # fmt: skip
    launch_profile(folder, "second", arguments.model, "real", {**shared, "ctx-size": 1024})
    beside = {"embeddings": True, "pooling": "mean", "ctx-size": 512, "parallel": 1, "threads": 1}
    launch_profile(folder, "vectors", arguments.model, "real", beside, companion=True)
    launch_profile(folder, "missing", "/nowhere/at-all.gguf", "real", {})
    launch_profile(folder, "dies", arguments.model, "dies", {"ctx-size": 512}, companion=True)


def environment(home: str) -> dict[str, str]:
    """A client's: with a home of its own, and without gpubox's folders and Python path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON", "OPENAI_"))}
    return {**kept, "HOME": home, "PWD": home}  # opencode believes PWD, not where it runs


def finish(words: list[str], home: str) -> str:
    """Runs a client program to its end, in ``home``. Returns what it printed, on one line."""
    done = subprocess.run(
        words, cwd=home, env=environment(home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return " ".join(done.stdout.split())


# -- one function for each client: what went wrong, or nothing ---------------------------------------------


def client_program(box: Box, path: str, program: str) -> str:
    """The steps of one program of ``client_programs``, each after a switch to the other model.

    ``path``: the Python that runs it, or the folder with the packages for node.
    """
    problems, name = [], program.partition("_client")[0]
    runner, more = (["node"], [path]) if program.endswith(".mjs") else ([path, "-u"], [])
    given = (f"http://127.0.0.1:{box.gateway.port}", box.key(name), "first", "vectors", "missing", "dies")
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [*runner, str(PROGRAMS / program), *given, *more], cwd=home, env=environment(home), bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        ending = threading.Timer(SECONDS, process.kill)
        ending.start()
        box.swap()
        process.stdin.write("go\n")
        for line in process.stdout:
            if not line.startswith(("ok ", "FAILED ", "Traceback")):
                continue  # litellm's warnings
            print(f"    {name}: {line}", end="", flush=True)
            if not line.startswith("ok "):
                problems.append(line)
            box.swap()
            with contextlib.suppress(BrokenPipeError):  # that was its last step
                process.stdin.write("go\n")
        ending.cancel()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    return "".join(problems)


def aider(box: Box, program: str) -> str:
    """Two questions about a file, streamed and not; then a wrong key and a wrong model."""
    base, key, problems = f"http://127.0.0.1:{box.gateway.port}/v1", box.key("aider"), []
    with tempfile.TemporaryDirectory() as home, box.swapping("aider"):
        (Path(home) / "calc.py").write_text("def add(a, b):\n    return a - b\n")

        def ask(*more: str, model: str = "first", key: str = key) -> str:
            words = ["--openai-api-base", base, "--openai-api-key", key, "--model", f"openai/{model}"]
            quiet = ["--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings"]
            return finish([program, *words, *quiet, *more, "calc.py"], home)

        for options in ((), ("--no-stream",)):
            before = len(box.requests("aider"))
            text = ask("--message", "What does calc.py do?", *options)
            if not box.answered("aider", before) or "litellm." in text:
                problems.append(f"aider {' '.join(options)}: {text[-600:]}\n")
        if "no profile 'nope'" not in (text := ask("--message", "Hello", model="nope")):
            problems.append(f"aider does not show what is wrong with the model: {text[-600:]}\n")
        if "key is missing or wrong" not in (text := ask("--message", "Hello", key="wrong")):
            problems.append(f"aider does not show what is wrong with the key: {text[-600:]}\n")
    return "".join(problems)


def opencode(box: Box, program: str) -> str:
    """One session of two turns, in which its title is asked for beside the first; then a wrong key and model."""
    problems = []
    with tempfile.TemporaryDirectory() as home, box.swapping("opencode"):

        def ask(*words: str, model: str = "first", key: str = box.key("opencode")) -> str:
            models = {name: {"name": name, "limit": {"context": 8192, "output": 60}} for name in ("first", "nope")}
            options = {"baseURL": f"http://127.0.0.1:{box.gateway.port}/v1", "apiKey": key}
            provider = {"npm": "@ai-sdk/openai-compatible", "name": "gpubox", "options": options, "models": models}
            settings = {"provider": {"gpubox": provider}, "model": f"gpubox/{model}"}
            (Path(home) / "opencode.json").write_text(json.dumps(settings))
            return finish([program, "run", *words], home)

        for turn in range(2):
            before = len(box.requests("opencode"))
            text = ask("Say hello", *(("--continue",) if turn else ()))
            if not box.answered("opencode", before) or "Error" in text:
                problems.append(f"opencode, turn {turn + 1}: {text[-600:]}\n")
        if "no profile 'nope'" not in (text := ask("Hello", model="nope")):
            problems.append(f"opencode does not show what is wrong with the model: {text[-600:]}\n")
        if "key is missing or wrong" not in (text := ask("Hello", key="wrong")):
            problems.append(f"opencode does not show what is wrong with the key: {text[-600:]}\n")
    return "".join(problems)


def lm_eval(box: Box, program: str, problems: int) -> str:
    """One small task as completions and as chats, through the gateway and directly: the same answers and scores."""
    lines = []
    with tempfile.TemporaryDirectory() as home:
        questions = [{"q": f"{a} plus {a + 3} is", "a": str(2 * a + 3)} for a in range(problems)]
        (Path(home) / "sums.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
        (Path(home) / "sums.yaml").write_text(TASK)
        for api, path in (("local-completions", "completions"), ("local-chat-completions", "chat/completions")):
            with box.swapping("lm-eval"):
                ours = _evaluate(
                    program, home, api, f"http://127.0.0.1:{box.gateway.port}/v1/{path}", box.key("lm-eval")
                )
            chat(box.gateway.port, "first", "Hello", 1, stream=False,
                 headers={"Authorization": f"Bearer {box.key('lm-eval')}"})  # fmt: skip
            direct = f"http://127.0.0.1:{base_port(box.gateway.status(), 'first')}/v1/{path}"
            theirs = _evaluate(program, home, api, direct, "none")
            if isinstance(ours, str) or isinstance(theirs, str):
                lines.append(f"{api}: {ours if isinstance(ours, str) else theirs}\n")
            elif ours != theirs:
                differ = sum(a != b for a, b in zip(ours[1], theirs[1], strict=True))
                lines.append(f"{api}: {differ} answers differ; scores {ours[0]} and {theirs[0]}\n")
            else:
                print(f"    lm-eval: {api}: {len(ours[1])} answers and the score {ours[0]} are equal", flush=True)
    return "".join(lines)


def _evaluate(program: str, home: str, api: str, url: str, key: str) -> tuple[float, list[str]] | str:
    """The score and the answers; or the end of what lm-eval printed."""
    output = Path(tempfile.mkdtemp(dir=home))
    chosen = "model=first,tokenizer_backend=None,tokenized_requests=False,num_concurrent=1,max_retries=1"
    words = ["--model", api, "--model_args", f"base_url={url},{chosen}", "--tasks", "sums", "--include_path", home]
    more = ["--log_samples", "--output_path", str(output)] + (["--apply_chat_template"] if "chat" in api else [])
    done = subprocess.run(
        [program, *words, *more], cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env={**environment(home), "OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
        stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
    )  # fmt: skip
    files = list(output.rglob("samples_sums_*.jsonl"))
    if done.returncode or not files:
        return done.stdout[-800:]
    samples = sorted((json.loads(line) for line in files[0].read_text().splitlines()), key=lambda one: one["doc_id"])
    score = sum(float(sample["exact_match"]) for sample in samples) / len(samples)
    return score, [sample["resps"][0][0] for sample in samples]


TEMPLATE = """
{%- if tools %}<|im_start|>system
You may call these functions: <tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Answer a call with <tool_call>
{"name": "...", "arguments": {...}}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "assistant" and message.tool_calls %}<|im_start|>assistant
{{ message.content or "" }}{% for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif message.role == "tool" %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Like that of larger models: the small one's own template knows no tools."""

TASK = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "1 plus 4 is 5. {{q}}"
doc_to_target: "{{a}}"
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_punctuation: true}
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 12, do_sample: false}
num_fewshot: 0
metadata: {version: 1.0}
"""


if __name__ == "__main__":
    main()
