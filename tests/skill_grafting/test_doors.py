"""What goes along with a graft through every door: how a model generates, prepares images and is merged."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

import skill_grafting as sg
from tests.graft_project import graft
from tests.pico import same, save_with_words, small_config

KINDS: dict[str, tuple[type, dict]] = {
    "bert": (t.BertForSequenceClassification, {"num_labels": 3}),
    "vit": (t.ViTForImageClassification, {"image_size": 32, "patch_size": 8, "num_labels": 3}),
}


def made(kind: str) -> t.PreTrainedModel:
    auto, changes = KINDS[kind]
    return auto(small_config(kind, **changes))


def moved(base: t.PreTrainedModel, seed: int = 1) -> t.PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    for weight in [*base.parameters(), *(one for one in base.buffers() if one.is_floating_point())]:
        weight.data += 0.05 * torch.randn(weight.shape, generator=generator)
    return base


def test_a_kind_that_transformers_loads_with_other_values_is_written_to_a_folder_and_refused_in_memory(tmp_path):
    size = {"vocab_size": 130, "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "block_sizes": [1, 1], "num_labels": 3}
    base, tuned = (t.FunnelForSequenceClassification(t.FunnelConfig(pad_token_id=0, **size)) for _ in range(2))
    moved(base.base_model, 2).save_pretrained(tmp_path / "base")
    moved(tuned).save_pretrained(tmp_path / "tuned")
    pair = sg.read_pair(tmp_path / "base", tmp_path / "tuned")
    patch = sg.Patch.of(pair, mask=sg.localize(pair, sparsity=1.0, parameters="all"))
    patch.save_pretrained(tmp_path / "patch")
    graft("apply", tmp_path / "patch", "--base", tmp_path / "base", "--to", tmp_path / "applied")
    applied, wanted = (load_file(tmp_path / name / "model.safetensors") for name in ("applied", "tuned"))
    assert same(applied, wanted)
    with pytest.raises(sg.GraftError, match="transformers zeroes the row of padding of funnel.embeddings.*; `graft apply` writes"):
        patch.apply(tmp_path / "base")


def test_how_a_tuned_model_generates_goes_along_through_every_door(pico_gpt2, tmp_path):
    load = t.AutoModelForCausalLM.from_pretrained
    base, tuned = load(pico_gpt2), moved(load(pico_gpt2))
    tuned.generation_config.update(eos_token_id=[0, 5], max_length=7)
    tuned.save_pretrained(tmp_path / "tuned")
    before, inputs = base.generation_config.to_dict(), torch.tensor([[3, 4, 5]])
    mask = sg.localize(base, tuned, sparsity=1.0, parameters="all")
    wanted, usual = tuned.generate(inputs), base.generate(inputs, max_length=20)
    patches = sg.Patch.of(base, tuned, mask), sg.Patch.of(sg.read_pair(pico_gpt2, tmp_path / "tuned"), mask=mask)
    patches[1].save_pretrained(tmp_path / "patch")
    graft("apply", tmp_path / "patch", "--base", pico_gpt2, "--to", tmp_path / "applied")
    made = [load(tmp_path / "applied"), sg.graft(base, tuned, mask), *(patch.apply(base) for patch in patches)]
    assert all(torch.equal(model.generate(inputs), wanted) for model in made) and not torch.equal(usual, wanted)
    with patches[0].on(base), sg.grafted(made[0], tuned, mask):
        assert torch.equal(base.generate(inputs), wanted)
    assert base.generation_config.to_dict() == before
    back = patches[0].inverse(base)
    assert "eos_token_id" in back.use.generation and same(back.apply(patches[0].apply(base)).state_dict(), base.state_dict()), "and back"


def test_how_images_are_prepared_goes_along_and_a_template_is_named(tmp_path, capsys):
    torch.manual_seed(0)
    base = made("vit")
    for name, size, model in (("base", 32, base), ("tuned", 24, moved(copy.deepcopy(base)))):
        save_with_words(model, tmp_path / name)
        (tmp_path / name / "preprocessor_config.json").write_text(json.dumps({"size": size}))
    (tmp_path / "tuned/chat_template.jinja").write_text("{{ messages }}")
    graft("localize", "--base", tmp_path / "base", "--finetuned", tmp_path / "tuned", "--to", tmp_path / "patch", "--sparsity", 0.1)
    said = capsys.readouterr().out
    assert "Goes along: preprocessor_config.json.\n" in said and "Doesn't go along: chat_template.jinja of" in said
    graft("apply", tmp_path / "patch", "--base", tmp_path / "base", "--to", tmp_path / "applied")
    assert json.loads((tmp_path / "applied/preprocessor_config.json").read_text()) == {"size": 24}
    assert not (tmp_path / "applied/chat_template.jinja").exists()


def said_by_python(caplog, base: Path, tuned: Path) -> str:
    caplog.clear()
    sg.read_pair(base, tuned)
    return caplog.text


def test_what_goes_along_with_no_graft_is_said_by_python_and_by_each_command(pico_gpt2, tmp_path, capsys, caplog):
    tuned = tmp_path / "tuned"
    shutil.copytree(pico_gpt2, tuned)
    moved(t.AutoModelForCausalLM.from_pretrained(pico_gpt2)).save_pretrained(tuned)

    def said() -> list[str]:
        found = [said_by_python(caplog, pico_gpt2, tuned)]
        for number, command in enumerate(("localize", "diff")):
            capsys.readouterr()
            shutil.rmtree(tmp_path / f"{number}", ignore_errors=True)
            graft(command, "--base", pico_gpt2, "--finetuned", tuned, "--to", tmp_path / f"{number}")
            found.append(capsys.readouterr().out)
        return found

    lines = ("tuned: its tokenizer reads texts otherwise: ", "Doesn't go along: chat_template.jinja of ")
    assert not any(line in text for text in said() for line in lines), "the control"
    settings = json.loads((tuned / "tokenizer.json").read_text())
    settings["normalizer"] = {"type": "Lowercase"}
    (tuned / "tokenizer.json").write_text(json.dumps(settings))
    (tuned / "chat_template.jinja").write_text("{{ messages }}")
    assert all(line in text for text in said() for line in lines)


def test_how_the_base_makes_sentences_is_in_the_applied_model(tmp_path, capsys, caplog):
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    model = t.BertModel(small_config("bert", num_hidden_layers=1))
    for place, one in ((base, model), (tuned, moved(copy.deepcopy(model)))):
        save_with_words(one, place)
        (place / "1_Pooling").mkdir()
        (place / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": place == tuned}))
        modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_Dense"}, {"path": "../.."}]
        (place / "modules.json").write_text(json.dumps(modules))
        (place / "2_Dense").mkdir()
        save_file({"linear.weight": torch.ones(2, 32)}, place / "2_Dense/model.safetensors")
    graft("localize", "--base", base, "--finetuned", tuned, "--to", tmp_path / "patch", "--sparsity", 0.1)
    assert "Goes along: 1_Pooling/config.json.\n" in capsys.readouterr().out
    graft("apply", tmp_path / "patch", "--base", base, "--to", tmp_path / "applied")
    applied = tmp_path / "applied"
    assert json.loads((applied / "1_Pooling/config.json").read_text()) == {"pooling_mode_cls_token": True}
    assert all((applied / name).read_bytes() == (base / name).read_bytes() for name in ("modules.json", "2_Dense/model.safetensors"))
    caplog.clear()
    sg.Patch.from_pretrained(tmp_path / "patch").apply(base)
    assert "1_Pooling/config.json of the tuned folder goes with the model, which can't hold it: `graft apply` writes it" in caplog.text


def test_a_head_that_a_base_of_masked_words_has_travels_whole_live_and_from_folders(tmp_path):
    config = small_config("modernbert", num_hidden_layers=1, num_labels=3, pad_token_id=0)
    torch.manual_seed(0)
    t.ModernBertForMaskedLM(config).save_pretrained(tmp_path / "base")
    load = t.ModernBertForSequenceClassification.from_pretrained
    moved(load(tmp_path / "base", num_labels=3)).save_pretrained(tmp_path / "tuned")
    base, tuned = (load(tmp_path / name, num_labels=3) for name in ("base", "tuned"))
    sides = {"live": (base, tuned), "folders": (sg.read_pair(tmp_path / "base", tmp_path / "tuned"),)}
    masks = {door: sg.localize(*pair, sparsity=0.1) for door, pair in sides.items()}
    assert masks["live"] == masks["folders"]
    patches = [sg.Patch.of(*pair, mask=masks["live"]) for pair in sides.values()]
    assert {"head.dense.weight", "classifier.weight"} <= {*patches[0].head} == {*patches[1].head}
    assert patches[0].use.fingerprint == patches[1].use.fingerprint


def test_groups_of_a_backbone_and_an_adapter_of_logits_that_have_other_names(tmp_path):
    backbones = t.BertModel(small_config("bert")), t.T5Model(small_config("t5"))
    for base, table in zip(backbones, ("embeddings.word_embeddings.weight", "shared.weight"), strict=True):
        known = {group: sg.localize(base, moved(copy.deepcopy(base)), sparsity=0.5, parameters=group).region.shapes for group in ("embeddings", "layers")}
        assert table in known["embeddings"] and known["embeddings"].keys().isdisjoint(known["layers"])
    base = t.BertForQuestionAnswering(small_config("bert")).eval()
    tuned = moved(copy.deepcopy(base))
    patch = sg.Patch.of(base, tuned, sg.localize(base, tuned, sparsity=0.1, parameters="*.dense.weight"))
    assert "in 9 linear weights" in patch.to_peft(tmp_path / "adapter", base)
    base.forward = lambda **_: {}[0]
    with pytest.raises(sg.GraftError, match="the BertForQuestionAnswering can't be run on a short input: KeyError: 0; apply it instead"):
        patch.to_peft(tmp_path / "none", base)


@pytest.mark.parametrize("how", ["mean", "ties"])
def test_checkpoints_and_patches_are_merged_as_the_modules_are_and_their_heads_told_once(how, tmp_path, caplog):
    torch.manual_seed(0)
    made("bert").save_pretrained(tmp_path / "base")
    load = t.BertForSequenceClassification.from_pretrained
    for number, name in enumerate("ab", start=1):
        moved(load(tmp_path / "base"), number).save_pretrained(tmp_path / name)
    base, tuned = load(tmp_path / "base"), {name: load(tmp_path / name) for name in "ab"}
    masks = {name: sg.localize(base, model, sparsity=0.3) for name, model in tuned.items()}
    wanted = dict(sg.merge(base, {name: (tuned[name], masks[name]) for name in "ab"}, how).named_parameters())
    tasks = {"a": (sg.read_pair(tmp_path / "base", tmp_path / "a"), masks["a"]), "b": sg.Patch.of(base, tuned["b"], masks["b"])}
    assert same(dict(sg.merge(base, tasks, how).named_parameters()), wanted)
    folder = sg.merge(tmp_path / "base", tasks, how, to=tmp_path / "merged")
    said = [line for line in caplog.messages if "merged" in line]
    told = "tasks.a, b: heads and buffers (classifier.weight, ...) aren't merged; the model keeps the base's"
    assert same(dict(load(folder).named_parameters()), wanted) and said == 3 * [told], "of modules, of a pair and a patch, and into a folder"
    assert not same(dict(sg.merge(base, {"a": tasks["a"]}, how).named_parameters()), wanted), "control"
    with pytest.raises(sg.GraftError, match="the patch was made for base .*, not for this Bert"):
        sg.merge(tuned["a"], tasks, how)
