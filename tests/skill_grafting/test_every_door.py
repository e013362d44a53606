"""The same right answer through every door: a pair of models drawn at random, live, as folders, as a patch and by the command.

GRAFT_PAIRS=1000 pytest -m slow tests/skill_grafting/test_every_door.py draws as many, and -s shows what came of them.
"""

import copy
import dataclasses
import json
import math
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import skill_grafting as sg
from skill_grafting.grafting.apply import take_at
from skill_grafting.grafting.region import named_weights
from skill_grafting.support.errors import GraftError
from tests.graft_project import graft
from tests.pico import same, small_config

SEEDS, PAIRS = (0, 1, 2, 3, 4, 5), int(os.environ.get("GRAFT_PAIRS", "300"))
WIDE, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
IDS = torch.cat([torch.arange(24).view(3, 8) * 7 % 90 + 4, torch.full((3, 1), 3)], 1)  # which end in the token by which some kinds read a text
IMAGES = torch.linspace(-1, 1, 3 * 3 * 32 * 32).sin().view(3, 3, 32, 32)
ENDS = {f"{end}_{what}": size for end in ("encoder", "decoder") for what, size in {"layers": 1, "attention_heads": 2, "ffn_dim": 64}.items()}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 32, "pad_token_id": 0}
VISION, LAYERS = {"image_size": 32, "patch_size": 8}, {"num_hidden_layers": 1}
# kind -> class, its config's settings, whether it is a classifier
KINDS: dict[str, tuple[type, dict, bool]] = {
    "bert": (t.BertForSequenceClassification, LAYERS, True),
    "distilbert": (t.DistilBertForSequenceClassification, {"n_layers": 1}, True),
    "gpt2 labels": (t.GPT2ForSequenceClassification, {"n_layer": 1, "pad_token_id": 0}, True),
    "llama labels": (t.LlamaForSequenceClassification, {**LAYERS, "pad_token_id": 0}, True),
    "bart": (t.BartForSequenceClassification, {**ENDS, "eos_token_id": 3}, True),
    "vit": (t.ViTForImageClassification, {**LAYERS, **VISION}, True),
    "resnet": (t.ResNetForImageClassification, {"hidden_sizes": [8, 16], "depths": [1, 1]}, True),
    "gpt2": (t.GPT2LMHeadModel, {"n_layer": 1}, False),
    "llama": (t.LlamaForCausalLM, {**LAYERS, "tie_word_embeddings": False}, False),
    "llama tied": (t.LlamaForCausalLM, {**LAYERS, "tie_word_embeddings": True}, False),
    "t5": (t.T5ForConditionalGeneration, {"num_layers": 1, "decoder_start_token_id": 0}, False),
    "mixtral": (t.MixtralForCausalLM, {**LAYERS, **EXPERTS}, False),
    "qwen2_moe": (t.Qwen2MoeForCausalLM, {**LAYERS, **EXPERTS, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1}, False),
}
TYPES = [(WIDE, WIDE, WIDE)] * 6 + [(WIDE, BF16, BF16), (WIDE, F16, F16), (WIDE, BF16, WIDE), (BF16, BF16, BF16), (F16, F16, F16), (BF16, WIDE, WIDE)]
TIES = ["as it is", "as it is", "head's name", "two equal", "two of its own"]
# what no door takes
REFUSED = {"two of its own": "lm_head.weight"}
REGIONS = [None, None, "all", "layers", "layers", "embeddings"]


@dataclass
class Drawn:
    """A pair as it was drawn: the folders, how it is loaded, and what is asked for."""

    kind: str
    about: str
    base: Path
    tuned: Path
    region: str | None
    size: float
    widened: bool
    refused: str

    def load(self, folder: Path, **options: object) -> t.PreTrainedModel:
        return KINDS[self.kind][0].from_pretrained(folder, **options).eval()

    def live(self) -> tuple[t.PreTrainedModel, t.PreTrainedModel]:
        """Both models as their folders say; a base that is narrower than the tuned model in its type, as the refusal advises."""
        base, tuned = (self.load(place, dtype="auto") for place in (self.base, self.tuned))
        return base.to(tuned.dtype) if self.widened else base, tuned


