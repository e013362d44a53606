"""export: a graft as an adapter that peft loads: Super-Tuning, sparse values that are added to the weights of linear layers.

peft gives each layer int(size * (1 - sparsity)) places, of one sparsity for all, so what a layer doesn't need is padded with
zeros.  Norms and a new head go along whole, as modules to save; biases of linear layers can't be held, nor can embeddings.
"""

import copy
from collections.abc import Iterator
from functools import partial
from math import nextafter
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..grafting.apply import put_at, take_at, write
from ..grafting.region import Tensors, named_weights
from ..models.probing import probe, without_cache
from ..support.errors import MaskError, one_line
from ..support.formatting import counted
from ..support.io import write_json
from ..support.writing import require_free
from .card import PEFT, write_folder
from .patch_file import PatchContent, read_patch
from .placing import load_base, require_fitting

CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# end of the name of a class of transformers -> what peft calls its task
TASKS = {"ForSequenceClassification": "SEQ_CLS", "LMHeadModel": "CAUSAL_LM", "ForCausalLM": "CAUSAL_LM"}


def export(patch: Path, base: str, to: Path, leave_out: bool) -> str:
    """Write a patch as an adapter of peft to a new folder; gives one line about it.

    Raises MaskError if the patch is damaged, was made for another model than `base` or doesn't fit an adapter, and StorageError if
    something is at `to`.
    """
    target, one = require_free(to), read_patch(patch)
    model = load_base(one, base)
    require_fitting(one, model, f"the model in {base}")
    return write_folder(target, one, PEFT, lambda folder: write_adapter(folder, one, model, leave_out))


def write_adapter(folder: Path, patch: PatchContent, base: nn.Module, leave_out: bool) -> str:
    """Write the two files of an adapter on this base model; gives a sentence about what it does and doesn't hold.

    Raises MaskError if values must be left out and may not be, if nothing is held by layers, or if the model would compute
    otherwise with the adapter than with the graft.
    """
    model = copy.deepcopy(base)
    use, indices, weights = patch.use, patch.mask.indices, named_weights(model)
    linear, norms, left = _holders(patch, model)
    missing = f"{sum(len(indices[name]) for name in left):,} of {patch.mask.selected:,} values"
    if left and not leave_out:
        hint = "--leave-out (in Python leave_out=True) leaves these as they were pretrained"
        raise MaskError(
            f"a peft adapter, which holds linear weights and norms, can't hold {missing} (of {left[0]}, ...); {hint}"
        )
    if not linear:
        raise MaskError("the patch selects nothing in the weights of linear layers, which an adapter is made of")
    deltas, exactness = _deltas(patch, weights, linear)
    sparsity = common_sparsity([(len(deltas[name]), weights[name].numel()) for name in linear])
    tensors = {}
    for name in linear:
        places = _padded(indices[name], deltas[name], weights[name].numel(), sparsity)
        module = PREFIX + name.removesuffix(".weight")
        tensors |= zip((f"{module}.supertuning_indices", f"{module}.supertuning_values"), places, strict=True)
    _put_equal_logits(patch, model, deltas, norms)  # which leaves head and norms as the graft has them
    whole = [*patch.head, *(f"{norm}.{part}" for norm, parts in norms.items() for part in parts)]
    tensors |= {PREFIX + name: weights[name].detach().contiguous() for name in whole}
    config = {
        "peft_type": "SUPERTUNING",
        "task_type": next((task for end, task in TASKS.items() if (use.model_class or "").endswith(end)), None),
        "base_model_name_or_path": use.base,
        "revision": use.revision,
        "inference_mode": True,
        "sparsity": sparsity,
        "target_modules": [name.removesuffix(".weight") for name in linear],
        "modules_to_save": [*dict.fromkeys([*norms, *_head_modules(patch)])] or None,
    }
    write_json(folder / CONFIG, config)
    save_file(tensors, folder / ADAPTER, metadata={"format": "pt"})
    held = f"{sum(map(len, deltas.values())):,} values in {len(linear)} linear weights, {counted(len(norms), 'norm')} whole"
    return f"{held}; {exactness}" + (f"; left out: {missing}" if left else "")


