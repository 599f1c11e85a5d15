"""Tells the owner's phone or program what happened while nobody looks: ``[notify]`` of config.toml.

A process of its own delivers, so that nobody waits for the network and the one that saw the event may end. Whoever
owns an event calls ``notify`` for it; a name in ``once`` is claimed on disk, so that of several gpuboxes one tells it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

from gpubox.children import own_program
from gpubox.clock import utc_now
from gpubox.config import NotifySettings, load_config, read_key_file
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.sanitize import sanitize_line
from gpubox.storage import open_private, private_folder, read_json, write_atomically

TIMEOUT_SECONDS, RETRY_SECONDS = 10, 5
MAX_TEXT_CHARS = 1000
REMEMBERED_SECONDS = 90 * 86400
_PATHS = re.compile(r"(?<!\w)(?:~|\.{1,2})?/(?:[^\s/'\"]*/)*")
"""Folders of a path, and scheme and host of an address: only the last part is told."""
_LOOKS = {"crash": ("4", "rotating_light"), "rollback": ("4", "leftwards_arrow_with_hook"),
          "gpu": ("5", "warning"), "slowdown": ("3", "snail"), "run": ("3", "checkered_flag")}  # fmt: skip
"""Event -> ntfy's priority and tag."""
Notification = dict[str, Any]


def make_notification(event: str, title: str, text: str, profile: str = "") -> Notification:
    """One event as the webhook gets it. ``title`` and ``text`` become one harmless line each."""
    title, text = (_PATHS.sub("", sanitize_line(words)).strip()[:MAX_TEXT_CHARS] for words in (title, text))
    about = {"event": event, "profile": profile or None, "title": title, "text": text}
    return {"schema_version": 1, **about, "time": utc_now(), "host": os.uname().nodename}


def notify(paths: Paths, event: str, title: str, text: str, *, profile: str = "", once: str = "") -> None:
    """Has the owner told of ``event`` (of EVENTS), if config.toml wants it. Returns at once; never raises.

    ``once``: the name of what happened; the second call with it does nothing.
    """
    with contextlib.suppress(GpuboxError, OSError):
        settings = load_config(paths).notify
        if event not in settings.events or not settings.addresses or (once and _told(paths, once)):
            return
        message = json.dumps(make_notification(event, title, text, profile)).encode()
        null = subprocess.DEVNULL
        command = own_program("gpubox.notify", *paths.arguments)
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=null, stderr=null, cwd="/", start_new_session=True
        )
        assert child.stdin is not None
        with child.stdin as pipe:
            pipe.write(message)


def _told(paths: Paths, once: str) -> bool:
    """Whether ``once`` was claimed before; if not, it is from now on."""
    folder = paths.state / "notified"
    try:
        private_folder(folder)
        for old in folder.iterdir():
            if time.time() - old.stat().st_mtime > REMEMBERED_SECONDS:
                old.unlink(missing_ok=True)
        name = hashlib.sha256(once.encode()).hexdigest()[:32]
        os.close(open_private(folder / name, os.O_WRONLY | os.O_EXCL))
    except FileExistsError:
        return True
    except OSError:
        return False  # a full disk: told twice is better than not at all
    return False


def deliver(settings: NotifySettings, message: Notification) -> str:
    """Sends ``message`` to all addresses, each with one more try. Returns what failed, in a sentence; or nothing."""
    priority, tag = _LOOKS.get(message["event"], ("3", "bell"))
    headers = {"Title": f"{message['title']} ({message['host']})", "Priority": priority, "Tags": tag}
    as_json = json.dumps(message).encode(), {"Content-Type": "application/json"}
    jobs = ((settings.ntfy, message["text"].encode(), headers), (settings.webhook, *as_json))
    try:
        token = read_key_file(settings.token_file) if settings.token_file else None
    except GpuboxError as error:
        return error.message
    authorization = {"Authorization": f"Bearer {token}"} if token else {}
    failed = [why for url, body, more in jobs if url and (why := _post(url, body, {**more, **authorization}))]
    return " ".join(failed)


def _post(url: str, body: bytes, headers: dict[str, str]) -> str:
    import urllib.request  # with http.client: 20 ms that no other part of gpubox needs

    class Straight(urllib.request.HTTPRedirectHandler):
        """Elsewhere a POST would arrive as a GET, without the text and with the token."""

        def redirect_request(self, *_: object) -> None:
            return None

    if not url.startswith(("http://", "https://")):
        return "An address under [notify] in config.toml does not begin with http:// or https://."
    plain = {name: value.encode("ascii", "replace").decode() for name, value in headers.items()}
    request = urllib.request.Request(url, body, {"User-Agent": "gpubox", **plain}, method="POST")
    why = ""
    for wait in (0, RETRY_SECONDS):
        time.sleep(wait)
        try:
            with urllib.request.build_opener(Straight).open(request, timeout=TIMEOUT_SECONDS):
                return ""
        except (OSError, ValueError) as error:  # an HTTP status that is no success is an OSError, too
            why = str(error if hasattr(error, "code") else getattr(error, "reason", error))
        except Exception as error:  # http.client's: it answers something else than HTTP
            why = type(error).__name__
    return f"{host_of(url)} took no notification: {sanitize_line(why)[:200]}."


def host_of(url: str) -> str:
    """The part of an address that is no secret: a topic or a webhook's path is one."""
    return url.partition("//")[2].partition("/")[0].rpartition("@")[2]


def last_failure(paths: Paths) -> str:
    """When and why a notification was not delivered last; empty: none failed."""
    try:
        return (paths.logs / "notify.log").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def main() -> None:
    """The process that delivers. Arguments: those of Paths; the Notification is on stdin."""
    signal.alarm(6 * TIMEOUT_SECONDS)  # an address that sends a byte now and then must not hold it for ever
    paths = Paths.from_arguments(*sys.argv[1:])
    message = read_json(sys.stdin.read())
    _note(paths, message, "no answer came.")  # what remains if the alarm ends this process
    try:
        problem = deliver(load_config(paths).notify, message)
    except GpuboxError as error:
        problem = error.message
    _note(paths, message, problem)


def _note(paths: Paths, message: Notification, problem: str) -> None:
    """One line in the folder of logs; without a ``problem`` none."""
    file = paths.logs / "notify.log"
    with contextlib.suppress(OSError):
        if problem:
            write_atomically(file, f"{utc_now()} {message['event']}: {problem}\n".encode())
        else:
            file.unlink(missing_ok=True)
