"""Task arithmetic starts at the pretrained model, ends at the fine-tuned one, and forgets the order of tasks."""

from itertools import permutations

import torch

from skill_grafting.merging.arithmetic import (
    add,
    alpha_grid,
    choose_alpha,
    mean_normalised,
    normalised,
    shifted,
    task_vector,
)
from tests.pico import same


def another(pretrained: dict, seed: int, size: float = 0.1) -> dict:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: values + size * torch.randn(values.shape, dtype=values.dtype, generator=generator)
        for name, values in pretrained.items()
    }


def test_alpha_0_is_the_pretrained_model_bit_for_bit(triple):
    _, pretrained, finetuned = triple
    vector = task_vector(pretrained, finetuned)
    assert same(shifted(pretrained, vector, 0.0), pretrained)
    assert not same(shifted(pretrained, vector, 0.05), pretrained)
    negative = {"w": torch.tensor([-0.0])}
    assert torch.signbit(shifted(negative, {"w": torch.tensor([1.0])}, 0.0)["w"]), "even the sign of a zero"


def test_one_task_at_alpha_1_is_its_finetuned_model_bit_for_bit(triple):
    _, pretrained, finetuned = triple
    far = another(pretrained, 1, 30.0)
    for before, after in ((pretrained, finetuned), (far, pretrained)):
        assert same(shifted(before, add({"one": task_vector(before, after)}), 1.0), after)
    in_float32 = {name: values + (pretrained[name] - values) for name, values in far.items()}
    assert not same(in_float32, pretrained), "the control: a difference in float32 does not bring every value back"


def test_a_model_keeps_its_type_and_the_inputs_stay_as_they_are(triple):
    _, pretrained, finetuned = triple
    vectors = {"b": task_vector(pretrained, finetuned), "a": task_vector(pretrained, another(pretrained, 1))}
    before, first = ({name: values.clone() for name, values in part.items()} for part in (pretrained, vectors["a"]))
    merged = shifted(pretrained, add(vectors), 0.3)
    assert {values.dtype for values in merged.values()} == {torch.float32}
    assert same(pretrained, before) and same(vectors["a"], first)


def test_a_sum_has_the_same_bits_in_every_order_of_tasks(triple):
    wide = {name: values.double() for name, values in triple[1].items()}
    vectors = {name: task_vector(wide, another(wide, number)) for number, name in enumerate("dbca")}
    orders = [*permutations(vectors)]
    sums = [add({name: vectors[name] for name in order}) for order in orders]
    assert all(same(total, sums[0]) for total in sums)
    plain = [{key: sum(vectors[name][key] for name in order) for key in wide} for order in orders]
    assert not all(same(total, plain[0]) for total in plain), "the control: plain sums differ"


def test_what_is_added_is_taken_away_by_its_negative(triple):
    _, pretrained, finetuned = triple
    vector = task_vector(pretrained, finetuned)
    negative = {name: -values for name, values in vector.items()}
    back = shifted(finetuned, negative)
    assert all(torch.allclose(back[name], pretrained[name], atol=1e-7) for name in pretrained)
    assert same(add({"there": vector, "back": negative}), {name: 0 * values for name, values in vector.items()})


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
