"""gpubox: the control room of a home GPU box. Beside the packages, the modules that all of them may use.

config.py       config.toml and the API key: every setting, its default and limits (stop-seconds, load-seconds ...)
paths.py        where every file and folder is that gpubox reads or writes
storage.py      files on disk: read, replace in a single step, lock; JSON that others wrote
toml_table.py   the owner's TOML files, read against one declaration; their errors, their JSON Schema
toml_edit.py    changes single values of a TOML text; all other lines stay
errors.py       the errors that the owner sees, and the exit codes
sanitize.py     makes untrusted text harmless for a terminal
units.py        numbers and sizes as text
clock.py        the time as it is written to disk and to JSON; time without suspends
notify.py       tells the owner of crashes, rollbacks, finished runs: ntfy or a webhook
json_rpc.py     JSON-RPC over two streams: how agents and tools are spoken to
address.py      the address of a server as people write it -> its root URL
children.py     how gpubox starts its own programs, and the environment that an engine gets
concurrency.py  work in threads beside the event loop; work that a signal cancels
sequences.py    what two sequences have in common
line_diff.py    the lines that differ between two contents of a file, byte for byte
__main__.py     `python -m gpubox`
"""

__version__ = "0.1.0"
