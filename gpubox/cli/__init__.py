"""The command line: every verb of the screen, with --json and exit codes.

entry.py         the console script; polled `gpubox status` and the screen start without click
interrupts.py    Ctrl-C before, during and after the work
main.py          the groups of verbs, and how a command line is run; a new verb is a file in commands/ and a line here
context.py       paths, configuration and profiles of one command line
options.py       options that several verbs have
output.py        the only writer of stdout
diagnostics.py   the only writer of stderr, and the exit codes
terminal.py      both, sanitized
operations.py    runs the Supervisor for a verb: progress, outcome, download of the model
mcp_server.py    the box as an MCP server: each of its tools is a verb
sandboxed.py     one program over a layer that is thrown away
chat_turn.py     one chat turn from a prompt to its exit code
chat_changes.py  what the turns of a chat changed: diff, take, drop, undo, redo
chat_output.py   chats as text: the events of a turn, and stored chats
"""
