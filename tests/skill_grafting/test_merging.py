"""Models made into one: stitched grafts are a graft, task arithmetic has the models at its ends, TIES and DARE are those of peft."""

import math
from dataclasses import replace
from functools import reduce
from itertools import permutations

import pytest
import torch
from peft.utils import merge_utils
from torch import nn

from skill_grafting.grafting.apply import transplant, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask
from skill_grafting.grafting.region import Region
from skill_grafting.merging import inputs as sides
from skill_grafting.merging import merge as merging
from skill_grafting.merging import stitching
from skill_grafting.merging.arithmetic import (
    add,
    agreed,
    alpha_grid,
    choose_alpha,
    mean_normalised,
    normalised,
    shifted,
    tall_mask,
    task_vector,
    within,
)
from skill_grafting.merging.stitching import RULES
from skill_grafting.merging.ways import VECTORS, kth_highest, merged_vector, reads, summed
from skill_grafting.support.errors import MaskError
from tests.memory import PeakBytes
from tests.pico import same

# --- Stitching ---------------------------------------------------------------------------------------------------------


def stored(region: Region, places: list[int], values: dict, task: str) -> StoredMask:
    mask = GraftMask.from_region_indices(region, torch.tensor(places))
    return StoredMask(mask, values_at(values, mask), {}, {"task": task})


def stitch(grafts: list[StoredMask], pretrained: dict, rule: str) -> StoredMask:
    return StoredMask(*stitching.stitch(grafts, pretrained, rule), {}, {})


def moved(pretrained: dict, seed: int, size: float = 0.1) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: values + size * torch.randn(values.shape, dtype=values.dtype, generator=generator)
        for name, values in pretrained.items()
    }


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
    torch.testing.assert_close(at["mean"][8], (values[0][8] + values[1][8] + values[2][8]) / 3)
    torch.testing.assert_close(at["mean"][6], (values[0][6] + values[1][6]) / 2)
    torch.testing.assert_close(at["sum"][8], sum(part[8] - start[8] for part in values) + start[8])
    assert torch.equal(at["sequence"][8], values[2][8]) and torch.equal(at["sequence"][6], values[1][6])
    furthest = max(values, key=lambda part: (part[8].double() - start[8].double()).abs())
    assert torch.equal(at["largest"][8], furthest[8])


def test_a_single_collision_is_told_from_rows_that_all_select():
    """Three grafts of which two meet at one place: the third has no part in it."""
    pretrained = {"w": torch.full((3,), 10.0)}
    places = ([0, 1], [1], [2])
    grafts = [
        StoredMask(
            GraftMask(Region({"w": (3,)}), {"w": torch.tensor(at)}), {"w": torch.tensor([1.0, 3.0][: len(at)])}, {}, {}
        )
        for at in places
    ]
    wanted = {"mean": [1.0, 2.0, 1.0], "sum": [1.0, -6.0, 1.0], "sequence": [1.0, 1.0, 1.0], "largest": [1.0, 1.0, 1.0]}
    assert {rule: stitch(grafts, pretrained, rule).values["w"].tolist() for rule in RULES} == wanted


def test_a_sequence_is_one_graft_after_another(three):
    _, pretrained, grafts = three
    in_turn = reduce(lambda model, part: transplant(model, part.values, part.mask), grafts, pretrained)
    joined, back = (stitch(order, pretrained, "sequence") for order in (grafts, grafts[::-1]))
    assert same(transplant(pretrained, joined.values, joined.mask), in_turn)
    assert not same(joined.values, back.values), "the control: its order counts"


def test_a_sum_is_task_arithmetic_with_grafted_task_vectors(three):
    _, pretrained, grafts = three
    models = {part.about["task"]: transplant(pretrained, part.values, part.mask) for part in grafts}
    total = add({task: task_vector(pretrained, model) for task, model in models.items()})
    joined = stitch(grafts, pretrained, "sum")
    assert same(transplant(pretrained, joined.values, joined.mask), shifted(pretrained, total, 1.0))


@pytest.mark.parametrize("rule", ["mean", "sum", "largest"])
def test_every_order_of_grafts_gives_the_same_bits(three, rule):
    _, *toy = three
    for pretrained, grafts in (toy, of_one(0.0, [3 * 2.0**60, -(2.0**61), -(2.0**60), 1.0])):
        joined = [stitch([*order], pretrained, rule) for order in permutations(grafts)]
        assert all(same(part.values, joined[0].values) for part in joined)


