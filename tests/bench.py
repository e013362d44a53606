"""python -m tests.bench [cuda]: costs beside peers, as JSON, a minute or two; it leaves with 1 if one is above its limit.

Ours and the peers' take turns on the same work, on a processor with one thread and in seconds of the processor, children included.  A
ratio is the median over the turns, with the least and the largest.  Peers that aren't installed are small loops as theirs are.
"""

import copy
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import run

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments

import skill_grafting as sg
from skill_grafting.localizers.learned import MaskLogits, Watched, learn_mask
from skill_grafting.localizers.registry import localizer_of
from stages.text.models.fisher import squared_gradients
from stages.text.models.label_model import LabelModel
from stages.text.tasks.runtime import Runtime
from stages.text.training.trainer import TrainPlan, train
from tests.pico import TOY, word_tokenizer

STEPS, BATCHES, BATCH, RATE, SPARSITY, DENSITY = 2, 3, 8, 1e-3, 1e-4, 0.2
BY_HAND = """import sys, safetensors.torch as st
base, patch, to = sys.argv[1:]
tensors, changes = st.load_file(base), st.load_file(patch)
for name, places in changes.items():
    kind, _, name_of = name.partition("/")
    if kind == "indices":
        tensors[name_of].view(-1)[places.long()] = changes["values/" + name_of]
    elif kind == "head":
        tensors[name_of] = places
st.save_file(tensors, to, metadata={"format": "pt"})"""
Work = Callable[[], object]


def spent() -> float:
    """Seconds so far: of the processor, or with a card those of the clock."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return time.perf_counter()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def in_turns(ours: Work, *peers: Work, rounds: int = 3) -> list[np.ndarray]:
    """What ours took as a multiple of what each peer took, in each of the turns A B A B ... after one to warm up."""
    works, taken = (ours, *peers), np.zeros((rounds + 1, 1 + len(peers)))
    for place in np.ndindex(*taken.shape):
        begin = spent()
        works[place[1]]()
        taken[place] = spent() - begin
    return [*(taken[1:, :1] / taken[1:, 1:]).T]


def rows_of(model: LabelModel, count: int, words: int) -> tuple[list, dict[str, Tensor]]:
    """So many examples of so many words, and the same as a batch."""
    examples = model.encode([{"sentence1": " good" * words, "sentence2": None, "label": "positive"}] * count)
    batch = model.batch(examples)
    return examples, {**batch.inputs, "labels": batch.labels}


def inside(model: nn.Module) -> list[Tensor]:
    """The region's weights."""
    return [weight.data for name, weight in model.named_parameters() if in_region(name)]


def in_region(name: str) -> bool:
    """True for what is in the layers."""
    return ".layer." in name


def movement(base: nn.Module, tuned: nn.Module) -> list[np.ndarray]:
    """Movement beside reading both models once, the paper's `create_basepatch`, and cat and topk."""
    pairs = [*zip(inside(base), inside(tuned), strict=True)]
    k = int(SPARSITY * sum(before.numel() for before, _ in pairs))

    def read() -> None:
        for before, after in pairs:
            before.view(-1).dot(after.view(-1))

    def papers() -> None:
        moved, most = [after - before for before, after in pairs], np.zeros(k)
        for one in moved:
            most = -np.sort(-np.concatenate([np.absolute(one.cpu().numpy().ravel()), most]))[:k]
        masks = [torch.zeros_like(one) for one in moved]
        for mask, one in zip(masks, moved, strict=True):
            mask[one.abs() > most[-1]] = 1.0

    def by_hand() -> None:
        torch.cat([(after - before).abs().reshape(-1) for before, after in pairs]).topk(k)

    options = {"sparsity": SPARSITY, "parameters": in_region, "progress": False}
    everywhere, ours = partial(sg.localize, base, tuned, **options), partial(sg.localize, base, copy.deepcopy(tuned), **options)
    for name, weight in ours.args[1].named_parameters():
        weight.data = weight.data if in_region(name) else base.get_parameter(name).data
    return in_turns(ours, read) + in_turns(ours, papers, by_hand, rounds=2) + in_turns(everywhere, read)


