"""The seccomp program, run by a small BPF machine of the test's own."""

from __future__ import annotations

import errno
import struct

import pytest

from gpubox.sandbox import seccomp

ALLOW, KILL = "allow", "kill"
CLONE_NEWUSER, SIGCHLD, THREAD = 0x10000000, 17, 0x3D0F00
O_CREAT, O_WRONLY, O_TMPFILE, O_DIRECTORY = 0o100, 1, 0o20200000, 0o200000


def verdict(program: bytes, arch: int, number: int, *arguments: int) -> str:
    """What the kernel would answer: ``allow``, ``kill`` or the name of an errno."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    register, at = 0, 0
    for _ in range(5000):
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x20:
            (register,) = struct.unpack_from("<I", data, value)
        elif operation == 0x54:
            register &= value
        elif operation == 0x06:
            kind = value & 0xFFFF0000
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(kind) or errno.errorcode[value & 0xFFFF]
        else:
            holds = {0x15: register == value, 0x25: register > value, 0x45: bool(register & value)}[operation]
            at += yes if holds else no
    raise AssertionError("no verdict")


class Filter:
    def __init__(self, machine: str, *, shared: bool = False, signals: bool = True) -> None:
        self.arch, self.numbers = seccomp.TABLES[machine]
        self.program = seccomp.compile_filter(machine, shared=shared, signals=signals)

    def __call__(self, name: str, *arguments: int) -> str:
        return verdict(self.program, self.arch, self.numbers[name], *arguments)


@pytest.fixture(params=["x86_64", "aarch64"])
def asked(request: pytest.FixtureRequest) -> Filter:
    return Filter(request.param)


@pytest.mark.parametrize(
    "name", ["ptrace", "bpf", "io_uring_setup", "keyctl", "unshare", "mount", "setns", "mknodat", "process_vm_readv"]
)
def test_dangerous_calls_are_refused(asked: Filter, name: str) -> None:
    assert asked(name) == "EPERM"


@pytest.mark.parametrize("name", ["clone3", "openat2", "memfd_create"])
def test_calls_with_an_older_alternative_fail_as_on_an_older_kernel(asked: Filter, name: str) -> None:
    assert asked(name) == "ENOSYS"


def test_threads_and_forks_but_no_namespaces(asked: Filter) -> None:
    assert asked("clone", SIGCHLD) == asked("clone", THREAD) == ALLOW
    assert asked("clone", CLONE_NEWUSER | SIGCHLD) == "EPERM"


@pytest.mark.parametrize("family", range(46))
def test_no_socket_of_any_family(asked: Filter, family: int) -> None:
    for kind in (1, 2, 3, 5):
        assert asked("socket", family, kind) == "EPERM"


def test_a_connected_pair_of_unix_sockets_and_no_other(asked: Filter) -> None:
    assert asked("socketpair", 1, 1) == asked("socketpair", 1, 1 | 0o2000000) == ALLOW
    assert asked("socketpair", 1, 5) == ALLOW  # Rust starts programs with it
    assert asked("socketpair", 1, 2) == asked("socketpair", 1, 3) == "EPERM"
    assert asked("socketpair", 2, 1) == asked("socketpair", 30, 1) == "EPERM"


def test_buffers_of_sockets_and_pipes_stay_as_they_are(asked: Filter) -> None:
    assert asked("setsockopt", 3, 1, 7) == asked("setsockopt", 3, 1, 32) == asked("fcntl", 3, 1031) == "EPERM"
    assert asked("setsockopt", 3, 1, 2) == asked("setsockopt", 3, 6, 7) == asked("fcntl", 3, 6) == ALLOW
    assert asked("vmsplice", 3) == "EPERM"


def test_huge_pages_are_refused(asked: Filter) -> None:
    assert asked("mmap", 0, 4096, 3, 0x22) == ALLOW
    assert asked("mmap", 0, 4096, 3, 0x40022) == "ENOMEM"


def test_a_process_slows_only_itself(asked: Filter) -> None:
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "prlimit64"):
        assert (asked(name, 0, 7), asked(name, 1, 7)) == (ALLOW, "EPERM")
    assert asked("setpriority", 0, 0) == asked("ioprio_set", 1, 0) == ALLOW
    assert asked("setpriority", 0, 1) == asked("setpriority", 1, 0) == asked("setpriority", 2, 0) == "EPERM"
    assert asked("ioprio_set", 1, 1) == asked("ioprio_set", 2, 0) == asked("ioprio_set", 3, 0) == "EPERM"


@pytest.mark.parametrize("name", ["landlock_add_rule", "inotify_init1", "io_setup"])
def test_calls_that_use_kernel_lists_are_refused(asked: Filter, name: str) -> None:
    assert asked(name) == "ENOSYS"


def test_no_filter_of_its_own_and_no_space_without_writing(asked: Filter) -> None:
    assert asked("seccomp") == asked("prctl", 22) == "EPERM"
    assert asked("prctl", 4) == asked("prctl", 15) == ALLOW
    assert asked("fallocate") == "ENOTSUP"


def test_no_file_gets_a_set_user_id_bit(asked: Filter) -> None:
    assert asked("fchmod", 3, 0o755) == asked("fchmodat", 3, 0, 0o1777) == ALLOW
    assert asked("fchmod", 3, 0o4755) == asked("fchmodat", 3, 0, 0o2755) == asked("fchmodat2", 3, 0, 0o6000) == "EPERM"
    assert asked("openat", 3, 0, O_CREAT | O_WRONLY, 0o644) == asked("openat", 3, 0, 0, 0o7777) == ALLOW
    assert asked("openat", 3, 0, O_CREAT | O_WRONLY, 0o4755) == asked("openat", 3, 0, O_TMPFILE, 0o4755) == "EPERM"
    assert asked("openat", 3, 0, O_DIRECTORY, 0o4755) == ALLOW


def test_the_core_limit_and_the_terminal_stay_as_they_are(asked: Filter) -> None:
    assert asked("prlimit64", 0, 7) == asked("ioctl", 0, 0x5401) == ALLOW
    assert asked("prlimit64", 0, 4) == asked("setrlimit", 4) == "EPERM"
    assert asked("ioctl", 0, 0x5412) == asked("ioctl", 0, 0xFFFFFFFF_00005412) == "EPERM"


def test_other_numberings_end_the_program(asked: Filter) -> None:
    assert verdict(asked.program, 0x40000003, 20) == KILL
    assert verdict(asked.program, asked.arch, 463) == "ENOSYS"
    if asked.arch == seccomp.TABLES["x86_64"][0]:
        assert verdict(asked.program, asked.arch, 0x40000000 + 101) == KILL


def test_signals_and_groups_are_free_inside_a_namespace(asked: Filter) -> None:
    assert asked("kill", 1, 9) == asked("setsid") == asked("setpgid") == ALLOW


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_without_namespaces_more_is_refused(machine: str) -> None:
    scoped, unscoped = Filter(machine, shared=True), Filter(machine, shared=True, signals=False)

    assert scoped("setsid") == scoped("setpgid") == "EPERM"
    assert scoped("kill", 1, 9) == scoped("socketpair", 1, 1) == ALLOW
    assert unscoped("kill", 1, 9) == unscoped("tgkill", 1, 1, 9) == "EPERM"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_landlock_does_not_mediate_is_refused(machine: str) -> None:
    alone, shared = Filter(machine), Filter(machine, shared=True)

    for name in seccomp.ATTRIBUTES & set(shared.numbers):
        assert (alone(name, 3, 0o755), shared(name, 3, 0o755)) == (ALLOW, "EPERM")
    for request in (0x8901, 0x8902, 0x5452, 0xFFFFFFFF_00008901):  # FIOSETOWN, SIOCSPGRP, FIOASYNC
        assert (alone("ioctl", 3, request), shared("ioctl", 3, request)) == (ALLOW, "EPERM")
    for flags in (3, 3 | 0o1000, 0o1000, 0o1000 | O_CREAT):
        assert (alone("openat", 3, 0, flags), shared("openat", 3, 0, flags)) == (ALLOW, "EPERM")
    assert shared("openat", 3, 0, 0o1000 | O_CREAT | O_WRONLY) == shared("openat", 3, 0, 0o2000000) == ALLOW
    assert shared("ioctl", 3, 0x5421) == ALLOW


def test_no_descriptor_gets_an_owner_or_a_signal(asked: Filter) -> None:
    for command in (8, 10, 15, 1024, 1026, 1031, 1033, 5000):
        assert asked("fcntl", 3, command, 9) == "EPERM"
    assert (asked("fcntl", 3, 4, 0o4000), asked("fcntl", 3, 4, 0o24000)) == (ALLOW, "EPERM")
    for name in ("msgrcv", "msgctl", "semop", "semctl", "shmctl", "mq_unlink", "mq_timedsend"):
        assert asked(name, 3) == "EPERM"


def test_both_tables_forbid_the_same() -> None:
    x86, arm = seccomp.TABLES["x86_64"][1], seccomp.TABLES["aarch64"][1]
    only_old = {"open", "creat", "chmod", "mknod", "uselib", "iopl", "ioperm", "modify_ldt", "_sysctl"} | {
        "inotify_init", "chown", "lchown", "utime", "utimes", "futimesat"
    }  # fmt: skip

    assert set(x86) - set(arm) == only_old
    assert set(arm) <= set(x86)
    assert len(set(x86.values())) == len(x86)
    assert len(set(arm.values())) == len(arm)
    assert not seccomp.supported("riscv64")
