"""Jobs in Python projects: the owner's virtual environments, failing tests, features, a history."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import ClassVar

from tests.swe.driver import Owner, Task
from tests.swe.model import (
    LostError,
    Script,
    edit,
    hits,
    list_files,
    must,
    numbered,
    read,
    run,
    run_tests,
    search,
    write,
)
from tests.swe.project import DEBIAN_PYTHON, OWN_HOME, MissingError, Project, need

TINYMONEY = (
    "def parse(text):\n    whole, _, cents = text.partition('.')\n    return int(whole) * 100 + int(cents or 0)\n"
)
LEDGER = '''"""Amounts of a ledger."""

import tinymoney


def total(amounts):
    """The sum in cents."""
    return sum(amounts)


def largest(amounts):
    """The largest amount in cents."""
    return max(tinymoney.parse(amount) for amount in amounts)
'''
TEST_LEDGER = """from ledger.money import largest, total


def test_total():
    assert total(["1.50", "2.25"]) == 375


def test_largest():
    assert largest(["1.50", "2.25"]) == 225
"""


class DebianVenv(Task):
    """The project's own pytest and a library, both only in a .venv of Debian's Python."""

    prompt = "test_total fails. Please fix it."
    changes = ("ledger/money.py",)
    tested_by = ".venv/bin/python -m pytest -q -p no:cacheprovider"
    package = "ledger/"

    def make(self, project: Project) -> None:
        if not Path(DEBIAN_PYTHON).exists():
            raise MissingError(f"no {DEBIAN_PYTHON}")
        self.fill(project)
        project.venv(DEBIAN_PYTHON, {"tinymoney.py": TINYMONEY})
        script = f"#!{project.root}/.venv/bin/python\nimport sys, pytest\nsys.exit(pytest.main())\n"
        project.put({".venv/bin/pytest": script}, mode=0o755)

    def fill(self, project: Project) -> None:
        """The project without its environment."""
        project.put({
            "pyproject.toml": '[project]\nname = "ledger"\nversion = "1"\n\n[tool.pytest.ini_options]\n'
            'testpaths = ["tests"]\npythonpath = ["."]\n',
            f"{self.package}__init__.py": "", f"{self.package}money.py": LEDGER, "tests/test_money.py": TEST_LEDGER,
        })  # fmt: skip

    def solve(self) -> Script:
        output = yield list_files(recursive=True)
        must(r"^tests/test_money\.py\b", output)
        output = yield run(".venv/bin/pytest -q")
        failed = must(r"^(\S*ledger/\w+\.py):(\d+): TypeError", output)
        output = yield read(failed[1], numbers=True)
        line = numbered(output)[int(failed[2])]
        good = must(r"max\((.*)\)", output)[1]
        output = yield edit(failed[1], (line, line.replace("sum(amounts)", f"sum({good})")))
        output = yield run_tests()
        must(r"\b2 passed", output)
        return "total() now parses its amounts."

    def check(self, project: Project) -> None:
        assert "2 passed" in project.run(".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider")


class PyenvVenv(DebianVenv):
    """A .venv of a newer Python below the owner's home; the code needs it."""

    home = OWN_HOME

    def make(self, project: Project) -> None:
        self.fill(project)
        project.put({"ledger/__init__.py": "type Amount = str\n"})  # only since 3.12
        project.venv(pyenv_python())

    def fill(self, project: Project) -> None:
        super().fill(project)
        own = LEDGER.replace("tinymoney.parse", "cents").replace("import tinymoney\n", "") + CENTS
        project.put({f"{self.package}money.py": own})

    def solve(self) -> Script:
        output = yield run(".venv/bin/python -VV && .venv/bin/python -m pytest -q")
        must(r"^Python 3\.1[2-9]", output)
        failed = must(r"^(\S*ledger/\w+\.py):(\d+): TypeError", output)
        output = yield read(failed[1])
        good = must(r"max\((.*)\)", output)[1]
        yield edit(failed[1], ("sum(amounts)", f"sum({good})"))
        output = yield run(".venv/bin/python -m pytest -q")
        must(r"\b2 passed", output)
        return "Fixed."


