"""Which effects of the paper the study shows and which it doesn't, with the figures behind each."""

import pandas as pd

from stages.lib.metrics.composition import FIRST, LAYER_NORM, VALUE
from stages.lib.metrics.variants import FINETUNED, GRAFTED
from stages.lib.report.document import Claim, Verdict
from stages.lib.report.format import percent, small_percent
from stages.lib.report.stats import Difference, mean_of, paired
from stages.study.report import choosing
from stages.study.report.choosing import ATTRIBUTION, BIAS, FISH, GROWN, LEARNED, MOVEMENT, RANDOM
from stages.study.report.collecting import Study
from stages.study.report.place_figures import OUTSIDE, place_shares
from stages.study.report.region_tables import region_size

KEPT = 0.95
# The paper's order, and where our own localizers (attribution, grown) would stand in it.
ORDER_SIZE = 0.001
ORDER = (
    (LEARNED, MOVEMENT),
    (GROWN, MOVEMENT),
    (ATTRIBUTION, MOVEMENT),
    (GROWN, LEARNED),
    (MOVEMENT, FISH),
    (FISH, RANDOM),
    (MOVEMENT, RANDOM),
    (LEARNED, BIAS),
)


def findings(study: Study) -> list[str]:
    """One sentence for each effect that the stages which ran can tell about."""
    return [f"{claim.verdict}: {claim.text}: {claim.figure}" for claim in claims(study)]


def claims(study: Study) -> list[Claim]:
    """The effects as claims.  A difference shows where its whole 95 % interval is above zero; one cell can't tell."""
    checks = (
        _localizers,
        _kept,
        _calibrated,
        _retrained,
        _pruned,
        _paradigms,
        _ood,
        _peft,
        _overlap,
        _places,
        _gap,
        _saturates,
    )
    return [claim for check in checks for claim in check(study)]


def _claim(text: str, difference: Difference) -> list[Claim]:
    return [Claim(text, difference.above_zero, difference.words(), [])] if difference.n else []


def _localizers(study: Study) -> list[Claim]:
    """Figures 2 and 4a, table 8: who scores higher than whom, at the size nearest to 0.1 %."""
    sizes = choosing.common_sparsities(study)
    if not sizes:
        return []
    size = choosing.nearest(sizes, ORDER_SIZE)
    cells = {name: choosing.by_cell(choosing.sweep(study, name, size)) for name in choosing.localizers(study)}
    return [
        claim
        for better, worse in ORDER
        if {better, worse} <= {*cells}
        for claim in _claim(
            f"At {small_percent(size)}, the {better} region scores higher than the {worse} one",
            paired(cells[better], cells[worse]),
        )
    ]


def _kept(study: Study) -> list[Claim]:
    """Section 3.1: the smallest size at which 95 % of the score is kept."""
    sizes = choosing.sparsities(choosing.sweep(study, LEARNED))
    kept = {size: mean_of(choosing.by_cell(choosing.sweep(study, LEARNED, size), "retained")) for size in sizes}
    kept = {size: value for size, value in kept.items() if value.n}
    if not kept:
        return []
    enough = [size for size, value in kept.items() if value.mean >= KEPT]
    size = min(enough) if enough else max(kept)
    figure = f"{kept[size].text()} % at {small_percent(size)}, n = {kept[size].n} cells"
    return [
        Claim(
            f"A learned graft keeps {percent(KEPT, 0)} % of the fine-tuned score", Verdict.of(bool(enough)), figure, []
        )
    ]


def _calibrated(study: Study) -> list[Claim]:
    """Table 2."""
    size = choosing.nearest(choosing.sparsities(choosing.sweep(study, LEARNED)))
    graft = choosing.by_cell(choosing.sweep(study, LEARNED, size), "ece")
    whole = choosing.by_cell(choosing.anchor(study, FINETUNED), "ece")
    return _claim("The fine-tuned model's ECE is higher than the learned graft's", paired(whole, graft))


def _retrained(study: Study) -> list[Claim]:
    """Table 1."""
    size = region_size(study)
    if size is None:
        return []
    trained = choosing.by_cell(choosing.readout(study, "retrain", LEARNED, size))
    graft = choosing.by_cell(choosing.sweep(study, LEARNED, size))
    return _claim("The region trained alone scores higher than its graft", paired(trained, graft))


def _pruned(study: Study) -> list[Claim]:
    """Figure 4b."""
    rows = choosing.readout(study, "prune", LEARNED)
    graft = choosing.sweep(study, LEARNED)
    graft = graft[graft.sparsity.isin(rows.sparsity)]
    text = "The learned graft scores higher than the same region with all else set to 0"
    return _claim(text, paired(choosing.by_cell(graft), choosing.by_cell(rows)))


