"""Makes the README's pictures from a recording of a real server: the real screen, fed by what was read then.

usage: python assets/make_pictures.py                    replays dashboard.jsonl into dashboard.svg
       python assets/make_pictures.py --thin RAW.jsonl   makes dashboard.jsonl of what `gpubox status --record` wrote
       python assets/make_pictures.py --post RUN         makes card.svg of a benchmark run's folder

dashboard.jsonl is llama-server b11434 with a mixture of experts of random weights and an MTP head: 18 GB, 40 layers,
256 experts, each tensor one random block again and again; --n-cpu-moe 7 --parallel 2 --threads 1
--spec-type draft-mtp --spec-synth-rates 0.92,0.81 --override-kv qwen35moe.expert_used_count=int:2. Its GPU was played
by ggml-rpc-server on the same two cores, which other programs used too; its VRAM was that machine's RAM. A client
asked in turns as a coding agent does. The speeds are that machine's, not a GPU's.

card.svg is what `gpubox bench show --as card` makes of a speed run of the demo model on the same machine.
"""

from __future__ import annotations

import asyncio
import html
import re
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from gpubox import __version__  # noqa: E402
from gpubox.bench.report.post import make_post  # noqa: E402
from gpubox.bench.report.post_forms import post_svg  # noqa: E402
from gpubox.bench.run_store import Run  # noqa: E402
from gpubox.config import Config  # noqa: E402
from gpubox.paths import Paths  # noqa: E402
from gpubox.profiles.loader import ProfileCatalog, load_catalog  # noqa: E402
from gpubox.profiles.profile import Profile  # noqa: E402
from gpubox.server.launch import EngineCompatibility, LaunchPreview  # noqa: E402
from gpubox.telemetry.recent import History  # noqa: E402
from gpubox.telemetry.recorder import Recorder, read_recording  # noqa: E402
from gpubox.tui.app import GpuboxApp  # noqa: E402
from gpubox.tui.replay_services import ReplayServices  # noqa: E402

RECORDING = ROOT / "assets" / "dashboard.jsonl"
PICTURE = ROOT / "assets" / "dashboard.svg"
CARD = ROOT / "assets" / "card.svg"
NOWHERE = Path("/nonexistent")
PATHS = Paths(NOWHERE / "config", NOWHERE / "state", NOWHERE / "cache")
SIZE = (120, 36)
KEEP_EVERY, KEEP = 16, 60
"""One reading in so many stays in the recording, and the last so many of those: it is to be small."""
CELL = 12.2
"""Width of a character in Textual's pictures."""
WAIT_SECONDS = 60


class Recorded(ReplayServices):
    """The last reading of the recording, beside the profile that ran and the shipped ones."""

    def __init__(self) -> None:
        self.snapshots = list(read_recording(RECORDING))
        super().__init__(self.snapshots[-1:], PATHS, Config())
        self.running = self.snapshots[-1].server.profile or ""

    def history(self) -> History:
        """What was read before."""
        history = History()
        for snapshot in self.snapshots[:-1]:
            history.push(snapshot)
        return history

    def catalog(self) -> ProfileCatalog:
        mine = Profile(self.running, self.snapshots[-1].server.model_path or "", title="17B MoE, random weights")
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
    kept = list(read_recording(raw))[-1::-KEEP_EVERY][:KEEP][::-1]
    RECORDING.unlink(missing_ok=True)
    with Recorder(RECORDING, __version__) as recorder:
        for reading in kept:
            server = reading.server
            engine, model = (Path(path or "").name for path in (server.engine_path, server.model_path))
            here = replace(server, engine_path=f"/usr/local/bin/{engine}", model_path=f"~/models/{model}")
            recorder.write(replace(reading, server=here))


def post(folder: Path) -> None:
    """Writes CARD from the run in ``folder``."""
    CARD.write_text(post_svg(make_post(Run(folder))), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--post":
        post(Path(sys.argv[2]))
        sys.exit()
    if len(sys.argv) == 3 and sys.argv[1] == "--thin":
        thin(Path(sys.argv[2]))
    PICTURE.write_text(asyncio.run(picture()), encoding="utf-8")
