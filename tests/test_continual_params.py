"""Orders of tasks in params.yaml: found by name, checked against the main pipeline, handed out one at a time."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from stages.commands import profile
from stages.lib.errors import ParamsError
from stages.lib.params import load_params, validate
from stages.lib.yaml12 import load_yaml

PARAMS = Path(__file__).parents[1] / "params.yaml"
ORDERS = {"there": ["movies", "bbc"], "back": ["bbc", "movies"]}
FINE = {"methods": ["naive", "ewc"], "orders": ["there"], "max_steps": None, "rate_factors": [1.0], "test_max": 0}


def raw(sequence: dict[str, Any], orders: Any = ORDERS) -> dict[str, Any]:
    main = {"tasks": ["movies", "products", "bbc"], "seeds": [13, 21]}
    return load_yaml(PARAMS, ParamsError) | main | {"sequence": FINE | sequence, "order": orders}


@pytest.mark.parametrize(
    ("sequence", "orders", "expected"),
    [
        ({"orders": ["their"]}, ORDERS, "sequence.orders: 'their' is not among order (there, back) (did you mean 'there'?)"),
        ({"orders": ["there"]}, {}, "sequence.orders: 'there' is not among order (empty)"),
        ({}, {"there": ["bbc", "movies", "bbc"]}, "order.there: bbc stands twice"),
        ({"methods": ["nave"]}, ORDERS, "sequence.methods.0: 'nave' is not allowed: should be 'naive', 'grafting', 'replay' or 'ewc' (did you mean 'naive'?)"),
        ({"orders": ["a.b"]}, {"a.b": ["bbc", "movies"]}, "order: 'a.b' has a dot in it, which stands between a section and its settings; use _ instead"),
    ],
    ids=["unknown", "none", "twice", "method", "dot"],
)  # fmt: skip
def test_what_does_not_fit_is_named_where_sequences_are_used_and_nowhere_else(sequence, orders, expected):
    with pytest.raises(ParamsError) as caught:
        validate(raw(sequence, orders), asked=["sequence"])
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [expected]
    assert validate(raw(sequence, orders), asked=["finetune"])


def test_a_stage_that_is_off_has_no_rules():
    for name in ("methods", "orders"):
        assert validate(raw({"orders": ["nix"], name: []}, {}), asked=["sequence"])


def test_a_stage_is_given_the_order_and_the_method_that_it_asks_for_alone():
    chosen = load_params("order.domain_first", "method.replay", path=PARAMS)
    assert vars(chosen.order) == {"domain_first": load_yaml(PARAMS, ParamsError)["order"]["domain_first"]}
    assert [*vars(chosen.method)] == ["replay"] and chosen.method.replay.every >= 1


def test_a_profile_replaces_all_orders():
    text = profile.apply(PARAMS.read_text(encoding="utf-8"), {"order": ORDERS, "sequence": {"orders": ["back"]}})
    assert YAML(typ="safe").load(text)["order"] == ORDERS
