"""What of a reply is the answer, and the code in it, however it is fenced. Pure.

The article's first two bugs lived here: thinking that was cut off is never an answer, and an answer that the server
put into ``reasoning_content`` is one, and said to be from there.
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
_KNOWN = {name: family for family, names in _FAMILIES.items() for name in names}
_KNOWN |= dict.fromkeys(("code", "text", "txt", "plain", "plaintext"), "")
_EXTENSIONS = {"py": PYTHON, "ts": SCRIPT, "tsx": SCRIPT, "mts": SCRIPT, "js": SCRIPT, "mjs": SCRIPT, "cjs": SCRIPT}
_PATH = re.compile(r"(?<![\w/])(?:\./)?((?:[\w.-]+/)*[\w.-]+\.(?:py|tsx?|mts|m?js|cjs))(?![\w/])", re.IGNORECASE)
LONGEST_HEADING = 200
"""Characters of a line that may name a file."""
_STARTS = re.compile(
    r"(?:import |from \w|def |class |async |#!|@\w|export |const |let |function |interface |type \w+ ?[=<]|'use strict"
    r"|\"use strict|module\.exports|#|//|/\*|\"\"\"|''')"
)


@dataclass(frozen=True, slots=True)
class SuiteAnswer:
    """The text to score, and where it is from."""

    text: str
    source: str
    """content | reasoning | empty (nothing was said) | cut (max_tokens ended the thinking)"""

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        rest, end = [], 0
        for block in fenced_blocks(self.text):
            rest.append(self.text[end : block.start])
            end = block.end
        return "\n".join((*rest, self.text[end:]))


@dataclass(frozen=True, slots=True)
class CodePiece:
    """One piece of code in an answer."""

    code: str
    family: str
    """PYTHON, SCRIPT, another language's name; empty where nothing tells."""
    path: str = ""
    """As its heading, its tag or its first line has it."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].lower()


def answer_of_reply(content: str, reasoning: str, finish_reason: str) -> SuiteAnswer:
    """The Answer of one reply."""
    thinking, visible = split_thinking(content)
    if visible.strip():
        return SuiteAnswer(visible, "content")
    if finish_reason == "length" and (thinking.strip() or reasoning.strip()):
        return SuiteAnswer("", "cut")
    if reasoning.strip() and not thinking.strip():
        return SuiteAnswer(reasoning, "reasoning")
    return SuiteAnswer("", "empty")


def code_in(answer: SuiteAnswer, family: str, path: str, worth: Callable[[str], int]) -> str:
    """The program of ``family`` that the answer gives as ``path``; empty where there is none.

    Of several the one that bears the name of the file, then the one that ``worth`` finds most in, then the last: a
    correction stands below what it corrects.
    """
    found = [piece for piece in code_pieces(answer) if piece.family in (family, "") and piece.code.strip()]
    if family == SCRIPT and len(found) > 1:  # a class in one block and its tests in the next
        found.append(CodePiece("\n".join(piece.code for piece in found), family))
    if not found:
        return ""
    return max(enumerate(found), key=lambda one: (one[1].name == path, worth(one[1].code), one[0]))[1].code


def files_in(answer: SuiteAnswer, originals: Mapping[str, str], family: str) -> dict[str, str]:
    """Path of ``originals`` -> the answer's content of it: by its path, else by the original it is most like."""
    found: dict[str, str] = {}
    unnamed: list[str] = []
    for piece in code_pieces(answer):
        if piece.family not in (family, "") or not piece.code.strip():
            continue
        own = piece.path.lower().removeprefix("./")
        known = [path for path in originals if own == path or own.endswith("/" + path)]
        known = known or [path for path in originals if path.rpartition("/")[2] == piece.name]
        if len(known) == 1:
            found[known[0]] = piece.code
        elif not piece.path:
            unnamed.append(piece.code)
    for code in unnamed:
        lines = {line.strip() for line in code.splitlines() if line.strip()}
        alike = {path: _shared(lines, text) for path, text in originals.items()}
        best = max(alike, key=lambda path: alike[path])
        if alike[best] >= 0.4 and best not in found:
            found[best] = code
    return found


def _shared(lines: set[str], original: str) -> float:
    """The share of the original's lines that stand in ``lines``."""
    own = {line.strip() for line in original.splitlines() if len(line.strip()) > 3}
    return len(own & lines) / len(own)


