"""The patch between any two checkpoints: found tensor by tensor, in their own dtype, and refused in one line where it can't be."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    XLMRobertaConfig,
)

import skill_grafting as sg
from skill_grafting import read_pair
from skill_grafting.patches.__main__ import METHODS
from skill_grafting.patches.card import render
from skill_grafting.patches.making import patch_between
from skill_grafting.patches.patch import Patch
from skill_grafting.patches.patch_file import PATCH, PatchContent, read_patch
from skill_grafting.support.errors import GraftError
from skill_grafting.support.io import write_text
from tests.graft_project import graft
from tests.graft_project import refused as graft_refused
from tests.pico import edit_tensors, save_with_words, set_config

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LABELS = {"0": "negative", "1": "positive"}
WORDS = "bert.embeddings.word_embeddings.weight"
BIAS = "bert.encoder.layer.1.output.dense.bias"


@pytest.fixture(scope="module")
def tuned(pico_bert, tmp_path_factory) -> Path:
    """A classifier on the pico BERT that has moved everywhere, saved by transformers without a tokenizer."""
    folder = tmp_path_factory.mktemp("tuned")
    names = {int(number): name for number, name in LABELS.items()}
    model = AutoModelForSequenceClassification.from_pretrained(pico_bert, id2label=names)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def pair(pico_bert, tuned, tmp_path) -> list[Path]:
    """Both folders, for a test to change."""
    return [Path(shutil.copytree(folder, tmp_path / name)) for folder, name in ((pico_bert, "base"), (tuned, "tuned"))]


def localize(base: Path | str, tuned: Path | str, to: Path, options: str = "") -> None:
    graft("localize", "--base", base, "--finetuned", tuned, "--to", to, *shlex.split(options))


def refused(capsys, base: Path | str, tuned: Path | str, to: Path, options: str = "") -> str:
    """The line with which it refuses; nothing is written."""
    return graft_refused(capsys, "localize", "--base", base, "--finetuned", tuned, "--to", to, *shlex.split(options))


def moved(folder: Path, to: Path) -> Path:
    """A copy of a checkpoint that was moved everywhere."""
    shutil.copytree(folder, to)
    edit_tensors(to, lambda tensors: [values.add_(0.1 * torch.randn(values.shape)) for values in tensors.values()])
    return to


def loaded(patch: Path, base: Path) -> dict[str, Tensor]:
    """The tensors that the lines of FORMAT.md make of a patch."""
    scope: dict = {}
    exec(render("loading.py.j2", patch=patch / PATCH, base=json.dumps(str(base))), scope)
    return scope["weights"]


@pytest.mark.parametrize("name", METHODS)
def test_a_localizer_finds_what_it_finds_in_memory(pico_bert, tuned, tmp_path, name):
    localize(pico_bert, tuned, tmp_path / "patch", f"--sparsity 0.05 --localizer {name} --region layers embeddings")
    mask = read_patch(tmp_path / "patch").mask
    before, after = ({name: load_file(folder / WEIGHTS)[name] for name in mask.region.shapes} for folder in (pico_bert, tuned))
    assert mask == sg.localize(before, after, sparsity=0.05, method=name)
    other = "random" if name in ("movement", "lota") else "movement"
    assert mask != sg.localize(before, after, sparsity=0.05, method=other), "control"


def test_several_sizes_give_the_patches_of_single_ones_and_how_much_each_holds(pico_bert, tuned, tmp_path, capsys):
    localize(pico_bert, tuned, tmp_path / "all", "--sparsity 1.0 0.01 0.010000001 --title movies")
    said = capsys.readouterr().out
    held = re.findall(r"^([\d.]+) % of the region's squared movement", said, re.MULTILINE)
    outside, most = re.search(r"as it was pretrained: ([\d.]+ % of all squared movement), most of it in ([\w.]+); --region all", said).groups()
    card = (tmp_path / "all/1/README.md").read_text().replace("\\", "")
    assert f"{outside}, most of it in <code>{most}</code>" in card and most == WORDS
    assert len(held) == 3 and 1 < float(held[0]) < 50 and held[2] == "100.0"
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["0.01", "0.010000001", "1"]
    localize(pico_bert, tuned, tmp_path / "alone", "--sparsity 0.01 --title movies")
    for file in (PATCH, "README.md"):
        assert (tmp_path / "all/0.01" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
    assert read_patch(tmp_path / "alone").use.title == "movies"


def test_tensors_that_no_model_of_the_class_reads_are_reported(pair, tmp_path, capsys):
    """An adapter that was never merged, say: the graft can't carry what it adds."""
    base, finetuned = pair
    localize(base, finetuned, tmp_path / "patch", "--sparsity 0.02")
    assert "Not read" not in capsys.readouterr().out, "control"
    name = "bert.encoder.layer.0.attention.self.query.lora_A.weight"
    save_file(load_file(finetuned / WEIGHTS) | {name: torch.ones(2, 8)}, finetuned / WEIGHTS, {"format": "pt"})
    localize(base, finetuned, tmp_path / "other", "--sparsity 0.02")
    assert f"Not read, as no model of its class computes with it: {name} of {finetuned}." in capsys.readouterr().out


