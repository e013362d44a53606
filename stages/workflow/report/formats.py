"""Formats of names and numbers in tables, figures and claims, and the templates of a report.yaml."""

import string
from numbers import Real

from skill_grafting.support.formatting import UNKNOWN, counted, percent, small_percent

# names whose underscores are more than spaces, and parts of names that are not written as in settings
PHRASES = {"wise_ft": "WiSE-FT", "adamw_l1": "AdamW with l1"}
SPELLED = {
    "finetuned": "fine-tuned", "sgd": "SGD", "adamw": "AdamW", "ewc": "EWC", "ties": "TIES", "dare": "DARE", "fish": "FISH",
    "lota": "LoTA", "talos": "TaLoS", "lora": "LoRA", "houlsby": "Houlsby et al.", "pfeiffer": "Pfeiffer et al.",
}  # fmt: skip


def display_name(name: str) -> str:
    """A displayed name: `movement_grafted` is "movement grafted", `ewc` is "EWC"."""
    return PHRASES.get(name) or " ".join(SPELLED.get(part, part) for part in name.split("_"))


def points(difference: float | None, decimals: int = 1) -> str:
    """A difference of two shares in percentage points, with its sign; rounding errors count as +0."""
    return UNKNOWN if difference is None else f"{100 * round(difference, 12) + 0.0:+.{decimals}f}"


def counts(**things: int) -> str:
    """Several of them: `counts(task=3, seed=1)` is "3 tasks, 1 seed"."""
    return ", ".join(counted(number, thing) for thing, number in things.items())


def fall(reduction: float) -> str:
    """A reduction: "a reduction of 60.6 %", "a rise of 12.0 %"; of what more than doubles how many times as much it is."""
    if reduction < -1:
        return f"{1 - reduction:.1f} times as much"
    return f"a {'rise' if reduction < 0 else 'reduction'} of {percent(abs(reduction))} %"


def written(value: float, form: str) -> str:
    """A number by its format: `percent` or `points`, which may end in the number of decimals, `size`, `n seed` or another noun that is counted, or
    any that f-strings know.
    """
    if form.startswith("n "):
        return counted(int(value), form[2:])
    kind = form.rstrip("0123456789")
    decimals = [int(form[len(kind) :])] if kind and form != kind else []
    if kind in ("percent", "points"):
        return {"percent": percent, "points": points}[kind](value, *decimals)
    return small_percent(value) if form == "size" else format(value, form)


class Template(string.Formatter):
    """Templates of a report.yaml: {share:percent}, {share:percent0}, {gap:points}, {sparsity:size}, {seeds:n seed}, and all that f-strings know."""

    def format_field(self, value: object, form: str) -> str:
        """One field, a number as `written` has it; "n/a" for an undefined one that is asked for in a format."""
        text = written(value, form) if isinstance(value, Real) else format(value, form)
        return text or (UNKNOWN if form else "")
