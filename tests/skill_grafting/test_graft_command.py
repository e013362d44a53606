"""inspect, diff, compose and predict, and their command lines."""

import json
import re
import shutil
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import StoredMask, read_mask, write_mask
from skill_grafting.grafting.region import Region
from skill_grafting.merging.stitch import stitch
from skill_grafting.metrics.composition import kind_of, layer_of
from skill_grafting.models.importing import import_model
from skill_grafting.patches.__main__ import COMMANDS, main
from skill_grafting.patches.patch_file import KEY, read_patch
from skill_grafting.patches.paths import PATCH
from skill_grafting.patches.project import pipeline_scores
from stages.workflow.core import paths
from tests.graft_project import MASK, SELECTED, Project, graft, make_project, refused, write
from tests.pico import PAIRS, TOY, model_settings, random_mask, same

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


def changed(mask: Path, to: Path, **parts: object) -> Path:
    """Another mask file, like the first but for values, head or notes."""
    write_mask(to, replace(read_mask(mask), **parts))
    return to


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
    for line in (f"file: {MASK}", "tasks: toy", "seed: 13", "localizer: learned", f"selected: {SELECTED}"):
        assert f"{line}\n" in text
    for row in [*facts["layers"], *facts["kinds"]]:
        share = re.escape(f"{row['share']:.4g}")
        assert re.search(
            rf"^ *{row.get('kind', row.get('layer'))} +{row['selected']} +{row['parameters']} +{share}", text, re.M
        )
    assert all(row["name"] in text for row in facts["largest"])
    project.store(tmp_path / "empty", GraftMask.empty(project.cell.region))
    assert "selected: 0\n" in output(capsys, "inspect", tmp_path / "empty")
    assert "both 0, iou 0" in output(capsys, "diff", tmp_path / "empty", MASK)
    assert "same_model: True\n" in output(capsys, "diff", MASK, OTHER)


def test_a_patch_is_read_like_the_mask_it_was_made_of(project, pico_bert, tmp_path, capsys):
    graft("export", MASK, "--as", "patch", "--to", tmp_path / "patch")
    mask, patch = as_json(capsys, "inspect", MASK), as_json(capsys, "inspect", tmp_path / "patch")
    assert (mask.pop("form"), patch.pop("form")) == ("mask", "patch")
    assert patch.pop("fingerprint") == read_patch(tmp_path / "patch").use.fingerprint != mask.pop("fingerprint")
    assert mask.pop("file") != patch.pop("file") and mask == patch
    foreign = as_json(capsys, "inspect", tmp_path / "patch", "--base", pico_bert)
    assert foreign["largest"] == mask["largest"], "what is said of the base's other heads is no JSON"
    found = as_json(capsys, "diff", MASK, tmp_path / "patch")
    assert found["same_model"] and found["overlap"]["iou"] == 1
    shutil.copytree(paths.PRETRAINED, tmp_path / "kept")
    shutil.rmtree(paths.PRETRAINED)
    import_model(pico_bert, model_settings("prompt"), paths.PRETRAINED)
    assert as_json(capsys, "inspect", tmp_path / "patch")["largest"] == mask["largest"], (
        "the project reads it otherwise"
    )
    shutil.rmtree(paths.PRETRAINED)
    shutil.copytree(tmp_path / "kept", paths.PRETRAINED)


def test_diff_counts_what_two_masks_share(project, capsys):
    facts = as_json(capsys, "diff", MASK, OTHER)
    a, b = ({*read_mask(path).mask.region_indices().tolist()} for path in (MASK, OTHER))
    found, size = facts["overlap"], project.cell.region.size
    assert (found["both"], found["iou"]) == (len(a & b), pytest.approx(len(a & b) / len(a | b)))
    assert (found["of_first"], found["of_second"]) == (len(a & b) / len(a), len(a & b) / len(b))
    assert found["chance_of_first"] == pytest.approx(len(b) / size)
    assert found["chance_of_second"] == pytest.approx(len(a) / size)
    for measure in ("first", "second", "both"):
        assert sum(row[measure] for row in facts["layers"]) == found[measure]
    back = as_json(capsys, "diff", OTHER, MASK)["overlap"]
    assert (back["of_first"], back["chance_of_first"]) == (found["of_second"], found["chance_of_second"])


