"""The tool ``code_execution``: runs a Python program in the Sandbox."""

from __future__ import annotations

from typing import Any

from gpubox.agent.tool_protocol import CODE_TOOL
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox


class CodeExecution:
    """Runs ``code`` under ``policy``. Each call starts a fresh interpreter."""

    name = CODE_TOOL
    description = (
        "Run a Python 3 program in a sandbox without network and return what it printed. Each call is a fresh "
        "interpreter: include imports and definitions, and print what you want to see."
    )
    parameters: dict[str, Any] = {  # noqa: RUF012 - never changed
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The whole program."}},
        "required": ["code"],
    }
    parallel_safe = True

    def __init__(self, sandbox: Sandbox, policy: Policy) -> None:
        self._sandbox, self._policy = sandbox, policy

    def diff(self, call: ToolCall) -> str:
        """Empty: a confined program needs no approval."""
        return ""

    async def run(self, call: ToolCall) -> ToolOutput:
        """Raises GpuboxError if this machine cannot confine the program."""
        outcome = await self._sandbox.run(call.code, self._policy)
        return ToolOutput(
            text=_output_text(outcome),
            ok=outcome.ok,
            seconds=outcome.seconds,
            exit_code=outcome.exit_code,
            ended_by=outcome.ended_by,
            isolation=outcome.isolation,
            files_changed=outcome.files_changed,
            dropped_bytes=outcome.dropped_bytes,
        )


def _output_text(outcome: Outcome) -> str:
    """What the model reads: the program's output, then how it ended and which files it changed."""
    parts = [outcome.output.rstrip("\n")] if outcome.output.strip() else []
    if outcome.ended_by:
        parts.append(f"[ended: {outcome.why or 'stopped by the owner'}]")
    elif outcome.signal:
        parts.append(f"[killed by {outcome.signal}]")
    elif outcome.exit_code:
        parts.append(f"[exit code {outcome.exit_code}]")
    elif not parts:
        parts.append("[the program printed nothing]")
    parts += [f"[{note}]" for note in outcome.about_workspace]
    if outcome.isolation == "landlock" and "[Errno 1]" in outcome.output:
        parts.append("[this sandbox sets no permissions, owners or times of files: copy with shutil.copyfile]")
    return "\n".join(parts)
