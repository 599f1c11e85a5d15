"""`gpubox acp` as an editor starts it: a switch that it asked for, and gives up."""

from __future__ import annotations

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpubox.children import own_program
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from tests.cli.test_mcp_server import verb
from tests.conftest import until


async def test_an_editor_that_cancels_a_switch_and_is_closed_gets_the_old_server_back(
    box: int, paths: Paths, tmp_path: Path, tiny_gguf: Path, write_profile: Callable[[str, str], Path]
) -> None:
    """It says that it cancels, closes the streams, and sends signals, as many an editor does when it ends."""
    verb("start", "a")
    gate = tmp_path / "gate"
    write_profile(
        "slow", f'model = "{tiny_gguf}"\nport = {box}\n[env]\nFAKE_CHAT_UNTIL = "{gate}"\n[flags]\nctx-size = 512\n'
    )
    process = await asyncio.create_subprocess_exec(
        *own_program("gpubox.cli.entry", "acp"), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdin and process.stdout and process.stderr

    def say(method: str, number: int | None, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({"id": number} if number else {})}
        process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]

    async def answer(number: int) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(await process.stdout.readline())  # type: ignore[union-attr]
            if message.get("id") == number:
                return message

    project = tmp_path / "project"
    project.mkdir()
    async with asyncio.timeout(120):
        say("initialize", 1, protocolVersion=1)
        say("session/new", 2, cwd=str(project), mcpServers=[])
        session = (await answer(2))["result"]["sessionId"]
        say("session/set_config_option", 3, sessionId=session, configId="model", value="slow")
        assert "result" in await answer(3)
        say("session/prompt", 4, sessionId=session, prompt=[{"type": "text", "text": "Hello"}])
        await asyncio.to_thread(until, lambda: "slow" in str(find_by_marker(f"{paths.state}|")))
        say("session/cancel", None, sessionId=session)
        process.stdin.close()
        for _ in range(2):
            with contextlib.suppress(ProcessLookupError):  # it was quick
                process.terminate()
            await asyncio.sleep(0.2)
        assert b"Traceback" not in await process.stderr.read()
        await process.wait()
    status = verb("status")["server"]
    assert (status["profile"], status["state"], status["operation"]) == ("a", "ready", None)
