"""Tables, figures and sentences of task arithmetic, on synthetic records whose effects are known."""

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
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
from stages.lib.metrics.overlap import chance_iou
from stages.lib.metrics.variants import PRETRAINED
from stages.lib.report import publish
from stages.lib.report.document import Claim, Verdict
from stages.lib.report.load import Collected, published
from stages.lib.report.markdown import to_markdown
from stages.lib.report.stats import clean
from stages.lib.report.style import save_all, styled
from stages.talos.figures import FIGURES
from stages.talos.frames import COLUMNS, collect
from stages.talos.report import HERE, numbers, ordered, report

TASKS = ["movies", "products", "domain"]
SEEDS = [13, 21]
CELLS = len(TASKS) * len(SEEDS)
METHODS = ["full", "linear", "talos", "random", "graft"]
MASKED = ["talos", "random", "graft"]
DISENTANGLED = ["full", "talos"]
MERGERS = ["ties", "dare"]
VARIANTS = ["other_draw", "single_round"]
ALPHAS = [-2.0, -1.0, 0.0, 1.0, 2.0]
PAIRS = {"movies": "domain"}
CONTROLS = {"movies": "domain", "products": "domain", "domain": "movies"}
KEPT = {"least": 0.99, "random": 0.9, "most": 0.6}
BEFORE, FULL_SINGLE, CONTROL, N = 0.5, 0.9, 0.6, 100
MAPS = {
    "attention.self.query": (8, 8), "attention.self.key": (8, 8), "attention.self.value": (8, 8),
    "attention.output.dense": (8, 8), "intermediate.dense": (16, 8), "output.dense": (8, 16),
}  # fmt: skip
SHAPES = {f"bert.encoder.layer.{layer}.{name}.weight": shape for layer in (0, 1) for name, shape in MAPS.items()} | {
    f"bert.encoder.layer.{layer}.output.LayerNorm.bias": (8,) for layer in (0, 1)
}
REGION = Region(SHAPES)
SELECTED, SHARED = 40, 20
WOBBLES = {"talos": 0.005, "graft": 0.003, "least": 0.005, "most": 0.005}
# how sentences begin
ADDS, GRAFTS = "TaLoS adds better than full", "grafts add better than TaLoS"
TAKES, ALONE = "TaLoS takes away more than full", "TaLoS leaves other tasks alone"
DISENTANGLES, HARMLESS = "TaLoS disentangles better", "pruning the least sensitive parameters"
ALIKE, QUERY_KEY = "the least sensitive parameters of two tasks", "TaLoS selects more of attention's query and key"


@dataclass(frozen=True)
class Effect:
    """Accuracy of a method's own models, after addition and after negation, what happens to other tasks, and the error."""

    single: float
    added: float
    negated: float
    away: float
    error: float


EFFECTS = {
    "full": Effect(FULL_SINGLE, 0.60, 0.30, 0.20, 0.40),
    "linear": Effect(0.80, 0.65, 0.15, 0.10, 0.30),
    "talos": Effect(0.80, 0.72, 0.20, 0.02, 0.10),
    "random": Effect(0.75, 0.62, 0.35, 0.10, 0.30),
    "graft": Effect(0.85, 0.79, 0.25, 0.05, 0.20),
}


def settings(**changes: Any) -> SimpleNamespace:
    """What the stage talos asks for."""
    own = {
        "tasks": TASKS,
        "seeds": SEEDS,
        "edit": METHODS,
        "arithmetic": METHODS,
        "disentangle": DISENTANGLED,
        **changes,
    }
    pairs = {first: second for first, second in PAIRS.items() if {first, second} <= {*own["tasks"]}}
    return SimpleNamespace(
        talos=SimpleNamespace(tasks=own["tasks"], seeds=own["seeds"]),
        edit=SimpleNamespace(methods=own["edit"]),
        arithmetic=SimpleNamespace(methods=own["arithmetic"]),
        disentangle=SimpleNamespace(methods=own["disentangle"], grid=SimpleNamespace(pairs=pairs)),
    )


