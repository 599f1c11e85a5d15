"""What this machine's servers did, in one SQLite file of raw rows: written by one gpubox, read by all.

values.py       the frozen values that the history answers with
file.py         the rows and tables, how the file is opened, and how a damaged one is set aside
tables.py       what the one writer inserts and updates, and when rows are pruned
writer.py       the writer's thread: Snapshots in, one transaction a second
missed_logs.py  the requests of launches that no gpubox watched, from their logs
queries.py      graph, marks, requests and sums, asked of the raw rows
slowdowns.py    since when a profile is slower, and what changed then
"""
