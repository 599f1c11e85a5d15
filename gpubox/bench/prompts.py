"""The fixed prompts of all speed measurements (``prompts.toml``), and filler text."""

from __future__ import annotations

import random
from pathlib import Path

from gpubox.toml_table import parse_toml

_TEXTS = parse_toml(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
GAME_PROMPT: str = _TEXTS["game"]
SPEED_PROMPTS: dict[str, str] = _TEXTS["speed"]
SPEED_TOKENS = {"short": 128, "medium": 512, "long": 2048, "code": 512}
"""Tokens to generate for each."""
CHAT_PROMPTS: dict[str, tuple[str, ...]] = {domain: tuple(texts) for domain, texts in _TEXTS["chat"].items()}
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
