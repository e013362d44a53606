"""runtime.precision: auto is chosen once, with the model, and read by whatever computes with it."""

from types import SimpleNamespace

import pytest
import torch

from skill_grafting import runtime
from skill_grafting.errors import ModelError
from skill_grafting.precision import native_precision, read_precision, write_precision
from skill_grafting.runtime import device_of
from stages.workflow.core import paths


@pytest.mark.parametrize(
    ("device", "able", "chosen"),
    [
        ("cpu", {"avx512_bf16": True, "amx_bf16": False}, "bfloat16"),
        ("cpu", {"amx_bf16": True}, "bfloat16"),
        ("cpu", {"avx512_f": True, "avx512_bf16": False}, "float32"),
        ("cpu", {}, "float32"),
        ("mps", {"amx_bf16": True}, "float32"),
        ("cuda", {"amx_bf16": True}, "float32"),
        ("cuda", {"cuda": True}, "bfloat16"),
    ],
)
def test_bfloat16_is_for_what_computes_it_natively(monkeypatch, device, able, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: "cuda" in able)
    assert native_precision(torch.device(device)) == chosen


def test_what_was_chosen_lies_with_the_model_and_is_what_stages_compute_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    resources = {"batch_tokens": 64, "gradient_checkpointing": False}
    settings = SimpleNamespace(device="cpu", precision="auto", threads=1, **resources)
    with pytest.raises(ModelError, match=r"models/pretrained/precision.json: no such file"):
        runtime.start(settings, paths.PRETRAINED)
    for name in ("bfloat16", "float32"):
        write_precision(name, paths.PRETRAINED)
        assert runtime.start(settings, paths.PRETRAINED).precision == getattr(torch, name)
    settings.precision = "bfloat16"
    assert runtime.start(settings, paths.PRETRAINED).precision == torch.bfloat16  # the settings have the last word
    write_precision("float64", paths.PRETRAINED)
    with pytest.raises(ModelError, match="damaged: the precision is 'float64', not float32 or bfloat16"):
        read_precision(paths.PRETRAINED)


@pytest.mark.parametrize(("cuda", "mps", "device"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_is_the_fastest_device_that_is_there(monkeypatch, cuda, mps, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert device_of("auto").type == device
