"""Recorded logs -> one sentence. The lines are llama-server's, build 11434 (CUDA: from its source)."""

from __future__ import annotations

import pytest

from gpubox.server.failure_causes import Cause, FailureKind, find_cause, first_error

LOAD_FAILED = """\
0.01.001.000 E llama_model_load_from_file_impl: failed to load model
0.01.001.010 E cmn  common_init_: failed to load model 'm.gguf'
0.01.001.020 E srv    load_model: failed to load model, 'm.gguf'
0.01.001.030 I srv    operator(): operator(): cleaning up before exit...
0.01.001.040 E srv  llama_server: exiting due to model loading error
"""
CONTEXT_FAILED = """\
0.01.001.000 E cmn  common_init_: failed to create context with model 'm.gguf'
0.01.001.020 E srv    load_model: failed to create_context with model 'm.gguf'
0.01.001.030 I srv    operator(): operator(): cleaning up before exit...
0.01.001.040 E srv  llama_server: exiting due to model loading error
"""
CUDA_REFUSES = (
    "0.00.900.000 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating {mib:.2f} MiB on device 0: "
    "cudaMalloc failed: out of memory\n"
    "0.00.900.001 E {who}: failed to allocate CUDA0 buffer of size {size}\n"
)
HOST_REFUSES = """\
0.00.900.000 E ggml_aligned_malloc: insufficient memory (attempted to allocate 131838.75 MB)
0.00.900.001 E ggml_backend_buft_alloc_buffer_n_default: failed to allocate CPU buffer of size 138242949120
"""
RETRIED = (
    CUDA_REFUSES.format(mib=5000, who="ggml_gallocr_reserve_n_impl", size=5000 * 1024**2)
    + "0.00.900.002 W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
)
NO_KV = (
    "0.01.000.000 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n"
)
LISTENING = "0.02.000.000 I srv  llama_server: listening on http://127.0.0.1:8291\n"
STOPPED = """\
5.00.000.000 I srv    operator(): operator(): cleaning up before exit...
5.00.000.100 I common_memory_breakdown_print: |   - Host | 58271 = 58259 + 0 + 12 |
"""


def cuda(mib: int, who: str = "alloc_tensor_range") -> str:
    return CUDA_REFUSES.format(mib=mib, who=who, size=mib * 1024**2)


