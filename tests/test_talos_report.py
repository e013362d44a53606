"""Frames, tables and sentences of task arithmetic, on synthetic records whose effects are known."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from stages.lib.errors import DataError, MaskError
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, write_mask
from stages.lib.graft.region import Region
from stages.lib.io import write_json
from stages.lib.metrics.overlap import chance_iou
from stages.lib.metrics.variants import PRETRAINED
from stages.lib.report.claims import judge, read_statements
from stages.lib.report.document import Claim, Verdict
from stages.lib.report.load import Collected
from stages.lib.report.style import save_all, styled
from stages.talos import report as reporting
from stages.talos.figures import FIGURES
from stages.talos.frames import COLUMNS, collect
from stages.workflow.core import paths
from tests.reports import once

pytestmark = pytest.mark.usefixtures("project")

HERE = "toy, standard, 64 shots"
report, details = once(reporting.report), once(reporting.details)
# without the tables, which take longer
claims = once(lambda data: judge(read_statements(reporting.HERE / "claims.yaml"), reporting.MEASURES, data, HERE))
KNOWN: dict[str, Collected] = {}
TASKS, SEEDS = ["movies", "products", "domain"], [13, 21]
CELLS = len(TASKS) * len(SEEDS)
METHODS, MASKED = ["full", "full_matched", "linear", "talos", "random", "graft"], ["talos", "random", "graft"]
ALPHAS = [-2.0, -1.0, 0.0, 1.0, 2.0]
CONTROLS = {"movies": "domain", "products": "domain", "domain": "movies"}
PAIRS = {"movies": "domain", "domain": "products", "products": "movies"}
KEPT = {"least": 0.99, "random": 0.9, "most": 0.6}
BEFORE, FULL_SINGLE, CONTROL, CHANCE, N = 0.5, 0.9, 0.6, 0.3, 100
MAPS = {
    "attention.self.query": (8, 8), "attention.self.key": (8, 8), "attention.self.value": (8, 8),
    "attention.output.dense": (8, 8), "intermediate.dense": (16, 8), "output.dense": (8, 16),
}  # fmt: skip
REGION = Region({f"bert.encoder.layer.{layer}.{name}.weight": MAPS[name] for layer in (0, 1) for name in MAPS})
# the tensor of each region index
ENTRIES = [name for name, size in zip(REGION.shapes, REGION.sizes, strict=True) for _ in range(size)]
SELECTED, SHARED = 40, 20
WOBBLES = {"talos": 0.005, "graft": 0.003, "most": 0.005}
# how sentences end or begin
ADDS, GRAFTS = "for all tasks than those of full fine-tuning", "Added, grafts make a better model for all tasks than the vectors"  # fmt: skip
TAKES, ALONE = "accuracy than that of full fine-tuning", "pretrained model's than full fine-tuning does"
DISENTANGLES, HARMLESS = "than under full fine-tuning", "With its least sensitive parameters set to 0"
LEAST, MOST = "Setting the least sensitive parameters to 0 costs less", "Setting random parameters to 0 costs less"
ALIKE, QUERY_KEY = "The least sensitive parameters of two tasks", "TaLoS selects more of attention's query and key"

# accuracy of a method's own models, after addition and after negation; what happens to other tasks; the error
EFFECTS = {
    # better than talos in all that talos is better in than full fine-tuning trained alike
    "full": {"single": FULL_SINGLE, "added": 0.75, "negated": 0.10, "away": 0.01, "error": 0.05},
    "full_matched": {"single": FULL_SINGLE, "added": 0.60, "negated": 0.30, "away": 0.20, "error": 0.40},
    "linear": {"single": 0.80, "added": 0.65, "negated": 0.15, "away": 0.10, "error": 0.30},
    "talos": {"single": 0.80, "added": 0.72, "negated": 0.20, "away": 0.02, "error": 0.10},
    "random": {"single": 0.75, "added": 0.62, "negated": 0.35, "away": 0.10, "error": 0.30},
    "graft": {"single": 0.85, "added": 0.79, "negated": 0.25, "away": 0.05, "error": 0.20},
}


def settings(seeds: list[int] = SEEDS, **changes: list[str]) -> SimpleNamespace:
    """The inputs of the stage talos; `changes` are the methods of stages."""
    methods = {"edit": METHODS, "arithmetic": METHODS, "disentangle": ["full", "full_matched", "talos"], **changes}
    sections = {name: SimpleNamespace(methods=own) for name, own in methods.items()}
    sections["disentangle"].grid = SimpleNamespace(pairs=PAIRS)
    own = {"talos": SimpleNamespace(tasks=TASKS), "summary": SimpleNamespace(least_gain=0.05)}
    return SimpleNamespace(seeds=seeds, **own, **sections)


class Writer:
    """Writes what the stages would.  Cells differ a little, so that intervals have a width, and in sum by nothing."""

    def __init__(self, effects: dict[str, dict[str, float]] | None = None, **changes: Any) -> None:
        plain = {"kept": KEPT, "weak": [], "shared": SHARED, "place": "query", "majority": CHANCE}
        self.has, self.effects = SimpleNamespace(**plain | changes), EFFECTS | (effects or {})

    def write(self, params: SimpleNamespace) -> None:
        """All files that the settings name."""
        for task, seed in product(TASKS, params.seeds):
            self.sensitivity(task, seed)
            for method in params.edit.methods:
                self.edit(method, task, seed)
            for method in params.arithmetic.methods:
                self.arithmetic(method, task, seed)
        for method, seed, (first, second) in product(params.disentangle.methods, params.seeds, PAIRS.items()):
            rows = [self.error(method, first, seed, alphas) for alphas in product(ALPHAS, ALPHAS)]
            record("disentangle", (method,), f"{first}+{second}", seed, {"rows": rows, "n": [50, 60]})

    def sensitivity(self, task: str, seed: int) -> None:
        shares = {kind: BEFORE * (share + wobble(task, seed, kind)) for kind, share in self.has.kept.items()}
        rows = [scored(f"{kind}_{other}", share) for other in TASKS for kind, share in shares.items()]
        majority = self.has.majority - wobble(task, seed, "majority")
        rows = [{**row, "majority": majority} for row in (*rows, scored(PRETRAINED, BEFORE))]
        overlaps = [{"variant": name, "iou": 0.8, "chance": 0.05} for name in ("other_draw", "single_round")]
        record("sensitivity", (), task, seed, {"pruned": 0.1, "rows": rows, "overlaps": overlaps})

    def edit(self, method: str, task: str, seed: int) -> None:
        effect = self.effects[method]
        after = {other: effect["single"] if other == task else BEFORE * (1 - effect["away"]) for other in TASKS}
        rows = [scored(name, share + wobble(task, seed, method)) for name, share in after.items()]
        cost = {"steps": 10, "trained": SELECTED, "optimizer_bytes": 8 * SELECTED, "checkpoint_bytes": 8 * SELECTED}
        if method not in ("full", "graft"):
            cost |= {"gradient_examples": 64, "calibration_seconds": 1.5, "train_seconds": 5.0, "peak_bytes": 2**28}
        about = {"selected": SELECTED, "graftable": REGION.size, "cost": cost}
        record("edit", (method,), task, seed, {**about, "rows": [scored(PRETRAINED, BEFORE), *rows]})
        if method in MASKED:
            self.mask(method, task, seed)

    def mask(self, method: str, task: str, seed: int) -> None:
        """All tasks share some; of talos so many and there as it is told, of the others always the same."""
        place, shared = (self.has.place, self.has.shared) if method == "talos" else ("intermediate", SHARED)
        inside = [number for number, name in enumerate(ENTRIES) if place in name]
        own = inside[shared + (SELECTED - shared) * TASKS.index(task) :][: SELECTED - shared]
        mask = GraftMask.from_region_indices(REGION, torch.tensor(inside[:shared] + own))
        values = {name: torch.zeros(len(indices)) for name, indices in mask.indices.items()}
        write_mask(paths.edited(method, task, seed), StoredMask(mask, values, {}, {"task": task}))

    def arithmetic(self, method: str, task: str, seed: int) -> None:
        effect, noise = self.effects[method], wobble(task, seed, method)
        added = {
            name: {"alpha": 0.5, "curve": [[0.0, 0.6], [0.5, 0.8]], "accuracy": share + noise,
                   "by_own": (share + noise) / effect["single"], "by_full": (share + noise) / FULL_SINGLE}
            for name, share in {"sum": effect["added"], **({"ties": 0.63} if method == "full" else {})}.items()
        }  # fmt: skip
        negated = {
            "alpha": 0.75, "control": CONTROLS[task], "weak_control": task in self.has.weak, "control_zero_shot": CONTROL,
            "control_majority": self.has.majority - wobble(task, seed, "majority"), "control_accuracy": 0.95 * CONTROL, "accuracy": effect["negated"] + noise,
        }  # fmt: skip
        sizes = {"n": N, "n_dev": 20, "majority": CHANCE, "pretrained": BEFORE, "single": effect["single"], "full": FULL_SINGLE}  # fmt: skip
        record("arithmetic", (method,), task, seed, {**sizes, "added": added, "negated": negated})

    def error(self, method: str, first: str, seed: int, alphas: tuple[float, float]) -> dict[str, float]:
        """Where alpha is searched the error is the method's, beyond it twice that."""
        times = 1 if max(map(abs, alphas)) <= 1 else 2
        error = self.effects[method]["error"] * times + wobble(first, seed, method)
        return {"alpha1": alphas[0], "alpha2": alphas[1], "e1": error - 0.05, "e2": error + 0.05, "mean": error}