class Writer:
    """Writes what the stages would.  Cells differ a little, so that intervals have a width, and in sum by nothing."""

    def __init__(self, root: Path, **changes: Any) -> None:
        own = {"kept": KEPT, "mergers": MERGERS, "weak": [], "variants": VARIANTS, "shared": SHARED, "place": "query"}
        self.root, self.has = root, SimpleNamespace(**{**own, **changes})
        self.effects = EFFECTS | changes.get("effects", {})

    def write(self, params: SimpleNamespace) -> None:
        """All files that the settings name."""
        for task, seed in product(params.talos.tasks, params.talos.seeds):
            self.sensitivity(params.talos.tasks, task, seed)
            for method in params.edit.methods:
                self.edit(method, params.talos.tasks, task, seed)
            for method in params.arithmetic.methods:
                self.arithmetic(method, task, seed)
        for method, seed in product(params.disentangle.methods, params.talos.seeds):
            self.disentangle(method, params.disentangle.grid.pairs, seed)

    def record(self, stage: str, axes: tuple[str, ...], name: str, seed: int, found: dict[str, Any]) -> None:
        write_json(self.root / paths.reading_record(stage, axes, name, seed), {"stage": stage, "seed": seed, **found})

    def sensitivity(self, tasks: list[str], task: str, seed: int) -> None:
        rows = [scored(PRETRAINED, BEFORE)]
        rows += [
            scored(f"{kind}_{other}", BEFORE * (kept + wobble(task, seed, kind)))
            for other in tasks
            for kind, kept in self.has.kept.items()
        ]
        overlaps = [{"variant": name, "iou": 0.8, "chance": 0.05} for name in self.has.variants]
        self.record("sensitivity", (), task, seed, {"task": task, "rows": rows, "overlaps": overlaps})

    def edit(self, method: str, tasks: list[str], task: str, seed: int) -> None:
        effect = self.effects[method]
        after = {other: BEFORE * (1 - effect.away) if other != task else effect.single for other in tasks}
        rows = [scored(PRETRAINED, BEFORE)]
        rows += [scored(name, share + wobble(task, seed, method)) for name, share in after.items()]
        cost = {"steps": 10, "trained": SELECTED, "optimizer_bytes": 8 * SELECTED, "checkpoint_bytes": 8 * SELECTED}
        if method not in ("full", "graft"):
            cost |= {"gradient_examples": 64, "calibration_seconds": 1.5, "train_seconds": 5.0, "peak_bytes": 2**28}
        about = {"method": method, "task": task, "selected": SELECTED, "graftable": REGION.size, "cost": cost}
        self.record("edit", (method,), task, seed, {**about, "rows": rows})
        if method in MASKED:
            self.mask(method, task, seed)

    def mask(self, method: str, task: str, seed: int) -> None:
        """All tasks share some; of talos so many and there as it is told, of the others always the same."""
        place, shared = (self.has.place, self.has.shared) if method == "talos" else ("intermediate", SHARED)
        inside = [number for number, name in enumerate(names_of_entries()) if place in name]
        own = inside[shared + (SELECTED - shared) * TASKS.index(task) :][: SELECTED - shared]
        chosen = inside[:shared] + own
        mask = GraftMask.from_region_indices(REGION, torch.tensor(chosen))
        values = {name: torch.zeros(len(indices)) for name, indices in mask.indices.items()}
        write_mask(self.root / paths.edited(method, task, seed), StoredMask(mask, values, {}, {"task": task}))

    def arithmetic(self, method: str, task: str, seed: int) -> None:
        effect, noise = self.effects[method], wobble(task, seed, method)
        accuracy = {"sum": effect.added, **({"ties": 0.63, "dare": 0.61} if method == "full" else {})}
        added = {
            name: {
                "alpha": 0.5, "curve": [[0.0, 0.6], [0.5, 0.8], [1.0, 0.7]], "accuracy": share + noise,
                "by_own": (share + noise) / effect.single, "by_full": (share + noise) / FULL_SINGLE,
            }
            for name, share in accuracy.items()
            if name == "sum" or name in self.has.mergers
        }  # fmt: skip
        negated = {
            "alpha": 0.75, "control": CONTROLS[task], "weak_control": task in self.has.weak, "control_zero_shot": CONTROL,
            "control_accuracy": 0.95 * CONTROL, "accuracy": effect.negated + noise,
        }  # fmt: skip
        about = {"method": method, "task": task, "n": N, "n_dev": 20, "pretrained": BEFORE, "single": effect.single}
        self.record(
            "arithmetic", (method,), task, seed, {**about, "full": FULL_SINGLE, "added": added, "negated": negated}
        )

    def disentangle(self, method: str, pairs: dict[str, str], seed: int) -> None:
        """Where alpha is searched the error is the method's, beyond it twice that."""
        for first, second in pairs.items():
            rows = []
            for one, two in product(ALPHAS, ALPHAS):
                error = self.effects[method].error * (1 if max(abs(one), abs(two)) <= 1 else 2) + wobble(
                    first, seed, method
                )
                rows.append({"alpha1": one, "alpha2": two, "e1": error - 0.05, "e2": error + 0.05, "mean": error})
            self.record("disentangle", (method,), f"{first}+{second}", seed, {"method": method, "rows": rows})


def scored(variant: str, accuracy: float) -> dict[str, Any]:
    return {"variant": variant, "n": N, "accuracy": accuracy, "accuracy_se": 0.05}


def wobble(task: str, seed: int, name: str) -> float:
    """Up in one half of the cells and down in the other, by an own size for each name; its mean over seeds is 0."""
    return WOBBLES.get(name, 0.002) * (-1) ** (TASKS.index(task) + SEEDS.index(seed))


def names_of_entries() -> Iterator[str]:
    """The tensor of each region index."""
    for name, size in zip(REGION.shapes, REGION.sizes, strict=True):
        yield from [name] * size


