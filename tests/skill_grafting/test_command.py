"""The command `graft`: what inspect, export and predict say, how mistakes are told, and that nothing is overwritten."""

import errno
import json
import os
import re
import shutil
from math import prod
from pathlib import Path

import pytest
import torch

from skill_grafting.grafting.composition import kind_of, layer_of
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.patches.__main__ import COMMANDS, main
from skill_grafting.patches.card import CARD
from skill_grafting.patches.export import pipeline_scores
from skill_grafting.patches.patch_file import PATCH, read_patch
from tests.graft_project import MASK, SELECTED, Project, graft, make_project, refused, write
from tests.pico import TOY

BASE = "models/pretrained"


@pytest.fixture(scope="module")
def made(tmp_path_factory, make_cell) -> Project:
    return make_project(tmp_path_factory.mktemp("project"), make_cell("standard"))


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


def test_facts_are_shown_in_words_too_and_a_patch_is_read_like_its_mask(project, tmp_path, capsys):
    text, mask = output(capsys, "inspect", MASK), as_json(capsys, "inspect", MASK)
    for name in ("file", "task", "found by", "selected"):
        assert re.search(rf"^{name} +{mask[name]}$", text, re.MULTILINE), name
    for row in [*mask["layers"], *mask["kinds"]]:
        share = re.escape(f"{row['share']:.4g}")
        assert re.search(rf"^ *{row.get('kind', row.get('layer'))} +{row['selected']} +{row['parameters']} +{share}", text, re.M)
    project.store(tmp_path / "empty", GraftMask.empty(project.cell.region))
    assert re.search("^selected +0$", output(capsys, "inspect", tmp_path / "empty"), re.MULTILINE)
    graft("export", MASK, "--to", tmp_path / "patch")
    patch = as_json(capsys, "inspect", tmp_path / "patch")
    assert (mask.pop("form"), patch.pop("form")) == ("mask", "patch") and mask.pop("file") != patch.pop("file")
    assert (mask.pop("task"), patch.pop("task")) == ("toy", TOY.title)
    assert mask == patch


@pytest.mark.parametrize("mode", ["standard", "prompt", "autoregressive"])
def test_predict_gives_what_the_pipeline_predicts_and_a_card_describes_the_patch(make_cell, mode, tmp_path, monkeypatch, capsys):
    project = make_project(tmp_path / "project", make_cell(mode))
    monkeypatch.chdir(project.folder)
    patch, model = tmp_path / "patch", tmp_path / "model"
    graft("export", MASK, "--to", patch)
    graft("apply", patch, "--base", BASE, "--to", model)
    texts = [row["sentence1"] for row in project.cell.rows["test"][:4]]
    expected = project.logits(project.mask)[:4].double().softmax(1)
    for folder in (patch, model) if mode == "standard" else (patch,):
        found = as_json(capsys, "predict", folder, *texts)
        assert [row["text"] for row in found] == texts
        shares = torch.tensor([[row["probabilities"][label] for label in TOY.labels] for row in found])
        assert torch.allclose(shares.double(), expected, atol=1e-5)
        assert [row["label"] for row in found] == [TOY.labels[number] for number in expected.argmax(1)]
    said = output(capsys, "predict", patch, texts[0]).splitlines()
    assert re.fullmatch(r"label +negative \(%\) +positive \(%\) +text", said[0])
    assert {f"{100 * share:.1f}" for share in expected[0].tolist()} <= {*said[1].split()} and said[1].endswith(texts[0])
    if mode != "standard":
        assert "is no classifier; of a language model" in refused(capsys, "predict", model, texts[0])
    assert refused(capsys, "predict", patch, *texts, "--second", "one") == "--second: 1 texts for 4 first ones"
    card, prompt, whole = (patch / CARD).read_text(encoding="utf-8"), TOY.prompt_for(mode), project.cell.anatomy.parameters
    wanted = [f"400 of {project.cell.region.size:,} graftable parameters", f"of the model's {whole:,}", "| grafted | 200 | 87.5 | 97.2 |"]
    wanted += ["0 negative, 1 positive", "found by**: learned", read_patch(patch).use.fingerprint]
    wanted += [prompt.template, "positive: great"] if prompt else []
    assert all(words in card for words in wanted) and ("label words" in card) == (prompt is not None)
    assert "87.5" not in (model / CARD).read_text(encoding="utf-8"), "scores are the exporter's"


