"""The frames of continual learning from records, and what their report says of them."""

from contextlib import chdir
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from skill_grafting.support.io import read_json, write_json
from stages.continual.continual import collect, derive, measures
from stages.workflow.report.claims import Judged, judge
from stages.workflow.report.publish import markdown
from stages.workflow.report.spec import read_spec
from stages.workflow.report.tables import render
from stages.workflow.stage import paths

FOLDER = Path(__file__).parents[2] / "stages/continual"
SPEC, PAPER = read_spec(FOLDER / "report.yaml"), pd.read_csv(FOLDER / "paper.csv")
METHODS = ["naive", "grafting", "replay", "ewc"]
ORDERS = {"paper": ["qnli", "ag_news", "sst2"], "back": ["sst2", "ag_news", "qnli"]}
SEEDS = [13, 21]
# accuracy when learned, and what is lost in each later step
EFFECTS = {"naive": (0.90, 0.10), "grafting": (0.89, 0.0), "replay": (0.90, 0.03), "ewc": (0.88, 0.05)}
SKILL = {"naive": 0, "grafting": 80_000, "replay": 9_000, "ewc": 8_000_000}
MODEL = 4_000_000


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
            if method == "grafting":
                record |= {"region": 10_000, "own": 10_000 - 500 * (place - 1)}
            write_json(root / paths.record("sequence", task, seed, method, order), record)


def scores(variant: str, step: int, after: str | None, accuracy: float) -> dict[str, Any]:
    measures = dict.fromkeys(("accuracy", "score", "f1", "ece", "loss", "agreement"), accuracy)
    return {"variant": variant, "step": step, "after": after, "n": 250, "accuracy_se": 0.02, **measures}


def change_last(method: str, order: str, task: str, seed: int, **values: object) -> None:
    """Other values after the last step, in a stored record."""
    path = paths.record("sequence", task, seed, method, order)
    record = read_json(path)
    record["rows"][-1] |= values
    write_json(path, record)


