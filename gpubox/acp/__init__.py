"""Other programs' coding agents, hosted here, and gpubox's own agent in other programs: the Agent Client Protocol.

protocol.py   the protocol's messages, as far as gpubox reads or writes them
"""