def test_equally_far_values_are_the_first_ones():
    region, pretrained = Region({"w": (2,)}), {"w": torch.zeros(2)}
    up, down = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([-1.0, -2.0])}
    grafts = [stored(region, [0, 1], values, task) for task, values in (("up", up), ("down", down))]
    assert stitch(grafts, pretrained, "largest").values["w"].tolist() == [1.0, -2.0]
    assert stitch(grafts[::-1], pretrained, "largest").values["w"].tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("rule", ["mean", "sequence", "largest"])
def test_a_graft_stitched_with_itself_stays_as_it_is(three, rule):
    _, pretrained, grafts = three
    assert same(stitch([grafts[2]] * 3, pretrained, rule).values, grafts[2].values)
    assert not same(stitch([grafts[2]] * 3, pretrained, "sum").values, grafts[2].values)  # the control


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


# --- Task arithmetic ---------------------------------------------------------------------------------------------------


def test_alpha_0_is_the_pretrained_model_bit_for_bit(triple):
    _, pretrained, finetuned = triple
    vector = task_vector(pretrained, finetuned)
    assert same(shifted(pretrained, vector, 0.0), pretrained)
    assert not same(shifted(pretrained, vector, 0.05), pretrained)
    negative = {"w": torch.tensor([-0.0])}
    assert torch.signbit(shifted(negative, {"w": torch.tensor([1.0])}, 0.0)["w"]), "even the sign of a zero"


def test_one_task_at_alpha_1_is_its_finetuned_model_bit_for_bit(triple):
    _, pretrained, finetuned = triple
    far = moved(pretrained, 1, 30.0)
    for before, after in ((pretrained, finetuned), (far, pretrained)):
        assert same(shifted(before, add({"one": task_vector(before, after)}), 1.0), after)
    in_float32 = {name: values + (pretrained[name] - values) for name, values in far.items()}
    assert not same(in_float32, pretrained), "the control: a difference in float32 does not bring every value back"


def test_a_sum_has_the_same_bits_in_every_order_of_tasks(triple):
    wide = {name: values.double() for name, values in triple[1].items()}
    vectors = {name: task_vector(wide, moved(wide, number)) for number, name in enumerate("dbca")}
    orders = [*permutations(vectors)]
    sums = [add({name: vectors[name] for name in order}) for order in orders]
    assert all(same(total, sums[0]) for total in sums)
    plain = [{key: sum(vectors[name][key] for name in order) for key in wide} for order in orders]
    assert not all(same(total, plain[0]) for total in plain), "the control: plain sums differ"


def test_a_grid_has_both_ends_and_plain_numbers():
    grid = alpha_grid(21)
    assert (grid[:4], grid[-1], len(grid)) == ([0.0, 0.05, 0.1, 0.15], 1.0, 21)


def test_of_equally_good_alphas_the_smallest_is_chosen():
    assert choose_alpha({0.0: 0.5, 0.5: 0.9, 1.0: 0.9}) == 0.5
    assert choose_alpha({1.0: 0.9, 0.5: 0.9, 0.0: 0.5}) == 0.5, "in whatever order they come"
    assert choose_alpha({0.0: 0.5, 0.5: 0.9, 1.0: 0.91}) == 1.0


def test_a_share_of_nothing_is_no_number():
    assert normalised(0.4, 0.8) == 0.5 and normalised(0.4, 0.0) is None
    assert mean_normalised({"a": 0.4, "b": 0.9}, {"a": 0.8, "b": 0.9}) == 0.75
    assert mean_normalised({"a": 0.4, "b": 0.9}, {"a": 0.8, "b": 0.0}) == 0.5
    assert mean_normalised({"a": 0.4}, {"a": 0.0}) == 0.0


# --- The vectors of several tasks as one -------------------------------------------------------------------------------

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
        assert torch.equal(region.flatten(merged_vector("ties", pretrained, models, share)), theirs)
    by_tensor = {
        name: merge_utils.ties([vector[name] for vector in vectors.values()], torch.ones(3), 0.5) for name in SHAPES
    }
    assert not same(merged_vector("ties", pretrained, models, 0.5), by_tensor), "the control"


def test_ties_keeps_exactly_its_share_even_among_equals():
    pretrained = {"w": torch.zeros(100)}
    models = {"only": {"w": torch.ones(100)}}
    assert merged_vector("ties", pretrained, models, 0.3)["w"].nonzero().reshape(-1).tolist() == [*range(30)]


def test_ties_gives_the_same_bits_for_every_order_of_tasks():
    models = {task: {"w": torch.tensor([move])} for task, move in {"a": 2.0**53, "b": 1.0, "c": 1.0}.items()}
    orders = (dict(order) for order in (models, reversed(models.items())))
    there, back = (merged_vector("ties", {"w": torch.zeros(1)}, order, 1.0) for order in orders)
    assert same(there, back)


