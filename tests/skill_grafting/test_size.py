"""At any size: what work on checkpoints takes of memory doesn't grow with them, and they are read no more often than they have to be."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf

import skill_grafting as sg
from skill_grafting.checkpoints.comparing import skeleton
from skill_grafting.checkpoints.files import Checkpoint
from skill_grafting.models import probing
from skill_grafting.models.blocks import groups_in
from tests.memory import PeakBytes
from tests.pico import SIZES, small_config
from tests.skill_grafting.test_kinds import CLASSES, EVERY, USUAL

MEBIBYTE = 2**20
# beside the usual ones those that look at values on their way: routers, masks of their own
LOOKING = [("mixtral", "autoregressive"), ("jetmoe", "autoregressive"), ("roformer", "prompt"), ("vit", None)]
LAYERS = dict.fromkeys([*SIZES[3].split(), "decoder_layers", "encoder_layers"], 30)


def empty(kind: str, mode: str | None, folder: Path, **changes: object) -> hf.PreTrainedModel:
    """The skeleton of a kind with 30 layers, as it is made of a folder; skips what can't be made."""
    try:
        known = {*hf.CONFIG_MAPPING[kind]().to_dict(), *hf.CONFIG_MAPPING[kind].attribute_map}
        config = small_config(kind, **{name: size for name, size in LAYERS.items() if name in known}, **changes)
        config.save_pretrained(folder)
        checkpoint = Checkpoint(str(folder), "local", folder, config.to_dict(), {})
        return skeleton(checkpoint, mode or "ViTForImageClassification")
    except Exception as error:
        pytest.skip(f"{kind} can't be made: {error}")


def size_of(model: hf.PreTrainedModel) -> int:
    return sum(weight.numel() * weight.itemsize for weight in model.parameters())


def anonymous() -> int:
    """Bytes of memory of this process beside mapped files."""
    [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


def taken(work: Callable[[], object]) -> int:
    """Bytes that operations of torch had allocated at most."""
    with PeakBytes() as counter:
        work()
    return counter.peak


# --- The structure ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "mode"), [*USUAL, *LOOKING])
def test_a_structure_is_measured_without_memory_of_the_models_size(kind, mode, tmp_path):
    model = empty(kind, mode, tmp_path)
    assert any(weight.is_meta for weight in model.parameters())
    assert taken(lambda: groups_in(model)) < size_of(model) / 8
    assert taken(lambda: model.to_empty(device="cpu")) >= size_of(model) > MEBIBYTE, "control"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(EVERY))
def test_the_structure_of_every_kind_is_measured_without_memory(kind, tmp_path):
    mode = next(mode for mode, (_, mapping) in CLASSES.items() if kind in mapping)
    model = empty(kind, mode, tmp_path)
    try:
        assert taken(lambda: groups_in(model)) < max(size_of(model) / 4, MEBIBYTE)
    except sg.GraftError as error:
        assert "\n" not in str(error)


def test_zeros_in_place_of_values_take_no_memory_before_they_are_written_to():
    config = hf.RoFormerConfig(vocab_size=200, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=16)
    with torch.device("meta"):
        model = hf.RoFormerForMaskedLM(config)
    assert probing._run_without_values(model) is None and size_of(model) > 250 * MEBIBYTE
    before = anonymous()
    zeros = probing.with_zeros(model)
    order = probing.run_of(zeros).order
    assert anonymous() - before < 60 * MEBIBYTE
    assert order == probing.run_of(model).order and len(order) > 100
    zeros.to(torch.float64)
    assert anonymous() - before > 250 * MEBIBYTE, "control"
