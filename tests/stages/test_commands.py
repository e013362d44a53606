"""What the pipeline adds to the library's patches: `patch` notes task, prompt and scores in one, and `predict` reads texts by them."""

import json
from pathlib import Path

import pytest
import torch
import transformers as t

import skill_grafting as sg
from skill_grafting.grafting.mask_files import StoredMask, write_mask
from skill_grafting.models.loading import class_name
from skill_grafting.patches.card import CARD
from skill_grafting.patches.patch_file import PATCH, read_patch
from skill_grafting.support.errors import GraftError, MaskError, ModelError
from stages.commands import predict
from stages.commands.patch import notes_of, scores_of
from stages.workflow.cells.cells import GraftCell
from tests.graft_project import MASK, Project, as_patch, graft, make_project, write
from tests.pico import TOY, set_config

BASE, MODES = "models/pretrained", ["standard", "prompt", "autoregressive"]


@pytest.fixture(params=MODES)
def project(request, make_cell, tmp_path, monkeypatch) -> Project:
    made = make_project(tmp_path / "project", make_cell(request.param))
    monkeypatch.chdir(made.folder)
    return made


@pytest.fixture
def standard(make_cell, tmp_path, monkeypatch) -> Project:
    made = make_project(tmp_path / "project", make_cell("standard"))
    monkeypatch.chdir(made.folder)
    return made


def predicted(capsys, *words: object) -> str:
    capsys.readouterr()
    predict.main([str(word) for word in words])
    return capsys.readouterr().out


def test_a_patch_predicts_what_the_pipeline_does_and_its_card_shows_the_notes(project, tmp_path, capsys):
    mode, patch, model = project.cell.mode, as_patch(MASK, tmp_path / "patch"), tmp_path / "model"
    graft("apply", patch, "--base", BASE, "--to", model)
    texts = [row["sentence1"] for row in project.cell.rows["test"][:4]]
    expected = project.logits(project.mask)[:4].double().softmax(1)
    for folder in (patch, model) if mode == "standard" else (patch,):
        found = json.loads(predicted(capsys, folder, *texts, "--json"))
        shares = torch.tensor([[row["probabilities"][label] for label in TOY.labels] for row in found])
        assert torch.allclose(shares.double(), expected, atol=1e-5) and [row["text"] for row in found] == texts
        assert [row["label"] for row in found] == [TOY.labels[number] for number in expected.argmax(1)]
    header, row = predicted(capsys, patch, texts[0]).splitlines()
    assert header.split() == ["label", "negative", "(%)", "positive", "(%)", "text"] and row.endswith(texts[0])
    assert {f"{100 * share:.1f}" for share in expected[0].tolist()} <= {*row.split()}
    card, prompt = (patch / CARD).read_text(encoding="utf-8"), TOY.prompt_for(mode)
    assert '"retained": 0.972' in card and (prompt is None or prompt.template in card)
    assert ("those of the base model's class" in card) == ("**labels**" not in card) == (mode != "standard")
    if mode != "standard":
        with pytest.raises(ModelError, match="is no classifier; of a language model give the patch"):
            predict.main([str(model), texts[0]])


