"""What merging does to the skills, with the figures and intervals behind each claim."""

from stages.lib.merging.names import ARITHMETIC, AVERAGE, KINDS, MEAN, RULES, TIES
from stages.lib.metrics.variants import GRAFTED
from stages.lib.report.document import Claim
from stages.lib.report.format import percent, points
from stages.lib.report.stats import Difference, mean_of, paired
from stages.merge.report.choosing import by_cell, label
from stages.merge.report.collecting import Merged

KEPT = 0.95
STITCHED = f"stitch_{MEAN}"


def claims(merged: Merged) -> list[Claim]:
    """A difference holds where its whole 95 % interval is above zero; one cell can't tell."""
    checks = (_against_whole_models, _rules, _kept, _collide)
    return [claim for group in merged.groups for check in checks for claim in check(merged, group)]


def _against_whole_models(merged: Merged, group: str) -> list[Claim]:
    return [
        _better(merged, group, STITCHED, other)
        for other in (AVERAGE, ARITHMETIC, TIES)
        if {STITCHED, other} <= {*merged.methods}
    ]


def _rules(merged: Merged, group: str) -> list[Claim]:
    others = [f"stitch_{rule}" for rule in RULES if rule != MEAN]
    return [_better(merged, group, STITCHED, other) for other in others if {STITCHED, other} <= {*merged.methods}]


def _better(merged: Merged, group: str, better: str, worse: str) -> Claim:
    first, second = by_cell(merged, group, better), by_cell(merged, group, worse)
    difference = paired(first, second)
    losers = [task for task in merged.groups[group] if (first - second).groupby("task").mean()[task] < 0]
    text = f"{group}: {label(better)} scores higher than {label(worse)}"
    return Claim(text, difference.above_zero, difference.words(), losers)


def _kept(merged: Merged, group: str) -> list[Claim]:
    """By the stitched mean, or the first method with grafts: the best one would be chosen on the test rows."""
    methods = [method for method in merged.methods if KINDS[method] == GRAFTED]
    if not methods:
        return []
    method = STITCHED if STITCHED in methods else methods[0]
    shares = by_cell(merged, group, method, "own")
    above = paired(shares, shares * 0 + KEPT)
    text = f"{group}: {label(method)} keeps {percent(KEPT, 0)} % of the scores of the tasks' own grafts"
    figure = f"{percent(mean_of(shares).mean)} %{_interval(above)}, n = {above.n} cells"
    lost = [task for task, share in shares.groupby("task", sort=False).mean().items() if share < KEPT]
    return [Claim(text, above.above_zero, figure, lost)]


def _interval(above: Difference) -> str:
    return "" if above.low is None else f", 95 % interval {percent(above.low + KEPT)} to {percent(above.high + KEPT)}"


def _collide(merged: Merged, group: str) -> list[Claim]:
    found = merged.frames["collisions"]
    found = found[found.group == group].set_index("seed")
    if found.empty:
        return []
    shares, chance = found.colliding / found["union"], found.chance_colliding / found.chance_union
    difference = paired(shares, chance)
    figure = (
        f"{percent(shares.mean())} % of the union against {percent(chance.mean())} % by chance, "
        f"{points(difference.mean)} points, higher in {difference.positive} of {difference.n} seeds"
    )
    text = f"{group}: grafts of different tasks select the same parameters more often than random masks"
    return [Claim(text, difference.above_zero, figure, [])]
