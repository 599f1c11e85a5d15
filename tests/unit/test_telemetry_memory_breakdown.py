"""The memory breakdown from the log: every buffer on the right device and model."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubox.server.log_parsing import parse_event
from gpubox.telemetry.device_memory import HOST, MemoryBreakdown, device_key
from gpubox.units import MIB

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
RPC = "RPC 127.0.0.1:50152"
LOAD = "load_tensors: loading model tensors, this can take a while... (load_mode = mmap)\n"
CONTEXT = "llama_context: constructing llama_context\n"
DRAFT = "srv load_model: loading draft model 'draft.gguf'\n"
MTP = "common_speculative_init_result: creating MTP draft context against the target model 'm.gguf'\n"
MEASURE = "common_params_fit_impl: getting device memory data for initial parameters:\n"
EXTRA = "operator(): getting device memory data for the extra model at a context size of 4096:\n"
TABLE = (
    "common_memory_breakdown_print: | memory breakdown [MiB] | total free self model context compute unaccounted |\n"
)


def split_of(text: str) -> MemoryBreakdown:
    split = MemoryBreakdown()
    for line in text.splitlines():
        _, event = parse_event(line)
        if event:
            split.feed(event)
    return split


def weights(device: str, size: float) -> str:
    return f"load_tensors: {device:>12} model buffer size = {size:8.2f} MiB\n"


def kv(device: str, size: float) -> str:
    return f"llama_kv_cache: {device:>10} KV buffer size = {size:8.2f} MiB\n"


def compute(device: str, size: float) -> str:
    return f"sched_reserve: {device:>10} compute buffer size = {size:8.2f} MiB\n"


def host_row(model: int, name: str = "Host") -> str:
    return (
        f"common_memory_breakdown_print: |   - {name}  |          {model + 9} = {model} +       0 +       9        |\n"
    )


def mib(size: float) -> int:
    return round(size * MIB)


def test_a_recorded_moe_with_an_mtp_head_half_of_it_on_an_rpc_device() -> None:
    split = split_of((LOGS / "b11434-moe-mtp-rpc.log").read_text(encoding="utf-8"))

    assert split.keys == [RPC, HOST]
    assert split.weights_of(RPC) == mib(32.45)
    assert [split.bytes_of(kind, RPC) for kind in ("kv", "recurrent", "compute")] == [mib(4), mib(0.89), mib(12)]
    assert split.draft_of(RPC) == mib(2.00) + mib(9.02)  # KV and compute of the MTP context; its weights are shared
    assert split.weights_of(HOST) == 25 * MIB  # the fit's row; the mapped range says 26.87, the table at exit 26
    assert not split.weights_are_estimated(HOST)
    assert (split.bytes_of("compute", HOST), split.draft_of(HOST)) == (mib(9.05), mib(3.02))
    assert split.total_of(RPC) == mib(32.45) + mib(4) + mib(0.89) + mib(12) + mib(2) + mib(9.02)
    assert (split.layers, split.threads) == ((10, 10), 2)
    assert split.kv_bytes_per_token == mib(4) / (2048 * 2)
    assert (split.devices[RPC].device, split.devices[RPC].total_bytes) == ("RPC0", 24105 * MIB)


def test_a_cuda_launch_whose_numbers_are_of_the_source() -> None:
    split = split_of((LOGS / "b11434-cuda-from-source.log").read_text(encoding="utf-8"))

    assert split.keys == ["CUDA0", HOST]
    assert split.total_of("CUDA0") == mib(17904.12) + mib(384) + mib(898.02)
    assert split.weights_of(HOST) == 58259 * MIB
    assert split.pinned_bytes == mib(2.32) + mib(12.01)
    assert split.devices["CUDA0"].bus_id == "0000:01:00.0"


def test_nothing_is_known_of_an_empty_log() -> None:
    split = MemoryBreakdown()

    assert (split.keys, split.weights_of("CUDA0"), split.draft_of("CUDA0"), split.total_of("CUDA0")) == (
        [],
        None,
        None,
        0,
    )
    assert (split.layers, split.threads, split.kv_bytes_per_token, split.pinned_bytes) == (None, None, None, 0)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("CUDA0", "CUDA0"),
        ("CUDA0 (RTX 4090)", "CUDA0"),
        ("ROCm1 (AMD Radeon RX 7900 XTX)", "ROCm1"),
        ("CPU", HOST),
        ("CPU_Mapped", HOST),
        ("CPU_REPACK", HOST),
        ("CUDA_Host", HOST),
        ("ROCm_Host", HOST),
        ("Vulkan_Host", HOST),
        ("RPC0[10.0.0.2:50052]", "RPC 10.0.0.2:50052"),
        ("RPC1 (10.0.0.2:50052)", "RPC 10.0.0.2:50052"),
        ("RPC0[[fe80::1]:50052]", "RPC0[[fe80::1]:50052]"),
    ],
)
def test_one_key_for_all_spellings_of_a_device(name: str, key: str) -> None:
    assert device_key(name) == key


def test_the_mtp_context_is_the_drafts_and_leaves_the_first_alone() -> None:
    split = split_of(
        LOAD + weights("CUDA0", 100) + CONTEXT + kv("CUDA0", 40) + compute("CUDA0", 10)
        + MTP + CONTEXT + kv("CUDA0", 4) + compute("CUDA0", 3)
    )  # fmt: skip

    assert (split.weights_of("CUDA0"), split.bytes_of("kv", "CUDA0"), split.bytes_of("compute", "CUDA0")) == (
        mib(100),
        mib(40),
        mib(10),
    )
    assert split.draft_of("CUDA0") == mib(7)


def test_a_draft_model_of_its_own_brings_its_weights() -> None:
    split = split_of(
        LOAD + weights("CUDA0", 100) + weights("CPU", 20) + CONTEXT + kv("CUDA0", 40) + compute("CUDA0", 10)
        + DRAFT + LOAD + weights("CUDA0", 8) + weights("CPU", 1) + CONTEXT + kv("CUDA0", 4) + compute("CUDA0", 3)
    )  # fmt: skip

    assert (split.weights_of("CUDA0"), split.bytes_of("kv", "CUDA0"), split.bytes_of("compute", "CUDA0")) == (
        mib(100),
        mib(40),
        mib(10),
    )
    assert (split.draft_of("CUDA0"), split.draft_of(HOST)) == (mib(15), mib(1))


def test_no_draft_is_unknown_not_nothing() -> None:
    assert split_of(LOAD + weights("CUDA0", 100)).draft_of("CUDA0") is None


def test_a_mapped_file_counts_too_much_and_the_fit_knows_better() -> None:
    load = LOAD + weights("CPU_Mapped", 92.1) + weights("CUDA0", 68.85)

    measured = split_of(MEASURE + TABLE + host_row(51) + load)
    unmeasured = split_of(load)

    assert (measured.weights_of(HOST), measured.weights_are_estimated(HOST)) == (51 * MIB, False)
    assert (unmeasured.weights_of(HOST), unmeasured.weights_are_estimated(HOST)) == (mib(92.1), True)
    assert not unmeasured.weights_are_estimated("CUDA0")


def test_a_mapped_file_that_is_all_on_the_cpu_is_exact() -> None:
    split = split_of(MEASURE + TABLE + host_row(91) + LOAD + weights("CPU_Mapped", 92.1))

    assert (split.weights_of(HOST), split.weights_are_estimated(HOST)) == (mib(92.1), False)


def test_repacked_weights_are_not_counted_twice() -> None:
    load = LOAD + weights("CPU_Mapped", 92) + weights("CPU_REPACK", 60)

    measured = split_of(MEASURE + TABLE + host_row(32) + host_row(60, "CPU_REPACK") + load)

    assert (measured.weights_of(HOST), measured.weights_are_estimated(HOST)) == (92 * MIB, False)
    assert split_of(load).weights_are_estimated(HOST)


def test_weights_that_were_read_in_are_exact() -> None:
    split = split_of(MEASURE + TABLE + host_row(51) + LOAD + weights("CUDA_Host", 51.5) + weights("CUDA0", 68.85))

    assert (split.weights_of(HOST), split.weights_are_estimated(HOST)) == (mib(51.5), False)
    assert split.pinned_bytes == mib(51.5)


def test_a_model_with_two_kinds_of_attention_has_two_caches() -> None:
    split = split_of(
        CONTEXT + kv("CUDA0", 100) + "llama_kv_cache: size =  100.00 MiB (  8192 cells,   8 layers,  1/1 seqs), K\n"
        + kv("CUDA0", 20) + kv("CPU", 5) + "llama_kv_cache: size = 25.00 MiB (  1024 cells,  40 layers,  1/1 seqs)\n"
    )  # fmt: skip

    assert (split.bytes_of("kv", "CUDA0"), split.bytes_of("kv", HOST)) == (mib(120), mib(5))
    assert split.kv_bytes_per_token == mib(125) / 8192


def test_compute_buffers_that_are_reserved_anew_replace_the_old_ones() -> None:
    split = split_of(CONTEXT + compute("CUDA0", 898) + compute("CUDA_Host", 12) + compute("CUDA0", 300))

    assert (split.bytes_of("compute", "CUDA0"), split.bytes_of("compute", HOST)) == (mib(300), mib(12))
    assert split.pinned_bytes == mib(12)


def test_two_kinds_of_host_buffers_add_up() -> None:
    split = split_of(CONTEXT + compute("CPU", 5) + compute("CUDA_Host", 12) + compute("CPU", 6))

    assert split.bytes_of("compute", HOST) == mib(18)


def test_two_rpc_hosts_that_both_call_their_device_rpc0() -> None:
    split = split_of(
        "using device RPC0 (10.0.0.1:50052) (unknown id) - 8000 MiB free\n"
        "using device RPC1 (10.0.0.2:50052) (unknown id) - 9000 MiB free\n"
        + LOAD + weights("RPC0[10.0.0.1:50052]", 10) + weights("RPC0[10.0.0.2:50052]", 20)
    )  # fmt: skip

    assert split.keys == ["RPC 10.0.0.1:50052", "RPC 10.0.0.2:50052"]
    assert [split.weights_of(key) for key in split.keys] == [mib(10), mib(20)]
    assert [device.device for device in split.devices.values()] == ["RPC0", "RPC1"]


def test_the_table_at_exit_says_nothing() -> None:
    text = MEASURE + TABLE + host_row(51) + LOAD + weights("CPU_Mapped", 92) + weights("CUDA0", 68)
    split = split_of(text + "operator(): cleaning up before exit...\n" + TABLE + host_row(92) + weights("CUDA0", 1))

    assert (split.weights_of(HOST), split.weights_of("CUDA0")) == (51 * MIB, mib(68))


def test_a_fit_that_adjusts_measures_again_and_the_last_counts() -> None:
    # the extra model is measured again only where the context changed, and only its tables are announced
    split = split_of(
        MEASURE + TABLE + host_row(10) + EXTRA + TABLE + host_row(99)
        + TABLE + host_row(30) + EXTRA + TABLE + host_row(98) + TABLE + host_row(20)
        + LOAD + weights("CPU_Mapped", 92) + weights("CUDA0", 68)
    )  # fmt: skip

    assert split.weights_of(HOST) == 20 * MIB


def test_an_extra_model_that_could_not_be_measured_leaves_the_next_table_to_the_first() -> None:
    split = split_of(
        MEASURE + TABLE + host_row(10) + EXTRA
        + "operator(): failed to measure the memory of the extra model, fitting without it: no\n"
        + TABLE + host_row(20) + LOAD + weights("CPU_Mapped", 92) + weights("CUDA0", 68)
    )  # fmt: skip

    assert split.weights_of(HOST) == 20 * MIB


def test_a_table_that_no_fit_announced_is_no_measurement() -> None:
    split = split_of(TABLE + host_row(51) + LOAD + weights("CPU_Mapped", 92) + weights("CUDA0", 68))

    assert split.weights_are_estimated(HOST)


def test_a_server_that_woke_up_has_loaded_anew_and_its_first_model_is_no_draft() -> None:
    text = (
        (LOGS / "b11434-moe-mtp-rpc.log").read_text(encoding="utf-8").partition("srv    operator(): operator(): cl")[0]
    )
    once = split_of(text)
    woken = split_of(text + text)

    for key in once.keys:
        assert woken.total_of(key) == once.total_of(key)
        assert woken.weights_of(key) == once.weights_of(key)
        assert woken.draft_of(key) == once.draft_of(key)
    assert woken.kv_bytes_per_token == once.kv_bytes_per_token


def test_an_unloaded_server_holds_nothing_and_knows_its_devices() -> None:
    split = split_of((LOGS / "b11434-cuda-from-source.log").read_text(encoding="utf-8"))
    split.unload()

    assert (split.keys, split.total_of("CUDA0"), split.pinned_bytes) == ([], 0, 0)
    assert split.devices["CUDA0"].bus_id == "0000:01:00.0"
