"""Runs the gateway without a terminal: started apart from this one, or kept running by systemd user units.

Sources of the units: systemd.service(5), systemd.socket(5), systemd.kill(5), systemd.exec(5) of systemd 252; of what
systemd and a service tell each other: sd_listen_fds(3), sd_notify(3).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import socket
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubox.children import own_program
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.server.state import GatewayRecord, load_gateway
from gpubox.storage import open_private, private_folder, read_text, unwritable, write_atomically

UNIT, SOCKET_UNIT = "gpubox-gateway.service", "gpubox-gateway.socket"
START_SECONDS = 20.0
_LOG_BYTES = 4 * 1024 * 1024
_POLL_SECONDS = 0.05
_ERROR = "gpubox: "


def start_detached(paths: Paths, host: str, port: int, *, allow_exposed: bool = False) -> GatewayRecord:
    """The record of the gateway that runs, or was started now. Blocks until it listens.

    Raises GpuboxError with its own last sentence if it does not come up.
    """
    if record := load_gateway(paths):
        return record
    words = ["serve", "--quiet", "--host", host, "--port", str(port), *(["--yes"] if allow_exposed else [])]
    log = paths.gateway_log
    try:
        private_folder(log.parent)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        with os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
            begin = output.tell()
            child = subprocess.Popen(
                own_program("gpubox.cli.entry", *paths.options, *words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
    except OSError as error:
        raise GpuboxError(f"The gateway cannot be started: {error.strerror}.") from None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        record = load_gateway(paths)
        if record and record.process.pid == child.pid:
            return record
        if child.poll() is not None:
            message, hint = _last_error(log, begin)
            raise GpuboxError(message or "The gateway ended at once.", f"{hint} See {log}.".strip())
        time.sleep(_POLL_SECONDS)
    raise GpuboxError(f"The gateway has not begun to listen within {START_SECONDS:.0f} s.", f"See {log}.")


def _last_error(log: Path, begin: int) -> tuple[str, str]:
    """The sentence with which the gateway ended, and its hint: verbs print the hint below the sentence."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read(_LOG_BYTES).decode(errors="replace").strip().splitlines()
    at = next((at for at in reversed(range(len(lines))) if lines[at].startswith(_ERROR)), len(lines) - 1)
    return (lines[at].removeprefix(_ERROR), " ".join(map(str.strip, lines[at + 1 :]))) if lines else ("", "")


_FIRST_SOCKET = 3
"""SD_LISTEN_FDS_START."""
_ANSWER_SECONDS, _READ_SECONDS, _READ_BYTES = 2.0, 0.1, 1024 * 1024
"""Clients that try again at once must not reach StartLimitBurst: systemd would close the socket."""
_WHY = f"The gateway cannot start: `journalctl --user -u {UNIT}` on its machine says why."
_CANNOT_START = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
_CANNOT_START += json.dumps({"error": {"message": _WHY, "type": "overloaded_error", "code": 503}}).encode()


def inherited_sockets() -> tuple[socket.socket, ...]:
    """The listening sockets that systemd opened for this process; none if it did not start it. To be asked once."""
    given = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    count = int(given["LISTEN_FDS"]) if given["LISTEN_PID"] == str(os.getpid()) else 0
    sockets = tuple(socket.socket(fileno=_FIRST_SOCKET + number) for number in range(count))
    for each in sockets:
        each.set_inheritable(False)
    return sockets


@contextlib.contextmanager
def answered_if_it_fails(sockets: Sequence[socket.socket]) -> Iterator[Sequence[socket.socket]]:
    """If the gateway cannot start, clients that wait on ``sockets`` get 503.

    Else systemd starts it for them again and again, also when they have left long ago. Passes each GpuboxError on.
    """
    try:
        yield sockets
    except GpuboxError:
        with contextlib.suppress(OSError):
            _answer_waiting(sockets)
        raise


def _answer_waiting(sockets: Sequence[socket.socket]) -> None:
    seconds, end = 0.0, time.monotonic() + _ANSWER_SECONDS
    while seconds >= 0 and (ready := select.select(sockets, (), (), seconds)[0]):
        for each in ready:
            each.setblocking(False)
            with contextlib.suppress(OSError), each.accept()[0] as client:
                client.settimeout(_READ_SECONDS)
                client.recv(_READ_BYTES)
                client.sendall(_CANNOT_START)
        seconds = end - time.monotonic()


