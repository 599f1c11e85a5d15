"""Jobs in Node, C, Rust and Go, each with the owner's own toolchain and nothing from the network."""

from __future__ import annotations

import os
from typing import ClassVar

from gpubox.agent.tools import Answer
from tests.swe.driver import Owner, Task
from tests.swe.model import Script, edit, hits, list_files, must, must_not, numbered, read, run, run_tests, search
from tests.swe.project import OWN_HOME, MissingError, Project, need


class Node(Task):
    """npm and node, a package in node_modules, tabs. npm install would need the network: the owner says no."""

    prompt = "npm test fails since dates are in the table. Please fix it."
    changes = ("lib/table.js",)
    tested_by = "npm test --silent"
    answers: ClassVar = {"npm (?:install|ci)": Answer(False, "use what is there")}

    def make(self, project: Project) -> None:
        need("npm")
        project.put({
            "package.json": '{"name": "table", "version": "1.0.0", "dependencies": {"pads": "1.0.0"},\n'
            ' "scripts": {"test": "node --test test/"}}\n',
            "node_modules/pads/package.json": '{"name": "pads", "version": "1.0.0", "main": "index.js"}\n',
            "node_modules/pads/index.js": "module.exports = (text, width) => text.padEnd(width);\n",
            "lib/table.js": 'const pad = require("pads");\n\nfunction row(cells, width) {\n\treturn cells\n'
            "\t\t.map((cell) => pad(cell, width))\n\t\t.join(\"|\");\n}\n\nmodule.exports = { row };\n",
            "test/table.test.js": 'const test = require("node:test");\nconst assert = require("node:assert");\n'
            'const { row } = require("../lib/table");\n\ntest("words", () => assert.equal(row(["a", "b"], 2), '
            '"a |b "));\ntest("dates", () => assert.equal(row([new Date(0)], 4), "1970-01-01"));\n'
            'test("numbers", () => assert.equal(row([7], 2), "7 "));\n',
        })  # fmt: skip

    def solve(self) -> Script:
        output = yield run("npm install", network=True)
        must("use what is there", output)
        output = yield run("npm test 2>&1 | head -c 6000; ls node_modules/pads")
        must(r"text\.padEnd is not a function", output)
        must(r"^index\.js$", output)
        output = yield search("pad(", glob="*.js")
        if not hits(output):
            output = yield search(r"pad\(", glob="*.js")
        path = must(r"^(lib/table\.js):\d+:", output)[1]
        output = yield read(path)
        must(r"\.map\(\(cell\) => pad\(cell, width\)\)", output)
        yield edit(  # with blanks for the file's tabs
            path,
            ("function row(cells, width) {\n    return cells\n        .map((cell) => pad(cell, width))",
             "function text(cell) {\n    return cell instanceof Date ? cell.toISOString().slice(0, 10) : `${cell}`;\n"
             "}\n\nfunction row(cells, width) {\n    return cells\n        .map((cell) => pad(text(cell), width))"),
        )  # fmt: skip
        output = yield run_tests()
        must(r"\bpass 3\b", output)
        return "Dates are written as days now."

    async def talk(self, owner: Owner) -> None:
        await super().talk(owner)
        assert len(owner.questions) == 2 and "npm install" in owner.questions[0], owner.questions

    def check(self, project: Project) -> None:
        assert "pass 3" in project.run("npm", "test")
        assert "\n\treturn cell instanceof Date" in project.text("lib/table.js")
        assert "\n    " not in project.text("lib/table.js")


class MakeAndC(Task):
    """A Makefile, a compiler, warnings as errors. What was built is cleaned away again."""

    prompt = "make check crashes on an empty line. Please fix it."
    changes = ("src/fields.c",)
    tested_by = "make check"

    def make(self, project: Project) -> None:
        need("make")
        need("cc")
        project.put({
            "Makefile": "CFLAGS = -Wall -Wextra -Werror -g -Isrc\n\ncheck: build/check\n\tbuild/check\n\n"
            "build/check: src/fields.c src/check.c src/fields.h\n\tmkdir -p build\n"
            "\t$(CC) $(CFLAGS) -o $@ src/fields.c src/check.c\n\nclean:\n\trm -rf build\n\n.PHONY: check clean\n",
            "src/fields.h": "char *last_field(char *line);\n",
            "src/fields.c": '#include "fields.h"\n#include <string.h>\n\n/* What stands after the last comma. */\n'
            "char *last_field(char *line)\n{\n    char *at = strrchr(line, ',');\n    return at + 1;\n}\n",
            "src/check.c": '#include "fields.h"\n#include <stdio.h>\n#include <string.h>\n\nint main(void)\n{\n'
            '    char three[] = "a,b,c", empty[] = "";\n    if (strcmp(last_field(three), "c"))\n        return 1;\n'
            '    char *last = last_field(empty);\n    if (last != empty) {\n        puts("wrong: the empty line");\n'
            '        return 2;\n    }\n    puts("all fields are right");\n    return 0;\n}\n',
        })  # fmt: skip

    def solve(self) -> Script:
        output = yield run("make check")
        must(r"Error 2|wrong: the empty line", output)
        output = yield read("src/fields.c", numbers=True)
        line = next(number for number, text in numbered(output).items() if "at + 1" in text)
        yield edit("src/fields.c", (numbered(output)[line], "    return at ? at + 1 : lines;"))
        output = yield run("make check")
        place = must(r"^src/fields\.c:(\d+):\d+: error: .lines. undeclared", output)
        output = yield read("src/fields.c", first_line=int(place[1]), lines=1)
        yield edit("src/fields.c", (must(r"\breturn at.*;", output)[0], "return at ? at + 1 : line;"))
        output = yield run_tests()
        must(r"^all fields are right$", output)
        output = yield run("make clean && ls")
        must_not(r"^build$", output)
        return "A line without a comma is its own last field."

    def check(self, project: Project) -> None:
        assert "all fields are right" in project.run("make", "check")


