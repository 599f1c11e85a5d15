"""The sub-verbs of ``gpubox bench``."""
