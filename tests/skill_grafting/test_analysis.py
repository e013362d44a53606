"""Many masks at once: overlaps beside chance, kinds of matrices and rows, against counting one by one."""

import numpy as np
import pytest
import torch

import skill_grafting as sg

SHAPES = {"layers.0.self_attn.q_proj.weight": (20, 30), "layers.0.mlp.down_proj.weight": (10, 40), "layers.0.input_layernorm.weight": (15,)}
QUERY, DOWN, NORM = SHAPES


def drawn(seed: int, selected: int, names: tuple = tuple(SHAPES)) -> sg.GraftMask:
    """A random mask of these tensors alone, in the region of all."""
    inside = sg.Region({name: SHAPES[name] for name in names})
    places = torch.randperm(inside.size, generator=torch.Generator().manual_seed(seed))[:selected]
    return sg.GraftMask(sg.Region(SHAPES), sg.GraftMask.from_region_indices(inside, places).indices)


def places(mask: sg.GraftMask) -> set:
    return {(name, at) for name, indices in mask.indices.items() for at in indices.tolist()}


def test_overlaps_count_what_two_masks_share_beside_chance():
    masks = {"a": drawn(1, 300), "b": drawn(2, 200), "c": drawn(3, 100, (QUERY,))}
    table = sg.overlaps(masks).set_index(["first", "second"])
    assert [*table.index] == [("a", "b"), ("a", "c"), ("b", "c")]
    for first, second in table.index:
        row, ours, theirs = table.loc[first, second], places(masks[first]), places(masks[second])
        assert row.both == len(ours & theirs) and row.overlap == len(ours & theirs) / len(ours | theirs)
        assert row.by_chance == pytest.approx(len(ours) * len(theirs) / 1015) and row.times == pytest.approx(row.both / row.by_chance)
        assert row.share_of_first == row.both / len(ours) and row.share_of_second == row.both / len(theirs)
    many = [(drawn(seed, 300), drawn(seed + 1000, 100, (QUERY,))) for seed in range(300)]
    found = np.mean([len(places(one) & places(other)) for one, other in many])
    assert found == pytest.approx(sg.overlaps({"one": many[0][0], "other": many[0][1]}).by_chance[0], rel=0.05)
    inside = [(drawn(seed, 200, (QUERY,)), drawn(seed + 1000, 100, (QUERY,))) for seed in range(300)]
    row = sg.overlaps({"one": inside[0][0], "other": inside[0][1]}).iloc[0]
    found = np.mean([len(places(one) & places(other)) for one, other in inside])
    assert found == pytest.approx(row.by_chance_in_tensors, rel=0.05) and found > 1.4 * row.by_chance, "control: both lie in one tensor"


def test_kinds_and_rows_are_counted_and_what_chance_hits():
    mask = drawn(1, 120)
    table = sg.by_kind({"a": mask, "none": sg.GraftMask.empty(mask.region)})
    assert table.groupby("mask").selected.sum().to_dict() == {"a": 120, "none": 0} and set(table[table["mask"] == "none"].rows_hit) == {0}
    rows = table[table["mask"] == "a"].set_index("kind")
    assert [*rows.index] == ["attention query", "feed-forward second", "LayerNorm"] and rows.parameters.tolist() == [600, 400, 15]
    for name, kind, columns in ((QUERY, "attention query", 30), (DOWN, "feed-forward second", 40)):
        hit = {at // columns for _, at in places(mask) if _ == name}
        assert rows.loc[kind].rows == SHAPES[name][0] and rows.loc[kind].rows_hit == len(hit)
        assert rows.loc[kind].times == pytest.approx(rows.loc[kind].share / mask.sparsity)
    assert rows.loc["LayerNorm"].rows == 0
    many = [drawn(seed, 20, (QUERY,)) for seed in range(300)]
    found = np.mean([len({at // 30 for _, at in places(one)}) for one in many])
    assert found == pytest.approx(sg.by_kind({"a": many[0]}).rows_by_chance[0], rel=0.03) and found < 18, "control: not all are hit"
    assert sg.by_kind({"all": sg.GraftMask.full(mask.region)}).set_index("kind").loc["attention query"].rows_by_chance == 20


@pytest.mark.parametrize("count", [1, 3])
def test_a_figure_says_what_was_found(count, tmp_path):
    masks = {f"seed {seed}": drawn(seed, 200) for seed in range(count)}
    figure = sg.plot_masks(masks)
    titles = [panel.get_title() for panel in figure.axes]
    best = sg.by_kind(masks).loc[lambda table: table.share.idxmax()]
    assert titles[-1].startswith(f"Largest share: {best.kind}, ") and titles[-1].endswith(best["mask"])
    if count > 1:
        assert f"{sg.overlaps(masks).times.max():.3g} times" in titles[0]
    figure.savefig(tmp_path / "a.png")


def test_a_figure_of_one_mask_says_which_tensor_row_and_head_hold_most(tmp_path):
    """Of ten rows of a value's weight, five for each of two heads, all that is selected is in row 7, which is in the second."""
    value, other = "layer.0.attention.self.value.weight", "layer.0.output.dense.weight"
    region = sg.Region({value: (10, 6), other: (10, 6)})
    mask = sg.GraftMask(region, {value: torch.arange(42, 47), other: torch.tensor([3])})
    told = lambda panel: " ".join(panel.get_title(loc="right").split())  # noqa: E731
    rows, heads = sg.plot_mask(mask), sg.plot_mask(mask, heads=2)
    assert [text.get_text() for text in rows.axes[1].get_yticklabels()] == [f"{value} [7]", f"{other} [0]"]
    chance = sum(10 * (1 - (1 - count / 60) ** 6) for count in (5, 1))
    assert told(rows.axes[1]) == f"The mask hits 2 of 20 rows of matrices, and {chance:.0f} if it lay anywhere in each"
    assert told(rows.axes[0]).startswith(f"Largest share: {value}, 8.3") and rows.axes[0].patches[0].get_width() == pytest.approx(500 / 60)
    assert told(heads.axes[1]).startswith(f"Largest share: head 1 of {value}, 16.67 %") and heads.axes[1].images[0].get_array().shape == (1, 2)
    heads.savefig(tmp_path / "a.png")
    for call in (lambda: sg.plot_mask(sg.GraftMask.empty(region)), lambda: sg.plot_mask(mask, heads=3)):
        with pytest.raises(sg.MaskError):
            call()


def test_what_is_no_masks_is_refused():
    for call in (lambda: sg.overlaps({"a": drawn(1, 5)}), lambda: sg.by_kind([drawn(1, 5)]), lambda: sg.plot_masks({"a": 3}), lambda: sg.by_kind({})):
        with pytest.raises(sg.ParamsError, match="masks: "):
            call()
