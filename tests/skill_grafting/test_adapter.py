"""A graft as an adapter of peft: what loads it gets the graft, and what isn't held is counted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers.models.bert.modeling_bert import BertOutput, BertSelfOutput

from skill_grafting import load_graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import StoredMask, write_mask
from skill_grafting.patches.adapter import common_sparsity
from tests.graft_project import MASK, Project, graft, make_project, refused
from tests.skill_grafting.test_live import INPUTS, load, state

BASE = "models/pretrained"


@pytest.fixture(scope="module")
def projects(tmp_path_factory, make_cell) -> dict[str, Project]:
    modes = ("standard", "autoregressive")
    return {mode: make_project(tmp_path_factory.mktemp(f"forms-{mode}"), make_cell(mode)) for mode in modes}


@pytest.fixture
def project(projects, monkeypatch) -> Project:
    monkeypatch.chdir(projects["standard"].folder)
    return projects["standard"]


def store_part(project: Project, path: Path, keep) -> StoredMask:
    """The mask in some of its tensors."""
    stored = project.mask
    indices = {name: at for name, at in stored.mask.indices.items() if keep(name)}
    values = {name: stored.values[name] for name in indices}
    part = replace(stored, mask=GraftMask(stored.mask.region, indices), values=values)
    write_mask(path, part)
    return part


def export(capsys, *words: object) -> str:
    capsys.readouterr()
    graft("export", *words)
    return capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own
@pytest.mark.parametrize("mode", ["standard", "autoregressive"])
def test_peft_loads_what_an_adapter_holds_whole(projects, mode, tmp_path, monkeypatch, capsys):
    from peft import PeftModel

    monkeypatch.chdir(projects[mode].folder)
    part = store_part(projects[mode], tmp_path / "mask", lambda name: "bias" not in name or "Norm" in name)
    assert {*projects[mode].mask.mask.indices} > {*part.mask.indices} or mode == "autoregressive"
    assert any("norm" in name.lower() for name in part.mask.indices)
    line = export(capsys, tmp_path / "mask", "--as", "peft", "--to", tmp_path / "adapter")
    export(capsys, tmp_path / "mask", "--as", "patch", "--to", tmp_path / "patch")
    assert "values in" in line and "norms whole" in line and "left out" not in line
    files = {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == files
    wanted = load_graft(BASE, tmp_path / "patch")
    base = load(BASE, mode, **({"num_labels": 2} if mode == "standard" else {}))
    model = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.inference_mode():
        found, known, bare = model(INPUTS).logits, wanted(INPUTS).logits, load(BASE, mode)(INPUTS).logits
    assert torch.allclose(found, known, rtol=0, atol=1e-5)
    assert not torch.allclose(bare, known, rtol=0, atol=1e-2), "control"
    merged = state(model.merge_and_unload())
    gaps = {name: float((merged[name] - values).abs().max()) for name, values in state(wanted).items()}
    assert max(gaps.values()) == 0 or "but for" in line
    assert max(gaps.values()) < 1e-7


def test_biases_are_refused_with_their_count_or_left_out(project, tmp_path, capsys):
    at = project.mask.mask.indices
    count = sum(len(at[name]) for name in at if name.endswith("bias") and "Norm" not in name)
    assert count, "control"
    line = refused(capsys, "export", MASK, "--as", "peft", "--to", tmp_path / "to")
    assert line.startswith(
        f"{MASK}: a peft adapter can't hold {count} of 400 values; --leave-out leaves these as they were pretrained"
    )
    line = export(capsys, MASK, "--as", "peft", "--leave-out", "--to", tmp_path / "to")
    assert f"left out: {count} of 400 values\n" in line
    assert f"left out: {count} of 400" in (tmp_path / "to/README.md").read_text()
    store_part(project, tmp_path / "norms", lambda name: "Norm" in name)
    line = refused(capsys, "export", tmp_path / "norms", "--as", "peft", "--to", tmp_path / "none")
    assert line == f"{tmp_path / 'norms'}: selects nothing in the weights of linear layers, which an adapter is made of"


def test_an_adapter_that_would_not_be_the_graft_is_refused(project, tmp_path, monkeypatch, capsys):
    mask = tmp_path / "mask"
    store_part(project, mask, lambda name: "output.dense.weight" in name)
    export(capsys, mask, "--as", "peft", "--to", tmp_path / "control")

    def forward(self, hidden: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(torch.nn.functional.linear(hidden, self.dense.weight, self.dense.bias) + before)

    for kind in (BertOutput, BertSelfOutput):
        monkeypatch.setattr(kind, "forward", forward)
    line = refused(capsys, "export", mask, "--as", "peft", "--to", tmp_path / "to")
    assert line.startswith(f"{mask}: a peft adapter would not be the graft: the logits of this model differ by ")
    assert not (tmp_path / "to").exists()


def test_every_layer_gets_the_places_it_needs():
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        sizes = torch.randint(1, 10**7, (6,), generator=generator).tolist()
        needed = [int(torch.randint(1, size + 1, (1,), generator=generator)) for size in sizes]
        sparsity = common_sparsity([*zip(needed, sizes, strict=True)])
        places = [int(size * (1 - sparsity)) for size in sizes]
        assert 0 <= sparsity < 1 and all(there >= need for there, need in zip(places, needed, strict=True))
        assert any(there == need for there, need in zip(places, needed, strict=True)), "no more than it takes"


def test_no_other_difference_comes_nearer_to_a_value():
    generator = torch.Generator().manual_seed(1)
    before = torch.randn(100_000, generator=generator)
    after = (before + 0.3 * torch.randn(100_000, generator=generator).double()).float()
    delta = after - before
    missed = before + delta != after
    assert 0 < int(missed.sum()) < 10_000
    for end in (-torch.inf, torch.inf):
        near = delta
        for _ in range(6):
            near = torch.nextafter(near, torch.full_like(near, end))
            assert not bool((before + near == after)[missed].any())
