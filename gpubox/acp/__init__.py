"""Other programs' coding agents, hosted here, and gpubox's own agent in other programs: the Agent Client Protocol."""
