"""At any size: what work on checkpoints takes of memory doesn't grow with them, and they are read no more often than they have to be."""

import copy
import math
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

import skill_grafting as sg
from skill_grafting.checkpoints.files import Checkpoint, Named
from skill_grafting.checkpoints.layouts import named_as, skeleton
from skill_grafting.checkpoints.pairs import StoredPair
from skill_grafting.checkpoints.writing import copy_beside
from skill_grafting.grafting import fingerprint as fingerprints
from skill_grafting.grafting import select
from skill_grafting.grafting.apply import values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region, outline
from skill_grafting.grafting.select import BITS
from skill_grafting.merging import inputs
from skill_grafting.models import probing
from skill_grafting.models.blocks import groups_in
from tests.graft_project import graft
from tests.memory import PeakBytes
from tests.pico import SIZES, edit_tensors, same, set_config, small_config
from tests.skill_grafting.test_kinds import CLASSES, EVERY, USUAL

MEBIBYTE = 2**20
# beside the usual ones those that look at values on their way: routers, masks of their own
LOOKING = [("mixtral", "autoregressive"), ("jetmoe", "autoregressive"), ("roformer", "prompt"), ("vit", None)]
LAYERS = dict.fromkeys([*SIZES[3].split(), "decoder_layers", "encoder_layers"], 30)


def empty(kind: str, mode: str | None, folder: Path, **changes: object) -> hf.PreTrainedModel:
    """The skeleton of a kind with 30 layers, as it is made of a folder; skips what can't be made."""
    try:
        known = {*hf.CONFIG_MAPPING[kind]().to_dict(), *hf.CONFIG_MAPPING[kind].attribute_map}
        config = small_config(kind, **{name: size for name, size in LAYERS.items() if name in known}, **changes)
        config.save_pretrained(folder)
        checkpoint = Checkpoint(str(folder), "local", folder, config.to_dict(), {})
        return skeleton(checkpoint, mode or "ViTForImageClassification")
    except Exception as error:
        pytest.skip(f"{kind} can't be made: {error}")


def size_of(model: hf.PreTrainedModel) -> int:
    return sum(weight.numel() * weight.itemsize for weight in model.parameters())


def anonymous() -> int:
    """Bytes of memory of this process beside mapped files."""
    [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


def taken(work: Callable[[], object]) -> int:
    """Bytes that operations of torch had allocated at most."""
    with PeakBytes() as counter:
        work()
    return counter.peak


# --- The structure ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "mode"), [*USUAL, *LOOKING])
def test_a_structure_is_measured_without_memory_of_the_models_size(kind, mode, tmp_path):
    model = empty(kind, mode, tmp_path)
    assert any(weight.is_meta for weight in model.parameters())
    assert taken(lambda: groups_in(model)) < size_of(model) / 8
    assert taken(lambda: model.to_empty(device="cpu")) >= size_of(model) > MEBIBYTE, "control"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(EVERY))
def test_the_structure_of_every_kind_is_measured_without_memory(kind, tmp_path):
    mode = next(mode for mode, (_, mapping) in CLASSES.items() if kind in mapping)
    model = empty(kind, mode, tmp_path)
    try:
        assert taken(lambda: groups_in(model)) < max(size_of(model) / 4, MEBIBYTE)
    except sg.GraftError as error:
        assert "\n" not in str(error)


def test_zeros_in_place_of_values_take_no_memory_before_they_are_written_to():
    config = hf.RoFormerConfig(vocab_size=200, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=16)
    with torch.device("meta"):
        model = hf.RoFormerForMaskedLM(config)
    assert size_of(model) > 250 * MEBIBYTE
    before = anonymous()
    zeros = probing.with_zeros(model)
    order = probing._run_on_values(zeros).order
    assert anonymous() - before < 60 * MEBIBYTE
    assert order == probing.run_of(model).order and len(order) > 100
    zeros.to(torch.float64)
    assert anonymous() - before > 250 * MEBIBYTE, "control"


