"""Makes the recordings of ``tests/fixtures/recordings``: ``advice_recordings.py ENGINE HYBRID DENSE FOLDER``.

Each is a few readings of a real llama-server (built with GGML_RPC) in a state that a rule of the advisor is about, and
of one in which the rule must be silent. ``advice_truth.py --record`` makes those of the context and of mapped weights;
``derive_recordings.py`` makes from these what needs a card.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

import box
from fit_truth import rpc_servers

from tests.ports import free_port


def prompt(base: str, text: str, tokens: int, *, slot: int = -1) -> None:
    """One request."""
    box.ask(base, "/completion", {"prompt": text, "n_predict": tokens, "ignore_eos": True, "id_slot": slot})


def chat(base: str, texts: list[str]) -> None:
    """One request with a system prompt and user messages, each but the last with an answer."""
    messages = [{"role": "system", "content": texts[0]}]
    for text in texts[1:]:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": words(50, 60)}]
    box.ask(base, "/v1/chat/completions", {"messages": messages[:-1], "max_tokens": 4})


def words(seed: int, count: int) -> str:
    """A text of about two tokens a word."""
    return " ".join(str((seed * 31 + number * 17) % 89) for number in range(count))


class Box:
    """Starts profiles one after another and records them."""

    def __init__(self, folder: Path, target: Path, endpoint: str) -> None:
        self.folder, self.target, self.endpoint = folder, target, endpoint

    def start(self, name: str, model: Path, **flags: object) -> str:
        """Runs a profile with these flags (``_`` for ``-``). Returns its address."""
        port = free_port()
        given = {key.replace("_", "-"): value for key, value in flags.items()}
        given = {"rpc": self.endpoint, "n-gpu-layers": 99, "parallel": 1, "ctx-size": 4096, **given}
        box.profile(self.folder, name, str(model), port, given)
        box.gpubox("switch", name)
        return f"http://127.0.0.1:{port}"

    def record(self, name: str, base: str = "") -> None:
        """A second of readings; with ``base`` while the server answers."""
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                prompt(base, "busy", 200)

        thread = threading.Thread(target=work) if base else None
        if thread:
            thread.start()
            time.sleep(1)
        box.gpubox("status", "--record", str(self.target / f"{name}.jsonl"), "--seconds", "3" if base else "1")
        ended.set()
        if thread:
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("engine", "hybrid", "dense", "target"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    hybrid: Path = options.hybrid
    with box.own_folders(str(options.engine)) as folder, rpc_servers(options.engine.parent, 1) as endpoints:
        lab = Box(folder, options.target, endpoints[0])

        for name, flags in (("re-reads-fires", {}), ("re-reads-silent", {"checkpoint_min_step": 1024})):
            base = lab.start("rereads", hybrid, chat_template="chatml", **flags)
            for number in range(4):  # the third user message differs
                chat(base, [*(words(each, 180) for each in (1, 5, 6)), words(90 + number, 120), words(7, 60)])
            lab.record(name)
        base = lab.start("rereads", hybrid)
        for number in range(4):  # no user messages: no checkpoint lies before the change
            prompt(base, f"{words(1, 300)} {words(number + 2, 700)}", 4)
        lab.record("re-reads-whole")

        drafts = {"spec_type": "draft-mtp", "spec_draft_n_max": 3}
        for name, rates in (("drafts-fires", "0.3,0.2,0.1"), ("drafts-silent", "0.9,0.85,0.8")):
            base = lab.start("drafts", hybrid, **drafts, spec_synth_rates=rates)
            for number in range(6):
                prompt(base, words(number, 30), 200)
            lab.record(name)

        lab.record("threads-fires", lab.start("threads", hybrid, n_cpu_moe=99, threads=4))
        lab.record("threads-silent", lab.start("threads", hybrid, n_cpu_moe=99, threads=2))

        base = lab.start("slots", options.dense, parallel=-1, ctx_size=8192)
        for slot in range(2):
            prompt(base, words(slot, 250), 2, slot=slot)
        lab.record("slots-silent")


if __name__ == "__main__":
    main()