CENTS = (
    "\n\ndef cents(amount):\n    whole, _, part = amount.partition('.')\n    return int(whole) * 100 + int(part or 0)\n"
)


def pyenv_python() -> str:
    """A Python of pyenv, 3.12 or newer. Raises MissingError."""
    versions = sorted((OWN_HOME / ".pyenv/versions").glob("3.1[2-9]*/bin/python3"))
    if not versions:
        raise MissingError("no Python 3.12 of pyenv here")
    return str(versions[0])


class UvVenv(PyenvVenv):
    """A .venv of uv and its own Python, in which the project is installed editable, as uv sync does."""

    package = "src/ledger/"
    changes = ("src/ledger/money.py",)
    night = True

    def make(self, project: Project) -> None:
        uv, python = need("uv"), Path(pyenv_python()).parents[1]
        self.home = home = project.root.parent / "uv-home"
        copy = home / f".local/share/uv/python/cpython-{python.name}-linux-x86_64-gnu"  # as uv names its own
        skipped = shutil.ignore_patterns("test", "*.a", "__pycache__")
        try:
            shutil.copytree(python, copy, symlinks=True, copy_function=_link, ignore=skipped)
        except OSError as error:
            raise MissingError(f"pyenv's Python cannot stand for one of uv: {error}") from error
        for program in copy.glob("bin/python3.1[2-9]"):  # uv's find their library wherever they are
            libraries, content = os.fsencode(python / "lib"), program.read_bytes()
            program.unlink()
            program.write_bytes(content.replace(libraries, b"$ORIGIN/../lib".ljust(len(libraries), b"\0")))
            program.chmod(0o755)
        self.fill(project)
        pyproject = project.text("pyproject.toml").replace('pythonpath = ["."]\n', "")
        project.put({"src/ledger/__init__.py": "type Amount = str\n", "pyproject.toml": pyproject})
        place = {"HOME": str(home), "XDG_DATA_HOME": f"{home}/.local/share"}
        project.run(uv, "venv", "-q", "--offline", "--managed-python", "-p", python.name, ".venv", **place)
        project.install_pytest({"_ledger.pth": f"{project.root}/src\n"})


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


class FailingTest(Task):
    """unittest and nothing else. The first repair is wrong: only the test says so. AGENTS.md has the command."""

    prompt = "The tests fail, please repair the code."
    changes = ("roman.py",)
    files: ClassVar[dict[str, str]] = {
        "AGENTS.md": "# Rules\n\nRun the tests with `sh check.sh`, never in another way.\n",
        "check.sh": "exec /usr/bin/env python3 -m unittest -q test_roman\n",
        "roman.py": 'VALUES = {"M": 1000, "D": 500, "C": 100, "L": 50, "X": 10, "V": 5, "I": 1}\n\n\n'
        "def number(text):\n    total = 0\n    for letter in text:\n"
        "        total += VALUES[letter]\n    return total\n",
        "test_roman.py": "import unittest\n\nfrom roman import number\n\n\nclass Roman(unittest.TestCase):\n"
        "    def test_all(self):\n"
        '        for text, value in (("III", 3), ("IX", 9), ("XIV", 14), ("MCMXC", 1990)):\n'
        "            with self.subTest(text):\n                self.assertEqual(number(text), value)\n",
    }

    def make(self, project: Project) -> None:
        project.put(self.files)

    def solve(self) -> Script:
        output = yield run("sh check.sh")
        must(r"AssertionError: 11 != 9", output)
        must(r"FAILED \(failures=3\)", output)
        output = yield (read("roman.py", numbers=True), read("test_roman.py"))
        line = must(r"^ *(\d+)\W+for letter in text:$", output)
        wrong = "    for letter, following in zip(text, text[1:]):\n        value = VALUES[letter]\n"
        wrong += "        total += -value if value < VALUES[following] else value\n"
        old = "".join(numbered(output)[int(line[1]) + at] + "\n" for at in (0, 1))
        yield edit("roman.py", (old, wrong))
        output = yield run("sh check.sh")
        must(r"AssertionError: 2 != 3", output)  # the last letter is lost
        yield edit("roman.py", ("zip(text, text[1:])", 'zip(text, text[1:] + "I")'))
        output = yield run("sh check.sh")
        must(r"^OK$", output)
        return "A smaller letter before a larger one is now subtracted."

    async def talk(self, owner: Owner) -> None:
        await super().talk(owner)
        sent = [message["content"] for message in owner.server.bodies[0]["messages"]]
        assert any("sh check.sh" in text for text in sent), "the model was not told what AGENTS.md says"

    def check(self, project: Project) -> None:
        project.run("sh", "check.sh")