# --- Folders ---------------------------------------------------------------------------------------------------------------

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 300}
TEXT = {**WIDTH, "max_position_embeddings": 64}
HEADS = {"num_key_value_heads": 2}
# form of a checkpoint: class, config, how it is saved
FORMS: dict[str, tuple[type, hf.PreTrainedConfig, dict]] = {
    "shards": (hf.BertForSequenceClassification, hf.BertConfig(**TEXT, num_labels=3), {"max_shard_size": "60KB"}),
    "tied": (hf.LlamaForCausalLM, hf.LlamaConfig(**TEXT, **HEADS, tie_word_embeddings=True), {}),
    "untied": (hf.LlamaForCausalLM, hf.LlamaConfig(**TEXT, **HEADS), {"max_shard_size": "60KB"}),
    "experts one by one": (hf.MixtralForCausalLM, hf.MixtralConfig(**TEXT, **HEADS, num_local_experts=4), {}),
    "experts of Qwen": (
        hf.Qwen3MoeForCausalLM,
        hf.Qwen3MoeConfig(**TEXT, **HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8),
        {"max_shard_size": "60KB"},
    ),
    "experts joined": (
        hf.MixtralForCausalLM, hf.MixtralConfig(**TEXT, **HEADS, num_local_experts=4), {"save_original_format": False}
    ),
    "other names in memory": (
        hf.ViTForImageClassification,
        hf.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8),
        {},
    ),
    "other spans in memory": (
        hf.Dinov2ForImageClassification,
        hf.Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=28, use_swiglu_ffn=True), {},
    ),
}  # fmt: skip


@pytest.fixture(params=FORMS)
def sides(request, tmp_path):
    """Two live models of a form, and the folders that they were saved in, which have no tokenizer."""
    kind, config, options = FORMS[request.param]
    torch.manual_seed(0)
    base = kind(config).eval()
    tuned = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(1)
    for weight in tuned.parameters():
        weight.data += 0.05 * torch.randn(weight.shape, generator=generator) * (torch.rand(weight.shape, generator=generator) < 0.1)
    for name, model in {"base": base, "tuned": tuned}.items():
        model.save_pretrained(tmp_path / name, **options)
    return base, tuned, tmp_path


def files_of(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if "model" in file.name}


@pytest.mark.parametrize("region", [None, "all"])
def test_folders_of_every_form_give_the_patch_of_live_models_and_take_it(sides, region):
    base, tuned, folder = sides
    pair = sg.read_pair(folder / "base", folder / "tuned")
    assert isinstance(pair, StoredPair)
    live, stored = (sg.localize(*ends, sparsity=0.02, parameters=region) for ends in ((base, tuned), (pair,)))
    assert live == stored and live != sg.localize(pair, sparsity=0.03, parameters=region)
    patch = sg.Patch.of(pair, mask=stored)
    about = {name: getattr(patch.use, name) for name in ("source", "revision")} | {"name": patch.use.base}
    assert patch == sg.Patch.of(base, tuned, live, labels=patch.use.labels, **about)
    patch.save_pretrained(folder / "patch")
    graft("apply", folder / "patch", "--base", folder / "base", "--to", folder / "applied")
    assert files_of(folder / "applied") == files_of(folder / "base")
    names = [{*safe_open(file, "pt").keys()} for file in sorted((folder / "base").glob("*.safetensors"))]
    assert [{*safe_open(file, "pt").keys()} for file in sorted((folder / "applied").glob("*.safetensors"))] == names
    wanted, kind = sg.graft(base, tuned, live).state_dict(), type(base)
    assert same(kind.from_pretrained(folder / "applied").state_dict(), wanted)
    assert same(patch.apply(folder / "base").state_dict(), wanted)
    assert not same(kind.from_pretrained(folder / "base").state_dict(), wanted), "control"


def test_a_tensor_is_read_in_even_pieces_whatever_it_lies_in(sides, monkeypatch):
    monkeypatch.setattr(select, "CACHED", 100)
    base, _, folder = sides
    named = named_as(Checkpoint.open(str(folder / "base"), tokenizer=False), base)
    for name, values in base.state_dict().items():
        parts = [*named.pieces(name)]
        assert torch.equal(torch.cat(parts), values.reshape(-1)) and torch.equal(named[name], values)
        assert {len(part) for part in parts[:-1]} <= {select.piece_size()}
        at = torch.arange(0, values.numel(), 7)
        assert torch.equal(named.take(name, at), values.reshape(-1)[at])


