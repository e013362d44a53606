"""The same right answer through every door: a pair of models drawn at random, live, as folders, as a patch and by the command.

GRAFT_PAIRS=1000 pytest -m slow tests/skill_grafting/test_every_door.py draws as many, and -s shows what came of them.
"""

import copy
import json
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file
from torch import Tensor

import skill_grafting as sg
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
# what no door takes, or folders alone refuse
REFUSED = {"two of its own": "lm_head.weight", "two equal": "lm_head.weight"}
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