def test_the_pipeline_makes_the_patch_of_python(project, tmp_path):
    cell, mode = project.cell, project.cell.mode
    opened = GraftCell.of(cell.load(), 13, ["layers"], cell.pretrained_folder)
    mask = sg.localize(opened.pretrained, opened.finetuned, sparsity=0.02)
    header = {**project.mask.about, "found": mask.record}
    write_mask(project.folder / MASK, StoredMask(mask, opened.values_at(mask), opened.head, header))
    as_patch(MASK, tmp_path / "pipeline")
    kind = getattr(t, class_name(cell.load().model.config.model_type, mode))
    labels = {"id2label": dict(enumerate(TOY.labels))} if mode == "standard" else {}
    base, tuned = (kind.from_pretrained(place, **labels) for place in (cell.pretrained_folder, cell.finetuned_folder))
    again, use = sg.localize(base, tuned, sparsity=0.02, parameters="layers"), read_patch(tmp_path / "pipeline").use
    notes = notes_of(TOY, mode, MASK).model_dump(exclude_defaults=True)
    origin = {"name": use.base, "source": use.source, "revision": use.revision}
    patch = sg.Patch.of(base, tuned, again, title=TOY.title, notes=notes, heads=[*opened.head] or None, **origin)
    patch.save_pretrained(tmp_path / "python")
    assert (tmp_path / "python" / PATCH).read_bytes() == (tmp_path / "pipeline" / PATCH).read_bytes()
    assert again == mask != sg.localize(base, tuned, sparsity=0.01, parameters="layers"), "control"


def test_scores_are_found_beside_the_mask(standard):
    other = Path("masks/sweep/random/0.01/13/pairs.safetensors")
    assert scores_of(MASK, "toy")["grafted"]["score"] == 0.875
    assert scores_of(other, "pairs") == scores_of(MASK, "pairs") == scores_of(Path("/elsewhere/13/toy.safetensors"), "toy") == {}
    row = {"test_set": "pairs", "variant": "grafted", "n": 5, "score": 0.4}
    write(Path("metrics/sweep/random/0.01/13/pairs.json"), {"rows": [row, {**row, "test_set": "other"}]})
    assert scores_of(other, "pairs") == {"grafted": row}


def no_labels(patch: Path) -> list[str]:
    found = sg.Patch.from_pretrained(patch)
    found.use = found.use.model_copy(update={"labels": [], "config": {}})
    found.save_pretrained(patch)
    return [str(patch), "text"]


def with_notes(**notes: object):
    def noted(patch: Path) -> list[str]:
        found = sg.Patch.from_pretrained(patch)
        found.use = found.use.model_copy(update={"notes": notes})
        found.save_pretrained(patch)
        return [str(patch), "text"]

    return noted


def whole(**config: object):
    def changed(patch: Path) -> list[str]:
        graft("apply", patch, "--base", BASE, "--to", patch / "whole")
        set_config(patch / "whole", **config)
        return [str(patch / "whole"), "text"]

    return changed


REFUSED = [
    (lambda patch: [str(patch), "one", "two", "--second", "one"], GraftError, "1 texts for 2 first ones"),
    (no_labels, MaskError, "no labels to choose among"),
    (with_notes(prompt={"template": "no place"}), MaskError, "notes.prompt"),
    (with_notes(max_length="long"), MaskError, "notes.max_length: 'long' is not allowed"),
    (whole(id2label={"0": "", "1": "good"}), ModelError, "none is empty"),
    (whole(id2label={"0": " bad", "1": "good"}), ModelError, "a space around it"),
    (whole(problem_type="regression"), ModelError, "numbers and no labels'"),
]


@pytest.mark.parametrize(("change", "kind", "word"), REFUSED)
def test_what_has_no_labels_to_choose_among_is_refused(standard, tmp_path, change, kind, word):
    patch = as_patch(MASK, tmp_path / "patch")
    predict.main([str(patch), "text"])  # the control
    with pytest.raises(kind, match=word):
        predict.main(change(patch))


def test_a_mask_of_another_model_or_task_is_no_patch_of_this_project(standard, tmp_path):
    other = standard.store(tmp_path / "elsewhere", standard.mask.mask, fingerprint="0" * 64)
    with pytest.raises(MaskError, match=r"was made for pico \(fingerprint 000000000000\), not for pico \("):
        as_patch(other, tmp_path / "to")
    other = standard.store(tmp_path / "elsewhere", standard.mask.mask, task="another")
    with pytest.raises(GraftError, match="card.json: no such file"):
        as_patch(other, tmp_path / "to")
    assert not (tmp_path / "to").exists()
