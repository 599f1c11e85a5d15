"""What the commands of the chat do: the diff and its decisions, undo, tests, commits, plans, who answers, and the
question for a workspace. Each has a key or a row of the menu, and a name behind a slash."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpubox.agent.events import AgentOffers, Compacted, FilesChanged
from gpubox.agent.tools import OwnerQuestion
from gpubox.concurrency import run_in_thread
from gpubox.errors import UsageError
from gpubox.sandbox.steps import ChangedSince
from gpubox.sanitize import sanitize_line
from gpubox.tui.chat.chats import AgentRow
from gpubox.tui.chat.turn_parts import note_part
from gpubox.tui.dialogs import PromptScreen, ask, confirm
from gpubox.tui.styled_lines import StyledLine, sanitize_to_width, styled_line
from gpubox.views.changes import count, step_sentence, taken_sentence

if TYPE_CHECKING:
    from gpubox.agent.chat import Chat
    from gpubox.agent.chat_log import ChatSettings
    from gpubox.sandbox.changes import Change, Choice
    from gpubox.sandbox.steps import StepResult

T = TypeVar("T")
UNDO_HINT = (("  /undo", "bold $primary"), (" takes the turn back", "$quiet"))
TAKEN = styled_line(("✓ Taken.", "$success"), *UNDO_HINT)


class ChatCommands:
    """Acts on the open chat of ``screen``. Each command is named as behind the slash and runs in a worker."""

    def __init__(self, screen: Any) -> None:
        """``screen``: the ChatScreen, whose module imports this one."""
        self.screen = screen
        self.changes: tuple[Change, ...] = ()
        """What waits for the owner."""
        self.lock = asyncio.Lock()
        """Held by a turn, and by all that is done with its changes."""
        self.doing = ""
        """What the owner waits for, a sentence; empty: nothing."""
        self._tests_offered = False

    @property
    def chat(self) -> Chat:
        """The open one. Raises UsageError if there is none."""
        chat: Chat | None = self.screen.chat
        if chat is None:
            raise UsageError("There is no turn in this chat yet.")
        return chat

    @contextlib.asynccontextmanager
    async def _alone(self, doing: str = "") -> AsyncIterator[Chat]:
        """The chat, while nothing else is done with it."""
        async with self.lock:
            chat, self.doing = self.chat, doing
            self.screen.draw_lines()
            try:
                yield chat
            finally:
                self.doing = ""
                self.screen.draw_lines()

    # -- what waits for the owner ---------------------------------------------------------------------

    async def read_changes(self, fate: StyledLine = ()) -> None:
        """Reads what waits, and shows it below the last turn that changed something. ``fate``: what was done."""
        async with self.lock:
            await self.show_changes(fate)

    async def show_changes(self, fate: StyledLine = ()) -> None:
        """The same for who holds the lock."""
        screen = self.screen
        chat = screen.chat
        self.changes = tuple(await chat.changes()) if chat and chat.name and chat.settings.workdir else ()
        parts = [turn.changes for turn in screen.transcript.turns if turn.changes]
        for part in parts[:-1]:
            if part.waiting:  # it is decided with the last one
                part.decide((), ())
        if parts:
            taken = TAKEN if screen.settings.apply == "turn" and not self.changes else ()
            parts[-1].decide(self.changes, fate or parts[-1].fate or taken)
            screen.transcript.remake()
        screen.draw_lines()

    async def diff(self) -> None:
        from gpubox.tui.chat.diff_screen import DiffScreen

        await self.read_changes()
        if not self.changes:
            self.screen.say("Nothing waits for you: no turn changed a file of the workspace since the last decision.")
            return
        if self.screen.is_active:  # the key may have come twice, or the owner has gone elsewhere
            self.screen.app.push_screen(DiffScreen(self.changes, self._take, self._drop, note=self.screen.header.note))

    async def _take(self, choice: Choice, allowed: Collection[str]) -> None:
        async with self._alone() as chat:
            result = await chat.take(choice, allow=allowed)
        await self._decided("✓", taken_sentence(result), "$success", undo=bool(result.taken))

    async def _drop(self, choice: Choice, why: str) -> None:
        async with self._alone() as chat:
            await chat.drop(choice, why)
        reads = " The model reads why with your next prompt." if why else ""
        await self._decided("✗", f"Dropped: {count(len(choice), 'file')}.{reads}", "$warning", undo=True)

    async def _decided(self, mark: str, sentence: str, style: str, *, undo: bool) -> None:
        """Shows what became of the changes, also where the end of the transcript hides it."""
        said = sanitize_line(sentence)
        self.screen.say(said)
        await self.read_changes(styled_line((f"{mark} {said}", style), *(UNDO_HINT if undo else ())))

    async def undo(self) -> None:
        await self._step(self.chat.undo, "Undone")

    async def redo(self) -> None:
        await self._step(self.chat.redo, "Redone")

    async def _step(self, step: Callable[..., Awaitable[StepResult]], verb: str) -> None:
        """Undoes or redoes. Files that the owner changed since stay only if he says so."""
        log = self.chat.log
        try:
            async with self._alone():
                result = await step()
        except ChangedSince as error:
            body = "They stay as they are, and all else is put back."
            if not await confirm(self.screen.app, error.message, body, "keep my version of them"):
                return
            events = (event for turn in log.turns.values() for event in turn.events)
            async with self._alone():
                result = await step(
                    keep={f.path for event in events if isinstance(event, FilesChanged) for f in event.files}
                )
        prompts = [turn.header.text for name in result.turns if (turn := log.turns.get(name))]
        self.screen.show_chat()
        said = sanitize_line(step_sentence(result, verb, prompts))
        self.note(styled_line((f"↶ {said}", "$quiet")))
        await self.read_changes()

    def note(self, line: StyledLine) -> None:
        """A line of gpubox below the last turn; in an empty chat as a message."""
        transcript = self.screen.transcript
        if transcript.turns:
            transcript.turns[-1].parts.append(note_part(line, gap=True))
            transcript.update_last()
        else:
            self.screen.say("".join(text for text, _ in line).lstrip("↶✓ "))

    # -- the project ----------------------------------------------------------------------------------

    async def test(self) -> None:
        async with self._alone() as chat:
            confirmed, proposed = await chat.test_command()
        if not confirmed:
            body = "It runs in the sandbox, over the files as the model sees them, after each turn that changes some."
            title = "Which command tests this project?"
            command = await self.screen.app.push_screen_wait(PromptScreen(title, proposed, body))
            if not command:
                return
            async with self._alone() as chat:
                await chat.confirm_test(command)
        async with self._alone("The tests run") as chat:
            finished = await chat.run_test()
        if turns := self.screen.transcript.turns:
            turns[-1].add_test(finished.command, finished.output)
            self.screen.transcript.follow = True
            self.screen.transcript.update_last()

    async def offer_tests(self) -> None:
        """Asks once in a chat whether the project's tests run after each turn that changes files."""
        if self._tests_offered or not self.changes:
            return
        self._tests_offered = True
        async with self._alone() as chat:
            confirmed, proposed = await chat.test_command()
        if not confirmed and proposed:
            text = f"{proposed}\nShall it run in the sandbox after each turn that changes files?"
            if (await self.screen.questions.ask(OwnerQuestion("go_on", text), "Test what it changes?")).yes:
                async with self._alone() as chat:
                    await chat.confirm_test(proposed)
                await self.test()

    async def commit(self) -> None:
        from gpubox.agent.git import changed_hooks
        from gpubox.tui.chat.commit import CommitScreen

        async with self._alone("The model writes a message") as chat:
            message, paths = await chat.commit_message(), sorted(chat.log.taken)
            hooks = await run_in_thread(changed_hooks, Path(chat.settings.workdir), chat.log.taken_ever)
        if text := await self.screen.app.push_screen_wait(CommitScreen(message, paths, hooks)):
            async with self._alone("Git commits") as chat:
                said = (await chat.commit(text)).strip().split("\n")
            self.note(styled_line(("✓ Committed. ", "$success"), (sanitize_line(said[0]), "$secondary")))

    async def share(self) -> None:
        from gpubox.views.chat_markdown import chat_markdown

        log = self.chat.log
        text = await run_in_thread(chat_markdown, log)
        await self.screen.snippets.save("Write the chat as Markdown", f"{log.name or 'chat'}.md", text)

    async def compact(self) -> None:
        async with self._alone() as chat:
            cost = await chat.compaction_cost()
        if await confirm(self.screen.app, "Shorten the conversation?", cost, "shorten it"):
            async with self._alone("The model sums the conversation up") as chat:
                said = await chat.compact()
            log, turns = chat.log, self.screen.transcript.turns
            events = log.turns[log.head].events if log.head else []
            if turns and (made := [event for event in events if isinstance(event, Compacted)]):
                turns[-1].add_summary(made[-1].summary)
            self.note(styled_line((sanitize_line(said), "$secondary")))

    async def plan(self) -> None:
        settings = self.screen.settings
        planning = settings.apply == "plan"
        await self.screen.change_settings(msgspec.structs.replace(settings, apply="ask" if planning else "plan"))
        self.screen.say("The model may write again: you decide about its changes." if planning
                        else "Plan only: nothing is written until you leave it with /plan.")  # fmt: skip

    # -- who answers ----------------------------------------------------------------------------------

    @property
    def offers(self) -> AgentOffers:
        """What the hosted agent of this chat offers, as far as it has said so."""
        turns, agent = self.screen.transcript.turns, self.screen.settings.agent
        said = (turn.offers for turn in reversed(turns) if agent and turn.agent == agent and turn.offers)
        return next(said, AgentOffers())

    def knows(self, name: str) -> bool:
        """Whether ``/name`` may be a command of the hosted agent."""
        known = [command.name for command in self.offers.commands]
        return bool(self.screen.settings.agent) and (name in known or not known)

    async def agent(self) -> None:
        """Shows the agents. Of one that is not installed the command that does it is copied."""
        agents, now = await self.screen.chats.agents(), self.screen.settings.agent
        cells = max(len(each.name) for each in [*agents, AgentRow("gpubox")]) + 2
        rows = [(each.name, f"{each.name:{cells}}{each.about}") for each in agents]
        rows.insert(0, ("gpubox", f"{'gpubox':{cells}}its own agent"))
        name = await self._choose(
            "Who answers in this chat?", "Another agent works as gpubox's own does: confined, on a copy of the "
            "workspace, and you take what you like of its changes.", rows, [now or "gpubox"],
        )  # fmt: skip
        if name and (missing := next((each.install for each in agents if each.name == name), "")):
            self.screen.copy(missing, missing)
        elif name:
            await self.change_agent(
                msgspec.structs.replace(self.screen.settings, agent="" if name == "gpubox" else name)
            )

    async def change_agent(self, settings: ChatSettings) -> None:
        """Applies settings that may name another agent: what it needs is said, and the gateway is offered."""
        screen, agent = self.screen, settings.agent
        if agent == screen.settings.agent:
            await screen.change_settings(settings)
            return
        if agent and screen.sandbox and screen.sandbox.isolation != "bubblewrap":
            why = f"{screen.sandbox.problem} {screen.sandbox.hint}".strip()
            raise UsageError(f"{agent} cannot be confined here, which needs bubblewrap. {why}".rstrip())
        await screen.change_settings(msgspec.structs.replace(settings, agent_choices={}))
        screen.say(f"{agent or 'gpubox'} answers from the next prompt on.")
        if agent and not self.has_gateway:
            await self.start_gateway()

    @property
    def has_gateway(self) -> bool:
        return self.screen.app.bridge.gateway.view is not None

    async def start_gateway(self, text: str = "") -> None:
        """Asks whether the gateway starts, which a hosted agent needs; then sends the prompt ``text``."""
        screen = self.screen
        body = (
            f"{screen.settings.agent} reaches the model only through the gateway, and none runs here. It keeps running "
            "when gpubox closes; 5 stops it."
        )
        await screen.app.bridge.gateway.poll()  # it may have come since
        if not self.has_gateway and await confirm(screen.app, "Start the gateway?", body, "start the gateway"):
            await screen.app.gateway_controller.act("toggle")
        if text and self.has_gateway:
            screen.ask(text)

    async def mode(self) -> None:
        """Shows what the hosted agent lets the owner choose, and changes one of it."""
        settings, agent = self.screen.settings, self.screen.settings.agent
        rows, held = [], set()
        for choice in sorted(self.offers.choices, key=lambda each: len(each.options)):  # models are many
            rows += [((choice.id, value), f"{choice.name}: {name}") for value, name in choice.options]
            held.add((choice.id, settings.agent_choices.get(choice.id, choice.value)))
        if not rows:
            own = "gpubox's own agent has /plan and its settings. /agent chooses another one."
            self.screen.say(f"{agent} says what can be chosen once it has answered a prompt." if agent else own)
            return
        chosen = await self._choose(f"Choices of {agent}", "They hold from the next prompt on.", rows, held)
        if chosen and chosen not in held:
            values = {**settings.agent_choices, chosen[0]: chosen[1]}
            await self.screen.change_settings(msgspec.structs.replace(settings, agent_choices=values))

    async def _choose(self, title: str, body: str, rows: Sequence[tuple[T, str]], held: Collection[T]) -> T | None:
        """The value of the row that the owner chooses: each is a value and what it is. ``held``: they hold now."""
        answers = [
            (str(n) if n < 10 else " ", f"{'●' if value in held else ' '} {_indented(text)}", str(n))
            for n, (value, text) in enumerate(rows, 1)
        ]
        answer = await ask(self.screen.app, sanitize_to_width(title, 60), body, *answers)
        return rows[int(answer) - 1][0] if answer else None

    async def model(self) -> None:
        await self.screen.app.run_action("run_by_id('zoom_profiles')")

    # -- the workspace --------------------------------------------------------------------------------

    async def offer_workspace(self) -> None:
        """Asks once whether the folder in which gpubox was started is the workspace of its chats."""
        screen = self.screen
        root, allowed = await screen.chats.project()
        if not root or allowed is False or screen.chat or screen.settings.workdir:
            return
        if allowed is None:
            text = (
                f"Use {root} as workspace?\nThe model reads it and works on a copy of what it changes: you see the "
                "changes before they reach your folder."
            )
            allowed = (await screen.questions.ask(OwnerQuestion("go_on", text), "Work in this folder?")).yes
            await screen.chats.remember_project(root, allowed)
        if allowed and not screen.settings.workdir and not screen.runner.running:
            await screen.change_settings(msgspec.structs.replace(screen.settings, workdir=str(root)))
            screen.show_welcome()


def _indented(text: str) -> str:
    """A row of a list of answers."""
    return "\n     ".join(sanitize_to_width(line, 60) for line in text.split("\n")[:2])
