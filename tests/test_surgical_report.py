"""The report on surgical fine-tuning, on synthetic records whose effects are known."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from matplotlib.image import imread

from stages.lib import paths
from stages.lib.errors import DataError, MaskError
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, write_mask
from stages.lib.graft.region import Region
from stages.lib.io import read_json, write_json
from stages.lib.report.document import Claim, Table, Verdict
from stages.lib.report.markdown import to_markdown
from stages.surgical.report import ranking
from stages.surgical.report.collecting import Surgical, collect
from stages.surgical.report.compose import plot_data, write_report
from stages.surgical.report.figures import figures
from stages.surgical.report.findings import claims, flagged_line
from stages.surgical.report.summary import summary
from stages.surgical.report.tables import (
    bridge_table,
    robustness_table,
    score_table,
    selection_table,
    variant_table,
)

TASKS, SEEDS = ["sst2", "cr", "qnli"], [13, 21]
CELLS = [(task, seed) for task in TASKS for seed in SEEDS]
LAYERS = 6
# layers by their score, highest first
ORDERS = {"sst2": [5, 4, 3, 2, 1, 0], "cr": [5, 3, 4, 2, 0, 1], "qnli": [1, 5, 0, 4, 2, 3]}
TARGETS, AGGREGATIONS, EXAMPLES, HEADS = ["empirical", "label_logit"], ["sum_fro", "trace"], [4, 8], 2
STEPS = [0, 20, 40]
ACCURACY = {"all": 0.90, "none": 0.53, "top_1": 0.88, "top_2": 0.89, "bottom_1": 0.70, "random_1": 0.80}
# the score is another metric, and what `none` has of it is no better than the share of the most frequent label
MAJORITY, LESS = 0.5, 0.03
DRAWN = {0: 0.05, 2: 0.0, 4: -0.05}
LAYER_SIZE, HEAD_SIZE, MODEL = 1_000, 50, 10_000
REGION = Region(
    {"bert.embeddings.word_embeddings.weight": (16, 8)}
    | {
        f"bert.encoder.layer.{layer}.{name}": shape
        for layer in range(LAYERS)
        for name, shape in (
            ("attention.self.query.weight", (8, 8)),
            ("attention.self.query.bias", (8,)),
            ("output.dense.weight", (8, 16)),
        )
    }
)
BETTER = "Training the layer with the highest score is better than bottom_1"
ENOUGH = "Training the layer with the highest score keeps 95 % of the score of all layers"
STEADY = "The ranking of layers keeps a Spearman correlation of 0.9 with that before fine-tuning"
OWN = "The ranking depends on the task: tasks agree less than seeds of one task"
INSIDE = "More of the learned graft than by chance is in the layer with the highest score"
AMONG = "in cells where all layers learn"


def params(**changes: dict[str, Any]) -> SimpleNamespace:
    """The sections of params.yaml, with changes of one setting each: params(surgery={"seeds": []})."""
    sections: dict[str, dict[str, Any]] = {
        "fim": {"tasks": TASKS, "seeds": SEEDS},
        "surgery": {
            "selections": [*ACCURACY], "tasks": TASKS, "seeds": SEEDS, "draws": len(DRAWN), "target": "empirical",
            "aggregation": "sum_fro", "examples": 8,
        },
        "robustness": {"tasks": TASKS[:2], "seeds": SEEDS},
        "surgical": {"margin": 0.01, "kept": 0.95, "steady": 0.9},
    }  # fmt: skip
    return SimpleNamespace(
        **{name: SimpleNamespace(**{**values, **changes.get(name, {})}) for name, values in sections.items()}
    )


def top_two(order: list[int]) -> list[int]:
    return order[:2]


@dataclass
class Writer:
    """Writes what the stages would; `accuracy` is of selections, in the cells of `flat` nothing is learned.

    `order` gives the ranking of a cell, `inside` the layers of a ranking that hold most of the learned mask,
    `shuffled` has the checkpoints (task, seed, step) at which the ranking is turned round.
    """

    root: Path
    accuracy: dict[str, float] = field(default_factory=lambda: ACCURACY)
    flat: Collection[tuple[str, int]] = ()
    order: Callable[[str, int], list[int]] = lambda task, seed: ORDERS[task]
    inside: Callable[[list[int]], list[int]] = top_two
    shuffled: Collection[tuple[str, int, int]] = ()

    def write(self, settings: SimpleNamespace) -> None:
        """All files that the settings name."""
        for seed in settings.fim.seeds:
            for task in settings.fim.tasks:
                self.fim(task, seed)
                self.mask(task, seed)
        for seed in settings.surgery.seeds:
            for task in settings.surgery.tasks:
                for selection in settings.surgery.selections:
                    self.surgery(selection, task, seed)
        for seed in settings.robustness.seeds:
            for task in settings.robustness.tasks:
                self.robustness(task, seed)

    def scores(self, task: str, seed: int) -> list[float]:
        return [0.5 ** self.order(task, seed).index(layer) for layer in range(LAYERS)]

    def fim(self, task: str, seed: int) -> None:
        """The other target ranks the layers the other way round; no single head has the mean's scores."""
        rows = []
        for head in range(HEADS):
            for target in TARGETS:
                for examples in EXAMPLES:
                    for aggregation in AGGREGATIONS:
                        scores = [(0.5 + head) * score for score in self.scores(task, seed)]
                        scores = [1 / score for score in scores] if target == "label_logit" else scores
                        axes = {"target": target, "examples": examples, "used": examples, "head": head}
                        rows.append({**axes, "aggregation": aggregation, "scores": scores})
        about = {"stage": "fim", "task": task, "seed": seed, "parameters": [LAYER_SIZE] * LAYERS}
        self.store("fim", (), {**about, "rows": rows})

    def surgery(self, selection: str, task: str, seed: int) -> None:
        order, number = self.order(task, seed), CELLS.index((task, seed))
        sets = {"all": [*range(LAYERS)], "none": [], "top_1": order[:1], "top_2": sorted(order[:2])}
        sets |= {"bottom_1": order[-1:]}
        drawn = DRAWN if selection.startswith("random") else {}
        # cells differ, and what top_1 has besides is up in every other cell and down in the rest
        noise = 0.002 * number + (0.01 * (-1) ** number if selection == "top_1" else 0.0)
        rows = []
        for layers, more in [([layer], more) for layer, more in drawn.items()] or [(sets[selection], 0.0)]:
            accuracy = self.accuracy[selection] + noise + more
            accuracy = MAJORITY if (task, seed) in self.flat else accuracy
            rows.append({"draw": len(rows), **run(layers, number), **measures(accuracy)})
        about = {"stage": "surgery", "task": task, "seed": seed, "selection": selection, "model_parameters": MODEL}
        self.store("surgery", (selection,), {**about, "rows": rows})

    def robustness(self, task: str, seed: int) -> None:
        rows = []
        for step in STEPS:
            scores = [score * (1 + step) for score in self.scores(task, seed)]
            scores = [1 / score for score in scores] if (task, seed, step) in self.shuffled else scores
            moved = {"moved": [0.01 * step] * LAYERS, "start": [10.0] * LAYERS}
            rows.append({"step": step, "scores": scores, **moved, "dev_accuracy": 0.5 + 0.01 * step, "dev_loss": 0.5})
        self.store(
            "robustness", (), {"stage": "robustness", "task": task, "seed": seed, "learning_rate": 1e-3, "rows": rows}
        )

    def store(self, stage: str, axes: tuple[str, ...], record: dict[str, Any]) -> None:
        write_json(self.root / paths.reading_record(stage, axes, record["task"], record["seed"]), record)

    def mask(self, task: str, seed: int) -> None:
        """One parameter in every tensor, and most of the first map in the layers that are inside."""
        inside = self.inside(self.order(task, seed))
        counts = dict.fromkeys(REGION.shapes, 1)
        for layer in inside:
            counts[f"bert.encoder.layer.{layer}.attention.self.query.weight"] = 30 + CELLS.index((task, seed))
        write_learned(self.root, task, seed, counts)


