"""What a machine can check in the documents for readers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_exactly_the_readme_test_command() -> None:
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    prepare, tests = re.findall(r'^(?:prepare|tests)="(.*)"$', ci, re.M)

    assert f"{prepare} && {tests}" in README


def test_every_client_of_the_guide_is_known_to_connect() -> None:
    from gpubox.cli.main import SECTIONS
    from gpubox.interchange.client_settings import CLIENTS, client_name

    guide = (ROOT / "docs/gateway.md").read_text(encoding="utf-8")
    (readme,) = re.findall(r"^gpubox connect .*# the settings of a client: ([^;]*)", guide, re.M)
    help_text = SECTIONS["Clients"]["connect"].removeprefix("print the settings of ").removesuffix(" for the gateway")
    for listed in (readme, help_text):
        clients = re.split(r", | or ", listed)
        assert len(clients) > 5
        assert {client_name(client) for client in clients} <= set(CLIENTS)


def test_the_documents_are_short_and_their_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 120
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 40
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for place, part in re.findall(r"\]\(([^):#]*)#?([^)]*)\)", document.read_text(encoding="utf-8")):
            target = document.parent / place if place else document
            assert target.exists(), (document, place)
            headings = re.findall(r"^#+ (.*)", target.read_text(encoding="utf-8"), re.M) if part else [part]
            assert part in [re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings], (document, part)


def test_what_the_code_says_stands_in_the_documents() -> None:
    """Verbs, keys, settings and the map of the code. `python docs/generate.py` writes them."""
    done = subprocess.run([sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_files_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The map")[0]
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text))

    assert {name for name in named if not ((ROOT / "gpubox" / name).exists() or (ROOT / name).exists())} == set()


def test_the_way_from_a_key_press_names_what_the_code_has() -> None:
    """One file a step, at most twelve, each with the names that the step gives."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    way = text.partition("## From a key press")[2].partition("## Other flows")[0]
    steps = re.findall(r"^\d+\. `(\S+\.py)`(.*(?:\n   .*)*)", way, re.M)
    assert 10 <= len(steps) <= 12
    for name, does in steps:
        code = (ROOT / "gpubox" / name).read_text(encoding="utf-8")
        names = set(re.findall(r"`([A-Za-z_]+)`", does)) - {"GPUBOX_SERVER"}
        assert {each for each in names if each not in code} == set(), name
