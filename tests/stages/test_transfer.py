"""Relative gain, unions of regions, purified unions, and overlap against transfer: the mathematics."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.localizers.evidence import LocalizerInput
from skill_grafting.localizers.names import NAMES
from skill_grafting.metrics.gain import add_gain, gained, relative_gain, scores_of_ends
from skill_grafting.models.evidence import from_tensors
from stages.multitask.settings import read_name
from stages.multitask.transfer import purify, summed_gradient
from tests.pico import localizer_settings, same


def test_the_pretrained_model_gains_0_and_the_joint_model_1_whatever_scale_and_origin():
    for scale, origin in ((1, 0), (0.5, 0.1)):
        gains = [
            relative_gain(*(origin + scale * share for share in (own, 0.5, 0.9)), 0.05) for own in (0.5, 0.9, 0.8, 0.4)
        ]
        assert gains == pytest.approx([0, 1, 0.75, -0.25])


@pytest.mark.parametrize("joint", [0.5, 0.5 + 1e-9, 0.549, 0.4, 0.1])
def test_a_joint_model_that_gained_next_to_nothing_or_lost_gives_no_number(joint):
    assert relative_gain(0.7, 0.5, joint, 0.05) is None and not gained(0.5, joint, 0.05)
    assert relative_gain(0.7, 0.5, 0.56, 0.05) is not None, "control: a little more is enough"
    with pytest.raises(ValueError, match="above 0"):
        relative_gain(0.7, 0.5, joint, 0.0)


def test_a_gain_of_just_as_many_rows_as_are_asked_for_is_one_whatever_the_last_digit_says():
    shares = [(low / rows, (low + rows // 20) / rows) for rows in (100, 300, 600) for low in range(rows - rows // 20)]
    assert all(gained(*pair, 0.05) for pair in shares)
    assert not all(trained - pretrained >= 0.05 for pretrained, trained in shares), (
        "control: the plain difference drops some"
    )
    assert not any(gained(pretrained, trained - 1 / 600, 0.05) for pretrained, trained in shares), (
        "control: a row less is less"
    )


def test_gains_of_a_frame_are_those_of_its_rows_and_nothing_where_an_end_is_unknown():
    rows = pd.DataFrame(
        [(1, "pretrained", 0.5), (1, "finetuned", 0.9), (1, "graft", 0.8), (2, "pretrained", 0.5), (2, "graft", 0.8)],
        columns=["seed", "variant", "score"], index=[7, 3, 5, 1, 0],
    )  # fmt: skip
    ends = scores_of_ends(rows, ["seed"])
    assert [*ends.columns] == ["pretrained", "finetuned"] and ends.finetuned.isna().tolist() == [False, True]
    found = add_gain(rows, ends, 0.05)
    assert [*found.index] == [*rows.index] and found.drop(columns="gain").equals(rows)
    assert found.gain[:3].tolist() == pytest.approx([0, 1, 0.75]) and found.gain[3:].isna().all()
    assert add_gain(rows, ends, 0.5).gain.isna().all()
    assert add_gain(rows[:0], scores_of_ends(rows[:0], ["seed"]), 0.05).gain.dtype == float


def some(region, *indices: int) -> GraftMask:
    return GraftMask.from_region_indices(region, torch.tensor(indices, dtype=torch.int64))


def test_grafting_a_union_is_grafting_one_part_after_the_other(triple):
    region, pretrained, finetuned = triple
    one, other = some(region, 3, 40, 50), some(region, 50, 0, 69)
    at_once, alone = (graft(pretrained, finetuned, mask) for mask in (one | other, one))
    assert same(at_once, graft(alone, finetuned, other)) and not same(at_once, alone)


def linear(triple, wanted: list[int], weights: dict | None = None) -> LocalizerInput:
    """Evidence about a loss that falls linearly in the entries `wanted` as they move, and rises in all others."""
    region, pretrained, finetuned = triple
    weights = weights or {name: values.clone().requires_grad_() for name, values in pretrained.items()}
    sign = torch.ones(region.size)
    sign[wanted] = -1.0
    flat = region.flatten({name: finetuned[name] - pretrained[name] for name in region.shapes})

    def gradient() -> float:
        now = torch.cat([(weights[name] - pretrained[name]).reshape(-1) for name in region.shapes])
        loss = (sign * now / flat).sum()
        loss.backward()
        return loss.detach()

    base = from_tensors(*triple, np.random.default_rng(0))
    return replace(base, weights=weights, batch_gradients=lambda _: gradient)


SETTINGS = localizer_settings("learned", steps=10, learning_rate=3.0, offset=2.0)


def test_purifying_swaps_harmful_entries_for_helpful_ones_and_keeps_the_size(triple):
    start, wanted = some(triple[0], 5, 6, 30, 31), [5, 6, 7, 8]
    assert purify(start, [linear(triple, wanted)], SETTINGS).region_indices().tolist() == wanted
    none = SETTINGS.model_copy(update={"steps": 0})
    assert purify(start, [linear(triple, wanted)], none).equals(start), "for nothing it changes nothing"


def test_the_gradients_of_all_tasks_are_added_whatever_was_there_before(triple):
    one = linear(triple, [1, 2])
    other = linear(triple, [2, 3], one.weights)

    def left_by(gradient) -> torch.Tensor:
        """The gradient that a call leaves where there was none."""
        for weight in one.weights.values():
            weight.grad = None
        gradient()
        return triple[0].flatten({name: weight.grad for name, weight in one.weights.items()})

    apart = [left_by(evidence.batch_gradients(8)) for evidence in (one, other)]
    together = summed_gradient([one, other], 8)
    for _ in range(2):  # what the first call leaves is not added to by the second
        torch.testing.assert_close(left_by(together), apart[0] + apart[1])
    assert apart[1].abs().sum() > 0  # the control
    passed = [0, 0]
    batches = [lambda over, task=task: passed.__setitem__(task, int(over)) or 0.0 for task in (0, 1)]
    tasks = [replace(one, batch_gradients=lambda _, task=task: batches[task]) for task in (0, 1)]
    summed_gradient(tasks, 8)(True)
    assert passed == [1, 1], "resumed, a batch of each task is passed over"


def test_a_name_may_have_the_share_of_a_base():
    assert read_name("learned") == ("learned", 0.0) and read_name("learned_0.1") == ("learned", 0.1)
    assert {name: read_name(name) for name in NAMES} == {name: (name, 0.0) for name in NAMES}
    wrong = ("learned_", "learned_1.5", "learned_x", "movement_0.1", "learned_0.1_0.1", "lerned")
    assert [read_name(name) for name in wrong] == [None] * len(wrong)
