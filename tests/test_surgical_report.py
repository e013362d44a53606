"""The report on surgical fine-tuning, on synthetic records whose effects are known."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from matplotlib.image import imread

from stages.lib.errors import DataError, MaskError
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, write_mask
from stages.lib.graft.region import Region
from stages.lib.io import read_json, write_json
from stages.lib.report.claims import judge, read_statements
from stages.lib.report.document import Claim, Verdict
from stages.lib.report.publish import plot_data, to_markdown
from stages.lib.report.stats import clean
from stages.lib.report.style import save_all
from stages.surgical import report as reporting
from stages.surgical.figures import FIGURES, layer_figure
from stages.surgical.frames import CELL, Surgical, collect, layer_text
from stages.surgical.rankings import across, bridges, by_cell
from stages.workflow.core import paths
from tests.reports import once

pytestmark = pytest.mark.usefixtures("project")

report, details = once(reporting.report), once(reporting.details)
# without the tables, which take longer
claims = once(
    lambda data: judge(read_statements(reporting.HERE / "claims.yaml"), reporting.MEASURES, data, settings=data.limits)
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
TENSORS = {"attention.self.query.weight": (8, 8), "attention.self.query.bias": (8,), "output.dense.weight": (8, 16)}
REGION = Region(
    {"bert.embeddings.word_embeddings.weight": (16, 8)}
    | {f"bert.encoder.layer.{layer}.{name}": TENSORS[name] for layer in range(LAYERS) for name in TENSORS}
)
BETTER = "Training the layer with the highest score is better than training as many with the lowest scores"
ENOUGH = "Training the layer with the highest score keeps 95 % of the score of all layers"
STEADY = "The ranking of layers keeps a Spearman correlation of 0.9 with that before fine-tuning"
OWN = "The ranking depends on the task: tasks agree less than seeds of one task"
INSIDE = "More of the learned graft than by chance is in the layer with the highest score"
SCORES, WAYS, SELECTIONS, RANKING, BRIDGE = TITLES = [
    "FIM score of layers: empirical, sum_fro, 8 examples", "Ways to score: agreement with the one that chooses",
    "Fine-tuning of selected layers", "The ranking during fine-tuning", "Where the scores point and where grafts lie",
]  # fmt: skip


def params(seeds: list[int] = SEEDS, **changes: dict[str, Any]) -> SimpleNamespace:
    """The sections of params.yaml, with changes of one setting each: params(surgery={"tasks": []})."""
    score = SimpleNamespace(target="empirical", aggregation="sum_fro", examples=8)
    sections = {
        "fim": {"tasks": TASKS}, "robustness": {"tasks": TASKS}, "graft": {"localizer": "learned"},
        "surgery": {"selections": [*ACCURACY], "tasks": TASKS, "draws": len(DRAWN), "score": score},
        "surgical": {"margin": 0.01, "kept": 0.95, "steady": 0.9},
    }  # fmt: skip
    own = {name: SimpleNamespace(**values | changes.get(name, {})) for name, values in sections.items()}
    return SimpleNamespace(seeds=seeds, **own)


def params_of(seeds: list[int], *tasks: str) -> SimpleNamespace:
    return params(seeds, **{name: {"tasks": [*tasks]} for name in ("fim", "surgery", "robustness")})


@dataclass
class Writer:
    """Writes what the stages would; `accuracy` is of selections, in the cells of `flat` nothing is learned.

    `order` gives the ranking of a cell, `inside` the layers of a ranking that hold most of the learned mask,
    `shuffled` has the checkpoints (task, seed, step) at which the ranking is turned round, `gain` is what a step brings on dev.
    """

    accuracy: dict[str, float] = field(default_factory=dict)
    flat: Collection[tuple[str, int]] = ()
    order: Callable[[str, int], list[int]] = lambda task, seed: ORDERS[task]
    inside: Callable[[list[int]], list[int]] = lambda order: order[:2]
    shuffled: Collection[tuple[str, int, int]] = ()
    gain: float = 0.01

    def write(self, settings: SimpleNamespace) -> None:
        """All files that the settings name."""
        for cell in product(settings.fim.tasks, settings.seeds):
            self.fim(*cell)
            self.mask(*cell)
        for cell in product(settings.surgery.selections, settings.surgery.tasks, settings.seeds):
            self.surgery(*cell)
        for cell in product(settings.robustness.tasks, settings.seeds):
            self.robustness(*cell)

    def scores(self, task: str, seed: int) -> list[float]:
        return [0.5 ** self.order(task, seed).index(layer) for layer in range(LAYERS)]

    def fim(self, task: str, seed: int) -> None:
        """The other target ranks the layers the other way round; no single head has the mean's scores."""
        rows = []
        for head, target, examples, aggregation in product(range(HEADS), TARGETS, EXAMPLES, AGGREGATIONS):
            scores = [(0.5 + head) * score for score in self.scores(task, seed)]
            scores = [1 / score for score in scores] if target == "label_logit" else scores
            axes = {"target": target, "examples": examples, "used": examples, "head": head}
            rows.append({**axes, "aggregation": aggregation, "scores": scores})
        store("fim", (), task, seed, rows)

    def surgery(self, selection: str, task: str, seed: int) -> None:
        order, number = self.order(task, seed), CELLS.index((task, seed))
        sets = {"all": [*range(LAYERS)], "none": [], "top_1": order[:1], "top_2": sorted(order[:2]), "bottom_1": order[-1:]}  # fmt: skip
        drawn = DRAWN if selection.startswith("random") else {}
        # cells differ, and top_1 is worse in one task and better in another
        noise = 0.002 * number + (0.005 * (TASKS.index(task) - 1) if selection == "top_1" else 0.0)
        rows = []
        for layers, more in [([layer], more) for layer, more in drawn.items()] or [(sets[selection], 0.0)]:
            accuracy = (ACCURACY | self.accuracy)[selection] + noise + more
            accuracy = MAJORITY if (task, seed) in self.flat else accuracy
            shares = {
                "n": 100,
                "accuracy": accuracy,
                "score": accuracy - LESS,
                "majority": MAJORITY,
                "constant": MAJORITY,
            }
            rows.append({"draw": len(rows), **run(layers, number), **shares})
        store("surgery", (selection,), task, seed, rows, selection=selection, model_parameters=MODEL)

    def robustness(self, task: str, seed: int) -> None:
        rows = []
        for step in STEPS:
            scores = [score * (1 + step) for score in self.scores(task, seed)]
            scores = [1 / score for score in scores] if (task, seed, step) in self.shuffled else scores
            moved = {"moved": [0.01 * step] * LAYERS, "start": [10.0] * LAYERS}
            rows.append({"step": step, "scores": scores, **moved, "dev_accuracy": 0.5 + self.gain * step})
        store("robustness", (), task, seed, rows)

    def mask(self, task: str, seed: int) -> None:
        """One parameter in every tensor, and most of the first map in the layers that are inside."""
        counts = dict.fromkeys(REGION.shapes, 1)
        for layer in self.inside(self.order(task, seed)):
            counts[f"bert.encoder.layer.{layer}.attention.self.query.weight"] = 30 + CELLS.index((task, seed))
        write_learned(task, seed, counts)