def record(stage: str, axes: tuple[str, ...], name: str, seed: int, content: dict[str, Any]) -> None:
    write_json(paths.reading_record(stage, axes, name, seed), {"stage": stage, "seed": seed, **content})


def scored(variant: str, accuracy: float) -> dict[str, Any]:
    return {"variant": variant, "n": N, "majority": CHANCE, "accuracy": accuracy, "accuracy_se": 0.05}


def wobble(task: str, seed: int, name: str) -> float:
    """Tasks differ, by an own size for each name, and seeds a little more; the mean over both is 0."""
    return WOBBLES.get(name, 0.002) * (TASKS.index(task) - 1 + 0.5 * (-1) ** SEEDS.index(seed))


def written(params: SimpleNamespace | None = None, **changes: Any) -> Collected:
    """The frames read of all files that the settings name, written once."""
    asked = repr((params, changes))
    if asked not in KNOWN:
        Writer(**changes).write(params or settings())
        KNOWN[asked] = collect(params or settings())
    return KNOWN[asked]


def turned(method: str, **changes: float) -> dict[str, dict[str, float]]:
    """The effects of one method, changed."""
    return {method: EFFECTS[method] | changes}


def table(data: Collected, title: str) -> dict[str, dict[str, str]]:
    """First column -> the others by their header; the paper's row is called after the method above it."""
    [chosen] = [made for made in report(data).tables if made.title == title]
    rows, above = {}, ""
    for line in chosen.rows:
        above = f"{above}, paper" if line.kind == "paper" else line.cells[0]
        rows[above] = dict(zip(chosen.header[1:], line.cells[1:], strict=True))
    return rows


