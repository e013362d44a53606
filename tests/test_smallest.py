"""The smallest size of a skill: the search for it, the code of a graft in signs, and the report on them."""

import math
import re
from collections.abc import Iterable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from stages.lib.errors import DataError
from stages.lib.graft.apply import graft
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.readout import signs
from stages.lib.graft.region import Region
from stages.lib.io import read_json, read_rows, write_json, write_rows
from stages.lib.metrics.predictions import dev_set, read_predictions, write_predictions
from stages.lib.report.claims import judge, read_statements
from stages.lib.report.document import Claim, Verdict
from stages.lib.report.publish import figures, plot_data
from stages.lib.report.table import shown
from stages.smallest.experiment import smallest_graft
from stages.smallest.experiment.bisection import most_looks, smallest_enough
from stages.smallest.experiment.code_length import certified_error, code_bits, rows_for
from stages.smallest.experiment.smallest_graft import search
from stages.smallest.figures import FIGURES
from stages.smallest.frames import Smallest, collect
from stages.smallest.report import CLAIMS, MEASURES, details, headline, report, tables
from stages.smallest.settings import SmallestParams
from stages.smallest.sizes_by_model import read_runs, sizes_by_model, table
from stages.workflow.core import paths
from stages.workflow.core.evaluation.reference import predict_reference
from tests.pico import TOY, all_localizers, model_settings, runtime

TASK, SEED = "toy", 0


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
def cell(project, make_cell):
    """The files that the main pipeline makes of one pico cell."""
    made = make_cell("prompt")
    made.lay_out(SEED)
    predict_reference(TASK, SEED, model_settings("prompt"), runtime())
    return made


def settings(least: float = 0.05, **changes: Any) -> SimpleNamespace:
    own = {"localizers": ["movement"], "tasks": [TASK], "gain": 0.9, "largest": 1.0, "precision": 1.5} | changes
    return SimpleNamespace(
        model=model_settings("prompt"), graft=SimpleNamespace(region=["layers"]), calibration=SimpleNamespace(bins=15),
        summary=SimpleNamespace(least_gain=least), localizer=all_localizers(steps=2, batch_size=8), smallest=SmallestParams(**own),
    )  # fmt: skip


def searched(name: str, least: float = 0.05, **changes: Any) -> dict[str, Any]:
    """The record of a search."""
    search(name, TASK, SEED, settings(least, **changes), runtime())
    return read_json(paths.reading_record("search", (name,), TASK, SEED))


@pytest.mark.parametrize("name", ["movement", "doubling", "grown", "bias"])
def test_a_cell_has_its_smallest_graft_and_all_that_was_asked(cell, name):
    found = searched(name)
    gains = {look["selected"]: look["gain"] for look in found["asked"]}
    if name == "bias":
        assert found["largest"] < cell.region.size, "there are no more biases"
    else:
        assert found["enough"] is True and gains[found["selected"]] >= 0.9
        assert gains[max(size for size in gains if size < found["selected"])] < 0.9
    stored = read_predictions(paths.reading_logits("search", (name,), TASK, SEED))
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


# --- The report -------------------------------------------------------------------------------------------------

TASKS, SEEDS, REGION = ["a", "b", "c", "d"], [1, 2], 1_000_000
SIZES = {"movement": 4000.0, "grown": 1000.0, "random": 400_000.0}


def write_cell(name: str, size: float, task: str, seed: int, enough: bool | None = True) -> None:
    draw = np.random.default_rng([len(name), ord(task), seed])
    selected = int(size * np.exp(0.1 * draw.normal()))
    scores = {"pretrained": 0.6, "finetuned": 0.9, "grafted": 0.893 + 0.002 * draw.normal(), "signs": 0.88}
    same = {"test_set": task, "n": 300, "ece": 0.05, "agreement": 0.9, "constant": 0.5, "majority": 0.4}
    rows = [
        {**same, "variant": variant, "score": score, "accuracy": score, "retained": score / 0.9}
        for variant, score in scores.items()
    ]
    rows += [{**row, "test_set": f"{task}:train", "n": 100_000, "accuracy": 0.95} for row in rows[2:]]
    about = {
        "stage": "search", "task": task, "seed": seed, "selected": selected, "graftable": REGION, "model_parameters": 2 * REGION,
        "largest": REGION, "enough": enough, "gradient_examples": 64, "bits": code_bits(selected, REGION, 10), "tensors": 10,
        "dev": {"n": 128}, "asked": [{"selected": REGION, "gain": 1.0}, {"selected": selected, "gain": 0.96}],
    }  # fmt: skip
    write_json(paths.reading_record("search", (name,), task, seed), {**about, "rows": rows})


def gather(localizers: Iterable[str] = SIZES) -> Smallest:
    own = SmallestParams(localizers=[*localizers], tasks=TASKS, gain=0.95, largest=1.0, precision=1.1)
    return collect(SEEDS, own, 0.05)


@pytest.fixture
def found(project):
    for (name, size), task, seed in product(SIZES.items(), TASKS, SEEDS):
        write_cell(name, size, task, seed)
    return gather()


def claims(data: Smallest) -> dict[str, Claim]:
    return {claim.text: claim for claim in judge(read_statements(CLAIMS), MEASURES, data, "toy", data.settings)}


def test_effects_that_were_put_in_hold_and_none_else(found):
    told = claims(found)
    smaller = [claim for text, claim in told.items() if "smaller" in text]
    assert [claim.verdict for claim in smaller] == [Verdict.HOLDS, Verdict.HOLDS] and "4." in smaller[0].figure
    for text in (
        "Grafts of the sizes that dev chose bring 95 % of the gain on test rows too: grown",
        "With signs for values a graft keeps 95 % of its score: movement",
    ):
        assert told[text].verdict is Verdict.HOLDS
    promised = {text.rpartition(": ")[2]: claim.verdict for text, claim in told.items() if "certifies" in text}
    assert promised == {"movement": Verdict.HOLDS, "grown": Verdict.HOLDS, "random": Verdict.FAILS}