def store(stage: str, axes: tuple[str, ...], task: str, seed: int, rows: list, **more: Any) -> None:
    record = {"stage": stage, "task": task, "seed": seed, **more, "rows": rows}
    write_json(paths.reading_record(stage, axes, task, seed), record)


def write_learned(task: str, seed: int, counts: dict[str, int]) -> None:
    """A learned mask with so many of the parameters of each tensor."""
    mask = GraftMask(REGION, {name: torch.arange(count) for name, count in counts.items()})
    values = {name: torch.ones(count) for name, count in counts.items()}
    write_mask(paths.learned(task, seed), StoredMask(mask, values, {}, {"task": task, "seed": seed}))


def run(layers: list[int], cell: int) -> dict[str, Any]:
    """Training, by its layers alone: however they were selected, its losses are the same."""
    apart = sum(0.01 * 0.5**layer for layer in layers)
    curve = [{"step": step, "train_loss": 0.7 - 0.1 * step - apart} for step in range(3)] if layers else []
    trained = {"layers": layers, "trained": HEAD_SIZE + LAYER_SIZE * len(layers)}
    return {**trained, "curve": curve, "loss": 0.6 - apart + 0.001 * cell, "peak_learning_rate": 1e-3}


def made(settings: SimpleNamespace | None = None, **effects: Any) -> Surgical:
    """The frames read of records with these effects."""
    Writer(**effects).write(settings or params())
    return collect(settings or params())


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Surgical:
    with contextlib.chdir(tmp_path_factory.mktemp("records")):
        return made()


