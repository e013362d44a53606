"""A step of fine-tuning beside a bare loop and the Hugging Face Trainer, over the same batches."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from stages.lib.data.encoding import Example
from stages.lib.models.label_model import LabelModel
from stages.lib.training.training import TrainPlan, train
from tests.bench.learning import load, rows_of
from tests.bench.results import Row, in_turns

SIZE, STEPS, ROUNDS, RATE = 8, 20, 5, 1e-3


def measure() -> Iterator[Row]:
    """Ours / a bare loop, and ours / the Trainer; all with SGD."""
    with tempfile.TemporaryDirectory() as work:
        model, _ = load(Path(work))
        examples = model.encode(rows_of(SIZE * STEPS))
        batches = [examples[first : first + SIZE] for first in range(0, len(examples), SIZE)]
        trained = model.train_only({*model.parameters()})
        plan = TrainPlan(STEPS, RATE, SIZE)
        seconds = in_turns(
            ROUNDS,
            ours=lambda: train(((model, batch) for batch in batches), trained, plan),
            bare=lambda: _bare(model, batches),
            trainer=lambda: _trainer(model, batches, Path(work)),
        )
    yield Row("a step of fine-tuning", seconds["ours"] / STEPS, "s")
    yield Row("a step of fine-tuning / a bare loop", seconds["ours"] / seconds["bare"], "times", 1.05)
    yield Row("a step of fine-tuning / the Hugging Face Trainer", seconds["ours"] / seconds["trainer"], "times", 1)


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
