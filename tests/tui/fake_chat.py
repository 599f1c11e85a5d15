"""A chat that plays a scripted turn, without server, file or sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

import msgspec

from gpubox.agent import events as e
from gpubox.agent.chat import Chat
from gpubox.agent.chat_files import ChatSummary, SearchHit
from gpubox.agent.chat_log import ChatLog, ChatSettings, HeadMoved, SettingsChanged, Turn, TurnHeader
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.settings import SYSTEM_PROMPT
from gpubox.agent.tools import AskOwner, OwnerQuestion, ToolCall, ToolOutput
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.sandbox.changes import Change, Choice, Hunk
from gpubox.sandbox.policy import Confinement
from gpubox.sandbox.steps import StepResult, TakeResult
from gpubox.tui.chat.chats import AgentRow, Chats
from tests.tui.fake import READY, FakeServices

Step = e.AgentEvent | asyncio.Event | Callable[["FakeChat"], Awaitable[Sequence[e.AgentEvent]]]
"""A step of a scripted turn: an event, an asyncio.Event to wait for, or a function that asks for approval."""
SERVING = ServerEndpoint("http://127.0.0.1:8081", "qwen36-mtp-16gb", build="llama-server b11434")

CODE = 'def parse(text):\n    return int(text[:-1]) * 3600\n\nassert parse("1h30m") == 5400\n'
CALL = ToolCall("call-1", "run", {"code": CODE}, CODE)
OUTPUT = ToolOutput(
    "Traceback (most recent call last):\n  File \"main.py\", line 4, in <module>\nValueError: invalid literal for "
    "int() with base 10: '1h30'\n[exit code 1]", ok=False, seconds=0.038, exit_code=1, isolation="bubblewrap",
)  # fmt: skip
WORKSPACE = "/home/me/code/durations"
BEFORE = """import re

UNITS = {"h": 3600, "m": 60}


def parse(text):
    return int(text[:-1]) * 3600


def shown(seconds):
    \"\"\"Seconds as 1h30m.\"\"\"
    hours, rest = divmod(seconds, 3600)
    minutes = rest // 60
    return f"{hours}h{minutes}m"


def total(texts):
    return sum(parse(text) for text in texts)
"""
AFTER = (
    BEFORE.replace('"m": 60}', '"m": 60, "s": 1}')
    .replace(
        """def parse(text):
    return int(text[:-1]) * 3600
""",
        """def parse(text: str) -> int:
    \"\"\"Seconds of a duration such as 1h30m.\"\"\"
    parts = re.findall(r"(\\d+)([hms])", text)
    if not parts:
        raise ValueError(f"{text!r} is no duration")
    return sum(int(number) * UNITS[unit] for number, unit in parts)
""",
    )
    .replace("    return sum(parse(text) for text in texts)", "    return sum(map(parse, texts))")
)
TESTS = """import pytest

from durations import parse


@pytest.mark.parametrize(("text", "seconds"), [("1h30m", 5400), ("45s", 45), ("2h", 7200)])
def test_parse(text, seconds):
    assert parse(text) == seconds


def test_no_duration():
    with pytest.raises(ValueError):
        parse("soon")