@pytest.fixture(scope="module")
def partly(tmp_path_factory) -> Surgical:
    """One task of which nothing was learned, by any layers."""
    with contextlib.chdir(tmp_path_factory.mktemp("flat")):
        return made(flat=[("qnli", 13), ("qnli", 21)])


def draw(data: Surgical, folder: str) -> dict[str, Path]:
    """File name -> path."""
    save_all(FIGURES, data, Path(folder))
    plot_data(data.plots)(Path(folder))
    return {path.name: path for path in Path(folder).iterdir()}


def claim_of(data: Surgical, text: str) -> Claim:
    [claim] = [claim for claim in claims(data) if claim.text == text]
    return claim


def verdict(data: Surgical, text: str) -> Verdict:
    return claim_of(data, text).verdict


def texts_of(data: Surgical) -> list[str]:
    return [claim.text for claim in claims(data)]


def rows_of(data: Surgical, title: str, lead: int = 1) -> dict[Any, dict[str, str]]:
    """First cells of each row of a table -> column -> cell."""
    [table] = [table for table in report(data).tables if table.title == title]
    keys = [row.cells[0] if lead == 1 else tuple(row.cells[:lead]) for row in table.rows]
    return {key: dict(zip(table.header, row.cells, strict=True)) for key, row in zip(keys, table.rows, strict=True)}


def change(selection: str, task: str, seed: int, **values: Any) -> dict[str, Any]:
    """Other values in the first fine-tuning of a stored record; gives what it has then."""
    path = paths.reading_record("surgery", (selection,), task, seed)
    record = read_json(path)
    record["rows"][0] |= values
    write_json(path, record)
    return record["rows"][0]


def test_frames_have_a_row_for_each_layer_and_each_fine_tuning(found):
    assert len(found.fim) == len(CELLS) * HEADS * len(TARGETS) * len(EXAMPLES) * len(AGGREGATIONS) * LAYERS
    for (task, _), scores in by_cell(found.chosen()).items():
        # the means of two heads with half of it and with three halves
        assert [scores[layer] for layer in ORDERS[task]] == pytest.approx([0.5**place for place in range(LAYERS)])
    assert by_cell(found.chosen(head=0))["cr", 13][5] == pytest.approx(0.5)
    random = found.runs.query("selection == 'random_1' and task == 'cr' and seed == 21")
    assert random.draw.tolist() == [0, 1, 2] and random.layers.tolist() == [[0], [2], [4]] and {*random["size"]} == {1}
    assert found.runs[found.runs["size"].isna()].selection.unique().tolist() == ["all", "none"]
    assert len(found.robustness) == len(CELLS) * len(STEPS) * LAYERS and {*found.robustness.task} == {*TASKS}
    mask = found.regions.query("task == 'cr' and seed == 13").set_index("layer")
    selected = 2 * 32 + len(REGION.shapes) - 2  # what lies outside the layers is in no row
    assert mask.share[[5, 3, 0]].tolist() == pytest.approx([34 / selected, 34 / selected, 3 / selected])
    assert mask.chance.tolist() == pytest.approx([200 / REGION.size] * LAYERS)
    assert layer_text([0, 10]) == "1, 11" and layer_text([]) == "none"


