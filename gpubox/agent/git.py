"""Commits what the owner took, with his own git, outside the sandbox and only after his yes; and the message for it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gpubox.agent.completion import open_requester
from gpubox.agent.conversation import Conversation
from gpubox.agent.settings import AgentSettings
from gpubox.agent.timing import TurnTimings
from gpubox.agent.tools import Tool
from gpubox.errors import GpuboxError
from gpubox.sandbox.owners_git import hooks_folder, run_git
from gpubox.sanitize import sanitize_text
from gpubox.server.client import LlamaClient

_SECONDS = 600
"""The owner's hooks may test everything."""
_DIFF_CHARACTERS = 6000
MAX_MESSAGE_TOKENS = 300
_ASK = (
    "Write the message of a git commit of these changes: a subject of at most 70 characters and, if needed, an empty "
    "line and a few lines that say why. Answer with the message alone; call no tool.\n\n"
)


async def propose_message(
    conversation: Conversation,
    diffs: Mapping[str, str],
    settings: AgentSettings,
    tools: Sequence[Tool],
    client: LlamaClient,
) -> str:
    """The model's message for a commit of ``diffs``. The chat does not keep the question. Raises GpuboxError."""
    timings = TurnTimings(conversation, time.perf_counter)
    requester = await open_requester(client, conversation, settings, tools, lambda _: None, timings)
    reply = await requester.ask_aside(_ASK + "".join(diffs.values())[:_DIFF_CHARACTERS], MAX_MESSAGE_TOKENS)
    if text := sanitize_text(reply.visible).strip().strip("`").strip():
        return text
    raise GpuboxError("The model proposed no message.", "Write one.")


def changed_hooks(root: Path, taken: Iterable[str]) -> list[str]:
    """Those of the ``taken`` paths that are hooks of git in the folder ``root``: a commit may run them."""
    hooks = hooks_folder(root)
    return sorted(path for path in taken if hooks and path.startswith(f"{hooks}/") and (root / path).is_file())


def commit_paths(root: Path, paths: Sequence[str], message: str) -> str:
    """Commits ``paths`` as they are in the folder ``root``, nothing else, and returns what git printed.

    Paths that git ignores are left out. Raises GpuboxError with git's own words.
    """
    named = {f"./{path}": path for path in paths}  # so that none is taken for a pattern
    ignored = set(_git(root, ["check-ignore", "-z", "--stdin"], list(named), ok=(0, 1)).split("\0"))
    wanted = [path for name, path in named.items() if name not in ignored]
    if not wanted:
        raise GpuboxError("There is nothing to commit: git ignores what was taken.")
    from_stdin = ["--pathspec-from-file=-", "--pathspec-file-nul"]
    _git(root, ["--literal-pathspecs", "add", *from_stdin], wanted)
    return _git(root, ["--literal-pathspecs", "commit", "--only", f"--message={message}", *from_stdin], wanted).strip()


def _git(root: Path, arguments: Sequence[str], paths: Sequence[str], ok: Sequence[int] = (0,)) -> str:
    try:
        done = run_git(root, arguments, paths, _SECONDS)
    except FileNotFoundError:
        raise GpuboxError("git is not installed.", "Install it, or commit by yourself.") from None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise GpuboxError(f"git {_verb(arguments)} did not end well: {error}.") from None
    if done.returncode not in ok:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise GpuboxError(f"git {_verb(arguments)} failed: {said[:2000]}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _verb(arguments: Sequence[str]) -> str:
    return next(argument for argument in arguments if not argument.startswith("-"))
