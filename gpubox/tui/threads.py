"""Blocking work beside the screen."""

from gpubox.threads import in_thread as in_thread
