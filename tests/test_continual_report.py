"""The report on continual learning, on synthetic records whose effects are known."""

from contextlib import chdir
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from stages.continual import report as reporting
from stages.continual.figures import makers
from stages.continual.report import OFF, Sequences, collect, details, headline, matrix, size
from stages.lib.errors import DataError
from stages.lib.io import read_json, write_json
from stages.lib.report.document import Claim
from stages.lib.report.publish import figures, to_markdown
from stages.workflow.core import paths
from tests.reports import once

report = once(reporting.report)
METHODS = ["naive", "grafting", "replay", "ewc"]
ORDERS = {"paper": ["qnli", "ag_news", "sst2"], "back": ["sst2", "ag_news", "qnli"]}
SEEDS = [13, 21]
# accuracy when learned, and what is lost in each later step
EFFECTS = {"naive": (0.90, 0.10), "grafting": (0.89, 0.0), "replay": (0.90, 0.03), "ewc": (0.88, 0.05)}
SKILL = {"naive": 0, "grafting": 80_000, "replay": 9_000, "ewc": 8_000_000}
MODEL = 4_000_000
HERE = "some model, prompt, 64 shots, graft of 1.00 %"


def write_records(root: Path, effects: dict = EFFECTS, orders: dict = ORDERS, methods: list[str] = METHODS) -> None:
    """Records in which every method loses as much in every step, with a little noise over seeds."""
    for method, (order, tasks), seed in product(methods, orders.items(), SEEDS):
        (learned, lost), noise = effects[method], 0.001 * seed / 13
        for place, task in enumerate(tasks, 1):
            rows = [scores("finetuned", 0, None, 0.92 + noise), scores("pretrained", 0, None, 0.5)]
            for step, after in [*enumerate(tasks, 1)][place - 1 :]:
                accuracy = max(learned + noise - lost * (1 + noise) * (step - place), 0.0)
                same = method == "grafting" or step == place
                known = {"unchanged": same, "agreement_with_own": 1.0 if same else 0.9}
                rows.append(scores(f"after_{after}", step, after, accuracy) | known)
            record = {"method": method, "order": order, "seed": seed, "task": task, "place": place, "tasks": tasks}
            skill = SKILL[method] if method == "ewc" else SKILL[method] * place
            record |= {"kept_bytes": {"head": 3_000 * place, "skill": skill}, "model_bytes": MODEL, "rows": rows}
            record |= {"training": {"rate_factor": 4.0 if method == "grafting" else 1.0}}
            if method == "grafting":
                record |= {"region": 10_000, "own": 10_000 - 500 * (place - 1)}
            write_json(root / paths.reading_record("sequence", (method, order), task, seed), record)


def scores(variant: str, step: int, after: str | None, accuracy: float) -> dict[str, Any]:
    measures = dict.fromkeys(("accuracy", "score", "f1", "ece", "loss", "agreement"), accuracy)
    return {"variant": variant, "step": step, "after": after, "n": 250, "accuracy_se": 0.02, **measures}


def change_last(method: str, order: str, task: str, seed: int, **values: object) -> None:
    """Other values after the last step, in a stored record."""
    path = paths.reading_record("sequence", (method, order), task, seed)
    record = read_json(path)
    record["rows"][-1] |= values
    write_json(path, record)


def read(known: dict[str, list[str]] = ORDERS, **changes: object) -> Sequences:
    """The records written of these methods, orders and seeds."""
    settings = {"methods": METHODS, "orders": [*known], "seeds": SEEDS, **changes}
    return collect(settings["seeds"], SimpleNamespace(**settings), known)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Sequences:
    folder = tmp_path_factory.mktemp("records")
    write_records(folder)
    with chdir(folder):
        return read()


def table(data: Sequences, title: str) -> dict[str, list[str]]:
    """First column -> the others, of the table whose title begins so; the paper's rows too."""
    [chosen] = [made for made in report(data, HERE).tables if made.title.startswith(title)]
    return {line.cells[0].strip(): line.cells[1:] for line in chosen.rows}


def claims(data: Sequences) -> list[Claim]:
    return report(data, HERE).claims


def verdicts(data: Sequences) -> dict[str, str]:
    return {claim.text.partition(",")[0].partition(":")[0]: claim.verdict for claim in claims(data)}


# --- Reading ---------------------------------------------------------------------------------------------------