def read(known: dict[str, list[str]] = ORDERS, **changes: object) -> dict[str, pd.DataFrame]:
    """The frames of these methods, orders and seeds, with all that the report adds."""
    settings = {"methods": METHODS, "orders": [*known], "seeds": SEEDS, **changes}
    params = SimpleNamespace(
        tasks=ORDERS["paper"],
        seeds=settings["seeds"],
        model=SimpleNamespace(source="local", name="some model", mode="prompt"),
        data=SimpleNamespace(k=64, scarce="error"),
        graft=SimpleNamespace(sparsity=0.01),
        sequence=SimpleNamespace(methods=settings["methods"], orders=settings["orders"]),
        order=known,
    )
    return derive(collect(params) | {"paper": PAPER})


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> dict[str, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("records")
    write_records(folder)
    with chdir(folder):
        return read()


def table(frames: dict[str, pd.DataFrame], title: str) -> list[list[str]]:
    """The cells of the table whose title begins so."""
    [chosen] = [made for made in render(SPEC, frames) if made.title.startswith(title)]
    return [line.cells for line in chosen.lines]


def claims(frames: dict[str, pd.DataFrame]) -> dict[str, Judged]:
    return {claim.words.partition(",")[0].partition(":")[0]: claim for claim in judge(SPEC, frames)}


@pytest.mark.parametrize("empty", ["methods", "orders"])
def test_an_empty_list_makes_an_empty_report_that_says_so(project, empty):
    written = markdown(SPEC, read(**{empty: []}))
    assert "Off: the settings ask for nothing here." in written and "##" not in written


def test_table_4_has_ours_and_the_papers_values_below(frames):
    rows = table(frames, "Table 4: after the last task, order paper")
    assert [row[0] for row in rows] == [
        "pretrained", "FT", "paper", "naive", "paper", "grafting", "paper", "replay", "EWC",
    ]  # fmt: skip
    assert rows[3][1:3] == ["70.0 (0.0)", "80.0 (0.0)"] and rows[4][1:] == [
        "67.5 (5.3)",
        "87.6 (2.5)",
        "92.0 (0.5)",
        "",
    ]
    back = table(frames, "Table 4: after the last task, order back")
    assert back[4][1:] == ["92.0 (0.5)", "87.6 (2.5)", "67.5 (5.3)", ""]


def test_memory_is_what_is_kept_after_the_last_task_over_the_number_of_tasks(frames):
    rows = {row[0]: row[1:] for row in table(frames, "Memory")}
    assert rows["naive"] == ["0.00 %"] * 3 and rows["grafting"] == ["2.00 %", "6.00 %", "2.00 %"]
    assert rows["EWC"] == ["200.00 %", "200.00 %", "66.67 %"]
    facts = frames["facts"].iloc[0]
    assert facts.taken == "7.5"


def test_claims_follow_the_records(project, frames):
    longer = {name: ["mpqa", *tasks, "cr"] for name, tasks in ORDERS.items()}
    write_records(project, orders=longer)
    seen, few = claims(read(longer)), claims(frames)
    assert [str(claim.verdict) for claim in seen.values()] == ["holds"] * 4 + ["does not hold"]
    assert [str(claim.verdict) for claim in few.values()] == ["not measurable"] * 5, "three tasks"
    write_records(project, EFFECTS | {"naive": (0.95, 0.0), "grafting": (0.6, 0.0)}, longer)
    turned = {words: str(claim.verdict) for words, claim in claims(read(longer)).items()}
    less = "At the end grafting is more accurate than naive fine-tuning on all tasks but the last"
    assert turned["On tasks just learned"] == turned[less] == "does not hold"


def test_the_claim_on_the_end_says_what_remains_without_the_last_task_of_each_order(project):
    """All of the gap is on the task that was learned last, where nothing can be forgotten."""
    orders = {"one": ["sst2", "ag_news", "qnli"]}
    write_records(project, EFFECTS | {"naive": (0.89, 0.0)}, orders)
    for seed in SEEDS:
        change_last("naive", "one", "qnli", seed, accuracy=0.5)
    end = claims(read(orders))["At the end grafting is more accurate than naive fine-tuning on all tasks together"]
    assert "+13.1 points" in end.figure and "; +0.0 points without the last task of each order" in end.figure


# --- Measures of forgetting ---------------------------------------------------------------------------------------

NAN = np.nan
R = np.array([[0.9, NAN, NAN], [0.7, 0.8, NAN], [0.75, 0.6, 0.5]])


def measured(accuracies: np.ndarray) -> pd.Series:
    """Measures of one walk from R[step, task]."""
    known, length = np.argwhere(~np.isnan(accuracies)), len(accuracies)
    rows = [{"step": step + 1, "place": task + 1, "task": str(task), "accuracy": accuracies[step, task]} for step, task in known]
    [measure] = measures(pd.DataFrame(rows).assign(method="naive", order="paper", seed=1, length=length)).itertuples()
    return measure


def test_the_most_accurate_method_is_named_whichever_it_is(frames):
    averages = frames["measure"].groupby("method").average.mean()
    for best in averages.index:
        measure = frames["measure"].assign(average=frames["measure"].average.where(frames["measure"].method != best, 0.99))
        said = markdown(SPEC, derive({**frames, "measure": measure})).split("\n\n")[1]
        assert f"The most accurate method is {SPEC.label(best)} with 99.0 %" in said


def test_measures_of_a_walk_done_by_hand():
    better = R.copy()
    better[1, 0] = 0.95  # the second step helped the first task: forgetting is measured from the best step
    for accuracies, best in ((R, 0.9), (better, 0.95)):
        assert measured(accuracies).average == pytest.approx((0.75 + 0.6 + 0.5) / 3)
        assert measured(accuracies).learned == pytest.approx((0.9 + 0.8 + 0.5) / 3)
        assert measured(accuracies).forgetting == pytest.approx(((best - 0.75) + (0.8 - 0.6)) / 2)
    assert measured(np.array([[0.9, NAN], [0.9, 0.8]])).forgetting == 0
    assert measured(np.array([[0.5, NAN], [0.75, 0.8]])).forgetting == -0.25, "the last step isn't among the best"
