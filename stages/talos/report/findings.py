"""Which effects show: claims of TaLoS, and our own question about grafts, each with its interval."""

import pandas as pd

from stages.lib.report.document import Claim, Verdict
from stages.lib.report.format import percent
from stages.lib.report.stats import Difference, paired
from stages.talos.report.collecting import Talos

CELL = ["task", "seed"]
# what pruning may cost and still be called harmless
HARMLESS = 0.95


def claims(talos: Talos) -> list[Claim]:
    """All of them; those without data are not measurable."""
    comparisons = [
        ("TaLoS adds better than full fine-tuning (absolute accuracy)", added(talos, "talos", "full")),
        ("TaLoS adds better than linearised fine-tuning (absolute accuracy)", added(talos, "talos", "linear")),
        ("TaLoS adds better than a random mask of its size", added(talos, "talos", "random")),
        ("TaLoS takes away more than full fine-tuning", negated(talos, "talos", "full")),
        ("TaLoS takes away less than linearised fine-tuning, as published", negated(talos, "linear", "talos")),
        ("grafts add better than the models they come from", added(talos, "graft", "full")),
        ("grafts add better than TaLoS", added(talos, "graft", "talos")),
        ("grafts take away more than the models they come from", negated(talos, "graft", "full")),
        ("TaLoS leaves other tasks alone more than full fine-tuning", localized(talos, "talos", "full")),
        ("TaLoS disentangles better than full fine-tuning", disentangled(talos, "talos", "full")),
    ]
    found = [_claim(talos, text, value) for text, value in comparisons]
    return [*found, *pruning_claims(talos), *mask_claims(talos)]


def _claim(talos: Talos, text: str, value: Difference) -> Claim:
    """Where TaLoS leaves its own tasks alone too, that it leaves other ones alone says nothing."""
    idle = value.n and text.startswith(("TaLoS leaves", "TaLoS disentangles")) and not has_effect(talos, "talos")
    why = "; its vectors bring their own tasks no accuracy, so this says nothing" if idle else ""
    return Claim(text, Verdict.OPEN if idle else value.above_zero, value.words() + why, [])


def has_effect(talos: Talos, method: str) -> bool:
    """Whether a method's own models are better than the pretrained one, on average over cells."""
    frame = talos.frames["localization"]
    own = frame[(frame.method == method) & (frame.trained_on == frame.task)]
    return bool((own.accuracy - own.pretrained).mean() > 0)


def added(talos: Talos, first: str, second: str) -> Difference:
    """Accuracy of first - second after addition, over (task, seed)."""
    return _paired(talos.frames["addition"], "accuracy", first, second)


def negated(talos: Talos, first: str, second: str) -> Difference:
    """Target accuracy of second - first after negation, so positive where first takes more; weak controls left out."""
    frame = talos.frames["negation"]
    frame = frame[~frame.weak_control.astype(bool)]
    return _paired(frame, "accuracy", second, first)


def localized(talos: Talos, first: str, second: str) -> Difference:
    """How much nearer to 1 the ratio on other tasks is for first, over (trained on, task, seed)."""
    frame = talos.frames["localization"]
    away = frame[frame.trained_on != frame.task]
    return _paired(away.assign(away=(away.ratio - 1).abs()), "away", second, first, ["trained_on", *CELL])


def disentangled(talos: Talos, first: str, second: str) -> Difference:
    """Error of second - first where alpha is searched, over (pair, seed)."""
    frame = talos.frames["disentangle"]
    inside = frame[frame[["alpha1", "alpha2"]].abs().max(axis=1) <= 1]
    means = inside.groupby(["method", "pair", "seed"], as_index=False)["mean"].mean()
    return _paired(means, "mean", second, first, ["pair", "seed"])


def pruning_claims(talos: Talos) -> list[Claim]:
    """Pruning the least sensitive does no harm, and less than pruning at random."""
    frame = talos.frames["pruned"]
    values = {kind: part.set_index(["scored_on", *CELL]).ratio.astype(float) for kind, part in frame.groupby("kind")}
    if not {"least", "random", "most"} <= {*values}:
        return []
    mean = values["least"].mean()
    found = [
        Claim(
            "pruning the least sensitive parameters keeps the zero-shot accuracy",
            Verdict.of(bool(mean >= HARMLESS)),
            f"{percent(mean)} % of it on average; the line is {percent(HARMLESS, 0)} %",
            [],
        )
    ]
    for first, second in (("least", "random"), ("random", "most")):
        value = paired(values[first], values[second])
        text = f"pruning the {first} {'sensitive ' if first == 'least' else ''}costs less than pruning {_named(second)}"
        found.append(
            Claim(text.replace("pruning the random", "pruning at random"), value.above_zero, value.words(), [])
        )
    return found


def _named(kind: str) -> str:
    return "at random" if kind == "random" else f"the {kind} sensitive"


def mask_claims(talos: Talos) -> list[Claim]:
    """TaLoS masks are shared by tasks, and lie in attention's query and key."""
    shared, tensors = talos.frames["task_iou"], talos.frames["tensors"]
    both = shared[shared.method == "talos"].set_index(["first", "second", "seed"])
    own = tensors[tensors.method == "talos"]
    value = paired(both.iou.astype(float), both.chance.astype(float))
    found = [
        Claim(
            "the least sensitive parameters of two tasks are more alike than by chance",
            value.above_zero,
            f"IoU {value.words()}" if value.n else value.words(),
            [],
        )
    ]
    inside = own[own.kind.isin(["attention query", "attention key"])]
    sums = [part.groupby(CELL)[["selected", "parameters"]].sum() for part in (inside, own)]
    shares = [part.selected / part.parameters for part in sums]
    value = paired(*shares) if len(inside) else paired(pd.Series(dtype=float), pd.Series(dtype=float))
    text = "TaLoS selects more of attention's query and key than of the whole region"
    return [*found, Claim(text, value.above_zero, value.words(), [])]


def _paired(frame: pd.DataFrame, measure: str, first: str, second: str, cell: list[str] | None = None) -> Difference:
    values = [frame[frame.method == name].set_index(cell or CELL)[measure].astype(float) for name in (first, second)]
    return paired(*values)
