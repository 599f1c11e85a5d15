"""Computes what servers and cards do from what they say: rates, memory, bottleneck, history. Nothing here draws.

snapshot.py          all readings of one moment: frozen values
sampler.py           reads all sources at one tick and returns a Snapshot
http_source.py       polls a server's HTTP side in a task of its own
log_source.py        follows the log of one launch
requests.py          the requests of a launch, from log events, and why a prompt was read again
request_queue.py     how long each request waited for its slot
speeds.py            speeds of slots, of all of them together, and of the session
offload.py           how the model is spread, and which part of the machine limits it
device_memory.py     the buffers that the log names, reconciled with the driver: the parts sum to the total
recent.py            ring buffers of the last minutes, for the live graph
recorder.py          recordings of Snapshots, written and read
history/             one SQLite file of raw rows: what the servers did in 90 days
"""
