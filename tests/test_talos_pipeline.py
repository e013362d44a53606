"""Task arithmetic under the real DVC, on a tiny model and two tasks: what it makes, and where its numbers must agree."""

import json
from io import BytesIO

import numpy as np
import pandas as pd
import pytest

from stages.lib.grafting.mask_file import read_mask
from stages.lib.metrics.predictions import read_predictions
from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.workflow.core import paths
from tests.dvc_project import TINY, TINY_STUDY, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TASKS = ["movies", "products"]
METHODS = ["full", "full_matched", "talos", "graft"]
TINY_TALOS = {
    "tasks": TASKS,
    "ood": {"sets": {}, "test_max": 60},
    "localizer": TINY_STUDY["localizer"] | {"talos": {"examples": 8, "rounds": 2}},
    "talos": {"tasks": TASKS, "sparsity": 0.1, "test_max": 30, "dev_max": 16},
    "sensitivity": {"pruned": 0.1, "variants": ["single_round"]},
    "edit": {"methods": METHODS, "training": {"learning_rates": [0.01]}},
    "arithmetic": {"methods": ["full", "talos"], "points": 3, "negation": {"controls": {"movies": "products", "products": "movies"}}},
    "disentangle": {"methods": ["talos"], "grid": {"pairs": {"movies": "products"}, "reach": 1.0, "points": 3, "rows": 8}},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The copy after one run, what ran, and its files."""
    # placeholders of stages that are off come along with settings of the study
    settings = TINY | TINY_STUDY | TINY_TALOS | {"study": {"tasks": ["movies"], "test_max": 0}}
    copy = clone(make_original(tmp_path_factory.mktemp("talos"), settings), "copy")
    run = copy.repro("stages/talos/dvc.yaml")
    return copy, run, copy.files("masks", "metrics", "plots")


def test_one_command_runs_every_method_and_a_second_one_nothing(made):
    copy, run, files = made
    cells = {f"edit@{name}-13" for name in METHODS} | {f"arithmetic@{name}-13" for name in ("full", "talos")}
    assert {*run.executed} >= cells | {"sensitivity@13", "disentangle@talos-13", "talos"}
    assert copy.repro("stages/talos/dvc.yaml").executed == []
    methods = {
        name: {*pd.read_csv(BytesIO(files[f"plots/talos/{name}.csv"])).method} for name in ("addition", "localization")
    }
    assert methods == {"addition": {"full", "ties", "dare", "talos"}, "localization": {*METHODS}}
    plots = {name for name in files if name.startswith("plots/talos/") and name.endswith(".png")}
    assert len(plots) == 6


def test_vectors_are_sparse_and_both_ends_are_models_that_are_there_already(made):
    copy, _, _ = made
    mask = read_mask(copy.folder / paths.edited("talos", "movies", 13)).mask
    assert mask.selected == mask.region.budget(0.1)
    whole = read_mask(copy.folder / paths.edited("full_matched", "movies", 13)).mask
    assert whole.selected == mask.region.size
    edited, learned = paths.edited("graft", "movies", 13), paths.learned("movies", 13)
    assert read_mask(copy.folder / edited).mask.equals(read_mask(copy.folder / learned).mask)
    stored = [paths.reading_logits("edit", (method,), "movies", 13) for method in ("full", "talos")]
    full, talos, reference = (
        read_predictions(copy.folder / path).logits["movies"]
        for path in (*stored, paths.predictions("reference", "movies", 13))
    )
    for ours, theirs in ((full["movies"], reference[FINETUNED]), (full[PRETRAINED], reference[PRETRAINED])):
        np.testing.assert_allclose(ours, theirs[:30], atol=1e-5)
    assert np.array_equal(full[PRETRAINED], talos[PRETRAINED]), "one head for every method"
    assert not np.allclose(full["movies"], talos["movies"], atol=1e-3), "the control"


def test_records_say_what_was_chosen_and_what_it_took(made):
    _copy, _, files = made
    for method in ("full", "talos"):
        record = json.loads(files[str(paths.reading_record("arithmetic", (method,), "movies", 13))])
        assert {*record["added"]} == ({"sum", "ties", "dare"} if method == "full" else {"sum"})
        assert record["added"]["sum"]["alpha"] in (0.0, 0.5, 1.0) and record["negated"]["control"] == "products"
        curve, alpha = dict(record["negated"]["control_curve"]), record["negated"]["alpha"]
        assert alpha == 0 or curve[alpha] >= 0.95 * curve[0.0]
    cost = json.loads(files[str(paths.reading_record("edit", ("talos",), "movies", 13))])["cost"]
    assert cost["gradient_examples"] == 2 * 8 and cost["trained"] * 8 == cost["optimizer_bytes"]
    assert cost["peak_bytes"] > 0 and cost["train_seconds"] > 0
