"""Tools that run programs over the layers of a workspace: ``run``, ``search``, ``test``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpubox.agent.file_tools import SKIPPED_FOLDERS
from gpubox.agent.mcp import PROMPT, McpServers
from gpubox.agent.projects import ProjectTests
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import RUN_TOOL, OwnerQuestion, ToolCall, ToolOutput, argument, arguments
from gpubox.agent.workspace import Workspace
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.steps import now_ns

RUN_SECONDS, TEST_SECONDS, MAX_SECONDS = 60, 300, 3600
SEARCH_SECONDS = 20.0
MAX_MATCHES = 100
_STATUS_CHARACTERS = 300
"""Of an output that is left for how the program ended."""
_FAILURE = re.compile(
    r"_{3,} .+ _{3,}$"  # pytest
    r"|E  +\S|(?:FAIL|ERROR): \w|Traceback \(most recent"  # pytest, unittest
    r"|---- .+ stdout ----$|thread '.+' panicked|error(?:\[E\d+\])?: "  # cargo
    r"|\s*--- FAIL: |panic: |FAIL\t"  # go
    r"|\s*not ok \d|\s*[✖✕●×] \S|\s*FAIL  ?\S|\s*AssertionError"  # node, jest, vitest
    r"|.+:\d+(?::\d+)?: (?:fatal )?error\b|make(?:\[\d+\])?: \*\*\*"  # compilers, make
)
"""How pytest and unittest, cargo, go, node, jest and vitest, compilers and make begin a failure. All else is shown by
its end, where each of them has its summary."""
_LAST_LINES, _BLOCK_LINES, _BEFORE = 20, 40, 1


class Programs:
    """Runs programs over a workspace; without one, each in an empty folder that is removed afterwards."""

    def __init__(self, sandbox: Sandbox, workspace: Workspace | None = None, policy: Policy | None = None) -> None:
        """``policy``: of each run without a workspace."""
        self._sandbox, self.workspace, self._policy = sandbox, workspace, policy

    async def run(
        self,
        program: str,
        *,
        seconds: float,
        shell: bool = False,
        network: bool = False,
        stdin: bytes = b"",
        writes: bool = True,
    ) -> Outcome:
        """``writes``: whether it may change files. Raises GpuboxError if this machine cannot confine it."""
        workspace, seconds = self.workspace, min(max(1.0, seconds), MAX_SECONDS)
        if workspace is None:
            return await self._sandbox.run(program, self._policy or Policy(), stdin=stdin, shell=shell)
        layers = await run_in_thread(workspace.layers)
        policy = Policy.for_commands(workspace.root, layers, seconds=seconds, network=network)
        began_ns = now_ns()
        outcome = await self._sandbox.run(program, policy, stdin=stdin, shell=shell)
        if not writes:
            return outcome
        return replace(outcome, files_changed=await run_in_thread(workspace.note_changes, began_ns))


class RunTool:
    """Runs a command line, or a Python program in a fresh interpreter."""

    name = RUN_TOOL
    description = "Run a bash command line, or a Python 3 program (code), in a sandbox without network."
    parameters = arguments(
        command=argument("string"),
        code=argument("string"),
        seconds=argument("integer"),
        network=argument("boolean", "Ask the owner for it."),
    )
    max_characters = AgentSettings().max_output_characters

    def __init__(self, programs: Programs, servers: McpServers | None = None) -> None:
        """``servers``: whose tools the command ``mcp`` lists and calls."""
        self._programs, self._servers = programs, servers
        self.parallel_safe = programs.workspace is None
        if servers:
            self.description = f"{RunTool.description} {PROMPT}"

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        """Whether it may use the network, or call a tool that runs outside the sandbox."""
        if self._servers and (text := self._servers.question(call.code)):
            return OwnerQuestion("network", text, call=call)
        if call.arguments.get("network") is not True:
            return None
        return OwnerQuestion(
            "network", f"May this run use the network, this box's own servers too?\n{call.code}", call=call
        )

    async def run(self, call: ToolCall) -> ToolOutput:
        """Raises GpuboxError if this machine cannot confine the program."""
        shell = call.language == "bash"
        if shell and self._servers and (output := await self._servers.run(call.code)):
            return output
        outcome = await self._programs.run(
            call.code,
            seconds=_seconds(call, RUN_SECONDS),
            shell=shell,
            network=call.arguments.get("network") is True,
        )
        return tool_output(outcome, outcome.output)


class SearchTool:
    """Finds lines by a regular expression."""

    name = "search"
    description = "Find lines by a regular expression."
    parameters = arguments(["pattern"], pattern=argument("string"), path=argument("string"), glob=argument("string"))
    parallel_safe = True
    max_characters = AgentSettings().max_output_characters

    def __init__(self, programs: Programs, workspace: Workspace) -> None:
        self._programs, self._workspace = programs, workspace

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        """None: it only reads."""

    async def run(self, call: ToolCall) -> ToolOutput:
        """Raises GpuboxError if this machine cannot confine the search."""
        pattern, path, glob = (call.arguments.get(key, "") for key in ("pattern", "path", "glob"))
        if not (isinstance(pattern, str) and isinstance(path, str) and isinstance(glob, str)) or not pattern:
            raise GpuboxError("search needs 'pattern', a regular expression; 'path' and 'glob' are strings, too.")
        names = self._workspace.parts(path)
        want = {"pattern": pattern, "path": "/".join(names) or ".", "glob": glob, "most": MAX_MATCHES,
                "skipped": SKIPPED_FOLDERS}  # fmt: skip
        program = await run_in_thread(Path(__file__).with_name("search_program.py").read_text)
        stdin = json.dumps(want).encode()
        outcome = await self._programs.run(program, seconds=SEARCH_SECONDS, stdin=stdin, writes=False)
        return tool_output(outcome, outcome.output)


class TestTool:
    """Runs the project's tests, once the owner has confirmed by which command."""

    __test__ = False  # pytest must not take it for a test
    name = "test"
    description = "Run the project's tests."
    parameters = arguments(arguments=argument("string", "Such as a file."))
    parallel_safe = False
    max_characters = AgentSettings().max_output_characters

    def __init__(self, programs: Programs, tests: ProjectTests) -> None:
        self._programs, self._tests = programs, tests
        self._asked = ""

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        """Whether what was found is the test command; each project is asked once."""
        self._asked = "" if self._tests.command else self._tests.find()
        if not self._asked:
            return None
        return OwnerQuestion("test", f"Is this the command that tests the project?\n{self._asked}", call=call)

    async def run(self, call: ToolCall) -> ToolOutput:
        """Raises GpuboxError if this machine cannot confine the tests."""
        if self._asked:
            await run_in_thread(self._tests.confirm, self._asked)
        if not self._tests.command:
            raise GpuboxError("No test command is known here.", "Use run.")
        more = call.arguments.get("arguments", "")
        return await self.run_command(f"{self._tests.command} {more if isinstance(more, str) else ''}".strip())

    async def run_command(self, command: str) -> ToolOutput:
        """Runs the tests by ``command``."""
        outcome = await self._programs.run(command, seconds=TEST_SECONDS, shell=True)
        return tool_output(outcome, around_failures(outcome.output, self.max_characters - _STATUS_CHARACTERS))


