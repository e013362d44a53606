"""A model that was fine-tuned elsewhere takes the place of one that is fine-tuned here."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from skill_grafting.checkpoints import folders
from skill_grafting.support.errors import ModelError
from skill_grafting.support.io import write_json
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import predict
from stages.text.tasks.tasks import TaskSpec, resolve_tasks
from stages.text.training.finetuning import TrainingCell
from stages.text.training.taking_over import label_order, take_over
from stages.workflow.cells.training import chosen_point
from stages.workflow.stage import paths
from stages.workflow.stage.sections import problems
from stages.workflow.stage.settings import load_all
from tests.pico import TOY, VOCABULARY, edit_tensors, finetune_settings, set_config
from tests.settings_files import lay_out_settings


@pytest.fixture
def cell(make_cell) -> TrainingCell:
    return make_cell("standard").to_train()


@pytest.fixture
def elsewhere(make_cell, tmp_path) -> Path:
    """The fine-tuned folder of the cell, as somebody else could have saved it."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(make_cell("standard").finetuned_folder, folder)
    (folder / "tokenizer.json").unlink()
    return folder


def taken(cell: TrainingCell, folder: Path):
    return take_over(cell, finetune_settings(source="local", root=str(folder.parent)), folder.name)


def set_labels(folder: Path, *labels: str) -> None:
    set_config(folder, id2label={str(number): label for number, label in enumerate(labels)})


def logits(model: LabelModel, rows: list[dict]) -> torch.Tensor:
    return predict(model, model.encode(rows))


def test_it_predicts_what_the_checkpoint_does(cell, make_cell, elsewhere):
    found = taken(cell, elsewhere)
    rows = make_cell("standard").rows["test"]
    assert torch.equal(logits(found.model, rows), logits(make_cell("standard").load(), rows))
    assert not torch.equal(logits(found.model, rows), logits(make_cell("standard").load("pretrained"), rows)), "control"
    assert (found.record["checkpoint"], found.record["source"]) == ("elsewhere", "local")
    assert not {"chosen", "commit"} & {*found.record}


@pytest.mark.parametrize(("place", "revision"), [("owner/elsewhere", None), ("owner/elsewhere@v2", "v2")])
def test_a_hub_id_is_asked_for_on_the_hub_and_predicts_the_same(
    cell, make_cell, elsewhere, tmp_path, monkeypatch, place, revision
):
    import huggingface_hub

    asked, fetched = [], tmp_path / "snapshots" / "0123abcd"
    shutil.copytree(elsewhere, fetched)
    monkeypatch.setattr(folders, "hub_answers", lambda: True)
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, revision, **_: asked.append((name, revision)) or str(fetched),
    )
    found = take_over(cell, finetune_settings(source="hub"), place)
    rows = make_cell("standard").rows["test"]
    assert asked == [("owner/elsewhere", revision)]
    assert (found.record["checkpoint"], found.record["commit"]) == (place, "0123abcd")
    assert torch.equal(logits(found.model, rows), logits(make_cell("standard").load(), rows))


def test_labels_in_another_order_are_mapped(cell, make_cell, elsewhere):
    set_labels(elsewhere, "Positive", "NEGATIVE")
    names = ("classifier.weight", "classifier.bias")
    edit_tensors(elsewhere, lambda tensors: tensors.update({name: tensors[name].flip(0) for name in names}))
    found, rows = taken(cell, elsewhere), make_cell("standard").rows["test"]
    assert torch.equal(logits(found.model, rows).argmax(1), logits(make_cell("standard").load(), rows).argmax(1))
    assert found.record["labels"] == {"negative": "NEGATIVE", "positive": "Positive"}


def test_labels_by_name():
    assert label_order(TOY, ["positive", "negative"]) == ([1, 0], [])
    assert label_order(TOY, ["LABEL_0", "LABEL_1"]) == ([0, 1], [])
    renamed = TOY.model_copy(update={"relabel": {"pos": "positive", "neg": "negative"}})
    assert label_order(renamed, ["pos", "neg"]) == ([1, 0], [])
    numbered = TOY.model_copy(update={"relabel": {"LABEL_0": "positive", "LABEL_1": "negative"}})
    assert label_order(numbered, ["LABEL_0", "LABEL_1"]) == ([1, 0], [])
    [line] = label_order(TOY, ["negativ", "up"])[1]
    assert "'negativ' (did you mean 'negative'?), 'up' are not those" in line and "task.toy.relabel" in line
    assert "has 3 labels (a, b, c)" in label_order(TOY, ["a", "b", "c"])[1][0]