def test_a_pickle_is_no_checkpoint(tmp_path):
    hf.BertModel(hf.BertConfig(**TEXT)).save_pretrained(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(sg.GraftError, match="pytorch_model.bin is a pickle, which can run code"):
        Checkpoint.open(str(tmp_path), tokenizer=False)


@pytest.mark.parametrize("how", ["ties", "dare"])
def test_folders_are_merged_as_live_models_are(sides, how, monkeypatch):
    monkeypatch.setattr(inputs, "CACHED", 2000)
    base, tuned, folder = sides
    other = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(2)
    for weight in other.parameters():
        weight.data += 0.05 * torch.randn(weight.shape, generator=generator)
    other.save_pretrained(folder / "other")
    pair = sg.read_pair(folder / "base", folder / "tuned")
    body = Region({name: tuple(outline(pair.before, name).shape) for name in pair.weights if name not in pair.heads})
    live = {name: (model, GraftMask.full(body)) for name, model in {"tuned": tuned, "other": other}.items()}
    made = sg.merge(folder / "base", {name: folder / name for name in live}, how, to=folder / "merged")
    wanted = sg.merge(base, live, how).state_dict()
    assert made == folder / "merged" and files_of(made) == files_of(folder / "base")
    assert same(type(base).from_pretrained(made).state_dict(), wanted)
    masks = {name: sg.localize(base, model, sparsity=0.1, parameters="all") for name, (model, _) in live.items()}
    some = {"tuned": (pair, masks["tuned"]), "other": sg.Patch.of(sg.read_pair(folder / "base", folder / "other"), mask=masks["other"])}
    sg.merge(folder / "base", some, how, to=folder / "some")
    wanted = sg.merge(base, {name: (live[name][0], mask) for name, mask in masks.items()}, how).state_dict()
    assert same(type(base).from_pretrained(folder / "some").state_dict(), wanted)
    assert not same(wanted, base.state_dict()), "control"


def test_what_is_copied_is_the_folders_own_and_what_its_name_says(tmp_path):
    base, to, secret = tmp_path / "base", tmp_path / "to", tmp_path / "secret"
    hf.BertModel(hf.BertConfig(**TEXT)).save_pretrained(base)
    secret.write_text("{}")
    blob = tmp_path / "models--me--pico/blobs/0123"
    blob.parent.mkdir(parents=True)
    blob.write_text("{}")
    (base / "own.json").write_text("{}")
    for target, words in ((base / "own.json", None), (blob, None), (secret, f"is a link to {secret}, outside of its folder")):
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        (base / "tokenizer.json").unlink(missing_ok=True)
        (base / "tokenizer.json").symlink_to(target)
        with pytest.raises(sg.GraftError, match=words) if words else nullcontext():
            copy_beside(Checkpoint.open(str(base), tokenizer=False), to)
        assert (to / "tokenizer.json").exists() == (words is None)
    (base / "tokenizer.json").unlink()
    (base / "tokenizer.json").write_text("root:x:0:0")
    with pytest.raises(sg.GraftError, match="not valid JSON"):
        copy_beside(Checkpoint.open(str(base), tokenizer=False), to)


@pytest.mark.parametrize(("changes", "words"), [
    ({"layer_norm_eps": math.nan}, "config.json: layer_norm_eps is nan, and should be a finite number"),
    ({"num_labels": 10**9}, "config.json: num_labels should be a number of labels, at most 1,000,000, not 1000000000"),
    ({"num_hidden_layers": 100_000}, "config.json: num_hidden_layers is 100,000, and its files have 39 tensors in all"),
])  # fmt: skip
def test_settings_that_no_model_can_have_are_refused(changes, words, tmp_path):
    for name in ("base", "tuned"):
        hf.BertModel(hf.BertConfig(**TEXT)).save_pretrained(tmp_path / name)
    assert sg.read_pair(tmp_path / "base", tmp_path / "tuned"), "control: without a tokenizer"
    set_config(tmp_path / "tuned", **changes)
    for pair in (("base", "tuned"), ("tuned", "base")):
        with pytest.raises(sg.GraftError, match=words):
            sg.read_pair(*(tmp_path / name for name in pair))


def test_a_config_without_a_class_is_of_that_whose_tensors_are_there(tmp_path):
    for name in ("base", "tuned"):
        hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=300)).save_pretrained(tmp_path / name)
        set_config(tmp_path / name, architectures=None)
    assert sg.read_pair(tmp_path / "base", tmp_path / "tuned").kind == "GPT2LMHeadModel"


