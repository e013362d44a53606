"""python -m tests.bench [cuda]: ratios within one run, as JSON, a minute or two; it leaves with 1 if one is above its limit."""

import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments

import skill_grafting as sg
from skill_grafting.models.label_model import LabelModel
from skill_grafting.runtime import Runtime
from skill_grafting.training.training import TrainPlan, train
from tests.pico import TOY, word_tokenizer

ROUNDS, STEPS, BATCHES, BATCH, RATE, SPARSITY = 5, 5, 20, 8, 1e-3, 0.01
LIMITS = {"mask learning / bare passes": 1.15, "movement / by hand": 5.0, "fine-tuning / bare loop": 1.15, "fine-tuning / Trainer": 1.0}  # fmt: skip


def in_turns(*functions: Callable[[], object]) -> list[float]:
    """Median seconds of each function, A B A B ..., after each has run once to warm up."""
    taken = np.zeros((ROUNDS + 1, len(functions)))
    for place in np.ndindex(*taken.shape):
        begin = time.perf_counter()
        functions[place[1]]()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        taken[place] = time.perf_counter() - begin
    return np.median(taken[1:], axis=0).tolist()


def rows_of(model: LabelModel, count: int, words: int) -> tuple[list, dict[str, torch.Tensor]]:
    """So many examples of so many words, and the same as a batch."""
    examples = model.encode([{"sentence1": " good" * words, "sentence2": None, "label": "positive"}] * count)
    batch = model.batch(examples)
    return examples, {**batch.inputs, "labels": batch.labels}


def masks(model: LabelModel, rows: int) -> list[float]:
    """Mask learning beside the forward and backward passes that it needs, and movement beside cat and topk by hand."""
    base, (_, batch) = model.model.eval(), rows_of(model, rows, 124)
    tuned = copy.deepcopy(base)
    for weight in tuned.parameters():
        weight.data.add_(0.01 * torch.randn_like(weight))

    def bare() -> None:
        for _ in range(STEPS):
            base(**batch).loss.backward()
            base.zero_grad()

    def by_hand() -> None:
        inside = [[w for name, w in one.named_parameters() if ".layer." in name] for one in (base, tuned)]
        moved = torch.cat([(after - before).abs().reshape(-1) for before, after in zip(*inside, strict=True)])
        moved.topk(int(SPARSITY * len(moved)))

    ours = partial(sg.localize, base, tuned, sparsity=SPARSITY, parameters=lambda name: ".layer." in name)
    learn = partial(ours, method="learned", loss=lambda model: model(**batch).loss, steps=STEPS)
    learned, passes, moved, sorted_by_hand = in_turns(learn, bare, partial(ours, method="movement"), by_hand)
    return [learned / passes, moved / sorted_by_hand]


def finetuning(model: LabelModel, work: str) -> list[float]:
    """A step of fine-tuning with SGD beside a bare loop and the Hugging Face Trainer."""
    examples, batch = rows_of(model, BATCH, 25)
    trained, plan = model.train_only({*model.parameters()}), TrainPlan(BATCHES, RATE, BATCH)

    def bare() -> None:
        optimizer = torch.optim.SGD(model.model.parameters(), lr=RATE)
        model.model.train()
        for _ in range(BATCHES):
            optimizer.zero_grad()
            model.model(**batch).loss.backward()
            optimizer.step()

    def by_trainer() -> None:
        steps = {"num_train_epochs": 1, "per_device_train_batch_size": 1, "dataloader_pin_memory": False, "report_to": [], "disable_tqdm": True}
        arguments = TrainingArguments(work, optim="sgd", learning_rate=RATE, max_grad_norm=0.0, **steps)
        trainer = Trainer(model.model, arguments, data_collator=lambda one: one[0], train_dataset=[batch] * BATCHES)
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    ours, loop, trainer = in_turns(lambda: train(iter([[(model, examples)]] * BATCHES), trained, plan), bare, by_trainer)
    return [ours / loop, ours / trainer]


if __name__ == "__main__":
    torch.set_num_threads(1)
    device, width, layers, rows = ("cuda", 768, 12, 128) if sys.argv[1:] == ["cuda"] else ("cpu", 128, 2, 32)
    config = BertConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 32, intermediate_size=4 * width)  # fmt: skip
    machine, network = Runtime(torch.device(device), torch.float32, 16384), BertForSequenceClassification(config).to(device)
    model = LabelModel(network, word_tokenizer(), TOY, "standard", 512, machine)
    with tempfile.TemporaryDirectory() as work:
        ratios = dict(zip(LIMITS, masks(model, rows) + finetuning(model, work), strict=True))
    print(json.dumps({"device": device, "torch": torch.__version__, "at_most": LIMITS, "ratios": ratios}, indent=1))
    sys.exit(any(ratio > LIMITS[what] for what, ratio in ratios.items()))
