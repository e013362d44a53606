"""The study's tables, figures and claims, on synthetic records whose effects are known."""

import json
from contextlib import chdir
from dataclasses import replace
from itertools import permutations, product
from math import prod
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from matplotlib.image import imread

from stages.lib.errors import DataError, MaskError
from stages.lib.io import write_json
from stages.lib.metrics.variants import GRAFTED
from stages.lib.report.claims import judge, read_statements
from stages.lib.report.document import Claim, Table, Verdict
from stages.lib.report.load import published
from stages.lib.report.publish import figures, plot_data
from stages.lib.report.stats import clean
from stages.lib.report.table import shown
from stages.study import report as reporting
from stages.study.figures import FIGURES
from stages.study.frames import AXES, Study, _share_inside, nearest, own_rows
from stages.study.frames import collect as collect_in
from stages.study.report import HERE, MEASURES, headline
from tests.reports import once
from tests.sealed import save_sealed

report, details, tables = once(reporting.report), once(reporting.details), once(reporting.tables)
draw = once(lambda study, name: FIGURES[name](study))
TASKS = ["sst2", "ag_news", "qnli", "qqp"]
SEEDS = [13, 21]
SETS = {"sst2": ["yelp", "imdb"], "qnli": ["mnli_2"]}
LOCALIZERS = {"learned": 0.0, "attribution": 0.02, "movement": 0.08, "fish": 0.12, "bias": 0.2, "random": 0.35}
SPARSITIES = [0.0001, 0.001, 0.01]
# what fine-tuning has to gain
LEAST = 0.05
LAYERS = 4
MODULES = "attention.self.query attention.self.value attention.output.dense intermediate.dense output.dense".split()
SHAPES = {
    **{f"m.layer.{layer}.{name}.weight": (200, 50) for layer in range(LAYERS) for name in MODULES},
    **{f"m.layer.{layer}.output.LayerNorm.weight": (50,) for layer in range(LAYERS)},
    **{f"m.layer.{layer}.output.dense.bias": (50,) for layer in range(LAYERS)},
}
GRAFTABLE = sum(map(prod, SHAPES.values()))
HEADER = {"format": "graft-mask", "version": 2, "shapes": SHAPES, "graftable": GRAFTABLE}
CELLS = [(seed, task) for seed in SEEDS for task in TASKS]


def file_of(kind: str, stage: str, *cell: object) -> Path:
    *folders, last = map(str, cell)
    return Path(kind, stage, *folders, last + {"metrics": ".json", "masks": ".safetensors"}[kind])


class Writer:
    """Writes records and masks; every draw comes from one generator."""

    def __init__(self) -> None:
        self.random, self.cells = np.random.default_rng(3), {stage: [] for stage in AXES}

    def rows(self, task: str, variant: str, score: float, ece: float, **axes: float) -> list[dict]:
        """Rows around these values on the own test set, the others, and the training rows."""
        rows = []
        for name, more in {task: 0.0, **dict.fromkeys(SETS.get(task, []), -0.1), f"{task}:train": 0.06}.items():
            own = float(np.clip(score + more + 0.008 * self.random.normal(), 0, 1))
            f1 = max(own - 0.05, 0.0)
            measures = {
                "n": 300,
                "accuracy": own,
                "f1": f1,
                "score": f1 if task == "qqp" else own,
                "ece": ece,
                "loss": 0.4,
            }
            kept = {"agreement": min(own + 0.05, 1.0), "retained": own / 0.92 if own else None}
            rows.append({"test_set": name, "variant": variant, **measures, **kept, **axes})
        return rows

    def record(self, stage: str, cell: tuple, rows: list[dict], **header: object) -> None:
        """Write one record."""
        sizes = {"selected": 20, "graftable": GRAFTABLE, "model_parameters": 3 * GRAFTABLE}
        axes = dict(zip(AXES[stage], cell, strict=True))
        self.cells[stage].append(axes)
        write_json(file_of("metrics", stage, *cell), {"stage": stage, **axes, **sizes, "rows": rows, **header})

    def mask(self, cell: tuple, k: int, fixed: bool) -> None:
        """A random mask; `fixed` ones share their first parameters and lie in layer 2's values."""
        name = "m.layer.2.attention.self.value.weight" if fixed else f"m.layer.{k % LAYERS}.intermediate.dense.weight"
        tensors = {f"indices/{name}": np.sort(self.random.choice(10_000, k, replace=False)).astype(np.int32)}
        tensors |= {f"values/{name}": np.zeros(k, np.float32)}
        save_sealed(file_of("masks", "sweep", *cell), tensors, {**HEADER, "selected": k})


