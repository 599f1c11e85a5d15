# ruff: noqa: E501 - a program is easier to read as the lines it has
"""Agents that stay and try to get out, to stand in the way, or to live on. As programs.py, whose words they use.

The port RELAY leads to the gateway of the test; HOME is the agent's own home inside.
"""

from __future__ import annotations

from tests.hostile.programs import Hostile

RELAY = 18_765
_STAY = "for n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
NETWORK = [
    Hostile("host-services", "for host in ('127.0.0.1', '127.0.0.2', '::1', '0.0.0.0', 'localhost'):\n    attempt(socket.create_connection, (host, @PORT@), 2)"),
    Hostile("lan-and-internet", "for host in ('10.0.0.1', '192.168.1.1', '172.17.0.1', '169.254.169.254', '192.0.2.1', '8.8.8.8', 'fe80::1', '2001:db8::1'):\n    for port in (22, 53, 80, @PORT@): attempt(socket.create_connection, (host, port), 1)"),
    Hostile("names", "for name in ('example.org', 'host.docker.internal', 'gpubox.local'):\n    attempt(socket.getaddrinfo, name, 80)"),
    Hostile(
        "datagrams",
        "for family, host in ((2, '127.0.0.1'), (2, '255.255.255.255'), (2, '224.0.0.1'), (2, '8.8.8.8'), (10, '::1'), (10, 'ff02::1')):\n"
        "    for port in (53, 5353, @UDP@):\n"
        "        try:\n            s = socket.socket(family, socket.SOCK_DGRAM)\n            s.setsockopt(1, 6, 1)\n            s.sendto(b'@TOKEN@', (host, port))\n"
        "        except OSError: pass\nprint('held')",
    ),
    Hostile("other-families", "for family in range(46):\n    if family in (2, 10): continue\n    for kind in (1, 2, 3, 5): attempt(socket.socket, family, kind)"),
    Hostile("raw", "for family in (2, 10):\n    for number in (0, 1, 6, 17, 255): attempt(socket.socket, family, socket.SOCK_RAW, number)\nattempt(socket.socket, 17, 3, 768)"),
    Hostile("unix-sockets-of-the-way-out", "for path in ('/run/sockets/gateway', 'sock', '/tmp/.X11-unix/X0', '/run/dbus/system_bus_socket'):\n    attempt(lambda: socket.socket(socket.AF_UNIX).connect(path))"),
    Hostile("plant-beside-the-way-out", "attempt(lambda: open('/run/sockets/@MARK@', 'w'))\nattempt(os.unlink, '/run/sockets/gateway')\nattempt(os.rename, '/run/sockets/gateway', '/run/sockets/x')\nattempt(os.symlink, '@SECRET@', '/run/sockets/proxy')"),
    Hostile("new-network", "import fcntl\nfor request in (0x8913, 0x8914, 0x8916, 0x890B, 0x89A0):\n    attempt(lambda: fcntl.ioctl(socket.socket(), request, bytes(40)) and 1/0)\ncall('unshare', 0x40000000)\ncall('setns', 0, 0x40000000)"),
    Hostile("bind-to-a-device", "attempt(lambda: socket.socket().setsockopt(1, 25, b'eth0'))\nattempt(lambda: socket.socket(2, 2).setsockopt(0, 19, 1))"),
    Hostile(
        "take-over-the-relay",
        "for name in os.listdir('/proc'):\n    if name.isdigit() and int(name) != os.getpid():\n"
        "        attempt(os.listdir, f'/proc/{name}/fd')\n        attempt(lambda: open(f'/proc/{name}/mem', 'r+b'))\n"
        "        attempt(lambda: os.pidfd_open(int(name)) and 1/0)\n        call('syscall', {'x86_64': 438}.get(os.uname().machine, 438), 3, 3, 0)",
    ),
    Hostile(
        "kill-the-relay",
        f"socket.create_connection(('127.0.0.1', {RELAY}), 5).close()\nos.kill(-1, 9)\nend = time.monotonic() + 5\n"
        f"while time.monotonic() < end:\n    try: socket.create_connection(('127.0.0.1', {RELAY}), 5).close()\n    except OSError: break\n"
        "print('held', flush=True)",
    ),
    Hostile("take-the-relays-port", f"s = socket.socket()\ns.setsockopt(1, 2, 1)\ns.setsockopt(1, 15, 1)\nattempt(s.bind, ('127.0.0.1', {RELAY}))"),
]  # fmt: skip
FILES = [
    Hostile("the-owners-home", "for name in ('', '/.ssh', '/.bashrc', '/.config', '/.netrc', '/.aws', '/.gitconfig', '/.local/share', '/.local/state'):\n    attempt(os.listdir if name in ('/.ssh', '/.aws', '/.config') else os.stat, '@HOME@' + name if name else '@OUTSIDE@')"),
    Hostile("write-through-links", "home = os.environ['HOME']\nfor folder in ('.', home):\n    os.symlink('@OUTSIDE@', folder + '/way')\n    attempt(lambda: open(folder + '/way/@MARK@', 'w'))\n    attempt(os.mkdir, folder + '/way/d')\n    attempt(os.rename, folder + '/way', '@OUTSIDE@/@MARK@')"),
    Hostile("link-hard", "home = os.environ['HOME']\nfor path in ('@SECRET@', '/etc/passwd', '/run/sockets/gateway', '/usr/bin/env'):\n    attempt(os.link, path, home + '/h')\n    attempt(os.link, path, 'h')"),
    Hostile("nodes", "home = os.environ['HOME']\nfor folder in ('.', home, '/tmp'):\n    attempt(os.mkfifo, folder + '/f')\n    attempt(os.mknod, folder + '/d', stat.S_IFBLK | 0o666, os.makedev(8, 0))\n    attempt(os.mknod, folder + '/c', stat.S_IFCHR | 0o666, os.makedev(5, 0))"),
    Hostile("set-user-id-at-home", "path = os.environ['HOME'] + '/s'\nopen(path, 'w').close()\nattempt(os.chmod, path, 0o4755)\nattempt(os.open, path + 't', os.O_CREAT | os.O_WRONLY, 0o6755)"),
    Hostile("write-what-is-read-only", "import sys\nfor path in (sys.executable, '/usr/bin/env', '/etc/passwd', '/etc/hosts', '/run/boot.py', '/run/main.py', '/run/bin/python3'):\n    attempt(lambda: open(path, 'r+b'))\n    attempt(os.unlink, path)\n    attempt(os.rename, path, path + 'x')"),
]  # fmt: skip
PROCESSES = [
    Hostile("set-a-clock-that-continues", "call('timer_create', 0, struct.pack('QiiQ', 0, 18, 0, 0) + bytes(64), ctypes.create_string_buffer(8))"),
    Hostile("continue-by-a-death", "call('prctl', 1, 18, 0, 0, 0)\nif os.uname().machine == 'x86_64':\n    for flags in (18, 9, 0x4000 | 18): call('syscall', 56, flags, 0, 0, 0, 0)\nelse: call('syscall', 220, 18, 0, 0, 0, 0)"),
    Hostile("signals-to-gpubox", "print('held', flush=True)\nfor pid in (os.getppid(), 1):\n    for number in (2, 9, 15, 19):\n        try: os.kill(pid, number)\n        except OSError: pass\nattempt(os.kill, @VICTIM@, 9)"),
    Hostile("orders-to-the-monitor", "for fd in range(64):\n    attempt(lambda: open(f'/proc/1/fd/{fd}', 'wb').write(b'c'))\n    attempt(lambda: os.write(fd, b'c') and 1/0) if fd > 2 else None"),
    Hostile("daemons", f"for _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            {_STAY.replace(chr(10), chr(10) + '            ')}\n            os.close(1); time.sleep(90)\n        os._exit(0)\nprint('held')"),
    Hostile("holders-of-the-pipes", f"if os.fork() == 0:\n    {_STAY.replace(chr(10), chr(10) + '    ')}\n    time.sleep(90)\nprint('held')"),
    Hostile("io-uring-and-others", "call('syscall', 425, 8, ctypes.create_string_buffer(256))\ncall('syscall', {'x86_64': 321}.get(os.uname().machine, 280), 0, ctypes.create_string_buffer(128), 128)\ncall('ptrace', 0, 0, 0, 0)\nattempt(os.memfd_create, 'm')\ncall('inotify_init1', 0)"),
    Hostile("a-module-of-the-workspace", "print('ESCAPED' if os.environ.get('PYTHONPATH') else 'held')"),
]  # fmt: skip
OWN = [*NETWORK, *FILES, *PROCESSES]
RESTLESS = """
import os, signal, subprocess, sys, time
FIRST = os.getpid()
def write(name):
    n = 0
    while True:
        n += 1
        with open(f'n-{name}', 'w') as file: file.write(str(n))
def child(work, *arguments):
    if os.fork() == 0:
        try: work(*arguments)
        except OSError: pass
        os._exit(0)
def continue_all():
    while True:
        for name in os.listdir('/proc'):
            if name.isdigit():
                try: os.kill(int(name), signal.SIGCONT)
                except OSError: pass
def forks():
    while True:
        if os.fork() == 0:
            open(f'n-fork', 'a').write('x')
            os._exit(0)
        try: os.waitpid(-1, os.WNOHANG)
        except OSError: pass
def racer():
    for n in range(100000):
        if os.fork(): os._exit(0)
        with open('n-racer', 'w') as file: file.write(str(n))
def orphans():
    while True:
        if os.fork() == 0:
            os.setpgid(0, 0)
            data = bytearray(30 << 20)
            if os.fork() == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
                with open('n-orphan', 'a') as file: file.write('x')
                os._exit(0)
            time.sleep(0.01)
            os._exit(0)
        os.wait()
def spawns():
    while True: subprocess.run(['/bin/true'])
def swaps():
    os.mkdir('swap'); os.mkdir('kept'); open('kept/x', 'w').close()
    while True:
        os.rename('swap', 'other'); os.symlink('@OUTSIDE@', 'swap')
        open('other/y', 'w').close()
        os.unlink('swap'); os.rename('other', 'swap')
        os.rename('kept', 'aside'); os.symlink('@OUTSIDE@', 'kept'); os.unlink('kept'); os.rename('aside', 'kept')
child(write, 'a'); child(write, 'b'); child(continue_all); child(forks); child(racer); child(orphans); child(spawns); child(swaps)
print('going', flush=True)
for line in sys.stdin: print('here', flush=True)
"""
"""Never still: it writes, forks, spawns, lets others go on, leaves stopped orphans, and swaps folders for links."""