def learning(model: LabelModel, tuned: nn.Module, rows: int) -> list[np.ndarray]:
    """A mask whose every step is rated, beside the passes that it needs, and the paper's `train_graft`."""
    base, (_, batch) = model.model.eval(), rows_of(model, rows, 30)
    live, starts = copy.deepcopy(base), [dict(one.named_parameters()) for one in (base, tuned)]
    weights = {name: weight for name, weight in live.named_parameters() if in_region(name)}
    before, after = ({name: one[name].data for name in weights} for one in starts)
    movers = sg.localize(base, tuned, sparsity=SPARSITY, parameters=in_region, progress=False)

    def gradient(passed_over: bool = False) -> Tensor:
        live.zero_grad()
        loss = live(**batch).loss
        loss.backward()
        return loss.detach()

    def score() -> float:
        with torch.no_grad():
            return float((live(**batch).logits.argmax(1) == batch["labels"]).float().mean())

    def ours() -> None:
        settings, start = localizer_of("learned", {"steps": STEPS, "eval_steps": 1}), MaskLogits.around(movers, before, after, 10.0)
        learn_mask(weights, start, movers.selected, settings, gradient, Watched(lambda: {"score": score()}))

    def bare() -> None:
        for _ in range(STEPS):
            gradient()
            score()

    def papers() -> None:
        patch = {name: torch.zeros_like(one) for name, one in before.items()}
        for name, places in movers.indices.items():
            patch[name].view(-1)[places] = 1.0
        moved, mask = {name: after[name] - before[name] for name in before}, {name: torch.zeros_like(one) for name, one in before.items()}

        def put(rounded: bool) -> None:
            for name, one in patch.items():
                share = one + (1 - 2 * one) * torch.sigmoid(mask[name] - 10)
                weights[name].data += (share.round() if rounded else share) * (after[name] - before[name])

        def reset() -> None:
            for name, weight in weights.items():
                weight.data += before[name] - weight.data

        for _ in range(STEPS):
            reset()
            put(rounded=False)
            gradient()
            found = {name: weight.grad.detach().clone() * moved[name] for name, weight in weights.items()}
            reset()
            for name, one in patch.items():
                mask[name] -= (1 - 2 * one) * found[name] * torch.sigmoid(mask[name] - 10) * (1 - torch.sigmoid(mask[name] - 10))
            put(rounded=True)
            score()

    return in_turns(ours, bare, papers)


def fisher(model: LabelModel) -> list[np.ndarray]:
    """Squared gradients of single examples beside FISH's own loop: those of the pipeline, and `sg.fisher`."""
    examples, _ = rows_of(model, BATCH, 30)
    names = [name for name, _ in model.model.named_parameters() if in_region(name)]
    singles = [rows_of(model, 1, 30)[1] for _ in range(BATCH)]

    def theirs() -> None:
        totals: dict[str, Tensor] = {}
        for one in singles:
            model.model.zero_grad()
            model.model(**one).loss.backward()
            for name, weight in model.model.named_parameters():
                if name in names:
                    totals[name] = totals.get(name, 0) + weight.grad.data**2

    def library() -> None:
        sg.fisher(model.model, lambda model, one: model(**one).loss, singles, parameters=in_region)

    return in_turns(lambda: squared_gradients(model, examples, names), theirs) + in_turns(library, theirs)