def write_cell(writer: Writer, seed: int, task: str) -> None:
    """Records of all stages of one (task, seed), in which the paper's effects are there."""
    rows, tail = writer.rows, (seed, task)
    pruned = [row for share in (0.5, 0.9) for row in rows(task, "pruned", 0.45 + 0.1 * share, 0.2, sparsity=share)]
    writer.record("anchor", tail, rows(task, "pretrained", 0.6, 0.1) + rows(task, "finetuned", 0.92, 0.09) + pruned)
    for (name, less), (number, size) in product(LOCALIZERS.items(), enumerate(SPARSITIES)):
        about = {"gradient_examples": {"learned": 9600, "attribution": 1600, "fish": 1024}.get(name, 0)}
        grafted = rows(task, "grafted", 0.9 + 0.005 * number - less / (1 + number), 0.03 + 0.01 * number)
        k = int(size * GRAFTABLE)
        writer.record("sweep", (name, size, *tail), grafted, about=about, selected=k)
        writer.mask((name, size, *tail), k, fixed=name == "learned")
    for readout, score in {"graft": 0.9, "retrain": 0.93, "reset": 0.65, "prune": 0.5}.items():
        for name in ("learned", "bias"):
            found = rows(task, readout, score, 0.04) + rows(task, "finetuned", 0.92, 0.09)
            writer.record("readout", (readout, name, 0.0001, *tail), found, selected={"learned": 20, "bias": 15}[name])
    points = product((0.0, 0.5, 1.0), ("wise_ft", "wise_graft"))
    wise = [row for alpha, name in points for row in rows(task, name, 0.6 + 0.32 * alpha**0.5, 0.05, alpha=alpha)]
    writer.record("wise", tail, wise)
    for method in ("lora_8", "houlsby_16"):
        writer.record("peft", (method, *tail), rows(task, "peft", 0.92, 0.1), trained=400)
    for paradigm, less in {"sgd": 0.02, "adamw": 0.3, "adamw_l1": 0.05}.items():
        grafts = [row for size in SPARSITIES for row in rows(task, "grafted", 0.92 - less, 0.05, sparsity=size)]
        writer.record("paradigm", (paradigm, *tail), rows(task, "finetuned", 0.92, 0.09) + grafts)
    steps = []
    for step in range(0, 500, 100):
        steps += rows(task, "checkpoint", 0.6 + 0.3 * step / 400, 0.05, step=step, sparsity=None)
        steps += rows(task, "grafted", 0.6 + 0.28 * min(step / 150, 1), 0.05, step=step, sparsity=0.01)
    writer.record("trajectory", tail, steps)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    writer = Writer()
    with chdir(tmp_path_factory.mktemp("study")):
        for seed, task in CELLS:
            write_cell(writer, seed, task)
        yield writer.cells


@pytest.fixture(scope="module")
def study(written):
    return collect(written)


def collect(cells: dict[str, list], mode: str = "prompt") -> Study:
    return collect_in(cells, LEAST, mode)


def of(written: dict[str, list], tasks: list[str], seeds: list[int] = SEEDS) -> dict[str, list]:
    """The cells of these tasks and seeds alone."""
    return {
        stage: [cell for cell in cells if cell["task"] in tasks and cell["seed"] in seeds]
        for stage, cells in written.items()
    }


def changed(study: Study, **frames: pd.DataFrame) -> Study:
    return replace(study, frames=study.frames | frames)


def told_of(study: Study, measure: str = "", words: str = "") -> list[Claim]:
    """All claims, or those of a measure, with these words."""
    rows = [row for row in read_statements(HERE / "claims.yaml") if measure in ("", row.measure)]
    return [claim for claim in judge(rows, MEASURES, study, "toy model") if words in claim.text]


def table(study: Study, title: str) -> Table:
    return next(table for table in tables(study) if table.title.startswith(title)).text()