def test_a_matrix_has_a_row_for_each_step_and_nothing_before_a_task_was_learned(data):
    rows = data.steps("paper")
    values = matrix(rows[(rows.method == "naive") & (rows.seed == 13)])
    assert values.shape == (3, 3) and np.isnan(values[np.triu_indices(3, 1)]).all()
    assert values[2, 0] == pytest.approx(0.901 - 0.2 * 1.001) and values[1, 1] == pytest.approx(0.901)


def test_a_record_of_other_tasks_is_named_with_what_makes_it(project):
    write_records(project, methods=["naive"])
    naive = {"methods": ["naive"], "seeds": [21]}
    assert read(**naive).methods == ["naive"]
    made_by = "`dvc repro stages/continual/dvc.yaml:sequence@naive-back-21` makes it"
    with pytest.raises(DataError, match=f"naive/back/21/sst2.json: is about other tasks than order.back; {made_by}"):
        read(ORDERS | {"back": ["sst2", "qnli", "ag_news"]}, **naive)
    paths.reading_record("sequence", ("naive", "back"), "qnli", 21).unlink()
    with pytest.raises(DataError, match=f"qnli.json: not there; {made_by}"):
        read(**naive)


def test_cells_that_are_not_asked_for_are_in_no_table(project):
    write_records(project)
    only = read(methods=["grafting"], orders=["back"], seeds=[21])
    assert [only.accuracy[name].unique().tolist() for name in ("method", "order", "seed")] == [
        ["grafting"],
        ["back"],
        [21],
    ]
    assert "naive" not in to_markdown(report(only, HERE)).replace("naive is the paper's", "")


@pytest.mark.parametrize("empty", ["methods", "orders"])
def test_an_empty_list_makes_an_empty_report_that_says_so(project, empty):
    off = read(**{empty: []})
    written = report(off, HERE)
    assert written.facts == [OFF] and not written.tables and not written.claims
    assert details(off) == headline(off) == {} and makers(off) == {} and off.accuracy.empty


# --- Tables and numbers ----------------------------------------------------------------------------------------


def test_table_4_has_ours_and_the_papers_values_below(data):
    rows = table(data, "Table 4: after the last task, order paper")
    assert rows["naive"] == ["70.1 (0.0)", "80.1 (0.0)", "90.1 (0.0)", "80.1 (0.0)"]
    assert rows["paper: ContinualFT"] == ["67.5 (5.3)", "87.6 (2.5)", "92.0 (0.5)", ""]
    assert rows["paper: GraftingContinual"] == ["86.5 (0.7)", "90.8 (0.1)", "92.5 (0.3)", ""]
    assert rows["FT"][0] == "92.1 (0.0)" and rows["paper: FT"][0] == "88.0 (0.8)"
    assert [*rows][:2] == ["pretrained", "FT"]
    back = table(data, "Table 4: after the last task, order back")
    assert back["paper: ContinualFT"] == ["92.0 (0.5)", "87.6 (2.5)", "67.5 (5.3)", ""]


def test_orders_are_averaged_within_a_seed_and_the_difference_within_a_task(data):
    assert "naive 1 (12); grafting 4 (12)" in to_markdown(report(data, HERE)), "the rates that dev chose"
    rows = table(data, "Over all orders and seeds")
    assert rows["naive"][2].startswith("+15.0") and rows["naive"][3].startswith("-15.0")
    assert rows["grafting"][2:4] == ["+0.0 (0.0)", "+0.0 (0.0)"]
    stored = details(data)
    assert stored["measure"]["ewc"]["forgetting"]["mean"] == pytest.approx(0.075, abs=1e-3)
    assert stored["measure"]["naive"]["learned"]["n"] == 2, "two seeds, whose two orders are no further samples"
    ends = [headline(data)["average"][method] for method in ("grafting", "naive")]
    difference = stored["grafting_minus_naive"]["accuracy"]
    assert difference["mean"] == pytest.approx(ends[0] - ends[1], abs=1e-5)
    assert (difference["tasks"], difference["seeds"]) == (3, 2) and difference["low"] < difference["mean"]
    assert stored["unchanged"] == {"naive": 0.0, "grafting": 1.0, "replay": 0.0, "ewc": 0.0}
    assert stored["order"]["paper"]["grafting"]["qnli"]["mean"] == pytest.approx(0.8913, abs=1e-3)


