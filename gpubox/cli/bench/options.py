"""Options that several verbs of ``gpubox bench`` have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Verb = TypeVar("Verb", bound=Callable[..., Any])
MAX_PARALLEL = 256
"""More requests at once than any box has slots for."""

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
_NOW = click.option("--now", is_flag=True, help="Begin although somebody is being answered: that answer is cut off.")
_REPORT = click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
_URL = click.option("--url", help="Measure any OpenAI-compatible server by its address.")
_MODEL = click.option("--model", default="", help="With --url: the model to ask for.")


def run_options(verb: Verb) -> Verb:
    """``--now`` and ``--json``: of every kind of run."""
    return _NOW(_REPORT(verb))


def endpoint_options(verb: Verb) -> Verb:
    """``--url`` and ``--model``: of the kinds that can measure a server of somebody else's."""
    return _URL(_MODEL(verb))