def test_a_tie_is_one_however_it_is_saved(tmp_path):
    torch.manual_seed(0)
    base = hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, **HEADS, tie_word_embeddings=True))
    tuned = copy.deepcopy(base)
    tuned.model.layers[0].mlp.up_proj.weight.data += 0.1
    for name, model in {"base": base, "tuned": tuned}.items():
        model.save_pretrained(tmp_path / name)
    table, own = "model.embed_tokens.weight", "lm_head.weight"
    wanted = sg.localize(base, tuned, sparsity=0.1)
    edits = {  # how the tensors are saved, and what the config says
        "twice": (lambda values: values.update({own: values[table].clone()}), True),
        "equal and untied": (lambda values: None, False),
        "under the head's name": (lambda values: values.pop(table), True),
    }
    for words, (edit, tie) in edits.items():
        edit_tensors(tmp_path / "tuned", edit)
        set_config(tmp_path / "tuned", tie_word_embeddings=tie)
        assert sg.localize(sg.read_pair(tmp_path / "base", tmp_path / "tuned"), sparsity=0.1) == wanted, words
    edit_tensors(tmp_path / "tuned", lambda values: values.update({table: values[own] + 1}))
    for tie, words in ((True, "other values for it; pass one"), (False, "lm_head.weight is its own, .* pass a base")):
        set_config(tmp_path / "tuned", tie_word_embeddings=tie)
        with pytest.raises(sg.GraftError, match=words):
            sg.read_pair(tmp_path / "base", tmp_path / "tuned")


def test_a_base_is_hashed_once_and_beside_the_search_for_its_mask(tmp_path, monkeypatch):
    torch.manual_seed(0)
    base = hf.BertForSequenceClassification(hf.BertConfig(**TEXT, num_labels=2))
    base.save_pretrained(tmp_path / "base")
    for weight in base.parameters():
        weight.data += 0.01
    base.save_pretrained(tmp_path / "tuned")
    made, threads = fingerprints._identify, []

    def watched(*of: object) -> fingerprints.Known:
        threads.append(threading.current_thread() is threading.main_thread())
        return made(*of)

    monkeypatch.setattr(fingerprints, "_identify", watched)
    graft("localize", "--base", tmp_path / "base", "--finetuned", tmp_path / "tuned", "--to", tmp_path / "patch", "--sparsity", 0.1)
    assert threads == [False]
    pair = sg.read_pair(tmp_path / "base", tmp_path / "tuned")
    mask = sg.localize(pair, sparsity=0.1)
    assert sg.Patch.of(pair, mask=mask).use.fingerprint == sg.Patch.from_pretrained(tmp_path / "patch").use.fingerprint
    assert threads == [False, True], "control"


def opened(tmp_path: Path) -> StoredPair:
    """A pair of two folders, tensors of which have two types; some values are no number in both."""
    torch.manual_seed(0)
    base = hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, **HEADS, tie_word_embeddings=True))
    tuned = copy.deepcopy(base)
    for number, weight in enumerate(tuned.parameters()):
        weight.data += 0.01 * torch.randn(weight.shape) * (number + 1)

    def narrow(values: dict[str, torch.Tensor]) -> None:
        for name in values:
            if "norm" not in name:
                values[name] = values[name].bfloat16()
        first = values["model.layers.0.self_attn.q_proj.weight"].view(torch.int16)
        first[0, :3] = torch.tensor([0x7FC1, 0x7F80, -32767], dtype=torch.int16)  # NaN with a payload, infinity, a small number

    for name, model in {"base": base, "tuned": tuned}.items():
        model.save_pretrained(tmp_path / name)
        edit_tensors(tmp_path / name, narrow)
    return sg.read_pair(tmp_path / "base", tmp_path / "tuned")


