"""runtime.precision: auto is chosen once, with the model, and read by whatever computes with it."""

from types import SimpleNamespace

import pytest
import torch

from stages import model as stage
from stages.lib import runtime
from stages.lib.errors import ModelError
from stages.lib.models import precision
from stages.lib.models.precision import choose_precision, has_bfloat16, read_precision, write_precision
from stages.workflow.core import paths

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "flags, found", [("fpu avx2 avx512_bf16", True), ("amx_bf16 amx_tile", True), ("avx512f avx512_bf16x", False)]
)
def test_a_processor_says_itself_whether_it_has_bfloat16(flags, found, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: one with amx_bf16 in its name\nflags\t\t: {flags}\n")
    assert has_bfloat16(CPU, file) == found
    assert not has_bfloat16(CPU, tmp_path / "none") and not has_bfloat16(torch.device("mps"), file)


@pytest.mark.parametrize(
    "seconds, chosen", [({"float32": 2.0, "bfloat16": 1.0}, "bfloat16"), ({"float32": 1.0, "bfloat16": 2.0}, "float32")]
)
def test_bfloat16_is_chosen_only_where_it_is_there_and_faster(make_cell, monkeypatch, seconds, chosen):
    anatomy, asked = make_cell("prompt").anatomy, []

    def measured(shape, dtype, device):
        asked.append(shape)
        return seconds[str(dtype).removeprefix("torch.")]

    monkeypatch.setattr(precision, "measure_step", measured)
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: False)
    assert choose_precision(anatomy, CPU) == ("float32", "there are no instructions for bfloat16") and not asked
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: True)
    told = ", ".join(f"{name} {took:.0f}000.0 ms" for name, took in seconds.items())
    assert choose_precision(anatomy, CPU) == (chosen, f"a step of 64 x 32: {told}")
    assert asked == [[64, 32]] * 2  # the largest of the layers, not the embeddings


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_takes_time_in_both_precisions(dtype):
    assert 0 < precision.measure_step([64, 32], dtype, CPU) < 1


def test_what_was_chosen_lies_with_the_model_and_is_what_stages_compute_in(make_cell, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    resources = {"batch_tokens": 64, "gradient_checkpointing": False}
    settings = SimpleNamespace(device="cpu", precision="auto", threads=1, **resources)
    with pytest.raises(ModelError, match=r"models/pretrained/precision.json: no such file"):
        runtime.start(settings)
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: True)
    monkeypatch.setattr(precision, "measure_step", lambda shape, dtype, _: 1.0 if dtype == torch.bfloat16 else 2.0)
    stage.choose(make_cell("prompt").anatomy, settings, paths.PRETRAINED)
    assert capsys.readouterr().out.startswith("model: runtime.precision auto is bfloat16 (a step of 64 x 32")
    assert runtime.start(settings).precision == torch.bfloat16
    write_precision("float32", paths.PRETRAINED)
    assert runtime.start(settings).precision == torch.float32
    settings.precision = "bfloat16"
    assert runtime.start(settings).precision == torch.bfloat16  # the settings have the last word
    write_precision("float64", paths.PRETRAINED)
    with pytest.raises(ModelError, match="damaged: the precision is 'float64', not float32 or bfloat16"):
        read_precision(paths.PRETRAINED)
