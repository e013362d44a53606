"""Frames of the main pipeline against numbers worked out by hand, on synthetic cells, and what the report makes of them."""

import itertools
from collections.abc import Callable
from contextlib import chdir
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from skill_grafting.calibration import calibration_floor, reliability
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, write_mask
from skill_grafting.grafting.region import Region
from skill_grafting.support.errors import DataError
from skill_grafting.support.io import read_json, write_json, write_rows, write_text
from stages import summary as reading
from stages import summary as stage
from stages.text.scores.predictions import Predictions, write_predictions
from stages.text.scores.scores import calibration_scores, classification_scores, cross_entropy
from stages.text.scores.temperature import GRAFT_TEMPERED
from stages.text.scores.variants import (
    FINETUNED,
    GRAFTED,
    MOVEMENT_GRAFTED,
    PRETRAINED,
    TEMPERED,
    VARIANTS,
    WISE_FT,
    WISE_GRAFT,
)
from stages.text.tasks.tasks import resolve_tasks
from stages.workflow.report.claims import judge
from stages.workflow.report.publish import headline, markdown
from stages.workflow.report.spec import NO_RESULT, Figure, heading, load_frames, read_spec, result
from stages.workflow.report.stats import Mean
from stages.workflow.stage import paths

ROOT = Path(__file__).parents[2]
SPECS, _ = resolve_tasks({})
SPEC = read_spec(ROOT / "stages/report.yaml")
PAPER = pd.read_csv(ROOT / "stages/paper.csv")
ONE, TWO = ["sst2", "cr", "mr", "mpqa", "trec", "ag_news", "subj"], ["qnli", "snli", "mnli", "rte", "mrpc", "qqp"]
TASKS, SEEDS = ["movies", "mrpc", "bbc"], [1, 2]
# margin of the right label's logit, and what all logits are multiplied with: fine-tuning makes overconfident
SKILL = {PRETRAINED: (0.2, 0.8), FINETUNED: (1.2, 5.0), MOVEMENT_GRAFTED: (0.8, 1.6), GRAFTED: (1.15, 1.3)}
CONTROLLED = {TEMPERED: (1.2, 2.5), WISE_FT: (1.0, 2.5)}
STORED = {"reference": (PRETRAINED, FINETUNED), "controls": (*CONTROLLED,), "evaluate": (MOVEMENT_GRAFTED, GRAFTED)}
METHODS = [*((name, None) for name in (*VARIANTS, TEMPERED, GRAFT_TEMPERED)), (WISE_FT, 0.7), (WISE_GRAFT, 0.0)]
FRONTIER = [
    {"method": method, "alpha": alpha, "temperature": None, "score": 0.6 + place / 50, "ece": place / 20, "n": 400}
    for place, (method, alpha) in enumerate(METHODS)
]

DRAWS = 100


@pytest.fixture(autouse=True)
def few_draws(project, monkeypatch):
    """In a folder of its own."""
    set_draws(monkeypatch)


def set_draws(patch: pytest.MonkeyPatch) -> None:
    """Samples of test rows, of which intervals of a single task are made, fewer than a run draws; and texts of which no tokenizer is asked."""
    patch.setattr("stages.text.scores.scores.DRAWS", DRAWS)
    patch.setattr(stage, "stored_tokenizer", lambda folder: folder)
    patch.setattr(stage, "cut_share", lambda rows, task, *_: 0.75 if task.name == "bbc" else 0.0)


@pytest.fixture(scope="module")
def collected(tmp_path_factory) -> dict[str, pd.DataFrame]:
    """The frames of cells of three tasks and two seeds."""
    with pytest.MonkeyPatch.context() as patch, chdir(tmp_path_factory.mktemp("cells")):
        set_draws(patch)
        make_cells(TASKS, SEEDS)
        return reading.collect(settings()) | {"paper": PAPER}


@pytest.fixture(scope="module")
def plain_page(collected) -> str:
    return page_of(collected)


def page_of(frames: dict[str, pd.DataFrame]) -> str:
    return markdown(SPEC, reading.derive(frames))