def read(root: Path, params: SimpleNamespace) -> Collected:
    with contextlib.chdir(root):
        return collect(params.talos, params.edit, params.arithmetic, params.disentangle)


def found_in(root: Path, params: SimpleNamespace | None = None, **changes: Any) -> Collected:
    Writer(root, **changes).write(params or settings())
    return read(root, params or settings())


def of_numbers(found: Collected) -> dict[str, Any]:
    """As metrics/talos.json has them."""
    return clean({name: part for name, part in numbers(found).items() if part})


def drawn_in(found: Collected, folder: Path, makers: dict[str, Any] = FIGURES) -> list[Path]:
    return save_all(makers, found, folder)


def plot_data(found: Collected, folder: Path) -> list[Path]:
    publish.plot_data(found.frames)(folder)
    return [*folder.glob("*.csv")]


def turned(method: str, **changes: float) -> dict[str, Effect]:
    """The effects of one method, changed."""
    return {method: replace(EFFECTS[method], **changes)}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Collected:
    return found_in(tmp_path_factory.mktemp("talos"))


@pytest.fixture(scope="module")
def drawn(found, tmp_path_factory) -> dict[str, Path]:
    """Name -> figure, drawn once."""
    return {path.stem: path for path in drawn_in(found, tmp_path_factory.mktemp("figures"))}


def table(found: Collected, title: str) -> dict[str, dict[str, str]]:
    """First column -> the others by their header, a paper's row under the method above it and "paper"."""
    [chosen] = [made for made in report(found).tables if made.title == title]
    rows, above = {}, ""
    for line in chosen.rows:
        above = above if line.kind == "paper" else line.cells[0]
        cells = [*line.cells, *[""] * (len(chosen.header) - len(line.cells))]
        name = f"{above}, paper" if line.kind == "paper" else above
        rows[name] = dict(zip(chosen.header[1:], cells[1:], strict=True))
    return rows


def told(found: Collected, *beginnings: str) -> list[Claim]:
    """The claims that begin so, in this order."""
    made = report(found).claims
    chosen = [[one for one in made if one.text.startswith(beginning)] for beginning in beginnings]
    assert [len(several) for several in chosen] == [1] * len(beginnings)
    return [several[0] for several in chosen]


def verdicts(found: Collected, *beginnings: str) -> list[Verdict]:
    return [claim.verdict for claim in told(found, *beginnings)]


# --- What is read ----------------------------------------------------------------------------------------------


def test_frames_have_a_row_for_every_cell_and_the_columns_that_are_named(found):
    rows = {name: len(frame) for name, frame in found.frames.items()}
    pairs = 3  # of three tasks, and of three methods with masks
    assert rows == {
        "addition": (len(METHODS) + len(MERGERS)) * CELLS,
        "negation": len(METHODS) * CELLS,
        "curve": (len(METHODS) + len(MERGERS)) * len(SEEDS) * 3,
        "localization": len(METHODS) * len(TASKS) * CELLS,
        "cost": len(METHODS) * CELLS,
        "disentangle": len(DISENTANGLED) * len(SEEDS) * len(ALPHAS) ** 2,
        "pruned": len(KEPT) * len(TASKS) * CELLS,
        "overlap": len(VARIANTS) * CELLS,
        "tensors": len(MASKED) * CELLS * len(SHAPES),
        "task_iou": len(MASKED) * pairs * len(SEEDS),
        "method_iou": pairs * CELLS,
    }
    for name, columns in COLUMNS.items():
        assert {*columns} <= {*found.frames[name].columns}
        assert found.frames[name][columns].notna().all(axis=None)
    assert found.off == []


def test_which_task_a_model_was_trained_on_and_tested_on_are_not_mixed_up(tmp_path):
    params = settings()
    Writer(tmp_path).write(params)
    path = tmp_path / paths.reading_record("edit", ("talos",), "domain", 13)
    record = read_json(path)
    next(row for row in record["rows"] if row["variant"] == "movies")["accuracy"] = 1.0
    write_json(path, record)
    frame = read(tmp_path, params).frames["localization"]
    cell = frame[(frame.method == "talos") & (frame.seed == 13)].set_index(["trained_on", "task"]).ratio
    assert cell["movies", "domain"] == 2.0 and cell["domain", "movies"] < 1.1


def test_masks_are_compared_by_what_they_select(found):
    frame = found.frames["task_iou"]
    assert {*frame[frame.method == "talos"].iou} == {SHARED / (2 * SELECTED - SHARED)}
    assert {*frame.chance} == {chance_iou(SELECTED, SELECTED, REGION.size)}
    between = found.frames["method_iou"].set_index(["first", "second"]).iou
    assert (between["random", "graft"] == 1).all(), "both lie in the same place here"
    assert (between["talos", "graft"] == 0).all(), "the control"
    sums = found.frames["tensors"].groupby(["method", "task", "seed"])[["selected", "parameters"]].sum()
    assert {*sums.selected} == {SELECTED} and {*sums.parameters} == {REGION.size}