def told(data: Collected, *parts: str) -> Iterator[Claim]:
    """The claims that begin or end so, in this order."""
    for part in parts:
        [claim] = [claim for claim in claims(data) if claim.text.startswith(part) or claim.text.endswith(part)]
        yield claim


def verdicts(data: Collected, *parts: str) -> list[Verdict]:
    return [claim.verdict for claim in told(data, *parts)]


def test_frames_have_a_row_for_every_cell_and_the_columns_that_are_named():
    data = written()
    pairs = 3  # of three tasks, and of three methods with masks
    assert {name: len(frame) for name, frame in data.frames.items()} == {
        "addition": (len(METHODS) + 1) * CELLS, "negation": len(METHODS) * CELLS, "curve": (len(METHODS) + 1) * len(SEEDS) * 2,
        "localization": len(METHODS) * len(TASKS) * CELLS, "cost": len(METHODS) * CELLS,
        "disentangle": 3 * len(PAIRS) * len(SEEDS) * len(ALPHAS) ** 2, "pruned": len(KEPT) * len(TASKS) * CELLS, "overlap": 2 * CELLS,
        "tensors": len(MASKED) * CELLS * len(REGION.shapes), "task_iou": len(MASKED) * pairs * len(SEEDS), "method_iou": pairs * CELLS,
    }  # fmt: skip
    assert all(data.frames[name][columns].notna().all(axis=None) for name, columns in COLUMNS.items())
    assert data.off == []
    alike = data.frames["task_iou"]
    assert {*alike[alike.method == "talos"].iou} == {SHARED / (2 * SELECTED - SHARED)}
    assert {*alike.chance} == {chance_iou(SELECTED, SELECTED, REGION.size)}
    assert {*data.frames["tensors"].layer} == {1, 2}, "for people they are counted from 1"
    between = data.frames["method_iou"].set_index(["first", "second"]).iou
    assert (between["random", "graft"] == 1).all() and (between["talos", "graft"] == 0).all(), "the control"


