"""The verbs, one file each; ``switch`` has those that start and stop.

switch.py   start, stop, restart, switch: what runs changes
status.py   what runs now, once, repeatedly, or into a recording
logs.py     the server's log
screen.py   no verb: the screen
demo.py     a small model on the embedded engine
doctor.py   what this machine has and what is missing
engines.py  list, build, choose and remove engines
completion.py  what a shell may complete, and its script
ls.py       the profiles, and whether they can start
show.py     one profile, two side by side, the schema
edit.py     change, copy, rename, delete a profile
import_.py  profiles from models, command lines and other programs' files
export.py   a profile in another program's format
find.py     models here and on Hugging Face
fit.py      the planned memory
advice.py   what to change
try_.py     run a change, then keep or revert it
tune.py     the fastest flags
bench.py    the group of the kinds of benchmark and of stored runs
history.py  sums, requests, what became slower
serve.py    the gateway
connect.py  settings of clients
launch.py   starts a coding agent at the gateway
keys.py     who may ask the gateway, and how much
clients.py  the gateway's clients and their requests
acp.py      the coding agent of an editor
mcp.py      the box for clients of the Model Context Protocol
web.py      the screen in a browser
chat.py     one prompt, and the stored chats
"""