def make_cells(tasks: list[str], seeds: list[int], sets: dict[str, list[str]] | None = None, rows: int = 400) -> None:
    """Write what the stages before the summary write, with made-up logits."""
    sets = sets or {}
    for task, seed in itertools.product(tasks, seeds):
        write_json(paths.card(task), {"task": SPECS[task].model_dump()})
        write_rows(paths.sample(task, seed, "test"), [])
        own, others = predictions(task, [task], seed, rows), predictions(task, sets.get(task, []), seed)
        both = Predictions(own.label_names, own.labels | others.labels, own.logits | others.logits)
        write_json(paths.record("evaluate", task, seed), {"scores": classification_scores(own, SPECS[task])})
        write_json(paths.record("ood", task, seed), {"scores": classification_scores(others, SPECS[task])})
        curves = {"scores": calibration_scores(both, 15, 20), "frontier": FRONTIER}
        write_json(paths.record("calibration", task, seed), curves)
        accuracy = {PRETRAINED: 0.5, FINETUNED: 0.9 + seed / 100}
        write_json(paths.record("reference", task, seed), {"train_accuracy": accuracy})
        for name, variants in STORED.items():
            write_predictions(paths.logits(name, task, seed), own.part([task], variants))
        make_mask(task, seed)
    paths.PRETRAINED.mkdir(parents=True, exist_ok=True)
    leaks = {task: {test: {"leaked": 342, "test": 2000} for test in tests} for task, tests in sets.items()}
    write_json(paths.LEAKAGE, leaks)


def predictions(task: str, test_sets: list[str], seed: int, n: int = 400) -> Predictions:
    """Logits of models that are right more often, and surer, the larger their margin and scale; they share most noise."""
    labels, logits, names = {}, {}, SPECS[task].labels
    for test_set in test_sets:
        random = np.random.default_rng([*f"{task}/{test_set}/{seed}".encode()])
        labels[test_set] = random.integers(0, len(names), n)
        right, noise = np.eye(len(names))[labels[test_set]], random.normal(size=(n, len(names)))
        logits[test_set] = {
            variant: (scale * (margin * right + noise + 0.35 * random.normal(size=noise.shape))).astype(np.float32)
            for variant, (margin, scale) in (CONTROLLED | SKILL if test_set == task else SKILL).items()
        }
    return Predictions(names, labels, logits)


def make_mask(task: str, seed: int, selected: int = 106_467, localizer: str = "learned", head: int = 0, **more: Any) -> None:
    """Write a mask file of the first parameters, and a trained head of so many."""
    about = {"model": "tiny", "mode": "prompt", "k": 64, "localizer": localizer, "model_parameters": 22_713_216, **more}
    mask = GraftMask(Region({"a": (10_646_784,)}), {"a": torch.arange(selected)})
    heads = {"b": torch.zeros(head)} if head else {}
    write_mask(paths.mask("learned", task, seed), StoredMask(mask, {"a": torch.zeros(selected)}, heads, about))


def settings(tasks: list[str] = TASKS, seeds: list[int] = SEEDS, sets: dict[str, list[str]] | None = None) -> Any:
    """What the stage asks for."""
    return SimpleNamespace(
        tasks=tasks, seeds=seeds, graft=SimpleNamespace(sparsity=0.01),
        model=SimpleNamespace(source="local", name="tiny", revision=None, mode="prompt", max_length=64),
        data=SimpleNamespace(k=64, scarce="error"), ood=SimpleNamespace(sets=sets or {}, leaks="drop"),
        summary=SimpleNamespace(least_gain=0.05), calibration=SimpleNamespace(bins=15, wise_alphas=[0.0, 0.5, 1.0]),
    )  # fmt: skip


def derived(*args: list[str] | list[int], **kwargs: dict[str, list[str]]) -> dict[str, pd.DataFrame]:
    """The frames of cells that are there."""
    return reading.derive(reading.collect(settings(*args, **kwargs)) | {"paper": PAPER})


def change(stage_name: str, task: str, seed: int, **variants: dict) -> None:
    """Other numbers of some variants in a stored file."""
    path = paths.record(stage_name, task, seed)
    values = read_json(path)
    for variant, numbers in variants.items():
        values["scores"][task][variant] |= numbers
    write_json(path, values)


def by_cell(frames: dict[str, pd.DataFrame], measure: str) -> pd.DataFrame:
    return frames["scores"].pivot(index=["task", "seed"], columns="variant", values=measure)