def test_a_place_that_is_taken_while_this_runs_stays(pico_bert, tuned, tmp_path, capsys, monkeypatch):
    def meanwhile(*arguments: object, **more: object) -> PatchContent:
        write_text(tmp_path / "empty/notes", "mine")
        return patch_between(*arguments, **more)

    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("skill_grafting.patches.localize.patch_between", meanwhile)
    assert "exists by now" in refused(capsys, pico_bert, tuned, tmp_path / "empty")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["notes"]


def test_embeddings_that_the_vocabulary_head_shares_are_those_of_the_backbone(tmp_path):
    base, size = tmp_path / "base", {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = XLMRobertaConfig(vocab_size=150, hidden_size=16, intermediate_size=32, pad_token_id=0, **size)
    save_with_words(AutoModelForMaskedLM.from_config(config), base)
    tuned = moved(base, tmp_path / "tuned")
    localize(base, tuned, tmp_path / "patch", "--sparsity 1 --region embeddings")
    before, after = (load_file(folder / WEIGHTS) for folder in (base, tuned))
    live, by_hand = Patch.from_pretrained(tmp_path / "patch").apply(base).state_dict(), loaded(tmp_path / "patch", base)
    for name in before:
        wanted = (after if ".embeddings." in name else before)[name]
        assert torch.equal(live[name], wanted) and torch.equal(by_hand[name], wanted), name
    assert torch.equal(by_hand["lm_head.decoder.weight"], after["roberta.embeddings.word_embeddings.weight"])


# --- Refusals ---------------------------------------------------------------------------------------------------------


def config(**changes: object) -> Callable[[Path], None]:
    return lambda folder: set_config(folder, **changes)


def tensors(edit: Callable[[dict], object]) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder, edit)


def lose(word: str) -> Callable[[Path], None]:
    return tensors(lambda parts: [parts.pop(name) for name in [*parts] if word in name])


def quantise(folder: Path) -> None:
    packed = {name: v.to(torch.int8) for name, v in load_file(folder / WEIGHTS).items() if "query.weight" in name}
    edit_tensors(folder, lambda parts: parts.update(packed))


def longer(folder: Path) -> None:
    edit_tensors(folder, lambda parts: parts.update({WORDS: torch.cat([parts[WORDS], torch.zeros(3, 32)])}))
    set_config(folder, vocab_size=len(load_file(folder / WEIGHTS)[WORDS]))


# what is done to the tuned folder, or the options -> a word of the refusal
REFUSED = [
    ("--sparsity 1e-9", "less than one"), ("--region lm_head", "embeddings, layers, pooler"), ("--revision v1", "revision"),
    (config(model_type="roberta"), "kind"), (longer, "vocabularies"), (config(num_hidden_layers=1), "13 more"), (lose("output.dense.weight"), "4 tensors missing"),
    (quantise, "I8"), (tensors(lambda parts: parts[BIAS].fill_(float("nan"))), BIAS), (tensors(lambda parts: parts[WORDS][3].fill_(float("inf"))), WORDS),
    (config(architectures=["BertForMagic"]), "--mode"), (lambda folder: (config(id2label={"0": "score"})(folder), lose("classifier")(folder)), "a number"),
    (config(num_attention_heads=4, hidden_act="relu"), "hidden_act relu and not gelu, num_attention_heads 4 and not 2"),
    (tensors(lambda parts: parts.update({"odd": parts.pop(BIAS)})), "it has odd"),
    (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9]), "damaged"),
    (lambda folder: (lose("layer.0.output.dense.bias")(folder.with_name("base")), quantise(folder)), "base: 1 tensor missing.*tuned: 2 tensors in I8"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "word"), REFUSED)
def test_what_can_t_be_the_fine_tuned_base_or_be_asked_for_is_refused_in_one_line(pair, tmp_path, capsys, what, word):
    if not isinstance(what, str):
        what(pair[1])
    line = refused(capsys, *pair, tmp_path / "patch", what if isinstance(what, str) else "")
    assert re.search(word, line), line


def test_a_config_that_was_changed_is_read_anew(pair):
    read_pair(*pair)
    config(hidden_act="relu")(pair[0])
    with pytest.raises(GraftError, match="hidden_act gelu and not relu"):
        read_pair(*pair)
    config(hidden_act="relu")(pair[1])
    assert read_pair(*pair).model.config.hidden_act == "relu"


def test_what_has_not_moved_is_refused_and_what_moved_elsewhere_is_named(pico_bert, tmp_path, capsys):
    again, other = (Path(shutil.copytree(pico_bert, tmp_path / name)) for name in ("again", "other"))
    edit_tensors(other, lambda parts: parts["bert.pooler.dense.bias"].add_(1))  # no part of a masked language model
    unmoved = "the two models have the same values: nothing moved"
    for tuned, words in ((pico_bert, f"{pico_bert}: is the base model itself; "), (again, unmoved), (other, unmoved)):
        assert refused(capsys, pico_bert, tuned, tmp_path / "patch", "--mode prompt").startswith(words)
    edit_tensors(other, lambda parts: parts["bert.embeddings.word_embeddings.weight"].add_(1))
    line = refused(capsys, pico_bert, other, tmp_path / "patch", "--mode prompt")
    moved = "bert.embeddings.word_embeddings.weight"
    assert line == f"nothing moved in what may be grafted; {moved} did, and --region takes it in"
    localize(pico_bert, other, tmp_path / "patch", "--mode prompt --region layers embeddings pooler")
    assert "This model has no parameters of pooler." in capsys.readouterr().out
