"""Runs one program over a layer that is thrown away afterwards."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from gpubox.config import Config
from gpubox.sandbox.layers import remove_tree
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.spawn import layer_owner
from gpubox.sandbox.steps import Steps


def run_over(config: Config, code: str, policy: Policy) -> Outcome:
    """Runs the Python program ``code``; what it changes in the workspace of ``policy`` is named and thrown away."""
    sandbox = Sandbox(config)
    if policy.workspace is None:
        return asyncio.run(sandbox.run(code, policy))
    folder = Path(tempfile.mkdtemp(prefix="gpubox-run-"))
    try:
        steps = Steps(policy.workspace, folder / "layers", layer_owner())
        steps.begin_turn("run")
        outcome = asyncio.run(sandbox.run(code, replace(policy, layers=steps.layers())))
        return replace(outcome, files_changed=steps.note_changes())
    finally:
        remove_tree(folder)
