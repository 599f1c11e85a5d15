"""Right and wrong answers to HumanEval problems in the forms in which models write them."""

from __future__ import annotations

from gpubox.bench.kinds.humaneval.dataset import load_problems

CLOSE = load_problems()["HumanEval/0"]
SOLUTION = """\
def has_close_elements(numbers, threshold):
    for i, a in enumerate(numbers):
        for b in numbers[i + 1:]:
            if abs(a - b) < threshold:
                return True
    return False
"""
TYPED = SOLUTION.replace("(numbers, threshold)", "(numbers: List[float], threshold: float) -> bool")
WRONG_BODY = "def has_close_elements(numbers, threshold):\n    return False\n"
BODY = SOLUTION.partition("\n")[2]
STUB = CLOSE.prompt.replace("from typing import List\n", "").strip() + "\n"
HELPER = "def is_close(a, b, threshold):\n    return abs(a - b) < threshold\n"
WITH_HELPER = SOLUTION.replace("abs(a - b) < threshold", "is_close(a, b, threshold)")
COMBINED = (
    SOLUTION.replace(
        "    for i, a in enumerate(numbers):\n        for b in numbers[i + 1:]:\n",
        "    for a, b in combinations(numbers, 2):\n",
    )
    .replace("            if", "        if")
    .replace("                return True", "            return True")
)
IMPORT = "from itertools import combinations\n"
USE = "print(has_close_elements([1.0, 2.8, 3.0, 4.0, 5.0, 2.0], 0.3))\n"


def block(code: str, tag: str = "python", fence: str = "```") -> str:
    """``code`` in a fence."""
    return f"{fence}{tag}\n{code}{fence}\n"


def indented(text: str, indent: str = "    ") -> str:
    """``text`` with ``indent`` before each line that is not empty."""
    return "".join(indent + line if line.strip() else line for line in text.splitlines(keepends=True))


