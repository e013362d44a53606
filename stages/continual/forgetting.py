"""Measures of forgetting, from R[step, task]: accuracy on a task after a step of a sequence.

R is a square array, tasks in the order in which they were learned.  What lies above its diagonal, a task
before it was learned, is never looked at and may be NaN.
"""

import numpy as np


def average_accuracy(accuracies: np.ndarray) -> float:
    """Mean over all tasks after the last step (ACC of Lopez-Paz and Ranzato 2017)."""
    return float(_checked(accuracies)[-1].mean())


def learning_accuracy(accuracies: np.ndarray) -> float:
    """Mean of the accuracy on each task right after it was learned: how well new tasks are still learned."""
    return float(np.diag(_checked(accuracies)).mean())


def backward_transfer(accuracies: np.ndarray) -> float:
    """Mean change on all tasks but the last since they were learned (BWT of Lopez-Paz and Ranzato 2017).

    Below 0 tasks were forgotten, above 0 later ones helped them.
    """
    since = _checked(accuracies)[-1] - np.diag(accuracies)
    return float(since[:-1].mean())


def forgetting(accuracies: np.ndarray) -> float:
    """Mean loss on all tasks but the last since they were best (F of Chaudhry et al. 2018).

    The best is looked for among the steps from a task's own on but the last; so what is below 0 was
    gained in the last step.
    """
    known = _checked(accuracies)
    tasks = range(len(known) - 1)
    return float(np.mean([known[task:-1, task].max() - known[-1, task] for task in tasks]))


def _checked(accuracies: np.ndarray) -> np.ndarray:
    """Raises ValueError for anything but a square of 2 tasks or more without gaps on and below the diagonal."""
    if accuracies.ndim != 2 or len({*accuracies.shape}) != 1 or len(accuracies) < 2:
        raise ValueError(f"expected a square of 2 tasks or more, not shape {accuracies.shape}")
    if np.isnan(accuracies[np.tril_indices(len(accuracies))]).any():
        raise ValueError("an accuracy after a task was learned is missing")
    return accuracies
