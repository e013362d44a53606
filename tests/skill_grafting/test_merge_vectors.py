"""TIES and DARE: their known properties, and the same numbers as peft where peft defines them."""

import pytest
import torch
from peft.utils import merge_utils

from skill_grafting.grafting.region import Region
from skill_grafting.merging.arithmetic import add, task_vector
from skill_grafting.merging.vectors import agreed, dare_merge, summed, tall_mask, ties_merge, within
from tests.pico import same

SHAPES = {"w": (40, 5), "b": (30,)}


@pytest.fixture
def several():
    """(pretrained, models): three tasks on two tensors."""
    generator = torch.Generator().manual_seed(3)
    pretrained, *models = (
        {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()} for _ in range(4)
    )
    return pretrained, dict(zip(("first", "second", "third"), models, strict=True))


def test_ties_is_that_of_peft_on_the_whole_region_and_a_sum_that_of_whole_vectors(several):
    pretrained, models = several
    vectors = {task: task_vector(pretrained, model) for task, model in models.items()}
    assert same(summed(pretrained, models), add(vectors))
    region = Region(SHAPES)
    for share in (0.1, 0.5):
        theirs = merge_utils.ties([region.flatten(vector) for vector in vectors.values()], torch.ones(3), share)
        assert torch.equal(region.flatten(ties_merge(pretrained, models, share)), theirs)
    by_tensor = {
        name: merge_utils.ties([vector[name] for vector in vectors.values()], torch.ones(3), 0.5) for name in SHAPES
    }
    assert not same(ties_merge(pretrained, models, 0.5), by_tensor), "the control"


def test_ties_keeps_exactly_its_share_even_among_equals():
    pretrained = {"w": torch.zeros(100)}
    models = {"only": {"w": torch.ones(100)}}
    assert ties_merge(pretrained, models, 0.3)["w"].nonzero().reshape(-1).tolist() == [*range(30)]


def test_the_sign_with_more_movement_wins_and_the_mean_of_those_who_have_it_stays():
    pretrained = {"w": torch.zeros(3)}
    moves = {"a": [1.0, 1.0, 0.0], "b": [2.0, 1.0, -1.0], "c": [-1.0, -5.0, 0.0]}
    models = {task: {"w": torch.tensor(move)} for task, move in moves.items()}
    assert ties_merge(pretrained, models, 1.0)["w"].tolist() == [1.5, -5.0, -1.0]
    assert summed(pretrained, models)["w"].tolist() == [2.0, -3.0, -1.0]  # the control


def test_ties_gives_the_same_bits_for_every_order_of_tasks():
    models = {task: {"w": torch.tensor([move])} for task, move in {"a": 2.0**53, "b": 1.0, "c": 1.0}.items()}
    there, back = (ties_merge({"w": torch.zeros(1)}, dict(order), 1.0) for order in (models, reversed(models.items())))
    assert same(there, back)


def test_ties_of_one_task_untrimmed_is_its_task_vector(several):
    pretrained, models = several
    only = {"first": models["first"]}
    assert same(ties_merge(pretrained, only, 1.0), summed(pretrained, only))
    assert not same(ties_merge(pretrained, only, 0.9), summed(pretrained, only))


def test_dare_draws_by_seed_task_and_tensor_and_nothing_else(several):
    pretrained, models = several
    once = dare_merge(pretrained, models, 0.5, 13)
    torch.manual_seed(99)
    assert same(dare_merge(pretrained, models, 0.5, 13), once)
    assert same(dare_merge(pretrained, dict(reversed(models.items())), 0.5, 13), once)
    parts = [dare_merge(pretrained, {task: model}, 0.5, 13) for task, model in models.items()]
    assert same(add(dict(zip(models, parts, strict=True))), once)
    assert not same(dare_merge(pretrained, models, 0.5, 21), once)  # the control
    nothing, alike = ({name: torch.full((99,), value) for name in ("v", "w")} for value in (0.0, 1.0))
    one, other = (dare_merge(nothing, {task: alike}, 0.5, 13) for task in ("first", "second"))
    assert not torch.equal(one["v"], one["w"]) and not torch.equal(one["v"], other["v"])


def test_dare_scales_what_stays_and_keeps_the_sum_on_average():
    pretrained, models = {"w": torch.zeros(100_000)}, {"only": {"w": torch.ones(100_000)}}
    vector = dare_merge(pretrained, models, 0.2, 1)["w"]
    assert {*vector.unique().tolist()} == {0.0, 5.0}
    assert float(vector.mean()) == pytest.approx(1, abs=0.03)
    assert same(dare_merge(pretrained, models, 1.0, 1), summed(pretrained, models))


def test_consensus_keeps_what_two_tasks_move_together():
    vectors = {
        "a": {"w": torch.tensor([1.0, 1.0, 0.0, 0.1, 1.0])},
        "b": {"w": torch.tensor([1.0, 0.0, 0.0, 1.0, -1.0])},
        "c": {"w": torch.tensor([0.0, 0.0, 0.0, 1.0, 0.5])},
    }
    total = add(vectors)
    masks = [tall_mask(vector, total, 0.5) for vector in vectors.values()]
    assert [mask["w"].tolist() for mask in masks] == [
        [True, True, False, False, True],
        [True, False, False, True, True],
        [False, False, False, True, True],
    ]
    kept = within(total, agreed(masks))["w"]
    assert kept.tolist() == pytest.approx([2.0, 0.0, 0.0, 2.1, 0.5]), "one task's own and nobody's are left out"
    sizes = [int(tall_mask(vectors["a"], total, strictness)["w"].sum()) for strictness in (0.0, 0.5, 1.0, 3.0)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 4, "stricter selects less"
