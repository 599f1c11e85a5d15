"""Makes the README's picture from the real screen: the demo profile, as it was recorded on a machine without a GPU.

usage: python assets/make_pictures.py
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

from gpubox.config import Config  # noqa: E402
from gpubox.paths import Paths  # noqa: E402
from gpubox.profiles.loader import Catalog, load_catalog  # noqa: E402
from gpubox.profiles.model import Profile  # noqa: E402
from gpubox.server.events import Finished, Step, StepDone  # noqa: E402
from gpubox.server.fit import Fit, engine_fits  # noqa: E402
from gpubox.server.launch import Preview, preview  # noqa: E402
from gpubox.server.status import ServerStatus  # noqa: E402
from gpubox.tui.app import GpuboxApp  # noqa: E402
from gpubox.tui.story import Story  # noqa: E402
from tests.tui.conftest import opened, until  # noqa: E402
from tests.tui.fake import FakeServices, recorded  # noqa: E402

NOWHERE = Path("/nonexistent")
PATHS = Paths(NOWHERE / "config", NOWHERE / "state", NOWHERE / "cache")
CONFIG = Config(default_engine="embedded")
MODEL = "~/.cache/gpubox/models/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = (120, 36)

# The run of tests/tui/recordings/demo.log: `gpubox switch demo` on 2 cores, and one question asked by curl.
RUNNING = ServerStatus(
    "main", "ready", "demo", 2549, "http://127.0.0.1:35923", MODEL, "xllamacpp.abi3.so",
    "xllamacpp 2026.10.11549 (build 0, commit unknown)", "2026-11-21T10:04:41.726Z", 0.444,
)  # fmt: skip
STORY = Story(
    "switch", "demo",
    done=(StepDone(Step.CHECK, "demo", 0.084), StepDone(Step.STOP, "b", 0.023), StepDone(Step.SETTLE, "b", 0.011),
          StepDone(Step.LOAD, "demo", 0.444), StepDone(Step.PROVE, "demo", 0.011)),
    finished=Finished("switch", "demo", True, "demo", 0.619, "demo answers."),
)  # fmt: skip


CELL = 12.2
"""Width of a character in Textual's pictures."""


def _trimmed(match: re.Match[str]) -> str:
    """A text without its outer blanks, which some viewers drop while they keep the length."""
    x, y, _, rest, words = match.groups()
    bare = words.replace("&#160;", "\xa0")
    left = len(bare) - len(bare.lstrip("\xa0"))
    bare = bare.strip("\xa0")
    length = len(html.unescape(bare)) * CELL
    shown = bare.replace("\xa0", "&#160;")
    return f'x="{float(x) + left * CELL:.1f}"{y} textLength="{length:.1f}"{rest}>{shown}<'


class Recorded(FakeServices):
    """The shipped profiles, the embedded engine's own judgement of them, and one recorded run."""

    def __init__(self) -> None:
        super().__init__(RUNNING)
        self.lines = recorded()

    def catalog(self) -> Catalog:
        return load_catalog(PATHS)

    def fits(self, catalog: Catalog) -> dict[str, Fit]:
        fits = engine_fits(catalog.profiles.values(), PATHS, CONFIG)
        return {name: replace(fit, model_present=name.startswith("demo")) for name, fit in fits.items()}

    def preview(self, profile: Profile) -> Preview:
        shown = preview(profile, PATHS, CONFIG)
        argv = tuple("python" if word == sys.executable else word for word in shown.argv)
        return replace(shown, argv=(*argv[:3], "--model", MODEL, *argv[3:]) if "--model" not in argv else argv)


async def main() -> None:
    """Writes dashboard.svg."""
    app = GpuboxApp(Recorded())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await until(pilot, lambda: app.dashboard.log_pane.view.line_count > 100)
        app.story = STORY
        await pilot.pause(0.2)
        picture = app.export_screenshot(title="gpubox", simplify=True)
    picture = re.sub(r'x="([\d.]+)"( y="[\d.]+") textLength="([\d.]+)"([^>]*)>([^<]*)<', _trimmed, picture)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S)  # nothing is fetched to look at it
    (ROOT / "assets" / "dashboard.svg").write_text(picture, encoding="utf-8")


asyncio.run(main())