def drawn(seed: int, folder: Path) -> Drawn:
    """Folders of a base and of what was fine-tuned from it."""
    dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    kind = dice.choice([*KINDS])
    auto, settings, labelled = KINDS[kind]
    (base_type, precision, tuned_type), tie, region = dice.choice(TYPES), dice.choice(TIES), dice.choice(REGIONS)
    labels, headless = dice.choice([3, 3, 2, 5]), labelled and dice.random() < 0.4
    torch.manual_seed(seed)
    config = small_config(kind.split()[0], **settings, **({"num_labels": 3} if labelled else {}))
    base = auto(config).to(base_type)
    share, reach = dice.choice([0.3, 1.0]), dice.choice(["", "", "", "e", "weight"])
    tuned = copy.deepcopy(base).float()
    if labelled:
        names = [f"{'abcde'[n]} {seed}" for n in range(labels)]
        tuned = auto(small_config(kind.split()[0], **settings, id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)}))
        heads = {name for name, values in base.state_dict().items() if tuned.state_dict()[name].shape != values.shape}
        tuned.load_state_dict({name: values for name, values in base.state_dict().items() if name not in heads}, strict=False)
    for name, values in [*named_weights(tuned).items(), *((n, b) for n, b in tuned.named_buffers() if "running" in n)]:
        if reach in name:
            chance = torch.rand(values.shape, generator=generator) < share
            values.data += 0.1 * torch.randn(values.shape, generator=generator) * chance
    tuned = tuned.to(precision).to(tuned_type)
    shards = {"max_shard_size": "20KB"} if dice.random() < 0.3 else {}
    (base.base_model if headless else base).save_pretrained(folder / "base", **shards)
    tuned.save_pretrained(folder / "tuned", **shards)
    tied = getattr(tuned.config, "tie_word_embeddings", False) and not (shards or labelled or kind == "t5")
    if tied and tie != "as it is":
        _retied(folder / "tuned", tie)
    size = dice.choice([0.02, 0.2, 1.0])
    types = f"{base_type} {precision} {tuned_type}".replace("torch.", "")
    about = f"{seed}: {kind}, {types}, {tie if not labelled else f'{labels} labels'}{', headless' * headless}{', shards' * bool(shards)}, moved {reach!r}, {region}, {size}"
    refused = REFUSED.get(tie, "") if tied else ""
    return Drawn(kind, about, folder / "base", folder / "tuned", region, size, base_type == BF16 != tuned_type, refused)


