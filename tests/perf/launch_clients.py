"""Real coding agents, started by ``gpubox launch`` in the home of an owner who has set them up for something else.

usage: launch_clients.py LLAMA-SERVER MODEL.gguf PROGRAM [PROGRAM ...]
Each PROGRAM is an agent's own (claude, codex, opencode, qwen, aider, pi, crush, goose), installed by hand:
    npm install @anthropic-ai/claude-code @openai/codex opencode-ai @qwen-code/qwen-code @earendil-works/pi-coding-agent
    uv venv /tmp/ai && uv pip install --python /tmp/ai/bin/python aider-chat
MODEL.gguf must have a context of 65,536 tokens; a tiny one will do, for what it answers does not matter. Two turns of
one conversation: prints for each agent how many tokens the second turn added to the prompt and how many were read for
it, and which files of the owner changed. aider puts what it reminds the model of, and the files, behind all messages,
so it reads these again. Exits 1 if an agent fails, or a file of the owner changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

from box import gpubox, options, own_folders
from gateway_box import gateway_config, launch_profile
from gateway_clients import TEMPLATE

from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from tests.ports import free_port

SECONDS, LINE_SECONDS = 600.0, 10.0
NOWHERE = "http://127.0.0.1:9"
TURNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "claude": (("-p",), ("-c", "-p")),
    "codex": (("exec", "--skip-git-repo-check"), ("exec", "--skip-git-repo-check", "resume", "--last")),
    "opencode": (("run",), ("run", "-c")),
    "qwen": (("-p",), ("-c", "-p")),
    "pi": (("-p",), ("-c", "-p")),
    "aider": (("--yes-always", "--message"), ("--yes-always", "--restore-chat-history", "--message")),
    "crush": (("run", "-q"), ("run", "-q", "--continue")),
    "goose": (("run", "--name", "try", "--text"), ("run", "--name", "try", "--resume", "--text")),
}
"""The words of a first turn and of one that goes on, before the prompt."""
OWNERS: dict[str, object] = {
    ".claude/settings.json": {"env": {"ANTHROPIC_BASE_URL": NOWHERE, "ANTHROPIC_MODEL": "own"}},
    ".codex/config.toml": 'model = "own"\nmodel_provider = "own"\n[model_providers.own]\nname = "own"\n'
    f'base_url = "{NOWHERE}/v1"\n',
    "CONFIG/opencode/opencode.json": {"$schema": "https://opencode.ai/config.json", "model": "own/own"},
    ".aider.conf.yml": f"model: openai/own\nopenai-api-base: {NOWHERE}/v1\n",
    ".qwen/settings.json": {
        "$version": 4,
        "model": {"name": "own"},
        "security": {"auth": {"selectedType": "qwen-oauth"}},
    },
    ".pi/agent/settings.json": {"defaultProvider": "anthropic", "defaultModel": "claude-opus-4-5"},
    "CONFIG/crush/crush.json": {"models": {"large": {"provider": "own", "model": "own"}}},
    "CONFIG/goose/config.yaml": "GOOSE_PROVIDER: anthropic\nGOOSE_MODEL: own\n",
    ".gitconfig": "[user]\nname = owner\nemail = owner@example.org\n",
    "project/calc.py": "def add(a, b):\n    return a - b\n",
}


def main() -> None:
    """Prints the table."""
    arguments = options(__doc__, "engine", "model", "programs+")
    failed = 0
    with own_folders(arguments.engine) as config:
        home = config.parent.parent
        gateway_config(config, port=free_port())
        (config / "tools.jinja").write_text(TEMPLATE)
        flags = {"ctx-size": 65536, "threads": 2, "n-predict": 400, "chat-template-file": str(config / "tools.jinja")}
        # the small model's answers never end by themselves
        launch_profile(config, "coder", arguments.model, "real", {**flags, "reverse-prompt": " and"})
        for name, content in OWNERS.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(content if isinstance(content, str) else json.dumps(content))
        os.environ |= {"HOME": str(home), "PWD": str(home / "project")}
        folders = [str(Path(program).absolute().parent) for program in arguments.programs]
        os.environ["PATH"] = os.pathsep.join([*folders, os.environ["PATH"]])
        for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
            subprocess.run(["git", *words], cwd=home / "project", check=True)
        try:
            for program in arguments.programs:
                failed += not two_turns(Path(program).name, home)
        finally:
            gpubox("serve", "--stop", check=False)
    sys.exit(failed > 0)


def two_turns(agent: str, home: Path) -> bool:
    """Runs one agent and prints its line. Whether all is as promised."""
    before, turns = owners_files(home), []
    for words, prompt in zip(TURNS[agent], ("Say hello", "And now once more"), strict=True):
        seen = len(requests())
        done = subprocess.run(
            [sys.executable, "-m", "gpubox", "launch", agent, "--model", "coder", "--", *words, prompt],
            cwd=home / "project", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        end = time.monotonic() + LINE_SECONDS
        while not (own := [line for line in requests()[seen:] if line.client == agent]) and time.monotonic() < end:
            time.sleep(0.05)
        if done.returncode or not own or any(line.outcome != "done" for line in own):
            print(f"{agent:<9} FAILED, code {done.returncode}: {' '.join(done.stdout.split())[-900:]}", flush=True)
            return False
        turns.append(requests()[seen:])
    first, second = (max(line.prompt_tokens or 0 for line in turn if line.client == agent) for turn in turns)
    read = sum((line.prompt_tokens or 0) - (line.cached_tokens or 0) for line in turns[1])
    after = owners_files(home)
    share = read / max(1, second - first)
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    new = {Path(name).parts[0] for name in after.keys() - before.keys()}
    version = subprocess.run([agent, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    print(
        f"{agent:<9} {version[:28]:<28}  {len(turns[0])} and {len(turns[1])} requests, prompt {first:,}, "
        f"new {second - first}, read {read} ({share:.2f}); changed: {', '.join(changed) or 'none'}; "
        f"new in: {', '.join(sorted(new)) or 'none'}",
        flush=True,
    )
    return not changed


def requests() -> list[FinishedRequest]:
    """What the gateway has answered today, its own requests too."""
    return list(Ledger(Paths.default().ledger).requests(date.today()))


def owners_files(home: Path) -> dict[str, str]:
    """The hash of each file that is not gpubox's own, by its path in the home."""
    files = (path for path in home.rglob("*") if path.is_file() and "gpubox" not in path.parts)
    return {str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    main()
