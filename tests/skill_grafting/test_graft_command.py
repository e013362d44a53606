"""inspect and predict, and their command lines."""

import json
import re
import shutil
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import StoredMask, write_mask
from skill_grafting.metrics.composition import kind_of, layer_of
from skill_grafting.models.importing import import_model
from skill_grafting.patches.__main__ import COMMANDS, main
from skill_grafting.patches.patch_file import read_patch
from skill_grafting.patches.project import pipeline_scores
from stages.workflow.core import paths
from tests.graft_project import MASK, SELECTED, Project, graft, make_project, refused, write
from tests.pico import PAIRS, TOY, model_settings, random_mask

OTHER = Path("masks/sweep/random/0.01/13/pairs.safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory, make_cell) -> Project:
    project = make_project(tmp_path_factory.mktemp("project"), make_cell("standard"))
    project.store(OTHER, random_mask(project.cell.region, 2000, 5), task="pairs", localizer="random")
    write(project.folder / "data/tables/pairs/card.json", {"task": PAIRS.model_dump()})
    return project


@pytest.fixture
def project(made, monkeypatch) -> Project:
    monkeypatch.chdir(made.folder)
    return made


def output(capsys, *words: object) -> str:
    capsys.readouterr()
    graft(*words)
    return capsys.readouterr().out


def as_json(capsys, *words: object) -> dict:
    """The facts that a command prints as JSON."""
    return json.loads(output(capsys, *words, "--json"))


def test_inspect_counts_every_parameter_once_in_its_layer_and_kind(project, capsys):
    facts, mask = as_json(capsys, "inspect", MASK), project.mask.mask
    for by, place in (("layers", layer_of), ("kinds", kind_of)):
        key = by.removesuffix("s")
        assert sum(row["selected"] for row in facts[by]) == facts["selected"] == SELECTED
        assert sum(row["share"] for row in facts[by]) == pytest.approx(1) == sum(row["chance"] for row in facts[by])
        for row in facts[by]:
            names = [name for name in mask.region.shapes if place(name) == row[key]]
            assert row["parameters"] == sum(prod(mask.region.shapes[name]) for name in names)
            assert row["selected"] == sum(len(mask.indices.get(name, ())) for name in names)
    assert facts["graftable"] == mask.region.size and facts["share_of_model"] == SELECTED / facts["model_parameters"]


def test_the_largest_movements_are_the_largest(project, capsys):
    before, after, region = project.cell.pretrained(), project.cell.finetuned(), project.cell.region
    moved = (region.flatten(after) - region.flatten(before)).abs().sort(descending=True).values
    found = as_json(capsys, "inspect", MASK)["largest"]
    assert [abs(row["after"] - row["before"]) for row in found] == pytest.approx(moved[:5].tolist())
    for row in found:
        assert float(before[row["name"]][tuple(row["place"])]) == row["before"]
        assert float(after[row["name"]][tuple(row["place"])]) == row["after"]


def test_movements_need_the_base_model(project, tmp_path, monkeypatch, capsys):
    file, base = (project.folder / MASK).absolute(), (project.folder / "models/pretrained").absolute()
    monkeypatch.chdir(tmp_path)
    assert as_json(capsys, "inspect", file)["largest"] is None
    assert as_json(capsys, "inspect", file, "--base", base)["largest"] is not None
    shutil.copytree(project.cell.finetuned_folder, tmp_path / "models/pretrained")
    shutil.copyfile(base / "anatomy.json", tmp_path / "models/pretrained/anatomy.json")
    (tmp_path / "models/pretrained/SHA256SUMS").unlink()
    assert as_json(capsys, "inspect", file)["largest"] is None, "the project is about another model"
    assert "was made for pico" in refused(capsys, "inspect", file, "--base", "models/pretrained")


def test_facts_are_shown_in_words_too(project, tmp_path, capsys):
    text, facts = output(capsys, "inspect", MASK), as_json(capsys, "inspect", MASK)
    for line in (f"file: {MASK}", "task: toy", "seed: 13", "localizer: learned", f"selected: {SELECTED}"):
        assert f"{line}\n" in text
    for row in [*facts["layers"], *facts["kinds"]]:
        share = re.escape(f"{row['share']:.4g}")
        assert re.search(
            rf"^ *{row.get('kind', row.get('layer'))} +{row['selected']} +{row['parameters']} +{share}", text, re.M
        )
    assert all(row["name"] in text for row in facts["largest"])
    project.store(tmp_path / "empty", GraftMask.empty(project.cell.region))
    assert "selected: 0\n" in output(capsys, "inspect", tmp_path / "empty")


def test_a_patch_is_read_like_the_mask_it_was_made_of(project, pico_bert, tmp_path, capsys):
    graft("export", MASK, "--as", "patch", "--to", tmp_path / "patch")
    mask, patch = as_json(capsys, "inspect", MASK), as_json(capsys, "inspect", tmp_path / "patch")
    assert (mask.pop("form"), patch.pop("form")) == ("mask", "patch")
    assert patch.pop("fingerprint") == read_patch(tmp_path / "patch").use.fingerprint != mask.pop("fingerprint")
    assert mask.pop("file") != patch.pop("file") and mask == patch
    foreign = as_json(capsys, "inspect", tmp_path / "patch", "--base", pico_bert)
    assert foreign["largest"] == mask["largest"], "what is said of the base's other heads is no JSON"
    shutil.copytree(paths.PRETRAINED, tmp_path / "kept")
    shutil.rmtree(paths.PRETRAINED)
    import_model(pico_bert, model_settings("prompt"), paths.PRETRAINED)
    assert as_json(capsys, "inspect", tmp_path / "patch")["largest"] == mask["largest"], (
        "the project reads it otherwise"
    )
    shutil.rmtree(paths.PRETRAINED)
    shutil.copytree(tmp_path / "kept", paths.PRETRAINED)


def test_a_model_without_a_padding_token_gets_the_one_of_its_tokenizer(project, pico_gpt2, tmp_path):
    anatomy = import_model(pico_gpt2, model_settings("standard"), tmp_path / "gpt2")
    region, before = anatomy.region(["layers"]), load_file(tmp_path / "gpt2/model.safetensors")
    about = {"task": "toy", "model": "gpt2", "fingerprint": region.fingerprint(before)}
    head = {"score.weight": torch.zeros(2, 32)}
    write_mask(tmp_path / "mask", StoredMask(GraftMask.empty(region), {}, head, about))
    graft("export", tmp_path / "mask", "--base", tmp_path / "gpt2", "--to", tmp_path / "to")
    base, exported = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("gpt2", "to"))
    assert base.get("pad_token_id") is None and exported["pad_token_id"] == exported["eos_token_id"] == 0


