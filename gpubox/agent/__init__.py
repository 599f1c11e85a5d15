"""The agent: the loop of completions and tool calls, the tools, and the chats. It knows no screen."""
