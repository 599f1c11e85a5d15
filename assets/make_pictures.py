"""Makes the README's pictures from a recording of a real server: the real screen, fed by what was read then.

usage: python assets/make_pictures.py                    replays dashboard.jsonl into dashboard.svg
       python assets/make_pictures.py --thin RAW.jsonl   makes dashboard.jsonl of what `gpubox record` wrote

dashboard.jsonl is llama-server b11434 with a 49 MB mixture of experts of random weights and an MTP head
(--spec-type draft-mtp --spec-synth-rates 0.98,0.92 --n-cpu-moe 4), its GPU played by ggml-rpc-server on the same
two cores, while a client asks in turns as a coding agent does. The speeds are that machine's, not a GPU's.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from gpubox.config import Config  # noqa: E402
from gpubox.paths import Paths  # noqa: E402
from gpubox.profiles.loader import ProfileCatalog, load_catalog  # noqa: E402
from gpubox.profiles.profile import Profile  # noqa: E402
from gpubox.server.engine_compatibility import EngineCompatibility  # noqa: E402
from gpubox.server.launch import LaunchPreview  # noqa: E402
from gpubox.telemetry.history import History  # noqa: E402
from gpubox.telemetry.recorder import read_recording  # noqa: E402
from gpubox.tui.app import GpuboxApp  # noqa: E402
from gpubox.tui.replay_services import ReplayServices  # noqa: E402

RECORDING = ROOT / "assets" / "dashboard.jsonl"
PICTURE = ROOT / "assets" / "dashboard.svg"
NOWHERE = Path("/nonexistent")
PATHS = Paths(NOWHERE / "config", NOWHERE / "state", NOWHERE / "cache")
SIZE = (120, 36)
KEEP_EVERY = 12
"""One reading in so many stays in the recording, and only the last one lists the requests: it is to be small."""
CELL = 12.2
"""Width of a character in Textual's pictures."""
WAIT_SECONDS = 60


class Recorded(ReplayServices):
    """The last reading of the recording, beside the profile that ran and the shipped ones."""

    def __init__(self) -> None:
        super().__init__(read_recording(RECORDING), PATHS, Config())
        self.at = len(self.snapshots) - 1
        self.running = self.snapshots[-1].server.profile or ""

    def history(self) -> History:
        """What was read before."""
        history = History()
        for snapshot in self.snapshots[:-1]:
            history.push(snapshot)
        return history

    def catalog(self) -> ProfileCatalog:
        mine = Profile(self.running, self.snapshots[-1].server.model_path or "", title="A tiny MoE with an MTP head")
        return ProfileCatalog({self.running: mine} | load_catalog(PATHS).profiles, {})

    def compatibility(self, catalog: ProfileCatalog) -> dict[str, EngineCompatibility]:
        here = {self.running}
        engine = EngineCompatibility("default", True, fetchable=True)
        return {name: replace(engine, model_present=name in here) for name in catalog.profiles}

    def models_without_profile(self, catalog: ProfileCatalog) -> list[Path]:
        return []

    def preview_launch(self, profile: Profile) -> LaunchPreview:
        return LaunchPreview((), "llama-server", profile.model, None)

    def model_size(self, profile: Profile) -> int | None:
        return None


async def picture(size: tuple[int, int] = SIZE) -> str:
    """The screen at the end of the recording, as SVG."""
    services = Recorded()
    app = GpuboxApp(services)
    app.bridge.poller.history = services.history()
    async with app.run_test(size=size) as pilot:
        async with asyncio.timeout(WAIT_SECONDS):
            while not (app.dashboard.requests.rows.values and app.dashboard.profiles.entry):
                await pilot.pause(0.02)
        await pilot.pause()
        svg = app.export_screenshot(title="gpubox", simplify=True)
    svg = re.sub(r'x="([\d.]+)"( y="[\d.]+") textLength="([\d.]+)"([^>]*)>([^<]*)<', _trimmed, svg)
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)  # nothing is fetched to look at it


def _trimmed(match: re.Match[str]) -> str:
    """A text without its outer blanks, which some viewers drop while they keep the length."""
    x, y, _, rest, words = match.groups()
    bare = words.replace("&#160;", "\xa0")
    left = len(bare) - len(bare.lstrip("\xa0"))
    bare = bare.strip("\xa0")
    length = len(html.unescape(bare)) * CELL
    shown = bare.replace("\xa0", "&#160;")
    return f'x="{float(x) + left * CELL:.1f}"{y} textLength="{length:.1f}"{rest}>{shown}<'


def thin(raw: Path) -> None:
    """Writes RECORDING: fewer readings, and no path of the machine that was recorded."""
    header, *lines = raw.read_text(encoding="utf-8").splitlines()
    kept = lines[-1::-KEEP_EVERY][::-1]
    readings = [json.loads(line) for line in kept]
    for reading in readings:
        server = reading["server"]
        for key, folder in (("engine_path", "/usr/local/bin"), ("model_path", "~/models")):
            server[key] = f"{folder}/{Path(server[key]).name}"
    for reading in readings[:-1]:
        reading["requests"] = []
    texts = [json.dumps(reading, separators=(",", ":"), ensure_ascii=False) for reading in readings]
    RECORDING.write_text("\n".join([header, *texts]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--thin":
        thin(Path(sys.argv[2]))
    PICTURE.write_text(asyncio.run(picture()), encoding="utf-8")
