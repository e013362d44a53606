"""The distance of a sparsely trained model from the best one, at most (paper, appendix D).

If training can give only so many models, all of them are nearly as good on new examples as on the
training examples.  A mask of s parameters, each of which takes one of q values, allows q^s models,
times the number of masks that other training sets might have led to (Theta_n).  Losses are the 0-1
error, a share within 0..1, and logarithms are natural.  A bound of 1 or more says nothing: no error
is ever larger.

Test error - test error of the best model is at most the sum of the variance term, of the bias, which
is what the best model of the class lacks, and for the graft, which wasn't trained by itself, of
epsilon_2, what it lacks of the best on the training set (theorems D.2 and D.4).  Weights are their own
values, so that rounding to the q values changes no loss: epsilon_1 of assumption D.1 is 0.
"""

import math

FLOAT32_VALUES = 2**32


def log_models(selected: int, log_regions: float = 0.0, values: int = FLOAT32_VALUES) -> float:
    """Logarithm of how many models training can give: s log q + log Theta_n.

    selected: trained parameters (s); log_regions: log Theta_n, 0 if the mask
    doesn't depend on the training set, as in BitFit, and at most `log_all_regions`; values: q.
    """
    return selected * math.log(values) + log_regions


def log_all_regions(selected: int, parameters: int) -> float:
    """log d^s, the trivial bound on log Theta_n: any of `parameters` for each of the selected ones."""
    return selected * math.log(parameters)


def variance_term(log_size: float, examples: int, delta: float) -> float:
    """2 * sqrt((log_size + log(1 / delta)) / examples): with probability 1 - delta train and test error differ by half of it.

    `log_size` is that of `log_models`; for a graft, in whose term two models stand, give delta / 2.
    """
    return 2 * math.sqrt((log_size + math.log(1 / delta)) / examples)


def lacking(error: float, better: float) -> float:
    """Excess of the one error over the other, at least 0: epsilon_2, and the bias by its stand-ins.

    epsilon_2: train error of the graft - that of retraining, by how much it misses assumption D.3 without it.  Bias: test
    error with only the mask trained - with everything.  The theorem compares the best models there are; nobody knows
    them, so this is a measurement, not a bound, and a negative difference only says that full training wasn't the best.
    """
    return max(0.0, error - better)
