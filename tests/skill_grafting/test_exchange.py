"""A graft that leaves the project predicts elsewhere what it predicted here, and comes back only onto its own base."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from skill_grafting.grafting.apply import transplant
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import StoredMask, read_mask, write_mask
from skill_grafting.models.anatomy import CLASSES
from skill_grafting.patches.card import card_text, render
from skill_grafting.patches.patch_file import KEY, names_of_labels, read_patch
from skill_grafting.patches.paths import PATCH
from tests.graft_project import MASK, ROOT, Project, graft, make_project, refused
from tests.pico import TOY, same
from tests.sealed import change_one_value, flip_bit
from tests.skill_grafting.test_mask_file import rewrite

MODES = [mode for mode in CLASSES if mode != "generative"]  # which tests/test_completing.py is about
README = (ROOT / "docs/FORMAT.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Everything a stranger has: torch, safetensors and transformers.  For equal bits, batches are those of the pipeline; the
# vocabulary head runs on all words at all positions, as anybody's does, and not on the label words at one.
STRANGER = """
import json, sys
import torch, transformers

try:
    import stages
except ImportError:
    pass
else:
    sys.exit("this process can import the project")

def predict(model, tokenizer, mode, rows, prompt, labels):
    texts = [row["sentence1"] for row in rows]
    if mode != "standard":
        mask = tokenizer.mask_token or ""
        texts = [prompt["template"].replace("{sentence1}", text).replace("{mask}", mask).rstrip() for text in texts]
        words = [tokenizer(" " + prompt["verbalizer"][label], add_special_tokens=False)["input_ids"][0] for label in labels]
    encoded = [tokenizer(text, truncation=True, max_length=64) for text in texts]
    order = sorted(range(len(rows)), key=lambda row: (len(encoded[row]["input_ids"]), row))
    logits = torch.empty(len(rows), len(labels))
    while order:
        size = next((n for n in range(1, len(order)) if (n + 1) * len(encoded[order[n]]["input_ids"]) > 2048), len(order))
        batch, order = order[:size], order[size:]
        inputs = tokenizer.pad([encoded[row] for row in batch], return_tensors="pt")
        rows_of, at = torch.arange(len(batch)), inputs["attention_mask"].sum(1) - 1
        if mode == "prompt":
            at = (inputs["input_ids"] == tokenizer.mask_token_id).int().argmax(1)
        with torch.inference_mode():
            found = model.eval()(**inputs).logits
        if mode != "standard":
            found = found[rows_of, at][:, words]
        logits[batch] = found
    return logits
"""


@pytest.fixture(scope="module")
def projects(tmp_path_factory, make_cell) -> dict[str, Project]:
    return {mode: make_project(tmp_path_factory.mktemp(f"project-{mode}"), make_cell(mode)) for mode in MODES}


@pytest.fixture
def standard(projects, monkeypatch) -> Project:
    monkeypatch.chdir(projects["standard"].folder)
    return projects["standard"]


@pytest.fixture(scope="module")
def made(projects, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("made") / "patch"
    with pytest.MonkeyPatch.context() as patching:
        patching.chdir(projects["standard"].folder)
        graft("export", MASK, "--as", "patch", "--to", to)
    return to


@pytest.fixture
def patch(made, standard, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "patch"))


def loading(patch: str, base: str) -> str:
    return render("loading.py.j2", patch=patch, base=json.dumps(base))


def elsewhere(script: str, folder: Path) -> str:
    """Run Python where this project can't be imported, with as many threads as here, which bits depend on."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    (folder / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", "script.py"], cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stranger_gets_the_predictions_of_the_pipeline_from_folders_and_patches(projects, tmp_path, monkeypatch):
    script = [STRANGER]
    for mode, project in projects.items():
        monkeypatch.chdir(project.folder)
        graft("export", MASK, "--to", tmp_path / f"{mode}-model")
        graft("export", MASK, "--as", "patch", "--to", tmp_path / f"{mode}-patch")
        shutil.copytree("models/pretrained", tmp_path / f"{mode}-base")
        prompt = TOY.prompt_for(mode)
        task = f"tokenizer, {mode!r}, {project.cell.rows['test']!r}, {prompt and prompt.model_dump()!r}, {TOY.labels!r}"
        script += [
            f"model = transformers.{CLASSES[mode]}.from_pretrained('{mode}-model')",
            f"tokenizer = transformers.AutoTokenizer.from_pretrained('{mode}-model')",
            f"torch.save(predict(model, {task}), 'exported-{mode}')",
            loading(f"{mode}-patch/{PATCH}", f"{mode}-base"),
            f"torch.save(predict(model, {task}), 'patched-{mode}')",
        ]
    elsewhere("\n".join(script), tmp_path)
    for mode, project in projects.items():
        known = project.logits(project.mask)
        exported, patched = (torch.load(tmp_path / f"{what}-{mode}") for what in ("exported", "patched"))
        assert torch.equal(exported, patched), mode
        assert (
            torch.equal(exported, known) if mode == "standard" else torch.allclose(exported, known, rtol=0, atol=1e-5)
        )
        nothing = StoredMask(GraftMask.empty(project.cell.region), {}, project.mask.head, {})
        assert not torch.allclose(known, project.logits(nothing), atol=1e-2), "control"


