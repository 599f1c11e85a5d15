"""Which backend is built, with which arguments, and what is missing for it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpubox.engines import build_recipe
from gpubox.engines.build_recipe import Cards, amd_targets, find_cards, make_recipe
from gpubox.errors import GpuboxError
from tests.fake_nvml import Driver

Tools = Callable[..., Path]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """PATH has only the programs that the test names."""
    folder = tmp_path / "tools" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CXX", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "CMAKE_GENERATOR", "VULKAN_SDK", "HIPCXX", "HIP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "no-rocm"))
    real = build_recipe._program
    monkeypatch.setattr(build_recipe, "_program", lambda name, *_: real(name))
    monkeypatch.setattr(build_recipe, "_HEADERS", (str(tmp_path / "include"),))
    monkeypatch.setattr(build_recipe, "_LIBRARIES", (str(tmp_path / "lib"),))

    def put(*names: str) -> Path:
        for name in names:
            if "/" in name:
                (folder.parent / name).parent.mkdir()
                (folder.parent / name).touch()
                continue
            (folder / name).write_text("#!/bin/sh\necho /opt/rocm\n")
            (folder / name).chmod(0o755)
        return folder

    return put


def distribution(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": name, "ID_LIKE": ""})


@pytest.mark.parametrize(
    ("cards", "there", "backend"),
    [
        (Cards(nvidia=True, compute_capabilities=("8.6",)), ("nvcc", "lib64/libcublas.so"), "cuda"),
        (Cards(amd=True), ("hipcc",), "hip"),
        (Cards(), ("nvcc",), "cpu"),
    ],
)
def test_the_backend_suits_the_card(cards: Cards, there: tuple[str, ...], backend: str, tools: Tools) -> None:
    tools("c++", "ninja", *there)

    recipe = make_recipe(None, cards=cards)

    assert recipe.backend == backend
    assert "-DGGML_RPC=ON" in recipe.cmake_args
    assert recipe.env["CMAKE_GENERATOR"] == "Ninja"
    assert recipe.jobs >= 1


def test_vulkan_is_the_second_choice_and_says_so(tools: Tools, tmp_path: Path) -> None:
    tools("g++", "make", "glslc")
    for name in ("vulkan/vulkan.h", "spirv/unified1/spirv.hpp"):
        (tmp_path / "include" / name).parent.mkdir(parents=True)
        (tmp_path / "include" / name).touch()

    recipe = make_recipe(None, cards=Cards(nvidia=True))

    assert (recipe.backend, recipe.cmake_args[0]) == ("vulkan", "-DGGML_VULKAN=ON")
    assert recipe.notes == ("vulkan: this machine has an NVIDIA card, and no CUDA toolkit",)
    assert recipe.env["CMAKE_GENERATOR"] == "Unix Makefiles"


@pytest.mark.parametrize(
    ("system", "hint"),
    [
        ("debian", "Debian: sudo apt install nvidia-cuda-toolkit."),
        ("fedora", "Fedora: sudo dnf install cuda-toolkit (in NVIDIA's own repository)."),
        ("arch", "Arch: sudo pacman -S cuda."),
        ("nixos", "Debian: sudo apt install nvidia-cuda-toolkit; Fedora: "),
    ],
)
def test_what_is_missing_is_named_with_its_package(
    system: str, hint: str, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools("c++", "ninja")
    distribution(monkeypatch, system)

    with pytest.raises(GpuboxError) as caught:
        make_recipe(None, cards=Cards(nvidia=True))

    assert caught.value.message == (
        "This machine has a card for it. A cuda build needs nvcc (the CUDA toolkit), which is missing."
    )
    assert caught.value.hint.startswith(hint)
    assert "--cpu" in caught.value.hint


def test_every_missing_tool_is_named_at_once(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools()
    distribution(monkeypatch, "arch")

    with pytest.raises(GpuboxError) as caught:
        make_recipe("vulkan", cards=Cards())

    assert caught.value.message == (
        "A vulkan build needs a C++ compiler, ninja or make, glslc, the Vulkan headers and the SPIR-V headers, "
        "which are missing."
    )
    assert caught.value.hint == (
        "Arch: sudo pacman -S base-devel ninja shaderc vulkan-headers vulkan-icd-loader spirv-headers."
    )


def test_cuda_is_built_for_the_cards_that_are_here(tools: Tools, tmp_path: Path) -> None:
    folder = tools("c++", "ninja", "nvcc")
    (folder / "nvcc").write_text(f"#!/bin/sh\necho '#$ TOP={tmp_path}/toolkit/bin/..' >&2\n")
    (tmp_path / "toolkit" / "bin").mkdir(parents=True)
    (tmp_path / "toolkit" / "lib64").mkdir()
    with pytest.raises(GpuboxError, match="needs cuBLAS"):
        make_recipe("cuda", cards=Cards(nvidia=True))
    (tmp_path / "toolkit" / "lib64" / "libcublas.so").touch()

    known = make_recipe("cuda", cards=Cards(nvidia=True, compute_capabilities=("8.6", "12.0")))
    unknown = make_recipe("cuda", cards=Cards(nvidia=True))

    assert "-DCMAKE_CUDA_ARCHITECTURES=86;120" in known.cmake_args
    assert "-DCMAKE_CUDA_ARCHITECTURES=all-major" in unknown.cmake_args
    assert known.env["CUDACXX"] == str(folder / "nvcc")
    assert f"-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath,{tmp_path}/toolkit/lib64" in known.cmake_args


def test_the_driver_says_what_to_compile_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(cards=3)
    driver.answer("DeviceGetCudaComputeCapability", lambda card: [12, 0] if card else [8, 6])
    monkeypatch.setitem(sys.modules, "pynvml", driver)

    assert find_cards().compute_capabilities == ("12.0", "8.6")
    driver.refuse("DeviceGetCudaComputeCapability")
    assert find_cards().compute_capabilities == ()
    assert find_cards().nvidia


def test_amd_cards_are_named_as_the_compiler_names_them(tmp_path: Path) -> None:
    for node, version in enumerate((0, 110000, 90010, 100306)):  # a processor, RX 7900, MI200, an APU
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\n")

    assert amd_targets(tmp_path) == ["gfx1036", "gfx1100", "gfx90a"]
