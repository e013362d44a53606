"""Movement ranks by |finetuned - pretrained|, once for every sparsity."""

import pytest
import torch

from stages.lib.graft.region import Region
from stages.lib.localizers.movement import movement, movement_mask, movement_order


def test_order_is_by_distance_moved_either_way_and_ties_by_index():
    region = Region({"w": (2, 3), "b": (2,)})
    pretrained = {"w": torch.ones(2, 3), "b": torch.zeros(2)}
    finetuned = {"w": torch.tensor([[1.0, -1.0, 1.5], [3.0, 1.0, 1.0]]), "b": torch.tensor([-0.5, 7.0])}
    assert movement(pretrained, finetuned, region)["w"].tolist() == [[0, 2, 0.5], [2, 0, 0]]
    assert movement_order(pretrained, finetuned, region, 8).tolist() == [7, 1, 3, 2, 6, 0, 4, 5]


def test_a_shorter_order_is_a_prefix_of_a_longer_one(triple):
    region, pretrained, finetuned = triple
    whole = movement_order(pretrained, finetuned, region, region.size)
    assert sorted(whole.tolist()) == [*range(region.size)]
    for k in (0, 1, 10, 50):
        assert torch.equal(movement_order(pretrained, finetuned, region, k), whole[:k])


def test_distances_fall_along_the_order(triple):
    region, pretrained, finetuned = triple
    distances = region.flatten(movement(pretrained, finetuned, region))
    along = distances[movement_order(pretrained, finetuned, region, region.size)]
    assert bool((along[1:] <= along[:-1]).all()) and not bool((distances[1:] <= distances[:-1]).all())


def test_masks_from_one_stored_order_do_not_depend_on_how_much_was_stored(triple):
    region, pretrained, finetuned = triple
    short, long = (movement_order(pretrained, finetuned, region, k) for k in (20, 60))
    assert movement_mask(region, short, 12).equals(movement_mask(region, long, 12))
    assert not movement_mask(region, short, 12).equals(movement_mask(region, long, 13)), "control"
    assert movement_mask(region, short, 0).selected == 0


def test_more_than_stored_is_refused(triple):
    region, pretrained, finetuned = triple
    with pytest.raises(ValueError, match="has 20 parameters, 21 were asked for"):
        movement_mask(region, movement_order(pretrained, finetuned, region, 20), 21)


def test_swapping_the_two_models_changes_nothing(triple):
    region, pretrained, finetuned = triple
    there = movement_order(pretrained, finetuned, region, 71)
    assert torch.equal(there, movement_order(finetuned, pretrained, region, 71))