def notify(state: str) -> None:
    """Tells systemd a state, ``READY=1`` or ``STOPPING=1``, if it wants to know. Never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        sender.send(state.encode())


_MARK = "# Written by `gpubox serve --install`"
_UNIT_BYTES = 64 * 1024
_KEPT = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "GPUBOX_CONFIG",
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
"""What a terminal tells gpubox and the user manager does not: where engines, models and settings are."""
_HELPERS = ("nvidia-modprobe", "newuidmap")
"""Programs that need root's rights, and that engines start: for a card's device files, and for rootless containers."""
_UNITS = Path(__file__).with_name("units")
_SECRET = ("GPUBOX_API_KEY", "LLAMA_API_KEY", "HF_TOKEN")


@dataclass(frozen=True, slots=True)
class InstalledUnits:
    """The service and its socket, which were written."""

    paths: tuple[Path, Path]
    commands: tuple[str, ...]
    """What the owner runs to start them, now and at each boot."""
    notes: tuple[str, ...]


def socket_unit(paths: Paths) -> Path:
    """Where ``install`` writes the unit of the socket."""
    return paths.config.parent / "systemd/user" / SOCKET_UNIT


def install(paths: Paths, address: tuple[str, int], options: Sequence[str] = ()) -> InstalledUnits:
    """Writes the units for this gpubox, its settings and this address.

    ``options``: those of the command line, for a service that is started without its socket. Raises UsageError if there
    is a unit that gpubox did not write or that was changed since, GpuboxError if one cannot be written.
    """
    service_path, socket_path = socket_unit(paths).with_name(UNIT), socket_unit(paths)
    # -P: a file ~/gpubox.py is not what is meant. The interpreter's links stay: a virtual environment is one.
    command = [os.path.abspath(sys.executable), "-P", "-m", "gpubox", *paths.options, "serve", "--quiet", *options]  # noqa: PTH100
    service = unit_text(command, os.environ, helpers=tuple(filter(shutil.which, _HELPERS)))
    units = {service_path: service, socket_path: socket_text(*address)}
    for path in units:
        _check_own(path)
    for path, text in units.items():
        try:
            write_atomically(path, text.encode(errors="surrogateescape"))
        except OSError as error:
            raise unwritable(path, error) from None
    # enable has the manager read the units again: systemctl(1)
    commands = (f"systemctl --user enable --now {SOCKET_UNIT} {UNIT}", "loginctl enable-linger")
    return InstalledUnits((service_path, socket_path), commands, _notes(paths))


def socket_text(host: str, port: int) -> str:
    """The whole unit of the socket, which systemd keeps open while the gateway restarts: clients wait meanwhile."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(f"[{at[0]}]:{port}" if ":" in str(at[0]) else f"{at[0]}:{port}" for *_, at in infos)
    return _filled(SOCKET_UNIT, LISTEN="\n".join(f"ListenStream={address}" for address in addresses))


def unit_text(command: Sequence[str], env: Mapping[str, str], *, helpers: Sequence[str] = ()) -> str:
    """The whole unit. ``env``: the environment from which _KEPT is taken. ``helpers``: those of _HELPERS here."""
    from gpubox.interchange.exporting import unit_word  # the running gateway needs none of it

    free = f"# Engines may need {' and '.join(helpers)}, which NoNewPrivileges=yes would forbid.\n"
    kept = [f"Environment={unit_word(f'{name}={env[name]}', dollars=False)}\n" for name in _KEPT if env.get(name)]
    if set(command[0]) & set("\"'\\$"):  # systemd takes no name with these as the executable
        command = ["/usr/bin/env", *command]
    return _filled(
        UNIT, ENVIRONMENT="".join(kept), COMMAND=" ".join(map(unit_word, command)),
        HARDENING=free if helpers else _UNITS.joinpath("hardening.conf").read_text(encoding="utf-8"),
    )  # fmt: skip


def _filled(name: str, **values: object) -> str:
    """A unit of the folder ``units`` with its values, and the mark by which changes are noticed."""
    template = _UNITS.joinpath(name).read_text(encoding="utf-8")
    body = string.Template(template).substitute(values)
    return f"{_MARK} ({_fingerprint(body)})\n{body}"


def _check_own(path: Path) -> None:
    try:
        first, _, body = read_text(path, _UNIT_BYTES).partition("\n")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, UnicodeDecodeError):
        first = body = ""
    if first != f"{_MARK} ({_fingerprint(body)})":
        whose = "was changed since gpubox wrote it" if first.startswith(_MARK) else "is not gpubox's"
        raise UsageError(
            f"{path} {whose}; it stays as it is.", f"Put your changes into {path}.d/own.conf and delete {path}."
        )


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _notes(paths: Paths) -> tuple[str, ...]:
    notes = [
        "Without lingering, systemd ends the gateway and the llama-servers when you log out.",
        "The address is in the units: write them again after a change of host or port in config.toml.",
    ]
    if record := load_gateway(paths):
        notes.append(f"A gateway runs already (pid {record.process.pid}). End it first: gpubox serve --stop")
    for name in _SECRET:
        if os.environ.get(name):
            where = f" The unit reads the key in {paths.api_key_file}." if name != "HF_TOKEN" else ""
            notes.append(f"{name} is a secret and not in the unit.{where}")
    return tuple(notes)
