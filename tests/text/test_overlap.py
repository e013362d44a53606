"""Overlap by chance against what is expected of it, and where parameters lie, by name."""

from math import comb

import pytest
import torch
from transformers import AutoModel

from skill_grafting.grafting import composition as places
from skill_grafting.grafting.composition import composition, kind_of, layer_of
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region
from stages.text.scores.overlap import chance, overlap, share_inside
from tests.pico import random_mask, small_config


@pytest.mark.parametrize(("first", "second", "size"), [(3, 5, 12), (40, 70, 300), (1, 1, 5), (8, 8, 8)])
def test_chance_is_the_hypergeometric_expectation(first, second, size):
    weights = {
        common: comb(first, common) * comb(size - first, second - common) / comb(size, second)
        for common in range(max(0, first + second - size), min(first, second) + 1)
    }
    asymmetric = sum(weight * common / second for common, weight in weights.items())
    exact = sum(weight * common / (first + second - common) for common, weight in weights.items())
    masks = [random_mask(Region({"w": (size,)}), k, 0) for k in (first, second)]
    inside = share_inside(*masks)["chance"]
    assert inside == pytest.approx(asymmetric)
    assert chance(first, second, size) == overlap(*masks)["chance"] <= exact + 1e-12
    assert chance(first, second, size) == pytest.approx(exact, rel=1.05 / max(first, second))
    if 1 < first < size:  # a control: the other measure's chance is not taken for this one's
        assert inside != pytest.approx(exact, rel=0.1)


def test_what_is_nothing_has_no_chance():
    assert chance(0, 0, 10) == 0
    full, nothing = (make(Region({"w": (3,)})) for make in (GraftMask.full, GraftMask.empty))
    assert share_inside(full, nothing) == {"overlap": 0, "chance": 0}


FAMILIES = "bert gpt2 llama mpnet distilbert albert deberta-v2 electra roberta xlm-roberta camembert modernbert opt gpt_neox bloom phi phi3 qwen2 qwen3 mistral gemma"


# maps of their own, and what of theirs may be of no kind
OTHERS = {"mamba": ({"state space"}, ""), "mixtral": ({*(places.QUERY, places.KEY, places.VALUE, places.ATTENTION_OUTPUT, places.FIRST, places.SECOND)}, "mlp.gate.weight")}


@pytest.mark.parametrize("family", [*FAMILIES.split(), *OTHERS])
def test_every_weight_inside_the_layers_has_a_kind(family):
    with torch.device("meta"):
        names = [name for name, _ in AutoModel.from_config(small_config(family)).named_parameters()]
    kinds = {name: kind_of(name) for name in names if layer_of(name) is not None}
    maps = {*kinds.values()} - {places.LAYER_NORM, places.BIAS, places.OTHER}
    assert places.OTHER in {kind_of(name) for name in names if name not in kinds}, "control: embeddings are nothing of the kind"
    attention = {places.FUSED} if places.FUSED in maps else {places.QUERY, places.KEY, places.VALUE}
    wanted, left_out = OTHERS.get(family, (attention | {places.ATTENTION_OUTPUT, places.FIRST, places.SECOND}, ""))
    others = [name for name, kind in kinds.items() if kind == places.OTHER]
    assert maps == wanted and bool(others) == bool(left_out) and all(name.endswith(left_out) for name in others)


def test_roberta_and_attention_output_are_told_from_feed_forward_output():
    stem = "roberta.encoder.layer.11"
    assert kind_of(f"{stem}.attention.output.dense.weight") == places.ATTENTION_OUTPUT
    assert kind_of(f"{stem}.output.dense.weight") == places.SECOND
    assert kind_of(f"{stem}.attention.output.LayerNorm.bias") == places.LAYER_NORM
    assert kind_of(f"{stem}.output.dense.bias") == places.BIAS
    assert layer_of(f"{stem}.output.dense.bias") == 11 and layer_of("head.fc2.bias") is None
    assert layer_of("model.layers.2.mlp.experts.7.up.weight") == 2, "the first number"


def test_composition_adds_up():
    value, dense = "m.layer.0.attention.self.value", "m.layer.1.intermediate.dense"
    shapes = {f"{value}.weight": (4, 5), f"{value}.bias": (5,), f"{dense}.weight": (5, 15)}
    rows = composition({f"{value}.weight": 3, f"{dense}.weight": 1}, shapes)
    assert [(row["layer"], row["kind"], row["selected"], row["parameters"]) for row in rows] == [
        (0, places.VALUE, 3, 20), (0, places.BIAS, 0, 5), (1, places.FIRST, 1, 75),
    ]  # fmt: skip
    assert [row["share"] for row in rows] == [0.75, 0, 0.25]
    assert [row["chance"] for row in rows] == [0.2, 0.05, 0.75]
    assert all(row["share"] == 0 for row in composition({}, shapes))
