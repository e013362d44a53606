"""Order by content: pseudo-random, yet the same whatever else is in the data and in which order it came."""

import json
from functools import cache
from hashlib import blake2b

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
