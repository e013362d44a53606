"""What it costs to put a patch onto a live model and to take it off, beside loading and choosing a LoRA adapter of peft.

python -m tests.bench_swaps        a model of BERT-base's shape with random values, a graft of 0.1 % of its layers
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig

from stages.lib import grafted, open_patch
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, write_mask
from stages.lib.graft.region import Region
from stages.lib.patches.locations import PATCH
from stages.lib.patches.patch_file import CLASSES, KEY, VERSION, names_of_labels

ROUNDS, SPARSITY, RANK = 50, 0.001, 8
LABELS = ["no", "yes"]


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as work:
        folders = [Path(work) / name for name in ("patch", "first", "second")]
        selected = _write_patch(folders[0])
        for folder in folders[1:]:
            get_peft_model(
                _model(), LoraConfig(r=RANK, target_modules=["query", "value"], task_type="SEQ_CLS")
            ).save_pretrained(folder)
        model = _model()
        opening = _seconds(lambda: open_patch(folders[0], model), 3)
        patch = open_patch(folders[0], model)

        def swap() -> None:
            with grafted(model, patch):
                pass

        kilobytes = (folders[0] / PATCH).stat().st_size / 1000
        print(f"graft of {selected:,} values and a head, {kilobytes:.0f} kB, on {model.num_parameters():,} parameters")
        print(f"put on and taken off   {1000 * _seconds(swap, ROUNDS):8.2f} ms")
        print(f"opened and checked     {1000 * opening:8.1f} ms")
        adapted = PeftModel.from_pretrained(_model(), folders[1], adapter_name="first")
        loading = _seconds(lambda: _load(adapted, folders[2]), 5)
        adapted.load_adapter(folders[2], adapter_name="second")
        turns = iter(["first", "second"] * ROUNDS)
        choosing = _seconds(lambda: adapted.set_adapter(next(turns)), ROUNDS)
        print(f"LoRA of rank {RANK} loaded  {1000 * loading:8.1f} ms, and taken out again")
        print(f"LoRA chosen of two     {1000 * choosing:8.2f} ms, both in memory")


def _load(adapted: PeftModel, folder: Path) -> None:
    adapted.load_adapter(folder, adapter_name="other")
    adapted.delete_adapter("other")


def _seconds(function: Callable[[], object], rounds: int) -> float:
    """Median of the time that a call takes, after one that isn't counted."""
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _model() -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(BertConfig(num_labels=len(LABELS))).eval()


def _write_patch(folder: Path) -> int:
    """A patch of random places and values; gives their number."""
    weights = dict(_model().named_parameters())
    region = Region({name: tuple(part.shape) for name, part in weights.items() if ".encoder.layer." in name})
    head = {name: part.detach() + 1 for name, part in weights.items() if name.startswith("classifier.")}
    outside = {name: part.shape for name, part in weights.items() if name not in region.shapes and name not in head}
    whole = Region({name: tuple(shape) for name, shape in outside.items()} | region.shapes)
    mask = GraftMask.from_region_indices(region, torch.randperm(region.size)[: region.budget(SPARSITY)])
    use = {"version": VERSION, "auto_class": CLASSES["standard"], "labels": LABELS, "base": "random", "task": "none"}
    use |= {"config": {"pad_token_id": 0, **names_of_labels(LABELS, CLASSES["standard"])}, "outside": outside}
    use |= {"fingerprint": whole.fingerprint(weights)}
    folder.mkdir()
    values = {name: torch.randn(len(at)) for name, at in mask.indices.items()}
    write_mask(folder / PATCH, StoredMask(mask, values, head, {KEY: use}))
    return mask.selected


if __name__ == "__main__":
    main()
