"""3.3: finds the answer 5/17, however it is written. Pure.

The article's matcher knew too few ways to write a number and gave all of its models 3 of 5 points.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

TARGET, TOLERANCE = 5 / 17, 0.005
_NUMBER = r"(?:\d+(?:[.,]\d+)?|\.\d+)(?:\s*/\s*(?:\d+(?:[.,]\d+)?|\.\d+))?\s*%?"
_INTERMEDIATE = (0.6, 0.3, 0.1, 0.01, 0.02, 0.05, 0.006, 0.005, 0.017, 0.9, 0.4, 0.7)
"""Numbers of the task and of the way to the answer: no answer unless called one."""
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", "01234567890123456789")
_NUMBER_WORDS = {"five": "5", "six": "6", "seventeen": "17", "twelve": "12"}
_FORMULA = re.compile(
    r"bayes|P\(\s*(?:server )?C\s*\|.{1,20}\)\s*=.*/|divid|posterior|(?:share|fraction|proportion|ratio) of"
    r"|out of (?:those|all|the)|\b5/17\b",
    re.IGNORECASE,
)
_SHARE = (
    r"\b(\d+(?:\.\d+)?)[ -](?:chances? )?(?:in|out of|of|over)(?: every| the| those| these"
    r"| all)?[ -](\d+(?:\.\d+)?)\b(?!\s*%)"
)
"""5 in 17, 5 out of the 17."""
_RATIO = re.compile(r"\(?(?:0?\.005|0\.0050|0?\.5%?|5|50|500)\)?/\(?(?:0?\.017|1\.7%?|17|170|1700|0?\.006|6|60)")
_OR = re.compile(r"\bor\b|\beither\b|\bperhaps\b|\bmaybe\b|\bpossibly\b", re.IGNORECASE)
_OTHER_PEOPLE = re.compile(
    (
        r"\b(?:some|others|one|you|people|many) (?:would|might|may|could|will|say)|\bnaive|\btempting"
        r"|\bignores?\b|\bincorrect|\bmistaken"
    ),
    re.IGNORECASE,
)
"""Introduces an answer that is not the writer's own."""
_COMPLEMENTS = (6 / 17, 12 / 17)
"""The probabilities of A (or B) and of both."""
_NOT_C = re.compile(r"\bC\b[^\d;,]{0,30}(?:0?[.,]35|35[.,]?\d* ?%|6/17|0?[.,]70|70[.,]?\d* ?%|12/17)")
_DENIED = re.compile(r"\b(?:not|n't|never|wrong|incorrect)\b[^.]{0,40}(?:5/17|0?[.,]29|29[.,]?\d* ?%)", re.IGNORECASE)
_LEADS = (
    r"(?:[=≈~:]|\b(?:is|was|are|be|about|approximately|approx\.?|roughly|around|nearly|almost|equals|to|or|of|answer"
    r"|comes? to)\b)"
)
_CONCLUDED = re.compile(
    rf"{_LEADS}\s*(?:\(|\*|about|approximately|roughly|around|an?\b|≈|~|\s)*\s*({_NUMBER})", re.IGNORECASE
)
_CONCLUSION = re.compile(
    r"\b(answer|therefore|thus|hence|conclusion|finally|so\b|probability (?:that|of)|result)|\\boxed"
    r"|P\s*\(\s*(?:server )?C\s*(?:\||given)",
    re.IGNORECASE,
)


def bayes_points(text: str) -> dict[str, int]:
    """Points by criterion, five in all: formula 1, joint probabilities 1, total 1, answer 2.

    With another answer there is one point at most.
    """
    plain = plain_math(text)
    correct = concludes_correctly(text)
    points = {
        "formula": int(bool(_FORMULA.search(plain)) or bool(_RATIO.search(plain.replace(" ", "")))),
        "joint probabilities": int(_states(plain, (6, 5))),
        "total": int(_states(plain, (17,))),
        "answer": 2 * int(correct),
    }
    if not correct and sum(points.values()) > 1:
        points["another answer"] = 1 - sum(points.values())
    return points