"""


def diff_of(path: str, before: str, after: str) -> str:
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(unified_diff(old, new, f"a/{path}", f"b/{path}", n=2))


def change_of(path: str, before: str, after: str, **more: Any) -> Change:
    """The change of a text file, as its diff has it."""
    hunks: list[tuple[str, list[str]]] = []
    for line in diff_of(path, before, after).splitlines()[2:]:
        if line.startswith("@@"):
            hunks.append((line, []))
        else:
            hunks[-1][1].append(line)
    lines = [line for _, inner in hunks for line in inner]
    return Change(
        path, "changed" if before else "new", 0o644 if before else None, 0o644, len(before) or None, len(after),
        tuple(Hunk(index, header, tuple(inner)) for index, (header, inner) in enumerate(hunks)),
        added=sum(line.startswith("+") for line in lines), removed=sum(line.startswith("-") for line in lines), **more,
    )  # fmt: skip


TASKS = '{"version": "2.0.0", "tasks": [{"label": "test", "runOptions": {"runOn": "folderOpen"}}]}\n'
CHANGES = (
    change_of(".vscode/tasks.json", "", TASKS, runs_by_itself="an editor's tasks"),
    change_of("README.md", "# durations\n", "# durations\n\n`parse` reads 1h30m, 45s and 2h.\n",
              conflict="You changed it meanwhile."),
    Change("docs/units.png", "changed", 0o644, 0o644, 12_300, 14_100),
    change_of("src/durations.py", BEFORE, AFTER),
    change_of("tests/test_durations.py", "", TESTS),
)  # fmt: skip
"""What the model changed in the story: five files, of which two need a look."""
CHANGED = e.FilesChanged(tuple(e.ChangedFile(c.path, c.kind, c.added, c.removed) for c in CHANGES))
EDIT = ToolCall("call-2", "edit", {"path": "src/durations.py", "edits": "..."})
EDITED = ToolOutput("3 places changed.", seconds=0.04, diff=diff_of("src/durations.py", BEFORE, AFTER))
RUN = ToolCall("call-4", "run", {"command": "npm ci", "network": True})
NETWORK = OwnerQuestion("network", "May this run use the network?\nnpm ci", call=RUN)
WHICH = OwnerQuestion("ask", "What shall parse do with an empty text?", ("raise ValueError", "return 0"))
TESTED = e.TestFinished(
    "pytest -q", ToolOutput("....      [100%]\n4 passed in 0.21s", seconds=1.9, exit_code=0, isolation="bubblewrap")
)
READ = ToolCall("call-3", "read_file", {"path": "samples/durations.txt"})
SAMPLES = ToolOutput(
    "".join(f"{line}: job {line} took {line % 9}h{line % 60}m\n" for line in range(1, 501)), seconds=0.002
)
ROUND_1 = e.RoundTiming(
    wall_seconds=7.3, queue_seconds=0.1, prefill_new_seconds=0.7, thinking_seconds=5.9, answer_seconds=0.5,
    tool_seconds=0.04, loop_seconds=0.06, prefill_new_tokens=566, prefill_reprocessed_tokens=0, cached_tokens=0,
    generated_tokens=448, thinking_tokens=412, tg_tokens_per_second=70.4, draft_tokens=300, draft_tokens_accepted=294,
)  # fmt: skip
ROUND_2 = e.RoundTiming(
    wall_seconds=8.4, prefill_new_seconds=0.1, answer_seconds=8.2, loop_seconds=0.1, prefill_new_tokens=73,
    prefill_reprocessed_tokens=0, cached_tokens=1014, generated_tokens=584, tg_tokens_per_second=71.0,
    draft_tokens=400, draft_tokens_accepted=390,
)  # fmt: skip
TOTALS = e.TurnTotals(
    2, e.RoundTiming(
        wall_seconds=15.7, queue_seconds=0.1, prefill_new_seconds=0.8, thinking_seconds=5.9, answer_seconds=8.7,
        tool_seconds=0.04, loop_seconds=0.16, prefill_new_tokens=639, prefill_reprocessed_tokens=0,
        cached_tokens=1014, generated_tokens=1032, thinking_tokens=412, tg_tokens_per_second=70.7,
        draft_tokens=700, draft_tokens_accepted=684,
    ), 65.7, 1, 1,
)  # fmt: skip
CHANGING_TOTALS = msgspec.structs.replace(TOTALS, failed_tool_calls=0)
ANSWER = """The first attempt fails on **mixed** units, because `int("1h30")` is no number. A *regular expression*
reads each part:

```python
import re

UNITS = {"h": 3600, "m": 60, "s": 1}

def parse(text: str) -> int:
    \"\"\"Seconds of a duration such as 1h30m.\"\"\"
    return sum(int(n) * UNITS[u] for n, u in re.findall(r"(\\d+)([hms])", text))
```

| text | seconds |
|---|---|
| `1h30m` | 5400 |
| `45s` | 45 |