def test_only_named_cells_are_read_and_split_by_test_set(written, study):
    assert study.tasks == TASKS and study.seeds == SEEDS and study.off == []
    assert len(study.rows("sweep")) == len(written["sweep"]) == len(LOCALIZERS) * len(SPARSITIES) * len(CELLS)
    assert {*study.rows("anchor", "train").test_set} == {f"{task}:train" for task in TASKS}
    assert {*study.rows("anchor", "ood").test_set} == {"yelp", "imdb", "mnli_2"}
    fewer = collect({"anchor": [{"seed": 13, "task": "sst2"}]})
    assert len(fewer.rows("anchor")) == 4 and fewer.off == [stage for stage in AXES if stage != "anchor"]


def test_missing_records_and_masks_are_named_with_what_makes_them(written):
    absent = [{"localizer": "learned", "sparsity": 0.5, "seed": 13, "task": task} for task in ("sst2", "qqp")]
    with pytest.raises(DataError) as error:
        collect(written | {"sweep": [*written["sweep"], *absent]})
    message = str(error.value)
    assert message.count("not there") == 4  # record and mask of both, and none of the others
    assert "masks/sweep/learned/0.5/13/qqp.safetensors" in message
    made_by = "`dvc repro stages/study/dvc.yaml:sweep@learned-0.5-13`"
    assert f"metrics/sweep/learned/0.5/13/sst2.json: not there; {made_by}" in message


def test_damaged_files_are_named(project):
    write_json(file_of("metrics", "anchor", 13, "sst2"), {"stage": "anchor", "scores": []})
    with pytest.raises(DataError, match=r"13/sst2\.json: not a record of anchor.*anchor@13"):
        collect({"anchor": [{"seed": 13, "task": "sst2"}]})
    cell = ("learned", 0.1, 13, "sst2")
    write_json(file_of("metrics", "sweep", *cell), {"stage": "sweep", "rows": []})
    file_of("masks", "sweep", *cell).parent.mkdir(parents=True)
    file_of("masks", "sweep", *cell).write_bytes(b"no mask")
    with pytest.raises(MaskError, match="damaged"):
        collect({"sweep": [dict(zip(AXES["sweep"], cell, strict=True))]})


def test_localizers_stand_beside_the_learned_one_at_every_common_size(study):
    rows = {tuple(row.cells[:2]): row.cells for row in table(study, "Localizers").rows}
    assert {size for _, size in rows} == {"0.010 %", "0.10 %", "1.00 %", ""}
    assert rows["learned", "1.00 %"][-2:] == ["9,600", ""]
    assert float(rows["random", "0.010 %"][-1].split()[0]) == pytest.approx(-35, abs=3)
    assert nearest([0.001, 0.01]) == 0.001 and nearest([]) is None
    sweep = study.frames["sweep"]
    fewer = changed(study, sweep=sweep[(sweep.localizer != "random") | (sweep.sparsity < 0.01)])
    assert fewer.common_sparsities == [0.0001, 0.001], "not one that random lacks"
    assert nearest([0.0002, 0.0]) == 0.0, "the smaller of two as near"


def test_a_stage_s_own_rows():
    rows = pd.DataFrame({"variant": ["pretrained", "finetuned", "retrain"]})
    assert [*own_rows(rows).variant] == ["retrain"]
    assert [*own_rows(rows[:2]).variant] == ["finetuned"]


def test_tables_have_the_paper_s_values_beside_ours(written, study):
    for one in shown(tables(study)):
        assert {len(row.cells) for row in one.rows if row.kind != "group"} == {len(one.header)}
    models = table(study, "Tables 1, 3, 5, 6 and 7")
    group, theirs = "", {}
    for above, row in zip([None, *models.rows], models.rows, strict=False):
        group = row.cells[0] if row.kind == "group" else group
        if row.kind == "paper":
            theirs[group, above.cells[0]] = row.cells[3:]
    assert theirs["sst2", "fine-tuned"] == ["92.3 (0.3)", "7.4 (0.3)"]
    assert theirs["qqp†", "graft of 1.00 %"][0] == "78.7 (0.2)"
    assert theirs["sst2", "retrain learned of 0.010 %"] == ["92.2 (0.7)", "3.9 (0.7)"]
    assert theirs["sst2 -> yelp", "BitFit"] == ["89.0 (0.3)", ""]
    assert theirs["qnli -> mnli_2", "LoRA 8"] == ["64.2 (3.9)", ""]
    assert theirs["average", "LoRA 8"] == ["88.5", "8.9"], "the paper's own average, over the same tasks"
    rows = table(collect(of(written, TASKS[:2])), "Tables 1, 3").rows
    average = [row.cells[0] for row in rows].index("average")
    assert not any(row.kind == "paper" for row in rows[average:]), "the control: over other tasks"
    assert table(study, "Table 8").rows[1].cells[2] == "" and table(study, "Table 8").rows[1].cells[3] == "9.2 (1.3)"


