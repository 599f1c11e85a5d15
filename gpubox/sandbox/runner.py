"""``Sandbox.run``: one program, confined by what works on this machine."""

from __future__ import annotations

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.sandbox.confined_run import run_confined
from gpubox.sandbox.policy import Confinement, Outcome, Policy
from gpubox.sandbox.probe import probe


class Sandbox:
    """Runs a model's programs. One object may run several at a time; it keeps nothing between runs."""

    def __init__(self, config: Config | None = None, *, confinement: Confinement | None = None) -> None:
        self._config = config or Config()
        self._confinement = confinement

    async def confinement(self) -> Confinement:
        """What confines the programs of this sandbox; probed once."""
        if self._confinement is None:
            self._confinement = await probe(self._config)
        return self._confinement

    async def run(self, code: str, policy: Policy = Policy(), *, stdin: bytes = b"") -> Outcome:  # noqa: B008 - frozen
        """Runs ``code`` in a new interpreter. It reads ``stdin``, of at most ``spawn.MAX_STDIN`` bytes.

        Cancelling kills all its processes before this returns. Raises GpuboxError if no isolation that the owner
        accepts works here, or if the workspace cannot be used.
        """
        confinement = await self.confinement()
        if confinement.isolation is None:
            raise GpuboxError(f"Code cannot be run here: {confinement.problem}", confinement.hint)
        return await run_confined(confinement, code, policy, stdin)