def test_which_task_a_model_was_trained_on_and_tested_on_are_not_mixed_up():
    Writer().write(settings())
    rows = [scored(PRETRAINED, 0.5), scored("movies", 1.0), scored("products", 0.5), scored("domain", 0.5)]
    record("edit", ("talos",), "domain", 13, {"selected": 1, "graftable": 2, "cost": {}, "rows": rows})
    frame = collect(settings()).frames["localization"]
    cell = frame[(frame.method == "talos") & (frame.seed == 13)].set_index(["trained_on", "task"]).ratio
    assert cell["movies", "domain"] == 2.0 and cell["domain", "movies"] < 1.1


def test_missing_records_and_damaged_masks_are_named_and_those_not_asked_for_are_not_read():
    Writer().write(settings())
    paths.reading_record("disentangle", ("talos",), "movies+domain", 21).unlink()
    with pytest.raises(DataError, match=r"movies\+domain\.json: not there; .*dvc\.yaml:disentangle@talos-21` makes it"):
        collect(settings())
    assert {*collect(settings([13])).frames["addition"].seed} == {13}
    paths.edited("talos", "products", 13).write_bytes(b"nothing")
    with pytest.raises(MaskError, match="damaged"):
        collect(settings([13]))


@pytest.mark.parametrize(
    "stage, empty",
    [
        ("disentangle", {"disentangle"}),
        ("arithmetic", {"addition", "negation", "curve"}),
        ("edit", {"localization", "cost", "tensors", "task_iou", "method_iou"}),
    ],
)
def test_a_stage_that_is_off_leaves_its_frames_empty_and_is_named(stage, empty):
    data = written(settings(**{stage: []}))
    assert {name for name, frame in data.frames.items() if frame.empty} == empty and data.off == [stage]
    assert report(data).facts == [f"off, so without tables and figures: {stage}"]
    assert not any(details(data).get(name) for name in empty)
    assert {claim.verdict for claim in claims(written(settings([])))} == {Verdict.OPEN}, "nothing is claimed"


def test_methods_that_are_not_asked_for_make_no_claim():
    data = written()
    frames = {name: frame.query("method != 'linear'") if "method" in frame else frame for name, frame in data.frames.items()}  # fmt: skip
    everything, fewer = ([claim.text for claim in claims(part)] for part in (data, replace(data, frames=frames)))
    assert [text for text in everything if "linearised" not in text] == fewer != everything