@pytest.mark.parametrize(
    "stage, axes, name, cell",
    [
        ("sensitivity", (), "movies", "sensitivity@21"),
        ("edit", ("talos",), "products", "edit@talos-21"),
        ("arithmetic", ("full",), "domain", "arithmetic@full-21"),
        ("disentangle", ("talos",), "movies+domain", "disentangle@talos-21"),
    ],
)
def test_a_missing_record_is_named_with_what_makes_it(tmp_path, stage, axes, name, cell):
    params = settings()
    Writer(tmp_path).write(params)
    path = paths.reading_record(stage, axes, name, 21)
    (tmp_path / path).unlink()
    with pytest.raises(DataError) as problem:
        read(tmp_path, params)
    assert str(problem.value) == f"{path}: not there; `dvc repro stages/talos/dvc.yaml:{cell}` makes it"
    only = read(tmp_path, settings(seeds=[13]))
    assert {*only.frames["addition"].seed} == {13}, "a cell that isn't asked for may be missing"


def test_a_missing_and_a_damaged_mask_are_named(tmp_path):
    params = settings()
    Writer(tmp_path).write(params)
    path = paths.edited("talos", "products", 13)
    (tmp_path / path).write_bytes(b"nothing")
    with pytest.raises(MaskError, match=f"{path}: damaged"):
        read(tmp_path, params)
    (tmp_path / path).unlink()
    with pytest.raises(MaskError, match=f"{path}: no such mask"):
        read(tmp_path, params)
    assert read(tmp_path, settings(edit=["full", "linear"], arithmetic=[], disentangle=[])).frames["tensors"].empty


FRAMES_OF = {
    "disentangle": {"disentangle"},
    "arithmetic": {"addition", "negation", "curve"},
    "edit": {"localization", "cost", "tensors", "task_iou", "method_iou"},
}


@pytest.mark.parametrize("stages", [["disentangle"], ["arithmetic"], ["edit", "arithmetic", "disentangle"]])
def test_a_stage_that_is_off_leaves_its_frames_empty_and_is_named(tmp_path, stages):
    off = found_in(tmp_path, settings(**{stage: [] for stage in stages}))
    empty = {name for name, frame in off.frames.items() if frame.empty}
    assert empty == set().union(*(FRAMES_OF[stage] for stage in stages)) and off.off == stages
    assert all([*off.frames[name].columns][: len(columns)] == columns for name, columns in COLUMNS.items())
    facts = report(off).facts
    assert facts == [f"off, so without tables and figures: {', '.join(stages)}"]
    assert f"- {facts[0]}" in to_markdown(report(off))
    assert {*of_numbers(off)} & empty == set()
    assert {path.stem for path in plot_data(off, tmp_path)} == {*COLUMNS} - empty


def test_without_a_mask_no_sentence_about_masks_is_measurable(tmp_path):
    off = found_in(tmp_path, settings(edit=["full", "linear"], arithmetic=["full"], disentangle=["full"]))
    assert verdicts(off, ALIKE, QUERY_KEY) == [Verdict.OPEN] * 2
    assert "masks" not in of_numbers(off) and "addition" in of_numbers(off)


def test_without_seeds_everything_is_off_and_nothing_is_claimed(tmp_path):
    off = read(tmp_path, settings(seeds=[]))
    assert off.off == ["edit", "arithmetic", "disentangle", "sensitivity"]
    assert report(off).tables == [] and of_numbers(off) == {}
    assert {made.verdict for made in report(off).claims} == {Verdict.OPEN}
    assert drawn_in(off, tmp_path) == [] and plot_data(off, tmp_path) == []


def test_methods_stand_in_one_order_and_new_ones_behind():
    assert ordered(["fish", "graft", "talos", "full", "graft"]) == ["full", "talos", "graft", "fish"]


# --- Tables ----------------------------------------------------------------------------------------------------


def test_addition_has_absolute_accuracy_and_both_ways_to_normalise_it_side_by_side(found):
    rows = table(found, "Task addition")
    assert [*rows["TaLoS"]] == ["n", "alpha", "single", "added", "added / own single", "added / full single"]
    assert [*rows["TaLoS"].values()] == ["6", "0.5", "80.0 (0.0)", "72.0 (0.5)", "90.0 (0.7)", "80.0 (0.6)"]
    full = rows["full fine-tuning"]
    assert full["added / own single"] == full["added / full single"] == "66.7 (0.2)", (
        "the control: full is its own single"
    )
    assert rows["pretrained"]["added"] == "50.0 (0.0)"


