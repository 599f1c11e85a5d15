"""The words, marks, rows and JSON of values, once for the screen and the verbs. Nothing here reads, prints or draws.

changes.py    what a turn changed, and what became of it
chat_markdown.py  a chat as one Markdown document
clients.py    the gateway's clients and their requests
documents.py  a title, a verdict, tables, charts and notes: as rows, Markdown, CSV, JSON or SVG
fields.py     a value as JSON, by the names of its fields
figures.py    what each figure of the screen is, whether it is good here, and what moves it
history.py    sums, requests and slowdowns of the past
marks.py      the one table of marks: memory verdicts, speed verdicts, grades, checks
memory.py     a memory plan in words, as a table and as JSON
models.py     models on this machine and on Hugging Face
profile.py    a profile: its row in a list, all of it, two side by side
requests.py   a request, a slot and the memory of a device in short words, for panes and verbs
rows.py       a table: its header and its rows
runs.py       stored runs as documents: a report, two compared, leaderboards, the frontier
status.py     what runs now
unknown_reasons.py  why a number is not known
"""