class LongFile(Task):
    """3,200 lines. What is wrong there occurs 400 times, so that the first edit has no single place."""

    prompt = "rate_217 must add the units above ten, not subtract them. test_rates.py says so, too."
    changes = ("rates.py",)
    function = (
        'def rate_{0}(units):\n    """Rate {0}."""\n    base = units * {0}\n    if units > 10:\n'
        "        base -= units\n    return base\n"
    )

    def make(self, project: Project) -> None:
        test = "import rates\n\nfor at in range(400):\n    wanted = at * 11 + (11 if at == 217 else -11)\n"
        test += "    assert getattr(rates, f'rate_{at}')(11) == wanted, at\nprint('all rates are right')\n"
        project.put({"rates.py": "\n\n".join(map(self.function.format, range(400))), "test_rates.py": test})

    def solve(self) -> Script:
        output = yield run("python3 test_rates.py")
        must(r"^AssertionError: 217$", output)
        output = yield search(r"def rate_217\b")
        ((path, line, text),) = hits(output)
        if text.strip() != "def rate_217(units):":
            raise LostError(output)
        first, pages = 1, 0
        while first <= line:  # reads its way down, as far as each output goes
            output = yield read(path, first_line=first, numbers=True)
            shown, pages = numbered(output), pages + 1
            if list(shown) != list(range(first, first + len(shown))):
                raise LostError(f"lines {list(shown)}")
            first = int(must(r"next (?:is line|line:?) (\d+)", output)[1])
            if first != max(shown) + 1:
                raise LostError(f"after {max(shown)} comes {first}")
        output = yield read(path, first_line=line, lines=6, numbers=True)
        part = numbered(output)
        if part[line] != "def rate_217(units):" or part[line + 4] != "        base -= units" or line + 6 in part:
            raise LostError(output)
        output = yield edit(path, (part[line + 4], part[line + 4].replace("-=", "+=")))
        must(r"\b(?:lines? \d+|\d+ (?:times|places))", output)
        old = "\n".join(part[at] for at in range(line + 2, line + 5))
        output = yield edit(path, (old, old.replace("-=", "+=")))
        output = yield run("python3 test_rates.py")
        must(r"^all rates are right$", output)
        return "Done: only rate_217 was changed."

    def check(self, project: Project) -> None:
        wanted = "\n\n".join(map(self.function.format, range(400))).splitlines(keepends=True)
        at = wanted.index("def rate_217(units):\n") + 4
        wanted[at] = wanted[at].replace("-=", "+=")
        assert project.text("rates.py") == "".join(wanted)


