"""Telemetry: the Sampler turns readings of driver, host and server into Snapshots."""
