"""Models, tokenizers and a task small enough to fine-tune within a test."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForPreTraining,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region
from skill_grafting.localizers.localizer import Localizer
from skill_grafting.localizers.registry import NAMES, kind_of, localizer_of
from stages.text.models.label_model import LabelModel
from stages.text.tasks.runtime import Runtime
from stages.text.tasks.settings import FinetuneParams, ModelParams
from stages.text.tasks.tasks import TaskSpec
from stages.workflow.stage.sections import GraftParams

GOOD = ["good", "lovely", "bright", "funny", "warm", "clever"]
BAD = ["bad", "awful", "dull", "boring", "cold", "stupid"]
FILLERS = """the a film story was is it this that one of and with in on at for by from as very quite rather some many
actor music scene plot end start day night hour man woman child house city car dog cat book page word line we they he
she i you had has have saw made took went came said think know see look feel seem there here then now when where who
what how all any no yes maybe not but or if so too also just only even still again once more most less""".split()
MARKS = [".", ",", "!", "?", "{", "}", "[", "]"]
WORDS = ["great", "terrible", "positive", "negative", "quote", "tone", *GOOD, *BAD, *FILLERS]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIALS, *MARKS, *WORDS, "##ness", "##s"]

TERRIBLE_GREAT = {"negative": "terrible", "positive": "great"}
TOY = TaskSpec(
    name="toy", title="Toy sentiment", kind="toy sentiment", labels=["negative", "positive"],
    prompt={"template": "{sentence1} It was {mask}.", "verbalizer": TERRIBLE_GREAT},
    causal_prompt={"template": "{sentence1} It was {mask}", "verbalizer": TERRIBLE_GREAT},
)  # fmt: skip
PAIRS = TaskSpec(
    name="pairs", title="Toy pairs", kind="toy pairs", labels=["no", "yes", "maybe"],
    prompt={"template": "{sentence1}? {mask}, {sentence2}", "verbalizer": {"no": "no", "yes": "yes", "maybe": "maybe"}},
)  # fmt: skip


def toy_rows(count: int, seed: int = 0) -> list[dict]:
    """Balanced rows of 2 to 6 words; the one judging word decides the label."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        words = generator.choice(FILLERS, size=generator.integers(1, 6)).tolist()
        words.insert(int(generator.integers(0, len(words) + 1)), str(generator.choice(GOOD if number % 2 else BAD)))
        rows.append({"sentence1": " ".join(words), "sentence2": None, "label": TOY.labels[number % 2]})
    return rows


def pair_rows(count: int, seed: int = 0) -> list[dict]:
    """The same rows for PAIRS, whose labels come in turn."""
    rows = enumerate(toy_rows(count, seed))
    return [{**row, "sentence2": "it was", "label": PAIRS.labels[n % 3]} for n, row in rows]


def word_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2 has it: one token for each known word after a space, no padding token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=["<|end|>"], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator([" " + word for word in ["It", *WORDS]], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")


def prepending_tokenizer() -> PreTrainedTokenizerFast:
    """BPE as Llama 2 has it: a space, written as a token's first letter, is put before every text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(["It", *WORDS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def _spread(model: Any, tokenizer: Any, std: float = 0.15) -> Any:
    """Weights large enough to tell inputs apart, and one direction of the embeddings that judging words share."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=std)
    embeddings = model.get_input_embeddings().weight.data
    direction = torch.randn(embeddings.shape[1]) * 0.5
    for words, sign in ((GOOD, 1), (BAD, -1)):
        for word in words:
            embeddings[tokenizer(" " + word, add_special_tokens=False)["input_ids"][0]] += sign * direction
    return model.eval()


def bert_config(layers: int = 2, width: int = 32) -> BertConfig:
    """2 layers of width 32, or as asked for."""
    return BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip


# what makes a config small: number -> the names that settings have it by
SIZES = {
    32: "hidden_size d_model n_embd emb_dim dim word_embed_proj_dim embedding_size",
    3: "num_hidden_layers n_layer n_layers num_layers layers decoder_layers",
    4: "num_attention_heads num_key_value_heads n_head n_heads num_heads decoder_attention_heads num_experts num_local_experts "
    "state_size rotary_dim",
    64: "intermediate_size n_inner d_inner ffn_dim hidden_dim dff ffn_hidden_size decoder_ffn_dim moe_intermediate_size",
    66: "max_position_embeddings n_positions n_ctx max_seq_len",
    8: "d_head head_dim qk_rope_head_dim attention_window",
    2: "num_experts_per_tok",
}
SMALL = {name: size for size, names in SIZES.items() for name in names.split()} | {"block_sizes": [2, 2]}
SMALL |= {"vocab_size": len(VOCABULARY) + 6, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def small_config(kind: str, **changes: Any) -> PreTrainedConfig:
    """A config of any kind that makes it tiny: width 32 and 3 layers, with the words' vocabulary."""
    known = CONFIG_MAPPING[kind]
    return known(**{**_small(known), **changes})


def _small(known: type) -> dict[str, Any]:
    """Settings that make a config small, and the configs inside it, of which one is about text."""
    usual = known()
    names = {*usual.to_dict(), *getattr(known, "attribute_map", {})}
    inside = {name: type(part) for name in known.sub_configs if (part := getattr(usual, name, None)) is not None}
    values = {name: value for name, value in SMALL.items() if name in names}
    return values | {name: {"model_type": part.model_type, **_small(part)} for name, part in inside.items()}


def save_bert(folder: Path, config: BertConfig | None = None) -> Path:
    """A BERT with its masked-LM head, its pooler and its tokenizer, as an ordinary folder."""
    return _save(folder, AutoModelForPreTraining, config or bert_config(), word_tokenizer())


def save_with_words(model: Any, folder: Path) -> Path:
    """A model beside the word tokenizer."""
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def save_causal(folder: Path, kind: str) -> Path:
    """A causal language model, `llama` or `gpt2`, with its tokenizer."""
    tokenizer = byte_tokenizer()
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0}
    if kind == "llama":
        config = LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=128, tie_word_embeddings=True, **ids,
        )  # fmt: skip
    else:
        config = GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=128, **ids)
    return _save(folder, AutoModelForCausalLM, config, tokenizer)