class FourFiles(Task):
    """A feature over four files. One edit comes without its indentation."""

    prompt = "Add --json to the report command, as the other commands have it, with a test and a line in README.md."
    changes = ("README.md", "shop/cli.py", "shop/report.py", "tests/test_json.py")
    files: ClassVar[dict[str, str]] = {
        "README.md": "# shop\n\n- `shop stock --json`: what there is\n- `shop report`: what was sold\n",
        "shop/__init__.py": "",
        "shop/cli.py": '''"""The command line."""

import argparse

from shop import report, stock


def parser():
    result = argparse.ArgumentParser("shop")
    commands = result.add_subparsers(dest="command", required=True)
    for name in ("stock", "report"):
        command = commands.add_parser(name)
        if name == "stock":
            command.add_argument("--json", action="store_true")
    return result


def main(arguments):
    options = parser().parse_args(arguments)
    if options.command == "stock":
        return stock.text(options.json)
    return report.text()
''',
        "shop/report.py": '''"""What was sold."""

SOLD = {"tea": 3, "salt": 1}


def text():
    lines = []
    for name, count in SOLD.items():
        lines.append(f"{name}: {count}")
    return "\\n".join(lines)
''',
        "shop/stock.py": '''"""What there is."""

import json

THERE = {"tea": 7}


def text(as_json):
    return json.dumps(THERE) if as_json else str(THERE)
''',
        "tests/__init__.py": "",
        "tests/test_stock.py": "import unittest\n\nfrom shop.cli import main\n\n\nclass Stock(unittest.TestCase):\n"
        '    def test_json(self):\n        self.assertEqual(main(["stock", "--json"]), \'{"tea": 7}\')\n',
    }

    def make(self, project: Project) -> None:
        project.put(self.files)

    def solve(self) -> Script:
        output = yield search("json", glob="*.py")
        places = {path for path, _, _ in hits(output)}
        if places != {"shop/cli.py", "shop/stock.py", "tests/test_stock.py"}:
            raise LostError(output)
        output = yield (read("shop/cli.py"), read("shop/report.py"), read("tests/test_stock.py"), read("README.md"))
        for text in ("import argparse", "SOLD = ", "class Stock", "# shop"):
            must(text, output)
        # Without its indentation: there is one such place, and what replaces it must get that place's.
        yield edit("shop/cli.py", ('if name == "stock":\n    command.add_argument("--json", action="store_true")',
                                   'command.add_argument("--json", action="store_true")'),
                   ("report.text()", "report.text(options.json)"))  # fmt: skip
        output = yield edit("shop/report.py",
            ('"""What was sold."""\n', '"""What was sold."""\n\nimport json\n'),
            ("def text():\n    lines = []   \n",  # with blanks that are not there
             "def text(as_json=False):\n    if as_json:\n        return json.dumps(SOLD)\n    lines = []\n"),
        )  # fmt: skip
        test = must(r"import unittest[\s\S]*?main\(.*\n?", (yield read("tests/test_stock.py")))[0]
        test = test.replace("Stock", "Report").replace('"stock"', '"report"').replace("7}", '3, "salt": 1}')
        yield write("tests/test_json.py", test.rstrip("\n") + "\n")
        line = must(r"^- `shop report`", (yield read("README.md")))[0]
        yield edit("README.md", (line, "- `shop report --json`"))
        output = yield run("python3 -m unittest -q")
        must(r"^Ran 2 tests", output)
        must(r"^OK$", output)
        return "report has --json now."

    def check(self, project: Project) -> None:
        assert "\n        command.add_argument(" in project.text("shop/cli.py")
        assert "Ran 2 tests" in project.run("python3", "-m", "unittest", "-q")
        assert project.run("python3", "-c", "from shop.cli import main; print(main(['report']))") == "tea: 3\nsalt: 1\n"
        assert "- `shop report --json`: what was sold\n" in project.text("README.md")