def test_means_are_those_of_numpy_and_the_score_is_the_tasks_own():
    make_cells(TASKS, SEEDS)
    short = headline(SPEC, derived())
    for variant, measure in itertools.product((FINETUNED, GRAFTED), ("score", "ece")):
        of = "calibration" if measure == "ece" else "evaluate"
        files = [(task, read_json(paths.record(of, task, seed))) for task, seed in itertools.product(TASKS, SEEDS)]
        own = {"mrpc": {"score": "f1"}}
        values = [file["scores"][task][variant][own.get(task, {}).get(measure, measure)] for task, file in files]
        assert short[f"{variant}_{measure}"] == pytest.approx(np.mean(values), abs=6e-5)
    assert short["finetuned_train_accuracy"] == pytest.approx(0.915)


def test_what_is_missing_or_no_record_is_named_with_the_item_that_makes_it():
    make_cells(["movies", "sst2"], [1, 2])
    with pytest.raises(DataError, match=r"metrics/ood/1/sst2.json: not a record of ood: .*imdb.*; `dvc repro ood@1`"):
        reading.collect(settings(["sst2"], [1], {"sst2": ["imdb"]}))
    paths.record("calibration", "sst2", 2).unlink()
    paths.mask("learned", "movies", 1).unlink()
    with pytest.raises(DataError) as problem:
        reading.collect(settings(["movies", "sst2"], [1, 2]))
    assert "metrics/calibration/2/sst2.json: not there; `dvc repro calibration@2` makes it" in str(problem.value)
    assert "masks/learned/1/movies.safetensors: not there; `dvc repro mask@movies-1` makes it" in str(problem.value)
    assert "evaluate" not in str(problem.value)


def test_the_gain_is_what_lies_between_the_pretrained_and_the_fine_tuned_model():
    make_cells(TASKS, SEEDS)
    scores = {PRETRAINED: 0.8, FINETUNED: 0.9, MOVEMENT_GRAFTED: 0.8, GRAFTED: 0.88}
    for task, seed in itertools.product(TASKS, SEEDS):
        change("evaluate", task, seed, **{name: {"score": score, "constant": 0.5} for name, score in scores.items()})
    gains = by_cell(derived(), "gain")
    for name, gain in {PRETRAINED: 0, FINETUNED: 1, MOVEMENT_GRAFTED: 0, GRAFTED: 0.8}.items():
        assert gains[name].to_numpy() == pytest.approx(gain, abs=1e-9), "no skill counts as none, whatever is retained"
    # the control: of a cell in which fine-tuning gained 4 points nothing is said
    change("evaluate", "bbc", 2, pretrained={"score": 0.86})
    change("evaluate", "bbc", 1, finetuned={"constant": 0.95})
    frames = derived()
    assert by_cell(frames, "gained")[FINETUNED].loc["bbc"].to_list() == pytest.approx([-0.05, 0.04]), "above the better baseline"
    assert by_cell(frames, "gain")[GRAFTED].loc["bbc"].isna().to_list() == [False, True]


def test_floors_losses_sizes_of_masks_and_kinds_of_tasks_are_those_of_the_cells(collected):
    make_cells(["movies"], [1])
    frames, cell = reading.derive(collected), predictions("movies", ["movies"], 1)
    floors, losses = (by_cell(frames, name).loc["movies", 1] for name in ("floor", "loss"))
    for variant in (FINETUNED, GRAFTED, TEMPERED):
        bins = reliability(cell.logits["movies"][variant], cell.labels["movies"], 15)
        assert floors[variant] == pytest.approx(calibration_floor(bins.count, bins.confidence))
        assert losses[variant] == pytest.approx(cross_entropy(cell.logits["movies"][variant], cell.labels["movies"]))
    [size] = frames["masks"].itertuples()
    assert (size.tasks, size.share, size.share_of_model) == ("all", 106_467 / 10_646_784, 106_467 / 22_713_216)
    other = put("masks", "task == 'bbc' and seed == 2", selected=106_367)(collected)
    assert reading.derive(other)["masks"].set_index("tasks").selected.to_dict() == {"movies, mrpc": 106_467, "bbc": 106_417}
    assert {*frames["scores"].kind} == {"one sentence, two labels", "one sentence, more labels", "two sentences, two labels"}
    make_mask("movies", 1, head=1538, found={"settings": {"steps": 8}, "loss": [0.9, 0.3], "history": [{"step": 8, "dev_score": 0.5, "train_score": 0.5}]})
    row = reading.collect(settings(["movies"], [1]))["masks"].iloc[0]
    assert row[["head_parameters", "loss_start", "loss_end", "steps", "candidates"]].tolist() == [1538, 0.9, 0.3, 8, 1]


