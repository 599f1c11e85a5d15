# ruff: noqa: E501 - a program is easier to read as the lines it has
"""Programs that plant what the owner's tools run later, a project to plant it in, and the owner's tools.

``@PROOF@`` is a file that what is planted makes once it runs. What a tool of an editor or an agent would obey cannot be
run here: there it counts as run if its text still holds the word ``@PROOF@`` stands for.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import subprocess
import sys
from pathlib import Path

from tests.hostile.world import snapshot

HELPERS = """
import importlib.util, marshal, os, shutil, sys, time
PROOF = "@PROOF@"
RUN = f"touch {PROOF}"
EVIL = f"open({PROOF!r}, 'w').close()\\n"
CONFIG = f"[core]\\n repositoryformatversion = 0\\n fsmonitor = {RUN}; false\\n pager = {RUN}\\n"
def W(path, text=RUN + "\\n", mode="w"):
    if os.path.dirname(path): os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, mode) as file: file.write(text)
def T(what, *words):
    try: what(*words)
    except OSError as error: print("refused", error)
def REPO(path, extra=""):
    for name in ("objects", "refs"): os.makedirs(f"{path}/{name}", exist_ok=True)
    W(f"{path}/HEAD", "ref: refs/heads/main"); W(f"{path}/config", CONFIG + extra)
RENAME = os.rename
def MV(old, new):
    try: RENAME(old, new)
    except OSError as error:
        if error.errno != 18: raise
        shutil.copytree(old, new, symlinks=True); shutil.rmtree(old)
os.rename = MV  # a mount over a folder renames none of its folders
def PYC(path, source=None, flags=None):
    header = open(source, "rb").read(16) if source else importlib.util.MAGIC_NUMBER + bytes([1]) + bytes(11)
    W(path, header + marshal.dumps(compile(EVIL, "x", "exec")), "wb")