def test_calibration_is_shown_where_the_records_have_it(data):
    assert table(data, "Over all orders and seeds")["naive"][5] == "80.1 (0.0)"
    bare = replace(data, accuracy=data.accuracy.assign(ece=np.nan))
    assert len(table(bare, "Over all orders and seeds")["naive"]) == 4
    assert not [claim for claim in claims(bare) if "calibrated" in claim.text]


def test_memory_is_what_is_kept_after_the_last_task_over_the_number_of_tasks(data):
    rows = table(data, "Memory")
    assert rows["naive"] == ["0 B", "0 B", "0 B", "0.00 %"]
    assert rows["grafting"] == [size(80_000), size(240_000), size(80_000), "2.00 %"]
    assert rows["EWC"] == [size(8_000_000), size(8_000_000), size(8_000_000 / 3), "66.67 %"]
    text = to_markdown(report(data, HERE))
    assert "7.5 % were taken by earlier tasks" in text
    assert [size(count) for count in (0, 1023, 1024, 1536, 2**20, 3 * 2**30)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "3.0 GiB",
    ]  # fmt: skip


def test_the_paper_s_claims_hold_where_they_are_built_in_and_not_where_they_are_not(project, data):
    seen = verdicts(data)
    assert [*seen.values()] == ["holds"] * 5 + ["does not hold", "holds"]
    turned = EFFECTS | {"naive": (0.95, 0.0), "grafting": (0.6, 0.0)}
    write_records(project, turned)
    other = verdicts(read())
    holding = {text for text, verdict in other.items() if verdict == "holds"}
    assert holding == {
        "Grafting predicts earlier tasks as before",
        "Grafting keeps less than 10 % of a model for each task",
        "At the end grafting is better calibrated than naive fine-tuning",
    }
    assert other["Grafting barely costs newer tasks"] == "does not hold"


def test_two_orders_with_one_seed_are_not_two_samples(project, data):
    write_records(project)
    alone = read(seeds=[13])
    judged = [claim for claim in claims(alone) if "interval" in claim.figure]
    assert len(judged) == 5 and {claim.verdict for claim in judged} == {"not measurable"}
    assert all("3 tasks, 1 seed" in claim.figure for claim in judged)
    assert "3 tasks, 2 seeds" in claims(data)[1].figure  # the control


def test_the_claim_on_the_end_says_what_remains_without_the_last_task_of_each_order(project):
    """All of the gap is on the task that was learned last, where nothing can be forgotten."""
    orders = {"one": ["sst2", "ag_news", "qnli"]}
    write_records(project, EFFECTS | {"naive": (0.89, 0.0)}, orders)
    for seed in SEEDS:
        change_last("naive", "one", "qnli", seed, accuracy=0.5)
    found = claims(read(orders))
    [end] = [claim for claim in found if "all tasks together" in claim.text]
    assert "+13.0 points" in end.figure and end.figure.partition("forgotten, ")[2].startswith("+0.0 points")
    [less] = [claim for claim in found if "forgets less" in claim.text]
    assert "+0.0 points" in less.figure and less.verdict != "holds"


def test_one_changed_prediction_breaks_the_claim_of_forgetting_nothing(project):
    write_records(project)
    change_last("grafting", "back", "sst2", 13, unchanged=False)
    [claim] = [claim for claim in claims(read()) if "bit for bit" in claim.text]
    assert claim.verdict == "does not hold"
    assert "11 of 12 later tests" in claim.figure and "naive in 0 of 12" in claim.figure


def test_claims_about_methods_that_did_not_run_are_left_out(project):
    write_records(project)
    assert [len(claims(read(methods=[method]))) for method in ("replay", "grafting")] == [0, 2]


# --- Figures ---------------------------------------------------------------------------------------------------


def test_figures_are_there_for_every_order_and_the_same_each_time(project, data):
    names = [f"steps_{order}" for order in ORDERS]
    assert [*makers(data)] == names
    for folder in ("first", "again"):
        figures(makers(data), data)(project / folder)
    for name in names:
        path = project / "first" / f"{name}.png"
        assert path.read_bytes() == (project / "again" / path.name).read_bytes()
        image = imread(path)
        assert image.shape[1] > 1000 and image[..., :3].std() > 0.05


@pytest.mark.usefixtures("bare")
def test_thirteen_tasks_fit(project):
    orders = {"long": [f"task_{number}" for number in range(13)]}
    write_records(project, orders=orders)
    long = read(orders)
    figures(makers(long), long)(project)
    assert all(imread(path).shape[0] > 1000 for path in project.glob("*.png"))