def test_what_is_not_asked_for_is_in_no_table_though_its_files_are_there():
    Writer().write(params())
    less = params_of([21], "sst2", "cr")
    less.surgery.selections = ["all", "top_1"]
    only = collect(less)
    text = to_markdown(report(only))
    assert "cr" in text and "qnli" not in text and "bottom_1" not in text and {*only.regions.seed} == {21}


@pytest.mark.parametrize(
    ("path", "made_by"),
    [
        ("metrics/fim/21/qnli.json", "stages/surgical/dvc.yaml:fim@21"),
        ("metrics/surgery/random_1/21/cr.json", "stages/surgical/dvc.yaml:surgery@random_1-21"),
        ("metrics/robustness/21/sst2.json", "stages/surgical/dvc.yaml:robustness@21"),
        ("masks/learned/21/cr.safetensors", "mask@cr-21"),
    ],
)
def test_a_file_that_is_damaged_or_not_there_is_named_with_the_command_that_makes_it(path, made_by):
    Writer().write(params())
    Path(path).write_bytes(b"{}")
    with pytest.raises(MaskError if path.startswith("masks") else DataError, match=path):
        collect(params())
    Path(path).unlink()
    with pytest.raises(DataError) as problem:
        collect(params())
    assert str(problem.value) == f"{path}: not there; `dvc repro {made_by}` makes it"


def test_a_task_with_fewer_examples_is_scored_by_those_it_has_as_in_surgery(found):
    whole = found.chosen()
    kept = found.fim[(found.fim.task != "cr") | (found.fim.examples < 8)]
    scores = replace(found, fim=kept.assign(score=kept.score * (1 + (kept.examples < 8)))).chosen()
    assert [*scores.index] == [*whole.index]
    assert scores["cr"].tolist() == pytest.approx((2 * whole["cr"]).tolist())  # of 4 examples, twice as high here
    assert scores["sst2"].tolist() == whole["sst2"].tolist()  # the control: the others keep to 8


def test_two_sets_of_layers_that_were_trained_alike_stop_the_report():
    Writer().write(params())
    twin = {name: value for name, value in change("top_1", "cr", 21).items() if name in ("curve", "loss")}
    almost = [*twin["curve"][:-1], {"step": 2, "train_loss": twin["curve"][-1]["train_loss"] + 1e-9}]
    change("bottom_1", "cr", 21, curve=almost, loss=twin["loss"])
    change("bottom_1", "cr", 13, **twin)
    collect(params())  # they differ at one step, or are of another cell
    change("bottom_1", "cr", 21, **twin)
    with pytest.raises(DataError, match="training layers 6 and training layers 2 of cr-21 gave the same loss at every"):
        collect(params())


def test_runs_less_than_the_margin_above_the_majority_are_flagged_and_no_others(found):
    assert 0.41 - 0.40 < 0.01  # a difference of exactly the margin rounds down
    rows = found.runs[found.runs.selection == "none"]
    data = replace(found, runs=rows.assign(majority=0.4, accuracy=[0.41, 0.4099, 0.40, 0.5, 0.39, 0.6]))
    assert data.flagged.tolist() == [False, True, True, False, True, False]
    assert (rows.score - rows.majority < 0.01).any() and not found.flagged.any(), "it is accuracy that counts"


def test_selections_stand_beside_all_layers_and_random_ones_of_their_size(found, partly):
    rows = rows_of(found, SELECTIONS)
    random, top = rows["random_1"], rows["top_1"]
    assert random["n"] == top["n"] == "6" and random["flagged"] == "0 of 18", "draws count as one cell"
    assert random["sst2"] == "77.1 (0.1)" and random["mean"] == "77.5 (0.4)"  # draws are 5 points apart
    assert [row["trained (%)"] for row in rows.values()] == ["60.5", "0.5", "10.5", "20.5", "10.5", "10.5"]
    assert rows["bottom_1"]["less all"] == "-20.0 (-20.0 to -20.0)"
    # tasks 0.5 points apart: an interval of 4.303 / sqrt(3) of that
    assert top["less all"] == "-2.0 (-3.2 to -0.8)" and top["less random"] == "+8.0 (+6.8 to +9.2)"
    assert rows["top_2"]["less random"] == rows["all"]["less all"] == random["less random"] == ""
    assert rows_of(partly, SELECTIONS)["random_1"]["flagged"] == "6 of 18"
    note = report(partly).tables[2].notes[-1]
    assert "0 of 16 of sst2 (50.0 %), 0 of 16 of cr (50.0 %), 16 of 16 of qnli (50.0 %)" in note
    assert [report(data).facts[0].partition(" fine")[0] for data in (found, partly)] == ["0 of 48", "16 of 48"]