def test_a_size_that_is_only_a_bound_may_not_be_called_the_smaller_one(found):
    for task in TASKS:
        write_cell("grown", SIZES["grown"], task, 1, enough=False)
    [claim] = [claim for text, claim in claims(gather()).items() if text.startswith("Grown")]
    assert claim.verdict is Verdict.OPEN and "no size was enough in some cells of grown" in claim.figure
    write_cell("random", SIZES["random"], "a", 1, enough=False)
    [claim] = [claim for text, claim in claims(gather()).items() if "random ones" in text]
    assert claim.verdict is Verdict.HOLDS, "the control: of the larger one a bound is enough"


def test_numbers_are_those_of_the_records(found):
    few = headline(found)
    assert few["parameters"]["movement"] == pytest.approx(4000, rel=0.2)
    stored = details(found)
    assert stored["sizes"]["grown"]["gain"]["mean"] == pytest.approx(0.977, abs=0.01)
    assert stored["sizes"]["random"]["n"] == 8
    assert stored["signs"]["grown"]["minus_graft"]["mean"] == pytest.approx(-0.013, abs=0.003)
    rows = {row.cells[0]: row.cells for table in shown(tables(found))[:1] for row in table.rows}
    assert rows["movement"][2] == "8 of 8" and rows["movement"][3] == f"{few['parameters']['movement']:,.0f}"


def test_cells_without_an_answer_are_left_out_and_counted(found):
    write_cell("movement", 7.0, "a", 1, enough=None)
    write_cell("movement", 9e5, "b", 1, enough=False)
    data = gather()
    sizes, by_task, *_ = shown(tables(data))
    assert sizes.rows[0].cells[1:3] == ["7", "6 of 7"] and sizes.rows[0].cells[3].startswith("at least ")
    assert "without 1 of 24 cells" in sizes.notes[-1]
    assert by_task.rows[1].cells[1].startswith("at least ")
    promised = data.certificates[data.certificates.localizer == "movement"]
    assert len(data.measure("movement", "grafted", "score")) == len(promised) == 6
    assert promised.error.tolist() == pytest.approx([0.05] * 6) and promised.baseline.tolist() == [0.6] * 6


@pytest.mark.usefixtures("bare")
def test_figures_and_the_data_behind_them(found, tmp_path):
    figures(FIGURES, found)(tmp_path)
    plot_data(found.plots)(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "sizes.png", "looks.png", "sizes.csv", "scores.csv", "looks.csv", "certificates.csv",
    }  # fmt: skip
    title = " ".join(FIGURES["sizes"](found).texts[0].get_text().split())
    assert title.startswith("Parameters that bring 95 % of the gain: grown ") and "random" in title


def test_nothing_at_all(project):
    nothing = gather([])
    assert report(nothing).tables == [] == report(nothing).claims
    assert not any(draw(nothing) for draw in FIGURES.values()) and headline(nothing) == {"parameters": {}}


# --- Several models ---------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path):
    """sizes.csv of a small model (three tasks, two seeds) and of a large one (two tasks, one seed, one size not enough)."""
    small = [
        f"{name},{task},{seed},{size},1000,True"
        for name, (task, size), seed in product(("movement", "grown"), (("a", 10), ("b", 1000), ("c", 7)), (0, 1))
    ]
    large = [
        "movement,a,0,4,20000,True",
        "movement,b,0,400,20000,False",
        "movement,d,0,1,20000,True",
        "random,a,0,1,20000,",
    ]
    files = {"small": small, "large": large, "none": ["movement,z,0,1,9,True"], "open": ["movement,a,0,1,9,"]}
    for name, lines in files.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["localizer,task,seed,selected,graftable,enough", *lines, ""]))
    return [f"big model={tmp_path}/large.csv", f"tiny={tmp_path}/small.csv"]


def test_models_are_compared_on_the_tasks_and_localizers_that_all_have(runs, tmp_path):
    found = read_runs(runs)
    assert {*found.task} == {"a", "b"} and {*found.localizer} == {"movement"} and found.model.iloc[0] == "tiny"
    [made] = shown([table(found)])
    cells = {row.cells[1]: row.cells for row in made.rows}
    assert cells["tiny"][2:6] == ["1,000", "4", "4 of 4", "100"] and cells["tiny"][7:] == ["10 to 1,000", "10.00 %"]
    assert cells["tiny"][6] and not cells["big model"][6], "two seeds have an interval, one has none"
    assert cells["big model"][4:6] == ["1 of 2", "at least 40"] and cells["big model"][-1] == "0.20 %"
    title = " ".join(sizes_by_model(found).texts[0].get_text().split())
    models = "Fewest parameters that bring most of the gain, by movement: 100 (tiny), at least 40 (big model)"
    assert title.startswith(models)
    assert "2 models, 2 tasks (a, b), seeds 2, 1" in title


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny"], "'tiny': MODEL=FILE is wanted"),
        (["tiny=nowhere.csv"], "nowhere.csv: not the sizes.csv of a run of `make smallest`"),
        (["{0}", "{0}"], "big model is named twice"),
        (["other={folder}/odd.csv"], "no column localizer"),
        (["{0}", "y={folder}/none.csv"], "no task is in all of these"),
        (["x={folder}/open.csv"], "no search has an answer"),
    ],
)
def test_runs_that_cannot_be_compared_are_told_why(runs, tmp_path, words, said):
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=re.escape(said)):
        read_runs([word.format(*runs, folder=tmp_path) for word in words])
