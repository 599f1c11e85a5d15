"""The tool ``code_execution``: a Python program in the Sandbox."""

from __future__ import annotations

from typing import Any

from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox


class CodeExecution:
    """Runs ``code`` confined as ``policy`` says; each call is a fresh interpreter."""

    name = "code_execution"
    description = (
        "Run a Python 3 program in a sandbox without network and return what it printed. Each call is a fresh "
        "interpreter: include imports and definitions, and print what you want to see."
    )
    parallel_safe = True

    def __init__(self, sandbox: Sandbox, policy: Policy) -> None:
        self._sandbox, self._policy = sandbox, policy

    @property
    def parameters(self) -> dict[str, Any]:
        """One string: ``code``."""
        return {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The whole program."}},
            "required": ["code"],
        }

    def diff(self, call: ToolCall) -> str:
        """Nothing to approve: confinement is the approval."""
        return ""

    async def run(self, call: ToolCall) -> ToolOutput:
        """Raises GpuboxError where nothing confines."""
        outcome = await self._sandbox.run(call.code, self._policy)
        return ToolOutput(
            text=self._words(outcome),
            ok=outcome.exit_code == 0 and not outcome.ended_by,
            seconds=outcome.seconds,
            exit_code=outcome.exit_code,
            ended_by=outcome.ended_by,
            isolation=outcome.isolation,
            files_changed=outcome.files_changed,
            dropped_bytes=outcome.dropped_bytes,
        )

    def _words(self, outcome: Outcome) -> str:
        parts = [outcome.output.rstrip("\n")] if outcome.output.strip() else []
        if outcome.ended_by:
            parts.append(f"[ended: {outcome.why or 'stopped by the owner'}]")
        elif outcome.signal:
            parts.append(f"[killed by {outcome.signal}]")
        elif outcome.exit_code:
            parts.append(f"[exit code {outcome.exit_code}]")
        elif not parts:
            parts.append("[it printed nothing]")
        if outcome.quarantined:
            parts.append(
                f"[moved out of the workspace to {outcome.quarantine}, because tools of the owner's would run it: "
                f"{', '.join(outcome.quarantined[:20])}]"
            )
        if outcome.not_quarantined:
            parts.append(f"[tools of the owner's run what was changed here: {', '.join(outcome.not_quarantined[:20])}]")
        if outcome.files_changed:
            parts.append(f"[files: {', '.join(outcome.files_changed[:20])}]")
        return "\n".join(parts)