CASES = {
    "weights on CUDA": (
        cuda(17904)
        + "0.01.000.000 E llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
        + LOAD_FAILED,
        FailureKind.OOM,
        "out of VRAM: weights on CUDA0 (17,904 MiB)",
    ),
    "weights on the second ROCm card, without a size": (
        "0.01.000.000 E llama_model_load: error loading model: unable to allocate ROCm1 buffer\n" + LOAD_FAILED,
        FailureKind.OOM,
        "out of VRAM: weights on ROCm1",
    ),
    "weights in host memory": (
        HOST_REFUSES
        + "0.01.000.000 E llama_model_load: error loading model: unable to allocate CPU buffer\n"
        + LOAD_FAILED,
        FailureKind.OOM,
        "out of RAM: weights (131,839 MiB)",
    ),
    "weights in pinned host memory": (
        "0.00.900.001 E alloc: failed to allocate CUDA_Host buffer of size 1048576000\n"
        "0.01.000.000 E llama_model_load: error loading model: unable to allocate CUDA_Host buffer\n" + LOAD_FAILED,
        FailureKind.OOM,
        "out of RAM: weights (1,000 MiB)",
    ),
    "weights on an RPC host": (
        "0.00.900.001 E alloc: failed to allocate RPC0[192.168.88.10:50052] buffer of size 1048576\n"
        "0.01.000.000 E llama_model_load: error loading model: unable to allocate RPC0[192.168.88.10:50052] buffer\n",
        FailureKind.OOM,
        "out of VRAM: weights on RPC0[192.168.88.10:50052] (1 MiB)",
    ),
    "KV on CUDA": (
        cuda(20480) + NO_KV + CONTEXT_FAILED,
        FailureKind.OOM,
        "out of VRAM: KV cache on CUDA0 (20,480 MiB)",
    ),
    "KV in host memory": (HOST_REFUSES + NO_KV + CONTEXT_FAILED, FailureKind.OOM, "out of RAM: KV cache (131,839 MiB)"),
    "KV, where the log begins too late": (NO_KV + CONTEXT_FAILED, FailureKind.OOM, "out of memory: KV cache"),
    "recurrent state": (
        cuda(1005) + NO_KV.replace("kv cache", "rs cache") + CONTEXT_FAILED,
        FailureKind.OOM,
        "out of VRAM: KV cache on CUDA0 (1,005 MiB)",
    ),
    "compute on CUDA": (
        cuda(898, "ggml_gallocr_reserve_n_impl")
        + NO_KV.replace("buffer for kv cache", "compute pp buffers")
        + CONTEXT_FAILED,
        FailureKind.OOM,
        "out of VRAM: compute buffer on CUDA0 (898 MiB)",
    ),
    "compute in host memory, at run time": (
        HOST_REFUSES + "0.01.000.000 E graph_reserve: failed to allocate compute buffers\n",
        FailureKind.OOM,
        "out of RAM: compute buffer (131,839 MiB)",
    ),
    "retried on CUDA, then KV fails on the host": (
        RETRIED + HOST_REFUSES + NO_KV + CONTEXT_FAILED,
        FailureKind.OOM,
        "out of RAM: KV cache (131,839 MiB)",
    ),
    "CUDA while running": (
        RETRIED
        + LISTENING
        + "1.00.000.000 E CUDA error: out of memory\n1.00.000.001 E   current device: 0, in function alloc\n",
        FailureKind.OOM,
        "out of VRAM while running",
    ),
    "bad_alloc": (
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
        FailureKind.OOM,
        "out of RAM: an allocation failed",
    ),
    "bad flag": ("error: invalid argument: --no-mmap\n", FailureKind.FLAG, "the engine has no option no-mmap"),
    "bad value": (
        'error while handling argument "--spec-type": unknown speculative type: mtp\n\nusage:\n--spec-type ...\n',
        FailureKind.FLAG,
        "the engine refuses spec-type: unknown speculative type: mtp",
    ),
    "removed flag": (
        'error while handling argument "--draft-max": the argument has been removed. use --spec-draft-n-max\n',
        FailureKind.FLAG,
        "the engine refuses draft-max: the argument has been removed. use --spec-draft-n-max",
    ),
    "quantized V without flash attention": (
        "0.01.000.000 E llama_init_from_model: V cache quantization requires flash_attn\n" + CONTEXT_FAILED,
        FailureKind.FLAG,
        "a quantized cache-type-v needs flash-attn on",
    ),
    "missing GGUF": (
        "0.00.100.000 E gguf_init_from_file: failed to open GGUF file 'nope.gguf' (No such file or directory)\n"
        "0.00.100.001 E llama_model_load: error loading model: llama_model_loader: failed to load model from x\n"
        + LOAD_FAILED,
        FailureKind.MISSING,
        "the model file nope.gguf is missing",
    ),
    "incomplete GGUF": (
        "0.00.100.000 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file "
        "bounds, model is corrupted or incomplete\n" + LOAD_FAILED,
        FailureKind.CORRUPT,
        "the GGUF is incomplete (tensor token_embd.weight lies beyond its end)",
    ),
    "not a GGUF": (
        "0.00.100.000 E gguf_init_from_file_impl: invalid magic characters: 'vers', expected 'GGUF'\n" + LOAD_FAILED,
        FailureKind.CORRUPT,
        "the model file is not a GGUF",
    ),
    "port": (
        "0.00.100.000 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8291\n"
        "0.00.100.001 I srv    operator(): operator(): cleaning up before exit...\n"
        "0.00.100.002 E srv  llama_server: exiting due to HTTP server error\n",
        FailureKind.PORT,
        "the server could not listen on 127.0.0.1, port 8291",
    ),
    "port, after an allocation that was retried": (
        RETRIED + "0.00.950.000 E srv         start: couldn't bind HTTP server socket, hostname: ::1, port: 80\n",
        FailureKind.PORT,
        "the server could not listen on ::1, port 80",
    ),
    "unknown architecture": (
        "0.00.100.000 E llama_model_load: error loading model: unknown model architecture: 'qwen9moe'\n" + LOAD_FAILED,
        FailureKind.UNSUPPORTED,
        "this engine does not know the architecture qwen9moe",
    ),
    "no MTP head": (
        "0.00.100.000 W llama_init_from_model: context type MTP requested but model doesn't contain MTP layers\n"
        "0.00.100.001 E srv    load_model: failed to create MTP context\n" + LOAD_FAILED,
        FailureKind.UNSUPPORTED,
        "the model has no MTP head",
    ),
    "shared library": (
        "/opt/llama/llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object "
        "file: No such file or directory\n",
        FailureKind.CRASH,
        "the engine cannot start: libcudart.so.12 is missing",
    ),
    "lost GPU": (
        LISTENING + "1.00.000.000 E CUDA error: unspecified launch failure\n",
        FailureKind.CRASH,
        "CUDA error: unspecified launch failure",
    ),
    "assertion": (
        LISTENING + "/src/ggml/src/ggml.c:3210: GGML_ASSERT(n_tokens > 0) failed\n",
        FailureKind.CRASH,
        "the engine hit GGML_ASSERT(n_tokens > 0) failed",
    ),
    "no RPC server there": (
        "/build/ggml-rpc/ggml-rpc.cpp:547: Failed to connect to 10.0.0.2:50052\n",
        FailureKind.CRASH,
        "the RPC server 10.0.0.2:50052 cannot be reached",
    ),
    "an RPC server gone": (
        LISTENING + "/build/ggml-rpc/ggml-rpc.cpp:612: Remote RPC server crashed or returned malformed response\n",
        FailureKind.CRASH,
        "an RPC server disconnected, or runs another build",
    ),
    "a fit that failed is only a warning": (
        "0.00.100.000 W common_fit_params: failed to fit params to free device memory: failed to allocate compute "
        "buffers, abort\n0.00.200.000 E llama_model_load: error loading model: done_getting_tensors: wrong number of "
        "tensors; expected 292, got 291\n",
        FailureKind.CRASH,
        "the engine reported: error loading model: done_getting_tensors: wrong number of tensors; expected 292, "
        "got 291",
    ),
    "an error nobody foresaw": (
        "0.00.100.000 E foo: the [bold]flux[/bold] {capacitor} is %s\n"
        "0.00.100.001 E srv  llama_server: exiting due to x\n",
        FailureKind.CRASH,
        "the engine reported: the [bold]flux[/bold] {capacitor} is %s",
    ),
    "a wrapper's own error": (
        "fatal: no such container\n",
        FailureKind.CRASH,
        "the engine reported: fatal: no such container",
    ),
}