def merging(base: nn.Module, tuned: nn.Module) -> list[np.ndarray]:
    """Three whole models merged, beside the same tensor by tensor as mergekit does it."""
    full = sg.localize(base, tuned, sparsity=1.0, parameters=in_region, progress=False)
    models = [tuned, *(copy.deepcopy(tuned) for _ in range(2))]
    tasks = {str(number): (one, full) for number, one in enumerate(models)}

    def trimmed(delta: Tensor) -> Tensor:
        mask = torch.zeros_like(delta).view(-1)
        mask[delta.abs().view(-1).topk(int(DENSITY * delta.numel())).indices] = 1
        return delta * mask.view_as(delta)

    def elected(deltas: Tensor) -> Tensor:
        agree = deltas.sign() == deltas.sum(0).sign()
        return (deltas * agree).sum(0) / agree.sum(0).clamp(min=1)

    def by_tensor(change: Callable[[Tensor], Tensor], join: Callable[[Tensor], Tensor]) -> None:
        for made, before, *afters in zip(*map(inside, (copy.deepcopy(base), base, *models)), strict=True):
            made.copy_(before + join(torch.stack([change(after - before) for after in afters])))

    added, dropped = partial(torch.sum, dim=0), lambda delta: delta * torch.bernoulli(torch.full_like(delta, DENSITY)) / DENSITY
    peers = {"ties": (trimmed, elected), "arithmetic": (lambda delta: delta, added), "dare": (dropped, added)}
    shares = {"ties": {"share": DENSITY}, "dare": {"share": DENSITY}}
    works = {how: partial(sg.merge, base, tasks, how, **shares.get(how, {})) for how in peers}
    return [ratio for how, peer in peers.items() for ratio in in_turns(works[how], partial(by_tensor, *peer), rounds=2)]


def files(base: nn.Module, tuned: nn.Module, work: str) -> list[np.ndarray]:
    """`graft apply` beside load, put and save by hand, each a process, and opening a patch beside an adapter."""
    base.save_pretrained(f"{work}/base")
    word_tokenizer().save_pretrained(f"{work}/base")
    patch, made = f"{work}/patch", iter(range(99))
    mask = sg.localize(base, tuned, sparsity=SPARSITY, parameters=in_region, progress=False)
    sg.Patch.of(base, tuned, mask).save_pretrained(patch)
    apply = [sys.executable, "-m", "skill_grafting.patches", "apply", patch, "--base", f"{work}/base", "--to"]
    hand = [sys.executable, "-c", BY_HAND, f"{work}/base/model.safetensors", str(next(Path(patch).glob("*.safetensors")))]
    call = partial(run, check=True, capture_output=True)
    commands = in_turns(lambda: call([*apply, f"{work}/a{next(made)}"]), lambda: call([*hand, f"{work}/b{next(made)}"]), rounds=2)
    get_peft_model(copy.deepcopy(base), LoraConfig(r=8, target_modules="all-linear")).save_pretrained(f"{work}/lora")
    copies = iter([copy.deepcopy(base) for _ in range(4)])

    def opened() -> None:
        with sg.Patch.from_pretrained(patch).on(base):
            pass

    return commands + in_turns(opened, lambda: PeftModel.from_pretrained(next(copies), f"{work}/lora"))


def switching(base: nn.Module, tuned: nn.Module, work: str) -> list[np.ndarray]:
    """A patch of 0.5 % on and off beside bare indexing, copies of whole tensors and LoRA merged and unmerged; then bytes on disk."""
    mask = sg.localize(base, tuned, sparsity=0.005, parameters=in_region, progress=False)
    patch, lora = sg.Patch.of(base, tuned, mask), get_peft_model(copy.deepcopy(base), LoraConfig(r=8, target_modules="all-linear"))
    flat = {name: [model.get_parameter(name).data.view(-1) for model in (base, tuned)] for name in mask.indices}

    def ours() -> None:
        with patch.on(base):
            pass

    def bare() -> None:
        kept = {name: flat[name][0][at] for name, at in mask.indices.items()}
        for values in (patch.values, kept):
            for name, at in mask.indices.items():
                flat[name][0][at] = values[name]

    def whole() -> None:
        kept = {name: here.clone() for name, (here, _) in flat.items()}
        for name, (here, there) in flat.items():
            here.copy_(there)
            here.copy_(kept[name])

    def adapter() -> None:
        lora.merge_adapter()
        lora.unmerge_adapter()

    ratios = in_turns(ours, bare, whole, adapter, rounds=5)
    lora.save_pretrained(f"{work}/r8")
    for name, compact in (("plain", False), ("compact", True)):
        patch.save_pretrained(f"{work}/{name}", compact=compact)
    plain, small, eight = (max(part.stat().st_size for part in Path(work, name).iterdir()) for name in ("plain", "compact", "r8"))
    dense = sum(weight.nbytes for weight in base.parameters())
    return ratios + [np.array([plain / other]) for other in (dense, eight)] + [np.array([small / plain])]


