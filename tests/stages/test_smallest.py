"""The smallest size of a skill: the search for it, the code of a graft in signs, and the report on them."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.readout import signs
from skill_grafting.grafting.region import Region
from skill_grafting.io import read_json, read_rows, write_rows
from skill_grafting.metrics.predictions import dev_set, read_predictions, write_predictions
from stages.smallest.experiment import smallest_graft
from stages.smallest.experiment.bisection import most_looks, smallest_enough
from stages.smallest.experiment.code_length import certified_error, code_bits, rows_for
from stages.smallest.experiment.smallest_graft import search
from stages.smallest.frames import answered, by_localizer, by_task, certificates, ratios
from stages.smallest.settings import SmallestParams
from stages.workflow.core import paths
from tests.cells import SEED
from tests.pico import TOY, all_localizers, model_settings, runtime

TASK = "toy"


# --- The search -------------------------------------------------------------------------------------------------


@example(3, 0, 3.0)
@given(st.integers(1, 100_000), st.integers(0, 100_001), st.floats(1.01, 4))
def test_the_size_found_is_enough_and_is_the_least_up_to_the_precision(largest, least, precision):
    asked = []

    def enough(size: int) -> bool:
        asked.append(size)
        return size >= least

    found = smallest_enough(enough, largest, precision)
    assert len(asked) == len({*asked}) <= most_looks(largest, precision), "none is asked twice"
    if least > largest:
        assert found is None
    else:
        assert least <= found <= max(least - 1, 0) * precision + 1


@given(st.sets(st.integers(1, 300)), st.integers(1, 300))
def test_where_more_is_not_always_enough_it_is_a_place_where_enough_begins(good, largest):
    found = smallest_enough(good.__contains__, largest, 1.0001)
    assert (found is None) == (largest not in good)
    assert found is None or (found in good and found - 1 not in good)
    assert smallest_enough(lambda _: True, 0, 2.0) is None


# --- Signs and their code ---------------------------------------------------------------------------------------


def test_signs_move_each_selected_parameter_by_one_distance_of_its_tensor_the_closest_one(triple):
    region, pretrained, finetuned = triple
    mask = GraftMask.from_region_indices(region, torch.arange(3, region.size, 2))
    made, own = signs(pretrained, finetuned, mask), graft(pretrained, finetuned, mask)
    for name, before in pretrained.items():
        chosen = torch.zeros(before.numel(), dtype=torch.bool)
        chosen[mask.indices.get(name, [])] = True
        moved, delta = ((values[name] - before).flatten() for values in (made, own))
        assert torch.equal(made[name].flatten()[~chosen], before.flatten()[~chosen])
        assert torch.equal(moved[chosen].sign(), delta[chosen].sign())
        if name not in mask.indices:
            continue
        distance = moved[chosen].abs()
        assert torch.allclose(distance, distance[:1].expand_as(distance), atol=1e-6)
        for other in (0.9, 1.1):  # the control: no other distance is as close
            there = (moved - delta)[chosen].square().sum()
            assert there < (other * moved - delta)[chosen].square().sum() + 1e-12
    assert torch.equal(signs(pretrained, pretrained, mask)["b.weight"], pretrained["b.weight"]), "nothing moved"
    region, zeros, after = Region({"w": (3,)}), {"w": torch.zeros(3)}, {"w": torch.tensor([0.0, -1.0, 2.0])}
    assert signs(zeros, after, GraftMask.full(region))["w"].tolist() == [1, -1, 1], "what did not move goes up"


def test_the_code_is_as_long_as_what_it_tells_apart():
    # a number of 0 to 8, one of 8, a sign, a distance
    assert code_bits(1, 8, 1) == pytest.approx(math.log2(9) + 3 + 1 + 32)
    # the names of all grafts of signs together are no more than there is room for (Kraft), and fill it
    assert sum(math.comb(10, k) * 2**k * 2 ** -code_bits(k, 10, 0) for k in range(11)) == pytest.approx(1)


def test_a_certificate_is_the_one_that_can_be_worked_out_by_hand_and_says_nothing_for_a_long_code():
    room = (10 * math.log(2) + math.log(20)) / 1000
    assert certified_error(0.0, 1000, 10, 0.05) == pytest.approx(1 - math.exp(-room), abs=1e-6)
    assert certified_error(0.1, 1000, 10, 0.05) > 0.1 + room
    assert certified_error(0.1, 100, 10_000, 0.05) == pytest.approx(1.0, abs=1e-6)
    assert certified_error(1.0, 9, 1, 0.5) == 1
    needed = rows_for(0.1, 0.5, 10_000, 0.05)
    assert certified_error(0.1, needed, 10_000, 0.05) <= 0.5 < certified_error(0.1, needed - 1, 10_000, 0.05)
    assert rows_for(0.5, 0.5, 10, 0.05) is None
    for wrong in ((1.1, 10, 1, 0.1), (0.1, 0, 1, 0.1), (0.1, 10, 1, 1.0)):
        with pytest.raises(ValueError, match="no bound"):
            certified_error(*wrong)


def test_certificates_hold_where_the_best_of_many_is_taken_and_a_bound_for_one_does_not():
    """The class has 2^8 coins; the one with the fewest errors on 60 rows is taken, as training would."""
    draw, rows, bits, wrong, naive = np.random.default_rng(0), 60, 8, 0, 0
    for _ in range(300):
        best = draw.binomial(rows, 0.5, 2**bits).min() / rows
        wrong += certified_error(best, rows, bits, 0.05) < 0.5
        naive += certified_error(best, rows, 0, 0.05) < 0.5
    assert wrong <= 15 and naive > 150


# --- A cell -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cell(after_main, make_cell):
    """Stands in what the main pipeline makes of a pico cell."""
    after_main("prompt")
    return make_cell("prompt")


def settings(least: float = 0.05, **changes: Any) -> SimpleNamespace:
    own = {"localizers": ["movement"], "tasks": [TASK], "gain": 0.9, "largest": 1.0, "precision": 1.5} | changes
    return SimpleNamespace(
        model=model_settings("prompt"), graft=SimpleNamespace(region=["layers"]), calibration=SimpleNamespace(bins=15),
        summary=SimpleNamespace(least_gain=least), localizer=all_localizers(steps=2, batch_size=8), smallest=SmallestParams(**own),
    )  # fmt: skip


def searched(name: str, least: float = 0.05, **changes: Any) -> dict[str, Any]:
    """The record of a search."""
    search(name, TASK, SEED, settings(least, **changes), runtime())
    return read_json(paths.stage_record("search", (name,), TASK, SEED))


@pytest.mark.parametrize("name", ["movement", "doubling", "grown", "bias"])
def test_a_cell_has_its_smallest_graft_and_all_that_was_asked(cell, name):
    found = searched(name)
    gains = {look["selected"]: look["gain"] for look in found["asked"]}
    if name == "bias":
        assert found["largest"] < cell.region.size, "there are no more biases"
    else:
        assert found["enough"] is True and gains[found["selected"]] >= 0.9
        assert gains[max(size for size in gains if size < found["selected"])] < 0.9
    stored = read_predictions(paths.stage_logits("search", (name,), TASK, SEED))
    assert {*stored.logits} == {TASK, f"{TASK}:train"} and {*stored.logits[TASK]} == {"grafted", "signs"}
    measured = {row["variant"] for row in found["rows"] if row["test_set"] == TASK}
    assert measured == {"grafted", "signs", "pretrained", "finetuned"}
    assert found["dev"]["n"] == 32 and found["dev"]["finetuned"] - found["dev"]["pretrained"] > 0.05


def test_a_whole_region_brings_all_of_the_gain_and_the_control_of_a_few_parameters_does_not(cell):
    gains = {look["selected"]: look["gain"] for look in searched("movement", gain=1.0, precision=1.01)["asked"]}
    assert gains[cell.region.size] == 1.0
    few = searched("movement", largest=2 / cell.region.size)
    assert few["enough"] is False and few["selected"] == 2 and few["asked"][-1]["gain"] < 0.9


def test_where_fine_tuning_gained_too_little_on_dev_nothing_is_searched(cell):
    assert "gained too little" in search("movement", TASK, SEED, settings(least=0.99), runtime())
    found = searched("movement", least=0.99)
    assert found["enough"] is None and found["asked"] == []


@pytest.mark.parametrize(("name", "worth_it"), [(dev_set(TASK), None), (TASK, True)])
def test_what_fine_tuning_gained_is_asked_of_dev_alone(cell, name, worth_it):
    file = paths.predictions("reference", TASK, SEED)
    stored, dev = read_predictions(file), read_predictions(file, dev=True)
    stored.labels[dev_set(TASK)], stored.logits[dev_set(TASK)] = dev.labels[TASK], dev.logits[TASK]
    stored.logits[name]["pretrained"] = stored.logits[name]["finetuned"]  # no gain there
    write_predictions(file, stored)
    assert searched("movement")["enough"] is worth_it


@pytest.mark.parametrize(("split", "enough"), [("dev", False), ("train", True)])
def test_a_graft_is_judged_on_dev_rows_alone(cell, split, enough):
    file = paths.sample(TASK, SEED, split)
    other = dict(zip(TOY.labels, reversed(TOY.labels), strict=True))
    write_rows(file, [{**row, "label": other[row["label"]]} for row in read_rows(file)])
    assert searched("movement")["enough"] is enough


def test_the_search_is_the_same_each_time(cell, monkeypatch):
    first = searched("doubling")
    assert searched("doubling") == first
    monkeypatch.setattr(smallest_graft, "smallest_enough", lambda enough, largest, _: enough(largest) and largest)
    assert searched("doubling") != first, "the control"


# --- What the report says of them ---------------------------------------------------------------------------------


def searches(*rows):
    """Searches by localizer, task, seed, size and whether it is enough, in a region of 1,000 parameters."""
    frame = pd.DataFrame(rows, columns=["localizer", "task", "seed", "selected", "enough"]).astype({"enough": object})
    return frame.assign(graftable=1000, bits=32.0 * frame.selected)


MADE = searches(
    ("movement", "a", 1, 10, True), ("movement", "a", 2, 1000, True), ("movement", "b", 1, 100, True), ("movement", "b", 2, 100, True),
    ("grown", "a", 1, 1, True), ("grown", "a", 2, 100, True), ("grown", "b", 1, 10, False), ("grown", "b", 2, 7, None),
)  # fmt: skip


def test_sizes_are_geometric_means_over_tasks_and_lower_bounds_where_one_was_not_enough():
    found = answered(MADE)
    rows = by_localizer(found).set_index("localizer")
    assert rows.size_text.to_dict() == {"movement": "100", "grown": "at least 10"} and rows.share[
        "movement"
    ] == pytest.approx(0.1)
    assert rows.smaller.tolist() == pytest.approx([2, 2]), "64 bits of a patch for 32 here"
    tasks = by_task(found, ["b", "a"])
    assert tasks.to_dict("list") == {
        "task": ["b", "b", "a", "a"], "localizer": ["movement", "grown"] * 2, "size_text": ["100", "at least 10", "100", "10"],
    }  # fmt: skip


def test_a_size_that_is_only_a_bound_may_not_be_called_the_smaller_one():
    rows = ratios(answered(MADE)).set_index("pair")
    assert rows.ratio["grown, movement"].tolist() == pytest.approx([1, 1, 1]), (
        "of the cells that both have an answer for"
    )
    assert {*rows.hidden["grown, movement"]} == {"no size was enough in some cells of grown"}
    larger = searches(("movement", "a", 1, 10, True), ("random", "a", 1, 500, False))
    assert ratios(answered(larger)).set_index("pair").hidden["movement, random"] == "", (
        "the control: of the larger one a bound is enough"
    )


def test_a_code_certifies_what_its_length_and_training_rows_allow():
    same = {
        "localizer": "movement",
        "task": "a",
        "variant": "signs",
        "where": "train",
        "accuracy": 0.95,
        "majority": 0.4,
    }
    scores = pd.DataFrame([{**same, "seed": seed, "n": rows} for seed, rows in ((1, 100_000), (2, 100), (3, 100))])
    found = certificates(scores, MADE[MADE.task == "a"])
    assert found.seed.tolist() == [1, 2], "where a size was found"
    assert found.error.tolist() == pytest.approx([0.05, 0.05]) and found.baseline.tolist() == [0.6, 0.6]
    assert (
        found.certified[0] == pytest.approx(certified_error(0.05, 100_000, 320.0, 0.05)) and found.certified[1] > 0.99
    )
    assert found.needed.tolist() == [rows_for(0.05, 0.6, bits, 0.05) for bits in (320.0, 32_000.0)]
