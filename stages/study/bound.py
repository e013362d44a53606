"""How much worse than the best model a sparsely trained one can be (paper, appendix D).

If training can give only so many models, all of them are nearly as good on new examples as on the
training examples.  A mask of s parameters, each of which takes one of q values, allows q^s models,
times the number of masks that other training sets might have led to (Theta_n).  Losses are the 0-1
error, a share within 0..1, and logarithms are natural.  A bound of 1 or more says nothing: no error
is ever larger.
"""

import math
from dataclasses import dataclass

FLOAT32_VALUES = 2**32


@dataclass(frozen=True)
class ModelClass:
    """How many models training can give: log_size = selected * log(values) + log_regions.

    selected: trained parameters (s), a new head's included; values: how many each can take (q), by
    default those of a 32-bit float; log_regions: log Theta_n, 0 if the mask doesn't depend on the
    training set, as in BitFit, and at most `log_all_regions`.
    """

    selected: int
    values: int = FLOAT32_VALUES
    log_regions: float = 0.0

    @property
    def log_size(self) -> float:
        """Logarithm of the number of models."""
        return self.selected * math.log(self.values) + self.log_regions


@dataclass(frozen=True)
class Bound:
    """An upper bound on test error - test error of the best model, term by term.

    variance: twice the largest difference of train and test error over the class, with probability
    1 - delta; bias: what the best model of the class lacks, None if it wasn't measured; quantization:
    4 * epsilon_1; suboptimality: epsilon_2, what the model lacks of the best on the training set.
    """

    variance: float
    quantization: float
    suboptimality: float
    bias: float | None

    @property
    def total(self) -> float:
        """The sum; without a bias it bounds the excess over the best model of the class only."""
        return self.variance + self.quantization + self.suboptimality + (self.bias or 0.0)

    @property
    def vacuous(self) -> bool:
        """True if the bound says nothing."""
        return self.total >= 1


def retrained_bound(
    models: ModelClass, examples: int, delta: float, epsilon_1: float = 0.0, bias: float | None = None
) -> Bound:
    """Theorem D.2, for the model whose masked parameters were trained on `examples`.

    epsilon_1: how much rounding to the q values changes a loss (assumption D.1), 0 for float32
    weights and their own values.
    """
    return Bound(variance_term(models, examples, delta), 4 * epsilon_1, 0.0, bias)


def grafted_bound(
    models: ModelClass,
    examples: int,
    delta: float,
    epsilon_2: float,
    epsilon_1: float = 0.0,
    bias: float | None = None,
) -> Bound:
    """Theorem D.4, for the graft, which wasn't trained by itself: log(2 / delta), and epsilon_2 on top."""
    return Bound(variance_term(models, examples, delta / 2), 4 * epsilon_1, epsilon_2, bias)


def variance_term(models: ModelClass, examples: int, delta: float) -> float:
    """2 * sqrt((s log q + log Theta_n + log(1 / delta)) / examples).

    Raises ValueError unless 0 < delta < 1 and examples is at least 1.
    """
    if examples < 1:
        raise ValueError(f"examples must be at least 1, not {examples}")
    return 2 * math.sqrt(_exponent(models, delta) / examples)


def examples_for(models: ModelClass, target: float, delta: float) -> int:
    """The fewest examples at which the variance term is at most `target`, solved for n: 4 * (...) / target^2.

    For a graft, whose variance term has log(2 / delta), give delta / 2.
    """
    return math.ceil(4 * _exponent(models, delta) / target**2)


def log_all_regions(selected: int, parameters: int) -> float:
    """log d^s, the trivial bound on log Theta_n: any of `parameters` for each of the selected ones."""
    return selected * math.log(parameters)


def epsilon_2(graft_train_error: float, retrained_train_error: float) -> float:
    """By how much the graft misses assumption D.3 without it: its train error - that of retraining, at least 0."""
    return max(0.0, graft_train_error - retrained_train_error)


def measured_bias(region_test_error: float, best_test_error: float) -> float:
    """The bias term by its stand-ins: test error with only the mask trained - with everything, at least 0.

    The theorem compares the best models there are; nobody knows them, so this is a measurement, not
    a bound, and a negative difference only says that full training wasn't the best.
    """
    return max(0.0, region_test_error - best_test_error)


def _exponent(models: ModelClass, delta: float) -> float:
    if not 0 < delta < 1:
        raise ValueError(f"delta must be within 0..1, not {delta}")
    return models.log_size + math.log(1 / delta)
