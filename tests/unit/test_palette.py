"""What newcomers type into the palette, and which rows it must find. The questions were written before its words."""

from __future__ import annotations

import pytest

from gpubox.profiles.profile import Profile
from gpubox.tui.actions import Scope
from gpubox.tui.messages import ProfileEntry
from gpubox.tui.palette import find, palette_rows
from gpubox.views.figures import FIGURES

QUESTIONS = {
    "why slow": "advice", "speed test": "bench_speed", "undo": "undo", "change the port": "edit",
    "download a model": "show_models", "opencode": "connect", "gpu memory": "zoom_memory",
    "bigger context": "edit", "kill the server": "stop", "it crashed": "failed_log", "make it faster": "tune",
    "how do I exit": "quit", "vram usage": "zoom_memory", "huggingface": "show_models", "api key": "connect",
    "reboot server": "restart", "what is pp?": "term:pp", "ttft": "term:TTFT", "what is kv cache": "term:conversations",
    "acceptance": "term:draft", "tokens per second meaning": "term:tg", "dark mode": "theme",
    "light theme": "theme", "talk to the model": "show_chat", "show errors": "failed_log", "rename": "rename",
    "copy a profile": "duplicate", "remove profile": "delete", "go back to the previous model": "undo",
    "compare two models": "compare", "vscode": "connect", "who is using my server": "show_clients",
    "pause requests": "hold", "import llama-swap config": "new_profile", "add model": "new_profile",
    "quantization": "show_models", "keyboard shortcuts": "help", "ranking": "bench_board",
    "is it good at coding": "bench_plan", "config file": "file:settings", "where are the logs": "zoom_log",
    "system prompt": "chat_settings", "new conversation": "chat_new", "old chats": "chat_list",
    "speculative decoding": "term:draft", "slower than yesterday": "slower_since",
    "show command line": "copy", "hide examples": "toggle_shipped", "search in the log": "filter_log",
    "vim": "external_editor", "start the gateway": "clients_toggle", "load another model": "switch",
    "share my result": "bench_post", "export to csv": "bench_export", "cancel download": "finder_stop",
    "last week": "graph_longer", "turn off thinking": "chat_settings", "list of requests": "zoom_requests",
    "find profile": "search", "qwen turbo": "profile:qwen36-turbo",
}  # fmt: skip


FILES = (("your profiles", "~/.config/gpubox/profiles"), ("settings", "~/.config/gpubox/config.toml"),
         ("server log", "~/.local/state/gpubox/logs/main.log"))  # fmt: skip
TERMS = [(name, figure.meaning) for name, figure in FIGURES.items()]


def first_three(query: str, scope: Scope = Scope.DASHBOARD) -> list[str]:
    profiles = [Profile("qwen36-turbo", "", title="MTP turbo3"), Profile("demo", "", title="a small model")]
    entries = [ProfileEntry(f"profile:{p.name}", "profile", p.name, profile=p) for p in profiles]
    return [row.id for row in find(query, palette_rows(scope, entries, TERMS, FILES))[:3]]


@pytest.mark.parametrize("question", QUESTIONS)
def test_finds_what_a_newcomer_asks_for_in_the_first_three_rows(question: str) -> None:
    assert QUESTIONS[question] in first_three(question)
