"""model.mode: generative through every stage of the main pipeline, on rows with labels and on prompts and completions."""

import csv
import json
import shlex
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import skill_grafting as sg
from skill_grafting.patches.__main__ import main as graft_command
from skill_grafting.patches.patch_file import PATCH
from skill_grafting.support.io import read_rows
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import predict_tokens
from stages.text.scores.variants import CONTROLS, FINETUNED, GRAFT_TEMPERED, GRAFTED, TEMPERED, VARIANTS
from stages.text.training.taking_over import take_over
from stages.workflow.cells.scoring import read_cell
from stages.workflow.cells.stored import read_task
from stages.workflow.cells.training import open_training
from stages.workflow.core import paths
from tests.dvc_project import SEED_STAGES
from tests.graft_project import parts_of
from tests.pico import finetune_settings, model_settings, runtime, same, toy_rows
from tests.settings_files import lay_out_settings

ROOT = Path(__file__).parents[2]
SEED = 13
WORDS = {"negative": "it was awful and dull", "positive": "good"}
FILM = {"labels": ["negative", "positive"], "metric": "f1"}
FILM |= {"causal_prompt": {"template": "{sentence1} So: {mask}", "verbalizer": WORDS}}
SETTINGS = {
    "tasks": ["film", "told"],
    "seeds": [SEED],
    "task": {"film": FILM, "told": {"labels": None}, "more": {"labels": None}},
    "data": {"source": "local", "k": 16, "test_max": 40},
    "model": {"source": "local", "name": "pico", "mode": "generative", "max_length": 32},
    "runtime": {"threads": 1, "device": "cpu"},
    "finetune": {"optimizer": "adamw", "learning_rates": [0.01], "batch_sizes": [8], "max_steps": 40, "dropout": None},
    "graft": {"sparsity": 0.05},
    "localizer": {"learned": {"steps": 3}},
    "ood": {"sets": {"told": ["more"]}, "test_max": 20},
}


def write_csv(path: Path, columns: list[str], rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def prompts(count: int, seed: int) -> list[list[str]]:
    return [[f"{row['sentence1']}\nSo:", WORDS[row["label"]]] for row in toy_rows(count, seed)]


def write_data() -> None:
    rows = [[row["sentence1"], row["label"]] for row in toy_rows(200, 1)]
    write_csv(Path("data/local/film/train.csv"), ["sentence1", "label"], rows)
    write_csv(Path("data/local/told/train.csv"), ["prompt", "completion"], prompts(200, 1))
    write_csv(Path("data/local/more/train.csv"), ["prompt", "completion"], prompts(100, 5))


def link_report() -> None:
    """What the summary is made by, where it looks for it."""
    Path("stages").mkdir()
    for name in ("report.yaml", "paper.csv"):
        Path("stages", name).symlink_to(ROOT / "stages" / name)


def write_params(changes: dict) -> None:
    lay_out_settings(SETTINGS, changes)


def run(stage: str, *words: object) -> None:
    import_module(f"stages.{stage}").main([str(word) for word in words])


def run_all() -> None:
    run("fetch")
    run("model")
    cells = [("--task", task, "--seed", SEED) for task in SETTINGS["tasks"]]
    for stage in ("sample", "finetune", "reference", "controls", "movement", "mask", "evaluate", "calibration", "ood"):
        for words in [("--seed", SEED)] if stage in SEED_STAGES else cells:
            run(stage, *words)
    run("summary")


@pytest.fixture(scope="module")
def project(tmp_path_factory, pico_llama) -> Path:
    folder = tmp_path_factory.mktemp("generative")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_data()
        link_report()
        write_params({"model": {"root": str(pico_llama)}})
        run_all()
    return folder


@pytest.fixture
def here(project, monkeypatch) -> Path:
    monkeypatch.chdir(project)
    return project


def scores(stage: str, task: str) -> dict:
    return json.loads(paths.record(stage, task, SEED).read_text())


def test_rows_of_prompts_keep_their_line_breaks_and_are_sampled_without_classes(here):
    train = read_rows(paths.sample("told", SEED, "train"))
    assert len(train) == 16 and all(row["sentence1"].endswith("\nSo:") for row in train)
    assert {row["label"] for row in train} == {*WORDS.values()}
    assert len(read_rows(paths.sample("film", SEED, "train"))) == 32, "control: k of each class"
    counts = json.loads(paths.card("told").read_text())["counts"]
    assert read_task("told").labels == [] and counts["train"].keys() == {"rows"}


def test_both_tasks_are_the_same_texts_and_nearly_as_well_learned(here):
    for task in SETTINGS["tasks"]:
        own = scores("evaluate", task)["scores"][task]
        assert own[FINETUNED]["score"] > own["pretrained"]["score"] + 0.3
        assert own[FINETUNED]["perplexity"] < own["pretrained"]["perplexity"] and own[FINETUNED]["agreement"] == 1
        rows = read_rows(paths.sample(task, SEED, "test"))
        assert own[FINETUNED]["n"] == len(rows) < own[FINETUNED]["tokens"]
        for values in own.values():
            assert 0 <= values["score"] <= values["token_accuracy"] <= 1 <= values["perplexity"]


def test_the_exact_match_is_what_the_saved_model_generates(here):
    """An ordinary folder under plain transformers, with neither teacher forcing nor our tokens."""
    model = AutoModelForCausalLM.from_pretrained(paths.finetuned("told", SEED))
    tokenizer = AutoTokenizer.from_pretrained(paths.finetuned("told", SEED))
    rows, hits = read_rows(paths.sample("told", SEED, "test")), 0
    for row in rows:
        inputs = tokenizer(row["sentence1"], return_tensors="pt")
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=12, pad_token_id=0)[0]
        hits += tokenizer.decode(ids[inputs["input_ids"].shape[1] :]) == f" {row['label']}<|end|>"
    assert scores("evaluate", "told")["scores"]["told"][FINETUNED]["score"] == hits / len(rows) and hits > 0