def set_tensors(folder: Path, **changes: torch.Tensor) -> None:
    edit_tensors(folder, lambda tensors: tensors.update(changes))


BIAS, DECODER = "bert.encoder.layer.1.output.dense.bias", "cls.predictions.decoder.weight"
# the mode, what is done to a folder, and a word of the refusal
REFUSED = [
    ("standard", lambda folder: set_tensors(folder, **{BIAS.replace(".1.", ".2."): torch.zeros(32)}), "bert.encoder.layer.2"),
    ("prompt", lambda folder: set_tensors(folder, **{DECODER: torch.zeros(len(VOCABULARY), 32)}), "ties"),
    ("standard", lambda folder: set_tensors(folder, **{BIAS: torch.full((32,), torch.nan)}), BIAS),
    ("standard", lambda folder: set_config(folder, model_type="llama"), "llama, and the pretrained model's is bert"),
    ("standard", lambda folder: (edit_tensors(folder, lambda tensors: tensors.pop(BIAS)), set_labels(folder, "up", "down")), "1 tensor missing.*'up', 'down'"),
    ("standard", lambda folder: set_config(folder, architectures=None), "names no class"),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "spoil", "word"), REFUSED)
def test_what_the_pretrained_model_could_not_hold_is_refused(make_cell, tmp_path, mode, spoil, word):
    made, folder = make_cell(mode), tmp_path / "elsewhere"
    shutil.copytree(made.finetuned_folder, folder)
    cell = made.to_train()
    if mode == "prompt":  # which computes without
        set_tensors(folder, **{"bert.pooler.dense.bias": torch.zeros(32)})
    taken(cell, folder)  # the control
    spoil(folder)
    with pytest.raises(ModelError, match=word) as caught:
        taken(cell, folder)
    assert "\n" not in str(caught.value)


def test_stages_that_train_as_it_was_trained_refuse_it(project):
    write_json(paths.finetuned("toy", 13) / "training.json", {"task": "toy", "seed": 13, "checkpoint": "elsewhere"})
    said = "elsewhere was fine-tuned elsewhere, so its batch size and steps aren't known"
    with pytest.raises(ModelError, match=said):
        chosen_point("toy", 13)
    write_json(paths.finetuned("toy", 13) / "training.json", {"chosen": {"steps": 3}})
    assert chosen_point("toy", 13) == {"steps": 3}


def test_each_task_and_seed_needs_a_checkpoint(project):
    lay_out_settings()
    values = load_all()
    assert [*problems(values)] == []
    values |= {"finetune": values["finetune"].model_copy(update={"source": "local"})}
    values |= {"tasks": ["movies"], "seeds": [13, 21]}
    needed = "task.movies.checkpoint: finetune.source=local needs one for the seed(s)"
    assert [*problems(values)] == [f"{needed} 13, 21"]
    values["task"] = {"movies": {"checkpoint": {13: "a"}}}
    assert [*problems(values)] == [f"{needed} 21"]
    values["task"] = {"movies": {"checkpoint": "a"}}
    assert [*problems(values)] == []
    spec = resolve_tasks(values["task"])[0]["movies"]
    assert spec.checkpoint_of(5) == "a"


def test_a_card_names_the_checkpoint_of_its_task_alone():
    tasks = resolve_tasks({"movies": {"checkpoint": {13: "a"}}})[0]
    assert TaskSpec.model_validate_json(tasks["movies"].model_dump_json()).checkpoint_of(13) == "a"
    assert TaskSpec.model_validate(json.loads(tasks["movies"].model_dump_json())).checkpoint_of(21) is None
    assert "checkpoint" not in tasks["products"].model_dump(), "the control: a card without one is as ever"
