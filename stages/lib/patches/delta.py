"""A graft as differences, to be added to the base model, for tools that take those in place of values.

They go into one tensor for each of the base model's, into a file of indices and differences, or into an adapter that peft
loads: Super-Tuning, sparse values that are added to the weights of linear layers.  peft gives each layer
int(size * (1 - sparsity)) places, of one sparsity for all, so what a layer doesn't need is padded with zeros.  Norms and a
new head go along whole, as modules to save; biases of linear layers can't be held, nor can embeddings.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import nextafter, prod
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..digest import UNSEALED, seal
from ..errors import MaskError
from ..grafting.apply import values_at
from ..grafting.mask_file import StoredMask, named_tensors
from ..io import write_json
from ..words import small_percent
from .base import Base
from .patch_file import PatchMetadata

FORMAT, VERSION = "graft-delta", 1
DELTA = "delta.safetensors"
CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
TASKS = {"standard": "SEQ_CLS", "prompt": None, "autoregressive": "CAUSAL_LM"}


@dataclass(frozen=True)
class Deltas:
    """float32 differences at the places of a mask; `missed` sums stay beside the fine-tuned value, `furthest` at most."""

    values: dict[str, Tensor]
    missed: int
    furthest: float

    def __str__(self) -> str:
        """The distance that base + delta leaves to the fine-tuned model."""
        if not self.missed:
            return "base + delta is the fine-tuned value to the bit everywhere"
        return f"base + delta is the fine-tuned value to the bit but for {self.missed:,}, off by {self.furthest:.1e} at most"


def deltas_of(patch: StoredMask, base: Base, names: Iterable[str] | None = None) -> Deltas:
    """Differences that make the graft of the base model, or that of some tensors; a new head has no base and is no part of it.

    `after - before` in float32 gives the value to the bit wherever any float32 does: not always where a value ends far
    nearer to zero than it began, since the sum lies on the coarser grid of what it is made of.
    """
    before = values_at(base.tensors, patch.mask)
    after = {name: patch.values[name].to(before[name].dtype) for name in (before if names is None else names)}
    deltas = {name: values - before[name] for name, values in after.items()}
    gaps = [(before[name] + deltas[name] - values).abs() for name, values in after.items()]
    missed = sum(int((gap > 0).sum()) for gap in gaps)
    return Deltas(deltas, missed, max((float(gap.max()) for gap in gaps if len(gap)), default=0.0))


def whole_delta(deltas: Deltas, patch: StoredMask, base: Base) -> dict[str, Tensor]:
    """A tensor for each one of the base model, zero outside the mask; and the new head, whole."""
    tensors = {name: torch.zeros_like(values) for name, values in base.tensors.items()}
    for name, values in deltas.values.items():
        tensors[name].view(-1)[patch.mask.indices[name]] = values
    return {**tensors, **{name: values.float() for name, values in patch.head.items()}}


def write_sparse_delta(deltas: Deltas, patch: StoredMask, use: PatchMetadata, file: Path) -> None:
    """Write indices, differences and the new head alone, sealed like a mask file."""
    head = {name: values.float() for name, values in patch.head.items()}
    shapes = {name: list(shape) for name, shape in patch.mask.region.shapes.items()}
    header = {"format": FORMAT, "version": VERSION, "shapes": shapes, "patch": use.model_dump(), **UNSEALED}
    save_file(named_tensors(patch.mask, deltas.values, head), file, metadata={"graft": json.dumps(header)})
    seal(file)


@dataclass(frozen=True)
class _Plan:
    """Names of the selected parameters by how they are held: weights of linear layers, modules kept whole, not at all."""

    linear: list[str]
    whole: dict[str, list[str]]
    left: list[str]


def make_adapter(
    file: Path, patch: StoredMask, use: PatchMetadata, base: Base, leave_out: bool
) -> tuple[dict[str, Tensor], dict[str, object], str]:
    """Tensors and config of the adapter of a patch, and what it does and doesn't hold, in words.

    Raises MaskError if values must be left out and may not be, or if nothing is held by layers.
    """
    plan = _plan(patch, use, base)
    left = _left_out(patch, plan, base)
    if left and not leave_out:
        raise MaskError(
            f"{file}: a peft adapter can't hold {left}; --leave-out leaves these as they were pretrained, and a mask in "
            "linear weights has none"
        )
    if not plan.linear:
        raise MaskError(f"{file}: selects nothing in the weights of linear layers, which an adapter is made of")
    deltas = deltas_of(patch, base, plan.linear)
    sparsity = common_sparsity([(len(deltas.values[name]), base.tensors[name].numel()) for name in plan.linear])
    tensors, padding = dict(_whole(patch, plan, base)), 0
    for name in plan.linear:
        size, module = base.tensors[name].numel(), PREFIX + name.removesuffix(".weight")
        indices, values = _padded(patch.mask.indices[name], deltas.values[name], size, int(size * (1 - sparsity)))
        tensors |= {f"{module}.supertuning_indices": indices, f"{module}.supertuning_values": values}
        padding += len(values) - len(deltas.values[name])
    config = {
        "peft_type": "SUPERTUNING",
        "task_type": TASKS[use.mode],
        "base_model_name_or_path": use.base,
        "revision": use.revision,
        "inference_mode": True,
        "sparsity": sparsity,
        "target_modules": [name.removesuffix(".weight") for name in plan.linear],
        "modules_to_save": [*dict.fromkeys([*plan.whole, *(name.split(".")[0] for name in patch.head)])] or None,
    }
    return tensors, config, _said(patch, plan, deltas, padding, left)


def write_adapter(tensors: dict[str, Tensor], config: dict[str, object], folder: Path) -> None:
    """Write the two files of an adapter into a folder."""
    write_json(folder / CONFIG, config)
    save_file(tensors, folder / ADAPTER, metadata={"format": "pt"})


def common_sparsity(sizes: list[tuple[int, int]]) -> float:
    """The highest sparsity at which peft gives each layer, of (values needed, parameters), no fewer places than it needs."""
    sparsity = 1 - max(needed / size for needed, size in sizes)
    while any(int(size * (1 - sparsity)) < needed for needed, size in sizes):
        sparsity = nextafter(sparsity, 0)
    return sparsity


def _plan(patch: StoredMask, use: PatchMetadata, base: Base) -> _Plan:
    import transformers

    config = transformers.AutoConfig.from_pretrained(base.folder, trust_remote_code=False)
    with torch.device("meta"):
        model = getattr(transformers, use.auto_class).from_config(config)
    owners = {f"{name}.{part}": (name, module) for name, module in model.named_modules() for part in module._parameters}
    linear, whole, left = [], {}, []
    for name in patch.mask.indices:
        owner, module = owners[name]
        parts = [part for part in module._parameters.values() if part is not None]
        if isinstance(module, nn.Linear) and name.endswith(".weight"):
            linear.append(name)
        elif not isinstance(module, nn.Linear) and not [*module.children()] and all(part.dim() == 1 for part in parts):
            whole[owner] = [f"{owner}.{part}" for part, values in module._parameters.items() if values is not None]
        else:
            left.append(name)
    return _Plan(linear, whole, left)


def _padded(indices: Tensor, values: Tensor, size: int, places: int) -> tuple[Tensor, Tensor]:
    """So many places (int32) and values, those that aren't needed the first free ones, with a zero that changes no bit."""
    free = torch.ones(size, dtype=torch.bool)
    free[indices] = False
    more = torch.nonzero(free).view(-1)[: places - len(indices)]
    return torch.cat([indices, more]).to(torch.int32), torch.cat([values, torch.full((len(more),), -0.0)])