def test_temperatures_are_fitted_to_live_models_and_change_no_token(here):
    for task in SETTINGS["tasks"]:
        record, told = scores("controls", task) | scores("evaluate", task), read_cell(task, SEED).logits[task]
        of_graft = GRAFT_TEMPERED, GRAFTED, "graft_temperature"
        for tempered, plain, name in ((TEMPERED, FINETUNED, "temperature"), of_graft):
            assert np.array_equal(told[tempered]["predicted"], told[plain]["predicted"])
            cooler = np.mean(told[tempered]["confidence"] < told[plain]["confidence"])
            assert cooler == (record[name] > 1) and record[name] != 1
        methods = {row["method"]: row for row in scores("calibration", task)["frontier"]}
        assert methods[GRAFT_TEMPERED]["temperature"] == record["graft_temperature"]


def test_a_checkpoint_from_elsewhere_is_taken_over(here):
    """One that was saved from a causal model, whatever that was fine-tuned on."""
    cell = open_training("told", SEED, model_settings("generative"), runtime())
    taken = take_over(cell, finetune_settings(source="local"), str(paths.finetuned("told", SEED)))
    kept = AutoModelForCausalLM.from_pretrained(paths.finetuned("told", SEED))
    assert same(dict(taken.model.parameters()), dict(kept.named_parameters()))
    training = json.loads((paths.finetuned("told", SEED) / "training.json").read_text())
    assert taken.record["dev_accuracy"] == training["dev_accuracy"]


def test_other_test_sets_are_scored_too(here):
    assert scores("ood", "told")["scores"]["more"][GRAFTED]["n"] == 20 and scores("ood", "film")["scores"] == {}


def test_the_summary_says_what_is_measured(here):
    text = Path("metrics/summary.md").read_text()
    for words in ("Exact match in %", "Correct tokens in %", "Perplexity: mean", "of next-token probabilities"):
        assert words in text, words
    assert "examples per class" in text
    assert "accuracy" not in text.partition("Claims")[0] and "F1" not in text and "†" not in text
    assert "on 86 % of tokens" in text
    table = pd.read_csv("plots/scores.csv")
    assert {"tokens", "token_accuracy", "perplexity"} <= {*table.columns}
    assert {*table.variant} == {*VARIANTS, *CONTROLS} and table.f1.isna().all()
    numbers = json.loads(Path("metrics/summary.json").read_text())
    assert {"finetuned_score", "finetuned_ece", "grafted_perplexity"} <= {*numbers}