def test_layers_stand_in_the_order_of_their_scores(found):
    rows = {task: [*row.values()] for task, row in rows_of(found, SCORES).items()}
    assert rows["cr"] == ["cr", "2", "6 4 5 3 1 2", "50.8"]  # 1 of 1 + 1/2 + ... + 1/32
    ways = {key: [*row.values()][2:] for key, row in rows_of(found, WAYS, 2).items()}
    assert ways["empirical, trace", "4"] == ["6", "1.00 (0.00)", "1.00 (0.00)"]
    assert ways["label_logit, sum_fro", "8"] == ["6", "-1.00 (0.00)", "-1.00 (0.00)"]
    assert len(ways) == len(TARGETS) * len(AGGREGATIONS) * len(EXAMPLES)


def test_where_the_graft_lies_stands_beside_a_random_ones_share(found):
    row = rows_of(found, BRIDGE)["sst2"]
    share = sum(2 * (32 + number) / (2 * (29 + number) + len(REGION.shapes)) for number in (0, 1)) / 2
    assert row["graft in top 2 (%)"] == f"{100 * share:.1f} ({100 * 2 * 200 / REGION.size:.1f})"
    assert float(row["score, graft"].split()[0]) > 0.5 and row["score, movement"] == "", "all layers move alike"


@pytest.mark.parametrize(
    ("accuracy", "expected", "figure"),
    [
        ({}, Verdict.HOLDS, "+18.0 points (95 % interval +16.8 to +19.2; 3 tasks, 2 seeds; above 0 in 3 of 3)"),
        ({"top_1": 0.70, "bottom_1": 0.88}, Verdict.FAILS, "-18.0 points"),
        ({"top_1": 0.70}, Verdict.UNCLEAR, "+0.0 points"),
    ],
)
def test_an_effect_is_shown_where_it_is_there(accuracy, expected, figure):
    data = made(accuracy=accuracy)
    assert verdict(data, BETTER) is expected and claim_of(data, BETTER).figure.startswith(figure)
    rivals = [text.partition("as many ")[2] for text in texts_of(data) if "is better" in text]
    assert rivals == ["with the lowest scores", "at random"], "selections are compared with others of their size alone"


def test_one_cell_is_too_few_to_measure_an_effect_and_leaves_no_deviation():
    data = made(params_of([13], "sst2"))
    assert {claim.verdict for claim in claims(data)} == {Verdict.OPEN}
    assert claim_of(data, BETTER).figure.startswith("+17.5 points (no interval; 1 task, 1 seed; above 0 in 1 of 1)")
    assert OWN not in texts_of(data), "there are no pairs of cells"
    stored = clean(details(data))
    assert "sd" not in stored["surgery"]["top_1"]["score"] and all(map(math.isfinite, numbers_of(stored)))
    assert "score_movement" not in stored["bridge"], "all layers moved alike, so there is no rank"


def test_what_few_layers_do_says_nothing_where_all_of_them_gained_nothing(found, partly):
    for data, text in product((partly, made(flat=CELLS)), (BETTER, ENOUGH)):
        claim = claim_of(data, text)
        assert (
            claim.verdict is Verdict.OPEN
            and "has not been shown to gain over the pretrained model and over always the same label" in claim.figure
        )
    assert verdict(made(accuracy={"none": 0.90}), ENOUGH) is Verdict.OPEN, "a new head alone does as well"
    constant = replace(found, runs=found.runs.assign(constant=0.9))
    assert verdict(constant, ENOUGH) is Verdict.OPEN and "always the same label" in claim_of(constant, ENOUGH).figure
    assert verdict(found, ENOUGH) is Verdict.HOLDS, "the control"