def finetuning(model: LabelModel, work: str) -> list[np.ndarray]:
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

    return in_turns(lambda: train(iter([[(model, examples)]] * BATCHES), trained, plan), bare, by_trainer)


# what each function's ratios are, in order, and how large they may be
LIMITS = {
    "movement / both models read once": 6.0, "movement / the paper's code": 0.2, "movement / cat and topk": 0.5,
    "movement where others moved, too / both models read once": 12.0,
    "mask, each step rated / bare passes": 1.35, "mask, each step rated / the paper's train_graft": 0.9,
    "FISH scores / its code": 0.9, "sg.fisher / FISH's code": 1.15,
    "sg.merge, TIES / by tensor": 0.9, "sg.merge, arithmetic / by tensor": 1.5, "sg.merge, DARE / by tensor": 2.0,
    "graft apply / by hand": 2.0, "opening a patch / PeftModel.from_pretrained": 1.2,
    "a patch on and off / bare indexing": 2.0, "a patch on and off / whole tensors": 1.0, "a patch on and off / LoRA merged and unmerged": 1.0,
    "bytes of a patch of 0.5 % / the model's": 0.05, "bytes of a patch of 0.5 % / LoRA's, r=8": 3.0, "bytes of a compact patch / a plain one": 0.9,
    "fine-tuning / bare loop": 1.15, "fine-tuning / Trainer": 1.0,
}  # fmt: skip


def moved(base: nn.Module) -> nn.Module:
    """A copy of which each weight is a little elsewhere."""
    tuned = copy.deepcopy(base)
    for weight in tuned.parameters():
        weight.data.add_(0.01 * torch.randn_like(weight))
    return tuned


def of_base_size(device: str) -> tuple[nn.Module, nn.Module]:
    """Two models of 12 layers, whose 85 million parameters no cache holds."""
    base = BertForSequenceClassification(BertConfig(vocab_size=500, num_hidden_layers=12)).to(device)
    return base, moved(base)


def main(device: str) -> dict[str, np.ndarray]:
    """The ratios of LIMITS, turn by turn."""
    machine, layers, rows = Runtime(torch.device(device), torch.float32, 16384), *((12, 128) if device == "cuda" else (2, 16))
    torch.manual_seed(0)
    config = BertConfig(vocab_size=500, num_hidden_layers=layers)
    model = LabelModel(BertForSequenceClassification(config).to(device), word_tokenizer(), TOY, "standard", 512, machine)
    base = model.model.eval()
    tuned = moved(base)
    with tempfile.TemporaryDirectory() as work:
        large = of_base_size(device)
        found = movement(*large) + learning(model, tuned, rows) + fisher(model) + merging(base, tuned)
        found += files(base, tuned, work) + switching(*large, work) + finetuning(model, work)
    return dict(zip(LIMITS, found, strict=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    ratios = main(sys.argv[1] if sys.argv[1:] else "cpu")
    shown = {name: [round(float(part), 2) for part in (np.median(one), one.min(), one.max(), LIMITS[name])] for name, one in ratios.items()}
    print(json.dumps({"torch": torch.__version__, "median, least, largest, at most": shown}, indent=1))
    sys.exit(any(np.median(one) > LIMITS[name] for name, one in ratios.items()))