@pytest.mark.parametrize("task", SETTINGS["tasks"])
def test_a_patch_of_the_mask_is_the_grafted_model_to_the_bit(here, tmp_path, task):
    mask = paths.mask("learned", task, SEED)
    graft_command(["export", str(mask), "--as", "patch", "--to", str(tmp_path / "patch")])
    graft_command(["apply", str(tmp_path / "patch"), "--base", "models/pretrained", "--to", str(tmp_path / "model")])
    spec, rows = read_task(task), read_rows(paths.sample(task, SEED, "test"))
    told = read_cell(task, SEED).logits[task][GRAFTED]
    reader = LabelModel.load(paths.finetuned(task, SEED), spec, model_settings("generative"), runtime())
    live = sg.Patch.from_pretrained(tmp_path / "patch").apply("models/pretrained")
    applied = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for model in (live, applied):
        reader.put(dict(model.named_parameters()))
        assert np.array_equal(predict_tokens(reader, reader.encode(rows)), told)
    reader.put(dict(AutoModelForCausalLM.from_pretrained("models/pretrained").named_parameters()))
    assert not np.array_equal(predict_tokens(reader, reader.encode(rows)), told), "control"
    card = (tmp_path / "patch/README.md").read_text()
    assert "of completions the exact match" in card and "tokens right" in card
    assert "for no labels in particular" in card


def localize(task: str, to: Path, options: str) -> None:
    both = f"--base models/pretrained --finetuned {paths.finetuned(task, SEED)} --mode generative --sparsity 0.05"
    graft_command(["localize", *both.split(), "--to", str(to), *shlex.split(options)])


def test_localize_takes_prompts_and_completions(here, tmp_path, capsys):
    localize("told", tmp_path / "patch", "--data data/local/told/train.csv --localizer grown")
    said = capsys.readouterr().out
    assert "Read as generative; no labels." in said and "tokens right" in said and "\ngrafted" in said
    _, use = parts_of(tmp_path / "patch" / PATCH)
    assert (use.labels, use.prompt) == ([], None)


def test_localize_takes_other_columns_and_label_words(here, tmp_path, capsys):
    write_csv(tmp_path / "rows.csv", ["answer", "question"], [[*reversed(row)] for row in prompts(60, 1)])
    with pytest.raises(SystemExit):
        localize("film", tmp_path / "a", f"--data {tmp_path / 'rows.csv'}")
    assert "no column 'prompt' and no column 'completion'; the columns are answer, question" in capsys.readouterr().err
    localize("film", tmp_path / "a", f"--data {tmp_path / 'rows.csv'} --columns prompt=question completion=answer")
    words = " ".join(f"'{label}={word}'" for label, word in WORDS.items())
    prompt = f"--prompt '{{sentence1}} So: {{mask}}' --verbalizer {words}"
    localize("film", tmp_path / "b", f"--data data/local/film/train.csv {prompt}")
    assert parts_of(tmp_path / "b" / PATCH)[1].labels == ["negative", "positive"]


# --- Mistakes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> None:
    """An empty folder to stand in."""
    monkeypatch.chdir(tmp_path)


def refused(capsys, stage: str, *words: object) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        run(stage, *words)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "rows", "line"),
    [
        (["prompt", "answer"], [["a", "b"]], "told/train.csv: no column 'completion'; the columns are prompt, answer; name it by data.columns.completion"),
        (["prompt", "completion"], [["it was", "good"], ["it is", " "]], "told/train.csv:3: the completion is empty"),
        (["prompt", "completion"], [[" ", "good"]], "no rows are left in train; dropped: empty text: 1"),
        (["prompt", "completion"], [["it was", "good"], ["it was", "bad"]], "prompt with two completions: 2"),
        (["prompt", "completion"], [[f"it was {n}", "good"] for n in range(9)], ""),
        (["label", "prompt"], [[f"good {n}", f"it was {n}"] for n in range(9)], "columns"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_used_are_told_in_a_line(elsewhere, capsys, columns, rows, line):
    own = {"data": {"columns": {"completion": "label"}}} if line == "columns" else {}
    write_params({"tasks": ["told"], "ood": {"sets": {}}, **own})
    write_csv(Path("data/local/told/train.csv"), columns, rows)
    if line in ("", "columns"):
        run("fetch")  # the control
        return
    assert line in refused(capsys, "fetch")


def test_too_few_rows_name_no_class(elsewhere, capsys):
    write_params({"tasks": ["told"], "ood": {"sets": {}}})
    write_csv(Path("data/local/told/train.csv"), ["prompt", "completion"], prompts(20, 1))
    run("fetch")
    line = refused(capsys, "sample", "--task", "told", "--seed", SEED)
    assert "task told: it has" in line and "training rows, but data.k=16 needs 32" in line and "class" not in line