def write_learned(root: Path, task: str, seed: int, counts: dict[str, int]) -> None:
    """A learned mask with so many of the parameters of each tensor."""
    mask = GraftMask(REGION, {name: torch.arange(count) for name, count in counts.items()})
    values = {name: torch.ones(count) for name, count in counts.items()}
    write_mask(root / paths.learned(task, seed), StoredMask(mask, values, {}, {"task": task, "seed": seed}))


def run(layers: list[int], cell: int) -> dict[str, Any]:
    """Training, by its layers alone: however they were selected, its losses are the same."""
    apart = sum(0.01 * 0.5**layer for layer in layers)
    curve = [{"step": step, "train_loss": 0.7 - 0.1 * step - apart} for step in range(3)] if layers else []
    trained = {"layers": layers, "trained": HEAD_SIZE + LAYER_SIZE * len(layers)}
    return {**trained, "curve": curve, "loss": 0.6 - apart + 0.001 * cell, "peak_learning_rate": 1e-3}


def measures(accuracy: float) -> dict[str, Any]:
    return {"n": 100, "accuracy": accuracy, "accuracy_se": 0.02, "f1": accuracy, "score": accuracy - LESS, "majority": MAJORITY}  # fmt: skip


def found_in(root: Path, settings: SimpleNamespace | None = None, **effects: Any) -> Surgical:
    Writer(root, **effects).write(settings or params())
    return collect(root, settings or params())


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Surgical:
    return found_in(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def partly(tmp_path_factory) -> Surgical:
    """One task of which nothing was learned, by any layers."""
    return found_in(tmp_path_factory.mktemp("flat"), flat=[("qnli", 13), ("qnli", 21)])


@pytest.fixture(scope="module")
def numbers(found) -> dict[str, Any]:
    return summary(found)


@pytest.fixture(scope="module")
def drawn(partly, tmp_path_factory) -> Path:
    """A folder with all figures and the data behind them."""
    folder = tmp_path_factory.mktemp("plots")
    figures(partly, folder)
    plot_data(partly, folder)
    return folder


def claim_of(data: Surgical, text: str) -> Claim:
    [claim] = [claim for claim in claims(data) if claim.text == text]
    return claim


def verdict(data: Surgical, text: str) -> Verdict:
    return claim_of(data, text).verdict


def row_of(table: Table, *keys: str) -> dict[str, str]:
    """Column -> cell, of the row of a table that begins with these."""
    [row] = [row.cells for row in table.rows if row.cells[: len(keys)] == [*keys]]
    return dict(zip(table.header, row, strict=True))


def change(root: Path, selection: str, task: str, seed: int, **values: Any) -> None:
    """Other values in the first fine-tuning of a stored record."""
    path = root / paths.reading_record("surgery", (selection,), task, seed)
    record = read_json(path)
    record["rows"][0] |= values
    write_json(path, record)


def read_first(root: Path, selection: str, task: str, seed: int) -> dict[str, Any]:
    return read_json(root / paths.reading_record("surgery", (selection,), task, seed))["rows"][0]


# --- Reading ---------------------------------------------------------------------------------------------------


def test_there_is_a_row_for_each_scored_layer(found):
    assert len(found.fim) == len(CELLS) * HEADS * len(TARGETS) * len(EXAMPLES) * len(AGGREGATIONS) * LAYERS
    assert found.layers == LAYERS and {*found.fim.layer} == {*range(LAYERS)}
    assert len(found.chosen()) == len(CELLS) * LAYERS
    for (task, _), scores in ranking.by_cell(found.chosen()).items():
        # the means of two heads with half of it and with three halves
        assert [scores[layer] for layer in ORDERS[task]] == pytest.approx([0.5**place for place in range(LAYERS)])
    assert ranking.by_cell(found.chosen(head=0))["cr", 13][5] == pytest.approx(0.5)
    other = ranking.by_cell(found.chosen(target="label_logit"))["sst2", 13]
    assert other.index(max(other)) == ORDERS["sst2"][-1]


def test_there_is_a_row_for_each_fine_tuning_with_what_its_selection_is(found):
    runs = found.surgery
    assert len(runs) == len(CELLS) * (len(ACCURACY) - 1 + len(DRAWN))
    random = runs[(runs.selection == "random_1") & (runs.task == "cr") & (runs.seed == 21)]
    assert random.draw.tolist() == [0, 1, 2] and random.layers.tolist() == [[0], [2], [4]]
    assert {*random.kind} == {"random"} and {*random["size"]} == {1} and {*random.model_parameters} == {MODEL}
    assert runs[runs["size"].isna()].selection.unique().tolist() == ["all", "none"]
    [top] = runs[(runs.selection == "top_2") & (runs.task == "cr") & (runs.seed == 13)].itertuples()
    assert top.layers == [3, 5] and top.accuracy == pytest.approx(0.89 + 0.002 * 2) and top.majority == MAJORITY


def test_there_is_a_row_for_each_layer_at_each_look_and_for_each_layer_of_a_mask(found):
    assert len(found.robustness) == 2 * len(SEEDS) * len(STEPS) * LAYERS and {*found.robustness.task} == {"sst2", "cr"}
    assert len(found.regions) == len(CELLS) * LAYERS  # what lies outside the layers is in no row
    mask = found.regions[(found.regions.task == "cr") & (found.regions.seed == 13)].set_index("layer")
    selected = 2 * 32 + len(REGION.shapes) - 2
    assert mask.share[[5, 3, 0]].tolist() == pytest.approx([34 / selected, 34 / selected, 3 / selected])
    assert mask.chance.tolist() == pytest.approx([200 / REGION.size] * LAYERS) and REGION.size == 128 + LAYERS * 200


def test_what_is_not_asked_for_is_in_no_table_though_its_files_are_there(tmp_path):
    Writer(tmp_path).write(params())
    less = {"tasks": ["sst2", "cr"], "seeds": [21]}
    settings = params(fim=less, surgery={**less, "selections": ["all", "top_1"]}, robustness={**less, "tasks": ["cr"]})
    only = collect(tmp_path, settings)
    for frame in (only.fim, only.surgery, only.robustness, only.regions):
        assert "qnli" not in {*frame.task} and {*frame.seed} == {21}
    assert {*only.surgery.selection} == {"all", "top_1"} and {*only.robustness.task} == {"cr"}
    assert "qnli" not in to_markdown(write_report(only)) and "bottom_1" not in to_markdown(write_report(only))
    assert (tmp_path / paths.reading_record("surgery", ("bottom_1",), "qnli", 21)).exists(), "control"


@pytest.mark.parametrize(
    ("stage", "axes", "task", "made_by"),
    [
        ("fim", (), "qnli", "fim@21"),
        ("surgery", ("random_1",), "cr", "surgery@random_1-21"),
        ("robustness", (), "sst2", "robustness@21"),
    ],
)
def test_a_missing_record_is_named_with_the_command_that_makes_it(tmp_path, stage, axes, task, made_by):
    Writer(tmp_path).write(params())
    collect(tmp_path, params())
    path = tmp_path / paths.reading_record(stage, axes, task, 21)
    path.unlink()
    with pytest.raises(DataError) as problem:
        collect(tmp_path, params())
    assert str(problem.value) == f"{path}: not there; `dvc repro stages/surgical/dvc.yaml:{made_by}` makes it"


def test_of_many_missing_records_some_are_named_and_the_rest_counted(tmp_path):
    wanted = len(CELLS) * (1 + len(ACCURACY)) + 2 * len(SEEDS)
    with pytest.raises(DataError, match=f"and {wanted - 10} more") as problem:
        collect(tmp_path, params())
    assert len(str(problem.value).splitlines()) == 11


def test_a_learned_mask_that_is_damaged_or_not_there_is_named(tmp_path):
    Writer(tmp_path).write(params())
    path = tmp_path / paths.learned("cr", 21)
    path.write_bytes(b"\0" * 64)
    with pytest.raises(MaskError, match=r"masks/learned/21/cr\.safetensors"):
        collect(tmp_path, params())
    path.unlink()
    with pytest.raises(
        DataError, match=r"masks/learned/21/cr\.safetensors: not there; `dvc repro mask@cr-21` makes it"
    ):
        collect(tmp_path, params())


@pytest.mark.parametrize("content", [[], {}, {"stage": "fim", "rows": [1]}, {"stage": "surgery", "rows": []}])
def test_a_file_that_is_not_a_record_is_named_with_the_command_that_makes_it(tmp_path, content):
    Writer(tmp_path).write(params())
    write_json(tmp_path / paths.reading_record("surgery", ("top_1",), "cr", 21), content)
    made_by = "`dvc repro stages/surgical/dvc.yaml:surgery@top_1-21` makes it"
    with pytest.raises(DataError, match=rf"top_1/21/cr\.json: not a record of surgery; {made_by}"):
        collect(tmp_path, params())


def test_a_task_with_fewer_examples_is_scored_by_those_it_has_as_in_surgery(tmp_path, found):
    whole = found.chosen()
    kept = found.fim[(found.fim.task != "cr") | (found.fim.examples < 8)]
    fewer = replace(found, fim=kept.assign(score=kept.score * (1 + (kept.examples < 8))))
    scores = fewer.chosen()
    assert [*scores.index] == [*whole.index]
    assert scores["cr"].tolist() == pytest.approx(
        (2 * whole["cr"]).tolist()
    )  # of 4 examples, which are twice as high here
    assert scores["sst2"].tolist() == whole["sst2"].tolist()  # the control: the others keep to 8
    assert {path.name for path in figures(fewer, tmp_path)} >= {"layers.png"}


def test_two_sets_of_layers_that_were_trained_alike_stop_the_report(tmp_path):
    Writer(tmp_path).write(params())
    twin = {name: read_first(tmp_path, "top_1", "cr", 21)[name] for name in ("curve", "loss")}
    almost = [*twin["curve"][:-1], {"step": 2, "train_loss": twin["curve"][-1]["train_loss"] + 1e-9}]
    change(tmp_path, "bottom_1", "cr", 21, curve=almost, loss=twin["loss"])
    collect(tmp_path, params())  # they differ at one step
    change(tmp_path, "bottom_1", "cr", 13, **twin)
    collect(tmp_path, params())  # another cell
    change(tmp_path, "bottom_1", "cr", 21, **twin)
    with pytest.raises(DataError, match="training layers 6 and training layers 2 of cr-21 gave the same loss at every"):
        collect(tmp_path, params())


# --- Runs that learned nothing ---------------------------------------------------------------------------------


def test_runs_less_than_the_margin_above_the_majority_are_flagged_and_no_others(tmp_path):
    Writer(tmp_path).write(params())
    # parts of 2, so that a difference is exactly the margin or exactly not
    changed = {"top_1": 0.625, "bottom_1": 0.625 - 2**-20, "all": 0.25, "top_2": 0.625 + 2**-20}
    for selection, accuracy in changed.items():
        change(tmp_path, selection, "cr", 21, accuracy=accuracy)
    none = {("none", task, seed) for task, seed in CELLS}
    for margin, more in ((0.125, {"bottom_1", "all"}), (0.126, {"bottom_1", "all", "top_1", "top_2"})):
        data = collect(tmp_path, params(surgical={"margin": margin}))
        named = {(row.selection, row.task, row.seed) for row in data.flagged().itertuples()}
        assert named == none | {(selection, "cr", 21) for selection in more}


def test_a_difference_of_exactly_the_margin_is_not_flagged_though_it_rounds_down(tmp_path):
    assert 0.41 - 0.40 < 0.01
    Writer(tmp_path).write(params())
    change(tmp_path, "top_1", "cr", 21, accuracy=0.41, majority=0.40)
    change(tmp_path, "top_2", "cr", 21, accuracy=0.4099, majority=0.40)
    named = {row.selection for row in collect(tmp_path, params()).flagged().itertuples()}
    assert "top_2" in named and "top_1" not in named


def test_the_share_of_correct_answers_is_flagged_by_and_not_the_score(found):
    none = found.surgery[found.surgery.selection == "none"]
    assert (none.score - none.majority < 0.01).any() and found.flagged().empty


def test_learners_are_the_cells_where_training_all_layers_is_not_flagged(tmp_path, found, partly):
    assert found.learners() == {*CELLS}
    assert partly.learners() == {*CELLS[:4]} and {*partly.flagged().task} == {"qnli"}
    Writer(tmp_path).write(params())
    change(tmp_path, "all", "cr", 13, accuracy=MAJORITY)
    change(tmp_path, "top_1", "sst2", 13, accuracy=MAJORITY)  # says nothing of all layers
    assert collect(tmp_path, params()).learners() == {*CELLS} - {("cr", 13)}


def test_without_a_run_of_all_layers_nobody_knows_who_learns(tmp_path):
    data = found_in(tmp_path, params(surgery={"selections": ["top_1", "bottom_1"]}), flat=CELLS[:1])
    assert data.learners() is None and len(data.flagged()) == 2
    assert AMONG not in claim_of(data, BETTER).figure


# --- Tables ----------------------------------------------------------------------------------------------------


def test_the_draws_of_a_random_selection_count_as_one_cell(found):
    made = selection_table(found)
    rows = {name: row_of(made, name) for name in ACCURACY}
    random, top = rows["random_1"], rows["top_1"]
    assert random["n"] == top["n"] == "6" and random["flagged"] == "0 of 18" and top["flagged"] == "0 of 6"
    assert random["sst2"] == "77.1 (0.1)" and random["mean"] == "77.5 (0.4)"  # draws are 5 points apart
    assert [row["trained (%)"] for row in rows.values()] == ["60.5", "0.5", "10.5", "20.5", "10.5", "10.5"]


def test_selections_stand_beside_all_layers_and_random_ones_of_their_size(found):
    made = selection_table(found)
    rows = {name: row_of(made, name) for name in ACCURACY}
    assert rows["bottom_1"]["less all"] == "-20.0 (-20.0 to -20.0)"
    assert rows["bottom_1"]["less random"] == "-10.0 (-10.0 to -10.0)"
    # ±1 point in 6 cells: a deviation of 1.095, an interval of 2.571 / sqrt(6) of that
    assert rows["top_1"]["less all"] == "-2.0 (-3.1 to -0.9)" and rows["top_1"]["less random"] == "+8.0 (+6.9 to +9.1)"
    assert rows["top_2"]["less random"] == "", "there are no random pairs"
    assert rows["all"]["less all"] == rows["random_1"]["less random"] == rows["all"]["less random"] == ""


def test_the_table_counts_flagged_runs_by_task(found, partly):
    made = selection_table(partly)
    [note] = [note for note in made.notes if note.startswith("flagged")]
    assert "0 of 16 of sst2 (50.0 %), 0 of 16 of cr (50.0 %), 16 of 16 of qnli (50.0 %)" in note
    assert row_of(made, "random_1")["flagged"] == "6 of 18"
    assert row_of(made, "all")["flagged"] == "2 of 6"
    assert "0 of 16 of qnli" in selection_table(found).notes[-1]
    assert [flagged_line(data).partition(" fine-tunings")[0] for data in (found, partly)] == ["0 of 48", "16 of 48"]


def test_layers_stand_in_the_order_of_their_scores(found):
    rows = {row.cells[0]: row.cells[1:] for row in score_table(found).rows}
    assert rows["cr"] == ["2", "6 4 5 3 1 2", "50.8"]  # 1 of 1 + 1/2 + ... + 1/32
    assert rows["qnli"][1] == "2 6 1 5 3 4"
    ways = {tuple(row.cells[:2]): row.cells[2:] for row in variant_table(found).rows}
    assert ways["empirical, trace", "4"] == ["6", "1.00 (0.00)", "1.00 (0.00)"]
    assert ways["label_logit, sum_fro", "8"] == ["6", "-1.00 (0.00)", "-1.00 (0.00)"]
    assert len(ways) == len(TARGETS) * len(AGGREGATIONS) * len(EXAMPLES)


def test_the_ranking_in_training_is_compared_with_that_before_it(tmp_path):
    made = robustness_table(found_in(tmp_path, shuffled=[("cr", 21, 40)]))
    assert row_of(made, "sst2", "40")["Spearman"] == "1.00 (0.00)"
    last = row_of(made, "cr", "40")
    assert last["Spearman"] == last["Kendall tau-b"] == "0.00 (1.41)"  # 1 and -1
    assert last["n"] == "2" and last["moved (%)"] == "4.0 (0.0)" and last["dev accuracy (%)"] == "90.0 (0.0)"
    assert row_of(made, "cr", "20")["Spearman"] == "1.00 (0.00)"


def test_where_the_graft_lies_stands_beside_a_random_ones_share(found):
    row = row_of(bridge_table(found), "sst2")
    chance = f"{100 * 2 * 200 / REGION.size:.1f}"
    share = sum(2 * (32 + number) / (2 * (29 + number) + len(REGION.shapes)) for number in (0, 1)) / 2
    assert row["graft in top 2 (%)"] == f"{100 * share:.1f} ({chance})"
    assert float(row["score, graft"].split()[0]) > 0.5 and row["score, movement"] == "", "all layers move alike"


# --- Claims ----------------------------------------------------------------------------------------------------


def test_an_effect_that_is_there_is_shown(found):
    assert verdict(found, BETTER) is Verdict.HOLDS
    assert claim_of(found, BETTER).figure.startswith("+18.0 points, 95 % interval +16.9 to +19.1, higher in 6 of 6")


def test_an_effect_the_other_way_round_does_not_hold(tmp_path):
    data = found_in(tmp_path, accuracy=ACCURACY | {"top_1": 0.70, "bottom_1": 0.88})
    assert verdict(data, BETTER) is Verdict.FAILS and claim_of(data, BETTER).figure.startswith("-18.0 points")


def test_an_effect_that_is_not_there_is_not_shown(tmp_path):
    data = found_in(tmp_path, accuracy=ACCURACY | {"top_1": 0.70})
    assert verdict(data, BETTER) is Verdict.UNCLEAR and "higher in 3 of 6 cells" in claim_of(data, BETTER).figure


def test_one_cell_is_too_few_to_measure_an_effect(tmp_path):
    one = {"tasks": ["sst2"], "seeds": [13]}
    data = found_in(tmp_path, params(fim=one, surgery=one, robustness=one))
    assert {verdict(data, text) for text in (BETTER, INSIDE)} == {Verdict.OPEN}
    assert claim_of(data, BETTER).figure == "+19.0 points, higher in 1 of 1 cells"
    assert OWN not in {claim.text for claim in claims(data)}, "there are no pairs of cells"


def test_selections_are_compared_with_others_of_their_size_alone(found):
    rivals = [claim.text.partition("is better than ")[2] for claim in claims(found) if "is better than" in claim.text]
    assert rivals == ["bottom_1", "random_1"]


def test_cells_where_nothing_is_learned_are_also_left_out(tmp_path, found, partly):
    figure = claim_of(partly, BETTER).figure
    whole, _, among = figure.partition(f"; {AMONG}: ")
    assert whole.startswith("+12.0 points") and whole.endswith("higher in 4 of 6 cells")
    assert among.startswith("+18.0 points") and among.endswith("higher in 4 of 4 cells")
    assert f"{AMONG}: -2.0 points" in claim_of(partly, ENOUGH).figure
    assert not [claim for claim in claims(found) if AMONG in claim.figure]
    nobody = found_in(tmp_path, flat=CELLS)
    assert nobody.learners() == set() and claim_of(nobody, BETTER).figure.endswith(f"; {AMONG}: no common cells")


def test_one_layer_is_enough_where_it_keeps_the_score(tmp_path, found):
    assert verdict(found, ENOUGH) is Verdict.HOLDS and claim_of(found, ENOUGH).exceptions == []
    data = found_in(tmp_path, accuracy=ACCURACY | {"top_1": 0.86})
    claim = claim_of(data, ENOUGH)
    assert claim.verdict is Verdict.HOLDS, "0.83 of 0.87 is 95.4 %"
    assert [text.split()[0] for text in claim.exceptions] == ["sst2-21", "cr-21", "qnli-21"]  # 0.82 is not
    assert verdict(found_in(tmp_path, accuracy=ACCURACY | {"top_1": 0.84}), ENOUGH) is Verdict.FAILS


def test_a_score_of_all_layers_that_is_not_above_0_has_no_share(tmp_path, found):
    runs = found.surgery
    nothing = (runs.selection == "all") & (runs.task == "cr")
    for score in (0.0, -0.2):
        claim = claim_of(replace(found, surgery=runs.assign(score=runs.score.mask(nothing, score))), ENOUGH)
        assert claim.figure.endswith("n = 4 cells") and "inf" not in claim.figure
    assert claim_of(found, ENOUGH).figure.endswith("n = 6 cells")


def test_scores_that_are_all_the_same_have_no_ranking_to_keep(found):
    same = replace(found, robustness=found.robustness.assign(score=1.0))
    assert not [claim for claim in claims(same) if claim.text == STEADY]


def test_a_ranking_that_stays_is_steady_and_one_that_changes_is_named(tmp_path, found):
    claim = claim_of(found, STEADY)
    assert claim.verdict is Verdict.HOLDS and claim.exceptions == []
    assert "lowest 1.00" in claim.figure and "moved by 4.0 (0.0) % of their norm" in claim.figure
    claim = claim_of(found_in(tmp_path, shuffled=[("cr", 21, 20)]), STEADY)
    assert claim.verdict is Verdict.FAILS and claim.exceptions == ["cr-21 at step 20 (-1.00)"]
    assert "lowest -1.00, after the last step 1.00 (0.00), n = 4 cells" in claim.figure


def test_rankings_of_tasks_differ_more_than_those_of_seeds_where_they_do(tmp_path, found):
    assert verdict(found, OWN) is Verdict.HOLDS
    assert "(n = 6 pairs)" in claim_of(found, OWN).figure and "1.00 (0.00) between seeds (n = 3)" in claim_of(found, OWN).figure  # fmt: skip
    by_seed = {13: ORDERS["sst2"], 21: ORDERS["qnli"]}
    assert verdict(found_in(tmp_path, order=lambda task, seed: by_seed[seed]), OWN) is Verdict.FAILS


def test_more_of_the_graft_than_by_chance_is_in_the_top_layers_where_it_was_put_there(tmp_path, found):
    assert verdict(found, INSIDE) is Verdict.HOLDS
    assert verdict(found_in(tmp_path, inside=lambda order: order[-2:]), INSIDE) is Verdict.FAILS
    for task, seed in CELLS:  # everywhere
        write_learned(tmp_path, task, seed, dict(zip(REGION.shapes, REGION.sizes, strict=True)))
    assert verdict(collect(tmp_path, params()), INSIDE) is Verdict.UNCLEAR


def test_without_masks_in_layers_nothing_is_claimed_of_grafts(found):
    without = replace(found, regions=found.regions.iloc[:0])
    texts, left = ([claim.text for claim in claims(data)] for data in (found, without))
    assert left == [text for text in texts if "graft" not in text] and len(texts) - len(left) == 2
    assert bridge_table(found).rows and not bridge_table(without).rows
    assert "top" in summary(found)["bridge"] and "top" not in summary(without)["bridge"]


def test_the_layers_are_drawn_without_masks_too(found, tmp_path):
    without = replace(found, regions=found.regions.iloc[:0])
    drawn, bare = (figures(data, tmp_path / name)[0] for data, name in ((found, "with"), (without, "without")))
    assert drawn.name == bare.name == "layers.png" and drawn.read_bytes() != bare.read_bytes()


# --- Numbers ---------------------------------------------------------------------------------------------------


def numbers_of(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers_of(part)
    else:
        yield value


def test_the_summary_has_cells_means_deviations_and_intervals(numbers):
    assert {*numbers} == {"fim", "surgery", "robustness", "bridge"} and [*numbers["surgery"]] == [*ACCURACY]
    top = numbers["surgery"]["top_1"]
    assert top["score"] == pytest.approx({"n": 6, "mean": 0.855, "sd": 0.010488}, abs=1e-5)
    assert top["accuracy"]["mean"] == pytest.approx(0.885) and top["trained"] == pytest.approx(0.105)
    random = numbers["surgery"]["random_1"]
    assert (random["runs"], random["score"]["n"]) == (18, 6) and "minus_random" not in random
    less = top["minus_random"]
    assert less["low"] < less["mean"] < less["high"] and less["mean"] == pytest.approx(0.08)
    assert (less["n"], less["positive"]) == (6, 6) and top["minus_all"]["high"] < 0
    assert "minus_all" not in numbers["surgery"]["all"] and "minus_random" not in numbers["surgery"]["top_2"]
    assert numbers["robustness"]["cr"]["40"]["moved"] == {"n": 2, "mean": 0.04, "sd": 0.0}
    assert numbers["bridge"]["top"]["1"]["share"]["n"] == 6 and numbers["fim"]["between_seeds"]["mean"] == 1


def test_the_summary_counts_flagged_runs(numbers, partly):
    counts = [
        {name: part["flagged"] for name, part in whole["surgery"].items()} for whole in (numbers, summary(partly))
    ]
    assert {*counts[0].values()} == {0}
    assert counts[1] == dict.fromkeys(ACCURACY, 2) | {"random_1": 6}


def test_what_is_undefined_is_left_out_of_the_summary(tmp_path):
    one = {"tasks": ["sst2"], "seeds": [13]}
    data = found_in(tmp_path, params(fim=one, surgery=one, robustness=one))
    numbers = summary(data)
    assert ranking.checkpoints(data).spearman.notna().all() and "sd" not in numbers["surgery"]["top_1"]["score"]
    # all layers moved alike, so there is no rank of movement to agree with
    assert numbers["bridge"]["score_movement"] == {"n": 0}
    assert all(math.isfinite(value) for value in numbers_of(numbers))


def test_every_number_is_one(numbers):
    assert all(type(value) in (int, float) and math.isfinite(value) for value in numbers_of(numbers))


# --- Figures and files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layers", "selections", "robustness"])
def test_a_figure_is_drawn_of_each_stage(drawn, name):
    image = imread(drawn / f"{name}.png")[..., :3]
    assert image.shape[1] > 1000 and image.std() > 0.05
    # frames and words are grey: what has a colour is data
    assert (image.max(-1) - image.min(-1) > 0.2).mean() > 0.002


def test_the_data_behind_the_figures_are_files(drawn, partly):
    assert {path.name for path in drawn.iterdir()} == {
        "layers.png", "selections.png", "robustness.png", "fim.csv", "surgery.csv", "robustness.csv", "regions.csv",
    }  # fmt: skip
    frames = {name: pd.read_csv(drawn / f"{name}.csv") for name in ("fim", "robustness", "regions")}
    assert [len(frame) for frame in frames.values()] == [len(partly.fim), 2 * len(SEEDS) * len(STEPS), 36]
    assert frames["robustness"].columns.tolist()[:5] == ["task", "seed", "step", "spearman", "kendall"]


def test_the_file_of_fine_tunings_names_the_flagged_ones(tmp_path, drawn, partly):
    rows = pd.read_csv(drawn / "surgery.csv", dtype={"layers": str})
    assert len(rows) == len(partly.surgery) and (rows.flagged == (rows.task == "qnli")).all()
    data = replace(partly, surgery=partly.surgery.assign(accuracy=0.9))
    data.surgery.loc[7, "accuracy"] = 0.505  # one alone
    plot_data(data, tmp_path)
    [flagged] = pd.read_csv(tmp_path / "surgery.csv").query("flagged").itertuples()
    assert flagged.Index == 7 and flagged.selection == partly.surgery.selection[7]
    assert rows.query("selection == 'top_2' and task == 'cr'").layers.tolist() == ["3 5", "3 5"]


TITLES = [
    "FIM score of layers: empirical, sum_fro, 8 examples",
    "Ways to score: agreement with the one that chooses",
    "Fine-tuning of selected layers",
    "The ranking during fine-tuning",
    "Where the scores point and where grafts lie",
]
OFF = [
    ({"surgery": {"selections": []}}, "selections", "surgery", TITLES[2]),
    ({"robustness": {"seeds": []}}, "robustness", "robustness", TITLES[3]),
]


@pytest.mark.parametrize(("change_of", "figure", "stage", "gone"), OFF)
def test_a_stage_that_is_off_leaves_its_figure_its_tables_and_its_numbers_out(
    tmp_path, numbers, change_of, figure, stage, gone
):
    data = found_in(tmp_path, params(**change_of))
    kept = [name for name in ("layers", "selections", "robustness") if name != figure]
    assert [path.stem for path in figures(data, tmp_path / "figures")] == kept
    plot_data(data, tmp_path / "plots")
    frames = {"fim", "surgery", "robustness", "regions"}
    assert {path.stem for path in (tmp_path / "plots").iterdir()} == frames - {stage}
    assert stage not in summary(data) and stage in numbers
    report = write_report(data)
    assert [made.title for made in report.tables] == [title for title in TITLES if title != gone]
    assert f"off, so without tables and figures: {stage}" in report.facts
    texts = {claim.text for claim in report.claims}
    assert (STEADY in texts, BETTER in texts) == (stage != "robustness", stage != "surgery")


def test_without_seeds_a_stage_is_off_as_without_selections(tmp_path):
    data = found_in(tmp_path, params(surgery={"seeds": []}))
    assert data.surgery.empty and flagged_line(data) == "" and BETTER not in {claim.text for claim in claims(data)}


def test_the_whole_report_says_what_it_is_of(found):
    report = write_report(found)
    assert report.setting == "3 tasks, 2 seeds, 6 layers" and len(report.facts) == 1
    assert [made.title for made in report.tables] == TITLES
    assert f"**holds**: {BETTER}" in to_markdown(report)
