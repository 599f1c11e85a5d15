"""The box as an MCP server (modelcontextprotocol.io): each tool is a verb, and answers what the verb prints."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from gpubox import __version__, units
from gpubox.cli.output import error_values
from gpubox.errors import GpuboxError, UsageError
from gpubox.json_rpc import BAD_PARAMETERS, NO_SUCH_METHOD, Peer, RpcError
from gpubox.paths import shipped
from gpubox.sanitize import sanitize_line, sanitize_text
from gpubox.server.responses import json_object
from gpubox.server.verb_process import run_json_verb, run_verb
from gpubox.toml_table import closest_match
from gpubox.views.marks import MEMORY

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
ASK_SECONDS = 600.0
"""For a person who is asked about a switch."""
_CANCELLED = "notifications/cancelled"
_AT_ONCE = 4
"""Verbs that run at a time, besides a switch."""
_INSTRUCTIONS = (
    "gpubox runs local models on this machine's GPU. A profile is a model with the flags of its llama-server; one runs "
    "at a time. Look at `status` and `fit` before a `switch`: others may use what runs, perhaps you yourself."
)
_SECTIONS, _SECTION_CHARS = 5, 3000
"""Of the documentation, the best for a query."""


@dataclass(frozen=True, slots=True)
class VerbTool:
    """A tool. An argument's name begins with -- if it is an option, ends with [] if it is a list, with ! if needed."""

    verb: str
    description: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    def listed(self, name: str) -> dict[str, Any]:
        """As the protocol lists it."""
        text: dict[str, Any] = {"type": "string"}
        kinds = {full: {"type": "array", "items": text} if "[]" in full else text for full in self.arguments}
        properties = {_name(full): kinds[full] | {"description": says} for full, says in self.arguments.items()}
        required = [_name(full) for full in self.arguments if "!" in full]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        title, changes = name.replace("_", " ").capitalize(), self.verb == "switch"
        hints = {"title": title, "readOnlyHint": not changes, "destructiveHint": changes, "openWorldHint": False}
        says = {"title": title, "description": self.description, "inputSchema": schema}
        return {"name": name, **says, "annotations": hints}

    def words(self, given: Any) -> list[str]:
        """What follows the verb on its command line. Raises UsageError, with what a model can correct."""
        named = {_name(full): full for full in self.arguments}
        takes = (
            f"It takes: {', '.join(f'{_name(full)} ({says})' for full, says in self.arguments.items()) or 'nothing'}."
        )
        if not isinstance(given, dict):
            raise UsageError("The arguments are no JSON object.", takes)
        if unknown := given.keys() - named.keys():
            raise UsageError(f"There is no argument {min(unknown)!r}.", takes)
        options, rest = list[str](), list[str]()
        for name, full in named.items():
            value = given.get(name, [])
            texts = value if isinstance(value, list) else [value]
            if not all(isinstance(text, str) for text in texts) or (len(texts) > 1 and "[]" not in full):
                raise UsageError(f"{name} must be a text{', or a list of texts' * ('[]' in full)}.", takes)
            if "!" in full and not any(texts):
                raise UsageError(f"{name} is missing.", takes)
            option = full.startswith("--")
            (options if option else rest).extend(f"--{name}={text}" if option else text for text in texts)
        return [*options, "--", *rest]


def _name(full: str) -> str:
    return full.strip("-[]!")


_PROFILE = {"profile!": "the name of a profile, as the tool `profiles` lists it"}
TOOLS = {
    "status": VerbTool("status", "What runs on this GPU box now: profile, address, speed, slots, memory."),
    "profiles": VerbTool(
        "ls", "Lists the profiles (models with the flags of llama-server), and whether each can start and fits.",
        {"text": "only those whose name, title or description contains it"},
    ),
    "profile": VerbTool("show", "One profile: its command line, whether its engine accepts it, its figures.", _PROFILE),
    "fit": VerbTool(
        "fit", "Predicts a profile's memory on each device, and whether it fits. Starts nothing.",
        _PROFILE | {"--set[]": "plan with these flags, each NAME=VALUE, such as ctx-size=65536",
                    "--solve[]": "find the best value of these flags that fits, such as ctx-size, n-cpu-moe"},
    ),
    "bench_runs": VerbTool("bench ls", "All stored benchmark runs with their results, the newest last."),
    "bench_report": VerbTool(
        "bench show", "Reports a benchmark run, compares two (second against first), or ranks more.",
        {"runs[]": "ids of runs or parts of them; without any, the last run"},
    ),
    "docs": VerbTool("", "Searches gpubox's documentation.", {"query!": "words to search for"}),
    "switch": VerbTool(
        "switch", "Loads a profile in place of the one that runs, after asking the owner. If it does not load, the one "
        "before comes back. It may take minutes.", _PROFILE,
    ),
}  # fmt: skip


