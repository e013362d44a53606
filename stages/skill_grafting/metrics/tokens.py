"""Predictions of completions, token by token, and their metrics over tokens and whole rows.

Instead of logits a variant has a record for each token (TOKEN_RECORD), and instead of labels a test set has TARGETS.  Tokens of a row
are not independent, so every standard error is one over rows.
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


def usual_completion(targets: np.ndarray) -> float:
    """Exact match of always writing the most frequent completion."""
    ends = np.cumsum(np.bincount(targets["row"]))[:-1]
    _, counts = np.unique([part.tobytes() for part in np.split(targets["target"], ends)], return_counts=True)
    return float(counts.max() / counts.sum())


def token_scores(records: np.ndarray, targets: np.ndarray, finetuned: np.ndarray) -> dict[str, float | None]:
    """tokens, token_accuracy and perplexity, with standard errors (of perplexity that of its logarithm).

    And the standard error of agreement with what the fine-tuned model says, token by token.
    """
    right, loss = records["predicted"] == targets["target"], -records["log_probability"].astype(np.float64)
    return {
        "tokens": len(records),
        "token_accuracy": float(right.mean()),
        "token_accuracy_se": error_over_rows(right, targets["row"]),
        "perplexity": float(np.exp(loss.mean())),
        "log_perplexity_se": error_over_rows(loss, targets["row"]),
        "agreement_se": error_over_rows(records["predicted"] == finetuned["predicted"], targets["row"]),
    }


def error_over_rows(values: np.ndarray, rows: np.ndarray) -> float | None:
    """Standard error of the mean of tokens' values whose rows were drawn, not they (a ratio of two means over rows).

    None for a single row.
    """
    n, residuals = int(rows.max()) + 1, np.bincount(rows, values - values.mean())
    return float(np.sqrt((residuals**2).sum() * n / (n - 1)) / len(values)) if n > 1 else None


def parts_of(kind: str, place: str, values: np.ndarray, dtype: type) -> dict[str, np.ndarray]:
    """The tensors of an array in a file: a single one for logits and labels, one for each field of records."""
    if not of_tokens(values):
        return {f"{kind}/{place}": np.ascontiguousarray(values, dtype=dtype)}
    return {f"{name}/{place}": np.ascontiguousarray(values[name]) for name in values.dtype.names}


def joined(parts: dict[str, np.ndarray], kind: str, fields: np.dtype) -> np.ndarray:
    """The array that parts_of took apart, by kind or field; raises KeyError or ValueError if something of it is missing."""
    if kind in parts:
        return parts[kind]
    records = np.empty(len(parts[fields.names[0]]), fields)
    for name in fields.names:
        records[name] = parts[name]
    return records
