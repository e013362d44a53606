"""The running selection is the selection, whatever comes first, and however much of it there is."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skill_grafting.grafting import select
from skill_grafting.grafting.region import Region
from skill_grafting.grafting.select import LazyTensors, RunningSelection, ranking, top_k
from tests.memory import PeakBytes

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def drawn(sizes: list[int], levels: int, seed: int) -> tuple[Region, dict[str, torch.Tensor]]:
    """A region with scores of few levels, so that most are tied; both zeros are among them."""
    generator = np.random.default_rng(seed)
    region = Region({f"t{number}": (size, 2) for number, size in enumerate(sizes)})
    values = np.array([0.0, -0.0, 1.5, -np.inf, np.inf, 0.1, -2.0], dtype=np.float32)[:levels]
    draw = {name: torch.from_numpy(generator.choice(values, shape)) for name, shape in region.shapes.items()}
    return region, draw


def known_order(region: Region, scores: dict[str, torch.Tensor], k: int) -> list[int]:
    """The k best by a sort of everything."""
    flat = region.flatten(scores)
    return torch.sort(flat, descending=True, stable=True).indices[:k].tolist()


@given(SIZES, st.integers(1, 7), st.integers(0, 10**6), st.floats(0, 1), st.integers(1, 7))
def test_it_is_the_selection_ties_included(sizes, levels, seed, share, part):
    region, scores = drawn(sizes, levels, seed)
    k = round(share * region.size)
    whole, select.PART = select.PART, part
    try:
        found = ranking(region, LazyTensors(region.shapes, scores.__getitem__), k)
        numbered = RunningSelection(k)
        numbered.add(region.flatten(scores), torch.arange(region.size))
    finally:
        select.PART = whole
    assert found.tolist() == numbered.order().tolist() == known_order(region, scores, k)
    assert sorted(found.tolist()) == top_k(region, scores, k).region_indices().tolist()


@given(SIZES, st.integers(1, 7), st.integers(0, 10**6), st.floats(0, 1))
def test_the_order_in_which_tensors_come_plays_no_part(sizes, levels, seed, share):
    region, scores = drawn(sizes, levels, seed)
    k, starts = round(share * region.size), region.starts
    chosen = RunningSelection(k)
    for name in np.random.default_rng(seed).permutation([*region.shapes]):
        chosen.add(scores[name], starts[name])
    assert chosen.order().tolist() == known_order(region, scores, k)


def test_control_a_selection_that_keeps_the_first_of_equals_is_another_one():
    """The rule for ties matters: tensors that come backwards, and no look at the index."""
    region, scores = drawn([4, 4, 4], 1, 0)
    assert known_order(region, scores, 3) == [0, 1, 2]
    chosen, starts = RunningSelection(3), region.starts
    for name in reversed(region.shapes):
        chosen.add(scores[name], -starts[name] - 100)
    assert [abs(index) - 100 for index in chosen.order().tolist()] != [0, 1, 2]


def test_it_holds_k_candidates_and_one_part(monkeypatch):
    monkeypatch.setattr(select, "PART", 1000)
    region = Region({f"t{number}": (4_000,) for number in range(8)})
    generator = torch.Generator().manual_seed(0)
    scores = LazyTensors(region.shapes, lambda _: torch.randint(0, 5, (4_000,), generator=generator).float())
    with PeakBytes() as counted:
        ranking(region, scores, 100)
    assert counted.peak < 4 * 4_000 * 4 < region.size * 4, "a tensor or two, never the region"


def test_a_lazy_tensor_is_made_when_it_is_asked_for():
    made: list[str] = []
    lazy = LazyTensors(["a", "b"], lambda name: made.append(name) or torch.ones(1))
    assert [*lazy] == ["a", "b"] and len(lazy) == 2 and not made and "c" not in lazy
    assert lazy["b"] == 1 and made == ["b"]
    with pytest.raises(KeyError):
        lazy["c"]
