"""`gpubox web`: the screen in a browser, for who has a key. Each page has a process that draws, as in a terminal.

The box's own key opens the whole screen. A key that watches opens the box as its gateway shows it, in a process that
sees no file of the owner. Both are sent once, in a form; then a cookie names the session. The page is textual-serve's
terminal. Its server is not used: that knows no keys, and answers every web page that asks it.

For the process a closed page is a terminal that hangs up: it ends, after the operation that it may be at.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

from aiohttp import WSMsgType, web

from gpubox.address import local_url
from gpubox.children import BROWSER_DRIVER, own_program
from gpubox.concurrency import run_in_thread
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.gateway.client_keys import BOX, ClientKeys
from gpubox.gateway.routes import is_own_host, own_names
from gpubox.paths import Paths
from gpubox.server.state import load_gateway
from gpubox.storage import read_json

COOKIE = "gpubox-screen"
MOST_PAGES = 16
MOST_SESSIONS = 64
KEY_SECONDS = 2.0
"""How often a page asks whether its key is still good."""
WRONG_KEY_SECONDS = 1.0
_MESSAGE_BYTES = 1024 * 1024
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
_NO_KEY = "No page without a key."
_CLIENT_KEY = "This key is for models. `gpubox keys add NAME --watch` on the box makes one that shows the screen."
_NO_GATEWAY = "No gateway runs on the box; it shows the screen to keys that watch. `gpubox serve` starts one."
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store", "Referrer-Policy": "same-origin", "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}  # fmt: skip
_STYLE = """body { background: #0c0f14; color: #c8ccd4; font-family: monospace; margin: 0; height: 100vh }
@font-face { font-family: "Roboto Mono"; src: url(/static/fonts/RobotoMono-VariableFont_wght.ttf) }
.note { padding: 4em } .ended { display: none } body.-closed .ended { display: block }
body.-closed #terminal { display: none } #terminal { height: 100vh; font-family: "Roboto Mono" }
input, button { font: inherit; padding: .4em; background: #1a1f28; color: inherit; border: 1px solid #4a5160 }"""
_HEAD = f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>gpubox</title><style>{_STYLE}</style>"
_LOGIN_PAGE = """<form class=note method=post action=/login><p>gpubox</p><p>{text}</p>
<p><input type=password name=key autofocus autocomplete=current-password aria-label=key> <button>Open</button></form>"""
_SCREEN_PAGE = """<link rel=stylesheet href=/static/css/xterm.css><script src=/static/js/textual.js></script>
<div id=terminal class=textual-terminal data-font-size=16></div>
<p class="note ended">The screen has ended. <a href="/">Open it again</a></p><script nonce="{nonce}">
document.getElementById("terminal").dataset.sessionWebsocketUrl = location.origin.replace(/^http/, "ws") + "/ws"
</script>"""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Session:
    """Who has logged in, and with which key."""

    client: str
    secret: str


class WebScreen:
    """The pages and their sessions."""

    def __init__(self, paths: Paths, config: Config, host: str) -> None:
        """Raises UsageError if no key opens the screen, or textual-serve is not installed."""
        self.paths, self.keys = paths, ClientKeys(paths)
        self._names = own_names(socket.gethostname(), (host, *config.gateway.names))
        self._sessions: dict[str, Session] = {}
        self._pages = 0
        if self.keys.problem:
            raise UsageError(self.keys.problem, "`gpubox keys list` says more.")
        if not (self.keys.box_key or any(key.limits.watch for key in self.keys.clients.values())):
            where = f"A key of your own in {paths.api_key_file} (mode 0600) opens the whole screen."
            raise UsageError(
                "No key opens the screen.", f"`gpubox keys add NAME --watch` makes one that shows it. {where}"
            )
        try:
            import textual_serve
        except ImportError:
            raise UsageError("The page needs textual-serve.", "Install it: pip install 'gpubox[web]'") from None
        self._static = Path(textual_serve.__file__).parent / "static"
        self._empty_home = tempfile.TemporaryDirectory(prefix="gpubox-web-")

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=16 * 1024)
        app.add_routes([
            web.get("/", self._index), web.post("/login", self._login), web.get("/ws", self._page),
            web.static("/static", self._static),
        ])  # fmt: skip
        return app

    # -- who may ---------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses other hosts' names (DNS rebinding), other pages' requests, and all but the form without a session."""
        host = request.headers.get("Host", "")
        if not is_own_host(host, self._names):
            hint = "If the name is this machine's, put it into names of [gateway] in config.toml."
            return web.Response(status=403, text=f"{host[:100]!a} is no name of this machine. {hint}")
        page = request.headers.get("Origin", "").partition("://")[2]
        if page.lower() != host.lower() and (page or request.path in ("/ws", "/login")):
            return web.Response(status=403, text="Another web page may not ask this.")
        if request.path not in ("/", "/login") and self._session(request) is None:
            return web.Response(status=401, text=_NO_KEY)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _session(self, request: web.Request) -> Session | None:
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        return session if session and self._is_good(session) else None

    def _is_good(self, session: Session) -> bool:
        """Whether its key still opens the screen."""
        self.keys.refresh()
        client = self.keys.client_of(session.secret)
        return client == session.client and (client == BOX or self.keys.limits_of(client).watch)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        secret = str((await request.post()).get("key", "")).strip()
        self.keys.refresh()
        client = self.keys.client_of(secret)
        if client is None:
            await asyncio.sleep(WRONG_KEY_SECONDS)  # the box's own key may be a short one
            return _html(_LOGIN_PAGE.format(text="The key is wrong, or has expired."), 401)
        session = Session(client, secret)
        if not self._is_good(session):
            return _html(_LOGIN_PAGE.format(text=_CLIENT_KEY), 403)
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = session
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, name, httponly=True, samesite="Strict", path="/")
        return response

    async def _index(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        if session is None:
            return _html(_LOGIN_PAGE.format(text="The key that opens this screen:"))
        if session.client != BOX and load_gateway(self.paths) is None:
            return _html(_LOGIN_PAGE.format(text=_NO_GATEWAY), 503)
        return _html(_SCREEN_PAGE)

    # -- a page ----------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.StreamResponse:
        session, command = self._session(request), None
        if session and self._pages < MOST_PAGES:
            command = self._command(session)
        if session is None or command is None:
            return web.Response(status=503, text="This screen cannot be opened now.")
        self._pages += 1
        try:
            page = web.WebSocketResponse(heartbeat=15, max_msg_size=_MESSAGE_BYTES)
            await page.prepare(request)
            columns, rows = (_cells(request.query.get(name, "")) for name in ("width", "height"))
            words, environment = command
            environment = {**environment, "COLUMNS": str(columns), "ROWS": str(rows), "LINES": str(rows)}
            screen = await _Screen.start(words, environment)
            drawing = asyncio.create_task(screen.draw_on(page))
            try:
                while not drawing.done() and self._is_good(session):
                    with contextlib.suppress(TimeoutError):
                        message = await page.receive(timeout=KEY_SECONDS)
                        if message.type is not WSMsgType.TEXT:
                            break
                        if answer := screen.take(message.data):
                            await page.send_str(answer)
            finally:
                screen.hang_up()
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)
                await page.close()
            return page
        finally:
            self._pages -= 1

    def _command(self, session: Session) -> tuple[list[str], dict[str, str]] | None:
        """What draws the screen of this session, and its environment; None: without a gateway nobody can watch."""
        browser = {
            "TEXTUAL_DRIVER": BROWSER_DRIVER, "TEXTUAL_FPS": "60", "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "TERM_PROGRAM": "textual",
        }  # fmt: skip
        if session.client == BOX:
            return own_program("gpubox.cli.entry", *self.paths.options), {**os.environ, **browser}
        if (gateway := load_gateway(self.paths)) is None:
            return None
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        home = {"HOME": self._empty_home.name, "GPUBOX_URL_KEY": session.secret}
        return own_program("gpubox.tui.run", gateway.base_url), {**kept, **browser, **home}


