"""Profile -> the arguments of llama-server. Pure: no engine is asked, no file is read."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from gpubox.profiles.multi_value_flags import multi_value_argv
from gpubox.profiles.profile import FlagValue, Profile

SAMPLING_FLAGS = {
    "temperature": "temp",
    "top_p": "top-p",
    "top_k": "top-k",
    "min_p": "min-p",
    "typical_p": "typical-p",
    "presence_penalty": "presence-penalty",
    "frequency_penalty": "frequency-penalty",
    "repeat_penalty": "repeat-penalty",
    "seed": "seed",
}
"""``[sampling]`` keys (the API's names) -> llama-server's option for the same default."""

FLAGS_WITHOUT_NO = frozenset({"metrics"})
"""Flags that gpubox adds and llama-server has no ``--no-`` for: false says that gpubox shall not."""
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW", re.I)
"""Environment variables whose values are shown to nobody."""


def redacted_env(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` for the eye: what is secret by its name is ``***``."""
    return {name: "***" if SECRET_NAME.search(name) else value for name, value in env.items()}


def flag_argv(name: str, value: FlagValue, again: frozenset[str] = frozenset()) -> list[str]:
    """One flag: ``ctx-size, 4096`` -> ``--ctx-size 4096``; True bare; False ``--no-``; a tuple all its values.

    ``again`` names the flags that the engine wants repeated where newer builds take a list.
    """
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--{name.removeprefix('no-')}" if name.startswith("no-") else f"--no-{name}"]
    if isinstance(value, tuple):
        return multi_value_argv(name, map(_word, value), again)
    return [f"--{name}", _word(value)]


def server_argv(
    profile: Profile,
    model: Sequence[str],
    *,
    port: int | None = None,
    defaults: Mapping[str, FlagValue] | None = None,
    again: frozenset[str] = frozenset(),
) -> list[str]:
    """The arguments after the binary's name.

    ``model`` is what stands for the model (``["--model", PATH]``), ``port`` the one really used where the
    profile says 0, ``defaults`` the flags that gpubox adds because the engine has them and the profile is
    silent, ``again`` the flags that the engine wants once for each of several values. Order: model, address,
    the profile's flags as written, sampling, template kwargs, defaults.
    """
    argv = [*model, "--host", profile.host, "--port", str(profile.port if port is None else port)]
    for name, value in profile.flags.items():
        if value is not False or name not in FLAGS_WITHOUT_NO:
            argv += flag_argv(name, value, again)
    for key, number in profile.sampling.items():
        if SAMPLING_FLAGS[key] not in profile.flags:
            argv += flag_argv(SAMPLING_FLAGS[key], number)
    if profile.chat.template_kwargs and "chat-template-kwargs" not in profile.flags:
        argv += ["--chat-template-kwargs", json.dumps(dict(profile.chat.template_kwargs))]
    for name, value in (defaults or {}).items():
        argv += flag_argv(name, value)
    return argv


def command_line(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """``argv`` (binary included) as one line to paste into a shell, with the profile's env in front."""
    words = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    return " ".join([*words, *(shlex.quote(word) for word in argv)])


def _word(value: int | float | str) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
