"""A classifier's answer is the one that its own checkpoint gives, by plain transformers and one text at a time, through every door."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from tokenizers import normalizers, processors
from torch import Tensor

import skill_grafting as sg
from skill_grafting.checkpoints.pairs import read_pair
from skill_grafting.checkpoints.tokenizing import other_reading
from skill_grafting.patches.apply import apply
from skill_grafting.support.errors import ModelError
from stages.commands import predict
from tests.pico import byte_tokenizer, set_config, small_config, word_tokenizer

TEXTS = ["the film was dull", "the music of the film was warm and very quite funny at the end of the night", "it was", "lovely"]
OWN = 300  # a token that no text has
# kind, whether the tokenizer closes a text with its end token, padding of the fine-tuned config, problem_type
READ = [
    ("gpt2", False, None, None), ("gpt2", True, None, None), ("gpt2", True, 0, None), ("gpt2", True, OWN, None), ("gpt2", True, -1, None),
    ("llama", True, None, None), ("qwen2", True, 0, None), ("mistral", True, OWN, None), ("bert", False, 0, "multi_label_classification"),
    ("gpt2", True, None, "multi_label_classification"),
]  # fmt: skip


def tokenizer_of(kind: str, closes: bool) -> hf.PreTrainedTokenizerFast:
    """The one of the kind; closing texts with the end token, which stands for padding, too."""
    tokenizer = word_tokenizer() if kind == "bert" else byte_tokenizer()
    if closes:
        end = tokenizer.eos_token
        closing = processors.TemplateProcessing(single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, 0)])
        tokenizer.backend_tokenizer.post_processor = closing
    return tokenizer


def pair_of(folder: Path, kind: str, closes: bool, padding: int | None, problem: str | None) -> tuple[Path, Path]:
    """A base without padding, and a classifier of three labels that moved from it everywhere."""
    tokenizer = tokenizer_of(kind, closes)
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    config = small_config(kind) if kind == "bert" else small_config(kind, **ids)
    torch.manual_seed(3)
    base = (hf.AutoModelForMaskedLM if kind == "bert" else hf.AutoModelForCausalLM).from_config(config)
    for weight in base.parameters():
        weight.data += 0.2 * torch.randn(weight.shape)
    base.save_pretrained(folder / "base")
    labels = {"num_labels": 3, "id2label": dict(enumerate("abc")), "label2id": dict(zip("abc", range(3), strict=True))}
    tuned = hf.AutoModelForSequenceClassification.from_pretrained(folder / "base", problem_type=problem, **labels)
    for weight in tuned.parameters():
        weight.data += 0.2 * torch.randn(weight.shape)
    tuned.save_pretrained(folder / "tuned")
    set_config(folder / "tuned", pad_token_id=padding)
    for name in ("base", "tuned"):
        tokenizer.save_pretrained(folder / name)
    return folder / "base", folder / "tuned"


@torch.no_grad()
def plain(model: hf.PreTrainedModel, folder: Path) -> Tensor:
    """Logits of each text alone."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    return torch.cat([model.eval()(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS])


def told(capsys, folder: Path, texts: list[str], base: Path) -> list[dict]:
    """What the command `predict` tells of each text."""
    capsys.readouterr()
    predict.main([str(folder), *texts, "--base", str(base), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("kind", "closes", "padding", "problem"), READ)
def test_every_door_gives_the_answers_of_the_checkpoint_itself(tmp_path, capsys, kind, closes, padding, problem):
    base, tuned = pair_of(tmp_path, kind, closes, padding, problem)
    load = hf.AutoModelForSequenceClassification.from_pretrained
    want = plain(load(tuned), tuned)
    pair = read_pair(base, tuned)
    mask = sg.localize(pair, sparsity=1.0, parameters="all")
    patch = sg.Patch.of(pair, mask=mask)
    patch.save_pretrained(tmp_path / "patch")
    apply(tmp_path / "patch", str(base), tmp_path / "applied")
    live = load(base, num_labels=3)
    before = live.config.to_dict()
    doors = {"applied": load(tmp_path / "applied"), "put on": sg.Patch.from_pretrained(tmp_path / "patch").apply(base)}
    with patch.on(live):
        found = {"swapped": plain(live, base)} | {name: plain(model, base) for name, model in doors.items()}
    assert live.config.to_dict() == before
    for name, logits in found.items():
        torch.testing.assert_close(logits, want, msg=name, rtol=1e-4, atol=1e-5)
    shares = want.sigmoid() if problem else want.softmax(1)
    for folder in (tuned, tmp_path / "applied", tmp_path / "patch"):
        for texts in (TEXTS, TEXTS[2:3]):
            places = [TEXTS.index(text) for text in texts]
            found = torch.tensor([[*fact["probabilities"].values()] for fact in told(capsys, folder, texts, base)])
            torch.testing.assert_close(found, shares[places], rtol=1e-3, atol=1e-5, msg=str(folder))
    if closes and padding is None:
        set_config(tuned, pad_token_id=0)
        assert (plain(load(tuned), tuned) - want).abs().max() > 0.01, "the control: read by the tokenizer's padding"


def test_numbers_are_no_labels_and_labels_without_names_are_counted(tmp_path, capsys):
    base, tuned = pair_of(tmp_path, "bert", False, 0, "regression")
    with pytest.raises(ModelError, match="its logits are numbers and no labels"):
        told(capsys, tuned, TEXTS, base)
    set_config(tuned, id2label=None, label2id=None, num_labels=3, problem_type=None)
    assert read_pair(base, tuned).labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert [*told(capsys, tuned, TEXTS, base)[0]["probabilities"]][2] == "LABEL_2"


def cased(tokenizer: hf.PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)


def unclosed(tokenizer: hf.PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])


OTHERS = {
    "casing": cased,
    "special words": unclosed,
    "a word in another's place": lambda tokenizer: tokenizer.add_special_tokens({"additional_special_tokens": ["[e1]"]}),
    "truncation": lambda tokenizer: None,
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_whose_tokenizer_reads_otherwise_is_refused_with_the_first_difference(tmp_path, what):
    base, tuned = pair_of(tmp_path, "bert", False, 0, None)
    assert other_reading(base, tuned) == "" and read_pair(base, tuned)
    padded = word_tokenizer()
    padded.padding_side, padded.model_max_length = "left", 40
    padded.save_pretrained(tuned)
    assert other_reading(base, tuned) == "", "the control: padding is no part of a text"
    tokenizer = word_tokenizer()
    OTHERS[what](tokenizer)
    tokenizer.save_pretrained(tuned)
    if what == "truncation":
        set_config(tuned, "tokenizer_config.json", truncation_side="left")
    with pytest.raises(ModelError, match="its tokenizer reads texts otherwise: .*; a graft is read by that of its base, so put the files"):
        read_pair(base, tuned)
    for file in tuned.glob("*token*"):
        file.unlink()
    assert read_pair(base, tuned), "without a tokenizer of its own"
