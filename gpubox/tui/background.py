"""Whether the terminal is light or dark: the question (OSC 11), and its answer among the keys that are typed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.message import Message

if TYPE_CHECKING:
    from textual.driver import Driver

QUESTION = "\x1b]11;?\x07"
ANSWER_SECONDS = 3.0
"""A later answer changes nothing; it is not typed into anything either."""
MUTE_TERMINALS = ("linux", "dumb")
_ANSWER = re.compile(r"\x1b?\]11;rgba?:([0-9a-f]{1,4})/([0-9a-f]{1,4})/([0-9a-f]{1,4})[^\x07\x1b]{0,8}(?:\x07|\x1b\\)",
                     re.IGNORECASE)  # fmt: skip
_UNFINISHED = re.compile(r"\x1b\](?:1(?:1(?:;[^\x07\x1b]{0,40}\x1b?)?)?)?$")


class BackgroundKnown(Message):
    """The terminal has said what its background is."""

    def __init__(self, *, light: bool) -> None:
        super().__init__()
        self.light = light


class AnsweringParser(XTermParser):
    """Takes the answer out of what is typed. Textual would type it into the focused input."""

    _held = ""
    """The beginning of an answer whose rest has not come yet."""

    def feed(self, data: str) -> Iterable[Message]:
        if not data:  # the end
            yield from super().feed(data)
            return
        data, self._held = self._held + data, ""
        while answer := _ANSWER.search(data):
            data = data[: answer.start()] + data[answer.end() :]
            yield BackgroundKnown(light=is_light(*answer.groups()))
        if unfinished := _UNFINISHED.search(data):
            data, self._held = data[: unfinished.start()], unfinished.group()
        if data:
            yield from super().feed(data)


def is_light(*parts: str) -> bool:
    """Whether a colour is light: red, green and blue with one to four hexadecimal digits each."""
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in parts)
    luminance: float = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return luminance > 0.5


def ask_background(driver: Driver | None) -> bool:
    """Asks the terminal; its answer comes as BackgroundKnown. False where nobody would answer."""
    if not isinstance(driver, linux_driver.LinuxDriver) or os.environ.get("TERM", "") in MUTE_TERMINALS:
        return False
    driver.write(QUESTION)
    driver.flush()
    return True


# The driver makes its parser by this name.
linux_driver.XTermParser = AnsweringParser  # type: ignore[attr-defined]