class RenameSymbol(Task):
    """One name in twelve files, renamed by a program; a word that only contains it stays."""

    prompt = "Rename load_user to fetch_user everywhere. load_users stays."
    changes = ("users.py", *(f"jobs/job{at:02}.py" for at in range(11)))

    def make(self, project: Project) -> None:
        job = "from users import load_user, load_users\n\nNAMES = [load_user({0}), *load_users()]  # load_user, too\n"
        users = "def load_user(number):\n    return f'user {number}'\n\n\ndef load_users():\n    return []\n"
        project.put({"users.py": users, "jobs/readme.txt": "nothing to do with load_users\n"})
        project.put({f"jobs/job{at:02}.py": job.format(at) for at in range(11)})

    def solve(self) -> Script:
        output = yield search(r"\bload_user\b")
        paths = sorted({path for path, _, _ in hits(output)})
        if len(hits(output)) != 23 or len(paths) != 12:
            raise LostError(output)
        output = yield run(r"grep -rlw load_user . | xargs sed -i 's/\bload_user\b/fetch_user/g'; git --version")
        output = yield search(r"\bload_user\b")
        if hits(output):
            raise LostError(output)
        output = yield search("fetch_user")
        if sorted({path for path, _, _ in hits(output)}) != paths:
            raise LostError(output)
        output = yield run("PYTHONPATH=. python3 jobs/job07.py && echo fine")
        must("^fine$", output)
        return f"Renamed in {len(paths)} files."

    def check(self, project: Project) -> None:
        assert project.ends("grep", "-rnw", "load_user", ".")[0] == 1
        assert len(project.run("grep", "-rnw", "fetch_user", ".").splitlines()) == 23
        assert len(project.run("grep", "-rnw", "load_users", ".").splitlines()) == 24


class GitHistory(Task):
    """Which commit broke it? bisect moves HEAD and writes files: in the layer, never in the owner's repository."""

    prompt = "slug('a--b') was 'a-b' once. Find the commit that broke it and bring that back. Keep what came later."
    changes = ("slug.py",)
    good = "import re\n\n\ndef slug(text):\n    text = re.sub(r'-+', '-', text)\n    return text.strip('-')\n"
    bad = "def slug(text):\n    return text.strip('-')\n"

    def make(self, project: Project) -> None:
        project.put({"slug.py": self.good.replace(".strip('-')", ""), "README": "slugs\n"})
        project.commit("Slugs")
        project.put({"slug.py": self.good})
        project.commit("No dash at an end", day=2)
        project.put({"README": "slugs, made of text\n"})
        project.commit("Say more", day=3)
        project.put({"slug.py": self.bad})
        project.commit("Simplify", day=4)
        project.put({"slug.py": self.bad.replace("text.strip", "text.lower().strip")})
        project.commit("Lower case", day=5)
        project.put({"README": "slugs, made of any text\n"})
        project.commit("Say it better", day=6)

    def solve(self) -> Script:
        output = yield run("git status --short && git log --oneline -- slug.py")
        commits = [line.split(" ", 1) for line in output.splitlines() if " " in line and line[:7].isalnum()]
        if [title for _, title in commits[-4:]] != ["Lower case", "Simplify", "No dash at an end", "Slugs"]:
            raise LostError(output)
        (oldest, _) = commits[-1]
        output = yield run(
            f"git bisect start HEAD {oldest} && git bisect run python3 -B -c "
            "\"from slug import slug; raise SystemExit(slug('a--b') != 'a-b')\"; git bisect reset"
        )
        broken = must(r"^([0-9a-f]{40}) is the first '?bad'? commit", output)[1]
        output = yield run(f"git show {broken}; git blame -s slug.py")
        must(r"^ +Simplify$", output)
        must(r"^-    text = re\.sub", output)
        old = must(r"^-(    text = re\.sub.*)$", output)[1]
        output = yield read("slug.py")
        must(r"text\.lower\(\)\.strip", output)
        yield edit("slug.py", ("def slug(text):\n", f"import re\n\n\ndef slug(text):\n{old}\n"))
        output = yield run("python3 -B -c \"from slug import slug; print(slug('A--b-'))\" && git diff --stat")
        must(r"^a-b$", output)
        must(r"slug\.py \| +4", output)
        return f"{broken[:7]} broke it."

    def check(self, project: Project) -> None:
        assert project.run("git", "status", "--short") == " M slug.py\n"
        assert project.run("git", "fsck", "--no-progress") == ""
        assert project.run("git", "rev-parse", "--abbrev-ref", "HEAD") == "main\n"
        assert not (project.root / ".git/BISECT_START").exists()
        assert project.run("python3", "-c", "from slug import slug; print(slug('A--b-'))") == "a-b\n"
