"""Measures one side of a trial in a process of its own, because drawing the screen would disturb the measurement."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading

from gpubox.bench.trial_measurement import measure_running
from gpubox.config import load_config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths


async def _measure(paths: Paths, instance: str, tokens: int) -> dict[str, object]:
    measured = await measure_running(instance, tokens, paths, load_config(paths))
    if measured is None:
        raise GpuboxError("No server answers that could be measured.")
    run, tokens = measured
    return {"run": run.id, "tokens": tokens}


def main() -> None:
    """Arguments: ``CONFIG STATE CACHE CONFIG_FILE INSTANCE TOKENS``. Prints one JSON object.

    It ends when its standard input is closed, so that it does not outlive a gpubox that was killed.
    """
    *folders, instance, tokens = sys.argv[1:]
    paths = Paths.from_arguments(*folders)

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        values: dict[str, object] = asyncio.run(_measure(paths, instance, int(tokens)))
    except GpuboxError as error:
        values = {"error": error.message, "hint": error.hint}
    except KeyboardInterrupt:
        sys.exit(130)
    sys.stdout.write(f"{json.dumps(values)}\n")


if __name__ == "__main__":
    main()
