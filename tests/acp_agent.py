"""A coding agent of a few lines that speaks ACP, good or broken: ``python acp_agent.py FAULT STATE``.

A prompt says what the good one does: ``read``, ``edit``, ``run`` (asks first), ``write``, ``slow`` (until cancelled),
``plan``, ``think``, ``recall``. Each fault is what its name says. It imports nothing of gpubox.
"""

# mypy: disable-error-code="func-returns-value, var-annotated, arg-type"
from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

FAULT, STATE = sys.argv[1], Path(sys.argv[2])
OUT = sys.stdout.buffer
SESSION = "s-1"
last_id = 100
backlog: list[dict[str, Any]] = []


def raw(data: bytes) -> Any:
    OUT.write(data)
    OUT.flush()


def send(**message: Any) -> Any:
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def update(what: str, session: Any = SESSION, **fields: Any) -> Any:
    send(method="session/update", params={"sessionId": session, "update": {"sessionUpdate": what, **fields}})


def say(text: Any) -> Any:
    update("agent_message_chunk", content={"type": "text", "text": text})


def receive() -> dict[str, Any]:
    if backlog:
        return backlog.pop(0)
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    return dict(json.loads(line))


def ask(method: str, **params: Any) -> Any:
    """The answer of the client to a request; what comes before it waits."""
    global last_id
    last_id += 1
    send(id=last_id, method=method, params={"sessionId": SESSION, **params})
    waiting = []
    while True:
        message = receive()
        if message.get("id") == last_id and "method" not in message:
            backlog[:0] = waiting
            return message.get("result", message.get("error"))
        if message.get("method") == "session/cancel" and method == "session/request_permission":
            waiting.append(message)
            continue
        waiting.append(message)


OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


def permission(**changes: Any) -> str:
    call = {
        "toolCallId": "t-run",
        "title": "python3 calc.py",
        "kind": "execute",
        "rawInput": {"command": "python3 calc.py"},
    }
    answer = ask("session/request_permission", **{"toolCall": call, "options": OPTIONS, **changes})
    outcome = (answer or {}).get("outcome") or {}
    return str(outcome.get("optionId", outcome.get("outcome")))


def call(number: str, status: str, kind: Any = "other", **fields: Any) -> Any:
    update("tool_call_update", toolCallId=number, status=status, kind=kind, **fields)


def turn(text: str) -> str:
    """Does what the prompt says; returns the stop reason."""
    here = Path.cwd()
    seen = [*json.loads(STATE.read_text()), text] if STATE.exists() else [text]
    STATE.write_text(json.dumps(seen))
    if "plan" in text:
        update(
            "plan", entries=[{"content": "look", "status": "completed"}, {"content": "mend", "status": "pending"}, 7]
        )
    if "think" in text:
        update("agent_thought_chunk", content={"type": "text", "text": "Hm."})
    if "read" in text:
        update("tool_call", toolCallId="t-read", title=f"Read {here}/calc.py", kind="read", status="pending")
        answer = ask("fs/read_text_file", path=f"{here}/calc.py", line=1, limit=1)
        call(
            "t-read", "completed", content=[{"type": "content", "content": {"type": "text", "text": answer["content"]}}]
        )
    if "edit" in text:
        old = (here / "calc.py").read_text()
        (here / "calc.py").write_text(old.replace("-", "+"))
        diff = {"type": "diff", "path": f"{here}/calc.py", "oldText": old, "newText": old.replace("-", "+")}
        call("t-edit", "completed", "edit", title="Edit calc.py", content=[diff])
    if "write" in text:
        ask("fs/write_text_file", path=f"{here}/new/note.txt", content="made\n")
    if "run" in text:
        chosen = permission()
        ran = chosen in ("yes", "always")
        if ran:
            (here / "ran.txt").write_text("ran\n")
        call("t-run", "completed" if ran else "failed")
        say(f"[{chosen}]")
        if chosen == "cancelled":
            return "cancelled"
    if "model" in text:
        body = {"model": os.environ["ROBOT_MODEL"], "messages": [], "max_tokens": 2, "pace": 1000}
        headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
        url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            say(f"{answer.status} in {here}, home {os.environ['HOME']}. ")
    if "slow" in text:
        say("slowly")
        while receive().get("method") != "session/cancel":
            pass
        return "cancelled"
    if "recall" in text:
        say(" | ".join(seen[:-1]))
        say(f" << {text}")
        return "end_turn"
    say("Done.")
    return "end_turn"


def flood(make: Any) -> Any:
    while True:
        make()