def test_the_paper_s_values_stand_below_ours_and_only_where_it_has_some(found):
    rows = table(found, "Task addition")
    theirs = published(HERE / "paper.yaml")["addition"]["talos"]
    assert rows["TaLoS, paper"]["added"] == f"{100 * theirs['accuracy']:.1f}" == "79.7"
    assert rows["TaLoS, paper"]["added / own single"] == f"{100 * theirs['by_own']:.1f}" == "90.8"
    assert rows["TaLoS, paper"]["added / full single"] == rows["TaLoS, paper"]["single"] == ""
    assert rows["full fine-tuning, paper"]["single"] == "90.9"
    with_paper = {name.removesuffix(", paper") for name in rows if name.endswith(", paper")}
    assert with_paper == {"pretrained", "full fine-tuning", "linearised", "TaLoS"}
    assert [*rows][:4] == ["pretrained", "pretrained, paper", "full fine-tuning", "full fine-tuning, paper"]
    negation = table(found, "Task negation")
    assert (
        negation["TaLoS, paper"]["target (lower is better)"] == "11.0" and negation["TaLoS, paper"]["control"] == "60.7"
    )
    assert "random mask" in negation and "random mask, paper" not in negation


def test_ties_and_dare_have_rows_where_vectors_were_merged_so(found, tmp_path):
    rows = table(found, "Task addition")
    assert rows["TIES (of full)"]["added"] == "63.0 (0.2)" and rows["DARE (of full)"]["added"] == "61.0 (0.2)"
    assert "TIES (of full)" not in table(found, "Task negation"), "a merger is not negated"
    without = table(found_in(tmp_path, mergers=["dare"]), "Task addition")
    assert "TIES (of full)" not in without and "DARE (of full)" in without


def test_negation_flags_weak_controls_and_says_nothing_of_strong_ones(found, tmp_path):
    assert table(found, "Task negation")["TaLoS"] == {
        "n": "6", "alpha": "0.75", "target (lower is better)": "20.0 (0.5)", "control": "57.0 (0.0)",
        "control kept": "95.0 (0.0)",
    }  # fmt: skip
    assert "flagged" not in to_markdown(report(found))
    weak = to_markdown(report(found_in(tmp_path, weak=["movies"])))
    assert weak.count("movies against domain, seed 13") == 1 and weak.count("movies against domain, seed 21") == 1
    assert "products against domain" not in weak


def test_localization_and_disentanglement_have_their_means(found):
    rows = table(found, "Function localization")
    assert [cell.split()[0] for cell in rows["full fine-tuning"].values()] == ["6", "180.0", "80.0", "20.0"]
    assert [cell.split()[0] for cell in rows["TaLoS"].values()] == ["6", "160.0", "98.0", "2.0"]
    errors = table(found, "Weight-disentanglement error")["TaLoS"]
    assert errors["n"] == "2" and errors["e1 searched"].startswith("5.0") and errors["e2 searched"].startswith("15.0")
    assert errors["mean searched"].startswith("10.0")
    assert errors["mean all"].startswith(f"{100 * 0.1 * (9 + 2 * 16) / 25:.1f}"), "twice as much outside the box"


def test_masks_calibration_and_costs_have_tables(found, tmp_path):
    rows = table(found, "Masks")
    assert [*rows] == ["TaLoS", "random mask", "graft"]
    query = sum(size for name, size in zip(SHAPES, REGION.sizes, strict=True) if "query" in name)
    assert rows["TaLoS"]["attention query"] == f"{100 * SELECTED / query:.1f} (0.0)"
    assert rows["TaLoS"]["feed-forward first"] == rows["graft"]["attention query"] == "0.0 (0.0)"
    assert rows["TaLoS"]["selected"] == f"{100 * SELECTED / REGION.size:.1f} (0.0)"
    assert [*table(found, "Calibration of the TaLoS mask in other ways")] == ["other draw", "single round"]
    costs = table(found, "Costs of one task")
    assert (costs["TaLoS"]["s / step"], costs["TaLoS"]["peak MiB"]) == ("0.50", "256.0")
    assert costs["graft"]["training s"] == costs["graft"]["s / step"] == ""
    titles = [made.title for made in report(found_in(tmp_path, variants=[])).tables]
    assert "Masks" in titles and not [title for title in titles if title.startswith("Calibration")]


# --- Which effects show ----------------------------------------------------------------------------------------


def test_effects_that_are_there_hold(found):
    seen = {made.text: made.verdict for made in report(found).claims}
    assert set(seen.values()) == {Verdict.HOLDS} and len(seen) == 10 + 3 + 2


@pytest.mark.parametrize(
    "sentence, effects",
    [
        (ADDS, turned("talos", added=0.50)),
        (GRAFTS, turned("graft", added=0.60)),
        ("TaLoS adds better than linearised", turned("talos", added=0.60)),
        ("TaLoS adds better than a random mask", turned("random", added=0.75)),
        ("grafts add better than the models", turned("graft", added=0.55)),
        (TAKES, turned("talos", negated=0.45)),
        ("TaLoS takes away less than linearised", turned("linear", negated=0.40)),
        ("grafts take away more", turned("graft", negated=0.45)),
        (ALONE, turned("talos", away=0.40)),
        (DISENTANGLES, turned("talos", error=0.49)),
    ],
)
def test_reversed_effects_do_not_hold_and_leave_other_sentences_as_they_are(tmp_path, sentence, effects):
    other = found_in(tmp_path, effects=effects)
    assert verdicts(other, sentence, HARMLESS, ALIKE) == [Verdict.FAILS, Verdict.HOLDS, Verdict.HOLDS]


