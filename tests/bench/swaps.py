"""A patch put onto a live model and taken off, beside a LoRA adapter of peft: BERT-base's shape with random values."""

import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig

from stages.lib import grafted, open_patch
from stages.lib.grafting.mask import GraftMask
from stages.lib.grafting.mask_file import StoredMask, write_mask
from stages.lib.grafting.region import Region
from stages.lib.models.anatomy import CLASSES
from stages.lib.patches.patch_file import KEY, VERSION, names_of_labels
from stages.lib.patches.paths import PATCH
from tests.bench.results import Row, in_turns

ROUNDS, SPARSITY, RANK = 10, 0.001, 8
LABELS = ["no", "yes"]


def measure() -> Iterator[Row]:
    """Milliseconds of a swap and of opening a patch, and how many times as long an adapter takes."""
    lora = LoraConfig(r=RANK, target_modules=["query", "value"], task_type="SEQ_CLS")
    with tempfile.TemporaryDirectory() as work:
        folders = [Path(work) / name for name in ("patch", "first", "second")]
        _write_patch(folders[0])
        for folder in folders[1:]:
            get_peft_model(_model(), lora).save_pretrained(folder)
        model = _model()
        patch = open_patch(folders[0], model)
        adapted = PeftModel.from_pretrained(_model(), folders[1], adapter_name="first")

        def swap() -> None:
            with grafted(model, patch):
                pass

        def load() -> None:
            adapted.load_adapter(folders[2], adapter_name="other")
            adapted.delete_adapter("other")

        seconds = in_turns(ROUNDS, swap=swap, open=lambda: open_patch(folders[0], model), load=load)
        yield Row("a patch of 0.1 % put on and taken off", 1000 * seconds["swap"], "ms")
        yield Row("a patch opened and checked", 1000 * seconds["open"], "ms")
        yield Row("a LoRA adapter loaded and taken out / such a swap", seconds["load"] / seconds["swap"], "times")
        adapted.load_adapter(folders[2], adapter_name="second")
        turns = cycle(["first", "second"])
        seconds = in_turns(ROUNDS, swap=swap, choose=lambda: adapted.set_adapter(next(turns)))
    yield Row("one of two loaded adapters chosen / such a swap", seconds["choose"] / seconds["swap"], "times")


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