def test_diff_reports_other_models_and_other_regions(project, tmp_path, capsys):
    project.store(tmp_path / "elsewhere", project.mask.mask, fingerprint="0" * 64)
    facts = as_json(capsys, "diff", MASK, tmp_path / "elsewhere")
    assert not facts["same_model"] and facts["overlap"]["iou"] == 1
    small = GraftMask(Region({"bert.encoder.layer.0.x": (4,)}), {})
    write_mask(tmp_path / "small", StoredMask(small, {}, {}, project.mask.about))
    facts = as_json(capsys, "diff", MASK, tmp_path / "small")
    assert facts["same_model"] is facts["overlap"] is facts["layers"] is None


@pytest.mark.parametrize("rule", ["mean", "sum", "sequence", "largest"])
def test_compose_stitches_and_keeps_a_head_for_each_task(project, rule, tmp_path, capsys):
    line = output(capsys, "compose", MASK, OTHER, "--rule", rule, "--to", tmp_path / "both")
    (tmp_path / "new").touch()
    assert (tmp_path / "both").stat().st_mode == (tmp_path / "new").stat().st_mode, "as the umask has it"
    parts, composed = [read_mask(path) for path in (MASK, OTHER)], read_mask(tmp_path / "both")
    expected = stitch(parts, project.cell.pretrained(), rule)
    assert composed.mask.equals(expected.mask) and same(composed.values, expected.values)
    assert f"toy + pairs by {rule}" in line and f"{composed.mask.selected:,} of" in line
    assert as_json(capsys, "inspect", tmp_path / "both")["tasks"] == ["toy", "pairs"]
    assert {name.partition(":")[0] for name in composed.head} == {"toy", "pairs"}


def three_labels(mask: Path, to: Path) -> Path:
    """The same mask with a head for three labels."""
    head = {name: torch.cat([values, values[:1]]) + 1 for name, values in read_mask(mask).head.items()}
    return changed(mask, to, head=head)


def test_a_composed_mask_is_exported_for_one_of_its_tasks(project, tmp_path, capsys):
    other, both = three_labels(OTHER, tmp_path / "other"), tmp_path / "both"
    graft("compose", MASK, other, "--rule", "mean", "--to", both)
    line = refused(capsys, "export", both, "--to", tmp_path / "to")
    assert line == f"{both}: serves 2 tasks; choose --task, one of toy, pairs"
    line = refused(capsys, "export", both, "--task", "tou", "--to", tmp_path / "to")
    assert line.endswith("doesn't serve the task 'tou' (did you mean 'toy'?); it has toy, pairs")
    weights, heads = {}, {"toy": project.mask.head, "pairs": read_mask(other).head}
    for task, head in heads.items():
        for form in ("model", "patch"):
            graft("export", both, "--task", task, "--as", form, "--to", tmp_path / task / form)
        assert as_json(capsys, "inspect", tmp_path / task / "patch")["tasks"] == [task]
        weights[task] = load_file(tmp_path / task / "model/model.safetensors")
        assert same({name: weights[task].pop(name) for name in head}, head)
    assert same(weights["toy"], weights["pairs"])
    config = json.loads((tmp_path / "pairs/model/config.json").read_text())
    assert list(config["id2label"].values()) == PAIRS.labels


