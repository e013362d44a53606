"""The generalization bound is the paper's formula, and moves the way its terms say."""

import math
from itertools import pairwise

import numpy as np
import pytest

from stages.study.bound import examples_for, lacking, log_all_regions, log_models, variance_term

SMALL = log_models(5)


def test_terms_computed_by_hand():
    # 5 * ln 2^32 = 110.9035, ln 20 = 2.9957
    assert variance_term(SMALL, 10_000, 0.05) == pytest.approx(2 * math.sqrt((110.903549 + 2.995732) / 10_000), 1e-7)
    assert variance_term(log_models(8500), 4096, 0.05) > 1, "the paper's own sizes"
    any_mask = log_models(5, log_all_regions(5, 85_000_000))
    assert any_mask == pytest.approx(5 * (32 * math.log(2) + math.log(85_000_000)))
    assert log_models(5, values=2) == pytest.approx(5 * math.log(2))
    assert lacking(0.2, 0.15) == pytest.approx(0.05) and lacking(0.1, 0.15) == 0, "better than the other lacks nothing"


def test_it_grows_with_the_parameters_and_falls_with_examples_and_doubt():
    by_size = [variance_term(log_models(s), 1000, 0.1) for s in (0, 1, 10, 100)]
    by_examples = [variance_term(SMALL, n, 0.1) for n in (1, 10, 100, 1000)]
    by_delta = [variance_term(SMALL, 1000, delta) for delta in (0.001, 0.01, 0.1, 0.9)]
    assert all(left < right for left, right in pairwise(by_size))
    assert all(left > right for row in (by_examples, by_delta) for left, right in pairwise(row))
    assert by_examples[0] == pytest.approx(10 * by_examples[2]), "like one over the root of the examples"


@pytest.mark.parametrize("selected", [1, 85, 8500])
@pytest.mark.parametrize("target", [0.013, 0.1, 1.0])
@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_as_many_examples_as_a_target_takes_and_not_one_fewer(selected, target, delta):
    models = log_models(selected, 3.0)
    examples = examples_for(models, target, delta)
    assert variance_term(models, examples, delta) <= target * (1 + 1e-12)
    assert variance_term(models, examples - 1, delta) > target


def test_it_holds_for_a_class_that_can_be_counted():
    """All 2^6 models of six thresholds that guess coins: train error strays no further than half the variance term."""
    generator, delta, examples, broken = np.random.default_rng(0), 0.2, 50, 0
    for _ in range(300):
        train_errors = generator.binomial(examples, 0.5, size=2**6) / examples
        broken += 2 * np.abs(train_errors - 0.5).max() > variance_term(log_models(6, values=2), examples, delta)
    assert broken <= 300 * delta
    strayed = 2 * np.abs(train_errors - 0.5).max()
    assert strayed > variance_term(0.0, 50_000, delta), "control: a smaller bound would not hold"


@pytest.mark.parametrize(("examples", "delta"), [(0, 0.1), (10, 0.0), (10, 1.0)])
def test_what_has_no_bound_is_refused(examples, delta):
    with pytest.raises(ValueError, match="must be"):
        variance_term(SMALL, examples, delta)