DEEP = b'{"jsonrpc":"2.0","method":"session/update","params":' + b"[" * 5000 + b"]" * 5000 + b"}\n"
AT_START: dict[str, Any] = {
    "garbage": lambda: flood(lambda: raw(os.urandom(4096))),
    "greeting without end": lambda: flood(lambda: raw(b"Welcome!\n")),
    "half a line": lambda: (raw(b'{"jsonrpc":"2.0","id":1,"res'), sys.exit(3)),
    "a line of 50 MB": lambda: raw(b"x" * 50_000_000 + b"\n"),
    "dead at once": lambda: (sys.stderr.write("no licence\n"), sys.exit(1)),
    "silent": lambda: time.sleep(600),
    "stdout closed": lambda: (os.close(1), time.sleep(600)),
}
IN_ANSWER: dict[str, Any] = {  # (method, the result instead)
    "initialize: null": ("initialize", None),
    "initialize: a list": ("initialize", [1]),
    "initialize: version 0": ("initialize", {"protocolVersion": 0}),
    "initialize: version 3": ("initialize", {"protocolVersion": 3}),
    "initialize: version in quotes": ("initialize", {"protocolVersion": "1"}),
    "initialize: version null": ("initialize", {"protocolVersion": None}),
    "initialize: version true": ("initialize", {"protocolVersion": True}),
    "new: null": ("session/new", None),
    "new: a number": ("session/new", 7),
    "new: id is a number": ("session/new", {"sessionId": 7}),
    "new: id is empty": ("session/new", {"sessionId": ""}),
    "new: id is endless": ("session/new", {"sessionId": "s" * 100_000}),
    "prompt: null": ("session/prompt", None),
    "prompt: a list": ("session/prompt", []),
    "prompt: reason is a number": ("session/prompt", {"stopReason": 7}),
}
IN_TURN: dict[str, Any] = {
    "text without end": lambda: flood(lambda: say("x" * 100_000)),
    "thinking without end": lambda: flood(
        lambda: update("agent_thought_chunk", content={"type": "text", "text": "x" * 100_000})
    ),
    "calls without end": lambda: flood(lambda: call(f"c{time.time_ns()}", "in_progress", title="t")),
    "updates without end": lambda: flood(lambda: [update("nothing") for _ in range(500)]),
    "questions without end": lambda: flood(permission),
    "garbage in a turn": lambda: flood(lambda: raw(b"\x00\xff" * 2000 + b"\n")),
    "dead after text": lambda: (say("and"), sys.exit(9)),
    "killed": lambda: (say("and"), os.kill(os.getpid(), 9)),
    "half a line in a turn": lambda: (raw(b'{"jsonrpc"'), sys.exit(0)),
    "a line of 50 MB in a turn": lambda: raw(b'"' + b"x" * 50_000_000 + b'"\n'),
    "silent in a turn": lambda: time.sleep(600),
    "dead in a permission": lambda: (
        send(id=5, method="session/request_permission",
             params={"sessionId": SESSION, "toolCall": {"toolCallId": "t"}, "options": OPTIONS}),
        sys.exit(2),
    ),
    "wrong ids": lambda: ([send(id=n, result={}) for n in range(500, 600)], time.sleep(600)),
}  # fmt: skip
HARMLESS: dict[str, Any] = {  # the turn goes on
    "unknown updates": lambda: [update("sparkles", x=1), update(7), update(None)],
    "updates of wrong types": lambda: [
        send(method="session/update", params=p)
        for p in ([], {}, *({"sessionId": SESSION, **more} for more in ({}, {"update": []}, {"update": 7})))
    ],
    "text of wrong types": lambda: [say(7), say(None), say({"a": 1}), update("agent_message_chunk", content=[])],
    "calls of wrong types": lambda: [
        update("tool_call"), update("tool_call", toolCallId=7), update("tool_call", toolCallId=None, title=7),
        call("w1", "completed", title=["a"], content={"a": 1}, locations=7, rawInput=[1]),
        call("w2", "sideways", kind=[], content=[7, None, {"type": "diff"}, {"type": "content"}, {"type": "terminal"}]),
    ],
    "plans of wrong types": lambda: [update("plan", entries=e) for e in (7, None, [[]], [{"content": 7}])],
    "offers of wrong types": lambda: [
        update("available_commands_update", availableCommands=c) for c in (7, [7], [{"name": 7}], [{"name": "ok"}])
    ] + [update("config_option_update", configOptions=c) for c in (7, [7], [{"id": 7}], [{"id": "x", "options": 7}])]
      + [update("current_mode_update", currentModeId=m) for m in (7, None, "nowhere")],
    "negative numbers": lambda: [
        update("usage_update", used=-5, size=-1), update("usage_update", used=10**30, size=10**30),
        update("usage_update", used=float("inf")),
    ],
    "deep JSON": lambda: raw(DEEP),
    "surrogates": lambda: [say("\ud800 x"), call("s", "completed", title="\udfff", rawInput={"\ud800": "\udfff"})],
    "control codes": lambda: call("c", "completed", title="\x1b[2J\x1b]0;hi\x07\nred", kind="\x1b[31m"),
    "a call that ends twice": lambda: [call("d", each, title="once") for each in ("completed", "completed", "failed")],
    "many plans and titles": lambda: [
        [update("plan", entries=[{"content": "x" * 300 + str(n)}] * 90), call("many", "in_progress", title=f"t{n}"),
         update("available_commands_update", availableCommands=[{"name": f"c{n}", "description": "d" * 300}] * 90)]
        for n in range(1000)
    ],
    "a call that never ends": lambda: call("n", "in_progress", title="hangs"),
    "other sessions": lambda: [
        update("agent_message_chunk", session=s, content={"type": "text", "text": "FOREIGN"})
        for s in ("s-2", 7, [], {})
    ],
    "permission without options": lambda: [permission(options=o) for o in ([], None, 7, [7], [{"name": "x"}])],
    "permission without a call": lambda: [permission(toolCall=c) for c in (None, 7, {}, {"toolCallId": 7})],
    "permission of another session": lambda: permission(sessionId="s-2"),
    "options of one name": lambda: permission(options=[{**each, "name": "Same"} for each in OPTIONS]),
    "unknown requests": lambda: [ask("terminal/create", command="sh"), ask("x/y"), ask("fs/delete", path="/")],
    "two answers": lambda: [send(id=1, result={}), send(id=2, error={"code": 1, "message": "no"})],
    "requests without parameters": lambda: [
        send(id=900, method="fs/read_text_file"), send(id=901, method="fs/read_text_file", params=[]),
        send(id=None, method="fs/read_text_file", params={}), send(id={"a": 1}, method="x", params=7),
    ],
}  # fmt: skip
SECRETS = (
    "/etc/passwd",
    "../secret",
    "a/../../secret",
    "link.txt",
    "dir-link/passwd",
    "",
    "/",
    "x\0y",
    "~/.bashrc",
    7,
    None,
)


