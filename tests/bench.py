"""bench: what the project's own work costs beside what nobody can do without, as ratios of functions that take turns in one run.

python -m tests.bench                      the table on this machine's CPU, at most 90 seconds
python -m tests.bench --device cuda        the same on a GPU, with a model of base size
python -m tests.bench side_by_side         several stages at once, minutes; or any other part of the table

The model is random and nothing is fetched.  Lines for people go to stderr, one JSON object to stdout.
"""

import argparse
import json
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

from skill_grafting import runtime
from skill_grafting.data.encoding import Example
from skill_grafting.grafting import apply, region
from skill_grafting.grafting.region import Region, portions
from skill_grafting.localizers import learned
from skill_grafting.localizers.evidence import LocalizerInput
from skill_grafting.localizers.grown import grow
from skill_grafting.localizers.learned import MaskLogits, learn_mask
from skill_grafting.localizers.movement import movement_mask, movement_order
from skill_grafting.localizers.registry import Budget
from skill_grafting.models.anatomy import LAYERS
from skill_grafting.models.label_model import LabelModel
from skill_grafting.models.predicting import loss_gradient, predict
from skill_grafting.training.training import TrainPlan, train
from tests.dvc_project import TINY, make_original, twin
from tests.memory import PeakBytes
from tests.pico import FILLERS, TOY, localizer_settings, word_tokenizer

Row = tuple[str, float, float | None]  # what was measured, the number, and the most that it should be
# width, layers and rows of the model on each kind of device
SIZES = {"cuda": (768, 12, 128), "cpu": (128, 2, 32)}
ROUNDS, STEPS, BATCH, LARGE, RATE, SPARSITY, SHORT, LONG = 3, 3, 8, 32, 1e-3, 0.01, 27, 126
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
            finish()
            begin = time.perf_counter()
            function()
            finish()
            taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def finish() -> None:
    """Wait for the device."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak(function: Callable[[], object], device: torch.device) -> int:
    """The most bytes that a function has at once beyond what there was before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    with PeakBytes() as seen:
        function()
    return seen.peak


