"""gpubox: the control room of a home GPU box."""

__version__ = "0.1.0"