def test_tables_have_our_values_and_the_papers_below_them():
    data = written(weak=["movies"])
    added, negated, apart, errors, masks, costs = (
        table(data, title)
        for title in ("Task addition", "Task negation", "Function localization", "Weight-disentanglement error", "Masks",
                      "Costs of one task")
    )  # fmt: skip
    assert added["full fine-tuning, paper"]["added"] == "73.5" and "full (main pipeline), paper" not in added
    cells = "80.0 (0.0)", "72.0 (0.5)", "90.0 (0.7)", "80.0 (0.6)", "55.0 (1.3)"
    assert [*added["TaLoS"].values()] == ["6", "0.5", *cells]
    assert [*added["TaLoS, paper"].values()] == ["", "", "", "79.7", "90.8", "", ""]
    assert added["pretrained"]["added"] == "50.0 (0.0)" and "random mask, paper" not in added
    assert added["TIES (of full)"]["added"] == "63.0 (0.2)" and "TIES (of full)" not in negated, "it is not negated"
    assert [*negated["TaLoS"].values()] == ["6", "0.75", "20.0 (0.5)", "57.0 (0.0)", "95.0 (0.0)"]
    assert [*negated["TaLoS, paper"].values()] == ["", "", "11.0", "60.7", ""]
    [flagged] = [note for made in report(data).tables for note in made.notes if note.startswith("flagged")]
    assert flagged.endswith(": movies against domain, seed 13; movies against domain, seed 21")
    assert [cell.split()[0] for cell in apart["TaLoS"].values()] == ["6", "160.0", "98.0", "2.0"]
    assert errors["TaLoS"]["mean searched"].startswith("10.0")
    assert errors["TaLoS"]["mean all"].startswith(f"{10 * (9 + 2 * 16) / 25:.1f}")
    assert masks["TaLoS"]["attention query"] == f"{100 * SELECTED / 128:.1f} (0.0)"
    assert (costs["TaLoS"]["s / step"], costs["TaLoS"]["peak MiB"]) == ("0.50", "256.0")
    assert costs["graft"]["training s"] == ""


def test_the_headline_is_short_and_details_are_what_was_put_in():
    values, short = details(written()), reporting.headline(written())
    assert short == {
        "added": {name: pytest.approx(EFFECTS[name]["added"]) for name in ("full_matched", "talos", "graft")},
        "pruned_least_kept": pytest.approx(0.99), "task_iou": pytest.approx(SHARED / (2 * SELECTED - SHARED)),
    }  # fmt: skip
    names = "addition negation localization disentangle pruned masks calibration compare"
    assert [*values] == names.split()
    assert values["addition"]["talos"]["by_own"]["mean"] == pytest.approx(0.9)
    assert values["negation"]["linear"]["target"]["mean"] == pytest.approx(0.15)
    assert (values["localization"]["full"]["own"]["n"], values["localization"]["full"]["other"]["n"]) == (6, 12)
    errors = values["disentangle"]["full_matched"]
    assert errors["searched"]["mean"] == pytest.approx(0.4) and errors["all"]["mean"] > 0.6
    assert values["compare"]["talos-full_matched"]["negated"]["mean"] == pytest.approx(0.10), (
        "positive where talos takes more"
    )
    assert values["compare"]["graft-talos"]["negated"]["mean"] == pytest.approx(-0.05), "the control"


@pytest.mark.parametrize(
    "sentence, reverse, equal",
    [
        (ADDS, turned("talos", added=0.50), turned("talos", added=0.60)),
        (GRAFTS, turned("graft", added=0.60), turned("graft", added=0.72)),
        (TAKES, turned("talos", negated=0.45), turned("talos", negated=0.30)),
        ("accuracy than that of TaLoS", turned("linear", negated=0.40), turned("linear", negated=0.20)),
        (ALONE, turned("talos", away=0.40), turned("talos", away=0.20)),
        (DISENTANGLES, turned("talos", error=0.49), turned("talos", error=0.40)),
    ],
)
def test_effects_hold_where_they_are_and_neither_reversed_nor_where_there_is_none(sentence, reverse, equal):
    assert verdicts(written(), sentence, HARMLESS, ALIKE, QUERY_KEY) == [Verdict.HOLDS] * 4
    [claim] = told(written(effects=reverse), sentence)
    assert claim.verdict is Verdict.FAILS and "3 tasks, 2 seeds" in claim.figure
    assert verdicts(written(effects=equal), sentence) == [Verdict.UNCLEAR]