@pytest.mark.parametrize("mode", ["standard", "prompt", "autoregressive"])
def test_predict_gives_what_the_pipeline_predicts(make_cell, mode, tmp_path, monkeypatch, capsys):
    project = make_project(tmp_path / "project", make_cell(mode))
    monkeypatch.chdir(project.folder)
    for form in ("patch", "model"):
        graft("export", MASK, "--as", form, "--to", tmp_path / form)
    texts = [row["sentence1"] for row in project.cell.rows["test"][:4]]
    expected = project.logits(project.mask)[:4].double().softmax(1)
    for form in ("patch", "model") if mode == "standard" else ("patch",):
        found = as_json(capsys, "predict", tmp_path / form, *texts)
        assert [row["text"] for row in found] == texts
        shares = torch.tensor([[row["probabilities"][label] for label in TOY.labels] for row in found])
        assert torch.allclose(shares.double(), expected, atol=1e-5)
        assert [row["label"] for row in found] == [TOY.labels[number] for number in expected.argmax(1)]
    said = output(capsys, "predict", tmp_path / "patch", texts[0]).splitlines()
    assert re.fullmatch(r"label +negative \(%\) +positive \(%\) +text", said[0])
    best, worst = (f"{100 * share:.1f}" for share in sorted(expected[0].tolist(), reverse=True))
    assert {best, worst} <= {*said[1].split()} and said[1].endswith(texts[0])
    if mode != "standard":
        said = refused(capsys, "predict", tmp_path / "model", texts[0])
        assert "is no classifier; of a language model" in said
    line = refused(capsys, "predict", tmp_path / "patch", *texts, "--second", "one")
    assert line == "--second: 1 texts for 4 first ones"
    assert refused(capsys, "predict", tmp_path / "none", "a") == f"{tmp_path / 'none'}: no such mask or patch"


def test_scores_are_found_beside_the_mask(project):
    assert pipeline_scores(MASK, "toy")["grafted"]["score"] == 0.875
    assert pipeline_scores(OTHER, "pairs") == {}
    row = {"test_set": "pairs", "variant": "grafted", "n": 5, "score": 0.4}
    write(Path("metrics/sweep/random/0.01/13/pairs.json"), {"rows": [row, {**row, "test_set": "other"}]})
    assert pipeline_scores(OTHER, "pairs") == {"grafted": row}
    assert pipeline_scores(Path("/elsewhere/13/toy.safetensors"), "toy") == {}


def test_the_module_runs_and_leaves_with_2_after_a_mistake(command):
    assert command("skill_grafting.patches", "inspect", "a") == (2, "", "graft inspect: a: no such mask or patch\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_defaults_that_there_are(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Undefined" not in text and "default: None" not in text
    assert ("default: movement" in text) == (command == "localize")
