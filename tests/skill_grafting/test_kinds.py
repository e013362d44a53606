"""Kinds of models of transformers, tiny and random: each is read and grafted right, or refused in one line.

Right is: its layers are the blocks, whole; a text says in a batch what it says alone to the plain class; a graft of everything
is the fine-tuned model.  Nothing of the project is told of the kinds but by their configs.
"""

import inspect
import re
from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers.models.auto import modeling_auto, tokenization_auto

import skill_grafting as sg
from skill_grafting.models.loading import TOKENIZER_FILES
from skill_grafting.models.probing import without_cache
from skill_grafting.patches.__main__ import _parser
from skill_grafting.patches.localize import localize
from skill_grafting.support.errors import GraftError
from stages.text.models.importing import import_model
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import predict
from tests.pico import TOY, model_settings, runtime, small_config, toy_rows, word_tokenizer

CLASSES = {
    "standard": (hf.AutoModelForSequenceClassification, modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
    "prompt": (hf.AutoModelForMaskedLM, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    "autoregressive": (hf.AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
}
EVERY = {kind for _, mapping in CLASSES.values() for kind in mapping}
BLOCKS = re.compile(r"^(?!.*(vision|visual|image|audio))(\w+\.)*?(layers?|h|blocks?|attentions|layer_norm[12]|ffns|albert_layer_groups)\.\d+\.")
LARGEST = 7_000_000

USUAL = [
    ("bert", "standard"), ("deberta-v2", "prompt"), ("modernbert", "standard"), ("gpt2", "autoregressive"), ("llama", "autoregressive"),
    ("convbert", "prompt"),
]  # fmt: skip
REFUSED = {
    ("fnet", "standard"): "padded on whichever", ("convbert", "prompt"): "padded on whichever",
    ("canine", "standard"): "no embeddings of tokens", ("tapas", "prompt"): "can't be run on two texts",
}  # fmt: skip


def pair_of(kind: str, mode: str, folder: Path) -> tuple[Path, Path]:
    """A base, without the head of a task, and one moved everywhere; skips what can't be made this small."""
    auto, mapping = CLASSES[mode]
    try:
        config = small_config(kind)
        with torch.device("meta"):
            size = sum(weight.numel() for weight in auto.from_config(config).parameters())
        assert size < LARGEST
        torch.manual_seed(0)
        tuned = auto.from_config(config).eval()
    except Exception as error:
        pytest.skip(f"{mapping[kind]} can't be made small: {error}")
    base = auto.from_config(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for before, after in zip(base.parameters(), tuned.parameters(), strict=True):
            if before.dim() > 1:
                before.copy_(0.2 * torch.randn(before.shape, generator=generator))
            after.copy_(before + 0.05 * torch.randn(before.shape, generator=generator))
    backbone = base.base_model if mode == "standard" else base
    for name, model in {"base": backbone, "tuned": tuned}.items():
        model.save_pretrained(folder / name, save_original_format=False)
        word_tokenizer().save_pretrained(folder / name)
    return folder / "base", folder / "tuned"


def plain(folder: Path, mode: str, model: LabelModel, examples: list) -> torch.Tensor:
    """Each text alone through the plain class, with all of the tokenizer's tables that it takes."""
    stock, rows = CLASSES[mode][0].from_pretrained(folder).eval(), []
    taken = {"input_ids", "token_type_ids"} & {*inspect.signature(stock.forward).parameters}
    for example in examples:
        inputs = {name: torch.tensor([ids]) for name in taken if (ids := getattr(example, name))}
        with torch.no_grad():
            logits = stock(**inputs, **without_cache(stock)).logits[0]
        rows.append(logits if mode == "standard" else logits[example.position, model._word_ids])
    return torch.stack(rows)


def outcome(kind: str, mode: str, folder: Path) -> str:
    """`right` or the line of a refusal; asserts all else."""
    base, tuned = pair_of(kind, mode, folder)
    settings = model_settings(mode)
    try:
        spec = import_model(base, settings, folder / "imported")
        model = LabelModel.load(tuned, TOY, settings, runtime(100_000))
        groups = ["layers", *({*spec.groups.values()} - {"layers", "head"})]
        pair = ["--base", str(base), "--finetuned", str(tuned), "--to", str(folder / "patch"), "--mode", mode]
        options = vars(_parser().parse_args(["localize", *pair, "--sparsity", "1", "--region", *groups]))
        localize(**{name: value for name, value in options.items() if name != "command"})
        found = sg.Patch.from_pretrained(folder / "patch").apply(base)
    except GraftError as error:
        assert "\n" not in str(error)
        return str(error)
    layers = {name for name, group in spec.groups.items() if group == "layers"}
    blocks = {name for name in spec.groups if BLOCKS.match(name)}
    assert layers == blocks, (kind, mode, sorted(layers ^ blocks)[:4])
    examples = model.encode(toy_rows(12))
    expected = plain(tuned, mode, model, examples)
    scale = float(expected.abs().max())
    assert float((predict(model, examples) - expected).abs().max()) < 1e-3 * scale, (kind, mode, "padded")
    wanted = CLASSES[mode][0].from_pretrained(tuned)
    there = dict(found.named_parameters())
    unequal = [name for name, weight in wanted.named_parameters() if not torch.equal(weight, there[name])]
    assert not unequal, (kind, mode, unequal[:4])
    return "right"


@pytest.mark.filterwarnings("ignore")  # those of the kinds themselves
@pytest.mark.parametrize(("kind", "mode"), USUAL)
def test_a_kind_is_right_or_refused(tmp_path, kind, mode):
    assert REFUSED.get((kind, mode), "right") in outcome(kind, mode, tmp_path)


def test_every_file_of_a_tokenizers_vocabulary_travels_with_a_model():
    names = [name for kind, name in tokenization_auto.TOKENIZER_MAPPING_NAMES.items() if name and kind in EVERY]
    classes = [part for name in names if (one := getattr(hf, name, None)) for part in one.__mro__]
    files = {file for one in classes for file in vars(one).get("vocab_files_names", {}).values()}
    assert len(files) > 10 and files <= {*TOKENIZER_FILES}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for mode, (_, mapping) in CLASSES.items() for kind in mapping])
def test_every_kind_is_right_or_refused(tmp_path, kind, mode):
    print(kind, mode, found := outcome(kind, mode, tmp_path))
    assert REFUSED.get((kind, mode), "") in found


def test_rwkv_which_divides_its_weights_where_it_runs_stays_as_it_is_and_its_head_is_that_of_the_vocabulary(tmp_path):
    config = hf.RwkvConfig(vocab_size=90, hidden_size=16, num_hidden_layers=7, attention_hidden_size=16, intermediate_size=32, context_length=32)
    torch.manual_seed(0)
    base, tuned = (hf.RwkvForCausalLM(config).eval() for _ in range(2))
    bits = {name: values.clone() for name, values in base.state_dict().items()}

    def kept() -> bool:
        return not base.rwkv.layers_are_rescaled and all(torch.equal(values, bits[name]) for name, values in base.state_dict().items())

    for part, size in (("layers", None), ("lm_head", 90 * 16 + 2 * 16)):
        mask = sg.localize(base, tuned, sparsity=0.05, parameters=part)
        assert kept() and size in (None, mask.region.size)
    whole = sg.localize(base, tuned, sparsity=1)
    none = sg.graft(base, tuned, whole & ~whole)
    assert all(torch.equal(values, bits[name]) for name, values in none.state_dict().items())
    base(torch.tensor([[1, 2]]))
    assert not kept(), "control: the model itself changes"