def test_a_seed_alone_decides_nothing_and_published_figures_stand_beside_where_ours_are_from():
    assert {claim.verdict for claim in claims(written(settings([13])))} == {Verdict.OPEN}
    [claim] = told(written(), ADDS)
    assert claim.here.endswith("toy, standard, 64 shots; 3 tasks, 2 seeds") and claim.here.startswith("TaLoS ")
    published = [claim.paper for claim in claims(written()) if claim.paper]
    assert len(published) == 10 and all(paper.says and paper.place and paper.model for paper in published)


def test_a_control_that_several_targets_have_counts_once():
    value = reporting.controlled(written()).value
    assert (value.tasks, value.n) == (len({*CONTROLS.values()}), len({*CONTROLS.values()}) * len(SEEDS))


@pytest.mark.parametrize("weak, count, verdict", [(["movies"], 4, Verdict.HOLDS), ([], 6, Verdict.UNCLEAR), (TASKS, 0, Verdict.OPEN)])  # fmt: skip
def test_cells_with_a_weak_control_are_left_out_of_negation(weak, count, verdict):
    Writer(weak=weak).write(settings())
    for method, seed in product(METHODS, SEEDS):
        Writer(turned("talos", negated=0.99), weak=weak).arithmetic(method, "movies", seed)
    data = collect(settings())
    assert verdicts(data, TAKES, ADDS) == [verdict, Verdict.HOLDS]
    assert details(data)["compare"]["talos-full_matched"].get("negated", {"n": 0})["n"] == count


@pytest.mark.parametrize(
    "changes, void, measurable, why",
    [
        ({"effects": turned("talos", single=BEFORE - 0.01, away=0.0)}, [ALONE, DISENTANGLES], ADDS, "TaLoS has not been shown to gain"),
        ({"effects": turned("full_matched", single=BEFORE)}, [ADDS, TAKES, ALONE], GRAFTS, "full fine-tuning has not been shown to gain"),
        ({"effects": turned("full", single=BEFORE)}, [GRAFTS], ADDS, "full (main pipeline) has not been shown to gain"),
        ({"majority": BEFORE}, [HARMLESS, LEAST, MOST], TAKES, "pretrained model has not been shown to beat the most frequent label"),
        ({"majority": CONTROL}, [TAKES], ADDS, "control task has not been shown to start above the most frequent label"),
    ],
)  # fmt: skip
def test_nothing_is_said_where_a_control_says_that_there_is_nothing_to_measure(changes, void, measurable, why):
    data = written(**changes)
    assert all(claim.verdict is Verdict.OPEN and why in claim.figure for claim in told(data, *void))
    assert verdicts(data, measurable) == [Verdict.HOLDS]
    assert verdicts(written(), *void) == [Verdict.HOLDS] * len(void), "with the control above 0 it can be measured"


@pytest.mark.parametrize(
    "kept, expected",
    [
        ((0.96, 0.90, 0.60), [Verdict.HOLDS, Verdict.HOLDS, Verdict.HOLDS]),
        ((0.952, 0.90, 0.60), [Verdict.UNCLEAR, Verdict.HOLDS, Verdict.HOLDS]),
        ((0.94, 0.90, 0.60), [Verdict.FAILS, Verdict.HOLDS, Verdict.HOLDS]),
        ((0.60, 0.90, 0.99), [Verdict.FAILS, Verdict.FAILS, Verdict.FAILS]),
    ],
)
def test_pruning_is_harmless_where_its_interval_costs_little_and_kinds_are_told_apart(kept, expected):
    data = written(settings(edit=[], arithmetic=[], disentangle=[]), kept=dict(zip(KEPT, kept, strict=True)))
    assert verdicts(data, HARMLESS, LEAST, MOST) == expected
    [claim] = told(data, HARMLESS)
    assert "always the most frequent label 60.0 %" in claim.figure
    assert claim.here.startswith("10.00 % of the parameters")


