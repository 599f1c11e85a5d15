"""Telemetry: readers of driver, host and server make Samples; the Sampler makes them Snapshots."""