def code_pieces(answer: SuiteAnswer) -> list[CodePiece]:
    """Every piece of code in order."""
    fenced = list(_fenced(answer.text))
    if fenced:
        return fenced
    closed = "</pre>" in answer.text.lower()
    tagged = closed and re.findall(
        r"<pre[^>]*>(?:\s*<code[^>]*>)?(.*?)(?:</code>\s*)?</pre>", answer.text, re.DOTALL | re.I
    )
    if tagged:
        return [CodePiece(html.unescape(code), "", _path_in(html.unescape(code))) for code in tagged]
    return list(_bare(answer.text))


def _fenced(text: str) -> Iterator[CodePiece]:
    end = 0
    for block in fenced_blocks(text):
        tag = text[block.start :].partition("\n")[0].strip().lstrip("`~").strip()
        words = [word for word in re.split(r"[\s:={}\"',;()\[\]]+", tag) if word]
        path = next((match[1] for word in words if (match := _PATH.fullmatch(word))), "")
        path = path or _path_before(text[end : block.start]) or _path_in(block.code)
        first = words[0].lower().lstrip(".") if words and not _PATH.fullmatch(words[0]) else ""
        family = _KNOWN.get(first, first) or _EXTENSIONS.get(path.rpartition(".")[2].lower(), "")
        yield CodePiece(block.code, family, path)
        end = block.end


def _bare(text: str) -> Iterator[CodePiece]:
    """Code that stands in no fence: below lines that name a file, or in one piece with prose around it."""
    lines = text.splitlines()
    heads = [place for place, line in enumerate(lines) if _is_heading(line)]
    if not heads:
        code = max((_longest_code(lines), *_indented(lines)), key=len)
        if code:
            yield CodePiece(code, "", _path_in(code))
        return
    for place, after in zip(heads, [*heads[1:], len(lines)], strict=True):
        code = _longest_code(lines[place + 1 : after])
        if code:
            yield CodePiece(code, "", _path_in_line(lines[place]))


def _indented(lines: list[str]) -> Iterator[str]:
    """Markdown's other code: runs of lines that stand four spaces in, below a line that does not."""
    run: list[str] = []
    for line in [*lines, "end"]:
        if line.startswith(("    ", "\t")) or (run and not line.strip()):
            run.append(line.expandtabs(4)[4:])
        elif run:
            code = "\n".join(run).rstrip() + "\n"
            if _STARTS.match(code):
                yield code
            run = []


def _is_heading(line: str) -> bool:
    """Whether a line is a file's name and little else."""
    match = _PATH.search(line) if len(line) <= LONGEST_HEADING else None
    rest = re.sub(r"[\W_]+", " ", line[: match.start()] + line[match.end() :]).split() if match else []
    return match is not None and len(rest) <= 3 and not re.search(r"[;=({]|\bimport\b|\bpython\b|\bnode\b", line)


def _longest_code(lines: list[str]) -> str:
    """The longest run of lines that is Python; else, from the first line that looks like code, to the last."""
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    lines = [line[indent:] for line in lines]
    starts = [place for place, line in enumerate(lines) if _STARTS.match(line)]
    best = ""
    for start in starts[:20]:
        code = _python_from(lines[start:])
        if code.count("\n") > best.count("\n"):
            best = code
    if best.count("\n") >= 2 and re.search(r"^\s*(?:import|from|def|class)\b", best, re.MULTILINE):
        return best
    ends = [place for place, line in enumerate(lines) if re.search(r"[;})\]]\s*(?://.*)?$", line)]
    if starts and ends and ends[-1] > starts[0]:
        return "\n".join(lines[starts[0] : ends[-1] + 1]) + "\n"
    return ""


def _python_from(lines: list[str]) -> str:
    """As many of these lines as are one program."""
    for _ in range(40):
        code = "\n".join(lines) + "\n"
        if parse_python(code) is not None:
            return code
        try:
            compile(code, "<answer>", "exec", dont_inherit=True)
        except SyntaxError as error:
            line = min(error.lineno or len(lines), len(lines))
        except (ValueError, RecursionError, MemoryError, OverflowError):
            return ""
        lines = lines[: max(0, line - 1)]
        if not lines:
            return ""
    return ""


def _path_before(text: str) -> str:
    lines = [line for line in text.rstrip().splitlines()[-2:] if line.strip()]
    return _path_in_line(lines[-1]) if lines else ""


def _path_in(code: str) -> str:
    first = code.lstrip().partition("\n")[0].strip()
    if not first.startswith(("//", "#", "/*", "<!--")) or not _is_heading(first):
        return ""
    return _path_in_line(first)


def _path_in_line(line: str) -> str:
    match = _PATH.search(line) if len(line) <= LONGEST_HEADING else None
    return match[1] if match else ""