class Rust(Task):
    """cargo of the owner's home; what it builds is a cache by its tag, so that the owner is not asked about it."""

    prompt = "cargo test fails. Please fix the code, not the test."
    changes = ("src/lib.rs",)
    tested_by = "cargo test --offline"
    night = True
    home = OWN_HOME

    def make(self, project: Project) -> None:
        need("cargo")
        project.put({
            ".gitignore": "/target\n", "Cargo.toml": '[package]\nname = "span"\nversion = "0.1.0"\nedition = "2021"\n',
            "src/lib.rs": "pub fn span(values: &[i32]) -> i32 {\n    values.iter().max().unwrap() - "
            "values.iter().min().unwrap()\n}\n\n#[cfg(test)]\nmod tests {\n    use super::span;\n\n    #[test]\n"
            "    fn some() {\n        assert_eq!(span(&[3, 9, 4]), 6);\n    }\n\n    #[test]\n    fn none() {\n"
            "        assert_eq!(span(&[]), 0);\n    }\n}\n",
        })  # fmt: skip
        code, output = project.ends("cargo", "generate-lockfile", "--offline", HOME=str(OWN_HOME))
        if code:
            raise MissingError(f"cargo does not run here: {output[:200]}")

    def solve(self) -> Script:
        output = yield run("cargo test --offline")
        place = must(r"panicked at (src/lib\.rs):(\d+):\d+", output)
        output = yield read(place[1], numbers=True)
        must(r"values\.iter\(\)\.max\(\)", numbered(output)[int(place[2])])
        yield edit(place[1], ("values.iter().max().unwrap() - values.iter().min().unwrap()",
                              "let most = values.iter().max();\n    let least = values.iter().min();\n    "
                              "most.unwrap_or(0) - least.unwrap_or(0)"))  # fmt: skip
        output = yield run("cargo test --offline")
        must(r"^error\[E0308\]", output)
        yield edit(place[1], ("most.unwrap_or(0) - least.unwrap_or(0)", "most.unwrap_or(&0) - least.unwrap_or(&0)"))
        output = yield run_tests()
        must(r"2 passed; 0 failed", output)
        return "An empty slice has the span 0."

    def check(self, project: Project) -> None:
        assert "2 passed" in project.run("cargo", "test", "--offline")


class Go(Task):
    """go keeps its build cache in the home of who runs it."""

    prompt = "go test ./... fails. Please fix it."
    changes = ("clock/clock.go",)
    tested_by = "go test ./..."
    night = True
    home = OWN_HOME

    def make(self, project: Project) -> None:
        need("go")
        project.put({
            "go.mod": "module example.org/clock\n\ngo 1.19\n",
            "clock/clock.go": 'package clock\n\nimport "fmt"\n\n// Text is the time of day after so many minutes.\n'
            'func Text(minutes int) string {\n\treturn fmt.Sprintf("%02d:%02d", minutes/60, minutes%60)\n}\n',
            "clock/clock_test.go": 'package clock\n\nimport "testing"\n\nfunc TestText(t *testing.T) {\n'
            '\tfor minutes, want := range map[int]string{75: "01:15", 1500: "01:00", -30: "23:30"} {\n'
            "\t\tif got := Text(minutes); got != want {\n\t\t\tt.Errorf(\"%d: %s, want %s\", minutes, got, want)\n"
            "\t\t}\n\t}\n}\n",
        })  # fmt: skip

    def solve(self) -> Script:
        output = yield list_files(recursive=True)
        must(r"clock/clock_test\.go", output)
        output = yield run("go test ./...")
        must(r"clock_test\.go:\d+: 1500: 25:00, want 01:00", output)
        output = yield read("clock/clock.go")
        line = must(r"^.*return fmt\.Sprintf.*$", output)[0]
        yield edit("clock/clock.go", (line, "\tminutes = (minutes%1440 + 1440) % 1440\n" + line))
        output = yield run_tests()
        must(r"^ok\s+example\.org/clock/clock", output)
        output = yield run("gofmt -l .; echo formatted")
        must_not(r"^clock/", output)
        return "Text is now right for any minute."

    def check(self, project: Project) -> None:
        assert "ok" in project.run("go", "test", "./...", GOCACHE=os.fspath(project.root.parent / "go-cache"))
