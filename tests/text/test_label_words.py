"""Label words calibrated: what a scale and biases mend of a model that isn't trained."""

import numpy as np
import pytest

from stages.text.scores.classification import accuracy
from stages.text.scores.label_words import LabelWords, fit_label_words
from stages.text.scores.scores import cross_entropy

PRIOR = np.array([0.0, 2.5, -1.0])


@pytest.fixture
def rows():
    """Logits (600, 3), and labels drawn from what they say."""
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(600, 3)).astype(np.float32)
    labels = (2 * logits + draw.gumbel(size=logits.shape)).argmax(1)
    return logits, labels


def test_a_prior_of_words_is_fitted_away(rows):
    logits, labels = rows
    shifted = logits + PRIOR.astype(np.float32)
    plain, prior = (fit_label_words(values, labels)(values) for values in (logits, shifted))
    assert accuracy(shifted, labels) < accuracy(logits, labels) - 0.1, "the prior costs something"
    np.testing.assert_allclose(prior, plain + (prior - plain).mean(1, keepdims=True), atol=1e-3)
    assert accuracy(prior, labels) == pytest.approx(accuracy(plain, labels), abs=0.005)


def test_no_other_scale_and_biases_have_a_lower_loss(rows):
    logits, labels = rows
    words = fit_label_words(logits + PRIOR.astype(np.float32), labels)
    assert words.biases[0] == 0.0 and words.scale == pytest.approx(2.0, abs=0.4)

    def loss(scale, biases):
        return cross_entropy(LabelWords(scale, biases)(logits + PRIOR.astype(np.float32)), labels)

    best = loss(words.scale, words.biases)
    for place in range(3):
        for step in (-0.05, 0.05):
            values = np.array([words.scale, *words.biases[1:]])
            values[place] += step
            assert loss(values[0], [0.0, *values[1:]]) > best
    assert best < loss(1.0, [0.0, 0.0, 0.0]), "which is where the search begins"
