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
        self.program = seccomp.compiled(machine, shared=shared, signals=signals)

    def __call__(self, name: str, *arguments: int) -> str:
        return verdict(self.program, self.arch, self.numbers[name], *arguments)


@pytest.fixture(params=["x86_64", "aarch64"])
def asked(request: pytest.FixtureRequest) -> Filter:
    return Filter(request.param)


@pytest.mark.parametrize(
    "name", ["ptrace", "bpf", "io_uring_setup", "keyctl", "unshare", "mount", "setns", "mknodat", "process_vm_readv"]
)
def test_what_nobody_needs_is_refused(asked: Filter, name: str) -> None:
    assert asked(name) == "EPERM"


@pytest.mark.parametrize("name", ["clone3", "openat2", "memfd_create"])
def test_what_has_an_older_way_is_answered_as_by_an_older_kernel(asked: Filter, name: str) -> None:
    assert asked(name) == "ENOSYS"


def test_threads_and_forks_but_no_namespaces(asked: Filter) -> None:
    assert asked("clone", SIGCHLD) == asked("clone", THREAD) == ALLOW
    assert asked("clone", CLONE_NEWUSER | SIGCHLD) == "EPERM"


def test_internet_sockets_but_no_unix_sockets(asked: Filter) -> None:
    assert asked("socket", 2, 1) == asked("socket", 10, 2) == ALLOW
    assert asked("socket", 1, 1) == asked("socket", 16, 3) == asked("socket", 40, 1) == "EPERM"
    assert asked("socketpair", 1, 1 | 0o2000000) == ALLOW
    assert asked("socketpair", 1, 2) == asked("socketpair", 1, 5) == "EPERM"


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

    assert scoped("socket", 2, 1) == scoped("setsid") == scoped("setpgid") == "EPERM"
    assert scoped("kill", 1, 9) == scoped("socketpair", 1, 1) == ALLOW
    assert unscoped("kill", 1, 9) == unscoped("tgkill", 1, 1, 9) == "EPERM"


def test_both_tables_forbid_the_same() -> None:
    x86, arm = seccomp.TABLES["x86_64"][1], seccomp.TABLES["aarch64"][1]
    only_old = {"open", "creat", "chmod", "mknod", "uselib", "iopl", "ioperm", "modify_ldt", "_sysctl"}

    assert set(x86) - set(arm) == only_old
    assert set(arm) <= set(x86)
    assert len(set(x86.values())) == len(x86)
    assert len(set(arm.values())) == len(arm)
    assert not seccomp.supported("riscv64")