def test_bitfit_is_of_all_biases_and_sizes_that_differ_are_told(study):
    """Of 15 biases in all a size of 10 parameters holds some: their retraining is not BitFit, nor averaged with it."""
    frame = study.frames["readout"]
    own = frame.readout.eq("retrain") & frame.localizer.eq("bias")
    few = frame[own].assign(sparsity=5e-5, selected=10, score=frame.score[own] - 0.5)
    many = few.assign(sparsity=0.5, selected=15)  # room for far more
    both = changed(study, readout=pd.concat([frame, few, many]))
    words = "biases trained alone"
    assert (
        [one.figure for one in told_of(both, words=words)] == [one.figure for one in told_of(study, words=words)] != []
    )
    rows = {row.cells[0]: row.cells for row in table(both, "Tables 1, 3").rows}
    assert rows["BitFit"][2] == "15" and rows["retrain bias of 0.0050 %"][2] == "10"
    sweep = study.frames["sweep"]
    fewer = changed(study, sweep=sweep.assign(selected=sweep.selected.mask(sweep.localizer.eq("bias"), 20)))
    told = [told_of(one, "localizer_scores", "on biases, at 1.00 %")[0].figure for one in (fewer, study)]
    assert told[0] == f"{told[1]}; {int(0.01 * GRAFTABLE):,} and 20 parameters"


def test_an_average_is_of_models_that_have_all_tasks(written):
    lora = [cell for cell in written["peft"] if cell["task"] == "sst2"]
    rows = table(collect(written | {"peft": lora}), "Tables 1, 3").rows
    average = [row.cells[0] for row in rows].index("average")
    assert sum("LoRA" in row.cells[0] for row in rows[:average] if row.kind == "ours") == 3
    assert not any("LoRA" in row.cells[0] for row in rows[average : average + 5])


def test_paper_s_averages_are_those_of_its_rows():
    paper = published(HERE / "paper.yaml")
    for method, sizes in paper["table6"].items():
        for size, values in sizes.items():
            for measure, mean in values["average"].items():
                assert np.mean([values[task][measure][0] for task in TASKS]) == pytest.approx(mean, abs=0.0011)
            transfer = paper["table7"][method][size]
            cells = {(task, name): transfer[task][name][0] for task in ("mpqa", "qnli") for name in transfer[task]}
            inside = np.mean([value for (task, name), value in cells.items() if task == name])
            outside = np.mean([value for (task, name), value in cells.items() if task != name])
            assert inside == pytest.approx(transfer["average"]["id"], abs=0.0011), (method, size)
            if (method, size) != ("pfeiffer", 16):  # the paper says 71.2 there, its own values give 72.7
                assert outside == pytest.approx(transfer["average"]["ood"], abs=0.0011), (method, size)