class _Screen:
    """A process that draws. textual.drivers.web_driver: packets are D (data) or M (JSON), a length, and that."""

    def __init__(self, output: asyncio.StreamReader, keys: asyncio.WriteTransport) -> None:
        self._output, self._keys = output, keys

    @classmethod
    async def start(cls, words: list[str], environment: Mapping[str, str]) -> _Screen:
        # not asyncio's own subprocess, which kills a child that is forgotten, in the middle of an operation
        process = await asyncio.to_thread(
            subprocess.Popen, words, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
        loop, output = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), process.stdout)
        keys, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
        asyncio.ensure_future(run_in_thread(process.wait))  # noqa: RUF006 - no zombie stays
        return cls(output, keys)

    async def draw_on(self, page: web.WebSocketResponse) -> None:
        """Until the screen is left, or the page is gone."""
        try:
            await self._output.readuntil(b"__GANGLION__\n")
            while True:
                head = await self._output.readexactly(5)
                data = await self._output.readexactly(int.from_bytes(head[1:], "big"))
                if head[:1] == b"D":
                    await page.send_bytes(data)
                elif head[:1] == b"M" and read_json(data).get("type") == "exit":
                    break
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            pass
        await page.close()

    def take(self, text: str) -> str:
        """Passes a message of the page on. Returns the answer for the page, if there is one."""
        try:
            kind, *values = json.loads(text)  # not read_json: half a character is no key, a question mark is one
            match kind, values:
                case "stdin", [str(keys)]:
                    self._send(b"D", keys.encode())
                case "resize", [{"width": int(width), "height": int(height)}]:
                    size = {"type": "resize", "width": _cells(width), "height": _cells(height)}
                    self._send(b"M", json.dumps(size).encode())
                case (("blur" | "focus"), _):
                    self._send(b"M", b'{"type":"%b"}' % kind.encode())
                case "ping", [value]:
                    return json.dumps(["pong", value])
        except (ValueError, TypeError, RecursionError):
            pass
        return ""

    def _send(self, kind: bytes, data: bytes) -> None:
        if self._keys.get_write_buffer_size() < _MESSAGE_BYTES:  # a screen that hangs reads no keys
            self._keys.write(kind + len(data).to_bytes(4, "big") + data)

    def hang_up(self) -> None:
        self._keys.abort()


def _cells(value: object) -> int:
    """A width or height that a page asks for."""
    try:
        return min(500, max(10, int(str(value))))
    except ValueError:
        return 80


def _html(body: str, status: int = 200) -> web.Response:
    nonce = secrets.token_urlsafe(16)
    headers = {"Content-Security-Policy": _CONTENT_POLICY.format(nonce=nonce)}
    text = _HEAD + body.replace("{nonce}", nonce)
    return web.Response(text=text, status=status, content_type="text/html", headers=headers)


async def serve_web(screen: WebScreen, host: str, port: int, listening: Callable[[str], None]) -> None:
    """Serves until it is cancelled. Raises GpuboxError if the port is taken."""
    runner = web.AppRunner(screen.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        listening(local_url(host, port))
        await asyncio.Event().wait()
    except OSError as error:
        hint = f"Use another port: `gpubox web --port {port + 1}`."
        raise GpuboxError(f"Nothing can listen on {host}:{port}: {error.strerror or error}.", hint) from None
    finally:
        await runner.cleanup()