@pytest.mark.parametrize(
    "sentence, effects",
    [
        (ADDS, turned("talos", added=0.60)),
        (GRAFTS, turned("graft", added=0.72)),
        (TAKES, turned("talos", negated=0.30)),
        (ALONE, turned("talos", away=0.20)),
        (DISENTANGLES, turned("talos", error=0.40)),
    ],
)
def test_without_an_effect_none_is_shown(tmp_path, sentence, effects):
    [made] = told(found_in(tmp_path, effects=effects), sentence)
    assert made.verdict is Verdict.UNCLEAR
    assert made.figure.startswith(("+0.0 points, 95 % interval -", "-0.0 points, 95 % interval -"))


def test_disentanglement_is_compared_where_alpha_is_searched(found):
    [made] = told(found, DISENTANGLES)
    assert made.figure.startswith("+30.0 points"), "over the whole grid it is +49.2"


def test_a_single_cell_measures_nothing_and_two_do(tmp_path):
    one = found_in(tmp_path / "one", settings(tasks=["movies"], seeds=[13]))
    for made in told(one, ADDS, GRAFTS, TAKES):
        assert made.verdict is Verdict.OPEN
        assert made.figure.endswith("1 of 1 cells") and "interval" not in made.figure
    assert verdicts(one, ALONE, DISENTANGLES, ALIKE) == [Verdict.OPEN] * 3
    assert {*of_numbers(one)["compare"]["talos-full"]["added"]} == {"n", "mean", "positive"}
    two = found_in(tmp_path / "two", settings(tasks=["movies"]))
    assert verdicts(two, ADDS, GRAFTS, TAKES) == [Verdict.HOLDS] * 3


def test_cells_with_a_weak_control_are_left_out_of_negation(tmp_path):
    params, strange = settings(), turned("talos", negated=0.99)
    Writer(tmp_path).write(params)
    for method, seed in product(METHODS, SEEDS):
        Writer(tmp_path, effects=strange, weak=["movies"]).arithmetic(method, "movies", seed)
    weak = read(tmp_path, params)
    [takes] = told(weak, TAKES)
    assert takes.verdict is Verdict.HOLDS and takes.figure.endswith("higher in 4 of 4 cells")
    assert {name: part["n"] for name, part in of_numbers(weak)["compare"]["talos-full"].items()} == {
        "added": CELLS,
        "negated": 4,
    }
    for method, seed in product(METHODS, SEEDS):
        Writer(tmp_path, effects=strange).arithmetic(method, "movies", seed)
    [takes] = told(read(tmp_path, params), TAKES)
    assert takes.verdict is not Verdict.HOLDS, "the control: with strong controls the same cells count"
    assert takes.figure.endswith("higher in 4 of 6 cells")


def test_where_every_control_is_weak_negation_is_not_measurable(tmp_path):
    weak = found_in(tmp_path, weak=TASKS)
    [adds, takes] = told(weak, ADDS, TAKES)
    assert takes.verdict is Verdict.OPEN and takes.figure == "no common cells"
    assert adds.verdict is Verdict.HOLDS and {*of_numbers(weak)["compare"]["talos-full"]} == {"added"}


def test_vectors_without_an_effect_of_their_own_get_no_merit_for_leaving_others_alone(tmp_path, found):
    idle = found_in(tmp_path / "idle", effects=turned("talos", single=BEFORE - 0.01, away=0.0))
    adds, *said = told(idle, ADDS, ALONE, DISENTANGLES)
    for made in said:
        assert made.verdict is Verdict.OPEN
        assert made.figure.endswith("; its vectors bring their own tasks no accuracy, so this says nothing")
    assert adds.verdict is Verdict.HOLDS, "absolute accuracy is told as it is"
    other = found_in(tmp_path / "other", effects=turned("full", single=BEFORE - 0.01))
    for made in [*told(found, ALONE, DISENTANGLES), *told(other, ALONE, DISENTANGLES)]:
        assert made.verdict is Verdict.HOLDS and "says nothing" not in made.figure, (
            "it is TaLoS' own effect that counts"
        )