def _save(folder: Path, kind: Any, config: Any, tokenizer: Any) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _spread(kind.from_config(config), tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def runtime(batch_tokens: int = 2048) -> Runtime:
    """Arithmetic on the CPU in float32."""
    return Runtime(torch.device("cpu"), torch.float32, batch_tokens)


def set_config(folder: Path, file: str = "config.json", **changes: object) -> None:
    """Other values in a file of a model's folder."""
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Edit the weights of a model's folder."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_one_value(folder: Path, name: str) -> None:
    """Another model, which differs in one number."""
    edit_tensors(folder, lambda tensors: tensors[name].view(-1)[7].add_(1e-3))


def model_settings(mode: str, max_length: int = 32) -> ModelParams:
    """The `model` section."""
    return ModelParams(source="local", name="pico", revision=None, root=".", mode=mode, max_length=max_length)


def finetune_settings(**changes: Any) -> FinetuneParams:
    """The `finetune` section, quick on the toy task."""
    settings = {
        "source": "train", "root": ".", "optimizer": "adamw", "learning_rates": [3e-3], "batch_sizes": [8], "steps_per_example": 16, "cap_k": 512, "max_steps": 60,
        "schedule": "constant", "momentum": 0.0, "weight_decay": 0.0, "decay": "all", "clip_norm": 1.0, "dropout": 0.0, "l1": 0.0,
        "train": ["layers"], "eval_steps": 0, "ties": "loss",
    }  # fmt: skip
    return FinetuneParams(**{**settings, **changes})


def graft_settings(**changes: Any) -> GraftParams:
    """The `graft` section."""
    return GraftParams(**{"localizer": "learned", "region": ["layers"], "sparsity": 0.02, **changes})


def localizer_settings(name: str, **changes: Any) -> Localizer:
    """One localizer, quick on the toy task; changes of settings that it hasn't got are passed over."""
    learning = {"steps": 10, "learning_rate": 1.0, "batch_size": 128, "select": "last"}
    quick = {
        "learned": learning, "attribution": {"path_points": [0.0, 0.5], "sign": "signed"}, "grown": {"rounds": 2},
        "fish": {"examples": 12}, "talos": {"examples": 12, "rounds": 3},
        "stitch": learning | {"of": "learned", "base_share": 0.1, "offset": 5.0, "l1": 1e-3, "rule": "threshold"},
    }.get(name, {})  # fmt: skip
    known = {key: value for key, value in changes.items() if key in kind_of(name, quick).model_fields}
    return localizer_of(name, quick | known)


def all_localizers(**changes: Any) -> SimpleNamespace:
    """The `localizer` section, with a variant."""
    return SimpleNamespace(**{name: localizer_settings(name, **changes) for name in (*NAMES, "stitch")})


def random_mask(region: Region, k: int, seed: int) -> GraftMask:
    """So many parameters, drawn at random."""
    drawn = torch.randperm(region.size, generator=torch.Generator().manual_seed(seed))[:k]
    return GraftMask.from_region_indices(region, drawn)


def values_of(model: LabelModel) -> dict[str, torch.Tensor]:
    """Copies of a model's parameters."""
    return {name: weight.detach().clone() for name, weight in model.parameters().items()}


def state(model: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of all that a module's state has."""
    return {name: values.clone() for name, values in model.state_dict().items()}


def same(left: dict, right: dict) -> bool:
    """True if tensors of the same names are equal to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
