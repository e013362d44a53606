"""Predictions of completions, token by token, and their exact match.

Instead of logits a variant has a record for each token (TOKEN_RECORD), and instead of labels a test set has TARGETS.
"""

import numpy as np

# which row a token belongs to, counted from 0, and the token of the reference
TARGETS = np.dtype([("row", "<i4"), ("target", "<i4")])
# the most probable token, its probability, and the natural logarithm of that of the reference
TOKEN_RECORD = np.dtype([("predicted", "<i4"), ("confidence", "<f4"), ("log_probability", "<f4")])


def of_tokens(values: np.ndarray) -> bool:
    """True if these are records of tokens, TOKEN_RECORD or TARGETS, and no logits or labels."""
    return values.dtype.names is not None


def count_rows(labels: np.ndarray) -> int:
    """Test rows that labels or TARGETS are of."""
    return len(np.unique(labels["row"])) if of_tokens(labels) else len(labels)


def exact_match(records: np.ndarray, targets: np.ndarray) -> float:
    """Share of rows that greedy decoding completes exactly as the reference: each of their tokens is the most probable one."""
    return float(np.mean(np.bincount(targets["row"], records["predicted"] != targets["target"]) == 0))
