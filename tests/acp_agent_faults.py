"""The names of the faults of acp_agent.py, which imports nothing of the tests and starts fast."""

_METHODS = ("initialize", "session/new", "session/prompt")
ENDING = (
    "garbage", "greeting without end", "half a line", "a line of 50 MB", "dead at once", "silent", "stdout closed",
    "initialize: null", "initialize: a list", "initialize: version 0", "initialize: version 3",
    "initialize: version in quotes", "initialize: version null", "initialize: version true", "new: null",
    "new: a number", "new: id is a number", "new: id is empty", "new: id is endless", "prompt: null", "prompt: a list",
    "prompt: reason is a number", "text without end", "thinking without end", "calls without end",
    "updates without end", "questions without end", "garbage in a turn", "dead after text", "killed",
    "half a line in a turn", "a line of 50 MB in a turn", "silent in a turn", "dead in a permission", "wrong ids",
    *(f"{fault} {method}" for fault in ("dead in", "silent in", "refuses") for method in _METHODS),
    *(f"refuses {method} strangely" for method in _METHODS),
)  # fmt: skip
"""They end the turn with a sentence."""
HARMLESS = (
    "unknown updates", "updates of wrong types", "text of wrong types", "calls of wrong types", "plans of wrong types",
    "offers of wrong types", "negative numbers", "deep JSON", "surrogates", "control codes", "a call that ends twice",
    "a call that never ends", "other sessions", "permission without options", "permission without a call",
    "permission of another session", "options of one name", "unknown requests", "two answers", "many plans and titles",
    "requests without parameters",
)  # fmt: skip
"""The turn goes on."""
