"""The server: its process, its state, its HTTP client, its log. Starts it, stops it, asks it; knows no model's insides.

supervisor.py            start, stop, restart, switch; a failed switch brings the old server back
held_instance.py         an instance under its lock: the steps that stop and start its server, and how long a stop waits
launch.py                Profile -> Launch, with every check while the old server still runs; engine and profile
server_process.py        the process: one group, one marker, one lock; SIGTERM, SIGKILL, VRAM given back
loading.py               waits until a launch is loaded and has answered, or makes no progress
trial.py                 a changed profile that is run once before it is written
events.py                what the Supervisor reports while it works
instance.py              what is true about one instance now
state.py                 the records on disk: server, launch of a log, gateway
status.py                what one server is and answers, and which key it gets
client.py                the HTTP client of one llama-server
http_get.py              plain HTTP for polling, without httpx
stream.py                one streamed completion
chunks.py                bytes of a stream -> Chunks
responses.py             what a llama-server answers with
other_server.py          a server of another kind: which, and what it reports
log.py                   the log file: rotate, read, fold, cut
log_parsing.py           log line -> event, from one table
log_events.py            these events
failure_causes.py        why a server did not start or died, in one sentence
verb_process.py          a verb of gpubox as a process, which a switch needs that outlives its front end
watcher.py               starts and ends the watcher of a server
watcher_idle.py          the program that waits for a death
watcher_recovery.py      the program that acts after one: how often a server is restarted, what is brought back
kept_kv.py               moves slot states to the disk and back, and judges from the log whether that helped
kv_key.py                which launch can take a kept state
kv_store.py              the folder of kept states
"""
