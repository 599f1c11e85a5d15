"""The agent loop: what the model says and does in a chat.

chat.py           one open chat: its turns, its server, its file
loop.py           one turn: rounds of think, act, observe -> AgentEvents
completion.py     one request: body, stream, a second request where that helps, room in a full context
events.py         the events of a turn and the messages of a chat
settings.py       limits, protocol, sampling and system prompt of a turn
conversation.py   the messages of a chat, and their form in a request
endpoint.py       which server answers
timing.py         where the time of a turn goes
reply_text.py     thinking and repetition in the text of a reply
code_answer.py    finds the code in a reply, for the chat and for benchmarks
tools.py          what a tool is, and which protocol a server gets
tool_calls.py     finds the calls in a reply and repairs their arguments
call_formats.py   the forms in which models write calls as text (pure)
tool_runner.py    approves and runs them, programs in the Sandbox among them
file_tools.py     lists, reads and searches files
edits.py          changes files
edit_match.py     where in a file an edit belongs (pure)
mcp.py            tools of the owner's MCP servers, called by name
workspace.py      the one folder that file tools may touch
chat_log.py       the records of a chat file, read back as a tree of turns
journal.py        the only writer of a chat file
chat_files.py     the folder of chats: list, rename, branch, rewind, search
"""
