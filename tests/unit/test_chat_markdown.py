"""What ``/share`` writes."""

from gpubox.agent import events as e
from gpubox.agent.chat_log import ChatLog, Turn, TurnHeader
from gpubox.agent.tools import ToolCall, ToolOutput
from gpubox.views.chat_markdown import chat_markdown


def document(*events: e.AgentEvent, text: str = "Why?") -> str:
    header = TurnHeader("t1", "", "2026-11-28T10:00:00Z", text, profile="qwen")
    return chat_markdown(ChatLog("parser", turns={"t1": Turn(header, list(events))}, head="t1"))


def run(**arguments: object) -> e.ToolFinished:
    given = {name: str(value) for name, value in arguments.items()}
    call = ToolCall("1", "run", dict(given), given.get("code") or given.get("command", ""))
    return e.ToolFinished(call, ToolOutput("ok\n```\nstill inside"))


def test_a_chat() -> None:
    answer = e.MessageAdded(e.Message("assistant", "<think>no</think>Because."))
    shown = document(answer, text="Why\x1b[31m\nso?")
    assert shown == "# parser\n\n## Why so?\n\n_qwen · 2026-11-28T10:00:00Z_\n\n> Why\n> so?\n\nBecause.\n"


def test_a_command_is_not_python_and_no_output_ends_its_fence() -> None:
    assert "**run**\n\n```bash\nls -l\n```\n\n````\nok\n```\nstill inside\n````" in document(run(command="ls -l"))
    assert "```python\nprint()\n```" in document(run(code="print()"))


def test_no_name_of_a_file_ends_its_code_span_or_its_row() -> None:
    names = "plain.py", "a`b.md", "a``b\n# heading"
    shown = document(e.FilesChanged(tuple(e.ChangedFile(name, "new", 1) for name in names)))
    rows = [line for line in shown.splitlines() if line.startswith("- ")]
    assert rows == ["- `plain.py` new +1", "- `` a`b.md `` new +1", "- ``` a``b␊# heading ``` new +1"]
    assert not any(line.startswith("# heading") for line in shown.splitlines())
