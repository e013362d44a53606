"""Seeds of random draws."""

import hashlib


def derive_seed(*words: object) -> int:
    """A 63-bit seed from a purpose, task, seed, ...: equal words give equal seeds, any other word another."""
    digest = hashlib.blake2b("\x1f".join(str(word) for word in words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