def test_whether_there_is_a_tensor_and_its_type_and_shape_are_told_without_reading_it(tmp_path, monkeypatch):
    pair = opened(tmp_path)
    name, norm = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"

    def refuse(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(Checkpoint, "read", refuse)
    for side in (pair.before, pair.compared, pair.after):
        assert name in side and "other" not in side and 3 not in side
        assert outline(side, name).dtype == torch.bfloat16 and outline(side, norm).dtype == torch.float32
        assert outline(side, name).shape == (32, 32)
        with pytest.raises(AssertionError, match="read"):
            side[name]
    file = tmp_path / "base" / "model.safetensors"
    assert next(pair.before.pieces(norm)).shape == (32,)
    with file.open("r+b") as written:
        written.truncate(file.stat().st_size // 2)
    with pytest.raises(sg.GraftError, match=r"base/model.safetensors: damaged: it ends before the last of its tensors does"):
        for one in pair.before:
            next(pair.before.pieces(one))


@pytest.mark.parametrize("sizes", [(0.02,), (0.005, 0.02, 0.3)])
def test_values_at_a_mask_are_those_that_were_read_when_it_was_looked_for(sizes, tmp_path, monkeypatch):
    pair = opened(tmp_path)
    wanted = {size: sg.localize(pair, sparsity=size, parameters=["layers"]) for size in sizes}
    values = {size: [values_at(side, mask) for side in (pair.compared, pair.after)] for size, mask in wanted.items()}
    read = Named.take

    def refuse(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(Named, "take", refuse)
    words = ("localize", "--base", tmp_path / "base", "--finetuned", tmp_path / "tuned", "--sparsity", *sizes, "--region", "layers")
    graft(*words, "--to", tmp_path / "patch")
    with pytest.raises(AssertionError, match="read"):  # control: a localizer that doesn't say what it has read
        graft(*words, "--to", tmp_path / "other", "--localizer", "random")
    monkeypatch.setattr(Named, "take", read)
    for size in sizes:
        patch = sg.Patch.from_pretrained(tmp_path / "patch" / (f"{size:g}" if len(sizes) > 1 else ""))
        assert patch.mask == wanted[size]
        assert {name: part.view(BITS[part.itemsize]).tolist() for name, part in patch.values.items()} == {
            name: part.view(BITS[part.itemsize]).tolist() for name, part in values[size][1].items()
        }
        assert {part.dtype for part in patch.values.values()} == {torch.bfloat16, torch.float32}


@given(st.integers(0, 10_000), st.integers(1, 40), st.lists(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), min_size=1, max_size=4))
def test_the_best_come_with_the_bits_of_what_their_scores_were_made_of(seed, k, kinds):
    draw = torch.Generator().manual_seed(seed)
    sides = [{str(n): torch.randn(5, 3, generator=draw).to(kind) for n, kind in enumerate(kinds)} for _ in range(2)]
    region = Region({str(n): (5, 3) for n in range(len(kinds))})
    k = min(k, region.size)
    scores = select.Elementwise(region.shapes, lambda one, other: (one.float() - other.float()).abs(), *sides)
    values, indices, *found = select.best(region, scores, k, sources=True)
    assert same({"": values, "at": indices}, dict(zip(("", "at"), select.best(region, scores, k), strict=True)))
    mask = GraftMask.from_region_indices(region, indices)
    for side, bits in zip(sides, found, strict=True):
        parts = values_at(side, mask)
        sizes = [part.numel() for part in parts.values()]
        for (name, part), one in zip(parts.items(), bits.split(sizes), strict=True):
            assert torch.equal(select.of_bits(one, part.dtype), part), name


def test_bytes_of_a_patch_do_not_depend_on_the_number_of_threads(tmp_path):
    """Sums in parts of the threads have other last digits: what is left out is said in six."""
    pair, threads = opened(tmp_path), torch.get_num_threads()
    told = sg.localize(pair, sparsity=0.02).record["left_out"]["share"]
    squares = {name: square for name, square in pair.squares.items() if math.isfinite(square)}
    exact = squares["model.embed_tokens.weight"] / sum(squares.values())
    assert told == float(f"{exact:.6g}") != exact
    made = []
    for number in (1, threads + 1):
        torch.set_num_threads(number)
        try:
            graft("localize", "--base", tmp_path / "base", "--finetuned", tmp_path / "tuned", "--sparsity", 0.02, "--to", tmp_path / f"{number}")
            assert torch.get_num_threads() == number, "as it was before"
        finally:
            torch.set_num_threads(threads)
        made.append({file.name: file.read_bytes() for file in (tmp_path / f"{number}").iterdir()})
    assert made[0] == made[1]
