"""The answer in a reply, and the code in it, however it is fenced. Pure.

Two of the article's bugs are avoided here: unfinished thinking is never an answer, and an answer that the server put
into ``reasoning_content`` counts, with its source shown.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpubox.agent.fenced_code import fenced_blocks
from gpubox.agent.thinking import split_thinking
from gpubox.bench.kinds.shared import parse_python

PYTHON, SCRIPT = "python", "script"
_FAMILIES = {
    PYTHON: ("python", "py", "python3", "py3", "pycon", "ipython"),
    SCRIPT: ("typescript", "ts", "tsx", "mts", "cts", "javascript", "js", "jsx", "mjs", "cjs", "node", "ecmascript"),
}
_FAMILY_OF_NAME = {name: family for family, names in _FAMILIES.items() for name in names}
_FAMILY_OF_NAME |= dict.fromkeys(("code", "text", "txt", "plain", "plaintext"), "")
_PATH = re.compile(r"(?<![\w/])(?:\./)?((?:[\w.-]+/)*[\w.-]+\.(?:py|tsx?|mts|m?js|cjs))(?![\w/])", re.IGNORECASE)
MAX_HEADING_CHARACTERS = 200
"""A longer line is not searched for a file name."""
_CODE_START = re.compile(
    r"(?:import |from \w|def |class |async |#!|@\w|export |const |let |function |interface |type \w+ ?[=<]|'use strict"
    r"|\"use strict|module\.exports|#|//|/\*|\"\"\"|''')"
)


@dataclass(frozen=True, slots=True)
class SuiteAnswer:
    """The text to score and its source."""

    text: str
    source: str
    """content | reasoning | empty (there is no text) | cut (max_tokens ended the thinking)"""

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        parts, end = [], 0
        for block in fenced_blocks(self.text):
            parts.append(self.text[end : block.start])
            end = block.end
        return "\n".join((*parts, self.text[end:]))


@dataclass(frozen=True, slots=True)
class CodePiece:
    """One piece of code in an answer."""

    code: str
    family: str
    """PYTHON, SCRIPT or another language's name; empty if unknown."""
    path: str = ""
    """From its heading, its tag or its first line."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].lower()


def answer_of_reply(content: str, reasoning: str, finish_reason: str) -> SuiteAnswer:
    """The answer of one reply."""
    thinking, visible = split_thinking(content)
    if visible.strip():
        return SuiteAnswer(visible, "content")
    if finish_reason == "length" and (thinking.strip() or reasoning.strip()):
        return SuiteAnswer("", "cut")
    if reasoning.strip() and not thinking.strip():
        return SuiteAnswer(reasoning, "reasoning")
    return SuiteAnswer("", "empty")


def code_in(answer: SuiteAnswer, family: str, path: str, worth: Callable[[str], int]) -> str:
    """The program of ``family`` in the answer; empty if there is none.

    Of several it is the one named ``path``, else the one that ``worth`` rates highest, else the last, because a
    correction stands below what it corrects.
    """
    pieces = [piece for piece in code_pieces(answer) if piece.family in (family, "") and piece.code.strip()]
    if family == SCRIPT and len(pieces) > 1:  # a class may be in one block and its tests in the next
        pieces.append(CodePiece("\n".join(piece.code for piece in pieces), family))
    if not pieces:
        return ""
    ranks = [(piece.name == path, worth(piece.code), place) for place, piece in enumerate(pieces)]
    return pieces[max(ranks)[2]].code


def files_in(answer: SuiteAnswer, originals: Mapping[str, str], family: str) -> dict[str, str]:
    """Path -> the answer's version of that file, found by its path, else by the original it resembles most."""
    files: dict[str, str] = {}
    unnamed: list[str] = []
    for piece in code_pieces(answer):
        if piece.family not in (family, "") or not piece.code.strip():
            continue
        own = piece.path.lower().removeprefix("./")
        matches = [path for path in originals if own == path or own.endswith("/" + path)]
        matches = matches or [path for path in originals if path.rpartition("/")[2] == piece.name]
        if len(matches) == 1:
            files[matches[0]] = piece.code
        elif not piece.path:
            unnamed.append(piece.code)
    for code in unnamed:
        lines = {line.strip() for line in code.splitlines() if line.strip()}
        shares = {path: _shared_lines(lines, text) for path, text in originals.items()}
        best = max(shares, key=lambda path: shares[path])
        if shares[best] >= 0.4:
            files.setdefault(best, code)
    return files


def _shared_lines(lines: set[str], original: str) -> float:
    """The share of the original's lines that are in ``lines``."""
    own = {line.strip() for line in original.splitlines() if len(line.strip()) > 3}
    return len(own & lines) / len(own)


