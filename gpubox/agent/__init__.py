"""The agent loop: what the model says and does in a chat.

chat.py           one open chat: its turns, its server, its file
loop.py           one turn: rounds of think, act, observe -> AgentEvents
budget.py         rounds, tokens and minutes of a turn, and the question to go on
completion.py     one request: body, stream, a second request where that helps, room in a full context
compaction.py     makes a long conversation short, mostly between two turns
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
tool_runner.py    runs them, after the owner's yes where one is needed
file_tools.py     list, read, edit, write
run_tools.py      run, search, test: programs in the Sandbox
search_program.py what search runs there
turn_tools.py     ask, done
edits.py          what an edit or a write makes of a file
edit_match.py     where in a file an edit belongs (pure)
mcp.py            tools of the owner's MCP servers, called by name
chat_work.py      the workspace of an open chat, opened at its first need
hosting.py        what a chat needs of another program's agent that answers it
workspace.py      the one folder that tools see, with the layers that take what they write
work.py           the files of one chat: its turns' layers, and what the owner takes of them
git.py            commits what was taken, and proposes the message
projects.py       what the owner has said about his projects, and they of themselves
chat_file.py      the file of an open chat, and the chat that is in it
chat_log.py       the records of a chat file, read back as a tree of turns
files_named.py    files that a prompt names with @: their names, and their text for the model
images.py         the images of a chat, kept beside it
journal.py        the only writer of a chat file
chat_files.py     the folder of chats: list, rename, branch, rewind, search
"""