def test_dare_draws_by_seed_task_and_tensor_and_nothing_else(several):
    pretrained, models = several
    once = merged_vector("dare", pretrained, models, 0.5, seed=13)
    torch.manual_seed(99)
    assert same(merged_vector("dare", pretrained, models, 0.5, seed=13), once)
    assert same(merged_vector("dare", pretrained, dict(reversed(models.items())), 0.5, seed=13), once)
    parts = [merged_vector("dare", pretrained, {task: model}, 0.5, seed=13) for task, model in models.items()]
    assert same(add(dict(zip(models, parts, strict=True))), once)
    assert not same(merged_vector("dare", pretrained, models, 0.5, seed=21), once)  # the control
    nothing, alike = ({name: torch.full((99,), value) for name in ("v", "w")} for value in (0.0, 1.0))
    one, other = (merged_vector("dare", nothing, {task: alike}, 0.5, seed=13) for task in ("first", "second"))
    assert not torch.equal(one["v"], one["w"]) and not torch.equal(one["v"], other["v"])


def test_dare_scales_what_stays_and_keeps_the_sum_on_average():
    pretrained, models = {"w": torch.zeros(100_000)}, {"only": {"w": torch.ones(100_000)}}
    vector = merged_vector("dare", pretrained, models, 0.2, seed=1)["w"]
    assert {*vector.unique().tolist()} == {0.0, 5.0}
    assert float(vector.mean()) == pytest.approx(1, abs=0.03)
    assert same(merged_vector("dare", pretrained, models, 1.0, seed=1), summed(pretrained, models))


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


# --- Pieces --------------------------------------------------------------------------------------------------------------


