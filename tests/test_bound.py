"""The generalization bound is the paper's formula, and moves the way its terms say."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from stages.study.bound import (
    Bound,
    ModelClass,
    epsilon_2,
    examples_for,
    grafted_bound,
    log_all_regions,
    measured_bias,
    retrained_bound,
    variance_term,
)

SMALL = ModelClass(selected=5)


def test_a_bound_computed_by_hand():
    # 5 * ln 2^32 = 110.9035, ln 20 = 2.9957, ln 40 = 3.6889
    found = retrained_bound(SMALL, 10_000, 0.05, epsilon_1=0.001, bias=0.02)
    assert found.variance == pytest.approx(2 * math.sqrt((110.903549 + 2.995732) / 10_000), rel=1e-7)
    assert (found.quantization, found.suboptimality, found.bias) == (0.004, 0.0, 0.02)
    assert found.total == pytest.approx(0.21345 + 0.004 + 0.02, abs=1e-5)
    grafted = grafted_bound(SMALL, 10_000, 0.05, epsilon_2=0.01, epsilon_1=0.001, bias=0.02)
    assert grafted.variance == pytest.approx(2 * math.sqrt((110.903549 + 3.688879) / 10_000), rel=1e-7)
    assert grafted.total == pytest.approx(0.21410 + 0.004 + 0.01 + 0.02, abs=1e-5)


def test_any_mask_costs_the_logarithm_of_all_masks():
    free = replace(SMALL, log_regions=log_all_regions(5, 85_000_000))
    assert free.log_size == pytest.approx(5 * (32 * math.log(2) + math.log(85_000_000)))
    assert variance_term(free, 1000, 0.1) > variance_term(SMALL, 1000, 0.1)
    assert ModelClass(5, values=2).log_size == pytest.approx(5 * math.log(2))


def test_it_grows_with_the_parameters_and_falls_with_examples_and_doubt():
    by_size = [variance_term(ModelClass(s), 1000, 0.1) for s in (0, 1, 10, 100)]
    by_examples = [variance_term(SMALL, n, 0.1) for n in (1, 10, 100, 1000)]
    by_delta = [variance_term(SMALL, 1000, delta) for delta in (0.001, 0.01, 0.1, 0.9)]
    assert all(left < right for left, right in pairwise(by_size))
    assert all(left > right for row in (by_examples, by_delta) for left, right in pairwise(row))
    assert by_examples[0] == pytest.approx(10 * by_examples[2]), "like one over the root of the examples"


def test_a_graft_pays_for_what_it_lacks_of_retraining_and_for_the_second_model():
    trained, grafted = retrained_bound(SMALL, 1000, 0.1), grafted_bound(SMALL, 1000, 0.1, epsilon_2(0.2, 0.15))
    assert grafted.suboptimality == pytest.approx(0.05) and grafted.total > trained.total + 0.05
    assert grafted.variance == variance_term(SMALL, 1000, 0.05)
    assert epsilon_2(0.1, 0.15) == 0, "a graft that fits better than retraining lacks nothing"


def test_a_bias_that_was_not_measured_is_none_and_one_below_0_is_0():
    assert retrained_bound(SMALL, 1000, 0.1).bias is None
    assert retrained_bound(SMALL, 1000, 0.1).total == retrained_bound(SMALL, 1000, 0.1, bias=0.0).total
    assert measured_bias(0.12, 0.1) == pytest.approx(0.02) and measured_bias(0.1, 0.12) == 0


def test_a_bound_of_1_says_nothing():
    assert Bound(0.9, 0.1, 0.0, None).vacuous and Bound(0.5, 0.25, 0.25, 0.1).vacuous
    assert not Bound(0.9, 0.05, 0.0, None).vacuous
    assert retrained_bound(ModelClass(8500), 4096, 0.05).vacuous, "the paper's own sizes"


@pytest.mark.parametrize("selected", [1, 85, 8500])
@pytest.mark.parametrize("target", [0.013, 0.1, 1.0])
@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_as_many_examples_as_a_target_takes_and_not_one_fewer(selected, target, delta):
    models = ModelClass(selected, log_regions=3.0)
    examples = examples_for(models, target, delta)
    assert variance_term(models, examples, delta) <= target * (1 + 1e-12)
    assert variance_term(models, examples - 1, delta) > target


def test_it_holds_for_a_class_that_can_be_counted():
    """All 2^6 models of six thresholds that guess coins: train error strays no further than half the variance term."""
    generator, delta, examples, broken = np.random.default_rng(0), 0.2, 50, 0
    for _ in range(300):
        train_errors = generator.binomial(examples, 0.5, size=2**6) / examples
        broken += 2 * np.abs(train_errors - 0.5).max() > variance_term(ModelClass(6, values=2), examples, delta)
    assert broken <= 300 * delta
    strayed = 2 * np.abs(train_errors - 0.5).max()
    assert strayed > variance_term(ModelClass(0), 50_000, delta), "control: a smaller bound would not hold"


@pytest.mark.parametrize(("examples", "delta"), [(0, 0.1), (10, 0.0), (10, 1.0)])
def test_what_has_no_bound_is_refused(examples, delta):
    with pytest.raises(ValueError, match="must be"):
        variance_term(SMALL, examples, delta)