class McpBox:
    """One client's connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, options: Sequence[str], may_switch: bool
    ) -> None:
        """``options``: of gpubox itself, before each verb. ``may_switch``: without asking the owner."""
        self._options, self._may_switch, self._can_ask = options, may_switch, False
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._peer = Peer(reader, writer, self._answer, self._heed, title="The client", serves=True)

    async def run(self) -> str:
        """Until the client is gone: what runs then is cancelled, and a switch restores the old server. Returns why."""
        try:
            return await self._peer.run()
        finally:
            self._peer.close()

    def _heed(self, method: str, params: dict[str, Any]) -> None:
        if method == _CANCELLED:
            self._peer.cancel_answer(params.get("requestId"))

    async def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            return self._begin(params)
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [tool.listed(name) for name, tool in TOOLS.items()]}
        if method == "tools/call":
            return await self._call(params)
        raise RpcError(f"gpubox has no method {method!r:.80}.", NO_SUCH_METHOD)

    def _begin(self, params: dict[str, Any]) -> dict[str, Any]:
        asks = json_object(params.get("capabilities")).get("elicitation")
        wanted = params.get("protocolVersion")
        self._can_ask = isinstance(asks, dict) and (not asks or "form" in asks)
        return {
            "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "gpubox", "title": "gpubox", "version": __version__},
            "instructions": _INSTRUCTIONS,
        }

    async def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params.get("name")
        if not isinstance(name, str) or (tool := TOOLS.get(name)) is None:
            near = closest_match(str(name), TOOLS)
            hint = f"Did you mean {near}?" if near else f"There are: {', '.join(TOOLS)}."
            raise RpcError(f"There is no tool {name!r:.80}. {hint}", BAD_PARAMETERS)
        try:
            words = tool.words(params.get("arguments") or {})
            if not tool.verb:
                text, values = _search(words[1])
            elif tool.verb == "switch":
                text, values = await self._switch(words[1], json_object(params.get("_meta")))
            else:  # both forms at once: one for who reads, one for who computes
                text, values = await _all(self._text(*tool.verb.split(), *words), self._json(tool.verb, *words))
        except GpuboxError as error:
            text, values = f"{error.message} {error.hint}".strip(), error_values(error)
        content = [{"type": "text", "text": sanitize_text(text)}]
        return {"content": content, "structuredContent": values, "isError": values.get("ok") is False}

    async def _text(self, *words: str) -> str:
        async with self._room:
            return "\n".join(said.rstrip() for said in await run_verb(*self._options, *words) if said)

    async def _json(self, verb: str, *words: str) -> dict[str, Any]:
        async with self._room:
            return await run_json_verb(*self._options, *verb.split(), "--json", *words)

    async def _switch(self, name: str, meta: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        steps, token = count(1), meta.get("progressToken")
        if not self._may_switch:
            await self._ask(await self._question(name), name)

        def note(line: str) -> None:
            if token is not None:
                step = {"progressToken": token, "progress": next(steps), "message": line}
                self._peer.tell("notifications/progress", step)

        values = await run_json_verb(*self._options, "switch", "--json", "--", name, note=note)
        return values["message"], values

    async def _question(self, name: str) -> str:
        """What the owner is asked before a switch. Raises GpuboxError if it cannot be done."""
        asked = self._json("ls", "--", name), self._json("status"), self._json("clients")
        listed, now, asking = await _all(*asked)
        row = next((each for each in listed["profiles"] if each["name"] == name), None)
        if row is None:
            raise GpuboxError(listed["broken"].get(name) or f"There is no profile {name!r}.", "`profiles` lists them.")
        fits, old, slots = row["memory_verdict"], now["server"]["profile"], now["throughput"]
        if (why := row["refusal"]) or fits == "short":
            raise GpuboxError(why or f"{name} would not fit into memory.", "`fit` with solve finds flags that fit.")
        spare = f", {units.memory(row['memory_spare_bytes'])} to spare" if fits == "fits" else ""
        memory = "Whether it fits is unknown." if fits == "unknown" else f"Memory: {MEMORY[fits].meaning}{spare}."
        memory += " Its model is downloaded first." if row["model_fetchable"] and not row["model_present"] else ""
        if not now["server"]["pid"]:
            return f"Start {name}? Nothing runs now. {memory}"
        count, busy = slots["slots"], slots["busy_slots"]
        state = "may be busy" if busy is None else f"has {busy} of {count} slots busy" if busy else "is idle"
        clients = ", ".join(sorted({each["client"] for each in asking["live"] or ()}))
        who = f" Requests of: {clients}." if clients else ""
        return f"Switch from {old} to {name}? {old} {state}.{who} {memory}"

    async def _ask(self, question: str, name: str) -> None:
        """Raises GpuboxError unless the owner agrees."""
        if not self._can_ask:
            hint = f"The owner runs `gpubox switch {name}`, or lets this client switch: `gpubox mcp --allow switch`."
            raise GpuboxError(f"Nothing is changed: this client cannot ask the owner. {question}", hint)
        form = {"message": sanitize_line(question), "requestedSchema": {"type": "object", "properties": {}}}
        reply = await self._peer.request("elicitation/create", form, seconds=ASK_SECONDS, withdraw=_CANCELLED)
        if json_object(reply).get("action") != "accept":
            raise GpuboxError("Nothing is changed: the owner did not agree.", "Go on with what runs.")


async def _all(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results, after the end of all. Raises the first error."""
    done = await asyncio.gather(*work, return_exceptions=True)
    if errors := [each for each in done if isinstance(each, BaseException)]:
        raise errors[0]
    return done


def _search(query: str) -> tuple[str, dict[str, Any]]:
    """The sections of the documentation that have most words of ``query``."""
    sought, ranked = set(re.findall(r"\w[\w-]+", query.lower())), []
    for path in sorted(shipped("docs").glob("*.md")):
        for text in re.split(r"(?m)^(?=#{1,3} )", path.read_text(encoding="utf-8")):
            low, head = text.lower(), text.partition("\n")[0].lower()
            ranked.append((sum((word in low) + (word in head) for word in sought), -len(text), path.stem, text.strip()))
    best = [(page, text[:_SECTION_CHARS]) for score, _, page, text in sorted(ranked, reverse=True)[:_SECTIONS] if score]
    shown = "\n\n".join(f"[{page}]\n{text}" for page, text in best) or f"The documentation does not speak of {query!r}."
    return shown, {"sections": [{"page": page, "text": text} for page, text in best]}