@pytest.mark.parametrize(
    "kept, expected",
    [
        ({"least": 0.96, "random": 0.90, "most": 0.60}, [Verdict.HOLDS, Verdict.HOLDS, Verdict.HOLDS]),
        ({"least": 0.94, "random": 0.90, "most": 0.60}, [Verdict.FAILS, Verdict.HOLDS, Verdict.HOLDS]),
        ({"least": 0.60, "random": 0.90, "most": 0.99}, [Verdict.FAILS, Verdict.FAILS, Verdict.FAILS]),
        ({"least": 0.97, "random": 0.97, "most": 0.97}, [Verdict.HOLDS, Verdict.UNCLEAR, Verdict.UNCLEAR]),
    ],
)
def test_pruning_is_harmless_where_it_costs_little_and_kinds_are_told_apart(tmp_path, kept, expected):
    pruned = found_in(tmp_path, settings(edit=[], arithmetic=[], disentangle=[]), kept=kept)
    said = told(pruned, HARMLESS, "pruning the least sensitive costs less than pruning at random", "pruning at random")
    assert [made.verdict for made in said] == expected
    assert said[0].figure.startswith(f"{100 * kept['least']:.1f} % of it on average; the line is 95 %")


def test_equal_masks_of_two_tasks_are_alike_and_disjoint_ones_are_not(tmp_path):
    only = settings(arithmetic=[], disentangle=[])
    for shared, share, expected in ((SELECTED, 1.0, Verdict.HOLDS), (0, 0.0, Verdict.FAILS)):
        made = found_in(tmp_path, only, shared=shared)
        assert verdicts(made, ALIKE) == [expected]
        assert of_numbers(made)["masks"]["talos"]["task_iou"]["mean"] == share


@pytest.mark.parametrize(
    "place, expected",
    [("query", Verdict.HOLDS), ("key", Verdict.HOLDS), ("value", Verdict.FAILS), ("output.dense", Verdict.FAILS)],
)
def test_query_and_key_are_where_the_mask_lies(tmp_path, place, expected):
    placed = found_in(tmp_path, settings(arithmetic=[], disentangle=[]), place=place)
    assert verdicts(placed, QUERY_KEY) == [expected]


def test_verdicts_are_written_with_their_intervals(found, tmp_path):
    text = to_markdown(report(found))
    assert (
        "- **holds**: TaLoS adds better than full fine-tuning (absolute accuracy): +12.0 points, 95 % interval +11.7"
        in text
    )
    other = to_markdown(report(found_in(tmp_path, effects=turned("talos", added=0.5))))
    assert "- **does not hold**: TaLoS adds better than full fine-tuning (absolute accuracy): -10.0 points" in other


# --- Numbers ---------------------------------------------------------------------------------------------------


def leaves(value: Any, at: str = "") -> dict[str, dict[str, Any]]:
    """The parts of a summary that hold n, by their place."""
    if "n" in value:
        return {at: value}
    return {place: leaf for name, part in value.items() for place, leaf in leaves(part, f"{at}/{name}").items()}


def test_all_numbers_have_n_mean_and_deviation_and_differences_an_interval(found):
    values = of_numbers(found)
    parts = {"addition", "negation", "localization", "disentangle", "pruned", "masks", "calibration", "compare"}
    assert {*values} == parts
    for place, leaf in leaves(values).items():
        compared = place.startswith("/compare")
        assert {*leaf} == {"n", "mean", "sd", *(("low", "high", "positive") if compared else ())}, place
        assert all(math.isfinite(value) for value in leaf.values()), place
        assert not compared or leaf["low"] < leaf["mean"] < leaf["high"], place
    assert "NaN" not in json.dumps(values)


def test_numbers_are_those_that_were_put_in(found):
    values = of_numbers(found)
    assert values["addition"]["talos"]["by_own"] == {"n": CELLS, "mean": 0.9, "sd": pytest.approx(0.0068, abs=1e-3)}
    assert values["addition"]["talos"]["by_full"]["mean"] == pytest.approx(0.8)
    assert values["addition"]["ties"]["accuracy"]["mean"] == pytest.approx(0.63)
    assert values["negation"]["linear"]["target"]["mean"] == pytest.approx(0.15)
    assert values["negation"]["linear"]["control_kept"]["mean"] == pytest.approx(0.95)
    assert values["localization"]["full"]["own"]["mean"] == pytest.approx(1.8)
    assert values["localization"]["full"]["other"] == {"n": 12, "mean": 0.8, "sd": pytest.approx(0.004, abs=1e-3)}
    assert values["disentangle"]["full"]["searched"]["mean"] == pytest.approx(0.4)
    assert values["disentangle"]["full"]["all"]["mean"] > 0.6
    assert values["pruned"]["most"]["ratio"]["mean"] == pytest.approx(0.6)
    assert values["calibration"]["single_round"]["iou"]["mean"] == 0.8
    compared = values["compare"]
    assert compared["talos-full"]["added"]["mean"] == pytest.approx(0.12)
    assert compared["talos-full"]["negated"]["mean"] == pytest.approx(0.10), "positive where talos takes more"
    assert compared["graft-talos"]["negated"]["mean"] == pytest.approx(-0.05), "the control"
    assert {*compared} == {"talos-full", "talos-linear", "talos-random", "graft-full", "graft-talos"}


# --- Figures ---------------------------------------------------------------------------------------------------