def test_one_layer_is_enough_where_the_interval_of_what_it_keeps_is_above_the_limit(found):
    claim = claim_of(found, ENOUGH)
    assert claim.verdict is Verdict.HOLDS and claim.exceptions == [] and "3 tasks, 2 seeds" in claim.here
    claim = claim_of(made(accuracy={"top_1": 0.865}), ENOUGH)
    assert claim.verdict is Verdict.UNCLEAR and claim.figure.startswith("96.0 %"), "the mean alone was enough before"
    assert verdict(made(accuracy={"top_1": 0.83}), ENOUGH) is Verdict.FAILS
    nothing = (found.runs.selection == "all") & (found.runs.task == "cr")
    for score in (0.0, -0.2):  # has no share
        claim = claim_of(replace(found, runs=found.runs.assign(score=found.runs.score.mask(nothing, score))), ENOUGH)
        assert "; 2 tasks, 2 seeds)" in claim.figure and "inf" not in claim.figure


def test_several_numbers_of_layers_are_one_family(found):
    runs = found.runs.set_index([*CELL, "selection"]).sort_index()
    whole, apart = runs.score.xs("all", level="selection"), pd.Series({"sst2": -1, "cr": 0, "qnli": 1})
    kept = {"top_1": 0.96 + 0.00357 * apart, "top_2": 0.95 + 0.01 * apart}  # p = 0.04 and 1
    for name, shares in kept.items():
        scores = whole * shares.reindex(whole.index, level="task")
        runs.loc[(slice(None), slice(None), name), "score"] = scores.to_numpy()
    both = replace(found, runs=runs.reset_index())
    alone = replace(found, runs=both.runs[both.runs.selection != "top_2"])
    assert [verdict(data, ENOUGH) for data in (both, alone)] == [Verdict.UNCLEAR, Verdict.HOLDS]
    assert claim_of(both, ENOUGH).figure.endswith("not after Holm's correction for 2 claims")


def test_a_ranking_that_stays_is_steady_and_one_that_changes_is_named(found):
    claim = claim_of(found, STEADY)
    assert claim.verdict is Verdict.HOLDS and claim.exceptions == []
    assert claim.paper.place == "Lodha et al., 2023, abstract"
    assert "lowest of all 1.00" in claim.figure and "moved by 4.0 % of their norm" in claim.figure
    claim = claim_of(made(shuffled=[("cr", 21, 20)]), STEADY)
    assert claim.verdict is Verdict.UNCLEAR and claim.exceptions == ["cr 0.00"]
    assert "lowest of all -1.00, after the last step 1.00" in claim.figure
    turned = made(shuffled=[(*cell, 40) for cell in CELLS[1:]])
    assert verdict(turned, STEADY) is Verdict.FAILS
    first, middle, last = [*rows_of(turned, RANKING, 2).values()][: len(STEPS)]  # of sst2
    assert last["Spearman"] == last["Kendall tau-b"] == "0.00 (1.41)" and last["n"] == "2"  # 1 and -1
    assert last["moved (%)"] == "4.0 (0.0)" and last["dev accuracy (%)"] == "90.0 (0.0)"
    assert first["Spearman"] == middle["Spearman"] == "1.00 (0.00)"
    idle = made(gain=0.0)
    assert verdict(idle, STEADY) is Verdict.OPEN and "gain on dev" in claim_of(idle, STEADY).figure
    same = replace(found, robustness=found.robustness.assign(score=1.0))
    assert STEADY not in texts_of(same), "there is no ranking to keep"


def test_rankings_of_tasks_differ_more_than_those_of_seeds_where_they_do(found):
    turns = {"sst2": [5, 4, 3, 2, 1, 0], "cr": [3, 2, 1, 0, 5, 4], "qnli": [1, 0, 5, 4, 3, 2]}
    claim = claim_of(made(order=lambda task, seed: turns[task]), OWN)
    assert claim.verdict is Verdict.HOLDS and "1.00 between seeds" in claim.figure and "3 tasks, 2 seeds" in claim.here
    assert verdict(found, OWN) is Verdict.UNCLEAR, "two of three tasks have almost the same ranking"
    assert len(across(found)[0]) == 6, "each of three pairs once a seed"
    by_seed = {13: ORDERS["sst2"], 21: ORDERS["qnli"]}
    assert verdict(made(order=lambda task, seed: by_seed[seed]), OWN) is Verdict.FAILS