def _deltas(patch: PatchContent, weights: Tensors, names: list[str]) -> tuple[dict[str, Tensor], str]:
    """float32 differences at the places of a mask in some of its tensors, and a sentence on how exact base + delta is.

    `after - before` in float32 gives the value to the bit wherever any float32 does: not always where a value ends far nearer
    to zero than it began, since the sum lies on the coarser grid of its terms.
    """
    deltas, missed, furthest = {}, 0, 0.0
    for name in names:
        before, after = take_at(weights[name], patch.mask.indices[name]), patch.values[name].float()
        deltas[name] = after - before
        gap = (before + deltas[name] - after).abs()
        missed, furthest = missed + int((gap > 0).sum()), max(furthest, float(gap.max()) if len(gap) else 0.0)
    where = f"but for {missed:,}, off by {furthest:.1e} at most" if missed else "everywhere"
    return deltas, f"base + delta is the fine-tuned value to the bit {where}"


def _put_equal_logits(
    patch: PatchContent, model: nn.Module, deltas: dict[str, Tensor], norms: dict[str, list[str]]
) -> None:
    """Put the graft onto the model, but for what is left out; MaskError if differences beside its linear layers give other logits.

    They do where a model reads the weight of a layer without calling the layer.
    """
    weights, stored, indices = named_weights(model), patch.stored, patch.mask.indices

    def add(name: str, layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        delta = torch.zeros_like(layer.weight)
        put_at(delta, indices[name], deltas[name])
        return output + nn.functional.linear(inputs[0], delta)

    write([(weights[name], None, part) for name, part in stored.head.items()])
    in_norms = [name for name in indices if name.rpartition(".")[0] in norms]
    write([(weights[name], indices[name], stored.values[name]) for name in in_norms])
    layers = {name: model.get_submodule(name.removesuffix(".weight")) for name in deltas}
    hooks = [layer.register_forward_hook(partial(add, name)) for name, layer in layers.items()]
    with torch.inference_mode():
        adapted = _logits(model)
        for hook in hooks:
            hook.remove()
        write([(weights[name], indices[name], stored.values[name]) for name in deltas])
        grafted = _logits(model)
    if (gap := float((adapted - grafted).abs().max())) > 1e-4 * float(grafted.abs().max()):
        problem = (
            f"the logits of this model differ by {gap:.2g}, as it reads the weight of a layer without calling the layer"
        )
        raise MaskError(f"a peft adapter would not be the graft: {problem}; apply it instead")


def _logits(model: nn.Module) -> Tensor:
    """All logits for a short input laid end to end, or of a model without any what it gives."""
    try:
        made = {
            name: one for name, one in model(**probe(model), **without_cache(model)).items() if isinstance(one, Tensor)
        }
    except Exception as error:  # models raise what they like
        problem = f"the {type(model).__name__} can't be run on a short input: {one_line(error)}"
        raise MaskError(f"a peft adapter is compared with the graft, and {problem}; apply it instead") from error
    found = [one for name, one in made.items() if name.endswith("logits")] or [*made.values()]
    return torch.cat([one.flatten() for one in found])


def _head_modules(patch: PatchContent) -> Iterator[str]:
    """The modules that a new head is made of: the outermost ones with nothing else in them."""
    for name in patch.head:
        parts = name.split(".")
        around = (".".join(parts[:depth]) for depth in range(1, len(parts)))
        yield next(part for part in around if not any(other.startswith(f"{part}.") for other in patch.region.shapes))


def common_sparsity(sizes: list[tuple[int, int]]) -> float:
    """The highest sparsity at which peft gives each layer, of (values needed, parameters), no fewer places than it needs."""
    sparsity = 1 - max(needed / size for needed, size in sizes)
    while any(int(size * (1 - sparsity)) < needed for needed, size in sizes):
        sparsity = nextafter(sparsity, 0)
    return sparsity


def _holders(patch: PatchContent, model: nn.Module) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Selected parameters by how they are held: weights of linear layers, norms with all their parameters, not at all."""
    linear, norms, left = [], {}, []
    for name in patch.mask.indices:
        owner, _, part = name.rpartition(".")
        module = model.get_submodule(owner)
        parts = dict(module.named_parameters())
        if type(module) is nn.Linear and part == "weight":  # what derives from it may compute otherwise
            linear.append(name)
        elif not isinstance(module, nn.Linear) and all(
            one.dim() == 1 and "." not in path for path, one in parts.items()
        ):
            norms[owner] = [*parts]
        else:
            left.append(name)
    return linear, norms, left


def _padded(indices: Tensor, values: Tensor, size: int, sparsity: float) -> tuple[Tensor, Tensor]:
    """As many places (int32) and values as peft has, those that aren't needed the first free ones, with a zero that changes no bit."""
    free = torch.ones(size, dtype=torch.bool)
    free[indices] = False
    more = torch.nonzero(free).view(-1)[: int(size * (1 - sparsity)) - len(indices)]
    return torch.cat([indices, more]).to(torch.int32), torch.cat([values, torch.full((len(more),), -0.0)])
