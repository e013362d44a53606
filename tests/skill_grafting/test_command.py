"""The command `graft`: what inspect says, how mistakes are told, and that nothing is overwritten."""

import errno
import gc
import json
import os
import resource
from math import prod
from pathlib import Path
from shutil import copytree

import pytest
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification

from skill_grafting.grafting.composition import kind_of, layer_of
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.localizers.registry import NAMES
from skill_grafting.localizers.registry import kind_of as method_of
from skill_grafting.patches.__main__ import COMMANDS, METHODS, main
from skill_grafting.patches.patch_file import PATCH
from tests.graft_project import MASK, SELECTED, Project, as_patch, graft, make_project, refused
from tests.pico import TOY, save_with_words, small_config

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


def test_a_command_that_the_limit_of_memory_ends_says_so_in_one_line(tmp_path, capsys):
    base = save_with_words(BertForSequenceClassification(small_config("bert", vocab_size=2**18)), tmp_path / "base")
    tuned = copytree(base, tmp_path / "tuned")
    values = load_file(tuned / "model.safetensors")
    save_file({name: one + 1 for name, one in values.items()}, tuned / "model.safetensors", {"format": "pt"})
    (tmp_path / "recipe.yaml").write_text(f"{{base_model: {base}, merge_method: linear, models: [{{model: {tuned}, parameters: {{weight: 1}}}}]}}")
    calls = [
        ["localize", "--base", base, "--finetuned", tuned, "--sparsity", "0.1"], ["apply", tmp_path / "localize", "--base", base], ["merge", tmp_path / "recipe.yaml"]
    ]  # fmt: skip
    for words in calls:
        graft(*words, "--to", tmp_path / words[0])  # the control
    limits, said = resource.getrlimit(resource.RLIMIT_AS), []
    for words in calls:
        gc.collect()  # what earlier tests and calls left behind would be room for this one
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        try:
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**23, limits[1]))
            said.append(refused(capsys, *words, "--to", tmp_path / "again"))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
    assert all("there is not enough memory" in line for line in said), said


def test_inspect_counts_every_parameter_once_and_reads_a_patch_like_its_mask(project, tmp_path, capsys):
    facts, mask = json.loads(output(capsys, "inspect", MASK, "--json")), project.mask.mask
    for by, place in (("layers", layer_of), ("kinds", kind_of)):
        assert sum(row["selected"] for row in facts[by]) == facts["selected"] == SELECTED
        assert sum(row["share"] for row in facts[by]) == pytest.approx(1) == sum(row["chance"] for row in facts[by])
        for row in facts[by]:
            names = [name for name in mask.region.shapes if place(name) == row[by.removesuffix("s")]]
            assert row["parameters"] == sum(prod(mask.region.shapes[name]) for name in names)
            assert row["selected"] == sum(len(mask.indices.get(name, ())) for name in names)
    assert facts["graftable"] == mask.region.size and facts["share_of_model"] == SELECTED / facts["model_parameters"]
    patch = json.loads(output(capsys, "inspect", as_patch(MASK, tmp_path / "patch"), "--json"))
    differs = {name: (facts[name], patch[name]) for name in facts if facts[name] != patch[name]}
    assert differs.pop("form") == ("mask", "patch") and differs.pop("title") == ("toy", TOY.title)
    assert differs.keys() == {"file"}
    text = output(capsys, "inspect", MASK).splitlines()
    kinds = text[-len(facts["kinds"]) - 1 :]
    assert f"title             {facts['title']}" in text and kinds[0].startswith("kind ") and len({*map(len, kinds)}) == 1
    project.store(tmp_path / "empty", GraftMask.empty(project.cell.region))
    assert "\nselected          0\n" in output(capsys, "inspect", tmp_path / "empty")


def test_nothing_is_overwritten(project, capsys, tmp_path):
    command = "apply", as_patch(MASK, tmp_path / "patch"), "--base", BASE
    (tmp_path / "to").mkdir()
    (tmp_path / "to/mine").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place, word in {
        "to": "is there already; remove it", "to/new/..": "is there already", "to/mine/to": "Not a directory", "link": "is there already", "x" * 256: "name too long",
    }.items():  # fmt: skip
        assert word in refused(capsys, *command, "--to", tmp_path / place), place
    assert (tmp_path / "to/mine").read_text() == "precious" and (tmp_path / "link").is_symlink()
    (tmp_path / "empty").mkdir()
    graft(*command, "--to", tmp_path / "empty")  # the control


MISTAKES = [
    (["localize", "--sparsity", "2"], "--sparsity: 2 should be a number above 0 and at most 1"),
    (["localize", "--localizer", "movemnt"], "did you mean 'movement'"),
    (["localize", "--localizer", "learned"], "--localizer: 'learned' is none of bias, "),
    (["localize", "--region", "layer"], "did you mean 'layers'"),
    (["localize", "--seed", "-1"], "--seed"),
    (["inspect", "none"], "none: no such mask"),
    (["inspect", "\x1b[2J"], "\\u001b[2J: no such mask"),
    (["apply", MASK, "--base", BASE, "--to", "to"], "is a mask, not a patch"),
    (["apply", "none/none/none", "--base", BASE, "--to", "to"], "no such mask"),
    (["export", MASK, "--to", "to"], "the following arguments are required: --base"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_one_line(project, capsys, words, said):
    assert said in refused(capsys, *words)


def test_a_file_that_may_not_be_read_is_not_called_damaged(project, tmp_path, capsys, monkeypatch):
    patch, opens = as_patch(MASK, tmp_path / "patch"), os.open

    def opened(path: object, *more: object) -> int:
        if Path(str(path)).name == PATCH:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opens(path, *more)

    monkeypatch.setattr(os, "open", opened)
    assert refused(capsys, "inspect", patch) == f"{patch / PATCH}: can't be read: Permission denied"


def test_the_module_runs_and_leaves_with_2_after_a_mistake(command):
    assert command("skill_grafting.patches", "inspect", "a") == (2, "", "graft inspect: a: no such mask or patch\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_defaults_that_there_are(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "default: None" not in text and "%(" not in text
    assert ("default: movement" in text) == (command == "localize")


def test_the_command_has_the_methods_that_look_at_weights_alone():
    assert [*METHODS] == [name for name in NAMES if not method_of(name).needs_model]