def _paradigms(study: Study) -> list[Claim]:
    """Figure 5, by what the smallest grafts of each model keep of that model's own score."""
    rows = study.rows("paradigm")
    rows = rows[rows.variant == GRAFTED]
    if rows.empty:
        return []
    smallest = rows[rows.sparsity == rows.sparsity.min()]
    kept = {name: choosing.by_cell(group, "retained") for name, group in smallest.groupby("paradigm")}
    size = small_percent(rows.sparsity.min())
    return [
        claim
        for better in ("sgd", "adamw_l1")
        if {better, "adamw"} <= {*kept}
        for claim in _claim(
            f"Grafts of {size} keep more after {better} than after adamw", paired(kept[better], kept["adamw"])
        )
    ]


def _ood(study: Study) -> list[Claim]:
    """Section 4.2."""
    rows = choosing.sweep(study, LEARNED, where="ood")
    size = choosing.nearest(choosing.sparsities(rows))
    graft = choosing.by_cell(rows[rows.sparsity == size])
    whole = choosing.by_cell(choosing.anchor(study, FINETUNED, "ood"))
    return _claim("Out of distribution the learned graft scores higher than the fine-tuned model", paired(graft, whole))


def _peft(study: Study) -> list[Claim]:
    """Table 6."""
    size = choosing.nearest(choosing.sparsities(choosing.sweep(study, LEARNED)))
    graft = choosing.by_cell(choosing.sweep(study, LEARNED, size), "ece")
    methods = choosing.own(study.rows("peft"))
    text = "The ECE of parameter-efficient methods is higher than the learned graft's"
    return _claim(text, paired(choosing.by_cell(methods, "ece"), graft))


def _overlap(study: Study) -> list[Claim]:
    """Table 8, where it goes from 9.2 to 1.9 % between sizes of 0.01 and 1 %."""
    frame = study.frames["localizer_overlap"]
    rows = frame[frame["first"].isin([LEARNED, FISH]) & frame["second"].isin([LEARNED, FISH])]
    sizes = sorted(rows.sparsity.unique())
    if len(sizes) < 2:
        return []
    small, large = (rows[rows.sparsity == size].set_index(choosing.CELL).iou for size in (sizes[0], sizes[-1]))
    overlaps = " and ".join(
        f"{mean_of(part).text()} % at {small_percent(size)}" for part, size in ((small, sizes[0]), (large, sizes[-1]))
    )
    difference = paired(small, large)
    text = "Learned regions and FISH masks overlap less the larger they are"
    figure = f"{overlaps}; {difference.words()}"
    return [Claim(text, difference.above_zero, figure, [])]


def _places(study: Study) -> list[Claim]:
    """Figures 9 and 10: share of masks in excess of chance."""
    layers, _ = place_shares(study, "layer")
    kinds, _ = place_shares(study, "kind")
    if layers.empty:
        return []
    inner = layers[layers.layer != OUTSIDE]
    count = inner.layer.max() + 1
    middle = inner[(inner.layer >= count / 3) & (inner.layer < 2 * count / 3)]
    found = _claim("Learned regions lie in the middle third of the layers more than chance has it", _excess(middle))
    rows = kinds[kinds.kind.isin([VALUE, FIRST, LAYER_NORM])]
    text = "Learned regions lie in values, first feed-forward maps and LayerNorm more than chance has it"
    return found + (_claim(text, _excess(rows)) if len(rows) else [])


def _excess(rows: pd.DataFrame) -> Difference:
    sums = rows.groupby(choosing.CELL)[["share", "chance"]].sum()
    return paired(sums.share, sums.chance)


def _gap(study: Study) -> list[Claim]:
    """Section 4.3."""
    whole = choosing.anchor(study, FINETUNED, "train")
    graft = choosing.readout(study, "graft", LEARNED, None, "train")
    gaps = [
        choosing.by_cell(train, "accuracy") - choosing.by_cell(test, "accuracy")
        for train, test in (
            (whole, choosing.anchor(study, FINETUNED)),
            (graft, choosing.readout(study, "graft", LEARNED)),
        )
    ]
    return _claim(
        "The fine-tuned model's gap between training and test is wider than the learned graft's", paired(*gaps)
    )


def _saturates(study: Study) -> list[Claim]:
    """Figure 15, by the step at which 95 % of the highest score is first reached."""
    rows = study.rows("trajectory")
    grafts = rows[rows.variant == GRAFTED]
    if grafts.empty:
        return []
    largest = grafts[grafts.sparsity == grafts.sparsity.max()]
    early, late = _saturation(largest), _saturation(rows[rows.variant == "checkpoint"])
    sooner = int((early < late).sum())
    figure = f"after {early.mean():.0f} steps against {late.mean():.0f}, sooner in {sooner} of {len(early)} cells"
    text = f"The graft reaches {percent(KEPT, 0)} % of its highest score sooner than the model does"
    return [Claim(text, Verdict.of(bool(early.mean() < late.mean())), figure, [])]


def _saturation(rows: pd.DataFrame) -> pd.Series:
    highest = rows.groupby(choosing.CELL)["score"].transform("max")
    return rows[rows.score >= KEPT * highest].groupby(choosing.CELL)["step"].min()