@pytest.mark.parametrize("code", [1, None])
@pytest.mark.parametrize("name", CASES)
def test_the_cause_of_a_recorded_failure_with_and_without_an_exit_code(name: str, code: int | None) -> None:
    text, kind, sentence = CASES[name]

    cause = find_cause(text, code)

    assert (cause.kind, cause.sentence) == (kind, sentence)
    assert cause.line == "" or cause.line in text


def test_the_line_that_matters_comes_without_its_prefix() -> None:
    assert find_cause(cuda(100) + NO_KV + CONTEXT_FAILED, 1).line == (
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"
    )


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        (-9, "SIGKILL", "out-of-memory killer"),
        (-11, "SIGSEGV", "gpubox logs"),
        (-4, "SIGILL", "another CPU"),
        (-6, "SIGABRT", "gpubox logs"),
        (-99, "signal 99", "gpubox logs"),
    ],
)
def test_a_signal_is_named_and_a_retried_allocation_is_not(code: int, words: str, hint: str) -> None:
    cause = find_cause(RETRIED + LISTENING, code)

    perhaps = " (perhaps by the kernel: it does that when RAM is full)" if code == -9 else ""
    assert cause.sentence == f"the engine was killed by {words}{perhaps}"
    assert hint in cause.hint
    assert cause.kind == (FailureKind.KILLED if code == -9 else FailureKind.CRASH)


