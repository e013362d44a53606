"""In which layers and which kinds of modules the parameters of a mask lie (figures 9 and 10 of the paper).

Told by names, since a mask file knows no more: those of BERT, RoBERTa, GPT-2 and Llama.  The biases
of linear maps are a kind of their own; LayerNorm keeps its biases, as in the paper's figure 10.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

QUERY, KEY, VALUE = "attention query", "attention key", "attention value"
FUSED, ATTENTION_OUTPUT = "attention query, key, value", "attention output"
FIRST, SECOND = "feed-forward first", "feed-forward second"
LAYER_NORM, BIAS, OTHER = "LayerNorm", "bias", "other"
# stands for no layer in frames, whose layers are numbers
OUTSIDE = -1
KINDS = (QUERY, KEY, VALUE, FUSED, ATTENTION_OUTPUT, FIRST, SECOND, LAYER_NORM, BIAS, OTHER)

# the last two components before "weight" or "bias" tell the map, the first match counts
MODULES = {
    "self.query": QUERY, "self.key": KEY, "self.value": VALUE,
    "self_attn.q_proj": QUERY, "self_attn.k_proj": KEY, "self_attn.v_proj": VALUE, "attn.c_attn": FUSED,
    "attention.output.dense": ATTENTION_OUTPUT, "self_attn.o_proj": ATTENTION_OUTPUT, "attn.c_proj": ATTENTION_OUTPUT,
    "intermediate.dense": FIRST, "mlp.c_fc": FIRST, "mlp.gate_proj": FIRST, "mlp.up_proj": FIRST,
    "output.dense": SECOND, "mlp.c_proj": SECOND, "mlp.down_proj": SECOND,
}  # fmt: skip
NORMS = ("layernorm", "layer_norm", "ln_1", "ln_2", "ln_f", "norm")


def layer_of(name: str) -> int | None:
    """The number of a parameter's layer, the first component of its name that is all digits; None outside the layers."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def kind_of(name: str) -> str:
    """The kind of module of a parameter, one of KINDS; gate and up projection of Llama both count as the first map."""
    module, _, last = name.rpartition(".")
    if module.lower().endswith(NORMS):
        return LAYER_NORM
    if last == "bias":
        return BIAS
    return next((kind for ending, kind in MODULES.items() if module.endswith(ending)), OTHER)


def composition(counts: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """Rows layer, kind, selected, parameters, share, chance: one for each layer and kind the region has.

    counts: how many parameters of each tensor are selected, none where it isn't named.  `share` is of the selected parameters,
    `chance` the share of the graftable ones, which a random mask has; both add up to 1, share to 0 for an empty mask.
    """
    inside, parameters = Counter(), Counter()
    for name, shape in shapes.items():
        place = layer_of(name), kind_of(name)
        inside[place] += counts.get(name, 0)
        parameters[place] += prod(shape)
    selected, graftable = inside.total() or 1, parameters.total()
    return [
        {"layer": place[0], "kind": place[1], "selected": inside[place], "parameters": size}
        | {"share": inside[place] / selected, "chance": size / graftable}
        for place, size in parameters.items()
    ]


def by_tensor(counts: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """Rows tensor, layer, kind, part (weight or bias), parameters, selected, share: one for each tensor of the region.

    counts: how many parameters of each tensor are selected, none where it isn't named.  `share` is of
    the tensor's own parameters, so its mean weighted by `parameters` is the sparsity of the mask.
    """
    rows = []
    for name, shape in shapes.items():
        inside, size = counts.get(name, 0), prod(shape)
        place = {"tensor": name, "layer": layer_of(name), "kind": kind_of(name), "part": name.rpartition(".")[2]}
        rows.append({**place, "parameters": size, "selected": inside, "share": inside / size})
    return rows