def concludes_correctly(text: str) -> bool:
    """Whether the last probability that the text concludes with is 5/17, to TOLERANCE, and the only one it offers."""
    plain = plain_math(text)
    lines = [line for line in re.split(r"\n|(?<=[.!?])\s+(?=[A-Z*(≈])", plain) if line.strip()]
    last_part = int(len(plain) * 0.6)
    place, conclusions = 0, []
    for line in lines:
        place = plain.find(line, place)
        if place + len(line) >= last_part or _CONCLUSION.search(line):
            conclusions.append(line)
    for line in reversed(conclusions):
        if _OTHER_PEOPLE.search(line):
            continue
        concluded = _probabilities([match[1] for match in _CONCLUDED.finditer(line)])
        numbers = _probabilities(re.findall(_NUMBER, line))
        if not concluded and re.fullmatch(rf"\W*(?:answer\W*)?({_NUMBER})\W*", line.strip(), re.IGNORECASE):
            concluded = numbers
        concluded = concluded or [n for n in numbers if not any(abs(n - known) < 1e-9 for known in _INTERMEDIATE)]
        if not concluded:
            continue
        answer = concluded[-1]
        hedged = _OR.search(line) and any(abs(n - answer) > TOLERANCE and n not in _INTERMEDIATE for n in numbers)
        if any(_is_target(n) for n in concluded) and not _NOT_C.search(line):
            answer = [n for n in concluded if all(abs(n - other) > TOLERANCE for other in _COMPLEMENTS)][-1]
        return _is_target(answer) and not hedged and not _DENIED.search(line)
    return False


def _is_target(value: float) -> bool:
    return abs(value - TARGET) <= TOLERANCE


def plain_math(text: str) -> str:
    """The text without LaTeX and Markdown: numbers, signs and words."""
    text = re.sub(r"\d{25,}", "0", text)
    text = re.sub(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2 ", text)
    text = re.sub(r"\\[dt]?frac\s*(\d)\s*\{?(\d+)\}?", r" \1/\2 ", text)
    text = re.sub(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r" = \1 ", text)
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r"\1", text)
    text = text.replace("\\approx", "≈").replace("\\%", "%").replace("\\mid", "|").replace("⁄", "/").replace("÷", "/")
    text = text.translate(_SUPERSCRIPTS)
    text = re.sub(r"\\[,;! ]|\$|\*\*|__|`|\\left|\\right|[{}]|\\[()\[\]]", " ", text)
    text = re.sub(r"\\(?:times|cdot)", "×", text)
    text = re.sub(r"(\d+(?:[.,]\d+)?)\s*[×x*]\s*10\s*\^?\s*\(?\s*[-−–⁻]\s*(\d+)\)?", _power, text)
    text = re.sub(r"\b(\d+(?:[.,]\d+)?)e-0*(\d+)\b", _power, text, flags=re.IGNORECASE)
    text = re.sub(r"\bper ?cent\b|\bpct\b", "%", text)
    for word, digits in _NUMBER_WORDS.items():
        text = re.sub(rf"\b{word}\b", digits, text, flags=re.IGNORECASE)
    text = re.sub(r"\b5[ -]seventeenths?\b", "5/17", text, flags=re.IGNORECASE)
    text = re.sub(_SHARE, r"\1/\2", text)
    return re.sub(r"[ \t\u00a0\u202f\u2009]+", " ", text)


def _power(match: re.Match[str]) -> str:
    places = int(match[2])
    return f"{float(match[1].replace(',', '.')) / 10**places:.{places + 4}f}" if places < 12 else match[0]


def _probabilities(words: Iterable[str]) -> list[float]:
    return [value for word in words if (value := _probability(word)) is not None]


def _probability(word: str) -> float | None:
    """A probability from a decimal (comma or point), a fraction or a percentage; ``None`` for any other number."""
    percent = word.rstrip().endswith("%")
    parts = [float(part.strip().replace(",", ".")) for part in word.rstrip().rstrip("%").split("/")]
    if len(parts) == 2 and not parts[1]:
        return None
    value = parts[0] / parts[1] if len(parts) == 2 else parts[0]
    value = value / 100 if percent else value
    return value if 0 <= value <= 1 and not (value in (0.0, 1.0) and not percent) else None


def _states(text: str, thousandths: tuple[int, ...]) -> bool:
    """Whether all of these are stated in one notation: as probabilities, or as counts of a round number."""
    words = [*re.findall(_NUMBER, text), *re.findall(r"(?:0|\b)[.,]\d+\s*%?|\b\d+[.,]\d+\s*%", text)]
    values = _probabilities(words)
    if all(any(abs(value - part / 1000) < 1e-6 for value in values) for part in thousandths):
        return True
    counts = {float(word.replace(",", "")) for word in re.findall(r"(?<![\d.,])\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?", text)}
    return any(all(part * scale in counts for part in (6, 5, 17)) for scale in (1, 10, 100, 1000, 10_000))