def _retied(folder: Path, how: str) -> None:
    """Save a tied table under the head's name, or twice."""
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    table = next(name for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight")))
    values = tensors[table]
    if how == "head's name":
        del tensors[table]
    else:
        config["tie_word_embeddings"] = False
    tensors["lm_head.weight"] = values + 0.1 if how == "two of its own" else values.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


# --- What is right -----------------------------------------------------------------------------------------------------


def numbers(model: t.PreTrainedModel) -> dict[str, Tensor]:
    """All numbers of a model's state, in float64."""
    return {name: values.double() for name, values in model.state_dict().items() if values.is_floating_point()}


def seen(model: t.PreTrainedModel) -> dict[str, object]:
    """Numbers, labels, logits and loss of a copy of a model, as whoever uses it sees them."""
    model = copy.deepcopy(model).float().eval()
    classifies = "Classification" in type(model).__name__
    inputs = {"pixel_values": IMAGES} if "Image" in type(model).__name__ else {"input_ids": IDS}
    with torch.no_grad():
        made = model(**inputs, labels=torch.arange(3) % model.config.num_labels if classifies else IDS)
    return {"numbers": numbers(model), "labels": model.config.id2label if classifies else None, "logits": made.logits, "loss": made.loss}


def is_same(left: dict[str, object], right: dict[str, object]) -> bool:
    close = all(torch.allclose(left[what], right[what], rtol=1e-4, atol=1e-5) for what in ("logits", "loss"))
    return close and same(left["numbers"], right["numbers"]) and left["labels"] == right["labels"]


def equation_1(base: t.PreTrainedModel, tuned: t.PreTrainedModel, mask: sg.GraftMask, whole: set[str]) -> dict[str, Tensor]:
    """The graft's numbers one by one, from the states of the two models: fine-tuned inside the mask and of what travels whole."""
    before, after, inside, weights = numbers(base), numbers(tuned), mask.dense(), named_weights(base)
    known = {weight: name for name, weight in weights.items()}
    made = {}
    for name, weight in base.state_dict(keep_vars=True).items():
        first = known.get(weight, name)  # of tied parameters
        if name in before:
            later = after[first].to(weight.dtype).double()
            made[name] = torch.where(inside[first], later, before[name]) if first in inside else later if first in whole else before[name]
    return made


def through_every_door(pair: Drawn, folder: Path) -> str:
    """`right`, or the lines in which the doors refuse the pair; asserts all else."""
    base, tuned = pair.live()
    options, lines, masks = {"sparsity": pair.size, "parameters": pair.region, "progress": False}, [], {}
    doors = {"live": lambda: sg.localize(base, tuned, **options), "folders": lambda: sg.localize(sg.read_pair(pair.base, pair.tuned), **options)}
    for door, act in doors.items():
        try:
            masks[door] = act()
        except GraftError as error:
            assert "\n" not in str(error)
            lines.append(f"{door}: {error}")
    words = ["--base", pair.base, "--finetuned", pair.tuned, "--to", folder / "patch", "--sparsity", pair.size]
    try:
        graft("localize", *words, *(["--region", pair.region] if pair.region else []))
        masks["command"] = sg.Patch.from_pretrained(folder / "patch").mask
    except SystemExit:
        lines.append("the command")
    first, *others = masks.values() if masks else [None]
    assert all(mask == first for mask in others), "one mask"
    if lines:
        return "; ".join(lines)
    grafts_agree(pair, base, tuned, first, folder)
    return "right"


def grafts_agree(pair: Drawn, base: t.PreTrainedModel, tuned: t.PreTrainedModel, mask: sg.GraftMask, folder: Path) -> None:
    before, patch = numbers(base), sg.Patch.from_pretrained(folder / "patch")
    made, own = sg.graft(base, tuned, mask), sg.Patch.of(base, tuned, mask)
    made.save_pretrained(folder / "saved")
    graft("apply", folder / "patch", "--base", pair.base, "--to", folder / "applied")
    models = {
        "the graft": made, "saved": pair.load(folder / "saved"), "the patch of modules": own.apply(base), "the patch": patch.apply(base),
        "the patch on a folder": patch.apply(pair.base), "the command": pair.load(folder / "applied"),
    }  # fmt: skip
    results = {door: seen(model) for door, model in models.items()}
    for door, on in {"grafted": lambda: sg.grafted(base, tuned, mask), "on": lambda: patch.on(base)}.items():
        with on():
            results[door] = seen(base)
    assert same(results["the graft"]["numbers"], equation_1(base, tuned, mask, {*patch.head}))
    assert [door for door, result in results.items() if not is_same(result, results["the graft"])] == []
    assert same(numbers(base), before), "the base is as before"
    assert not is_same(seen(sg.graft(base, tuned, sg.GraftMask.empty(mask.region))), results["the graft"]), "control"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_door_gives_the_same_right_answer(seed, tmp_path):
    pair = drawn(seed, tmp_path)
    assert through_every_door(pair, tmp_path) == "right", pair.about


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_door_gives_the_same_right_answer_for_many_pairs(tmp_path):
    found: Counter[str] = Counter()
    for seed in range(PAIRS):
        folder = tmp_path / str(seed)
        pair = drawn(seed, folder)
        outcome = through_every_door(pair, folder)
        assert outcome == "right" or (pair.refused and pair.refused in outcome), f"{pair.about}: {outcome}"
        found[outcome if outcome == "right" else "refused"] += 1
        shutil.rmtree(folder)
    print(found)
    assert found["right"] > 0.8 * PAIRS


# --- Live models: what every door takes along, checks and refuses ----------------------------------------------------------


def two(make: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4)), seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """A base and a tuned model, all of which moved."""
    torch.manual_seed(seed)
    base, tuned = make().eval(), make().eval()
    tuned.load_state_dict(base.state_dict())
    for weight in tuned.parameters():
        weight.data += 0.1 * torch.randn(weight.shape).to(weight)
    return base, tuned


def entered(context: AbstractContextManager) -> None:
    with context:
        pass


