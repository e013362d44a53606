"""One library behind three doors: the same patch, byte for byte, from Python, from the command and from the pipeline."""

from dataclasses import replace

import pytest
import torch
import transformers as t

import skill_grafting as sg
from skill_grafting.grafting.mask_file import StoredMask, write_mask
from skill_grafting.models.loading import class_name
from skill_grafting.patches.patch_file import PATCH, read_patch
from stages.workflow.core.cells import GraftCell
from tests.graft_project import MASK, graft, make_project
from tests.pico import TOY, save_with_words

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def bert() -> t.PreTrainedModel:
    return t.BertForSequenceClassification(t.BertConfig(vocab_size=130, num_labels=3, **SMALL))


def gpt2() -> t.PreTrainedModel:
    return t.GPT2LMHeadModel(t.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, vocab_size=130))


def t5() -> t.PreTrainedModel:
    size = {"vocab_size": 130, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    return t.T5ForConditionalGeneration(t.T5Config(decoder_start_token_id=0, **size))


def vit() -> t.PreTrainedModel:
    return t.ViTForImageClassification(t.ViTConfig(image_size=32, patch_size=8, num_labels=3, **SMALL))


def moved(base: t.PreTrainedModel) -> t.PreTrainedModel:
    generator = torch.Generator().manual_seed(1)
    for weight in base.parameters():
        weight.data += 0.05 * torch.randn(weight.shape, generator=generator)
    return base


@pytest.mark.parametrize("region", [None, "layers"])
@pytest.mark.parametrize("make", [bert, gpt2, t5, vit])
def test_python_and_the_command_make_one_patch(make, region, tmp_path):
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    torch.manual_seed(0)
    save_with_words(make(), base)
    load = type(make()).from_pretrained
    moved(load(base)).save_pretrained(tuned)
    options = ["--region", region] if region else []
    graft("localize", "--base", base, "--finetuned", tuned, "--to", tmp_path / "command", "--sparsity", 0.02, *options)
    use = read_patch(tmp_path / "command").use

    def found(*sides: object) -> bytes:
        mask = sg.localize(*sides, sparsity=0.02, parameters=region)
        patch = sg.Patch.of(*sides, mask=mask, title="tuned", max_length=use.max_length)
        patch.save_pretrained(tmp_path / "python")
        return (tmp_path / "python" / PATCH).read_bytes()

    wanted = (tmp_path / "command" / PATCH).read_bytes()
    assert found(load(base), load(tuned)) == wanted == found(sg.read_pair(base, tuned))
    assert found(load(base), moved(load(tuned))) != wanted, "control"


@pytest.mark.parametrize("mode", ["standard", "prompt", "autoregressive"])
def test_the_pipeline_makes_the_patch_of_python(mode, make_cell, tmp_path, monkeypatch):
    cell = make_cell(mode)
    project = make_project(tmp_path / "project", cell)
    monkeypatch.chdir(project.folder)
    opened = GraftCell.of(cell.load(), 13, ["layers"], cell.pretrained_folder)
    mask = sg.localize(opened.pretrained, opened.finetuned, sparsity=0.02)  # as the stage `mask` does
    header = {**project.mask.about, "found": mask.record}
    write_mask(project.folder / MASK, StoredMask(mask, opened.values_at(mask), opened.head, header))
    graft("export", MASK, "--to", tmp_path / "pipeline")
    kind = getattr(t, class_name(cell.load().model.config.model_type, mode))
    labels = {"id2label": dict(enumerate(TOY.labels))} if mode == "standard" else {}
    base, tuned = (kind.from_pretrained(place, **labels) for place in (cell.pretrained_folder, cell.finetuned_folder))
    again = sg.localize(base, tuned, sparsity=0.02, parameters="layers")
    use = read_patch(tmp_path / "pipeline").use
    patch = sg.Patch.of(
        base, tuned, again, title=TOY.title, labels=TOY.labels, prompt=TOY.prompt_for(mode), max_length=use.max_length,
        heads=[*opened.head] or None, name=use.base, source=use.source, revision=use.revision,
    )  # fmt: skip
    patch.save_pretrained(tmp_path / "python")
    assert (tmp_path / "python" / PATCH).read_bytes() == (tmp_path / "pipeline" / PATCH).read_bytes()
    assert again == mask and again != replace(mask, indices={}), "control"
