"""A step of fine-tuning beside a bare loop, the Hugging Face Trainer, and itself with gradient checkpointing, over the same batches."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stages.lib.data.encoding import Example
from stages.lib.models.label_model import LabelModel
from stages.lib.training.training import TrainPlan, train
from tests.bench.learning import load, rows_of
from tests.bench.results import Row, in_turns
from tests.memory import PeakBytes

SIZE, STEPS, ROUNDS, RATE = 8, 20, 5, 1e-3
# rows of a batch whose activations outweigh the gradients
LARGE = 64


def measure() -> Iterator[Row]:
    """Ours / a bare loop, ours / the Trainer, and what gradient checkpointing takes and saves; all with SGD."""
    with tempfile.TemporaryDirectory() as work:
        model, _ = load(Path(work))
        examples = model.encode(rows_of(SIZE * STEPS))
        batches = [examples[first : first + SIZE] for first in range(0, len(examples), SIZE)]
        trained = model.train_only({*model.parameters()})
        plan = TrainPlan(STEPS, RATE, SIZE)

        def tune() -> None:
            train(((model, batch) for batch in batches), trained, plan)

        seconds = in_turns(
            ROUNDS, recomputed=lambda: _recomputed(model, tune), ours=tune, bare=lambda: _bare(model, batches),
            trainer=lambda: _trainer(model, batches, Path(work)),
        )  # fmt: skip
        one = TrainPlan(1, RATE, LARGE)
        large = [(model, examples[:LARGE])]
        kept = _peak(lambda: train(iter(large), trained, one))
        saved = _recomputed(model, lambda: _peak(lambda: train(iter(large), trained, one)))
    yield Row("a step of fine-tuning", seconds["ours"] / STEPS, "s")
    yield Row("a step of fine-tuning / a bare loop", seconds["ours"] / seconds["bare"], "times", 1.05)
    yield Row("a step of fine-tuning / the Hugging Face Trainer", seconds["ours"] / seconds["trainer"], "times", 1)
    yield Row("a step with gradient checkpointing / without", seconds["recomputed"] / seconds["ours"], "times")
    yield Row(f"its peak memory beyond the weights / without, {LARGE} rows", saved / kept, "times")


def _recomputed(model: LabelModel, function: Callable[[], Any]) -> Any:
    before = model.runtime
    model.runtime = replace(before, gradient_checkpointing=True)
    try:
        return function()
    finally:
        model.runtime = before


def _peak(function: Callable[[], object]) -> int:
    with PeakBytes() as seen:
        function()
    return seen.peak


def _bare(model: LabelModel, batches: list[list[Example]]) -> None:
    optimizer = torch.optim.SGD(model.model.parameters(), lr=RATE)
    model.model.train()
    for examples in batches:
        batch = model.batch(examples)
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model.model(**batch.inputs).logits, batch.labels).backward()
        optimizer.step()


def _trainer(model: LabelModel, batches: list[list[Example]], work: Path) -> None:
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
