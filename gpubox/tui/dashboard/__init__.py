"""The dashboard: one pane, one file.

screen.py           header, progress of the operation, the panes, the key bar; its `show_...` methods feed the panes
layout.py           the table of panes, and which of them are shown; a new pane is a file and a line there
dashboard.tcss      their sizes and frames, by the classes of width, height and state
operation_line.py   the line under the header: what happens, else the most urgent advice
welcome.py          what the profiles pane asks an owner who has no profile
profiles.py         the profiles pane: profiles, broken files, models without a profile
detail.py           the details pane of the highlighted profile
vram.py             the VRAM pane: a bar for each device
offload.py          the CPU offload pane: experts on the CPU, threads, disk reads, what slows the server
throughput.py       the throughput pane: state and speed now
graph.py            the throughput graph: time axis, event marks
requests.py         the requests pane, and every field of one request
request_history.py  live and stored requests as one list, and its filter
history.py          brings the history to the panes
log.py              the log pane
"""
