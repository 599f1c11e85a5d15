"""Runs a model's program so that it cannot harm the box: the kernel confines it, no list of forbidden words.

``await Sandbox(config).run(code, Policy(workspace=folder))`` returns an Outcome.
"""