def steal() -> None:
    """Tries to read and to write what is not in the workspace, and says what it got."""
    for name, target in (("link.txt", "/etc/passwd"), ("dir-link", "/etc")):
        if not os.path.lexists(name):
            Path(name).symlink_to(target)
    got = []
    for path in SECRETS:
        full = str(Path.cwd() / path) if isinstance(path, str) and path[:1] not in ("/", "~", "") else path
        for value in (path, full):
            got += [
                str(ask("fs/read_text_file", path=value)),
                str(ask("fs/write_text_file", path=value, content="OWNED")),
            ]
    say("STOLEN" if any("root:" in each or each == "None" for each in got) else "nothing")
    for name in ("link.txt", "dir-link"):
        Path(name).unlink()


def main() -> None:
    if FAULT in AT_START:
        AT_START[FAULT]()
    while True:
        message = receive()
        method, number, params = message.get("method"), message.get("id"), message.get("params", {})
        if f"dead in {method}" == FAULT:
            sys.stderr.write(f"panic in {method}\n")
            sys.exit(4)
        if f"silent in {method}" == FAULT:
            time.sleep(600)
        if f"refuses {method}" == FAULT:
            send(id=number, error={"code": -32603, "message": "Internal error", "data": {"details": "out of luck"}})
            continue
        if f"refuses {method} strangely" == FAULT:
            send(id=number, error="no")
            continue
        if FAULT in IN_ANSWER and IN_ANSWER[FAULT][0] == method:
            send(id=number, result=IN_ANSWER[FAULT][1])
            continue
        if method == "initialize":
            version = 2 if FAULT == "version 2" else 1
            capabilities: dict[str, Any] = {"loadSession": FAULT != "forgets", "promptCapabilities": {"image": False}}
            if FAULT == "resumes":
                capabilities["sessionCapabilities"] = {"resume": {}, "list": {}}
            about = {"name": "robot", "version": "1.0"}
            send(id=number, result={"protocolVersion": version, "agentCapabilities": capabilities, "agentInfo": about})
        elif method in ("session/new", "session/load", "session/resume"):
            if method == "session/load":
                if FAULT == "lost its sessions":
                    send(id=number, error={"code": -32602, "message": "no such session"})
                    continue
                say("REPLAYED")
            modes = {
                "currentModeId": "code",
                "availableModes": [{"id": "code", "name": "Code"}, {"id": "plan", "name": "Plan"}],
            }
            session = {"sessionId": SESSION} if method == "session/new" else {}
            send(id=number, result={**session, "modes": modes})
        elif method == "session/list":
            send(id=number, result={"sessions": [{"sessionId": SESSION, "title": "t"}, 7, {"sessionId": 7}]})
        elif method == "session/set_mode":
            STATE.with_suffix(".mode").write_text(params["modeId"])
            send(id=number, result={})
        elif method == "session/prompt":
            text = "".join(block.get("text", "") for block in params["prompt"])
            if FAULT in IN_TURN:
                IN_TURN[FAULT]()
            if FAULT == "never stops":
                say("on")
                flood(lambda: time.sleep(60))
            if FAULT == "dead in cancel":
                say("on")
                receive()
                sys.exit(5)
            if FAULT in HARMLESS:
                HARMLESS[FAULT]()
            if FAULT == "steals":
                steal()
            reason = turn(text)
            send(id=number, result={"stopReason": reason})
            if FAULT == "speaks after the end":
                say("LATE")
                call("late", "completed", title="late")
        elif number is not None:
            send(id=number, error={"code": -32601, "message": f"no {method}"})


if __name__ == "__main__":
    main()
