"""In which layers and which kinds of modules the parameters of a mask lie (figures 9 and 10 of the paper).

Determined by parameter names, since a mask file has nothing else: those of the usual encoders and causal models.  The biases
of linear maps are a kind of their own; LayerNorm keeps its biases, as in the paper's figure 10.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

QUERY, KEY, VALUE = "attention query", "attention key", "attention value"
FUSED, ATTENTION_OUTPUT = "attention query, key, value", "attention output"
FIRST, SECOND = "feed-forward first", "feed-forward second"
STATE_SPACE, LAYER_NORM, BIAS, OTHER = "state space", "LayerNorm", "bias", "other"
# the number for "no layer" in frames
OUTSIDE = -1
KINDS = (QUERY, KEY, VALUE, FUSED, ATTENTION_OUTPUT, FIRST, SECOND, STATE_SPACE, LAYER_NORM, BIAS, OTHER)

# endings of names, without "weight" or "bias"; the first match counts
ENDINGS = {
    QUERY: "query query_proj q_proj q_lin attn.q",
    KEY: "key key_proj k_proj k_lin attn.k",
    VALUE: "value value_proj v_proj v_lin attn.v",
    FUSED: "attn.c_attn query_key_value qkv_proj in_proj attn.Wqkv",
    ATTENTION_OUTPUT: "attention.output.dense attention.dense self_attention.dense self_attn.dense o_proj out_proj out_lin "
    "attn.c_proj attn.o attn.Wo",
    FIRST: "intermediate.dense c_fc gate_proj up_proj gate_up_proj dense_h_to_4h fc1 lin1 ffn mlp.Wi w1 w3",
    SECOND: "output.dense mlp.c_proj down_proj dense_4h_to_h fc2 lin2 ffn_output mlp.Wo w2",
}
MAPS = {kind: tuple(f".{ending}" for ending in endings.split()) for kind, endings in ENDINGS.items()}
# of Mamba and its kin, alone or beside attention; attention has maps of the last two names, too
MIXERS, SHARED = (".mixer.", ".mamba."), (".in_proj", ".out_proj")
NORMS = ("layernorm", "layer_norm", "ln_1", "ln_2", "ln_f", "norm")


def layer_of(name: str) -> int | None:
    """The number of a parameter's layer, the first component of its name that is all digits; None outside the layers."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def kind_of(name: str) -> str:
    """The kind of module of a parameter, one of KINDS; gate and up projection of Llama both count as the first map, as of experts."""
    module, _, last = name.rpartition(".")
    if module.lower().endswith(NORMS):
        return LAYER_NORM
    if last.endswith("bias"):
        return BIAS
    place = f".{module}" if last == "weight" else f".{name}"  # all experts of a layer may be one tensor
    mixer = any(part in place for part in MIXERS)
    if mixer and place.endswith(SHARED):
        return STATE_SPACE
    return next((kind for kind, endings in MAPS.items() if place.endswith(endings)), STATE_SPACE if mixer else OTHER)


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
