"""The base of the app: goes on after an exception, loses no key, keeps messages off what the owner looks at."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.app import App, ScreenStackError
from textual.dom import NoScreen
from textual.filter import LineFilter
from textual.message import Message
from textual.message_pump import MessagePump
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import MountError
from textual.worker import WorkerFailed

from gpubox.errors import GpuboxError
from gpubox.sanitize import blank_controls, sanitize_line

if TYPE_CHECKING:
    from textual.color import Color

STORM, STORM_SECONDS = 100, 2.0
"""So many exceptions in so short a time end the app: it does nothing else any more."""
SAY_AGAIN_SECONDS = 60.0
"""What keeps failing is said as often: its pane shows nothing new."""
SAID_SECONDS, READ_CHARACTERS = 6.0, 15
"""How long a message stays; a long one until so many characters a second are read."""
KEY_SECONDS = 0.25
"""A key waits no longer for what the one before it does: that may have closed its widget, or opened a dialog."""


class SanitizeFilter(LineFilter):
    """Blanks control characters in every drawn line; the line keeps its width.

    Views sanitize their own text, so that it is laid out as it is drawn. This is for a view that forgets to.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [Segment(blank_controls(segment.text, cell_len), segment.style, segment.control) for segment in segments]


class KeyHandled(Message):
    """Follows a key from widget to widget up to the app: all of them are done with it."""


class SurvivingApp(App[bool]):
    """Ends at an exception only before its first paint, or in a storm of them."""

    survives: ClassVar[bool] = True
    """False in tests: there the first exception ends the app, and fails the test."""
    notices: reactive[tuple[tuple[str, bool], ...]] = reactive((), repaint=False)
    """The messages of these seconds, and whether each is bad: the key bar shows them in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.crash = ""
        """The exception that ended the screen."""
        self.painted = False
        self._failures: deque[float] = deque(maxlen=STORM)
        self._said: dict[str, float] = {}
        """Each failure, and when it was said."""
        self.takes_keys = False
        """False until there is something that a key can be about: what is typed earlier waits."""
        self.last_key: events.Key | None = None
        """Dialogs ask for it: whether a key has opened them."""
        self._typed: deque[events.Key] = deque()
        self._key_under_way: Timer | None = None

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Key) or event.is_forwarded:
            return await super().on_event(event)
        self.last_key = event
        self._typed.append(event)
        return await self._pass_key()

    async def _pass_key(self) -> None:
        """Passes a key on once the one before is done: Textual would give what follows a / to the list, too."""
        while self.takes_keys and self._typed and self._key_under_way is None and self.screen_stack:  # empty at the end
            key, target = self._typed.popleft(), self.focused or self.screen
            await super().on_event(key)
            if key.is_forwarded and target.post_message(KeyHandled()):
                self._key_under_way = self.set_timer(KEY_SECONDS, self.on_key_handled)

    async def take_keys(self) -> None:
        """From now on keys are passed on: those that came earlier first."""
        self.takes_keys = True
        await self._pass_key()

    async def on_key_handled(self) -> None:
        if self._key_under_way:
            self._key_under_way.stop()
        self._key_under_way = None
        await self._pass_key()

    def say(self, text: str, *, bad: bool = False) -> None:
        """Shows a message for some seconds; as a warning if ``bad``."""
        text = sanitize_line(text)
        seconds = max(SAID_SECONDS, len(text) / READ_CHARACTERS)
        self.notify(text, severity="warning" if bad else "information", markup=False, timeout=seconds)

    def _refresh_notifications(self) -> None:
        # Textual lays toasts over the lower right corner: over a prompt box, or the row that the owner looks at.
        notes = [] if self._disable_notifications else list(self._notifications)
        self.notices = tuple(dict.fromkeys((note.message, note.severity != "information") for note in notes))
        if notes:
            self.set_timer(max(0.0, min(note.time_left for note in notes)) + 0.05, self._refresh_notifications)

    def say_failure(self, text: str, details: str) -> None:
        """Shows ``text`` in a line; ``details`` is a traceback to keep."""
        raise NotImplementedError

    def goes_on(self, error: BaseException) -> bool:
        """Says what failed, each failure now and then. False if the app must end."""
        if (self._exit or not self.is_running) and isinstance(error, MountError | NoScreen | ScreenStackError):
            return True  # it closes, and something still draws
        self._failures.append(now := time.monotonic())
        stormy = len(self._failures) == STORM and self._failures[-1] - self._failures[0] < STORM_SECONDS
        if not self.survives or not self.painted or stormy:
            return False
        text = str(error) if isinstance(error, GpuboxError) else f"A part of the screen failed: {_named(error)}."
        if now - self._said.get(text, -SAY_AGAIN_SECONDS) >= SAY_AGAIN_SECONDS:
            self._said[text] = now
            self.say_failure(text, _details(error))
        return True

    def _handle_exception(self, error: Exception) -> None:
        cause = error.error if isinstance(error, WorkerFailed) else error
        if not self.goes_on(cause):
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        # Textual would print a traceback; the owner gets one sentence and a file to report.
        error = sys.exc_info()[1] or self._exception
        self.crash = _named(error) if error else "unknown"
        self.say_failure("", _details(error) if error else "")
        self._close_messages_no_wait()


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _details(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


_dispatch = MessagePump._dispatch_message


async def _dispatch_and_survive(pump: MessagePump, message: Message) -> None:
    try:
        await _dispatch(pump, message)
    except Exception as error:
        app = pump.app
        if not (isinstance(app, SurvivingApp) and app.goes_on(error)):
            raise


# Textual ends the loop of a widget, or of the app, at the first exception of a handler: it would never react again.
MessagePump._dispatch_message = _dispatch_and_survive  # type: ignore[assignment,method-assign]
