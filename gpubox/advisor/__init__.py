"""Judges what runs: evidence -> one word, one sentence and the flags to change.

advisor.py         gathers the evidence about one profile and asks the rules
evidence.py        all that the rules may look at
busy_window.py     the readings of the last minutes in which the server worked
log_facts.py       how a launch was built and loaded, and how the last failed one ended
context_saving.py  what a smaller context would free
advice.py          what the advisor says
dismissed.py       the advice that the owner dismissed for good
"""