def _whole(patch: StoredMask, plan: _Plan, base: Base) -> Iterator[tuple[str, Tensor]]:
    """Norms with their grafted values, and the head."""
    yield from ((PREFIX + name, values.float()) for name, values in patch.head.items())
    for name in (name for names in plan.whole.values() for name in names):
        values = base.tensors[name].clone()
        if name in patch.mask.indices:
            values.view(-1)[patch.mask.indices[name]] = patch.values[name].to(values.dtype)
        yield PREFIX + name, values


def _left_out(patch: StoredMask, plan: _Plan, base: Base) -> str:
    """The values, of how many, and the share of the movement that no adapter holds; nothing if it holds all."""
    if not plan.left:
        return ""
    moved = {
        name: float((values.double() - base.tensors[name].view(-1)[patch.mask.indices[name]].double()).square().sum())
        for name, values in patch.values.items()
    }
    count = sum(len(patch.values[name]) for name in plan.left)
    biases = sum(len(patch.values[name]) for name in plan.left if name.endswith(".bias"))
    share = sum(moved[name] for name in plan.left) / (sum(moved.values()) or 1)
    return f"{count:,} of {patch.mask.selected:,} values ({biases:,} in biases), {small_percent(share)} of the squared movement"


def _said(patch: StoredMask, plan: _Plan, deltas: Deltas, padding: int, left: str) -> str:
    held = sum(map(len, deltas.values.values()))
    whole = f", {len(plan.whole)} norms whole" if plan.whole else ""
    head = f", the head of {sum(prod(part.shape) for part in patch.head.values()):,} values" if patch.head else ""
    parts = f"{held:,} values in {len(plan.linear)} linear weights, padded by {padding:,}{whole}{head}; {deltas}"
    return parts + (f"; left out: {left}" if left else "")