RIGHT: dict[str, str] = {
    "python fence": block(SOLUTION),
    "prose around a fence": f"Here is the function:\n\n{block(SOLUTION)}\nIt compares all pairs.",
    "py": block(SOLUTION, "py"),
    "py3": block(SOLUTION, "py3"),
    "python3": block(SOLUTION, "python3"),
    "Python": block(SOLUTION, "Python"),
    "PYTHON": block(SOLUTION, "PYTHON"),
    ".python": block(SOLUTION, ".python"),
    "{python}": block(SOLUTION, "{python}"),
    "{.python .numberLines}": block(SOLUTION, "{.python .numberLines}"),
    "python with a title": block(SOLUTION, 'python title="solution.py"'),
    "python:path": block(SOLUTION, "python:solution.py"),
    "a path as the tag": block(SOLUTION, "solution.py"),
    "a space before the tag": block(SOLUTION, " python"),
    "no tag": block(SOLUTION, ""),
    "text": block(SOLUTION, "text"),
    "an unknown tag": block(SOLUTION, "solution"),
    "tildes": block(SOLUTION, "python", "~~~"),
    "four backticks": block(SOLUTION, "python", "````"),
    "an indented fence": "1. The function:\n\n" + indented(block(SOLUTION), "   "),
    "an indented block": f"The function:\n\n{indented(SOLUTION)}\nThat is all.",
    "a fence whose code alone is indented": block(indented(SOLUTION)),
    "an unclosed fence": f"```python\n{SOLUTION}",
    "an unclosed fence, then prose": f"```python\n{SOLUTION}\nThis compares every pair of numbers once.\n",
    "a fence that opens in a sentence": f"Here you are: ```python\n{SOLUTION}```\n",
    "a fence that closes on the last line": f"```python\n{SOLUTION.rstrip()}```\n",
    "a second opening fence instead of a closing one": f"```python\n{SOLUTION}```python\n{USE}```\n",
    "only a closing fence": f"{SOLUTION}```\n",
    "the tag in the next line": f"```\npython\n{SOLUTION}```\n",
    "bare code": SOLUTION,
    "bare code below its language": f"python\n{SOLUTION}",
    "prose above bare code": f"Sure! Here is the function you asked for.\n\n{SOLUTION}",
    "prose below bare code": f"{SOLUTION}\nThis runs in O(n^2) time, because it looks at each pair.",
    "prose around bare code": f"Here it is:\n{SOLUTION}\nNote: it returns early.\nTime: O(n)\nDone",
    "bare code in a list": f"- The solution:\n{indented(SOLUTION, '  ')}- It is quadratic.",
    "[PYTHON]": f"[PYTHON]\n{SOLUTION}[/PYTHON]",
    "[PYTHON] without an end": f"[PYTHON]\n{SOLUTION}",
    "<pre><code>": "<pre><code>" + SOLUTION.replace("<", "&lt;") + "</code></pre>",
    "<code> around a fence": f"<code>\n{block(SOLUTION)}</code>",
    "<answer>": f"<answer>\n{SOLUTION}</answer>",
    "a quote": "".join(f"> {line}\n" for line in block(SOLUTION).splitlines()),
    "an interpreter's prompts": "".join(
        f"{'>>>' if line.startswith('def') else '...'} {line}\n" for line in SOLUTION.splitlines()
    ),
    "LaTeX's code": f"\\begin{{verbatim}}\n{SOLUTION}\\end{{verbatim}}",
    "a byte order mark": "\ufeff" + SOLUTION,
    "a byte order mark in a fence": block("\ufeff" + SOLUTION),
    "CRLF": block(SOLUTION).replace("\n", "\r\n"),
    "CR": f"The code:\n{SOLUTION}".replace("\n", "\r"),
    "no-break spaces": block(SOLUTION.replace("    ", "\u00a0\u00a0\u00a0 ")),
    "zero-width spaces": block(SOLUTION.replace("return", "\u200breturn")),
    "tabs": block(SOLUTION.replace("    ", "\t")),
    "the whole prompt completed": block(CLOSE.prompt + BODY),
    "annotated, without the import": block(TYPED),
    "its import in a block of its own": f"First:\n{block(IMPORT)}Then:\n{block(COMBINED)}",
    "its import below": f"{block(COMBINED)}It needs:\n{block(IMPORT)}",
    "its import in a sentence": f"Add this at the top:\n\n{IMPORT}\nand the function:\n\n{COMBINED}\nThat is it.",
    "helpers in one block, the function in the next": f"{block(HELPER)}and\n{block(WITH_HELPER)}",
    "the function, then its helper": f"{block(WITH_HELPER)}with\n{block(HELPER)}",
    "helpers in three blocks": block("EPSILON = 0.0\n")
    + block("def distance(a, b):\n    return abs(a - b) + EPSILON\n")
    + block(HELPER.replace("abs(a - b)", "distance(a, b)"))
    + block(WITH_HELPER),
    "helper in prose, the function in prose": f"First a helper.\n\n{HELPER}\nNow the rest.\n\n{WITH_HELPER}\nDone.",
    "a stub before": f"You gave me:\n{block(STUB)}The solution:\n{block(SOLUTION)}",
    "a stub after": f"{block(SOLUTION)}This fills in:\n{block(STUB)}",
    "a stub with pass after": f"{block(SOLUTION)}It replaces:\n{block(STUB + '    pass' + chr(10))}",
    "a stub with an ellipsis before": block("def has_close_elements(numbers, threshold): ...\n") + block(SOLUTION),
    "a stub in the same block": block(f"{STUB}\n\n{SOLUTION}"),
    "a wrong draft, then the correction": f"A first idea:\n{block(WRONG_BODY)}Correct is:\n{block(SOLUTION)}",
    "an example of its use in the next block": f"{block(SOLUTION)}Use it:\n{block(USE)}",
    "its output in the next block": f"{block(SOLUTION)}Output:\n{block('True' + chr(10), 'text')}",
    "an example that reads input": block(f"{SOLUTION}\nn = float(input())\nprint(has_close_elements([1.0, n], 0.3))\n"),
    "an example that is wrong": block(f"{SOLUTION}\nassert has_close_elements([1.0, 2.0], 0.5)\n"),
    "examples in a loop": block(
        f"{SOLUTION}\nfor numbers, wanted in (([1.0, 2.0], True),):\n"
        "    assert has_close_elements(numbers, 0.5) == wanted\n"
    ),
    "a main part": block(f"{SOLUTION}\nif __name__ == '__main__':\n    import doctest\n    doctest.testmod()\n"),
    "unit tests below": f"{block(SOLUTION)}Tests:\n"
    + block(
        "import pytest\nfrom solution import has_close_elements\n\ndef test_it():\n"
        "    assert has_close_elements([1.0], 1)\n"
    ),
    "unit tests in the same block": block(
        f"import unittest\n\n{SOLUTION}\nclass Tests(unittest.TestCase):\n    def test(self):\n"
        "        self.assertTrue(has_close_elements([1.0, 1.1], 0.5))\n\nunittest.main()\n"
    ),
    "from __future__": block(f"from __future__ import annotations\n{SOLUTION}"),
    "from __future__ below a docstring": block(f'"""Close."""\nfrom __future__ import annotations\n\n{TYPED}'),
    "an import that is not here": block(f"import numpy as np\nimport pandas\n\n{SOLUTION}"),
    "a shell's block before": f"Install nothing:\n{block('pip install' + chr(10), 'bash')}{block(SOLUTION)}",
    "the same in another language": block("function hasCloseElements() {}\n", "javascript") + block(SOLUTION),
    "only the body": block(BODY),
    "only the body, not indented": block("".join(line[4:] for line in BODY.splitlines(keepends=True))),
    "only the body, its first line not indented": block(BODY.lstrip()),
    "only the body, bare": BODY,
    "a lambda": block(
        "has_close_elements = lambda ns, t: any(abs(a - b) < t for i, a in enumerate(ns) for b in ns[i + 1:])\n"
    ),
    "under another name": block(SOLUTION.replace("has_close", "close") + "\nhas_close_elements = close_elements\n"),
    "decorated": block("import functools\n\n@functools.wraps(print)\n" + SOLUTION.replace("def has", "def has")),
    "a table made by a loop": block(
        "SEEN = {}\nfor n in range(3):\n    SEEN[n] = n\n\n"
        + SOLUTION.replace("    return False", "    return len(SEEN) != 3")
    ),
    "a raised recursion limit": block(f"import sys\nsys.setrecursionlimit(10000)\n\n{SOLUTION}"),
    "thinking before": f"<think>\n{block(WRONG_BODY)}</think>\n\n{block(SOLUTION)}",
    "thinking whose opening tag is in the prompt": f"I try\n{WRONG_BODY}\n</think>\n{block(SOLUTION)}",
    "a docstring with fences": block(
        SOLUTION.replace(":\n", ':\n    """Are two close?\n\n    ```\n    x\n    ```\n    """\n', 1), "python", "````"
    ),
    "a docstring with fences in the same fence": block(
        SOLUTION.replace(":\n", ':\n    """Are two close?\n\n```\nx\n```\n    """\n', 1)
    ),
    "a semicolon": block(SOLUTION.replace("    return False", "    close = False; return close")),
    "a heading and rules": f"# Solution\n\n---\n\n{block(SOLUTION)}\n---\n\n## Why\n\n1. It is right.\n",
    "a table in the prose": f"| n | time |\n|---|---|\n| 1 | 1 |\n\n{block(SOLUTION)}",
    "numbered steps with code of each": "1. Go through the pairs:\n   `for b in numbers[i + 1:]`\n2. Compare.\n\n"
    + block(SOLUTION),
}