1. It ignores what it does not know.
2. An empty text is 0.
"""


def words(text: str) -> list[e.AgentEvent]:
    """``text`` as it streams, a word at a time."""
    return [e.TextDelta(word) for word in text.replace(" ", " \0").split("\0")]


def opening(protocol: str = "native") -> list[Step]:
    """The first events of each turn."""
    return [
        e.TurnStarted(protocol, model="Qwen3.6-35B-A3B", tools=("run",), context_size_tokens=131072),
        e.RoundStarted(1, 30, 0, 65_536, 0.0, 1800.0),
        e.PrefillProgress(566, 566, 0),
    ]


def coding_turn() -> list[Step]:
    """A turn with thinking, a program that fails, and an answer."""
    return [
        *opening(),
        *(e.ReasoningDelta(f"thought {number} ") for number in range(412)),
        e.TextDelta("I'll test the edge cases first."),
        e.GenerationStats(448, 70.4, 300, 294),
        e.ToolRequested(CALL),
        e.ToolFinished(CALL, OUTPUT),
        e.RoundFinished(1, ROUND_1, "tool_calls"),
        e.RoundStarted(2, 30, 448, 65_536, 7.3, 1800.0),
        *words(ANSWER),
        e.RoundFinished(2, ROUND_2, "stop"),
        e.TurnFinished(TOTALS, "answered", ANSWER),
    ]


def working_round(says: str, call: ToolCall, output: ToolOutput) -> list[Step]:
    """A round with thinking and one tool call, and the start of the second."""
    return [
        *opening(),
        e.ReasoningDelta("thought " * 412),
        e.TextDelta(says),
        e.ToolRequested(call),
        e.ToolFinished(call, output),
        e.RoundFinished(1, ROUND_1, "tool_calls"),
        e.RoundStarted(2, 30, 448, 65_536, 7.3, 1800.0),
    ]


def reading_turn() -> list[Step]:
    """A turn that has read a file of 6.6k tokens, and whose second prompt is being read."""
    return [*working_round("I read the samples first.", READ, SAMPLES), e.PrefillProgress(4_712, 7_600, 1_014)]


def changing_turn() -> list[Step]:
    """A turn that changes files, and whose tests pass."""
    return [
        *working_round("I read each part with its unit.", EDIT, EDITED),
        *words("`parse` reads hours, minutes and seconds now, and refuses what is no duration. Four tests say so."),
        e.RoundFinished(2, ROUND_2, "stop"),
        CHANGED,
        TESTED,
        e.TurnFinished(CHANGING_TOTALS, "answered", "Done."),
    ]


STEPS = (
    e.PlanStep("Read src/durations.py", "completed"),
    e.PlanStep("Read each part of a duration with its unit", "in_progress"),
    e.PlanStep("Run the tests"),
)
LOOKED = ToolCall("1.1", "read", {"filePath": "src/durations.py"}, title="src/durations.py")
EDITS = ToolCall("1.2", "edit", {"filePath": "src/durations.py"}, title="Edit src/durations.py")
TRIES = ToolCall("1.3", "execute", {"command": "pytest -q"}, title="Run the tests")
MAY_IT = OwnerQuestion("permission", "May it do this? Run the tests", ("Allow once", "Always allow", "Reject"), TRIES)
OFFERS = e.AgentOffers(
    (
        e.AgentCommand("init", "create or update AGENTS.md"),
        e.AgentCommand("review", "review changes", "commit, branch or pr"),
        e.AgentCommand("compact", "compact the session"),
    ),
    (
        e.AgentChoice("mode", "Mode", "build", (("build", "Build"), ("plan", "Plan"))),
        e.AgentChoice(
            "model", "Model", "gpubox/qwen36", (("gpubox/qwen36", "qwen36-mtp-16gb"), ("gpubox/smol", "smol"))
        ),
    ),
)


def hosted_turn(*rest: Step) -> list[Step]:
    """The turn of a hosted agent up to its question, and what follows."""
    return [
        e.TurnStarted("acp", model="qwen36-mtp-16gb"),
        OFFERS,
        e.ReasoningDelta("I read the file. " * 9),
        e.PlanChanged(STEPS[:2]),
        e.ToolRequested(LOOKED),
        e.ToolFinished(LOOKED, ToolOutput("<file>\n" + "".join(f"{n:05}| line\n" for n in range(1, 20)), seconds=0.01)),
        e.TextDelta("I read each part with its unit."),
        e.RoundFinished(1, ROUND_1),
        e.ToolRequested(EDITS),
        e.ToolFinished(EDITS, ToolOutput("", seconds=0.03, diff=diff_of("src/durations.py", BEFORE, AFTER))),
        e.PlanChanged(STEPS),
        e.UsageReported(14_200, 131_072),
        e.ToolRequested(TRIES),
        e.QuestionAsked(MAY_IT),
        *rest,
    ]


class FakeChat(Chat):
    """One open chat; ``service`` has the script of the next turn."""

    def __init__(self, service: FakeChats, ask: AskOwner, log: ChatLog) -> None:
        super().__init__(service.paths, service.config)
        self.service, self.ask = service, ask
        self._file.log = log
        self.closed = False
        self.stopped = asyncio.Event()
        self.waiting: list[Change] = []
        self.decisions: list[tuple[str, Any]] = []
        """take, drop and commit, with what was chosen."""
        self.undone: list[str] = []

    async def send(
        self, text: str, images: Sequence[Path] = (), *, attached: str = ""
    ) -> AsyncGenerator[e.AgentEvent, None]:
        self.service.asked.append(text)
        self.service.images += images
        if self.service.error:
            raise self.service.error
        self.stopped.clear()
        self.endpoint = SERVING
        if not self.name:
            self.log.name = "-".join(text.lower().split()[:4])
            self.service.logs[self.name] = self.log
        turn = f"turn-{len(self.log.turns) + 1}"
        self.log.apply_record(
            TurnHeader(
                turn,
                self.log.head,
                "2026-11-21T13:00:00Z",
                text,
                SERVING.profile_name,
                SERVING.build,
                agent=self.settings.agent,
            )
        )
        for step in self.service.script:
            async for event in self._played(step):
                self.log.apply_event(event)
                if isinstance(event, e.FilesChanged):
                    self.waiting = [] if self.settings.apply == "turn" else list(self.service.changes)
                yield event
            if self.stopped.is_set():
                ended = e.TurnFinished(e.TurnTotals(1, e.RoundTiming(wall_seconds=1.0, answer_seconds=1.0)), "stopped")
                self.log.apply_event(ended)
                yield ended
                return

    async def _played(self, step: Step) -> AsyncGenerator[e.AgentEvent, None]:
        if isinstance(step, asyncio.Event):
            waits = [asyncio.ensure_future(event.wait()) for event in (step, self.stopped)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        elif callable(step):
            for event in await step(self):
                yield event
        else:
            yield step

    def stop(self) -> bool:
        self.stopped.set()
        return True

    async def changes(self) -> list[Change]:
        return list(self.waiting)

    async def take(self, choice: Choice | None = None, *, allow: Collection[str] = ()) -> TakeResult:
        self.decisions.append(("take", (dict(choice or {}), set(allow))))
        chosen = [change for change in self.waiting if choice is None or change.path in choice]
        left = tuple(c for c in chosen if c.conflict or (c.runs_by_itself and c.path not in allow))
        taken = tuple(change.path for change in chosen if change not in left)
        self.waiting = [change for change in self.waiting if change.path not in taken]
        return TakeResult(taken, left)

    async def drop(self, choice: Choice | None = None, why: str = "") -> None:
        self.decisions.append(("drop", (dict(choice or {}), why)))
        self.waiting = [change for change in self.waiting if choice is not None and change.path not in choice]

    async def undo(self, turn_id: str = "", *, keep: Collection[str] = ()) -> StepResult:
        if not self.log.head:
            raise UsageError("There is no turn to undo.")
        self.undone.append(self.log.head)
        self.log.head, self.waiting = self.log.turns[self.log.head].parent_id, []
        self.log.undone = list(self.undone)
        return StepResult((self.undone[-1],), ("src/durations.py", "tests/test_durations.py"))

    async def redo(self, *, keep: Collection[str] = ()) -> StepResult:
        if not self.undone:
            raise UsageError("Nothing was undone.")
        self.log.head, self.waiting = self.undone.pop(), list(self.service.changes)
        self.log.undone = list(self.undone)
        return StepResult((self.log.head,), ())

    async def test_command(self) -> tuple[str, str]:
        return self.service.test_commands

    async def confirm_test(self, command: str) -> None:
        self.decisions.append(("test", command))
        self.service.test_commands = (command, command)

    async def run_test(self) -> e.TestFinished:
        return TESTED

    async def compaction_cost(self) -> str:
        return "About 1,400 tokens are read again, in 2 s; about 6,500 become free."

    async def compact(self) -> str:
        self.log.apply_event(e.Compacted("The goal is parse.\nIts tests pass.", 0))
        return "Summary made: 7,900 tokens became 1,400; 1,400 were read again while you read."

    async def commit_message(self) -> str:
        return "Read durations with several units\n\nparse refuses what is no duration."

    async def commit(self, message: str) -> str:
        self.decisions.append(("commit", message))
        return "[main 1f0c2aa] Read durations with several units\n 2 files changed"

    def change_settings(self, settings: ChatSettings) -> None:
        if settings.workdir == "/nowhere":
            raise UsageError("The workspace /nowhere cannot be used: no such file or directory.")
        self.log.apply_record(SettingsChanged(settings, "2026-11-21T13:00:00Z"))

    def rewind(self, turn: str = "") -> None:
        self.log.apply_record(HeadMoved(turn, "2026-11-21T13:00:00Z"))

    def branch(self, name: str, turn: str | None = None) -> str:
        self.service.logs[name] = ChatLog(name, turns=dict(self.log.turns), head=turn or self.log.head)
        return ""

    async def close(self) -> None:
        self.stop()
        self.closed = True


class FakeChats(Chats):
    """All chats. ``script`` is what the next turn plays."""

    def __init__(self, script: Sequence[Step] = ()) -> None:
        super().__init__(Paths.default(), Config())
        self.script = list(script)
        self.asked: list[str] = []
        self.images: list[Path] = []
        self.logs: dict[str, ChatLog] = {}
        self.lost: dict[str, str] = {}
        self.error: GpuboxError | None = None
        self.sandbox = Confinement("bubblewrap")
        self.saved: list[tuple[str, str]] = []
        self.changes: Sequence[Change] = CHANGES
        """What a turn that changes files leaves."""
        self.test_commands = ("pytest -q", "pytest -q")
        """Confirmed, and proposed."""
        self.offered: tuple[Path | None, bool | None] = (None, None)
        self.remembered: list[tuple[Path, bool]] = []
        self.opened: list[FakeChat] = []
        self.known_agents = [
            AgentRow("opencode"), AgentRow("qwen"), AgentRow("codex", "npm install -g @zed-industries/codex-acp"),
        ]  # fmt: skip

    async def summaries(self) -> list[ChatSummary]:
        summaries = []
        for name, log in self.logs.items():
            first = next(iter(log.turns.values()), None)
            title = first.header.text if first else ""
            summaries.append(
                ChatSummary(
                    name,
                    Path(f"{name}.jsonl"),
                    1,
                    "2026-11-20T12:00:00Z",
                    len(log.turns),
                    title,
                    "qwen",
                    agent=log.settings.agent,
                )
            )
        return summaries

    async def search(self, text: str) -> list[SearchHit]:
        return [
            SearchHit(name, turn.id, "", "user", turn.header.text)
            for name, log in self.logs.items()
            for turn in log.turns.values()
            if text.casefold() in turn.header.text.casefold()
        ]

    async def open(self, name: str, ask: AskOwner) -> FakeChat:
        chat = FakeChat(self, ask, self.logs[name] if name else ChatLog(""))
        self.opened.append(chat)
        return chat

    async def agents(self) -> list[AgentRow]:
        return self.known_agents

    async def free_name(self, text: str) -> str:
        return f"{text}-2"

    async def rename(self, name: str, new: str) -> None:
        if new in self.logs:
            raise UsageError(f"There is a chat {new} already.")
        log = self.logs.pop(name)
        log.name = new
        self.logs[new] = log

    async def loses(self, name: str) -> str:
        return self.lost.get(name, "")

    async def delete(self, name: str) -> None:
        del self.logs[name]

    async def confinement(self) -> Confinement:
        return self.sandbox

    async def project(self) -> tuple[Path | None, bool | None]:
        return self.offered

    async def remember_project(self, root: Path, allowed: bool) -> None:
        self.remembered.append((root, allowed))

    async def workspace_names(self, chat: Chat | None, workdir: str) -> list[str]:
        return ["README.md", "docs/", "src/", "tests/", "docs/units.png", "src/durations.py", "tests/test_durations.py"]

    async def profile_defaults(self, profile: str) -> tuple[str, Mapping[str, float]]:
        return SYSTEM_PROMPT, {"top_k": 20}

    async def save_file(self, text: str, path: str, folder: str) -> str:
        self.saved.append((path, text))
        return f"/tmp/{path}"

    def keep(self, name: str, prompts: Sequence[str]) -> None:
        """Stores a chat with these prompts and an answer to each."""
        log = ChatLog(name)
        for number, prompt in enumerate(prompts):
            turn = Turn(TurnHeader(f"{name}-{number}", log.head, "2026-11-20T12:00:00Z", prompt, "qwen", "b11434"))
            turn.events = [
                e.MessageAdded(e.Message("assistant", f"Answer {number} of {name}.")),
                e.TurnFinished(e.TurnTotals(), "answered", f"Answer {number} of {name}."),
            ]
            log.turns[turn.id] = turn
            log.head = turn.id
        self.logs[name] = log


class ChatServices(FakeServices):
    """All services, with these chats."""

    def __init__(self, chats: FakeChats | None = None) -> None:
        super().__init__(READY)
        self.fake_chats = chats or FakeChats()

    def chat_service(self) -> FakeChats:
        return self.fake_chats