def put(name: str, where: str = "", **values: Any) -> Callable[[dict], dict]:
    """A change of rows of a frame."""

    def change(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        rows = frames[name].copy()
        for column, value in values.items():
            rows.loc[rows.query(where).index if where else rows.index, column] = value
        return frames | {name: rows}

    return change


def without(name: str, *columns: str) -> Callable[[dict], dict]:
    """Frames of an earlier run, which had fewer columns."""
    return lambda frames: frames | {name: frames[name].drop(columns=[*columns])}


LOSSES = {"loss_start": 0.9, "loss_end": 0.3, "steps": 8, "candidates": 2}
# changes, and words that the page has with them alone, or without them alone
SAID = [
    (
        [
            put("scores", "task == 'bbc' and seed == 2 and variant == 'finetuned'", score=0.1), put("scores", "task == 'bbc' and seed == 2", gain=None),
            put("scores", "task == 'bbc' and variant == 'movement_grafted'", retained=1.5), put("tasks", "task == 'mrpc'", macro=True),
            put("masks", head_parameters=1538, **LOSSES | {"loss_end": [0.3] * 5 + [1.5]}),
        ],
        ["- fine-tuning learned nothing in bbc-2, where", "without 1 of 6 runs (task and seed), in which fine-tuning gained less than 5 points",
         "than the learned graft on 1 of 3 tasks (bbc)\n", "- F1 of mrpc: macro F1, the mean over all labels",
         "(1.00 % of the graftable ones) with a trained head of 1,538 parameters keep", "from 0.9 to 0.5, mean over 6 runs; it ended above its start in bbc-2"],
    ),
    (
        [put("masks", **LOSSES), put("run", wise_alphas=1), without("tasks", "cut"), without("scores", "floor", "loss")],
        ["from 0.9 to 0.3, mean over 6 runs; it ended no higher than it began in any", "perfectly calibrated models would measure",
         "(mask learned in 8 steps, the best of 2 of them by train and dev; its loss ended above its start in 0 of 6 runs)",
         "lower than that of WiSE-FT at the weight 0.7", "texts of at most 64 tokens (25 % of those tested are cut)", "- texts cut at 64 tokens, in % of the test rows: bbc 75.0"],
    ),
    (
        [put("run", mode="autoregressive"), put("masks", localizer="attribution")],
        ["(Table 9; 0.05 %, GPT-2 (small), 12 tasks of 64 shots, 12 of 4096 shots, 5 seeds)", "79.6 to 95.2 % (Table 9; 0.05 %", "section 3.1",
         "86.4 to 97.3 % (Table 2; 0.01 %", "The attribution graft scores higher", "The learned graft"],
    ),
    ([put("run", k=4096), put("masks", localizer="movement")],
     ["paper: Table 2, 4096-shot, RoBERTa-base, prompt-based fine-tuning, graft of 0.01 %", "than the movement graft of equal size"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), SAID, ids=["odd cells", "searched", "causal", "many shots"])
def test_the_page_says_what_holds_of_its_frames_and_nothing_of_it_otherwise(collected, plain_page, changes, words):
    page = page_of(reduce(lambda frames, change: change(frames), changes, collected))
    assert [word for word in words if (word in page) == (word in plain_page)] == [] and "nan" not in page


def test_temperatures_have_the_digits_that_another_machine_finds():
    found = [stage._points({}, {"frontier": [{"temperature": value}]})[0]["temperature"] for value in (14.05447, 14.05439, 0.71216, None)]
    assert found == [14.05, 14.05, 0.7122, None]


def test_of_one_task_intervals_are_over_its_test_rows_and_no_claim_is_judged():
    make_cells(["movies"], SEEDS)
    told = markdown(SPEC, derived(["movies"], SEEDS)).partition("## Claims")[2]
    assert told.count("there is no interval over tasks") == 1 and "not measurable" not in told and "**" not in told
    random, cells, kept = np.random.default_rng(0), [predictions("movies", ["movies"], seed) for seed in SEEDS], []
    for rows in (random.integers(400, size=400) for _ in range(DRAWS)):
        right = [{name: np.mean(values[rows].argmax(1) == cell.labels["movies"][rows]) for name, values in cell.logits["movies"].items()} for cell in cells]  # fmt: skip
        kept.append(np.mean([of[GRAFTED] / of[FINETUNED] for of in right]))
    low, high = 100 * np.quantile(kept, [0.025, 0.975])
    assert f"(95 % bootstrap over its test rows {low:.1f} to {high:.1f}; 1 task, 2 seeds); the movement graft" in told
    make_cells(TASKS, SEEDS)
    assert not any("bootstrap" in claim.figure for claim in judge(SPEC, derived())), "the control: several tasks have an interval"


def test_bins_and_bars_of_all_seeds_are_added():
    make_cells(["movies"], [1, 2])
    collected = reading.collect(settings(["movies"], [1, 2]))
    parts = [read_json(paths.record("calibration", "movies", seed))["scores"]["movies"][GRAFTED] for seed in (1, 2)]
    [last] = collected["reliability"].query("variant == 'grafted' and bin == 14").itertuples()
    count = sum(part["bin_count"][14] for part in parts)
    confidence = sum(part["bin_count"][14] * part["bin_confidence"][14] for part in parts) / count
    assert (last.count, last.confidence) == (count, pytest.approx(confidence))
    assert collected["reliability"]["count"].all(), "an empty bin has no accuracy"
    [bar] = collected["confidence"].query("variant == 'grafted' and low == 0.95").itertuples()
    assert bar.count == sum(part["histogram"][19] for part in parts) and bar.share == bar.count / 800
    # what a run pooled is what pooling makes of it again
    again = reading.pooled_bins(collected["reliability"]), reading.pooled_bars(collected["confidence"])
    pd.testing.assert_frame_equal(again[0], collected["reliability"].reset_index(drop=True))
    pd.testing.assert_frame_equal(again[1], collected["confidence"])


def test_how_sure_models_are_and_how_much_too_sure():
    cell = {"task": "a", "variant": GRAFTED}
    bins = pd.DataFrame(cell | {"count": [30, 10], "confidence": [0.6, 0.9], "accuracy": [0.5, 1.0]})
    assert reading.overconfidence(bins).above.item() == pytest.approx((30 * 0.1 - 10 * 0.1) / 40)
    for edges, edge, share in (([0.0, 0.5, 0.9, 0.95], 0.9, 0.7), ([0.0, 0.5], 0.5, 0.4)):
        shares = [0.1, 0.2, 0.3, 0.4] if len(edges) == 4 else [0.6, 0.4]
        [sure] = reading.sure_shares(pd.DataFrame(cell | {"low": edges, "share": shares})).itertuples()
        assert (sure.edge, sure.share) == (edge, pytest.approx(share))


def test_the_papers_averages_are_those_that_it_prints():
    def means(place, shots, tasks, *measures):
        rows = PAPER[(PAPER.place == place) & (PAPER.shots == shots) & PAPER.task.isin(tasks)]
        found = itertools.product((FINETUNED, GRAFTED), measures)
        return [100 * rows[rows.variant == variant][measure].mean() for variant, measure in found]

    for tasks, printed in ((ONE, (89.1, 11.0, 87.7, 7.2)), (TWO, (73.3, 25.3, 70.6, 17.5))):
        assert np.allclose(means("Table 2", 64, tasks, "score", "ece"), printed, atol=0.06)
    assert np.isclose(means("Table 2", 4096, ONE, "agreement")[1], 95.2, atol=0.06)
    # what the caption of Table 9 says: drop of the score, and of ECE
    for tasks, drops in ((ONE, (1.2, 3.2)), (TWO, (3.4, 7.3))):
        score, ece, grafted_score, grafted_ece = means("Table 9", 4096, tasks, "score", "ece")
        assert np.allclose([score - grafted_score, ece - grafted_ece], drops, atol=0.06)


def outputs(sets: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What a run of the stage leaves."""
    monkeypatch.setattr("stages.workflow.stage.settings.load_params", lambda *keys: settings(["movies", "sst2"], [1, 2], sets))
    stage.main([])
    return {str(file): file.read_bytes() for folder in ("metrics", "plots") for file in Path(folder).glob("*.*")}


def test_the_stage_writes_every_output_with_other_test_sets_and_without(monkeypatch, capsys):
    Path("stages").mkdir()
    for name in ("report.yaml", "paper.csv"):
        Path("stages", name).symlink_to(ROOT / "stages" / name)
    sets, drawn = {"sst2": ["imdb"]}, ("accuracy", "calibration", "reliability", "confidence", "ood", "frontier")
    names = (*drawn[2:], "scores", "scores_drawn", "masks", "tasks", "leaks", "run")
    wanted = {"metrics/summary.md", "metrics/summary.json", "metrics/summary_claims.json"}
    wanted |= {*(f"plots/{name}.csv" for name in names), *(f"plots/{name}.png" for name in drawn)}  # fmt: skip
    make_cells(["movies", "sst2"], [1, 2], sets)
    made = outputs(sets, monkeypatch)
    assert {*made} == wanted and b"| sst2 \xe2\x86\x92 imdb | 400 |" in made["metrics/summary.md"]
    assert b"342 of 2,000 |\n| *paper* |  |  |  |  | *81.5 (0.7)* |" in made["metrics/summary.md"]
    assert "keep" in capsys.readouterr().out
    # as of a first try on a few rows of one's own, too few for a bin of ten
    make_cells(["movies", "sst2"], [1, 2], rows=3)
    alone = outputs({}, monkeypatch)
    assert {*alone} == wanted and b"Out-of-distribution" not in alone["metrics/summary.md"]
    assert b"nan" not in alone["metrics/summary.md"]


def test_a_single_seed_has_no_deviation_and_a_worthless_model_no_share():
    make_cells(["movies"], [1])
    change("evaluate", "movies", 1, **{name: {"score": 0.0, "retained": None} for name in VARIANTS})
    frames = derived(["movies"], [1])
    assert "grafted_retained" not in headline(SPEC, frames)
    told = markdown(SPEC, frames)
    assert told.splitlines()[2] == NO_RESULT
    assert "nan" not in told and "(" not in next(line for line in told.splitlines() if line.startswith("| movies"))
    assert {claim.verdict for claim in judge(SPEC, frames)} == {"not measurable"}


def test_what_has_no_number_is_left_out_of_a_result():
    spec = SPEC.model_copy(
        update={"sentence": "A graft keeps {kept:percent} %, with an error of {error:percent} %. The largest {most:percent} %."}
    )
    assert result(spec, {"kept": 0.9, "error": 0.1, "most": 1.0}) == "A graft keeps 90.0 %, with an error of 10.0 %. The largest 100.0 %."
    none = Mean(0, None, None)
    assert result(spec, {"kept": 0.9, "error": none, "most": 1.0}) == "A graft keeps 90.0 %. The largest 100.0 %."
    assert result(spec, {"kept": none, "error": 0.1, "most": 1.0}) == "The largest 100.0 %."
    assert result(spec, {"kept": none, "error": 0.1, "most": none}) == NO_RESULT
    figure = Figure(kind="dots", title="Learned keeps {kept:percent}, then {error:percent} %. Movement {most:percent} %", caption="", label="score (%)")
    assert heading(spec, figure, "title", kept=0.9, error=none, most=none) == "Learned keeps 90.0"
    assert heading(spec, figure, "title", kept=none, error=0.1, most=0.5) == "Movement 50.0 %"
    assert heading(spec, figure, "title", kept=none, error=none, most=none) == "Score (%)", "and not n/a %"


def test_a_report_is_the_same_whatever_its_tasks_are_called():
    names, sets = {"movies": "2019", "brands": "null", "bbc": "007"}, {"movies": ["brands"], "bbc": ["movies"]}
    make_cells([*names], SEEDS, sets)
    frames = reading.collect(settings([*names], sets=sets))
    renamed = {name: frame.replace(names) for name, frame in frames.items()}
    reports = []
    for given in (frames, renamed):
        for name, frame in given.items():
            write_text(Path(f"plots/{name}.csv"), frame.to_csv(index=False))
        reports.append(markdown(SPEC, reading.derive(load_frames(Path("plots"), ROOT / "stages/paper.csv"))))
    for name, other in names.items():
        reports[0] = reports[0].replace(name, other)
    # of tasks that are not built in nobody knows how far apart they are
    reports[0] = reports[0].replace("| small |", "| unknown |").replace("| large |", "| unknown |")
    assert reports[0] == reports[1] and "| null | " in reports[1] and "2019 → null" in reports[1]