def test_compose_refuses_what_can_t_be_one(project, tmp_path, capsys):
    graft("compose", MASK, OTHER, "--rule", "sum", "--to", tmp_path / "both")
    changed(MASK, tmp_path / "twice", head={name: values + 1 for name, values in project.mask.head.items()})
    project.store(tmp_path / "elsewhere", project.mask.mask, fingerprint="0" * 64)
    for others, words in (
        ([], f"{MASK}: is only one mask; name two or more to compose"),
        (
            ["../" + tmp_path.name + "/elsewhere", "elsewhere"],
            f"{tmp_path / 'elsewhere'}: is named twice; its values would count twice",
        ),
        (["both"], f"{tmp_path / 'both'}: is composed itself, of toy, pairs; compose its parts at once"),
        (["twice"], f"{tmp_path / 'twice'}: its head differs from another one of that task"),
        (
            ["elsewhere"],
            f"{tmp_path / 'elsewhere'}: was made for pico (fingerprint 000000000000), not for the model in models/pretrained (",
        ),
    ):
        files = [tmp_path / name for name in others]
        assert words in refused(capsys, "compose", MASK, *files, "--rule", "sum", "--to", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_patches_of_one_task_that_are_read_in_two_ways_are_not_composed(project, tmp_path, capsys):
    for part in ("first", "same", "other"):
        graft("export", MASK, "--as", "patch", "--to", tmp_path / part)
    graft("compose", tmp_path / "first", tmp_path / "same", "--to", tmp_path / "both")  # the control
    stored = read_mask(tmp_path / "other" / PATCH)
    use = {**stored.about[KEY], "max_length": 7}
    write_mask(tmp_path / "other" / PATCH, replace(stored, about={**stored.about, KEY: use}))
    files = [tmp_path / part for part in ("first", "other")]
    line = refused(capsys, "compose", *files, "--to", tmp_path / "to")
    ours, theirs = files[1] / PATCH, files[0] / PATCH
    assert line == f"{ours}: is of the task toy, as {theirs} is, but with another max_length; compose one of them"
    assert not (tmp_path / "to").exists()


@pytest.fixture
def bare(project, tmp_path) -> Path:
    """The base model as somebody else has it."""
    shutil.copytree(paths.PRETRAINED, tmp_path / "bare", ignore=shutil.ignore_patterns("anatomy.json"))
    return tmp_path / "bare"


def test_what_was_composed_of_patches_is_exported_without_the_project(bare, tmp_path, monkeypatch, capsys):
    other = three_labels(OTHER, tmp_path / "other")
    for mask, part in ((MASK, "toy"), (other, "pairs")):
        graft("export", mask, "--as", "patch", "--to", tmp_path / part)
    graft("compose", MASK, other, "--to", tmp_path / "masks")
    line = refused(capsys, "compose", MASK, OTHER, "--to", tmp_path / "to", "--base", bare)
    assert line.startswith(
        f"{bare}: a mask is for a model as the stage `model` writes it, and this has no anatomy.json"
    )
    for form in ("patch", "model"):
        graft("export", tmp_path / "masks", "--task", "pairs", "--as", form, "--to", tmp_path / f"{form} here")
    monkeypatch.chdir(tmp_path)
    graft("compose", "toy", "pairs", "--to", "both", "--base", "bare")
    assert read_mask(Path("both")).mask.equals(read_mask(Path("masks")).mask)
    assert refused(capsys, "export", "both", "--to", "to") == "both: serves 2 tasks; choose --task, one of toy, pairs"
    for form in ("patch", "model"):
        graft("export", "both", "--task", "pairs", "--as", form, "--to", f"{form} there", "--base", "bare")
    [here, there] = (read_mask(tmp_path / f"patch {place}/patch.safetensors") for place in ("here", "there"))
    assert here.about == there.about and here.mask.equals(there.mask) and same(here.head, there.head)
    assert same(*(load_file(f"model {place}/model.safetensors") for place in ("here", "there")))
    graft("compose", "patch there", "toy", "--to", "again", "--base", "bare")
    assert as_json(capsys, "inspect", "again")["tasks"] == ["pairs", "toy"], "a patch taken out is one of one task"


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
    for form in ("patch", "model", "delta"):
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
    wrong = "holds a difference from its base model" if mode == "standard" else "is no classifier; of a language model"
    assert wrong in refused(capsys, "predict", tmp_path / "delta", texts[0])
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
    assert pipeline_scores(MASK, "pairs") == {}, "a composed mask has no scores of its own"


def test_the_module_runs_and_leaves_with_2_after_a_mistake(command):
    assert command("skill_grafting.patches", "diff", "a", "b") == (2, "", "graft diff: a: no such mask or patch\n")


def test_a_mask_that_names_no_task_is_no_part_of_others(project, tmp_path, capsys):
    about = {name: value for name, value in project.mask.about.items() if name != "task"}
    for number, more in enumerate(({}, {"task": None})):
        nameless = changed(MASK, tmp_path / f"nameless{number}", about=about | more)
        said = refused(capsys, "compose", MASK, nameless, "--to", tmp_path / "both")
        assert said == f"{nameless}: names no task, by which its part would be found again"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_defaults_that_there_are(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Undefined" not in text and "default: None" not in text
    assert ("default: movement" in text) == (command == "localize")
