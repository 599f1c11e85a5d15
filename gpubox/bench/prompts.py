"""The fixed prompts of all speed measurements. Add prompts but never edit one: old numbers would lose their meaning."""

from __future__ import annotations

import random

GAME_PROMPT = (
    "Write a complete Space Invaders game as one HTML file with inline CSS and JavaScript: a canvas, a player ship, "
    "rows of invaders that move and shoot, shields, score, lives, levels and a game-over screen. Return only the file."
)
SPEED_PROMPTS = {
    "short": "Write a Python function that says whether a string is a valid IPv4 address. Explain it in a few words.",
    "medium": "Write a Python class for a binary search tree with insert, delete, search and in-order traversal. "
    "Add type hints, docstrings and a short explanation of each method's cost.",
    "long": "Write a Markdown to HTML converter in Python without libraries: headings, emphasis, links, images, nested "
    "lists, block quotes, code blocks, tables and escaping. Add a command line and unit tests for every feature.",
    "code": "Write a thread-safe LRU cache in Python with a time to live for each entry, statistics of hits and "
    "misses, a decorator for functions, and tests with pytest. Return only the code.",
}
SPEED_TOKENS = {"short": 128, "medium": 512, "long": 2048, "code": 512}
"""Tokens to generate for each."""
CHAT_PROMPTS: dict[str, tuple[str, ...]] = {
    "code": (
        "Write a Python function that reverses the words of a sentence in place.",
        "Write a SQL query for the three best paid employees of each department.",
        "Write a Bash script that renames all .jpeg files of a folder to .jpg.",
        "Implement binary search in C and state its invariant.",
        "Write a Rust function that counts the vowels of a string slice.",
        "Write a JavaScript debounce function and an example of its use.",
        "Write a Python generator of the Fibonacci numbers below a limit.",
        "Implement a queue with two stacks in Java.",
        "Write a regular expression for ISO 8601 dates and explain each part.",
        "Write a Go function that merges two sorted slices.",
        "Write a Python context manager that measures how long its block takes.",
        "Implement quicksort in Haskell and say where it wastes memory.",
        "Write a TypeScript type guard for an object with name and age.",
        "Write a Python function that flattens a nested list without recursion.",
        "Write a Dockerfile for a small Flask application.",
        "Write a unit test for a function that divides two numbers.",
        "Write a C++ template function that returns the larger of two values.",
    ),
    "math": (
        "A train goes 180 km in 2 hours and 240 km in 3 hours. What is its mean speed?",
        "Solve x^2 - 7x + 12 = 0 and check both roots.",
        "What is the sum of the first 100 odd numbers, and why?",
        "Differentiate f(x) = x^2 sin(x) step by step.",
        "A bag holds 5 red and 7 blue balls. Two are drawn. How likely are both red?",
        "Compute the integral of 1/(1+x^2) from 0 to 1.",
        "How many ways are there to seat 6 people at a round table?",
        "Prove that the square root of 2 is irrational.",
        "What is 17 % of 2,450, and how do you find it in your head?",
        "Find the greatest common divisor of 462 and 1071 with Euclid's algorithm.",
        "A rectangle's sides are as 3 to 4 and its diagonal is 25. What is its area?",
        "What is the remainder of 7^100 divided by 5?",
        "Solve the system 2x + 3y = 12 and x - y = 1.",
        "How many digits has 2^64?",
        "Explain why 0.999... equals 1.",
        "What is the expected number of coin flips until the first head?",
        "The numbers 2, 6, 12, 20, 30 follow a rule. What is the 20th?",
    ),
    "general": (
        "Explain how a refrigerator works to a child of ten.",
        "What are the main causes of the tides?",
        "Write a polite message that moves a meeting by one day.",
        "Compare tea and coffee in three short paragraphs.",
        "Why does bread rise, and what can go wrong?",
        "Plan a two-day visit to Lisbon for somebody who likes museums.",
        "What is the difference between weather and climate?",
        "Give five tips for learning a language by oneself.",
        "Summarise how the printing press changed Europe.",
        "What should one check before buying a used bicycle?",
        "Describe the life cycle of a star like the sun.",
        "Write a short story about a lighthouse keeper and a lost ship.",
        "How do vaccines teach the immune system?",
        "Explain inflation with an example from daily life.",
        "Which plants grow well on a balcony without much sun?",
        "What makes a good public library?",
    ),
}
"""Fifty chat prompts in three domains. The prompts are the sampling unit."""
_WORDS = (
    "river garden engine window paper mountain letter kitchen harbour signal forest bridge market teacher copper",
    "morning station village captain silver machine history doctor music summer island weather builder thunder shadow",
    "library valley pattern fabric stone orchard corner journey lantern meadow ticket hammer basket curtain planet",
    "carried opened measured followed painted counted repaired crossed answered gathered watched folded planted lifted",
    "quiet narrow bright distant heavy early gentle broken patient careful wooden sudden useful honest ancient common",
)


def filler_text(words: int, seed: int = 0) -> str:
    """So many words of random prose, the same for the same seed. No n-gram cache can predict it."""
    dice, vocabulary = random.Random(seed), " ".join(_WORDS).split()
    text: list[str] = []
    while len(text) < words:
        sentence = dice.choices(vocabulary, k=dice.randint(6, 14))
        text += [sentence[0].capitalize(), *sentence[1:-1], f"{sentence[-1]}."]
    return " ".join(text[:words])