def of_tasks(count: int, shapes: dict) -> tuple[nn.Module, dict]:
    """A base and tasks whose values are rounded, so that movements are equal, each with another mask."""
    generator, region = torch.Generator().manual_seed(2), Region(shapes)

    def model() -> nn.Module:
        values = {name: torch.randn(shape, generator=generator).round(decimals=1) for name, shape in shapes.items()}
        return nn.ParameterDict({name: nn.Parameter(one, requires_grad=False) for name, one in values.items()})

    tasks = {}
    for number in range(count):
        drawn = torch.randperm(region.size, generator=generator)[: region.size // (number + 1)]
        tasks[f"task {number}"] = (model(), GraftMask.from_region_indices(region, drawn))
    return model(), tasks


@pytest.mark.parametrize("how", [*RULES, *VECTORS])
def test_masks_of_several_regions_are_merged_as_those_of_both_together(how):
    base, tasks = of_tasks(2, shapes := {**SHAPES, "last": (20,)})
    names, apart = [*shapes], {}
    for (task, (model, mask)), own in zip(tasks.items(), (names[:-1], names[1:]), strict=True):  # as if the others hadn't moved
        there = {name: at for name, at in mask.indices.items() if name in own}
        tasks[task] = model, GraftMask(mask.region, there)
        apart[task] = model, GraftMask(Region({name: mask.region.shapes[name] for name in own}), there)
    found, wanted = (dict(merging.merge(base, side, how).named_parameters()) for side in (apart, tasks))
    assert same(found, wanted) and not same(found, dict(base.named_parameters()))


@pytest.mark.parametrize("how", [*RULES, *VECTORS])
def test_in_pieces_a_merge_is_what_it_is_at_once(how, monkeypatch):
    base, tasks = of_tasks(3, SHAPES)
    share = 0.4 if reads(how, "share") else None
    wanted = dict(merging.merge(base, tasks, how, share=share).named_parameters())
    monkeypatch.setattr(sides, "CACHED", 16)
    pieces = sides.pieces_of("w", base, {"": sides.TaskValues(base)})
    assert [piece.start for piece in pieces] == [*range(0, 200, 16)], "control"
    assert same(dict(merging.merge(base, tasks, how, share=share).named_parameters()), wanted)
    assert not same(wanted, dict(base.named_parameters()))


@pytest.mark.parametrize("how", ["mean", "ties"])
def test_a_merge_holds_little_beside_the_new_module(how, monkeypatch):
    monkeypatch.setattr(sides, "CACHED", 256)
    base, tasks = of_tasks(4, {str(number): (64, 64) for number in range(8)})
    with PeakBytes() as counter:
        merging.merge(base, tasks, how)
    assert 1 < counter.peak / (8 * 64 * 64 * 4) < 1.6
    with PeakBytes() as counter:
        merged_vector("arithmetic", dict(base), {task: model for task, (model, _) in tasks.items()})
    assert counter.peak / (8 * 64 * 64 * 4) > 2, "control: a whole vector in float64"


def merged(how: str, before: list, *afters: list, kind: torch.dtype = torch.float32, **options: float) -> list:
    base, *tasks = (_Alone(torch.tensor(values, dtype=kind)) for values in (before, *afters))
    full = GraftMask.full(Region({"w": (len(before),)}))
    return merging.merge(
        base, {str(number): (task, full) for number, task in enumerate(tasks)}, how, **options
    ).w.tolist()


class _Alone(torch.nn.Module):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(values, requires_grad=False)


@pytest.mark.parametrize("how", ["sum", "arithmetic"])
def test_whole_numbers_that_their_type_does_not_hold_are_refused(how):
    assert merged(how, [100, -100], [110, -110], [115, -115], kind=torch.int8) == [125, -125], "control"
    with pytest.raises(MaskError, match="whole numbers come to more than torch.int8 holds"):
        merged(how, [100, -100], [120, -120], [120, -120], kind=torch.int8)


@pytest.mark.parametrize("how", [*RULES, *VECTORS])
def test_a_task_without_numbers_is_named(how):
    for value in (math.nan, math.inf):
        with pytest.raises(MaskError, match=r"^tasks.1: its values of w are infinite or no numbers$"):
            merged(how, [0.0] * 4, [1.0, 2.0, 3.0, 0.5], [1.0, value, 2.0, 0.5], share=0.25 if how == "ties" else 1.0)
    assert merged(how, [math.inf, 0.0], [math.inf, 1.0], [math.inf, 1.0], share=1.0)[0] == math.inf, "control"


def test_an_average_goes_as_far_as_alpha_says():
    for alpha, wanted in ((1.0, 2.0), (0.5, 1.0), (3.0, 6.0)):
        assert merged("average", [0.0], [1.0], [3.0], alpha=alpha) == [wanted]


@pytest.mark.parametrize("how", [*RULES, *VECTORS])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_narrow_numbers_are_merged_as_wide_ones(how, kind):
    values = [0.5, -0.25, 1.0, 2.0], [0.5, 0.25, 2.0, 3.0], [0.5, -0.25, 2.0, 2.0]
    assert merged(how, *values, kind=kind, share=1.0) == merged(how, *values, share=1.0)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_highest_of_parts_are_those_of_all(kind):
    numbers = torch.randn(900, generator=torch.Generator().manual_seed(1), dtype=kind).abs()
    numbers[::7] = numbers[0]
    numbers[3], numbers[5::50] = torch.inf, 0.0
    above, ks = int((numbers > 0).sum()), (1, 2, 77, 300, 800)
    found = kth_highest(lambda: ([part] * len(ks) for part in numbers.split(100)), ks, kind)
    for k, least in zip(ks, found, strict=True):
        highest = numbers.sort(descending=True).values[:k]
        assert least == (highest[-1].item(), int((highest == highest[-1]).sum()))
    ends = kth_highest(lambda: ([part] * 4 for part in numbers.split(100)), (0, above, above + 1, 901), kind)
    assert ends == [(torch.inf, 0), (numbers[numbers > 0].min().item(), 1), (0.0, 0), (0.0, 0)]


@pytest.mark.parametrize("how", [*RULES, *VECTORS])
@pytest.mark.parametrize("masked", [False, True])
def test_what_no_task_changed_is_not_worked_on_and_the_result_is_the_same(how, masked, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    base, tasks = of_tasks(3, SHAPES)
    shared = {name: torch.rand(weight.shape, generator=generator) < 0.05 for name, weight in base.named_parameters()}
    for model, _ in tasks.values():
        for name, weight in model.named_parameters():
            few = shared[name] | (torch.rand(weight.shape, generator=generator) < 0.03)
            weight.data.copy_(torch.where(few, weight, base.get_parameter(name)))
    region = next(iter(tasks.values()))[1].region
    asked = tasks if masked else {task: (model, GraftMask.full(region)) for task, (model, _) in tasks.items()}
    sizes, changed, share = [], sides.Piece.changed, 0.4 if reads(how, "share") else None

    def narrowed(piece):
        found = changed(piece)
        sizes.append((len(found.before), len(piece.before)))
        return found

    monkeypatch.setattr(sides.Piece, "changed", narrowed)
    found = dict(merging.merge(base, asked, how, share=share, seed=5).named_parameters())
    assert masked or sum(few for few, _ in sizes) < 0.25 * sum(all_ for _, all_ in sizes)
    monkeypatch.setattr(sides.Piece, "changed", lambda piece: piece)
    whole = dict(merging.merge(base, asked, how, share=share, seed=5).named_parameters())
    assert same(found, whole) and not same(found, dict(base.named_parameters()))
