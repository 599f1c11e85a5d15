"""The record of the running gateway: where it listens, and the token for its control endpoints."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gpubox.address import local_url
from gpubox.hardware.process import ProcessIdentity, is_alive
from gpubox.paths import Paths
from gpubox.storage import read_json, read_text, write_atomically

_RECORD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """One running gateway."""

    process: ProcessIdentity
    host: str
    port: int
    token: str
    """For /gpubox/... : whoever can read the owner's files may control the gateway."""
    started_at: str

    @property
    def base_url(self) -> str:
        """The address at which this machine reaches it."""
        return local_url(self.host, self.port)


def load_gateway(paths: Paths) -> GatewayRecord | None:
    """The gateway that runs now; None if none does. Reads one file, and asks the kernel whether its process lives."""
    try:
        values = read_json(read_text(paths.gateway_record, _RECORD_BYTES), own=True)
        record = GatewayRecord(**{**values, "process": ProcessIdentity(**values["process"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if is_alive(record.process) else None


def save_gateway(paths: Paths, record: GatewayRecord) -> None:
    """Writes the record, readable by the owner only. Raises OSError."""
    write_atomically(paths.gateway_record, json.dumps(asdict(record)).encode())