def test_two_layers_are_too_few_to_rank(found):
    frames = {name: getattr(found, name) for name in ("fim", "robustness", "regions")}
    short = replace(found, **{name: frame[frame.layer < 2] for name, frame in frames.items()})
    for text in (STEADY, OWN):
        assert verdict(found, text) is not Verdict.OPEN and verdict(short, text) is Verdict.OPEN
        assert "2 layers, of which there are too few rankings" in claim_of(short, text).figure
    drawn = FIGURES["robustness"](short)
    assert drawn.texts[0].get_text().startswith("The layers move by 4.0") and len(drawn.axes) == 1
    assert len(FIGURES["robustness"](found).axes) == 2, "the control"


def test_more_of_the_graft_than_by_chance_is_in_the_top_layers_where_it_was_put_there(found):
    assert verdict(found, INSIDE) is Verdict.HOLDS
    assert verdict(made(inside=lambda order: order[-2:]), INSIDE) is Verdict.FAILS
    evenly = found.regions.assign(chance=found.regions.share), found.robustness.assign(start=found.robustness.moved)
    none = bridges(replace(found, regions=evenly[0], robustness=evenly[1]))
    assert [value.n for value in none.values()] == [0, 0, 0], "what follows the sizes of the layers has no ranking"
    layer, first = found.robustness.layer + 1, found.robustness.step == 0
    moving = found.robustness.assign(moved=(layer**3).where(first, layer), start=layer**2)
    last = bridges(replace(found, robustness=moving), "sst2")["score_movement"]
    assert last.mean == pytest.approx(-1), "of the last step, and of the size a layer had"
    for task, seed in CELLS:  # everywhere
        write_learned(task, seed, dict(zip(REGION.shapes, REGION.sizes, strict=True)))
    assert verdict(collect(params()), INSIDE) is Verdict.UNCLEAR


@pytest.mark.usefixtures("bare")
def test_what_found_the_masks_is_named_wherever_the_graft_is(found):
    other = replace(found, localizer="movement")
    assert verdict(other, INSIDE.replace("learned", "movement")) is Verdict.HOLDS
    notes = " ".join(note for table in report(other).tables for note in table.notes)
    figure = " ".join(text.get_text() for text in layer_figure(other).texts)
    assert "movement mask" in notes and "movement graft" in figure and "learned" not in notes + figure


def test_without_masks_in_layers_nothing_is_claimed_of_grafts_but_layers_are_drawn(found):
    without = replace(found, regions=found.regions.iloc[:0])
    texts, left = texts_of(found), texts_of(without)
    assert left == [text for text in texts if "graft" not in text] and len(texts) - len(left) == 2
    assert [table.title for table in report(without).tables] == TITLES[:-1]
    assert "top" in details(found)["bridge"] and "top" not in details(without)["bridge"]
    drawn, bare = (draw(data, folder)["layers.png"].read_bytes() for folder, data in (("a", found), ("b", without)))
    assert drawn != bare


