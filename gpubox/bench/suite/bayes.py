"""3.3: the answer is 5/17, however it is written. Pure.

The article's matcher gave all of its models 3 of 5, because it knew too few ways to write a number.
"""

from __future__ import annotations

import re

TARGET, TOLERANCE = 5 / 17, 0.006
_NUMBER = r"\d+(?:[.,]\d+)?(?:\s*/\s*\d+(?:[.,]\d+)?)?\s*%?"
_LEADS = (
    r"(?:[=≈~:]|\b(?:is|was|are|be|about|approximately|approx\.?|roughly|around|nearly|almost|equals|to|or|of|answer"
    r"|comes? to)\b)"
)
_LED = re.compile(
    rf"{_LEADS}\s*(?:\(|\*|about|approximately|roughly|around|an?\b|≈|~|\s)*\s*({_NUMBER})", re.IGNORECASE
)
_CONCLUDES = re.compile(
    r"\b(answer|therefore|thus|hence|conclusion|finally|so\b|probability (?:that|of)|result)|\\boxed"
    r"|P\s*\(\s*(?:server )?C\s*(?:\||given)",
    re.IGNORECASE,
)


def bayes_points(text: str) -> dict[str, int]:
    """Points by item, five in all: formula 1, joints 1, total 1, answer 2."""
    plain = normal(text)
    small = plain.replace(" ", "")
    formula = bool(re.search(r"bayes", plain, re.IGNORECASE)) or bool(
        re.search(r"P\((?:server)?C\|.{1,20}\)=.*P\(.{1,20}\|(?:server)?C\)", small, re.IGNORECASE)
    )
    joints = all(_stated(plain, value) for value in (0.006, 0.005))
    return {
        "formula": int(formula),
        "joint probabilities": int(joints),
        "total": int(_stated(plain, 0.017)),
        "answer": 2 * int(answers(text)),
    }


def answers(text: str) -> bool:
    """Whether the last probability that the text concludes with is 5/17, to TOLERANCE."""
    plain = normal(text)
    cut = int(len(plain) * 0.6)
    lines = [line for line in re.split(r"\n|(?<=[.!?])\s+(?=[A-Z*])", plain) if line.strip()]
    place, ends = 0, []
    for line in lines:
        place = plain.find(line, place)
        if place + len(line) >= cut or _CONCLUDES.search(line):
            ends.append(line)
    for line in reversed(ends):
        found = [value for match in _LED.finditer(line) if (value := _value(match[1])) is not None]
        if not found and re.fullmatch(rf"\W*(?:answer\W*)?({_NUMBER})\W*", line.strip(), re.IGNORECASE):
            only = re.search(_NUMBER, line)
            found = [value for value in [_value(only[0])] if value is not None] if only else []
        if found:
            return abs(found[-1] - TARGET) <= TOLERANCE
    return False


def normal(text: str) -> str:
    """Without LaTeX and Markdown: numbers, signs and words."""
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2 ", text)
    text = re.sub(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r" = \1 ", text)
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r"\1", text)
    text = text.replace("\\approx", "≈").replace("\\%", "%").replace("\\mid", "|").replace("⁄", "/")
    text = re.sub(r"\\[,;! ]|\$|\*\*|__|`|\\left|\\right|[{}]", " ", text)
    text = re.sub(r"\\(?:times|cdot)", "×", text)
    text = re.sub(r"\bper ?cent\b", "%", text)
    return re.sub(r"[ \t\u00a0\u202f]+", " ", text)


def _value(word: str) -> float | None:
    """A probability, from a decimal (comma or point), a fraction or a percentage; ``None`` for any other number."""
    percent = word.rstrip().endswith("%")
    parts = [float(part.strip().replace(",", ".")) for part in word.rstrip().rstrip("%").split("/")]
    if len(parts) == 2 and not parts[1]:
        return None
    value = parts[0] / parts[1] if len(parts) == 2 else parts[0]
    value = value / 100 if percent else value
    return value if 0 <= value <= 1 and not (value in (0.0, 1.0) and not percent) else None


def _stated(text: str, value: float) -> bool:
    """Whether this probability stands anywhere, as a decimal, a percentage, a fraction or per thousand."""
    found = (_value(match) for match in re.findall(_NUMBER, text))
    return any(one is not None and abs(one - value) < 1e-6 for one in found)