TAG = sys.implementation.cache_tag
"""
PLANTS = {
    # renames of what was there
    "folder to .git": "REPO('config'); os.rename('config', '.git2'); os.rename('.git2', 'plain/.git')",
    "folder to .git at once": "REPO('config'); os.rename('config', 'plain/.git')",
    "folder to .vscode": "W('src/hooks/tasks.json'); os.rename('src/hooks', 'src/.vscode')",
    "file to .envrc": "W('notes'); os.rename('notes', 'src/.envrc')",
    "file over .env": "W('t'); os.replace('t', '.env')",
    "folder to venv": "W('info/bin/activate'); W('info/pyvenv.cfg'); os.rename('info', 'src/venv')",
    "folder to node_modules": "W('info/.bin/tsc'); os.rename('info', 'src/node_modules')",
    "folder to .GIT": "REPO('info'); os.rename('info', 'plain/.GIT')",
    "parts into a repository": "REPO('r'); os.rename('r/config', 'c'); os.rename('info', 'plain/info'); [os.rename('r/' + n, 'plain/' + n) for n in ('HEAD', 'objects', 'refs')]; W('plain/config', CONFIG + ' bare = false\\n worktree = .')",
    "the rest of a repository": "REPO('src'); W('src/hooks/post-index-change'); W('src/hooks/.envrc')",
    "config of a half repository": "W('half/config', CONFIG + ' bare = false\\n worktree = .'); os.mkdir('half/objects'); os.mkdir('half/refs')",
    "deep folder up": "W('a/b/c/.kiro/hooks/x.json'); os.rename('a/b', 'b')",
    "number used again": "os.unlink('notes'); W('src/.envrc')",
    # links
    "link to a repository": "REPO('x'); os.symlink('../x', 'plain/.git')",
    "another name of the owner's": "T(W, 'docs/agents.txt', RUN, 'a'); T(os.rename, 'docs', 'd'); T(W, 'd/agents.txt', RUN, 'a')",
    "where a link of the owner's leads": "T(W, 'guide/rules.txt', RUN, 'a'); T(os.unlink, 'guide/rules.txt'); T(os.rename, 'guide', 'd'); T(W, 'guide/rules.txt'); T(W, 'd/rules.txt', RUN, 'a')",
    "link to a text": "W('notes'); os.symlink('../notes', 'src/.envrc')",
    "hard link to a text": "W('notes'); os.link('notes', 'src/.env')",
    "link as bytecode": "PYC('n', '__pycache__/mine.' + TAG + '.pyc'); T(os.unlink, '__pycache__/mine.' + TAG + '.pyc'); os.symlink('../n', '__pycache__/mine.' + TAG + '.pyc')",
    "hard link as bytecode": "PYC('n', '__pycache__/mine.' + TAG + '.pyc'); os.replace('n', '__pycache__/mine.' + TAG + '.pyc')",
    "append to a store": "T(W, 'shared/common.py', EVIL, 'a')",
    "truncate a store": "T(os.truncate, 'shared/common.py', 0); T(W, 'shared/common.py', EVIL)",
    "store through another name": "T(os.link, 'shared/common.py', 'mine2'); T(W, 'mine2', EVIL, 'a'); T(os.rename, 'shared', 'moved'); T(W, 'moved/common.py', EVIL, 'a'); T(os.rename, 'moved', 'shared')",
    "store in node_modules": "T(W, 'node_modules/left/index.js', RUN, 'a')",
    "mode of a store": "T(os.chmod, 'shared/common.py', 0o777); T(os.utime, 'shared/common.py', (1, 1))",
    # modes
    "blind root": "REPO('plain/.git'); os.chmod('.', 0o311)",
    "shut root": "W('src/.envrc'); os.chmod('.', 0)",
    "shut folder": "W('src/.vscode/tasks.json'); os.chmod('src', 0)",
    "folder without write": "W('src/AGENTS.md'); os.chmod('src', 0o555)",
    "folder without search": "W('a/b/.envrc'); os.chmod('a/b', 0o400); os.chmod('a', 0o600)",
    "shut file": "W('src/.envrc'); os.chmod('src/.envrc', 0)",
    "open to all": "os.chmod('src', 0o777); os.chmod('notes', 0o777); os.chmod('.', 0o777); W('src/.env')",
    # bytecode and modules
    "bytecode with its header": "PYC('__pycache__/mine.' + TAG + '.pyc', '__pycache__/mine.' + TAG + '.pyc')",
    "bytecode of a package": "PYC('pkg/__pycache__/__init__.' + TAG + '.pyc', 'pkg/__pycache__/__init__.' + TAG + '.pyc')",
    "bytecode that is not checked": "PYC('pkg/__pycache__/part.' + TAG + '.pyc')",
    "bytecode without source": "os.unlink('pkg/part.py'); PYC('pkg/part.pyc')",
    "bytecode with old times": "p = '__pycache__/mine.' + TAG + '.pyc'; s = os.stat(p); PYC(p, p); os.utime(p, ns=(s.st_atime_ns, s.st_mtime_ns))",
    "caches from elsewhere": "os.rename('__pycache__', 'c'); shutil.copytree('c', 'd'); PYC('d/mine.' + TAG + '.pyc', 'c/mine.' + TAG + '.pyc'); os.rename('d', '__pycache__')",
    "package before a module": "W('mine/__init__.py', EVIL)",
    "module of Python's": "W('json.py', EVIL)",
    "package of Python's": "W('json/__init__.py', EVIL)",
    "sitecustomize": "W('sitecustomize.py', EVIL)",
    "usercustomize as a package": "W('usercustomize/__init__.py', EVIL)",
    # virtual environments
    "activate": "T(W, 'venv/bin/activate', RUN + '\\n', 'a')",
    "path file": "T(W, f'venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/x.pth', 'import os; ' + EVIL)",
    "python of the environment": "T(os.unlink, 'venv/bin/python'); T(W, 'venv/bin/python', '#!/bin/sh\\n' + RUN)",
    "environment elsewhere": "T(os.rename, 'venv', 'v'); W('src/venv/bin/activate'); W('src/venv/pyvenv.cfg')",
    "environment of another name": "W('tools/pyvenv.cfg'); W('tools/bin/activate'); W('tools/lib/site-packages/x.pth', 'import os; ' + EVIL)",
    "hidden environment": "W('.venv/bin/activate'); W('.venv/pyvenv.cfg')",
    # editors and agents
    "editors": "[W(p) for p in ('a.code-workspace', 'src/.idea/workspace.xml', '.exrc', '.nvim.lua', '.dir-locals.el', '.zed/tasks.json', 'x.sublime-project', '.lvimrc', '.editorsettings/run')]",
    "agents": "[W(p) for p in ('AGENTS.md', 'src/CLAUDE.md', 'GEMINI.md', '.cursorrules', '.cursor/rules/x.mdc', '.kiro/hooks/x', '.clinerules', '.goosehints', 'crush.json', 'opencode.json', '.junie/guidelines.md', '.mcp.json', '.rules')]",
    "agents of tomorrow": "[W(p) for p in ('.agent-of-2031/hooks.json', 'src/.newrules', '.github/copilot-instructions.md', '.github/hooks/x.json', '.aiderules')]",
    "hooks": "[W(p) for p in ('lefthook.yaml', '.husky/pre-commit', '.pre-commit-config.yaml', 'lefthook-local.toml', '.overcommit.yml')]",
    "managers": "[W(p) for p in ('bunfig.toml', '.npmrc', 'src/.yarnrc.yml', '.pnpmfile.cjs', '.cargo/config.toml', 'devbox.json', '.bundle/config')]",
    "shells": "[W(p) for p in ('src/.envrc', '.env', 'mise.toml', '.tool-versions', '.autoenv.zsh', 'src/.bashrc', '.env.local', '.python-version')]",
    "the owner's settings": "T(W, '.vscode/settings.json'); T(W, '.envrc', RUN, 'a'); T(os.unlink, '.envrc'); T(os.rename, '.vscode', 'v'); T(W, '.vscode/tasks.json')",
    # worktrees, submodules, attributes
    "worktree": "REPO('x', ' bare = false\\n worktree = .'); W('plain/.git', 'gitdir: ../x')",
    "worktree of the owner's": "T(W, 'tree/.git', 'gitdir: ../x'); T(os.unlink, 'tree/.git'); REPO('x', ' bare = false\\n worktree = .')",
    "worktree with its parts elsewhere": "REPO('x', ' bare = false\\n worktree = .'); W('y/HEAD', 'ref: refs/heads/main'); W('y/commondir', '../x'); W('plain/.git', 'gitdir: ../y')",
    "settings of a worktree": "T(W, '.git/config', '[extensions]\\n worktreeConfig = true\\n', 'a'); T(W, '.git/config.worktree', CONFIG); T(W, '.git/worktrees/tree/config.worktree', CONFIG)",
    "submodule": "W('.gitmodules', '[submodule \"s\"]\\n path = s\\n url = ./s\\n update = !' + RUN); REPO('s/.git')",
    "submodule of the owner's": "T(W, 'sub/.git/config', CONFIG, 'a'); T(os.rename, 'sub', 'gone'); REPO('sub/.git')",
    "hooks of git": "T(W, '.git/hooks/post-index-change', '#!/bin/sh\\n' + RUN); T(os.chmod, '.git/hooks/post-index-change', 0o755); T(W, '.git/config', CONFIG, 'a')",
    "git attributes": "W('.gitattributes', '* filter=x'); T(W, '.git/info/attributes', '* filter=x'); T(W, '.git/config', f'[filter \"x\"]\\n clean = {RUN}; cat\\n', 'a'); W('notes', 'changed')",
    "other systems": "[W(p) for p in ('plain/.hg/hgrc', '.svn/x', 'src/_darcs/prefs', '.jj/repo/config.toml')]",
    # while it ends, and many
    "child left behind": "if os.fork() == 0:\n    time.sleep(0.2); REPO('late/.git'); W('late/.envrc'); time.sleep(60)\ntime.sleep(0.4)",
    "far down": "for n in range(60): os.mkdir(f'd{n}'); os.chdir(f'd{n}')\nREPO('.git'); W('.envrc')",
    "among many": "for n in range(1500): W(f'many/{n % 40}/f{n}', 'x')\nW('many/7/.envrc'); os.unlink('notes')",
}  # fmt: skip
PLANTS |= {
    # against the layer itself
    "whiteouts by hand": "T(os.mknod, 'w', 0o20000, 0); T(os.mknod, 'notes2', 0o20000 | 0o666, os.makedev(0, 0)); W('src/.envrc')",
    "a rename that leaves a whiteout": "import ctypes; libc = ctypes.CDLL(None); libc.syscall(316 if os.uname().machine == 'x86_64' else 276, -100, b'notes', -100, b'n2', 4); W('src/.envrc')",
    "opaque by hand": "os.mkdir('src/new'); [T(os.setxattr, p, f'{k}.overlay.opaque', b'y') for p in ('src', 'src/new') for k in ('user', 'trusted')]; W('src/.envrc')",
    "redirect by hand": "os.mkdir('o'); [T(os.setxattr, 'o', f'{k}.overlay.redirect', b'/.git') for k in ('user', 'trusted')]; T(W, 'o/config', CONFIG, 'a'); W('src/.envrc')",
    "metacopy by hand": "W('m'); [T(os.setxattr, 'm', f'user.overlay.{n}', b'/notes') for n in ('metacopy', 'redirect', 'origin', 'upper', 'whiteout')]; W('src/.envrc')",
    "escaped attributes": "W('m'); T(os.setxattr, 'm', 'user.overlay.overlay.opaque', b'y'); W('src/.envrc')",
    "the way to the layer": "os.path.isdir('/oldroot') and T(W, f'/oldroot{PROOF}'); [T(W, '/proc/' + p + '/root' + PROOF) for p in ('1', 'self', '2')]; T(W, '../project/notes'); W('src/.envrc')",
    "by the owner's own path": "here = os.readlink(os.path.dirname(PROOF) + '/project') if os.path.islink(os.path.dirname(PROOF) + '/project') else '.'; T(W, os.path.dirname(PROOF) + '/project/notes', RUN); W('src/.envrc')",
    "by descriptors": "fd = os.open('.git', os.O_RDONLY); T(os.rename, '.git', 'g'); T(lambda: os.open('config', os.O_WRONLY | os.O_APPEND, dir_fd=fd)); W('src/.envrc')",
    "mapped and shared": "import mmap; f = open('notes', 'r+b'); m = mmap.mmap(f.fileno(), 4); m[:4] = b'EVIL'; m.flush(); W('src/.envrc')",
    "opened before it is copied up": "r = open('notes'); W('notes', RUN); T(os.fchmod, r.fileno(), 0o777); T(os.utime, r.fileno(), (1, 1)); W('src/.envrc')",
    "punched and sized": "fd = os.open('notes', os.O_RDWR); T(os.posix_fallocate, fd, 0, 1 << 20); T(os.ftruncate, fd, 0); W('src/.envrc')",
    "cloned and linked": "import fcntl; fd = os.open('notes', os.O_RDWR); T(fcntl.ioctl, fd, 0x40049409, os.open('mine.py', os.O_RDONLY)); T(os.link, 'notes', 'src/.envrc'); W('src/.envrc')",
    "flags of files": "import fcntl, struct; fd = os.open('notes', os.O_RDONLY); T(fcntl.ioctl, fd, 0x40086602, struct.pack('l', 0x40)); W('src/.envrc')",
    # names and kinds
    "folder in the place of a file": "os.unlink('notes'); REPO('notes/.git')",
    "file in the place of a folder": "shutil.rmtree('src'); W('src')\nT(shutil.rmtree, 'plain'); W('plain/.envrc')",
    "link in the place of a folder": "shutil.rmtree('src'); os.symlink('/', 'src'); W('plain/.envrc')",
    "link to the home": "os.symlink(os.path.expanduser('~'), 'h'); T(W, 'h/.bashrc'); W('plain/.envrc')",
    "folder removed and made again": "shutil.rmtree('src'); W('src/.envrc')",
    "all is removed": "[shutil.rmtree(n, True) if os.path.isdir(n) and not os.path.islink(n) else os.unlink(n) for n in os.listdir('.')]; W('.envrc')",
    "all is moved": "os.mkdir('in'); [T(os.rename, n, 'in/' + n) for n in os.listdir('.') if n != 'in']; W('.envrc')",
    "names that are no text": "W(b'\\xff\\xfe'.decode('utf-8', 'surrogateescape')); W('a\\nb'); W('\\x1b[2J'); W('src/.envrc')",
    "long names": "W('x' * 255); W('/'.join(['y' * 200] * 15) + '/z'); W('src/.envrc')",
    "our own names": "W('.gpubox-0000000000000000.tmp'); W('up/x'); W('work/x'); W('steps.json'); W('src/.envrc')",
    "case and marks": "W('plain/.gIt/config', CONFIG); W('src/\\u200c.envrc'); W('plain/\\uff0egit/config', CONFIG); W('src/.envrc')",
    # who runs what
    "git exclude and alternates": "T(W, '.git/objects/info/alternates', '/x'); T(W, '.git/info/exclude', '*'); T(W, '.git/config', CONFIG, 'a')",
    "git head and index": "T(os.unlink, '.git/index'); T(W, '.git/HEAD', 'ref: refs/heads/evil'); T(W, '.git/config', CONFIG, 'a')",
    "git by git": "import subprocess; subprocess.run(['git', 'config', 'core.fsmonitor', RUN + '; false'], check=False); subprocess.run(['git', 'config', 'alias.x', '!' + RUN], check=False); T(W, '.git/config', CONFIG, 'a')",
    "pip and setuptools": "W('setup.py', EVIL); W('setup.cfg'); W('conftest.py', EVIL); W('src/.envrc')",
    "make and friends": "[W(n, f'all:\\n\\t{RUN}') for n in ('Makefile', 'GNUmakefile', 'justfile', 'Rakefile', 'build.rs', 'Dockerfile', 'Vagrantfile')]; W('src/.envrc')",
    "node": "W('package.json', '{\"scripts\": {\"preinstall\": \"%s\"}}' % RUN); W('.yarn/releases/yarn.cjs'); W('.pnpmfile.cjs'); W('.npmrc')",
    "systemd and desktop": "W('x.desktop'); W('.config/autostart/x.desktop'); W('.local/bin/git'); W('src/.envrc')",
    "python in folders": "W('.venv/lib/site.py', EVIL); W('pkg/__main__.py', EVIL); W('shared/__init__.py', EVIL); W('sitecustomize.py', EVIL)",
    "the environment's own": "T(W, 'venv/pyvenv.cfg', 'home = /tmp'); T(W, 'venv/bin/pip'); T(W, 'venv/bin/activate', RUN, 'a')",
    # time and order
    "old times": "W('src/.envrc'); os.utime('src/.envrc', (1, 1)); os.utime('src', (1, 1)); os.utime('.', (1, 1))",
    "same size and time": "s = os.stat('notes'); W('notes', 'EVIL'); os.utime('notes', ns=(s.st_atime_ns, s.st_mtime_ns)); W('src/.envrc')",
    "times of what is not touched": "T(os.utime, '.git/config', (1, 1)); T(os.utime, 'shared/common.py', (1, 1)); T(os.utime, 'CLAUDE.md', (1, 1)); W('src/.envrc')",
    "modes of all": "[T(os.chmod, os.path.join(p, n), 0o777) for p, ds, fs in os.walk('.') for n in fs + ds if not os.path.islink(os.path.join(p, n))]; W('src/.envrc')",
    "owners of all": "[T(os.chown, os.path.join(p, n), 0, 0) for p, ds, fs in os.walk('.') for n in fs + ds]; W('src/.envrc')",
    "killed in the middle": "import signal; W('src/.envrc'); open('notes', 'w').write('half'); REPO('plain/.git'); os.sync(); os.fork() or os.kill(os.getpid(), signal.SIGKILL)",
}  # fmt: skip
HARMLESS = {
    "mode of a store",
    "caches from elsewhere",
    "git attributes",
    "far down",
    "other systems",
    "shut root",
    "shut file",
}
HARMLESS |= {"folder to .GIT", "killed in the middle", "all is moved", "all is removed"}
"""Those that need not run anything where nothing confines them, or only where the sandbox's Python is the owner's."""
SOURCE = {"truncate a store", "append to a store", "store through another name", "where a link of the owner's leads"}
SOURCE |= {"module of Python's", "package of Python's", "package before a module", "python in folders"}
"""Those that change nothing but source or text, which the owner reads in the diff and runs himself."""
OBEYED = (
    "*/.vscode/*", "*/.idea/*", "*.code-workspace", "*/.exrc", "*/.nvim.lua", "*/.dir-locals.el", "*/.zed/*", "*.sublime-project",
    "*/.lvimrc", "*/.editorsettings/*", "*/AGENTS.md", "*/CLAUDE.md", "*/GEMINI.md", "*/.cursorrules", "*/.cursor/*", "*/.kiro/*",
    "*/.clinerules", "*/.goosehints", "*/crush.json", "*/opencode.json", "*/.junie/*", "*/.mcp.json", "*/.rules",
    "*/.agent-of-2031/*", "*/.newrules", "*/.github/*", "*/.aiderules", "*/lefthook*", "*/.husky/*", "*/.pre-commit-config.yaml",
    "*/.overcommit.yml", "*/bunfig.toml", "*/.npmrc", "*/.yarnrc.yml", "*/.pnpmfile.cjs", "*/.cargo/*", "*/devbox.json",
    "*/.bundle/*", "*/mise.toml", "*/.tool-versions", "*/.python-version", "*/.env.*", "*/node_modules/*", "*/.hg/*", "*/.svn/*",
    "*/_darcs/*", "*/.jj/*", "*/bin/python", "*/.gitmodules", "*/.autoenv.zsh", "*/.bashrc", "*/pyvenv.cfg",
)  # fmt: skip
ENTERED = ("/.envrc", "/.env", "/bin/activate", "/.bashrc")
"""What a shell with hooks reads in each folder that it enters."""
IMPORTS = "import mine, pkg, pkg.part, shared.common, json, sys; sys.path.append('.'); import site; site.execsitecustomize(); site.execusercustomize()"
LOOK = "import site, sys; [site.addsitedir(path) for path in sys.argv[1:]]"


class Project:
    """The owner's project, with all that programs reach for. ``outside`` is the store that it has hard links to."""

    def __init__(self, root: Path) -> None:
        self.folder, self.outside, self.proof = root / "project", root / "store", root / "proof"
        self.text = (HELPERS + "@CODE@").replace("@PROOF@", str(self.proof))
        work = self.folder
        for name in ("config", "src/hooks", "info", "plain", "half", "shared", "node_modules/left", "pkg", ".vscode", "docs", "guide"):  # fmt: skip
            (work / name).mkdir(parents=True, exist_ok=True)
        self.outside.mkdir()
        for name, text in (
            ("notes", "mine"), ("mine.py", ""), ("pkg/__init__.py", ""), ("pkg/part.py", ""), ("half/HEAD", "ref: refs/heads/main"),
            (".envrc", "true"), (".vscode/settings.json", "{}"), ("info/exclude", "x"), ("src/hooks/pre", "x"),
        ):  # fmt: skip
            (work / name).write_text(text)
        (work / "docs/agents.txt").write_text("mine")
        os.link(work / "docs/agents.txt", work / "docs/AGENTS.md")
        (work / "guide/rules.txt").write_text("mine")
        (work / "CLAUDE.md").symlink_to("guide/rules.txt")
        for name in ("shared/common.py", "node_modules/left/index.js"):
            (self.outside / Path(name).name).write_text("")
            os.link(self.outside / Path(name).name, work / name)
        for name in (".", "sub"):
            subprocess.run(["git", "init", "-q", "-b", "main", str(work / name)], check=True)
        git = ["git", "-c", "user.name=o", "-c", "user.email=o@o", "-C", str(work)]
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
        subprocess.run([*git, "worktree", "add", "-q", "tree"], check=True, capture_output=True)
        packages = work / f"venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        packages.mkdir(parents=True)
        (work / "venv/bin").mkdir()
        for name in ("bin/activate", "pyvenv.cfg"):
            (work / "venv" / name).write_text("true\n")
        self._python(IMPORTS)
        self.before = self.snapshot()

    def program(self, name: str) -> str:
        return self.text.replace("@CODE@", PLANTS[name])

    def snapshot(self) -> dict[str, object]:
        """All that the owner could notice of the project and of the store."""
        return {
            f"{top.name}/{path}": facts for top in (self.folder, self.outside) for path, facts in snapshot(top).items()
        }

    def work_in_it(self) -> list[str]:
        """The owner's tools in every folder. Returns what they ran or obeyed of what was planted."""
        obeyed = []
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_COUNT": "1"}
        env |= {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        for parent, _, names in os.walk(self.folder):
            for argv in (["git", "status"], ["git", "log"]) if ".git" not in parent.split("/") else ():
                subprocess.run(argv, cwd=parent, env=env, capture_output=True, check=False)
            for name in names:
                path = Path(parent, name)
                with contextlib.suppress(OSError):
                    text = path.read_text(errors="replace")
                    if str(self.proof) in text and any(fnmatch.fnmatch(str(path), pattern) for pattern in OBEYED):
                        obeyed.append(str(path))
                    if str(path).endswith(ENTERED):
                        subprocess.run(
                            ["bash", "-c", '. "$0"', str(path)], cwd=parent, capture_output=True, check=False
                        )
            if parent.endswith("site-packages"):
                self._python(LOOK, parent)
        self._python(IMPORTS)
        return [*obeyed, *(["something ran"] if self.proof.exists() else [])]

    def _python(self, *arguments: str) -> None:
        """Python as the owner starts it in the project; its bytecode stays as it is afterwards."""
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder), "PYTHONNOUSERSITE": "1"}
        subprocess.run([sys.executable, "-c", *arguments], cwd=self.folder, env=env, capture_output=True, check=False)