def make(machine: runtime.Runtime, words: int, count: int) -> tuple[LabelModel, list[Example]]:
    """A random BERT in standard mode, and so many examples of up to so many words."""
    from transformers import BertConfig, BertForSequenceClassification

    width, layers, _ = SIZES[machine.device.type]
    with runtime.seeded_torch("bench"):
        config = BertConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 32, intermediate_size=4 * width)  # fmt: skip
        model = LabelModel(BertForSequenceClassification(config), word_tokenizer(), TOY, "standard", 512, machine)
    draw = np.random.default_rng(0)
    texts = (" ".join(draw.choice(FILLERS, draw.integers(words - words // 8, words + 1))) for _ in range(count))
    return model, model.encode([{"sentence1": text, "sentence2": None, "label": "positive"} for text in texts])


def learning(machine: runtime.Runtime) -> Iterator[Row]:
    """Mask learning and growing beside the bare passes that they need, and their arithmetic on all tensors together."""
    model, examples = make(machine, LONG - 2, SIZES[machine.device.type][2])
    names = [name for name, group in model.groups().items() if group == LAYERS]
    weights, settings = model.train_only({*names}), localizer_settings("learned", steps=STEPS)
    whole = Region({name: tuple(weight.shape) for name, weight in weights.items()})
    pretrained = {name: weight.detach().clone() for name, weight in weights.items()}
    finetuned = {name: value + 0.01 * torch.randn_like(value) for name, value in pretrained.items()}
    most = Budget(whole.budget(SPARSITY))
    order = movement_order(pretrained, finetuned, whole, most.k)
    base = movement_mask(whole, order, most.k // 10)

    def start() -> MaskLogits:
        return MaskLogits.around(base, pretrained, finetuned, settings.offset)

    def gradient() -> torch.Tensor:
        return loss_gradient(model, examples)

    def learn() -> None:
        learn_mask(weights, start(), most, settings, gradient)

    def bare() -> None:
        for _ in range(STEPS):
            gradient()

    known = (whole, pretrained, finetuned, weights, lambda _: gradient, gradient, None, np.random.default_rng(0))
    growing = localizer_settings("grown", rounds=STEPS)
    seconds = in_turns(
        ROUNDS, learned=learn, grown=lambda: grow(LocalizerInput(*known), growing, order, most), bare=bare
    )
    yield "a step of mask learning / a forward and backward pass", seconds["learned"] / seconds["bare"], 1.15
    yield "a round of `grown` / a forward and backward pass", seconds["grown"] / seconds["bare"], 1.15
    gradient()
    logits = start()
    arithmetic = {"blend": lambda: logits.blend_into(weights), "step": lambda: logits.step(weights, 1e-3)}
    for name, function in arithmetic.items():
        ours, alone, together = in_groups(function)
        yield f"mask arithmetic, {name}, ms", 1000 * ours, None
        yield f"mask arithmetic, {name}, many tensors together / each alone", together / alone, None
    yield "peak memory of mask learning beyond both models, MiB", peak(learn, machine.device) / 2**20, None


def in_groups(function: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds of a function as it is, tensor by tensor, and with groups of tensors as on CUDA."""

    def by(most: int | None) -> Callable[[], None]:
        def run() -> None:
            for module in (learned, apply):
                module.grouped = region.grouped if most is None else lambda of: portions({n: t.numel() for n, t in of.items()}, most)  # fmt: skip
            function()
            learned.grouped = apply.grouped = region.grouped

        return run

    return (*in_turns(3 * ROUNDS, ours=by(None), alone=by(0), together=by(region.TOGETHER)).values(),)


def finetuning(machine: runtime.Runtime) -> Iterator[Row]:
    """A step of fine-tuning with SGD beside a bare loop, the Hugging Face Trainer, and itself with other settings."""
    model, examples = make(machine, SHORT - 2, 10 * BATCH)
    batches = [examples[first : first + BATCH] for first in range(0, len(examples), BATCH)]
    trained, plan = model.train_only({*model.parameters()}), TrainPlan(len(batches), RATE, BATCH)

    def tune(**changes: Any) -> None:
        train(([(model, batch)] for batch in batches), trained, replace(plan, **changes))

    def filled() -> None:
        torch.utils.deterministic.fill_uninitialized_memory = True
        tune()
        torch.utils.deterministic.fill_uninitialized_memory = False

    with tempfile.TemporaryDirectory() as work:
        seconds = in_turns(
            ROUNDS, ours=tune, bare=lambda: bare_loop(model, batches), trainer=lambda: by_trainer(model, batches, work),
            filled=filled, clipped=lambda: tune(clip_norm=1.0),
        )  # fmt: skip
    yield f"a step of fine-tuning, {BATCH} rows of {SHORT} tokens, ms", 1000 * seconds["ours"] / len(batches), None
    yield "a step of fine-tuning / a bare loop", seconds["ours"] / seconds["bare"], 1.05
    yield "a step of fine-tuning / the Hugging Face Trainer", seconds["ours"] / seconds["trainer"], 1
    yield "a step with new memory filled / without", seconds["filled"] / seconds["ours"], None
    yield "a step with clipping / without", seconds["clipped"] / seconds["ours"], None
    if machine.device.type == "cuda":
        yield from launches(tune, len(batches))
    yield from long_rows(machine)


def launches(function: Callable[[], object], steps: int) -> Iterator[Row]:
    """Launches of kernels, and waits for the device, a step, as the profiler sees them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        function()
        finish()
    counts = {event.key: event.count for event in seen.key_averages()}
    for what, word in (("launches of kernels", "LaunchKernel"), ("waits for the device", "Synchronize")):
        yield f"{what} a step", sum(count for name, count in counts.items() if word in name) / steps, None


def long_rows(machine: runtime.Runtime) -> Iterator[Row]:
    """Steps and predictions of long rows in both precisions, and gradient checkpointing."""
    rows = SIZES[machine.device.type][2]
    for precision in (torch.float32, torch.bfloat16):
        model, examples = make(replace(machine, precision=precision), LONG - 2, rows)
        trained, plan = model.train_only({*model.parameters()}), TrainPlan(1, RATE, LARGE)

        def tune(model: LabelModel = model, batch: list = examples[:LARGE], trained: dict = trained, plan: TrainPlan = plan) -> None:  # fmt: skip
            train(iter([[(model, batch)]]), trained, plan)

        seconds = in_turns(ROUNDS, tune=tune, predict=lambda model=model, examples=examples: predict(model, examples))
        name = str(precision).removeprefix("torch.")
        yield f"a step, {LARGE} rows of {LONG} tokens, {name}, ms", 1000 * seconds["tune"], None
        yield f"prediction, {LONG} tokens, {name}, rows a second", rows / seconds["predict"], None
        if precision == torch.float32:
            again = replace(model.runtime, gradient_checkpointing=True)
            before, model.runtime = (peak(tune, machine.device), in_turns(ROUNDS, tune=tune)["tune"]), again
            yield "a step with gradient checkpointing / without", in_turns(ROUNDS, tune=tune)["tune"] / before[1], None
            yield "its peak memory beyond the weights / without", peak(tune, machine.device) / before[0], None


def bare_loop(model: LabelModel, batches: list[list[Example]]) -> None:
    optimizer = torch.optim.SGD(model.model.parameters(), lr=RATE)
    model.model.train()
    for batch in map(model.batch, batches):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model.model(**batch.inputs).logits, batch.labels).backward()
        optimizer.step()


def by_trainer(model: LabelModel, batches: list[list[Example]], work: str) -> None:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    def collate(examples: list[list[Example]]) -> dict[str, torch.Tensor]:
        batch = model.batch(examples[0])
        return {**batch.inputs, "labels": batch.labels}

    arguments = TrainingArguments(
        f"{work}/trainer", per_device_train_batch_size=1, num_train_epochs=1, learning_rate=RATE, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=model.runtime.device.type == "cpu", max_grad_norm=0.0,
        remove_unused_columns=False, lr_scheduler_type="constant", optim="sgd",
    )  # fmt: skip
    trainer = Trainer(model.model, arguments, data_collator=collate, train_dataset=batches)
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def side_by_side(_machine: runtime.Runtime) -> Iterator[Row]:
    """How much sooner two workers are done, beside two independent processes with half of the cells each."""
    with tempfile.TemporaryDirectory() as work:
        yield from _side_by_side(Path(work))


def _side_by_side(work: Path) -> Iterator[Row]:
    original = make_original(work, LONGER)
    original.repro(*(f"sample@{task}-13" for task in TASKS))
    run = ("python", "-m", "stages.workflow.run", "evaluate", "--workers")
    seconds = {workers: twin(original, f"with_{workers}").run(*run, workers).seconds for workers in ("1", "2")}
    halves = [(twin(original, f"half_{number}"), TASKS[2 * number :][:2]) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        apart = max(pool.map(lambda half: half[0].repro(*(f"evaluate@{task}-13" for task in half[1])).seconds, halves))
    yield "two workers / one", seconds["2"] / seconds["1"], None
    yield "two workers / two processes apart, each with half of the cells", seconds["2"] / apart, 1.11


TABLE = {bench.__name__: bench for bench in (learning, finetuning)}
BENCHES = TABLE | {"side_by_side": side_by_side}


def main() -> None:
    """Measure, print each number as it is known, all as JSON, and leave with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Ratios, each within one run.")
    names = f"of {', '.join(BENCHES)}; {' and '.join(TABLE)} if left out"
    parser.add_argument("benches", nargs="*", metavar="bench", choices=[[], *BENCHES], help=names)
    parser.add_argument("--device", choices=[*SIZES], default="cpu")
    asked, began = parser.parse_args(), time.monotonic()
    settings = {"device": asked.device, "precision": "float32", "threads": 1, "gradient_checkpointing": False}
    machine = runtime.start(SimpleNamespace(**settings, batch_tokens=16384 if asked.device == "cuda" else 2048))
    name = torch.cuda.get_device_name() if asked.device == "cuda" else f"{os.cpu_count()} cores"
    about = {"device": name, "torch": torch.__version__, "load": round(os.getloadavg()[0], 2)}
    print(about, file=sys.stderr)
    rows = []
    for bench in asked.benches or TABLE:
        for what, value, most in BENCHES[bench](machine):
            rows.append({"what": what, "value": round(value, 4), "at_most": most, "met": most is None or value <= most})
            goal = "" if most is None else f"at most {most:g}: {'met' if value <= most else 'MISSED'}"
            print(f"{what:72} {value:10.3f}  {goal}", file=sys.stderr, flush=True)
    print(json.dumps(about | {"seconds": round(time.monotonic() - began), "rows": rows}, indent=1))
    sys.exit(not all(row["met"] for row in rows))


if __name__ == "__main__":
    main()