WRONG: dict[str, str] = {
    "nothing": "",
    "a refusal": "I am sorry, I cannot help with that.",
    "prose": "You compare all pairs, and return True if two are closer than the threshold.",
    "a wrong function": block(WRONG_BODY),
    "the right one as a draft": f"First:\n{block(SOLUTION)}Better:\n{block(WRONG_BODY)}",
    "the right one only in thinking": f"<think>\n{block(SOLUTION)}</think>\n{block(WRONG_BODY)}",
    "the right one only in thinking, no answer": f"<think>\n{block(SOLUTION)}</think>\nDone.",
    "the right one in unclosed thinking": f"<think>\n{block(SOLUTION)}",
    "a stub": block(STUB),
    "a stub with pass": block(STUB + "    pass\n"),
    "a stub that raises": block(STUB + "    raise NotImplementedError\n"),
    "another name": block(SOLUTION.replace("has_close_elements", "close_elements")),
    "a method": block("class Solution:\n" + indented(SOLUTION)),
    "commented out": block(indented(SOLUTION, "# ")),
    "in a string": block(f"CODE = '''\n{SOLUTION}'''\n"),
    "cut off": block(SOLUTION[:-20]),
    "cut off in the loop": f"```python\n{SOLUTION[:150]}",
    "a helper that is missing": block(WITH_HELPER),
    "a helper that is wrong": block(HELPER.replace("<", ">")) + block(WITH_HELPER),
    "JavaScript": block(
        "function has_close_elements(n, t) {\n  return n.some((a, i) => n.slice(i + 1).some(b => a - b < t));\n}\n",
        "js",
    ),
    "overwritten": block(f"{SOLUTION}\nhas_close_elements = None\n"),
    "overwritten by a wrong one": block(f"{SOLUTION}\n{WRONG_BODY}"),
    "in a function": block("def make():\n" + indented(SOLUTION) + "    return has_close_elements\n"),
    "a generator": block(SOLUTION.replace("return", "yield")),
    "prints instead of returning": block(SOLUTION.replace("return", "print(1);")),
    "async": block("async " + SOLUTION),
    "the wrong parameters": block(SOLUTION.replace("(numbers, threshold)", "(numbers)")),
    "only an example of its use": block(USE),
    "imports it": block("from solution import has_close_elements\n"),
    "Python 2": block(SOLUTION.replace("return True", "print 'yes'; return True")),
    "the wrong one bare, the right one quoted as a string": f'{WRONG_BODY}\nX = """\n{SOLUTION}"""\n',
}
