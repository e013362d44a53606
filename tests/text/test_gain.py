"""Relative gain: 0 for the pretrained model, 1 for the fine-tuned one, and no number where that gained too little."""

import pandas as pd
import pytest

from stages.text.scores.gain import gained, relative_gain
from stages.workflow.records import add_gain, scores_of_ends


def test_the_pretrained_model_gains_0_and_the_joint_model_1_whatever_scale_and_origin():
    for scale, origin in ((1, 0), (0.5, 0.1)):
        gains = [
            relative_gain(*(origin + scale * share for share in (own, 0.5, 0.9)), 0.05) for own in (0.5, 0.9, 0.8, 0.4)
        ]
        assert gains == pytest.approx([0, 1, 0.75, -0.25])


@pytest.mark.parametrize("joint", [0.5, 0.5 + 1e-9, 0.549, 0.4, 0.1])
def test_a_joint_model_that_gained_next_to_nothing_or_lost_gives_no_number(joint):
    assert relative_gain(0.7, 0.5, joint, 0.05) is None and not gained(0.5, joint, 0.05)
    assert relative_gain(0.7, 0.5, 0.56, 0.05) is not None, "control: a little more is enough"


def test_a_gain_of_just_as_many_rows_as_are_asked_for_is_one_whatever_the_last_digit_says():
    shares = [(low / rows, (low + rows // 20) / rows) for rows in (100, 300, 600) for low in range(rows - rows // 20)]
    assert all(gained(*pair, 0.05) for pair in shares)
    assert not all(trained - pretrained >= 0.05 for pretrained, trained in shares), (
        "control: the plain difference drops some"
    )
    assert not any(gained(pretrained, trained - 1 / 600, 0.05) for pretrained, trained in shares), (
        "control: a row less is less"
    )


def test_gains_of_a_frame_are_those_of_its_rows_and_nothing_where_an_end_is_unknown():
    rows = pd.DataFrame(
        [(1, "pretrained", 0.5), (1, "finetuned", 0.9), (1, "graft", 0.8), (2, "pretrained", 0.5), (2, "graft", 0.8)],
        columns=["seed", "variant", "score"], index=[7, 3, 5, 1, 0],
    )  # fmt: skip
    ends = scores_of_ends(rows, ["seed"])
    assert [*ends.columns] == ["pretrained", "finetuned"] and ends.finetuned.isna().tolist() == [False, True]
    found = add_gain(rows, ends, 0.05)
    assert [*found.index] == [*rows.index] and found.drop(columns="gain").equals(rows)
    assert found.gain[:3].tolist() == pytest.approx([0, 1, 0.75]) and found.gain[3:].isna().all()
    assert add_gain(rows, ends, 0.5).gain.isna().all()
    assert add_gain(rows[:0], scores_of_ends(rows[:0], ["seed"]), 0.05).gain.dtype == float
