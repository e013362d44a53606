"""Stitched grafts are again a graft: exact where nothing collides, and by the stated rule where something does."""

from dataclasses import replace
from functools import reduce
from itertools import permutations

import pytest
import torch

from skill_grafting.errors import MaskError
from skill_grafting.grafting.apply import transplant, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import StoredMask
from skill_grafting.grafting.region import Region
from skill_grafting.merging import stitch as stitching
from skill_grafting.merging.arithmetic import add, shifted, task_vector
from skill_grafting.merging.names import KINDS, LARGEST, MEAN, RULES, SEQUENCE, STITCHES, SUM
from stages.merge.combination import chance_collisions, count_collisions
from tests.pico import same


def stored(region: Region, places: list[int], values: dict, task: str) -> StoredMask:
    mask = GraftMask.from_region_indices(region, torch.tensor(places))
    return StoredMask(mask, values_at(values, mask), {}, {"task": task})


def stitch(grafts: list[StoredMask], pretrained: dict, rule: str) -> StoredMask:
    return StoredMask(*stitching.stitch(grafts, pretrained, rule), {}, {})


def moved(pretrained: dict, seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {name: values + 0.1 * torch.randn(values.shape, generator=generator) for name, values in pretrained.items()}


@pytest.fixture
def three(triple):
    """(region, pretrained, grafts) of tasks a, b, c: 0..9, 5..14 and 8..40, so that 8 and 9 collide threefold."""
    region, pretrained, _ = triple
    ranges = {"a": range(10), "b": range(5, 15), "c": range(8, 41)}
    models = {task: moved(pretrained, number) for number, task in enumerate(ranges)}
    return region, pretrained, [stored(region, [*ranges[task]], models[task], task) for task in ranges]


def of_one(start: float, values: list[float]) -> tuple[dict, list[StoredMask]]:
    """A pretrained model of one parameter, and grafts with these values of it."""
    region, pretrained = Region({"w": (1,)}), {"w": torch.tensor([start])}
    parts = [({"w": torch.tensor([value])}, f"task {number}") for number, value in enumerate(values)]
    return pretrained, [stored(region, [0], part, task) for part, task in parts]


def flat(pretrained: dict, joined: StoredMask) -> torch.Tensor:
    return joined.mask.region.flatten(transplant(pretrained, joined.values, joined.mask))


@pytest.mark.parametrize("rule", RULES)
def test_one_graft_stitched_is_itself_bit_for_bit(three, rule):
    _, pretrained, grafts = three
    joined = stitch(grafts[:1], pretrained, rule)
    assert joined.mask.equals(grafts[0].mask) and same(joined.values, grafts[0].values)
    assert not same(joined.values, stitch(grafts[1:2], pretrained, rule).values)  # the control
    pretrained, tiny = of_one(1.0, [2.0**-60])
    assert same(stitch(tiny, pretrained, rule).values, tiny[0].values), "a sum of differences would give 0"


@pytest.mark.parametrize("rule", RULES)
def test_where_nothing_collides_values_are_copied_bit_for_bit(three, rule):
    _, pretrained, grafts = three
    joined = stitch(grafts, pretrained, rule)
    assert joined.mask.region_indices().tolist() == [*range(41)], "the union"
    whole = flat(pretrained, joined)
    for number, places in ((0, range(5)), (2, range(15, 41))):
        assert torch.equal(whole[[*places]], flat(pretrained, grafts[number])[[*places]])
    assert torch.equal(whole[41:], grafts[0].mask.region.flatten(pretrained)[41:]), "outside the union"
    colliding = [*range(5, 15)]
    others = [flat(pretrained, stitch(grafts, pretrained, name))[colliding] for name in RULES if name != rule]
    assert all(not torch.equal(whole[colliding], other) for other in others), "the control: there the rules differ"


def test_collisions_follow_the_rule(three):
    region, pretrained, grafts = three
    start, values = region.flatten(pretrained), [flat(pretrained, part) for part in grafts]
    at = {rule: flat(pretrained, stitch(grafts, pretrained, rule)) for rule in RULES}
    torch.testing.assert_close(at[MEAN][8], (values[0][8] + values[1][8] + values[2][8]) / 3)
    torch.testing.assert_close(at[MEAN][6], (values[0][6] + values[1][6]) / 2)
    torch.testing.assert_close(at[SUM][8], sum(part[8] - start[8] for part in values) + start[8])
    assert torch.equal(at[SEQUENCE][8], values[2][8]) and torch.equal(at[SEQUENCE][6], values[1][6])
    furthest = max(values, key=lambda part: (part[8].double() - start[8].double()).abs())
    assert torch.equal(at[LARGEST][8], furthest[8])


def test_a_sequence_is_one_graft_after_another(three):
    _, pretrained, grafts = three
    in_turn = reduce(lambda model, part: transplant(model, part.values, part.mask), grafts, pretrained)
    joined, back = (stitch(order, pretrained, SEQUENCE) for order in (grafts, grafts[::-1]))
    assert same(transplant(pretrained, joined.values, joined.mask), in_turn)
    assert not same(joined.values, back.values), "the control: its order counts"


def test_a_sum_is_task_arithmetic_with_grafted_task_vectors(three):
    _, pretrained, grafts = three
    models = {part.about["task"]: transplant(pretrained, part.values, part.mask) for part in grafts}
    total = add({task: task_vector(pretrained, model) for task, model in models.items()})
    joined = stitch(grafts, pretrained, SUM)
    assert same(transplant(pretrained, joined.values, joined.mask), shifted(pretrained, total, 1.0))


@pytest.mark.parametrize("rule", [MEAN, SUM, LARGEST])
def test_every_order_of_grafts_gives_the_same_bits(three, rule):
    _, *toy = three
    for pretrained, grafts in (toy, of_one(0.0, [3 * 2.0**60, -(2.0**61), -(2.0**60), 1.0])):
        joined = [stitch([*order], pretrained, rule) for order in permutations(grafts)]
        assert all(same(part.values, joined[0].values) for part in joined)


def test_equally_far_values_are_the_first_ones():
    region, pretrained = Region({"w": (2,)}), {"w": torch.zeros(2)}
    up, down = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([-1.0, -2.0])}
    grafts = [stored(region, [0, 1], values, task) for task, values in (("up", up), ("down", down))]
    assert stitch(grafts, pretrained, LARGEST).values["w"].tolist() == [1.0, -2.0]
    assert stitch(grafts[::-1], pretrained, LARGEST).values["w"].tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("rule", [MEAN, SEQUENCE, LARGEST])