def test_the_card_of_a_patch_shows_the_same_lines(patch):
    [two, text] = FENCE.findall((patch / "README.md").read_text(encoding="utf-8"))
    assert text == loading(PATCH, "path/to/pico")
    assert two.splitlines()[-1] == 'model = load_graft("path/to/pico", ".")'


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_export_and_a_patch_applied_give_the_same_folder(patch, standard, tmp_path):
    graft("export", MASK, "--to", tmp_path / "exported")
    for given, name in ((patch, "applied"), (patch / PATCH, "again")):
        graft("apply", given, "--base", "models/pretrained", "--to", tmp_path / name)
    exported, applied = files(tmp_path / "exported"), files(tmp_path / "applied")
    assert {*exported} == {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files(tmp_path / "again") == applied
    assert b"87.5" in exported.pop("README.md") and b"87.5" not in applied.pop("README.md"), "scores are the exporter's"
    assert exported == applied
    config = json.loads(exported["config.json"])
    assert config["id2label"] == {"0": "negative", "1": "positive"} and config["label2id"]["positive"] == 1
    assert config["architectures"] == ["BertForSequenceClassification"]
    grafted = load_file(tmp_path / "exported/model.safetensors")
    before, stored = load_file("models/pretrained/model.safetensors"), standard.mask
    expected = {**before, **transplant(standard.cell.pretrained(), stored.values, stored.mask), **stored.head}
    assert same(grafted, expected), "exactly the mask and the head are other than pretrained"
    assert any(not torch.equal(grafted[name], before[name]) for name in before), "control"
    for folder in (patch, tmp_path / "exported"):
        assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "who may read the card may read the rest"


def test_a_base_folder_needn_t_be_the_pipeline_s_own(patch, standard, pico_bert, tmp_path):
    """The folder that the stage `model` started from has other heads and, for tensors, other names."""
    assert {*load_file(pico_bert / "model.safetensors")} != {*load_file("models/pretrained/model.safetensors")}
    graft("apply", patch, "--base", pico_bert, "--to", tmp_path / "foreign")
    graft("apply", patch, "--base", "models/pretrained", "--to", tmp_path / "own")
    assert (tmp_path / "foreign/model.safetensors").read_bytes() == (tmp_path / "own/model.safetensors").read_bytes()


@pytest.mark.parametrize("mode", MODES)
def test_a_card_describes_the_patch(projects, mode, tmp_path, monkeypatch):
    monkeypatch.chdir(projects[mode].folder)
    graft("export", MASK, "--as", "patch", "--to", tmp_path / "patch")
    card = (tmp_path / "patch/README.md").read_text(encoding="utf-8")
    region, whole = projects[mode].cell.region.size, projects[mode].cell.anatomy.parameters
    assert f"400 of {region:,} graftable parameters" in card and f"of the model's {whole:,}" in card
    assert "0 negative, 1 positive" in card and "localizer learned, seed 13" in card
    assert "| grafted | 200 | 87.5 | 97.2 |" in card
    assert read_mask(tmp_path / "patch" / PATCH).about[KEY]["fingerprint"] in card
    prompt = TOY.prompt_for(mode)
    assert (prompt is not None) == ("label words" in card)
    assert prompt is None or (prompt.template in card and "positive: great" in card)


def forged(change: Callable[[dict, dict], object]) -> Callable[[Path], None]:
    """Changed by somebody who knows how to write the digest anew."""
    return lambda file: rewrite(file, change)


def with_config(**changes: object) -> Callable[[Path], None]:
    return forged(lambda _, header: header[KEY]["config"].update(changes))


def with_head(name: str, *shape: int) -> Callable[[Path], None]:
    return forged(lambda tensors, _: tensors.update({f"head/{name}": torch.zeros(shape)}))


EXPORT = "`graft export MASK --as patch --to FOLDER`"
# what damage a mask file may have at all is in tests/test_mask_file.py
REFUSALS = {
    "truncated": (lambda file: file.write_bytes(file.read_bytes()[:-99]), "damaged: "),
    "one bit": (lambda file: flip_bit(file, -1), "damaged: its content is not what was written$"),
    "an old patch": (forged(lambda _, header: header[KEY].update(version=1)), f"format version 1 of a patch, this program reads 3; {EXPORT} makes it anew from its mask$"),
    "no labels": (forged(lambda _, header: header[KEY].pop("labels")), "damaged: patch.labels: this setting is missing$"),
    "a mask": (forged(lambda _, header: header.pop(KEY)), f"is a mask, not a patch; {EXPORT} makes one of it$"),
    "a number as a fingerprint": (forged(lambda _, header: header[KEY].update(fingerprint=3)), "damaged: patch.fingerprint: 3 is not allowed"),
    "gone": (Path.unlink, "no such mask or patch$"),
}  # fmt: skip


FORGERIES = {
    "fewer layers": (with_config(num_hidden_layers=1), "damaged: patch.config: 'num_hidden_layers' is not allowed: should be 'pad_token_id'"),
    "another kind": (with_config(model_type="gpt2"), "damaged: patch.config: 'model_type' is not allowed"),
    "code": (with_config(auto_map={"AutoConfig": "evil.Config"}), "damaged: patch.config: 'auto_map' is not allowed"),
    "a kernel": (with_config(_attn_implementation="evil/kernel"), "damaged: patch.config: '_attn_implementation' is not"),
    "another class": (forged(lambda _, header: header[KEY].update(auto_class="AutoModelForQuestionAnswering")), "damaged: patch.auto_class: 'AutoModelForQuestionAnswering' is not allowed"),
    "padding of no token": (with_config(pad_token_id=10**6), "damaged: patch.config.pad_token_id is 1000000, and the model has"),
    "embeddings as a head": (with_head("bert.embeddings.word_embeddings.weight", 70, 32), "its head of AutoModelForSequenceClassification for 2 labels is "),
    "a layer as a head": (with_head("bert.encoder.layer.0.output.dense.bias", 32), "its head of AutoModelForSequenceClassification for 2 labels is "),
    "a head for three labels": (with_head("classifier.bias", 3), "its head of AutoModelForSequenceClassification for 2 labels is "),
    "half a head": (forged(lambda tensors, _: tensors.pop("head/classifier.bias")), "its head of AutoModelForSequenceClassification for 2 labels is "),
    "indices with a point": (forged(lambda tensors, _: tensors.update({name: part.float() for name, part in tensors.items() if "indices/" in name})), "damaged: bert.*: indices must be one row of whole numbers$"),
}  # fmt: skip
# these two can't harm whoever loads a patch by hand: they are read only where there is a place for them
PASSED_OVER = ("embeddings as a head", "a layer as a head")


def test_the_lines_in_the_readme_load_a_patch_refuse_another_base_and_change_nothing_else(patch, standard, tmp_path):
    file, base = "shared/movies/patch.safetensors", "models/pretrained"
    text = loading(file, base)
    assert len([line for line in text.splitlines() if line]) == 28
    assert text in FENCE.findall(README), "FORMAT.md shows other lines"
    graft("export", MASK, "--to", tmp_path / "whole")
    for folder in (base, "models/other"):
        shutil.copytree(base, tmp_path / folder)
    change_one_value(tmp_path / "models/other", "bert.embeddings.word_embeddings.weight")
    honest = lambda _file: None  # noqa: E731
    cases = {"honest": honest, "another base": honest, "damaged": REFUSALS["one bit"][0]}
    cases |= {case: change for case, (change, _) in FORGERIES.items()}
    for case, change in cases.items():
        shutil.copyfile(patch / PATCH, tmp_path / case)
        change(tmp_path / case)
    script = f"""
import torch
for case in {[*cases]}:
    scope, base = {{}}, "models/other" if case == "another base" else {base!r}
    try:
        exec({text!r}.replace({file!r}, case).replace({base!r}, base), scope)
    except (AssertionError, KeyError) as error:
        print(case, str(error).partition("\\n")[0], sep=": ")
    else:
        torch.save((scope["model"].state_dict(), scope["model"].config.id2label), f"{{case}}.pt")
"""
    stopped = dict(line.split(": ", 1) for line in elsewhere(script, tmp_path).splitlines())
    assert [*stopped] == [case for case in cases if case not in ("honest", *PASSED_OVER)]
    assert stopped["another base"] == "another base model"
    whole = load_file(tmp_path / "whole/model.safetensors")
    for case in ("honest", *PASSED_OVER):
        loaded, labels = torch.load(tmp_path / f"{case}.pt")
        assert same(loaded, whole) and labels == {0: "negative", 1: "positive"}, case


def test_a_strangers_text_is_text_in_a_card_and_on_a_terminal(patch, capsys, tmp_path):
    """No tag, link or line of its own in Markdown, the letters as they are in code, no control characters on a terminal."""
    whole = read_patch(patch)
    changes = {"title": "<script>\n# Free", "labels": ["<img src=x>", "R&D [a](b)"], "base": "R&D_a"}
    changes["config"] = whole.use.config | names_of_labels(changes["labels"], whole.use.auto_class)
    whole = replace(whole, use=whole.use.model_copy(update=changes))
    card = card_text(whole, {"grafted": {"n": 24, "score": 0.5}}, "peft")
    parts = card.partition("\n---\n")[2].split("```")
    prose, code = "".join(parts[::2]), "".join(parts[1::2])
    assert r"1 R&D \[a\](b)" in prose and r"&lt;script>\\n# Free" in prose and not re.search(r"<(?!/?code>)\w", prose)
    assert "'R&D [a](b)'" in code and '"path/to/R&D_a"' in code
    assert "| model | n | score |\n| :-- | --: | --: |\n| grafted | 24 | 50.0 |\n" in prose
    about = {**whole.stored.about, "localizer": "\x1b[2J\u202e", KEY: whole.use.model_dump()}
    write_mask(tmp_path / "odd.safetensors", replace(whole.stored, about=about))
    graft("inspect", tmp_path / "odd.safetensors")
    assert "localizer: \\u001b[2J\\u202e" in capsys.readouterr().out
    line = refused(capsys, "inspect", tmp_path / "\x1b[2J")
    assert "\\u001b[2J: no such mask or patch" in line and "\x1b" not in line


@pytest.mark.parametrize("case", [*REFUSALS, *FORGERIES])
def test_a_damaged_or_forged_patch_is_refused_in_one_line_and_nothing_is_written(patch, case, capsys, tmp_path):
    change, message = (REFUSALS | FORGERIES)[case]
    change(patch / PATCH)
    line = refused(capsys, "apply", patch, "--base", "models/pretrained", "--to", tmp_path / "to")
    assert re.match(f"{re.escape(str(patch / PATCH))}: {message}", line), line


@pytest.mark.parametrize("name", ["bert.encoder.layer.1.output.dense.weight", "bert.embeddings.word_embeddings.weight"])
def test_a_base_model_that_differs_in_one_number_is_refused(patch, name, capsys, tmp_path):
    shutil.copytree("models/pretrained", tmp_path / "base")
    change_one_value(tmp_path / "base", name)
    line = refused(capsys, "apply", patch, "--base", tmp_path / "base", "--to", tmp_path / "to")
    made_for = rf"{re.escape(str(patch / PATCH))}: was made for pico \(fingerprint \w{{12}}\), not for the model in "
    assert re.fullmatch(rf"{made_for}{re.escape(str(tmp_path / 'base'))} \(\w{{12}}\)", line), line


def test_another_kind_of_model_is_refused(patch, pico_llama, capsys, tmp_path):
    line = refused(capsys, "apply", patch, "--base", pico_llama, "--to", tmp_path / "to")
    assert re.search(rf"not for the model in {pico_llama}: bert.* is \[.*\] there and none here$", line), line
    line = refused(capsys, "apply", patch, "--base", tmp_path, "--to", tmp_path / "to")
    assert line == f"{tmp_path}: no model there (config.json is missing); --base names the base model's folder"
    base = shutil.copytree(pico_llama, tmp_path / "base")
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    line = refused(capsys, "apply", patch, "--base", base, "--to", tmp_path / "to")
    assert line.startswith(
        f"{base}: model.safetensors missing; weights are read from safetensors only: pytorch_model.bin"
    )


@pytest.mark.parametrize("name", [PATCH, "model.safetensors"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(patch, pico_bert, name, capsys, monkeypatch):
    opens = Path.open

    def opened(path: Path, *words: object, **more: object) -> object:
        if path.name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opens(path, *words, **more)

    monkeypatch.setattr(Path, "open", opened)
    line = refused(capsys, "inspect", patch, "--base", pico_bert)
    assert line == f"{(patch if name == PATCH else pico_bert) / name}: Permission denied"


@pytest.mark.parametrize("command", [["export", MASK], ["export", MASK, "--as", "patch"]])
def test_nothing_is_overwritten(standard, command, capsys, tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "to/mine").write_text("precious")
    line = refused(capsys, *command, "--to", tmp_path / "to")
    assert line == f"{tmp_path / 'to'}: is there already; remove it or choose another name"
    line = refused(capsys, *command, "--to", tmp_path / "to/mine/to")
    assert line == f"{tmp_path / 'to/mine/to'}: can't be written, as {tmp_path / 'to/mine'} is not a folder"
    (tmp_path / "new.partial").write_text("precious")
    line = refused(capsys, *command, "--to", tmp_path / "new")
    assert line.endswith(f"as {tmp_path / 'new.partial'} is there; remove it or choose another name")
    assert files(tmp_path / "to") == {"mine": b"precious"} and (tmp_path / "new.partial").read_text() == "precious"
