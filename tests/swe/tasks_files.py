"""Jobs that show what becomes of files: line ends, encodings, modes, links, names, folders, and what the owner did."""

from __future__ import annotations

import gzip
from typing import ClassVar

from tests.swe.driver import Owner, Task
from tests.swe.model import LostError, Script, edit, hits, list_files, must, must_not, read, run, said, search, write
from tests.swe.project import Project


class Crlf(Task):
    """A file with the line ends of Windows. The model writes \\n, as all models do."""

    prompt = "The menu must offer Save between Open and Quit."
    changes = ("menu.py",)
    menu = 'ITEMS = [\r\n    "Open",\r\n    "Quit",\r\n]\r\n\r\n\r\ndef choose(at):\r\n    return ITEMS[at]\r\n'

    def make(self, project: Project) -> None:
        project.put({"menu.py": self.menu, "unix.py": self.menu.replace("\r", "")})

    def solve(self) -> Script:
        output = yield read("menu.py")
        must(r'^    "Open",$', output)
        yield edit("menu.py", ('    "Open",\n    "Quit",\n', '    "Open",\n    "Save",\n    "Quit",\n'))
        output = yield run('python3 -B -c "import menu; print(menu.choose(1), len(menu.ITEMS))"')
        must("^Save 3$", output)
        return "Save is there."

    def check(self, project: Project) -> None:
        wanted = self.menu.replace('"Open",\r\n', '"Open",\r\n    "Save",\r\n')
        assert project.bytes("menu.py") == wanted.encode()


class Latin1(Task):
    """An old file in Latin-1. Its other bytes must stay as they are."""

    prompt = "In addresses.py, Zoë moved to Hauptstrasse 9, and add a function that gives all names."
    changes = ("addresses.py",)
    old = (
        "# -*- coding: latin-1 -*-\n# Adreßbuch\nPEOPLE = {\n    'Jürgen': 'Gänsemarkt 1',\n"
        "    'Zoë': 'Seestrasse 3',\n    'Åse': 'Kirkegårdsveien 5',\n}\n"
    )
    new = old.replace("Seestrasse 3", "Hauptstrasse 9") + "\n\ndef names():\n    return sorted(PEOPLE)\n"

    def make(self, project: Project) -> None:
        project.put({"addresses.py": self.old.encode("latin-1")})

    def solve(self) -> Script:
        output = yield search("Seestrasse")
        ((path, _, _),) = hits(output)
        output = yield read(path)
        line = must(r"^ *.*: 'Seestrasse 3',$", output)[0]
        output = yield edit(path, (line, line.replace("Seestrasse 3", "Hauptstrasse 9")))
        again = yield search("Hauptstrasse 9")
        if not hits(again):  # the line was not shown as it is: then its own part that is ASCII
            yield edit(path, ("'Seestrasse 3'", "'Hauptstrasse 9'"))
        yield edit(path, ("\n}\n", "\n}\n\n\ndef names():\n    return sorted(PEOPLE)\n"))
        output = yield run('python3 -B -c "import addresses as a; print(len(a.names()), ascii(a.PEOPLE))"')
        must(r"^3 .*'Zo\\xeb': 'Hauptstrasse 9'", output)
        return "Done."

    def check(self, project: Project) -> None:
        assert project.bytes("addresses.py") == self.new.encode("latin-1")