# (base, tuned, mask) -> a change of the base
DOORS: dict[str, Callable[[nn.Module, nn.Module, sg.GraftMask], object]] = {
    "graft": sg.graft,
    "grafted": lambda base, tuned, mask: entered(sg.grafted(base, tuned, mask)),
    "apply": lambda base, tuned, mask: patch_of(mask, tuned).apply(base),
    "on": lambda base, tuned, mask: entered(patch_of(mask, tuned).on(base)),
    "put_on": lambda base, tuned, mask: patch_of(mask, tuned).put_on(base),
    "optimizer": lambda base, _, mask: sg.masked_optimizer(base, mask, torch.optim.SGD),
}


def patch_of(mask: sg.GraftMask, tuned: nn.Module) -> sg.Patch:
    """The patch of the plain pair, which the models of BASES were made of."""
    return sg.Patch.of(two()[0], two()[1], mask)


def shared(model: nn.Module) -> nn.Module:
    """The same numbers, of which a buffer is a view."""
    model.register_buffer("seen", model[0].bias.detach(), persistent=False)
    return model


def expanded(model: nn.Module) -> nn.Module:
    model[1].bias.data = model[1].bias.data[:1].expand(4)
    return model


def packed(model: nn.Module) -> nn.Module:
    model[0].weight = nn.Parameter(TwoTensor(model[0].weight.detach(), model[0].weight.detach()))
    return model