def test_an_abort_after_an_assertion_is_the_assertion() -> None:
    assert "GGML_ASSERT" in find_cause(CASES["assertion"][0], -6).sentence


@pytest.mark.parametrize("code", [0, None])
@pytest.mark.parametrize(
    "before", ["", RETRIED, "1.00.000.000 E srv    send_error: task id = 3, error: the request exceeds the context\n"]
)
def test_a_server_that_was_told_to_leave_did_not_crash(before: str, code: int | None) -> None:
    cause = find_cause(LISTENING + before + STOPPED, code)

    assert (cause.kind, cause.sentence) == (FailureKind.STOPPED, "it was stopped from outside gpubox")


def test_a_crash_while_cleaning_up_is_a_crash() -> None:
    text = LISTENING + STOPPED + "/src/ggml/src/ggml.c:1: GGML_ASSERT(ctx) failed\n"

    assert find_cause(text, None).sentence == "the engine hit GGML_ASSERT(ctx) failed"


@pytest.mark.parametrize(("code", "words"), [(1, " with code 1 and"), (0, " with code 0 and"), (None, "")])
def test_a_silent_end_is_said_to_be_silent(code: int | None, words: str) -> None:
    for text in ("", "\n\n", LISTENING, "\x00\ufffd\n"):
        cause = find_cause(text, code)

        assert cause.kind == FailureKind.CRASH
        assert cause.sentence == f"the engine exited{words} without an error message"
        assert ("dmesg" in cause.hint) == (code is None)  # after SIGKILL there is neither code nor message


def test_the_first_error_is_short_and_none_of_the_callers_that_gave_up() -> None:
    text = "0.00.000.001 E " + "x" * 5000 + "\n0.00.000.002 E two\n0.00.000.003 E srv  exiting due to x"

    assert first_error(text) == "x" * 300
    assert first_error(LOAD_FAILED + text) == "x" * 300
    assert first_error("0.00.000.001 I error: no") == ""
    assert first_error(LOAD_FAILED) == "llama_model_load_from_file_impl: failed to load model"


def test_a_refused_request_hours_ago_did_not_end_a_server_that_ran() -> None:
    refused = "1.00.000.000 E srv    send_error: task id = 3, error: the request exceeds the context\n"
    early = "0.00.100.000 E cmn  common_contr: no valid control vector files passed\n"
    hours = "2.00.000.000 I srv  update_slots: all slots are idle\n" * 50
    end = "9.00.000.000 E ggml_foo: the card is on fire\n9.00.000.001 E srv: giving up\n"

    assert first_error(early + LISTENING + refused + hours + end) == "ggml_foo: the card is on fire"
    assert first_error(early + LISTENING + "3.00.000.000 E old: trouble\n" + hours + end).startswith("ggml_foo")
    assert first_error(early + LISTENING + hours) == ""


EXIT_CODES = {"OOM": 5, "FLAG": 2, "HANG": 4, "CRASH": 4, "KILLED": 4, "INTERRUPTED": 130}


@pytest.mark.parametrize("kind", FailureKind)
def test_the_exit_code_of_a_cause(kind: FailureKind) -> None:
    assert Cause(kind, "x").exit_code == EXIT_CODES.get(kind.name, 1)