class Monorepo(Task):
    """100,000 files in 2,000 packages; one of them is wrong."""

    prompt = "The package that defines GRACE_DAYS gives 41 days, but its readme says 14. Fix the code."
    changes = ("packages/p1234/p1234/settings.py",)
    night = True
    packages, files = 2000, 48

    def make(self, project: Project) -> None:
        for number in range(self.packages):
            name = f"p{number:04}"
            folder = project.root / "packages" / name / name
            folder.mkdir(parents=True)
            (folder.parent / "README.md").write_text(f"# {name}\n")
            for at in range(self.files):
                (folder / f"m{at:02}.py").write_text(f"VALUE = {number * at}\n")
        project.put({
            "packages/p1234/README.md": "# p1234\n\nThere are 14 days of grace.\n",
            "packages/p1234/p1234/settings.py": "GRACE_DAYS = 41\n",
            "packages/p1234/test.py": "from p1234.settings import GRACE_DAYS\n\nassert GRACE_DAYS == 14, 1\n"
            "print('right')\n",
            "packages/p1999/NOTES": "the last one\n",
        })  # fmt: skip

    def solve(self) -> Script:
        output = yield list_files()
        must(r"^packages/", output)
        output = yield search("GRACE_DAYS", glob="*.py")
        places = {path: text for path, _, text in hits(output)}
        path = next(path for path, text in places.items() if "= 41" in text)
        output = yield run("cd packages/p1234 && python3 -B test.py")
        must("^AssertionError", output)
        yield edit(path, ("GRACE_DAYS = 41", "GRACE_DAYS = 14"))
        output = yield run("cd packages/p1234 && python3 -B test.py; cat ../p1999/NOTES; find .. -type f | wc -l")
        must("^right$", output)
        must("^the last one$", output)
        must(rf"^{self.packages * (self.files + 1) + 3}$", output)
        return "14 days now."

    def check(self, project: Project) -> None:
        assert project.text("packages/p1234/p1234/settings.py") == "GRACE_DAYS = 14\n"


class MoveFolder(Task):
    """rename() of a folder that lies below fails over layers (EXDEV): the model reads that, and moves it by copy."""

    prompt = "Move the package lib/old into src/core. Its scripts must stay executable."
    changes = (
        "lib", "lib/old", "lib/old/run.sh", "lib/old/deep", "lib/old/deep/data.txt",
        "src", "src/core", "src/core/run.sh", "src/core/deep", "src/core/deep/data.txt", "main.sh",
    )  # fmt: skip

    def make(self, project: Project) -> None:
        project.put({"lib/old/run.sh": '#!/bin/sh\ncat "$(dirname "$0")/deep/data.txt"\n'}, mode=0o755)
        project.put({"lib/old/deep/data.txt": "the data\n"}, mode=0o604)
        project.put({"main.sh": "sh lib/old/run.sh\n"})

    def solve(self) -> Script:
        output = yield run("mkdir src && python3 -c \"import os; os.rename('lib/old', 'src/core')\"")
        if "cross-device" in output:
            output = yield run("python3 -c \"import shutil; shutil.move('lib/old', 'src/core')\"")
        output = yield run("rmdir lib && ls -F src/core")
        must(r"^run\.sh\*$", output)
        output = yield search("lib/old")
        ((path, _, _),) = hits(output)
        yield edit(path, ("lib/old", "src/core"))
        output = yield run("sh main.sh && src/core/run.sh")
        must(r"^the data\nthe data$", output)
        output = yield list_files(recursive=True)
        must(r"^src/core/deep/data\.txt", output)
        must_not(r"^lib", output)
        return "Moved."

    def check(self, project: Project) -> None:
        assert project.run("src/core/run.sh") == project.run("sh", "main.sh") == "the data\n"
        assert project.mode("src/core/run.sh") == 0o755 and project.mode("src/core/deep/data.txt") == 0o604


class ScriptMode(Task):
    """Modes: an edited script stays executable, a new one becomes it, a private file stays private."""

    prompt = "deploy.sh needs --dry-run, and a script bin/check.sh that calls it so. The token in private.env is now 8."
    changes = ("bin/deploy.sh", "bin/check.sh", "private.env")

    def make(self, project: Project) -> None:
        project.put({"bin/deploy.sh": '#!/bin/sh\nset -e\necho "deploys"\n'}, mode=0o750)
        project.put({"private.env": "TOKEN=7\n"}, mode=0o600)

    def solve(self) -> Script:
        output = yield (read("bin/deploy.sh"), read("private.env"))
        must(r"^TOKEN=7", output)
        yield edit("bin/deploy.sh", ("set -e\n", 'set -e\n[ "$1" = --dry-run ] && echo "would deploy" && exit 0\n'))
        yield edit("private.env", ("TOKEN=7", "TOKEN=8"))
        yield write("bin/check.sh", '#!/bin/sh\nexec "$(dirname "$0")/deploy.sh" --dry-run\n')
        output = yield run("bin/check.sh")
        must(r"Permission denied", output)
        output = yield run("chmod 755 bin/check.sh && bin/check.sh")
        must(r"^would deploy$", output)
        return "Both scripts run."

    def check(self, project: Project) -> None:
        assert project.run("bin/check.sh") == "would deploy\n"
        assert [project.mode(name) for name in self.changes] == [0o750, 0o755, 0o600]
        assert project.text("private.env") == "TOKEN=8\n"


