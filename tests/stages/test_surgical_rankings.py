"""Rankings of layers: how alike they are, what they point to, and how they last, on layers whose order is known."""

import pandas as pd
import pytest

from skill_grafting.errors import DataError
from stages.surgical.frames import best_layers, layer_text, ranked, require_distinct, selected
from stages.surgical.rankings import (
    across,
    agreement,
    checkpoints,
    chosen,
    mask_share_in_top,
    of_heads,
    of_pairs,
    rank_correlations,
)

CELL = ["task", "seed"]
# score of each of four layers
SCORES = {("cr", 13): [4, 3, 2, 1], ("cr", 21): [4, 3, 2, 1], ("qnli", 13): [1, 2, 3, 4], ("qnli", 21): [1, 2, 4, 3]}


def series(scores):
    rows = [(*cell, layer, value) for cell, values in scores.items() for layer, value in enumerate(values, start=1)]
    return pd.DataFrame(rows, columns=[*CELL, "layer", "score"]).set_index([*CELL, "layer"]).score


def fim(**axes):
    """Scores of 4 and of 8 examples by two heads; those of 8 are ten times as high, of the second head twice."""
    parts = []
    for examples, head in ((4, 0), (4, 1), (8, 0), (8, 1)):
        scores = series(SCORES) * (10 if examples == 8 else 1) * (1 + head)
        parts.append(scores.reset_index().assign(examples=examples, head=head, target="expected", aggregation="trace"))
    return pd.concat(parts, ignore_index=True).assign(**axes)


def test_a_score_is_the_mean_over_heads_and_of_the_most_examples_there_are():
    way = {"target": "expected", "aggregation": "trace"}
    assert chosen(fim(), 8, **way)["cr", 13].tolist() == [60, 45, 30, 15]
    less = fim().query("task != 'cr' or examples < 8")
    assert (
        chosen(less, 8, **way)["cr", 13].tolist() == [6, 4.5, 3, 1.5] and chosen(less, 8, **way)["qnli", 13].max() == 60
    )
    assert of_heads(fim(), 8, **way).value.tolist() == [1] * 4 and of_heads(fim().query("head == 0"), 8, **way).empty


def test_tasks_and_seeds_agree_as_their_orders_do():
    tasks, seeds = across(series(SCORES))
    assert tasks.to_dict() == pytest.approx({("cr", "qnli", 13): -1, ("cr", "qnli", 21): -0.8})
    assert seeds["cr"].tolist() == pytest.approx([1, 1]) and seeds["qnli"].tolist() == pytest.approx([0.8, 0.8])
    pairs = of_pairs(tasks, seeds)
    assert pairs.apart.tolist() == pytest.approx([1.9, 1.7]), "the mean of both tasks' own less that of the pair"


def test_layers_stand_in_the_order_of_their_scores():
    rows = ranked(series(SCORES)).set_index("task")
    assert rows.layers.to_dict() == {"cr": "1 2 3 4", "qnli": "3 4 2 1"}, "of equal ones the earlier layer"
    assert rows["first"].tolist() == [0.4, 0.35] and rows.n.tolist() == [2, 2]


def test_a_mask_is_caught_where_it_was_put():
    regions = series({cell: [0.1, 0.1, 0.2, 0.6] for cell in SCORES}).rename("share").reset_index().assign(chance=0.25)
    found = mask_share_in_top(series(SCORES), regions, [1, 2]).set_index(["task", "seed", "size"])
    assert found.share["qnli", 13].tolist() == pytest.approx([0.6, 0.8])
    assert found.share["cr", 13].tolist() == pytest.approx([0.1, 0.2])
    assert found.chance.tolist() == pytest.approx([0.25, 0.5] * 4)
    moved = regions.assign(step=40, moved=[4, 3, 2, 1] * 4, start=[1, 1, 1, 1] * 4)
    both = rank_correlations(series(SCORES), regions, pd.concat([moved.assign(step=20, moved=1), moved])).set_index(
        CELL
    )
    assert both.score_movement["cr", 13] == pytest.approx(1) and both.score_movement["qnli", 13] == pytest.approx(-1), (
        "of the last step"
    )
    assert both.score_graft["qnli", 13] > 0.9 and both.graft_movement["cr", 13] < 0
    even = agreement(series(SCORES), series({cell: [1] * 4 for cell in SCORES}))
    assert even.isna().all(), "what is the same everywhere has no ranking"


def test_a_ranking_that_turns_round_in_training_is_told_with_how_far_the_layers_moved():
    steps = pd.DataFrame({
        "task": "cr", "seed": 13, "step": [0] * 3 + [20] * 3, "layer": [1, 2, 3] * 2, "score": [3, 2, 1, 1, 2, 3],
        "moved": [0.0] * 3 + [3.0, 4.0, 0.0], "start": [6.0, 8.0, 0.0] * 2, "dev_accuracy": [0.5] * 3 + [0.8] * 3,
    })  # fmt: skip
    rows = checkpoints(steps).set_index("step")
    assert rows.spearman.tolist() == pytest.approx([1, -1]) and rows.kendall.tolist() == pytest.approx([1, -1])
    assert rows.moved.tolist() == pytest.approx([0, 0.5]) and rows.dev_accuracy.tolist() == [0.5, 0.8]


def test_draws_count_as_one_cell_and_a_share_is_kept_of_a_positive_score_alone():
    def run(selection, kind, size, score, **more):
        own = {
            "selection": selection,
            "kind": kind,
            "size": size,
            "task": "cr",
            "seed": 13,
            "score": score,
            "accuracy": score,
        }
        return {**own, "constant": 0.5, "trained": 10, "model_parameters": 100, "flagged": score < 0.5, **more}

    runs = [
        run("all", "all", None, 0.8),
        run("none", "none", None, 0.6),
        run("random_2", "random", 2, 0.4),
        run("random_2", "random", 2, 0.8),
    ]
    found = selected(pd.DataFrame(runs), half=2).set_index("selection")
    assert found.kept.to_dict() == pytest.approx({"all": 1, "none": 0.75, "random_2": 0.75})
    assert found.above["all"] == pytest.approx(0.2) and found.less_all["random_2"] == pytest.approx(-0.2)
    assert found.loc["random_2", ["flagged", "runs", "best", "half"]].tolist() == [1, 2, best_layers(2), True]
    nothing = selected(pd.DataFrame([run("all", "all", None, 0.0), *runs[2:]]), half=2)
    assert nothing.kept.isna().all()


def test_two_sets_of_layers_that_were_trained_alike_stop_the_report():
    curve = [{"train_loss": 0.7}, {"train_loss": 0.6}]
    rows = [{"task": "cr", "seed": 21, "layers": layers, "loss": 0.5, "curve": curve} for layers in ([5], [1])]
    with pytest.raises(DataError, match="training layers 6 and training layers 2 of cr-21 gave the same loss at every"):
        require_distinct(rows)
    require_distinct([rows[0], {**rows[1], "loss": 0.5 + 1e-9}])
    assert layer_text([0, 10]) == "1, 11" and layer_text([]) == "none"
