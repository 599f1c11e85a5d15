"""Runs a program so that it cannot hurt the box: confinement by the kernel, not a list of forbidden words.

``await Sandbox(config).run(code, Policy(workspace=folder))`` gives an Outcome; everything else here serves that line.
"""