def test_every_figure_is_written_and_none_is_blank(drawn):
    assert [*drawn] == [*FIGURES] and len(drawn) == 6
    for name, path in drawn.items():
        image = imread(path)
        assert image.shape[1] == 1350 and image[..., :3].std() > 0.05, name


def test_equal_records_give_equal_figures_and_others_other_ones(drawn, found, tmp_path):
    few = {name: FIGURES[name] for name in ("localization", "added")}
    again = drawn_in(found, tmp_path / "again", few)
    assert [path.read_bytes() for path in again] == [drawn[name].read_bytes() for name in few]
    others = drawn_in(found_in(tmp_path, effects=turned("talos", added=0.5, away=0.3)), tmp_path / "others", few)
    assert all(path.read_bytes() != drawn[path.stem].read_bytes() for path in others)


def test_there_is_a_figure_of_disentanglement_only_if_the_stage_ran(drawn, tmp_path):
    off = found_in(tmp_path, settings(disentangle=[]))
    assert FIGURES["disentanglement"](off) is None and "disentanglement" in drawn
    assert FIGURES["pruning"](off) is not None, "the control"
    assert "disentangle" not in of_numbers(off) and verdicts(off, DISENTANGLES) == [Verdict.OPEN]


def test_figures_without_their_stage_or_masks_are_left_out(tmp_path):
    only = found_in(tmp_path, settings(edit=["full"], arithmetic=[], disentangle=[]))
    assert [name for name, draw in FIGURES.items() if draw(only) is not None] == ["pruning", "localization"]


def test_data_lie_beside_the_figures_with_a_file_for_each_frame(found, tmp_path):
    written = plot_data(found, tmp_path)
    assert {path.name for path in written} == {f"{name}.csv" for name in COLUMNS}
    for path in written:
        header, *lines = path.read_text().splitlines()
        assert header.split(",")[: len(COLUMNS[path.stem])] == COLUMNS[path.stem]
        assert len(lines) == len(found.frames[path.stem])


# --- What is odd ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [[], {}, {"stage": "edit"}])
def test_a_file_that_is_not_a_record_is_named_with_what_makes_it(tmp_path, content):
    Writer(tmp_path).write(settings())
    write_json(tmp_path / paths.reading_record("arithmetic", ("talos",), "domain", 21), content)
    made_by = "`dvc repro stages/talos/dvc.yaml:arithmetic@talos-21` makes it"
    with pytest.raises(DataError, match=rf"talos/21/domain\.json: not a record of arithmetic; {made_by}"):
        read(tmp_path, settings())


def test_a_control_without_any_accuracy_has_none_to_keep(tmp_path):
    Writer(tmp_path).write(settings())
    path = tmp_path / paths.reading_record("arithmetic", ("talos",), "domain", 21)
    record = read_json(path)
    record["negated"] |= {"control_zero_shot": 0.0, "control_accuracy": 0.1}
    write_json(path, record)
    found = read(tmp_path, settings())
    values = of_numbers(found)["negation"]
    assert values["talos"]["control_kept"]["n"] == CELLS - 1 and values["full"]["control_kept"]["n"] == CELLS
    assert values["talos"]["control_kept"]["mean"] == pytest.approx(0.95)
    assert table(found, "Task negation")["TaLoS"]["control kept"].startswith("95.0")


def test_where_talos_was_not_run_nothing_is_said_of_its_vectors(tmp_path, found):
    others = settings(edit=["full", "graft"], arithmetic=["full", "graft"], disentangle=["full"])
    [claim] = told(found_in(tmp_path, others), ALONE)
    assert (claim.verdict, claim.figure) == (Verdict.OPEN, "no common cells")
    assert "points" in told(found, ALONE)[0].figure


def of_tasks(tasks: list[str], ratio: float | None) -> Collected:
    """Pruned models of so many tasks, all with one ratio."""
    rows = [
        {"kind": kind, "scored_on": one, "task": other, "seed": 13, "n": N, "ratio": ratio}
        for kind, one, other in product(KEPT, tasks, tasks)
    ]
    frames = {name: pd.DataFrame(columns=columns) for name, columns in COLUMNS.items()}
    return Collected(tasks, [13], frames | {"pruned": pd.DataFrame(rows)}, [])


@pytest.mark.parametrize("number", [2, 4, 8, 13])
def test_the_numbers_of_many_tasks_fit_into_their_cells(number):
    with styled():
        drawn = FIGURES["pruning"](of_tasks([f"task_{place}" for place in range(number)], 0.75))
        drawn.canvas.draw()
        for panel in drawn.axes[: len(KEPT)]:
            (left, _), (right, _) = panel.transData.transform([(0, 0), (1, 0)])
            widths = [text.get_window_extent().width for text in panel.texts]
            assert len(widths) == number**2 and max(widths) < right - left


def test_ratios_that_there_are_none_of_are_not_drawn():
    with styled():
        drawn = FIGURES["pruning"](of_tasks(TASKS, None))
        assert not any(panel.texts for panel in drawn.axes[: len(KEPT)])
        drawn.canvas.draw()
