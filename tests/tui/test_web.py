"""The screen in a browser: who gets it, what is drawn, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, CookieJar, WSMsgType, WSServerHandshakeError
from aiohttp.test_utils import TestServer

from gpubox.config import Config
from gpubox.errors import UsageError
from gpubox.gateway.client_keys import ClientKeys, ClientLimits
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.server.state import GatewayRecord, save_gateway
from gpubox.tui import web
from gpubox.tui.web import WebScreen

pytest.importorskip("textual_serve")
BOX_KEY = "the-owners-key"
BROWSER = os.environ.get("GPUBOX_TEST_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(autouse=True)
def _keys(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "WRONG_KEY_SECONDS", 0.0)
    monkeypatch.setattr(web, "KEY_SECONDS", 0.05)
    paths.api_key_file.parent.mkdir(parents=True, exist_ok=True)
    paths.api_key_file.touch(0o600)
    paths.api_key_file.write_text(BOX_KEY)


class Visitor:
    """Somebody with a browser."""

    def __init__(self, client: ClientSession, url: str) -> None:
        self.client, self.url = client, url

    async def log_in(self, key: str, origin: str = "") -> int:
        headers = {"Origin": origin or self.url}
        async with self.client.post(f"{self.url}/login", data={"key": key}, headers=headers) as reply:
            return reply.status

    async def get(self, path: str, **headers: str) -> int:
        async with self.client.get(self.url + path, headers=headers) as reply:
            return reply.status

    async def opens_page(self, origin: str) -> int:
        """The status with which the websocket is refused; 101: it is not."""
        try:
            page = await self.client.ws_connect(f"{self.url}/ws", headers={"Origin": origin} if origin else {})
        except WSServerHandshakeError as error:
            return error.status
        await page.close()
        return 101


@asynccontextmanager
async def visiting(paths: Paths) -> AsyncIterator[Visitor]:
    server = TestServer(WebScreen(paths, Config(), "127.0.0.1").app())
    await server.start_server()
    try:
        async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as client:
            yield Visitor(client, f"http://127.0.0.1:{server.port}")
    finally:
        await server.close()


async def test_nothing_comes_without_a_key_that_is_for_it(paths: Paths) -> None:
    agent = ClientKeys(paths).add("agent", ClientLimits())
    old = ClientKeys(paths).add("old", ClientLimits(watch=True, expires_at="2020-01-01T00:00:00.000Z"))
    async with visiting(paths) as visitor:
        for key, status in (("", 401), ("wrong", 401), (old, 401), (agent, 403)):
            assert await visitor.log_in(key) == status
        assert await visitor.get("/") == 200, "the form"
        for path in ("/static/js/textual.js", "/static/", "/download/x", "/nowhere"):
            assert await visitor.get(path) == 401
        assert await visitor.opens_page(visitor.url) == 401
        assert await visitor.log_in(BOX_KEY) == 200
        assert await visitor.get("/static/js/textual.js") == 200
        assert await visitor.get("/static/..%2fserver.py") == 404


async def test_other_pages_and_other_names_of_this_machine_are_refused(paths: Paths) -> None:
    async with visiting(paths) as visitor:
        for origin in ("http://127.0.0.1:3000", "http://evil.example", "null"):
            assert await visitor.log_in(BOX_KEY, origin) == 403
        assert await visitor.log_in(BOX_KEY) == 200
        (cookie,) = visitor.client.cookie_jar
        assert cookie["httponly"] and cookie["samesite"] == "Strict" and BOX_KEY not in cookie.value
        port = visitor.url.rpartition(":")[2]
        for origin in ("", "null", "http://127.0.0.1:3000", "http://evil.example", f"http://localhost:{port}"):
            assert await visitor.opens_page(origin) == 403
        assert await visitor.get("/", Host="evil.example") == 403
        assert await visitor.get("/", Host=f"localhost:{port}") == 200


async def test_no_key_at_all_opens_nothing(paths: Paths) -> None:
    paths.api_key_file.unlink()
    with pytest.raises(UsageError, match="No key opens the screen") as error:
        WebScreen(paths, Config(), "127.0.0.1")
    assert "gpubox keys add NAME --watch" in error.value.hint


async def test_the_owners_page_draws_the_screen_and_leaves_nothing_running(paths: Paths) -> None:
    async with visiting(paths) as visitor:
        await visitor.log_in(BOX_KEY)
        page = await visitor.client.ws_connect(f"{visitor.url}/ws?width=120&height=36", headers={"Origin": visitor.url})
        for junk in ("{", "[]", '["stdin", 5]', '["resize", {"width": 1e9}]', "[" * 5000, '["stdin", "\\ud800"]'):
            await page.send_str(junk)
        drawn = await drawn_until(page, "quit")
        assert "gpubox" in drawn and "Profiles" in drawn
        assert drawing_for(os.getpid())
        await page.send_str('["stdin", "q"]')
        await closed(page)
        await gone()
        page = await visitor.client.ws_connect(f"{visitor.url}/ws", headers={"Origin": visitor.url})
        await drawn_until(page, "gpubox")
        await page.close()
        await gone()


async def test_a_revoked_key_closes_its_page(paths: Paths) -> None:
    save_gateway(paths, GatewayRecord(own_identity(), "127.0.0.1", 9, "", ""))  # nobody answers there
    keys = ClientKeys(paths)
    secret = keys.add("laptop", ClientLimits(watch=True))
    async with visiting(paths) as visitor:
        assert await visitor.log_in(secret) == 200
        page = await visitor.client.ws_connect(f"{visitor.url}/ws?width=120", headers={"Origin": visitor.url})
        await drawn_until(page, "watching")
        keys.remove("laptop")
        await closed(page)
        assert await visitor.get("/static/js/textual.js") == 401
        await gone()


async def drawn_until(page: object, wanted: str) -> str:
    """What was drawn, without escape sequences, once ``wanted`` is among it."""
    drawn = b""
    async with asyncio.timeout(60):
        while wanted.encode() not in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z$]", b"", drawn):
            message = await page.receive()  # type: ignore[attr-defined]
            assert message.type is WSMsgType.BINARY, (message, drawn[-500:])
            drawn += message.data
    return re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z$]", b"", drawn).decode()


async def closed(page: object) -> None:
    async with asyncio.timeout(30):
        while (await page.receive()).type is WSMsgType.BINARY:  # type: ignore[attr-defined]
            pass


def drawing_for(parent: int) -> list[str]:
    """The processes of that parent that draw for a browser."""
    children = [pid for file in Path(f"/proc/{parent}/task").glob("*/children") for pid in file.read_text().split()]
    commands = {pid: _command(pid) for pid in children}
    return [pid for pid, command in commands.items() if "gpubox.tui.run" in command or "gpubox.cli.entry" in command]


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def gone() -> None:
    async with asyncio.timeout(30):
        while drawing_for(os.getpid()):
            await asyncio.sleep(0.02)


@pytest.mark.skipif(not BROWSER, reason="no Chromium: GPUBOX_TEST_BROWSER names one")
async def test_a_real_browser_shows_it_after_the_key(paths: Paths, tmp_path: Path) -> None:
    assert BROWSER
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={tmp_path}"]
    browser = await asyncio.create_subprocess_exec(BROWSER, *words, stderr=asyncio.subprocess.PIPE)
    assert browser.stderr is not None
    try:
        while not (found := re.search(rb"ws://127.0.0.1:(\d+)/", await browser.stderr.readline())):
            pass
        async with visiting(paths) as visitor, ClientSession() as client:
            tabs = await (await client.get(f"http://127.0.0.1:{int(found[1])}/json")).json()
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with client.ws_connect(address, max_msg_size=0) as tab:

                async def ask(method: str, **values: object) -> dict[str, object]:
                    await tab.send_json({"id": 1, "method": method, "params": values})
                    while "id" not in (answer := json.loads((await tab.receive(timeout=60)).data)):
                        pass
                    return dict(answer.get("result", {}))

                async def becomes(code: str) -> None:
                    async with asyncio.timeout(60):
                        while True:
                            result = (await ask("Runtime.evaluate", expression=code)).get("result")
                            if isinstance(result, dict) and result.get("value") is True:
                                return
                            await asyncio.sleep(0.05)

                await ask("Page.navigate", url=visitor.url)
                await becomes("document.querySelector('input[name=key]') !== null")
                await becomes("document.querySelector('.textual-terminal') === null")
                enter = f"document.querySelector('input').value = '{BOX_KEY}'; document.querySelector('form').submit()"
                await ask("Runtime.evaluate", expression=enter)
                await becomes("document.body.classList.contains('-first-byte')")
                await becomes("document.cookie === '' && !location.href.includes('key')")
                assert drawing_for(os.getpid())
                await ask("Page.navigate", url="about:blank")
                await gone()
    finally:
        browser.terminate()
        await browser.communicate()