def of_kind(model: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    model[0].weight = nn.Parameter(change(model[0].weight.detach()))
    return model


# what nobody can write to, and a word of why
BASES: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "a view": (shared, "0.bias and seen share memory|seen and 0.bias share memory"),
    "packed": (packed, "0.weight is a TwoTensor, sharded or packed"),
    "sparse": (lambda model: of_kind(model, Tensor.to_sparse), r"0.weight is sparse \(torch.sparse_coo\)"),
    "complex32": (lambda model: of_kind(model, lambda values: values.to(torch.complex32)), "0.weight is torch.complex32"),
    "on meta": (lambda model: model.to("meta"), r"0.weight has no values in memory \(it is on meta\): load the model whole"),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("what", BASES)
@pytest.mark.parametrize("door", DOORS)
def test_what_can_t_be_written_to_is_refused_at_every_door(what, door):
    change, words = BASES[what]
    base, tuned = two()
    mask = sg.localize(base, tuned, sparsity=0.9, parameters="all")
    before = {name: values.clone() for name, values in base.state_dict().items()}
    DOORS[door](copy.deepcopy(base), tuned, mask)  # control
    with pytest.raises(GraftError, match=words) as caught:
        DOORS[door](change(base), tuned, mask)
    assert "\n" not in str(caught.value) and (what != "a view" or same(before, {name: base.state_dict()[name] for name in before}))


def test_entries_of_one_number_are_refused_in_place_and_in_copies():
    base, tuned = map(expanded, two())
    for act in (sg.graft, lambda *models: entered(sg.grafted(*models)), lambda *models: sg.Patch.of(*models).apply(base)):
        with pytest.raises(GraftError, match="entries of 1.bias share memory"):
            act(base, tuned, sg.localize(base, tuned, sparsity=1.0, parameters="1.bias"))


def test_values_are_those_that_are_there_within_one_autocast_and_after_loading():
    base, tuned = two()
    inputs, mask = torch.ones(2, 8), sg.localize(base, tuned, sparsity=0.5, parameters="all")
    patch, graft_of_it = sg.Patch.of(base, tuned, mask), sg.graft(base, tuned, mask)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            with torch.autocast("cpu", torch.bfloat16):
                wanted = graft_of_it(inputs)
            with torch.autocast("cpu", torch.bfloat16):
                plain = base(inputs)
                for context in (patch.on, lambda model: sg.grafted(model, tuned, mask)):
                    with context(base):
                        assert torch.equal(base(inputs), wanted)
                    assert torch.equal(base(inputs), plain) and not torch.equal(plain, wanted), "and a control"
    wanted = graft_of_it(inputs)
    base.load_state_dict({name: values.clone() for name, values in base.state_dict().items()}, assign=True)
    with patch.on(base):
        assert torch.equal(base(inputs), wanted)
    base.load_state_dict(tuned.state_dict(), assign=True)
    with pytest.raises(GraftError, match="it was made for another state; 4 of its 4 tensors differ"), patch.on(base):
        pass


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_constants_of_a_compiled_model_are_refused(monkeypatch):
    import torch._inductor.config as inductor

    base, tuned = two()
    mask = sg.localize(base, tuned, sparsity=0.5, parameters="all")
    compiled, patch = torch.compile(base), sg.Patch.of(base, tuned, mask)
    entered(patch.on(compiled))
    monkeypatch.setattr(inductor, "freezing", True)
    for context in (patch.on(compiled), sg.grafted(compiled, tuned, mask)):
        with pytest.raises(GraftError, match="compiled with freezing, which keeps its weights as constants"):
            entered(context)
    entered(patch.on(base))
    monkeypatch.setattr(inductor, "freezing", False)
    in_place = copy.deepcopy(base)
    in_place.compile(options={"freezing": True})
    for model in (torch.compile(base, options={"freezing": True}), in_place):
        with pytest.raises(GraftError, match="compiled with freezing.* without the option freezing"):
            entered(patch.on(model))
    entered(patch.on(compiled))


def test_models_that_are_partitioned_are_told_so_at_every_door():
    base, tuned = two()
    mask = sg.localize(base, tuned, sparsity=0.9, parameters="all")
    empty = copy.deepcopy(base)
    for weight in empty.parameters():
        weight.data = torch.empty(0)
    doors = {**DOORS, "localize": lambda base, *_: sg.localize(base, copy.deepcopy(base), sparsity=0.5), "merge": lambda base, tuned, mask: sg.merge(base, {"a": (tuned, mask)}, "mean")}
    doors |= {"tuned": lambda model, *_: sg.localize(base, model, sparsity=0.5), "fisher": lambda model, *_: sg.fisher(model, lambda model, row: model(row).sum(), [torch.ones(8)])}
    for door in doors.values():
        with pytest.raises(GraftError, match=r"the Sequential's parameters are all empty, as where they are partitioned \(ZeRO-3, FSDP\): gather them"):
            door(empty, tuned, mask)


@pytest.mark.parametrize("odd", [5, "x", [1], {}, {"share": "a"}, {"share": math.nan}, {"share": True}, {"share": 0.5}, {"share": 0.5, "most": "a\x1b[2J"}])
def test_a_curve_takes_whatever_a_strangers_mask_says_of_what_moved_outside(odd, caplog):
    base, tuned = two()
    inputs = torch.randn(50, 8)
    mask = sg.localize(base, tuned, sparsity=0.5, parameters="0.weight")
    masks = {0.5: dataclasses.replace(mask, record={**mask.record, "left_out": odd})}
    caplog.clear()
    table = sg.curve(base, tuned, masks, lambda model: -(model(inputs) - tuned(inputs)).square().mean())
    assert len(table) == 4 and "the whole region scores" in caplog.text and "\x1b" not in caplog.text


def test_settings_that_no_model_has_and_places_that_are_none_are_refused_by_apply(tmp_path, capsys):
    base, tuned = two(lambda: llama(tied=False))
    base.save_pretrained(tmp_path / "base")
    sg.Patch.of(base, tuned, sg.localize(base, tuned, sparsity=0.1)).save_pretrained(tmp_path / "patch")
    graft("apply", tmp_path / "patch", "--base", tmp_path / "base", "--to", tmp_path / "right")
    file = tmp_path / "base/config.json"
    for name, value, words in (("rms_norm_eps", math.nan, "rms_norm_eps is nan, and should be a finite number"), ("num_hidden_layers", 10**5, "num_hidden_layers is 100,000"), ("num_labels", 10**9, "num_labels should be")):
        settings = json.loads(file.read_text())
        file.write_text(json.dumps({**settings, name: value}))
        with pytest.raises(SystemExit):
            graft("apply", tmp_path / "patch", "--base", tmp_path / "base", "--to", tmp_path / "none")
        assert words in capsys.readouterr().err and not (tmp_path / "none").exists()
        with pytest.raises(GraftError, match=words):
            sg.Patch.from_pretrained(tmp_path / "patch").apply(tmp_path / "base")
        file.write_text(json.dumps(settings))
    with pytest.raises(GraftError, match="place: should be a folder, a file or a name on the hub, not None"):
        sg.Patch.from_pretrained(None)


def test_nested_swaps_say_what_is_on_and_the_inner_one_counts():
    base, tuned = two()
    masks = [sg.localize(base, tuned, sparsity=size, parameters="all") for size in (0.5, 0.1)]
    patch, inner, before = sg.Patch.of(base, tuned, masks[0]), two(seed=3)[1], numbers(base)
    with patch.on(base), sg.grafted(base, inner, masks[1]):
        on = sg.active(base)
        assert on[0] is patch and on[1] is masks[1] and len(on) == 2
        taken = [{name: take_at(values, masks[1].indices[name]) for name, values in numbers(model).items() if name in masks[1].indices} for model in (base, inner)]
        assert same(*taken)
    assert sg.active(base) == [] and same(numbers(base), before)


def llama(tied: bool) -> t.PreTrainedModel:
    return t.LlamaForCausalLM(small_config("llama", num_hidden_layers=1, vocab_size=99, tie_word_embeddings=tied))


def untie(model: t.PreTrainedModel) -> t.PreTrainedModel:
    model.config.tie_word_embeddings = False
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def test_ties_of_one_model_alone_are_taken_where_they_are_equal():
    base, tuned = two(lambda: llama(tied=True))
    sides = {"the tuned model's": (base, untie(copy.deepcopy(tuned))), "the base's": (untie(copy.deepcopy(base)), tuned)}
    for one, other in sides.values():
        mask = sg.localize(one, other, sparsity=1.0, parameters="all")
        for model in (sg.graft(one, other, mask), sg.Patch.of(one, other, mask).apply(one)):
            with torch.no_grad():
                assert torch.equal(model(IDS).logits, other(IDS).logits)
    other = untie(copy.deepcopy(tuned))
    other.lm_head.weight.data += 1
    with pytest.raises(GraftError, match="lm_head.weight and model.embed_tokens.weight are one parameter in the base and two in the tuned model: the base has two, too, after base.config.tie"):
        sg.localize(base, other, sparsity=0.5)
    assert sg.localize(untie(base), other, sparsity=0.5), "as it says"


def test_vocabularies_of_two_sizes_are_refused_with_what_makes_them_one():
    base, tuned = two(lambda: llama(tied=True))
    tuned.resize_token_embeddings(104, mean_resizing=False)
    with pytest.raises(GraftError, match=r"model.embed_tokens.weight is .*; base.resize_token_embeddings\(104\) gives both as many tokens"):
        sg.localize(base, tuned, sparsity=0.5)
    base.resize_token_embeddings(104, mean_resizing=False)
    assert sg.localize(base, tuned, sparsity=0.5), "as it says"


def test_a_head_of_another_size_travels_whole_and_is_in_no_mask():
    base, tuned = (t.BertForSequenceClassification(small_config("bert", num_hidden_layers=1, num_labels=labels)) for labels in (2, 5))
    mask = sg.localize(base, tuned, sparsity=0.5, parameters="all")
    assert not any(name.startswith("classifier") for name in mask.region.shapes)
    refused = r"classifier.weight is \[2, 32\] in the base and \[5, 32\] in the tuned model: it travels whole"
    region = sg.Region({"classifier.weight": (2, 32)})
    for act in (lambda: sg.localize(base, tuned, sparsity=0.5, parameters="classifier"), lambda: sg.graft(base, tuned, sg.GraftMask.full(region)), lambda: sg.Patch.of(base, tuned, sg.GraftMask.full(region))):
        with pytest.raises(GraftError, match=refused):
            act()


def test_all_means_all_whatever_moved_and_masks_of_two_fine_tunings_are_compared():
    base, (_, tuned) = two()[0], two()
    first, second = copy.deepcopy(base), copy.deepcopy(base)
    first[0].load_state_dict(tuned[0].state_dict()), second[1].load_state_dict(tuned[1].state_dict())
    masks = [sg.localize(base, model, sparsity=0.3, parameters="all") for model in (first, second, tuned)]
    assert len({len(mask) for mask in masks}) == 1 and masks[0].region == masks[1].region
    own = [sg.localize(base, model, sparsity=0.3) for model in (first, second)]
    assert own[0].overlap(own[1]) == 0 and len(own[0] | own[1]) == len(own[0]) + len(own[1]) and own[0].region != own[1].region
