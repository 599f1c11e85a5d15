"""Runs a model's program so that it cannot harm the box: the kernel confines it.

``await Sandbox(config).run(code, Policy(workspace=folder))`` returns an Outcome.
"""