class DeleteDeadCode(Task):
    """Removed files stay removed, also in the next turn, which begins from the taken folder."""

    prompt = "Nobody uses legacy any more: delete it, its test, and what mentions it."
    changes = ("legacy", "legacy/a.py", "legacy/__init__.py", "test_legacy.py", "app.py", "CHANGES")

    def make(self, project: Project) -> None:
        project.put({
            "legacy/__init__.py": "", "legacy/a.py": "A = 1\n", "test_legacy.py": "import legacy.a\n",
            "app.py": "try:\n    import legacy.a as old\nexcept ImportError:\n    old = None\n\n"
            "print('the app', old)\n",
        })  # fmt: skip

    def solve(self) -> Script:
        output = yield search("legacy")
        if {path for path, _, _ in hits(output)} != {"app.py", "test_legacy.py"}:
            raise LostError(output)
        yield run("rm -r legacy test_legacy.py")
        output = yield list_files(recursive=True)
        must_not("legacy", output)
        yield write("app.py", "print('the app')\n")
        output = yield run("python3 app.py; ls")
        must("^the app$", output)
        must_not("legacy", output)  # removed by an earlier run, and not again by this one
        return "Gone."

    def more(self) -> Script:
        """The second turn."""
        output = yield list_files(recursive=True)
        must_not("legacy", output)
        output = yield run("echo '- legacy is gone' > CHANGES; ls -a")
        must("^CHANGES$", output)
        must_not(r"^legacy|^test_legacy", output)
        return "Noted."

    async def talk(self, owner: Owner) -> None:
        await owner.asks(self.prompt, self.solve())
        await owner.comes_back()
        await owner.takes()
        assert not (owner.project.root / "legacy").exists()
        await owner.asks("Note that in CHANGES.", self.more())
        await owner.takes()

    def check(self, project: Project) -> None:
        assert project.run("python3", "app.py") == "the app\n"
        assert project.text("CHANGES") == "- legacy is gone\n"


class Links(Task):
    """A link stays a link: the file behind it is edited."""

    prompt = "Set the port in config.ini to 9000."
    changes = ("shared/config.ini",)

    def make(self, project: Project) -> None:
        project.put({"shared/config.ini": "[web]\nport = 80\n", "serve.py": (
            "import configparser\n\nread = configparser.ConfigParser()\nread.read('config.ini')\n"
            "print(read['web']['port'])\n")})  # fmt: skip
        (project.root / "config.ini").symlink_to("shared/config.ini")
        (project.root / "latest").symlink_to("shared")

    def solve(self) -> Script:
        output = yield list_files()
        target = must(r"^config\.ini -> (\S+)", output)[1]
        output = yield read(target)
        must(r"^port = 80$", output)
        yield edit(target, ("port = 80", "port = 9000"))
        output = yield run("python3 serve.py; cat latest/config.ini")
        must(r"^9000$", output)
        must(r"^port = 9000$", output)
        return "Port 9000."

    def check(self, project: Project) -> None:
        assert project.run("python3", "serve.py") == "9000\n"


