"""Text from outside: what is left of it can be seen, and no terminal obeys it."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest

from gpubox.sanitize import MAX_COMBINING_MARKS, StreamSanitizer, reveal_hidden, sanitize_line, sanitize_text

NEVER = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
ATOMS = [
    *("\x1b", "[", "]", "31m", "52;c;", "\x07", "\x9b", "\x9d", "\x90", "\x1b\\", "\x9c", "a", "\n", "\r", "\r\n"),
    *("\u0301", "\u200d", "👩", "\u202e", "é", "P", "(", "B", "\x00", "hello", "\ufe0f", "\udc9b", "\U000e0041"),
]


def test_no_character_that_acts_or_hides_is_left() -> None:
    odd = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in NEVER]
    assert len(odd) > 130_000
    for clean in (sanitize_line, sanitize_text, reveal_hidden):
        left = {char for char in odd if char in clean(f"a{char}b")}
        assert left <= {"\n", "\t"}, clean


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("a\x1b]52;c;eHg=\x07b", "ab"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPtmux;\x1b\x1b]52;c;x\x07\x1b\\z", "␛␛z"),
        ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\z", "z"),
        ("\x9b31mz \x9d0;t\x9cq \x90q\x9cr", "z q r"),
        ("\x1b(B\x1b)0\x1bc\x1b7\x1b=z", "z"),
        ("a\x1b]0;never\nnext", "a␛\nnext"),
        ("a\x1b[31", "a␛"),
        ("50 %\r100 %\r\nnext\r\r\n", "50 %␍100 %\nnext\n"),
        ("pay\u200bpal p\u200dq \u202egnp.exe", "pay�pal p�q �gnp.exe"),
        ("hi" + "".join(chr(0xE0000 + ord(char)) for char in "do evil") + "!", "hi�!"),
        ("👩\u200d👩\u200d👧 خانه\u200cها", "👩\u200d👩\u200d👧 خانه\u200cها"),
        ("e" + "\u0301" * 500 + "!", "e" + "\u0301" * MAX_COMBINING_MARKS + "�!"),
        ("bell\x07 nul\x00 \x85", "bell␇ nul␀ �"),
        ("größe 模型 ┃ naïve", "größe 模型 ┃ naïve"),
    ],
)
def test_flowing(raw: str, shown: str) -> None:
    assert sanitize_text(raw) == shown


def test_one_line_stays_one() -> None:
    assert sanitize_line("two\nlines\r\n\tand\u2028more 👩\u200d💻") == "two lines     and�more 👩💻"


def test_text_for_approval_shows_the_inside_of_sequences() -> None:
    assert (
        reveal_hidden("echo \x1b]0;rm -rf ~;\x07 done\u200d\n\x1b[8mhidden") == "echo ␛]0;rm -rf ~;␇ done�\n␛[8mhidden"
    )


def test_pieces_come_out_as_the_whole_does() -> None:
    chance = random.Random(9)

    def runs(text: str) -> str:
        return re.sub("�+", "�", text)  # a run of hidden characters may come in two pieces

    for _ in range(5000):
        text = "".join(chance.choices(ATOMS, k=chance.randint(1, 14)))
        cleaner, shown, at = StreamSanitizer(), "", 0
        while at < len(text):
            step = chance.randint(1, 4)
            shown += cleaner.feed(text[at : at + step])
            at += step
        shown += cleaner.end()
        assert runs(shown) == runs(sanitize_text(text)), repr(text)
        assert not set("\x1b\x07\x9b\r\u202e") & set(shown)


def test_complete_text_is_not_held_back() -> None:
    cleaner = StreamSanitizer()
    assert cleaner.feed("a\x1b]0;never\nb\x1b[31m") == "a␛\nb"
    assert cleaner.feed("c\x1b") == "c"
    assert cleaner.feed("[0") == ""
    assert cleaner.feed("md") == "d"


def test_an_endless_sequence_costs_no_memory() -> None:
    cleaner = StreamSanitizer()
    assert all(cleaner.feed(piece) == "" for piece in ["\x1b]52;c;", *["A" * 1000] * 100])
    assert len(cleaner._pending) < 10_000
    assert cleaner.feed("\x07end") == "end"


def test_long_lines_are_cut_and_counted() -> None:
    cleaner = StreamSanitizer(10)
    assert (
        cleaner.feed("12345") + cleaner.feed("67890abc") + cleaner.feed("def\nnext")
        == "1234567890 … 6 more characters\nnext"
    )
    assert cleaner.feed("x" * 20) + cleaner.end() == "x" * 6 + " … 14 more characters"
    assert cleaner.feed("fresh") == "fresh"