@pytest.mark.usefixtures("bare")
def test_figures_and_data_of_all_stages(study, tmp_path):
    figures(FIGURES, study)(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {*FIGURES}
    assert all(imread(path).std() > 0.05 for path in tmp_path.iterdir())
    plot_data(study.data())(tmp_path)
    sweep = pd.read_csv(tmp_path / "sweep.csv")
    assert len(sweep) == len(study.frames["sweep"]) and 0.0001 in {*sweep.sparsity}
    stems = {path.stem for path in tmp_path.glob("*.csv")}
    assert stems == {*AXES, "composition", "localizer_overlap", "task_overlap", "seed_overlap", "cost", "cost_mean"}
    assert {*pd.read_csv(tmp_path / "composition.csv").layer} == {1, 2, 3, 4}, "layers are counted from 1"


def texts_of(name: str, study: Study) -> tuple[str, int]:
    """All that is written beside the panels of a figure, and how many panels it has."""
    drawn = draw(study, name)
    return " ".join(" ".join(text.get_text().split()) for text in drawn.texts), len(drawn.axes)


def test_a_title_says_what_was_found_and_a_caption_what_is_drawn(written, study):
    highest = "At 0.010 % grafts on the learned region score highest: 88.6 %, +1.8 (+0.9 to +2.8) points over attribution (fine-tuned: 90.6 %"
    assert texts_of("localizers", study)[0].startswith(highest)
    assert "lies on average in attention value: 100.0 %, by chance 20" in texts_of("modules", study)[0]
    assert "lies on average in layer 3" in texts_of("layers", study)[0]
    assert f"it is the largest in {len(TASKS)} of {len(TASKS)} tasks" in texts_of("layers", study)[0]
    assert "In and out of distribution, learned graft of" in texts_of("ood_tradeoff", study)[0]
    assert "whiskers: 95 % interval" in texts_of("localizers", study)[0]
    one, few = collect(of(written, ["sst2"], [13])), collect(of(written, ["sst2", "qqp"]))
    for name in ("localizers", "bias", "paradigm", "trajectory", "layers"):
        text, panels = texts_of(name, one)
        assert "whiskers" not in text and "1 task, 1 seed" in text and panels == 1, name
    for name in ("ood_sparsity", "ood_tradeoff"):
        assert "1 task, 2 seeds" in texts_of(name, few)[0], "qqp has no other test set"


def test_two_layers_have_no_middle_third(study):
    composition = study.frames["composition"]
    few = replace(study, frames=study.frames | {"composition": composition[composition.layer < 2]})
    [claim] = told_of(few, words="middle third")
    assert claim.verdict is Verdict.OPEN
    assert claim.figure == "not measurable with 2 layers, of which none is in the middle third"
    [claim] = told_of(study, words="middle third")
    assert claim.verdict is Verdict.HOLDS, "the control: of four layers it is the two in the middle"


def test_both_sides_of_a_difference_are_of_the_cells_and_the_tasks_that_it_is_of(study):
    steps, overlap = study.frames["trajectory"], study.frames["localizer_overlap"]
    first, largest = steps.task == TASKS[0], (overlap.task == TASKS[0]) & (overlap.sparsity == max(SPARSITIES))
    late = steps[~(first & (steps.seed == SEEDS[0])) & ~(first & (steps.variant == GRAFTED) & (steps.step < 400))]
    ious = overlap.assign(iou=overlap.iou + 0.1 * (overlap.task == TASKS[0]))[~largest]
    uneven = replace(study, frames=study.frames | {"trajectory": late, "localizer_overlap": ious})
    for finding in (*MEASURES["saturates"](uneven, 0.95), *MEASURES["overlap_falls"](uneven)):
        assert finding.fields["first"] - finding.fields["second"] == pytest.approx(finding.value.mean), finding


def test_the_masks_of_other_paradigms_that_dev_gave_up_are_told(study):
    rows = study.frames["paradigm"]
    kept = rows.paradigm.map({"adamw": "movement"}).fillna("learned").where(rows.variant == "grafted")
    told = [
        report(replace(study, frames=study.frames | {"paradigm": rows.assign(kept=which)})).facts
        for which in (kept, None)
    ]
    few, all_of_them = len(CELLS) * len(SPARSITIES), 3 * len(CELLS) * len(SPARSITIES)
    assert told[0] == [
        f"learned masks that are the movement mask, which agreed more on dev: {few} of {all_of_them} of paradigm"
    ]
    assert told[1] == []


def test_the_mean_over_paradigms_has_the_interval_of_the_distance_to_their_own_models(study):
    rows = study.rows("paradigm")
    own = rows[rows.paradigm == "adamw"]
    by_task = own.groupby(["variant", "sparsity", "task"], dropna=False)["score"].mean()
    [bars] = [one for one in draw(study, "paradigm").axes[len(TASKS)].containers if one.get_label() == "AdamW"]
    heights = [np.ptp(ends[:, 1]) for ends in bars.lines[2][0].get_segments() if len(ends)]
    expected = []
    for size in sorted(own.sparsity.dropna().unique()):
        distances = by_task["finetuned"].to_numpy() - by_task["grafted"][size].to_numpy()
        expected.append(2 * 100 * scipy.stats.t.ppf(0.975, len(distances) - 1) * scipy.stats.sem(distances))
    assert heights == pytest.approx(expected) and min(expected) > 0, "and none of the model itself, at 100 %"


def test_figures_of_a_single_localizer_are_of_the_first_of_a_sweep_without_the_learned_one(written, study):
    others = collect(written | {"sweep": [cell for cell in written["sweep"] if cell["localizer"] != "learned"]})
    assert (study.leading, others.leading) == ("learned", "attribution")
    for name in ("layers", "modules", "ood_tradeoff", "ood_sparsity"):
        text, panels = texts_of(name, others)
        assert "attribution" in text and "learned" not in text and panels == texts_of(name, study)[1], name
        assert "learned" in texts_of(name, study)[0], "the control"
    labels = draw(others, "ood_tradeoff").axes[0].get_legend_handles_labels()[1]
    assert "graft by size" in labels


def test_the_mean_of_the_tasks_is_of_curves_that_all_tasks_have(written):
    lone = [cell for cell in written["readout"] if cell["task"] == "sst2"]
    *tasks, mean = FIGURES["bias"](collect(written | {"readout": lone})).axes[:5]
    labels = [panel.get_legend_handles_labels()[1] for panel in (tasks[0], mean)]
    assert {*labels[0]} - {*labels[1]} == {"learned region, rest set to 0"}


def test_notes_speak_of_intervals_only_where_there_are_some(written, study):
    for found, expected in (
        (study, True),
        (collect(of(written, ["sst2", "qqp"], [13])), False),
        (collect(of(written, ["sst2"])), False),
    ):
        for title in ("Localizers", "Generalization gap"):
            notes = " ".join(note for one in tables(found) if title in one.title for note in one.notes)
            assert ("95 % interval" in notes) is expected, (title, found.tasks, found.seeds)


def test_a_level_in_the_mean_is_of_the_tasks_that_have_a_panel(written):
    few = [cell for cell in written["paradigm"] if cell["task"] in TASKS[:2]]
    panels = FIGURES["paradigm"](collect(written | {"paradigm": few})).axes[:3]
    first, second, mean = (panel.get_lines()[0].get_ydata()[0] for panel in panels)
    assert mean == pytest.approx((first + second) / 2)


def test_details_have_a_part_for_each_stage_and_the_headline_five_numbers(study):
    found = clean(details(study))
    assert found["sweep"]["learned"]["0.0001"]["score"]["n"] == len(CELLS)
    assert found["sweep"]["learned"]["0.0001"]["ood_score"]["n"] == 4
    assert found["localizers"]["random"]["0.0001"]["minus_learned"]["high"] < -0.3
    assert found["readout"]["retrain"]["learned"]["0.0001"]["score"]["mean"] == pytest.approx(0.92, abs=0.02)
    assert found["paradigm"]["adamw"]["finetuned"]["all"]["score"]["n"] == len(CELLS)
    assert found["localizer_overlap"]["learned"]["fish"]["0.01"]["iou"]["mean"] == 0
    assert found["cost"]["learned"]["0.01"]["gradient_examples"]["mean"] == 9600
    assert found["gap"]["finetuned"]["gap"]["mean"] == pytest.approx(0.06, abs=0.02)
    json.dumps(found, allow_nan=False)
    few = clean(headline(study))
    assert {*few} == {"sparsity", "finetuned", "retained", "gain"} and {*few["gain"]} == {"learned", "movement"}


def test_saturation_is_of_the_largest_graft_in_cells_that_gain(study):
    frame = study.frames["trajectory"]
    small = frame[frame.variant.eq("grafted")].assign(sparsity=0.001, score=1.0)
    more = changed(study, trajectory=pd.concat([frame, small]))
    assert more.saturation(0.95).equals(study.saturation(0.95))
    flat = changed(study, trajectory=frame.assign(score=frame.score.mask(frame.task.eq("sst2"), 0.62)))
    assert {*flat.saturation(0.95).index.unique("task")} == {*TASKS} - {"sst2"}


def test_claims_say_what_was_put_in(study):
    told = told_of(study)
    holding = " ".join(claim.text for claim in told if claim.verdict is Verdict.HOLDS)
    for part in (
        "learned region score higher than on what moved most, at 0.10 %", "attribution region score higher", "moved most score higher",
        "learned region score higher than on the FISH", "FISH mask score higher", "learned region score higher than on biases",
        "fine-tuned model's ECE is higher", "trained alone", "region of 50.00 % alone", "after SGD", "l1 penalty", "earlier step", "middle third",
    ):  # fmt: skip
        assert part in holding, part
    assert told_of(study, words="grown") == [], "it was not in the sweep"
    [gap] = told_of(study, "gap")
    assert gap.verdict is Verdict.UNCLEAR, "nothing of the kind was put in"
    assert study.gaps()["finetuned"].mean() == pytest.approx(0.06, abs=0.015), "more on training rows"
    inside = [claim for claim in told if "istribution" not in claim.text]
    assert all(claim.here.endswith("toy model; 4 tasks, 2 seeds") for claim in inside)


def test_a_claim_of_localizers_says_its_size_and_is_corrected_for_how_many_sizes_there_are(study):
    told = told_of(study, "localizer_scores", "on the learned region score higher than on what moved most")
    assert [claim.here.split(";")[0] for claim in told] == ["0.010 %", "0.10 %", "1.00 %"]
    # by 1 point +- 0.6 at the largest size alone: its own interval excludes 0, that of three claims does not
    frame = study.frames["sweep"]
    size, own = SPARSITIES[-1], frame.variant.eq("grafted") & frame["where"].eq("id")
    less = {"sst2": 0.015, "ag_news": 0.006, "qnli": 0.012, "qqp": 0.006}
    score = frame.score.mask(own, 0.9 - frame.localizer.eq("movement") * frame.task.map(less) * frame.sparsity.eq(size))
    less = changed(study, sweep=frame.assign(score=score))
    told = told_of(less, "localizer_scores", "on the learned region score higher than on what moved most")
    assert "Holm" not in told[0].figure and told[0].verdict is Verdict.UNCLEAR
    assert told[2].verdict is Verdict.UNCLEAR and "Holm's correction for 3 claims" in told[2].figure


def test_nothing_is_kept_where_fine_tuning_gained_nothing(study):
    assert {claim.verdict for claim in told_of(study, "kept", "keeps")} == {Verdict.HOLDS}, "the control"
    rows = study.frames["anchor"]
    untrained = rows.assign(score=rows.score.where(rows.variant != "finetuned", 0.6))
    told = told_of(changed(study, anchor=untrained), "kept")
    assert {claim.verdict for claim in told} == {Verdict.OPEN} and "shown to gain over the pretrained" in told[0].figure
    told = told_of(changed(study, anchor=rows.assign(constant=rows.score)), "kept")
    assert {claim.verdict for claim in told} == {Verdict.OPEN} and "always the same label" in told[0].figure


def test_a_gain_is_between_the_two_models_and_a_random_mask_brings_none_of_it(study):
    scores = study.frames["anchor"].set_index(["task", "seed", "test_set", "variant"]).score
    for row in [*study.grafts("learned", 0.01, "ood").itertuples(), *study.grafts("random", 0.0001).itertuples()]:
        low, high = (scores[row.task, row.seed, row.test_set, name] for name in ("pretrained", "finetuned"))
        assert row.gain == pytest.approx((row.score - low) / (high - low))
    kept = study.grafts("random", 0.0001)
    assert kept.retained.mean() > 0.55 and kept.gain.mean() < 0, "the control: less than the pretrained model"
    assert 0.88 < clean(headline(study))["gain"]["learned"] < 1
    told = told_of(study, "kept", "brings")
    assert [claim.here.split(";")[0] for claim in told] == ["0.010 %", "0.10 %", "1.00 %"]
    assert "relative gain of 9" in told[0].figure and "without" not in told[0].figure


def test_no_gain_is_said_where_fine_tuning_gained_too_little_or_the_pretrained_model_is_unknown(written, study):
    shy = collect_in(written, 0.4, "prompt")
    [first, *_] = told_of(shy, "kept", "brings")
    assert first.verdict is Verdict.OPEN
    assert "without 8 of 8 cells, in which fine-tuning gained less than 40" in first.figure
    assert shy.frames["sweep"].gain.isna().all() and shy.frames["sweep"].retained.notna().all()
    assert any("without 8 of 8 cells" in note for note in table(shy, "Localizers").notes)
    for mode, known in (("prompt", True), ("standard", False)):
        found = collect(written, mode)
        assert found.frames["paradigm"].gain.notna().any() == known, "a paradigm's own head is nowhere measured alone"
        assert found.frames["sweep"].gain.notna().any()
        assert ("(of its gain)" in texts_of("paradigm", found)[0]) == known
    own = study.frames["paradigm"]
    assert own.gain[own.variant == "finetuned"].to_numpy() == pytest.approx(1), "of its own fine-tuned model"


def test_one_trained_task_decides_nothing_out_of_distribution(written, study):
    words = "Out of distribution a learned graft of 0.010 % scores higher than the fine-tuned"
    assert told_of(study, "contrast", words)[0].verdict is not Verdict.OPEN, "the control: two trained tasks"
    [told] = told_of(collect(of(written, ["sst2"])), "contrast", words)
    assert told.verdict is Verdict.OPEN and "1 task, 2 seeds" in told.figure


def test_figure_4b_is_judged_by_the_pruned_models_of_all_tasks(written):
    lone = [cell for cell in written["readout"] if cell["task"] == "sst2"]
    told = told_of(collect(written | {"readout": lone}), "pruned")
    assert [claim.verdict for claim in told] == [Verdict.HOLDS] * 2 and "90.00 %" in told[1].text
    assert told_of(collect(written | {"anchor": []}), "pruned") == []


def test_regions_are_compared_between_tasks_and_between_seeds_of_one(study):
    between = [(seed, *pair, 0.1 + 0.01 * seed / 21) for seed in SEEDS for pair in permutations(TASKS, 2)]
    among = [(task, 13, 21, 0.3 + 0.01 * number) for number, task in enumerate(TASKS)]
    frames = {
        f"{axis}_overlap": pd.DataFrame(rows, columns=[other, "first", "second", "overlap"]).assign(
            localizer="learned", sparsity=0.01, chance=0.01
        )
        for axis, other, rows in (("task", "seed", between), ("seed", "task", among))
    }
    [told] = told_of(changed(study, **frames), "region_overlap")
    assert told.verdict is Verdict.HOLDS
    assert told.figure.startswith("31.5 against 10.8 % (by chance 1.0 %), +20.7 points")
    told = told_of(study, "region_overlap")
    assert {claim.verdict for claim in told} == {Verdict.UNCLEAR}, "the control: regions drawn at random"
    assert _share_inside(np.arange(4), np.arange(2), 8) == {"overlap": 1.0, "chance": 0.5}, "of the second in the first"


@pytest.mark.parametrize(
    ("small", "large", "verdict"),
    [(0.1, 0.02, Verdict.HOLDS), (0.02, 0.1, Verdict.FAILS), (0.1, 0.1, Verdict.UNCLEAR)],
)
def test_overlap_is_said_to_fall_with_size_only_where_it_does(study, small, large, verdict):
    rows = [
        (task, seed, size, iou + 0.001 * number * sign**number)
        for size, iou, sign in ((0.001, small, -1), (0.01, large, 1))
        for number, (seed, task) in enumerate(CELLS)
    ]
    overlap = pd.DataFrame(rows, columns=["task", "seed", "sparsity", "iou"])
    overlap = overlap.assign(first="learned", second="fish", chance=0.001)
    [told] = told_of(changed(study, localizer_overlap=overlap), "overlap_falls")
    assert told.verdict is verdict


@pytest.mark.parametrize("off", ["anchor", "sweep", "readout", "peft"])
def test_any_stage_may_be_off(written, off):
    study = collect(of(written, ["sst2", "qnli"], SEEDS[:1]) | {off: []})
    told = report(study)
    assert study.off == [off] and off in told.facts[0]
    drawn = [draw(study, name) for name in FIGURES]
    assert told.tables and told.claims and details(study) and any(drawn)


@pytest.mark.parametrize("alone", [*AXES])
def test_one_stage_one_cell_is_enough(written, tmp_path, alone):
    study = collect({alone: written[alone][:1]})
    assert report(study) and details(study) and [draw(study, name) for name in FIGURES]
    plot_data(study.data())(tmp_path)
    assert [*study.off] == [stage for stage in AXES if stage != alone]


def test_nothing_at_all():
    study = collect({})
    told = report(study)
    assert told.tables == [] == told.claims and not any(clean(details(study)).values())
    assert not any(draw(study, name) for name in FIGURES)