def numbers_of(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers_of(part)
    else:
        yield value


def test_the_headline_is_short_and_details_have_means_deviations_and_intervals(found, partly):
    short, stored = clean(reporting.headline(found)), clean(details(found))
    assert len([*numbers_of(short)]) == 5 and short["kept"] == {"top_2": pytest.approx(0.98857, abs=1e-4)}
    assert short["score"] == pytest.approx({"all": 0.875, "none": 0.505}) and short["lowest_agreement"] == 1
    assert {*stored} == {"fim", "surgery", "robustness", "bridge"} and [*stored["surgery"]] == [*ACCURACY]
    top, random = stored["surgery"]["top_1"], stored["surgery"]["random_1"]
    assert top["score"]["mean"] == pytest.approx(0.855) and (top["score"]["n"], top["score"]["tasks"]) == (6, 3)
    assert top["accuracy"]["mean"] == pytest.approx(0.885) and top["trained"] == pytest.approx(0.105)
    assert (random["runs"], random["score"]["n"], random["minus_random"]) == (18, 6, {"n": 0, "tasks": 0, "seeds": 0})
    less = top["minus_random"]
    assert less["low"] < less["mean"] < less["high"] and less["mean"] == pytest.approx(0.08)
    assert (less["n"], less["positive"]) == (6, 3) and top["minus_all"]["high"] < 0
    assert stored["robustness"]["cr"]["40"]["moved"] == {"n": 2, "mean": 0.04, "sd": 0.0}
    assert stored["bridge"]["top"]["1"]["share"]["n"] == 6 and stored["fim"]["between_seeds"]["mean"] == 1
    assert all(type(value) in (int, float) and math.isfinite(value) for value in numbers_of(stored))
    flagged = {name: part["flagged"] for name, part in clean(details(partly))["surgery"].items()}
    assert flagged == dict.fromkeys(ACCURACY, 2) | {"random_1": 6}


def test_titles_say_what_was_found_and_whiskers_are_there_where_seeds_are(found):
    one = made(params([13]))
    titles = {
        "selections": "With 2 of 6 layers trained, share of the score of all: highest",
        "robustness": "at least 1.00",
        "layers": "+0.",
    }
    for name, told in titles.items():
        many, few = FIGURES[name](found), FIGURES[name](one)
        assert told in many.texts[0].get_text()
        assert "over seeds" in many.texts[1].get_text() and "over seeds" not in few.texts[1].get_text()
    assert FIGURES["layers"](found).axes[0].get_xticklabels()[0].get_text() == "1"


def test_figures_and_the_data_behind_them_are_files(partly):
    drawn = draw(partly, "plots")
    names = ("fim", "robustness", "regions", "surgery")
    assert {*drawn} == {*(f"{name}.png" for name in FIGURES), *(f"{name}.csv" for name in names)}
    for name in FIGURES:
        image = imread(drawn[f"{name}.png"])[..., :3]
        # frames and words are grey: what has a colour is data
        assert image.shape[1] > 1000 and (image.max(-1) - image.min(-1) > 0.2).mean() > 0.002
    fim, robustness, regions, rows = (pd.read_csv(drawn[f"{name}.csv"], dtype={"layers": str}) for name in names)
    assert [*map(len, (fim, robustness, regions))] == [len(partly.fim), len(CELLS) * len(STEPS), 36]
    assert {*fim.layer} == {*regions.layer} == {*range(1, LAYERS + 1)}, "for people, from 1"
    assert len(rows) == len(partly.runs) and (rows.flagged == (rows.task == "qnli")).all()
    assert rows.query("selection == 'top_2' and task == 'cr'").layers.tolist() == ["4 6", "4 6"]


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("stage", "emptied", "figure", "gone"),
    [
        ("surgery", "selections", "selections", SELECTIONS),
        ("surgery", "tasks", "selections", SELECTIONS),
        ("robustness", "tasks", "robustness", RANKING),
    ],
)
def test_a_stage_that_is_off_leaves_its_figure_its_tables_and_its_numbers_out(stage, emptied, figure, gone):
    data = made(params(**{stage: {emptied: []}}))
    stages = {"fim", "surgery", "robustness", "regions"} - {stage}
    assert {*draw(data, "plots")} == {f"{name}.png" for name in {*FIGURES} - {figure}} | {
        f"{name}.csv" for name in stages
    }
    said = report(data)
    assert not details(data)[stage] and [table.title for table in said.tables] == [one for one in TITLES if one != gone]
    assert f"off, so without tables and figures: {stage}" in said.facts and said.setting == "3 tasks, 2 seeds, 6 layers"
    assert (STEADY in texts_of(data), BETTER in texts_of(data)) == (stage != "robustness", stage != "surgery")
