"""Judges what runs: evidence -> one word, one sentence and the flags to change.

advisor.py         gathers the evidence about one profile and asks the rules
evidence.py        all that the rules may look at: readings of the last minutes, how a launch was built and ended
advice.py          what a rule is, and what the advisor says
dismissed.py       the advice that the owner dismissed for good
"""