def tool_output(outcome: Outcome, output: str) -> ToolOutput:
    """What the model reads: ``output``, then how the program ended and which files it changed."""
    parts = [output.rstrip("\n")] if output.strip() else []
    if outcome.ended_by:
        parts.append(f"[ended: {outcome.why or 'stopped by the owner'}]")
    elif outcome.signal:
        parts.append(f"[killed by {outcome.signal}]")
    elif outcome.exit_code:
        parts.append(f"[exit code {outcome.exit_code}]")
    elif not parts:
        parts.append("[the program printed nothing]")
    parts += [f"[{note}]" for note in outcome.about_workspace]
    return ToolOutput(
        "\n".join(parts),
        ok=outcome.ok,
        seconds=outcome.seconds,
        exit_code=outcome.exit_code,
        ended_by=outcome.ended_by,
        isolation=outcome.isolation,
        files_changed=outcome.files_changed,
        dropped_bytes=outcome.dropped_bytes,
    )


def _seconds(call: ToolCall, default: float) -> float:
    value = call.arguments.get("seconds", default)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def around_failures(text: str, limit: int) -> str:
    """``text``, in at most about ``limit`` characters: the blocks of its failures and its end, with the gaps named."""
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    starts = [at for at, line in enumerate(lines) if _FAILURE.match(line)]
    kept = set(range(max(0, len(lines) - _LAST_LINES), len(lines)))
    size = sum(len(lines[at][:limit]) + 1 for at in kept)
    while size > limit // 2 and len(kept) > 1:
        size -= len(lines[first := min(kept)]) + 1
        kept.remove(first)
    for span in (4, _BLOCK_LINES):  # first a little of each failure, then more of the first ones
        for start, following in zip(starts, [*starts[1:], len(lines)], strict=True):
            for at in range(max(0, start - _BEFORE), min(start + span, max(following, start + 1))):
                if at not in kept and size + len(lines[at]) + 1 < limit - 200:
                    kept.add(at)
                    size += len(lines[at]) + 1
    return "\n".join(_with_gaps(lines, sorted(kept), limit))


def _with_gaps(lines: list[str], kept: list[int], limit: int) -> Iterable[str]:
    following = 0
    for at in kept:
        if at > following:
            yield f"[... {at - following} lines]"
        yield lines[at][:limit]
        following = at + 1
