"""The README's promises that a machine can check."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_exactly_the_readme_test_command() -> None:
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    prepare, tests = re.findall(r'^(?:prepare|tests)="(.*)"$', ci, re.M)

    assert f"{prepare} && {tests}" in README


def test_every_verb_of_the_readme_exists() -> None:
    from gpubox.cli.main import VERBS

    code = "\n".join(match[0] for match in re.finditer(r"^```sh\n.*?^```|`[^`\n]+`", README, re.M | re.S))
    commands = set(re.findall(r"\bgpubox ([a-z]{2,})", code))

    assert commands <= set(VERBS)
    assert all(re.search(rf"`(gpubox )?{verb}\b", README) for verb in VERBS)


def test_every_client_of_the_readme_is_known_to_connect() -> None:
    from gpubox.cli.main import SECTIONS
    from gpubox.interchange.client_settings import CLIENTS, client_name

    (readme,) = re.findall(r"^gpubox connect .*# the settings of a client: ([^;]*)", README, re.M)
    help_text = SECTIONS["Clients"]["connect"].removeprefix("print the settings of ").removesuffix(" for the gateway")
    for listed in (readme, help_text):
        clients = re.split(r", | or ", listed)
        assert len(clients) > 5
        assert {client_name(client) for client in clients} <= set(CLIENTS)


def test_the_readme_is_short_and_its_pictures_are_there() -> None:
    assert len(README.splitlines()) < 250
    for picture in re.findall(r"\((assets/[^)]+)\)", README):
        assert (ROOT / picture).is_file()