class OddNames(Task):
    """Names with blanks, umlauts and dashes, and data that is no text."""

    prompt = "Pack every note in 'my notes' with gzip beside it, and write a list of them to index.txt."
    notes: ClassVar[dict[str, bytes]] = {
        "my notes/a b.txt": b"one\n" * 9000, "my notes/größe.txt": b"zwei\n", "my notes/-n": b"three\n",
        "my notes/日本.txt": bytes(range(256)), "my notes/empty": b"",
    }  # fmt: skip
    changes = ("index.txt", *(f"{name}.gz" for name in notes))

    def make(self, project: Project) -> None:
        project.put(self.notes)

    def solve(self) -> Script:
        output = yield list_files("my notes")
        for name in self.notes:
            must(rf"{name.rpartition('/')[2]}(?: |$)", output)
        output = yield read("my notes/größe.txt")
        must("^zwei", output)
        program = (
            "import gzip, pathlib\nnotes = sorted(p for p in pathlib.Path('my notes').iterdir())\nfor p in notes:\n"
            "    p.with_name(p.name + '.gz').write_bytes(gzip.compress(p.read_bytes(), mtime=0))\n"
            "pathlib.Path('index.txt').write_text(''.join(f'{p.name}\\n' for p in notes), encoding='utf-8')\n"
        )
        output = yield run(f"python3 - <<'END'\n{program}END\nls 'my notes' | wc -l")
        must(r"^10$", output)
        output = yield read("index.txt")
        must(r"^-n\na b\.txt\nempty\ngröße\.txt\n日本\.txt", output)
        return "Packed."

    async def talk(self, owner: Owner) -> None:
        await owner.asks(self.prompt, self.solve())
        await owner.takes_by_verb()

    def check(self, project: Project) -> None:
        for name, content in self.notes.items():
            assert gzip.decompress(project.bytes(f"{name}.gz")) == content == project.bytes(name)


class OwnerMeanwhile(Task):
    """The owner saves one of the files himself while the model works: his stays, and the model starts from it."""

    prompt = "Add a line about the licence to README.md, and set the version to 2."
    changes = ("README.md", "version.txt", "own.txt")
    own = "# tool\n\nWritten by Ann.\n"

    def make(self, project: Project) -> None:
        project.put({"README.md": "# tool\n", "version.txt": "1\n", "own.txt": "mine\n"})

    def solve(self) -> Script:
        output = yield read("README.md")
        must_not("Ann", output)
        yield edit("README.md", ("# tool\n", "# tool\n\nFree for all.\n"))
        yield write("version.txt", "2\n")
        return "Both are done."

    def again(self) -> Script:
        """After the conflict."""
        output = yield read("README.md")
        must("^Written by Ann", output)
        must_not("Free for all", output)
        yield edit("README.md", ("Written by Ann.\n", "Written by Ann.\n\nFree for all.\n"))
        return "Now it is in your text."

    async def talk(self, owner: Owner) -> None:
        owner.meanwhile = lambda: owner.project.put({"README.md": self.own, "own.txt": "mine, newer\n"})
        await owner.asks(self.prompt, self.solve())
        (conflict,) = [change for change in await owner.chat.changes() if change.conflict]
        assert conflict.path == "README.md"
        await owner.takes()
        assert owner.project.text("README.md") == self.own, "the owner's text was overwritten"
        assert owner.project.text("version.txt") == "2\n"
        await owner.asks("I had changed README.md meanwhile. Please look again.", self.again())
        await owner.takes()

    def check(self, project: Project) -> None:
        assert project.text("README.md") == self.own + "\nFree for all.\n"
        assert project.text("own.txt") == "mine, newer\n"


class SayWhyNot(Task):
    """The owner drops the changes and says why: the model reads it, and finds the folder as it was."""

    prompt = "Write a function that doubles a number."
    changes = ("double.py",)

    def make(self, project: Project) -> None:
        project.put({"README.md": "functions\n"})

    def solve(self) -> Script:
        yield write("double.py", "def doubleIt(n):\n    return n + n\n")
        return "It is in double.py."

    def again(self, owner: Owner) -> Script:
        """With the reason in mind."""
        output = yield list_files()
        must_not("double", output)
        told = "\n".join(text for role in ("user", "system", "tool") for text in said(owner.server.bodies, role))
        name = must(r"names in (\w+)_case, please", told)[1]
        yield write("double.py", f"def double_{'it' if name == 'snake' else ''}(n):\n    return n + n\n")
        return "Renamed."

    async def talk(self, owner: Owner) -> None:
        await owner.asks(self.prompt, self.solve())
        await owner.chat.drop(None, "names in snake_case, please")
        assert not (owner.project.root / "double.py").exists() and not await owner.chat.changes()
        await owner.asks("Again, please.", self.again(owner))
        await owner.takes()

    def check(self, project: Project) -> None:
        assert project.run("python3", "-c", "from double import double_it; print(double_it(4))") == "8\n"