def test_a_graft_stitched_with_itself_stays_as_it_is(three, rule):
    _, pretrained, grafts = three
    assert same(stitch([grafts[2]] * 3, pretrained, rule).values, grafts[2].values)
    assert not same(stitch([grafts[2]] * 3, pretrained, SUM).values, grafts[2].values)  # the control


def test_collisions_are_counted(three):
    _, pretrained, grafts = three
    found = count_collisions(grafts, pretrained)
    assert (found["union"], found["colliding"]) == (41, 10)
    start = grafts[0].mask.region.flatten(pretrained)
    moves = torch.stack([flat(pretrained, part) - start for part in grafts])
    assert found["opposed"] == int(((moves > 0).any(0) & (moves < 0).any(0)).sum()) and 0 < found["opposed"] < 10


def test_chance_is_what_random_masks_do():
    sizes, size, generator = [20, 30, 50], 100, torch.Generator().manual_seed(5)
    ranks = torch.rand(4000, len(sizes), size, generator=generator).argsort(-1)  # a random order of all in each mask
    chosen = (ranks < torch.tensor(sizes)[:, None]).sum(1)
    expected = chance_collisions(sizes, size)
    assert expected == pytest.approx({"chance_union": 72, "chance_colliding": 25})
    found = [float((chosen > least).sum(1).double().mean()) for least in (0, 1)]
    assert found == pytest.approx([72, 25], abs=0.3)
    assert chance_collisions([100, 100], 100) == pytest.approx({"chance_union": 100, "chance_colliding": 100})
    with pytest.raises(ValueError, match="do not fit"):
        chance_collisions([101], 100)


def test_every_rule_is_a_method_of_its_own():
    assert [*STITCHES.values()] == [*RULES] and {*STITCHES} <= {*KINDS}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", RULES)
def test_grafts_in_half_precision_stay_in_it(three, rule, kind):
    _, pretrained, grafts = three
    halves = [replace(part, values={name: values.to(kind) for name, values in part.values.items()}) for part in grafts]
    exact = [replace(part, values={name: values.float() for name, values in part.values.items()}) for part in halves]
    wanted = stitch(exact, pretrained, rule).values
    assert same(stitch(halves, pretrained, rule).values, {name: values.to(kind) for name, values in wanted.items()})


def test_a_sum_that_no_number_of_its_type_holds_is_refused(three):
    _, pretrained, grafts = three
    large = [
        replace(part, values={name: torch.full_like(v, 6e4).half() for name, v in part.values.items()})
        for part in grafts
    ]
    with pytest.raises(
        MaskError, match=r": the sum of these grafts is more than torch.float16 holds; take another rule$"
    ):
        stitch(large, pretrained, "sum")