def test_scores_are_found_beside_the_mask(project):
    other = Path("masks/sweep/random/0.01/13/pairs.safetensors")
    assert pipeline_scores(MASK, "toy")["grafted"]["score"] == 0.875
    assert pipeline_scores(other, "pairs") == pipeline_scores(MASK, "pairs") == {}
    row = {"test_set": "pairs", "variant": "grafted", "n": 5, "score": 0.4}
    write(Path("metrics/sweep/random/0.01/13/pairs.json"), {"rows": [row, {**row, "test_set": "other"}]})
    assert pipeline_scores(other, "pairs") == {"grafted": row}
    assert pipeline_scores(Path("/elsewhere/13/toy.safetensors"), "toy") == {}


# --- Mistakes --------------------------------------------------------------------------------------------------------


def test_a_mask_is_exported_on_its_own_model_inside_its_project(project, tmp_path, monkeypatch, capsys):
    project.store(tmp_path / "elsewhere", project.mask.mask, fingerprint="0" * 64)
    line = refused(capsys, "export", tmp_path / "elsewhere", "--to", tmp_path / "to")
    assert "was made for pico (fingerprint 000000000000), not for pico (" in line
    bare = shutil.copytree(BASE, tmp_path / "bare", ignore=shutil.ignore_patterns("anatomy.json"))
    line = refused(capsys, "export", MASK, "--base", bare, "--to", tmp_path / "to")
    assert line == f"{bare}: a mask is for a model as the stage `model` writes it, and this has no anatomy.json"
    mask, base = MASK.absolute(), Path(BASE).absolute()
    monkeypatch.chdir(tmp_path)
    assert "card.json: no such file" in refused(capsys, "export", mask, "--base", base, "--to", tmp_path / "to")


@pytest.mark.parametrize("command", [["export", MASK], ["apply", "patch", "--base", BASE]])
def test_nothing_is_overwritten(project, command, capsys, tmp_path):
    if not Path("patch").exists():
        graft("export", MASK, "--to", "patch")
    (tmp_path / "to").mkdir()
    (tmp_path / "to/mine").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place, words in {
        "to": "to: is there already; remove it or choose another name", "to/new/..": "to: is there already", "to/mine/to": "to: can't be written: Not a directory",
        "link": "link: is there already", "x" * 256: "can't be written: File name too long",
    }.items():  # fmt: skip
        assert words in refused(capsys, *command, "--to", tmp_path / place), place
    assert (tmp_path / "to/mine").read_text() == "precious"
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "empty").mkdir()
    graft(*command, "--to", tmp_path / "empty")  # the control


def test_a_file_that_may_not_be_read_is_not_called_damaged(project, tmp_path, capsys, monkeypatch):
    opens = Path.open

    def opened(path: Path, *words: object, **more: object) -> object:
        if path.name == PATCH:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opens(path, *words, **more)

    graft("export", MASK, "--to", tmp_path / "patch")
    monkeypatch.setattr(Path, "open", opened)
    assert refused(capsys, "inspect", tmp_path / "patch") == f"{tmp_path / 'patch' / PATCH}: Permission denied"


def test_the_module_runs_and_leaves_with_2_after_a_mistake(command):
    assert command("skill_grafting.patches", "inspect", "a") == (2, "", "graft inspect: a: no such mask or patch\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_defaults_that_there_are(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "default: None" not in text and "%(" not in text
    assert ("default: movement" in text) == (command == "localize")
