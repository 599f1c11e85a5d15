"""The gateway: one address for all clients, whose profiles change behind it.

gateway.py          answers clients at one address, and has profiles brought up when requests name them
listening.py        where it listens, and how many clients may come
http_connection.py  the client's side: reads requests within limits, writes replies
client_request.py   one request: to a server, its reply back, its line in the ledger
routes.py           what a request asks for, and how its errors look
watching.py         what the box's screen shows, for keys that may watch
offers.py           which models the gateway offers to a client, and the client's settings
own_replies.py      what the gateway answers by itself: models, metrics, control
changes.py          what the gateway changes in a request and its reply: parameters, personas, the model's name
upstream.py         the server's side: one connection for one request
reply_observer.py   tokens, their first moment and timings in the bytes of a reply
admission.py        which request may go where now, and which profile comes next
profile_servers.py  the servers behind the gateway: when one is started, and unloaded when idle
servers.py          what runs, from the state files; the profiles, from theirs
placement.py        where a profile starts, and which servers stop for it
operations.py       runs operations in child processes, which wait for the next one
operation.py        such a child: starts profiles and unloads them
prefix.py           what a prompt begins with: system prompts that agents share, conversations
slots.py            the slots of one server: what they hold, and the gateway's own requests to them
conversations.py    which conversation a request continues; its KV is put back before, and saved before it is lost
client_keys.py      the clients' keys: names and hashes
agent_keys.py       the keys of the agents that gpubox starts: made at the first need, and kept
ledger.py           a line for each finished request, their sums, and how many days are kept
request_clients.py  which client a request of the server's log, or of the history, came from
gateway_status.py   what the gateway knows now, and what it reports: frozen values
metrics.py          the gateway and the machine for Prometheus
gateway_client.py   asks the running gateway; for verbs and the screen
offered_models.py   what a profile's model is: its header, its context, what it reads
ollama.py           Ollama's API: its requests as OpenAI's, and the replies back
background.py       starts the gateway apart from this terminal; systemd: its units, its socket, what it is told
units/              the units' texts
"""
