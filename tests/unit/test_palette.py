"""What newcomers type into the palette, and which rows it must find. The questions were written before its words."""

from __future__ import annotations

import pytest

from gpubox.cli.main import VERBS
from gpubox.profiles.profile import Profile
from gpubox.tui.actions import ACTIONS, ACTIONS_BY_ID, Scope
from gpubox.tui.messages import ProfileEntry
from gpubox.tui.palette import IN_A_SHELL, find, palette_rows
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
    "on my tablet": "connect", "how hot does it get": "zoom_memory", "how many watts": "zoom_memory",
    "autostart when i log in": "shell:gpubox serve --install",
    "compile llama-server": "shell:gpubox engines build --version latest",
    "a second model beside it": "edit", "backup": "file:settings", "is my install ok": "shell:gpubox doctor",
    "watch from a browser": "shell:gpubox web", "keep this conversation": "chat_list", "what is a slot": "term:slots",
    "erase model": "delete", "which address is it": "connect", "will it fit": "shell:gpubox fit PROFILE",
    "make a new token": "shell:gpubox keys add NAME", "shell completion": "shell:gpubox completion bash",
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


def test_words_that_say_nothing_find_all_and_words_of_something_else_nothing() -> None:
    rows = palette_rows(Scope.DASHBOARD, (), TERMS, FILES)
    for query in ("how do i", "is it my", "what is"):
        assert find(query, rows) == rows
    for query in ("upload a picture", "order a pizza", "invite friends"):
        assert not find(query, rows), query
    assert find("how do i stop the model", rows)[0].id == "stop"
    assert find("load another model", rows)[0].id == "switch"
    assert find("how long is the context", rows)[0].id == "term:context"


@pytest.mark.parametrize("scope", Scope)
def test_a_row_has_a_key_only_where_it_works_and_no_row_is_of_a_screen_that_is_not_open(scope: Scope) -> None:
    for row in palette_rows(scope):
        action = ACTIONS_BY_ID.get(row.id)
        if action and action.scope not in (scope, Scope.ANYWHERE):
            assert (scope is Scope.DASHBOARD and action.scope is Scope.LIST) or not row.key, row
            assert action.scope not in (Scope.EDITOR, Scope.TRIAL, Scope.CONNECT, Scope.ADVICE), row


def test_a_command_of_the_palette_is_a_verb_without_an_action() -> None:
    assert {command.split()[0] for command, *_ in IN_A_SHELL} <= set(VERBS)
    assert not {command for command, *_ in IN_A_SHELL} & {action.command for action in ACTIONS}
    known = {text.split()[0] for text in (*(c for c, *_ in IN_A_SHELL), *(a.command for a in ACTIONS if a.command))}
    assert set(VERBS) - {"start"} <= known, "the palette knows no way to it"