def code_pieces(answer: SuiteAnswer) -> list[CodePiece]:
    """Every piece of code in order: fenced, else in ``<pre>``, else without any mark."""
    if fenced := list(_fenced(answer.text)):
        return fenced
    if "</pre>" in answer.text.lower():
        pattern = r"<pre[^>]*>(?:\s*<code[^>]*>)?(.*?)(?:</code>\s*)?</pre>"
        if tagged := [html.unescape(code) for code in re.findall(pattern, answer.text, re.DOTALL | re.IGNORECASE)]:
            return [CodePiece(code, "", _path_in(code)) for code in tagged]
    return list(_unfenced(answer.text))


def _fenced(text: str) -> Iterator[CodePiece]:
    end = 0
    for block in fenced_blocks(text):
        tag = text[block.start :].partition("\n")[0].strip().lstrip("`~").strip()
        words = [word for word in re.split(r"[\s:={}\"',;()\[\]]+", tag) if word]
        path = next((match[1] for word in words if (match := _PATH.fullmatch(word))), "")
        path = path or _path_before(text[end : block.start]) or _path_in(block.code)
        language = words[0].lower().lstrip(".") if words and not _PATH.fullmatch(words[0]) else ""
        family = _FAMILY_OF_NAME.get(language, language)
        family = family or _FAMILY_OF_NAME.get(path.rpartition(".")[2].lower(), "")
        yield CodePiece(block.code, family, path)
        end = block.end


def _unfenced(text: str) -> Iterator[CodePiece]:
    """Code without a fence: below lines that name a file, else the one run of code in the prose."""
    lines = text.splitlines()
    headings = [place for place, line in enumerate(lines) if _is_heading(line)]
    if not headings:
        code = max((_longest_code(lines), *_indented(lines)), key=len)
        if code:
            yield CodePiece(code, "", _path_in(code))
        return
    for place, end in zip(headings, [*headings[1:], len(lines)], strict=True):
        code = _longest_code(lines[place + 1 : end])
        if code:
            yield CodePiece(code, "", _path_in_line(lines[place]))


def _indented(lines: list[str]) -> Iterator[str]:
    """Markdown's indented code blocks."""
    block: list[str] = []
    for line in [*lines, "end"]:
        if line.startswith(("    ", "\t")) or (block and not line.strip()):
            block.append(line.expandtabs(4)[4:])
        elif block:
            code = "\n".join(block).rstrip() + "\n"
            if _CODE_START.match(code):
                yield code
            block = []


def _is_heading(line: str) -> bool:
    """Whether a line is a file name and little else."""
    match = _PATH.search(line) if len(line) <= MAX_HEADING_CHARACTERS else None
    if match is None or re.search(r"[;=({]|\bimport\b|\bpython\b|\bnode\b", line):
        return False
    return len(re.sub(r"[\W_]+", " ", line[: match.start()] + line[match.end() :]).split()) <= 3


def _longest_code(lines: list[str]) -> str:
    """The longest run of lines that parses as Python, else everything from the first to the last line like code."""
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    lines = [line[indent:] for line in lines]
    starts = [place for place, line in enumerate(lines) if _CODE_START.match(line)]
    longest = ""
    for start in starts[:20]:
        code = _python_from(lines[start:])
        if code.count("\n") > longest.count("\n"):
            longest = code
    if longest.count("\n") >= 2 and re.search(r"^\s*(?:import|from|def|class)\b", longest, re.MULTILINE):
        return longest
    ends = [place for place, line in enumerate(lines) if re.search(r"[;})\]]\s*(?://.*)?$", line)]
    if starts and ends and ends[-1] > starts[0]:
        return "\n".join(lines[starts[0] : ends[-1] + 1]) + "\n"
    return ""


def _python_from(lines: list[str]) -> str:
    """As many of the lines as form one program."""
    for _ in range(40):
        code = "\n".join(lines) + "\n"
        if parse_python(code) is not None:
            return code
        try:
            compile(code, "<answer>", "exec", dont_inherit=True)
        except SyntaxError as error:
            bad_line = min(error.lineno or len(lines), len(lines))
        except (ValueError, RecursionError, MemoryError, OverflowError):
            return ""
        lines = lines[: max(0, bad_line - 1)]
        if not lines:
            return ""
    return ""


def _path_before(text: str) -> str:
    lines = [line for line in text.rstrip().splitlines()[-2:] if line.strip()]
    return _path_in_line(lines[-1]) if lines else ""


def _path_in(code: str) -> str:
    """The path in a comment on the first line."""
    first = code.lstrip().partition("\n")[0].strip()
    is_comment = first.startswith(("//", "#", "/*", "<!--"))
    return _path_in_line(first) if is_comment and _is_heading(first) else ""


def _path_in_line(line: str) -> str:
    match = _PATH.search(line) if len(line) <= MAX_HEADING_CHARACTERS else None
    return match[1] if match else ""
