"""``gpubox tune``: a kind of benchmark with a verb of its own."""

from gpubox.bench.kinds.tune import KIND
from gpubox.cli.bench.kinds import kind_command

command = kind_command(KIND)
