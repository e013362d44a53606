"""Rows of a data set: their text, when two texts are the same, and an order by content.

That order is pseudo-random, yet the same whatever else is in the data and in which order it came.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any
from unicodedata import category

SPLITS = ("train", "dev", "test")
# why rows were dropped, in a message
MOST_REASONS = 8
# categories of Unicode: vowel signs, emoji and + or < make another text, punctuation and white space don't
LETTERS, CONTENT = "LN", "LMNS"
QUOTES = str.maketrans("", "", "`´")

Row = dict[str, str | None]


def content(row: Row) -> tuple[str | None, str | None]:
    """The text of a row, both sentences."""
    return row["sentence1"], row.get("sentence2")


def letters(row: Row, kept: str = LETTERS) -> tuple[str | None, ...]:
    """The letters and digits of a row's text, in one case, or what else is to be kept of it."""
    # Data sets made from the same sentences space and quote them differently ("it 's", "it's"): with case and
    # white space alone evened out, half of what MR's test shares with SST-2's training data would go unseen.
    return tuple(text and (_kept(text, kept) or text) for text in content(row))


def _kept(text: str, kept: str) -> str:
    return "".join(letter for letter in text.translate(QUOTES).casefold() if _category(letter) in kept)


@cache
def _category(letter: str) -> str:
    return category(letter)[0]


def text_key(row: Row) -> bytes:
    """Fingerprint of a row's text without punctuation, by which texts are called the same across splits and sets."""
    return fingerprint(letters(row, CONTENT))


def place(row: Row) -> int:
    """Where a row stands in a table: a number that depends on its content alone."""
    return rank(("table",), (*content(row), row["label"]))


def capped(rows: list[Row], most: int) -> list[Row]:
    """At most `most` rows (0 for all): always the same ones, in the order of a table."""
    return sorted(rows, key=place)[: most or None]


def bare(row: Row) -> Row:
    """A row as samples hold it: sentence1, sentence2, label."""
    return {name: row.get(name) for name in ("sentence1", "sentence2", "label")}


BITS = 64


def rank(purpose: tuple[str | int, ...], content: tuple[str | None, ...]) -> int:
    """Give `content` a fixed number in [0, 2**64) that is unrelated to its number for any other purpose."""
    return int.from_bytes(blake2b(_bytes(content), key=_key(purpose), digest_size=BITS // 8).digest(), "big")


def fingerprint(content: tuple[str | None, ...]) -> bytes:
    """Give 16 bytes that stand for `content`, to compare many texts without holding them."""
    return blake2b(_bytes(content), digest_size=16).digest()


@cache
def _key(purpose: tuple[str | int, ...]) -> bytes:
    # hashed once more because a key may have 64 bytes at most, and a task's name may be longer
    return blake2b(_bytes(purpose), digest_size=32).digest()


def _bytes(values: tuple[str | int | None, ...]) -> bytes:
    # JSON keeps ("ab", "c") and ("a", "bc") apart; a lone surrogate, which UTF-8 cannot hold, becomes an escape
    return json.dumps(values).encode("ascii")


def dropped_in(card: Mapping[str, Any], splits: Collection[str] = SPLITS) -> Counter[str]:
    """Reason -> how many rows of these splits a table was made without, by its card."""
    return sum((Counter(reasons) for split, reasons in card["dropped"].items() if split in splits), Counter())


def describe_dropped(dropped: Counter) -> str:
    """Why rows were dropped, in words, the most frequent reason first."""
    reasons = [f"{reason}: {count:,}" for reason, count in dropped.most_common()]
    return ", ".join(reasons[:MOST_REASONS] + [f"{len(reasons) - MOST_REASONS} more"] * (len(reasons) > MOST_REASONS))