@pytest.mark.parametrize("place, shared, expected", [("key", SELECTED, Verdict.HOLDS), ("value", 0, Verdict.FAILS)])
def test_masks_are_alike_where_they_share_and_lie_where_they_lie(place, shared, expected):
    data = written(settings(arithmetic=[], disentangle=[]), place=place, shared=shared)
    assert verdicts(data, ALIKE, QUERY_KEY) == [expected, expected]


@pytest.mark.usefixtures("bare")
def test_every_figure_is_drawn_and_those_without_their_stage_are_left_out():
    save_all(FIGURES, written(), Path("plots"))
    drawn = [*Path("plots").glob("*.png")]
    assert {path.stem for path in drawn} == {*FIGURES}
    for path in drawn:
        assert imread(path).shape[1] == 1350 and imread(path)[..., :3].std() > 0.05, path
    few = written(settings(edit=["full"], arithmetic=[], disentangle=[]))
    assert [name for name, draw in FIGURES.items() if draw(few) is not None] == ["pruning", "localization"]
    alone = written(settings(disentangle=["talos"]))
    assert FIGURES["disentanglement"](alone) is not None, "with no full fine-tuning to be compared with"


def test_titles_say_what_was_found_and_nothing_is_drawn_over_numbers_or_on_a_strange_axis():
    with styled():
        drawn = {name: draw(written()) for name, draw in FIGURES.items()}
        other = FIGURES["added"](written(effects=turned("graft", added=0.2)))
    added, disentangled, control = (
        " ".join(figure.texts[0].get_text().replace("\N{NO-BREAK SPACE}", " ").split())
        for figure in (drawn["added"], drawn["disentanglement"], other)
    )
    words = (
        "All tasks in one model, by accuracy: graft 79.0 %, TaLoS 72.0 %, random mask 62.0 %, full fine-tuning 60.0 %"
    )
    assert added.startswith(words) and "graft 20.0 %" in control
    assert (
        "in the box: full fine-tuning 40.0 %, TaLoS 10.0 %, full (main pipeline) 5.0 %" in disentangled
        and "n = 50 test rows a task" in disentangled
    )
    panel = drawn["disentanglement"].axes[0]
    [half] = [patch.get_width() / 2 for patch in panel.patches if patch.get_width() > 0]
    inside = [text for text in panel.texts if max(map(abs, text.get_position())) < half]
    assert len(panel.texts) == 25 and len(inside) == 9, "those of the alphas that are searched"
    assert min(abs(abs(at) - half) for text in panel.texts for at in text.get_position()) == 0.5
    upper, lower = drawn["added"].axes
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("accuracy (%)", "added / own\nsingle (%)")
    assert [label.get_text() for label in drawn["masks"].axes[1].get_xticklabels()] == ["1", "2"]


@pytest.mark.parametrize(("name", "number"), [("task", 2), ("reviews_of_a_rather_long_name_in_2025", 2), ("task", 4), ("task", 13)])  # fmt: skip
def test_the_numbers_of_all_tasks_fit_into_their_cells_and_labels_into_the_figure(name, number):
    tasks = [f"{name}_{place}" for place in range(number)]
    rows = pd.DataFrame(product(KEPT, tasks, tasks), columns=["kind", "scored_on", "task"])
    rows = rows.assign(seed=13, ratio=0.75, n=9, pruned=0.1, majority=0.5, pretrained=0.6)
    with styled():
        drawn = FIGURES["pruning"](Collected(tasks, [13], {"pruned": rows}, []))
        drawn.set_dpi(40)  # the same proportions with a tenth of the memory
        FigureCanvasAgg(drawn).draw()
        for panel in drawn.axes[: len(KEPT)]:
            (left, _), (right, _) = panel.transData.transform([(0, 0), (1, 0)])
            widths = [text.get_window_extent().width for text in panel.texts]
            assert len(widths) == number**2 and max(widths) < right - left
        scale, top = drawn.axes[-1].yaxis.label.get_window_extent(), drawn.texts[0].get_window_extent()
        assert scale.y0 >= 0 and scale.y1 <= top.y0
