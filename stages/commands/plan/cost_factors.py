"""Factors that the cost of a stage grows with, counted from the settings.

finetune_examples  examples that fine-tuning sees, over all points of its grid, and what its looks at dev come to
point_examples     of these, the ones of a single point
learning_examples  examples that the localizer `learned` takes a gradient of, and what its looks at dev come to
mask_examples      the same of graft.localizer
rows               rows of a task that are predicted: test, those of its other test sets among them, and dev; a mean over tasks
control_rows       the rows that WISE-FT predicts: these, and dev at each of its weights
<section>.test_rows    the test rows of these, of which a pipeline takes so many of each test set as its setting test_max says
tokens             longest input; in bfloat16 half as many, as they take half the time of float32
layers, parameters size of the model: in its layers, and in all
tasks              how many

Further ones are among the COST_FACTORS of a pipeline's settings.py.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from stages.lib import paths
from stages.lib.data.tasks import resolve_tasks
from stages.lib.errors import ModelError
from stages.lib.settings import ModelParams, at
from stages.workflow.settings import PIPELINES

# test rows where a setting says "all": nobody has counted them yet
ALL_ROWS = 2000
BYTES = 4
# the time of a prediction beside that of a gradient, which goes forward once and backward as if twice
PREDICTION = 1 / 3
# the time of a training step in bfloat16 beside one in float32, on a processor with instructions for it
BFLOAT16 = 0.5


def amounts(values: dict[str, Any], names: list[str], models: dict[str, dict[str, int]]) -> dict[str, float]:
    """The value of each of `names`; `models` has the sizes of models that are not here yet."""
    more = [getattr(one, "COST_FACTORS", {}) for one in PIPELINES.values()]
    counts = {name: count for counts in (COUNTS, *more) for name, count in counts.items()}
    sizes = _model_size(values["model"], models)
    known = {name: counts[name](values) for name in names if name in counts} | sizes
    for name, localizer in (("learning_examples", "learned"), ("mask_examples", values["graft"].localizer)):
        settings = getattr(values["localizer"], localizer)
        gradients = settings.gradient_examples(_train_rows(values), values["graft"].sparsity * known["layers"])
        every = getattr(settings, "eval_steps", 0)
        known[name] = gradients + _looks(values, 1 + settings.steps // every if every else 0)
    known["tokens"] *= _token_time(values["runtime"].precision)
    return {name: float(known[name] if name in known else _setting(values, name)) for name in names}


def _setting(values: dict[str, Any], name: str) -> float:
    if name.endswith(".test_rows"):
        return _test_rows(values, at(values, name.replace(".test_rows", ".test_max")))
    value = at(values, name)
    if isinstance(value, (list, dict)):
        return len(value)
    if name.endswith(".test_max"):
        return min(value or ALL_ROWS, values["data"].test_max or ALL_ROWS)
    return value if value is not None else values["finetune"].steps_per_example * _train_rows(values)


def _train_rows(values: dict[str, Any]) -> float:
    """Of train, and as many are in dev."""
    specs, _ = resolve_tasks(values["task"])
    return values["data"].k * fmean(len(specs[task].labels) or 1 for task in values["tasks"])


def _looks(values: dict[str, Any], times: float) -> float:
    """What it costs to predict dev so many times, in examples that a gradient is taken of."""
    return PREDICTION * _train_rows(values) * times


def _finetune_examples(values: dict[str, Any]) -> float:
    settings = values["finetune"]
    points = len(settings.learning_rates) * len(settings.batch_sizes)
    return points * _point_examples(values) if settings.source == "train" else 0.0


def _point_examples(values: dict[str, Any]) -> float:
    settings = values["finetune"]
    rows = _train_rows(values) * min(1, settings.cap_k / values["data"].k)
    steps = min(settings.steps_per_example * rows, settings.max_steps or float("inf"))
    looks = 1 + (steps // settings.eval_steps if settings.eval_steps else 0)
    return steps * fmean(settings.batch_sizes) + _looks(values, looks)


def _test_rows(values: dict[str, Any], most: int = 0) -> float:
    own, other = (min(values[name].test_max or ALL_ROWS, most or ALL_ROWS) for name in ("data", "ood"))
    return own + other * fmean(len(values["ood"].sets.get(task, [])) for task in values["tasks"])


def _predicted_rows(values: dict[str, Any], looks: int) -> float:
    """Test rows, and those of dev so many times."""
    return _test_rows(values) + looks * _train_rows(values)


COUNTS: dict[str, Callable[[dict[str, Any]], float]] = {
    "finetune_examples": _finetune_examples,
    "point_examples": _point_examples,
    "rows": lambda values: _predicted_rows(values, 1),
    "control_rows": lambda values: _predicted_rows(values, 1 + len(values["calibration"].wise_alphas)),
    "tokens": lambda values: values["model"].max_length,
    "tasks": lambda values: len(values["tasks"]),
}


def _token_time(precision: str) -> float:
    """The time of a token where float32 takes 1; `auto` is what the stage `model` chose, or would most likely choose."""
    if precision == "float32":
        return 1.0
    import torch

    from stages.lib.models.precision import FLOAT32, native_precision, read_precision

    if precision == "auto":
        with suppress(ModelError):  # there is none yet, or a damaged one, which is made anew
            precision = read_precision(paths.PRETRAINED)
    return BFLOAT16 if FLOAT32 not in (precision, native_precision(torch.device("cpu"))) else 1.0


def _model_size(model: ModelParams, models: dict[str, dict[str, int]]) -> dict[str, float]:
    """Layers and parameters: of the model that was imported, else by its name, else from the size of its files."""
    from stages.lib.models.anatomy import read_anatomy

    with suppress(ModelError):  # there is none yet, or a damaged one, which is made anew
        anatomy = read_anatomy(paths.PRETRAINED)
        if (anatomy.name, anatomy.source) == (model.name, model.source):
            return {"layers": anatomy.region(["layers"]).size, "parameters": anatomy.parameters}
    if model.name in models:
        return models[model.name]
    files = [*Path(model.root).glob("*.safetensors")] if model.source == "local" else []
    size = sum(path.stat().st_size for path in files) / BYTES
    default = next(iter(models.values()))
    return {"layers": size, "parameters": size} if size else default
