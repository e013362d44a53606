"""A patch on a live model gives what the pipeline's graft gives, and leaves no trace; what doesn't fit is refused by name."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from skill_grafting import grafted, load_graft, open_patch
from skill_grafting.errors import MaskError, ModelError
from skill_grafting.grafting.mask_file import StoredMask, write_mask
from skill_grafting.models.anatomy import CLASSES
from skill_grafting.patches.paths import PATCH
from tests.graft_project import MASK, Project, graft, make_project
from tests.graft_project import refused as refused_command
from tests.pico import random_mask, same
from tests.sealed import change_one_value
from tests.skill_grafting.test_exchange import FORGERIES, REFUSALS

MODES = [mode for mode in CLASSES if mode != "generative"]  # which tests/test_completing.py is about
OTHER = Path("masks/learned/21/toy.safetensors")
INPUTS = torch.tensor([[2, 17, 30, 41, 3], [2, 55, 9, 20, 3]])


@pytest.fixture(scope="module")
def projects(tmp_path_factory, make_cell) -> dict[str, Project]:
    """For each mode a project with two patches, `first` and `second`, of different masks and heads."""
    made = {}
    for mode in MODES:
        made[mode] = project = make_project(tmp_path_factory.mktemp(f"live-{mode}"), make_cell(mode))
        other, stored = random_mask(project.cell.region, 700, 3), project.mask
        values = {name: torch.linspace(-1, 1, len(at)) for name, at in other.indices.items()}
        head = {name: part + 1 for name, part in stored.head.items()}
        write_mask(project.folder / OTHER, StoredMask(other, values, head, {**stored.about, "seed": 21}))
        with pytest.MonkeyPatch.context() as patching:
            patching.chdir(project.folder)
            for mask, name in ((MASK, "first"), (OTHER, "second")):
                graft("export", mask, "--as", "patch", "--to", name)
                graft("export", mask, "--to", f"{name}-model")
    return made


@pytest.fixture
def standard(projects, monkeypatch) -> Project:
    monkeypatch.chdir(projects["standard"].folder)
    return projects["standard"]


def load(folder: str | Path, mode: str = "standard", **options: object) -> nn.Module:
    return getattr(transformers, CLASSES[mode]).from_pretrained(folder, **{"dtype": "float32", **options})


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in model.state_dict().items()}


@pytest.mark.parametrize("mode", MODES)
def test_two_lines_give_what_export_writes(projects, mode, monkeypatch):
    monkeypatch.chdir(projects[mode].folder)
    loaded, exported = load_graft("models/pretrained", "first"), load("first-model", mode)
    assert same(state(loaded), state(exported)) and not loaded.training
    assert loaded.config.id2label == exported.config.id2label and loaded.config.pad_token_id is not None
    assert not same(state(loaded), state(load("second-model", mode))), "control"


@pytest.mark.parametrize("mode", MODES)
def test_swaps_leave_no_trace(projects, mode, monkeypatch):
    monkeypatch.chdir(projects[mode].folder)
    model = load("models/pretrained", mode, id2label={0: "x", 1: "y"})
    before, config = state(model), model.config.to_dict()
    wanted = {name: state(load(f"{name}-model", mode)) for name in ("first", "second")}
    opened = {name: open_patch(name, model) for name in wanted}
    for name in ("first", "second", "second", "first"):
        with grafted(model, opened[name]) as given:
            assert given is model and same(state(model), wanted[name])
            assert (model.config.id2label == {0: "negative", 1: "positive"}) == (mode == "standard")
        assert same(state(model), before) and model.config.to_dict() == config


def test_nested_swaps_and_an_exception_restore_every_bit(standard):
    model = load("models/pretrained")
    before = state(model)
    with pytest.raises(KeyError), grafted(model, "first"):
        outer = state(model)
        second = open_patch("second", model)  # compared with the model beneath
        with grafted(model, second):
            inner = state(model)
            with grafted(model, "first"):
                pass
            assert same(state(model), inner)
        assert same(state(model), outer)
        with grafted(model, Path("second") / PATCH):
            assert same(state(model), inner)
            raise KeyError
    assert same(state(model), before)
    assert not same(outer, before) and not same(inner, outer)


def test_a_stop_in_the_midst_of_a_swap_restores_every_bit(standard, monkeypatch):
    model = load("models/pretrained")
    before, opened = state(model), open_patch("first", model)
    opened.places.insert(3, (opened.places[3][0], torch.tensor([10**9]), torch.ones(1)))  # fails while it is read
    with pytest.raises(IndexError), grafted(model, opened):
        pass
    assert same(state(model), before)
    opened.places[3] = (opened.places[4][0], torch.tensor([0]), torch.ones(2))  # fails while it is written
    with pytest.raises(RuntimeError), grafted(model, opened):
        pass
    assert same(state(model), before)
    swaps = [grafted(model, name) for name in ("first", "second")]
    for swap in swaps:
        swap.__enter__()
    for swap in swaps:  # the first one in is not the last one out
        with pytest.raises(RuntimeError, match="load it anew"):
            swap.__exit__(None, None, None)


def test_swaps_work_in_inference_mode_and_spoil_no_gradient_unseen(standard):
    model = load("models/pretrained")
    before, opened = state(model), open_patch("first", model)
    with torch.inference_mode(), grafted(model, opened):
        inside = model(INPUTS).logits
    assert same(state(model), before) and not torch.equal(inside, model(INPUTS).logits), "control"
    assert torch.equal(inside, load_graft("models/pretrained", "first")(INPUTS).logits)
    with grafted(model, opened):
        loss = model(INPUTS).logits.sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # of weights that are gone


def test_a_model_is_turned_into_another_dtype_after_its_patch_was_opened(standard):
    model = load("models/pretrained")
    opened = open_patch("first", model)
    before = state(model.to(torch.bfloat16))
    with grafted(model, opened):
        found = state(model)
    assert same(state(model), before)
    assert same(found, state(load_graft("models/pretrained", "first", dtype="bfloat16")))
    assert same(found, state(load("first-model").to(torch.bfloat16))) and not same(found, before)
    rounded = load("models/pretrained", dtype="bfloat16")
    said = r"\(\w{12}\); its numbers are rounded: load it in float32, open the patch, then"
    assert re.search(said, refused(rounded))


def test_a_base_model_that_is_in_bfloat16_itself_is_known_in_both_dtypes(projects, tmp_path, monkeypatch):
    project = projects["prompt"]
    half = load(project.folder / "models/pretrained", "prompt").to(torch.bfloat16)
    shutil.copytree(project.folder, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    Path("models/pretrained/SHA256SUMS").unlink()
    half.float().save_pretrained("models/pretrained")
    stored, region = project.mask, project.cell.region
    about = {**stored.about, "fingerprint": region.fingerprint(dict(half.float().named_parameters()))}
    write_mask(Path("half"), StoredMask(stored.mask, stored.values, stored.head, about))
    shutil.move("half", MASK)
    graft("export", MASK, "--as", "patch", "--to", "half")
    model = load("models/pretrained", "prompt", dtype="bfloat16")
    before = state(model)
    said = "half/patch.safetensors: its values are rounded from torch.float32 to the model's torch.bfloat16"
    with pytest.warns(UserWarning, match=said):
        opened = open_patch("half", model)
    with grafted(model, opened):
        inside = state(model)
    assert same(inside, state(load_graft("models/pretrained", "half", dtype=torch.bfloat16)))
    assert same(state(model), before) and not same(inside, before), "control"


@pytest.mark.parametrize("case", ["one bit", "a mask", "padding of no token", "a head for three labels"])
def test_damaged_and_forged_patches_are_refused(standard, case, tmp_path):
    shutil.copytree("first", tmp_path / "patch")
    (REFUSALS | FORGERIES)[case][0](tmp_path / "patch" / PATCH)
    with pytest.raises(MaskError) as refused:
        load_graft("models/pretrained", tmp_path / "patch")
    assert str(refused.value).startswith(f"{tmp_path / 'patch' / PATCH}: ") and "\n" not in str(refused.value)
    model = load("models/pretrained")
    before = state(model)
    with pytest.raises(MaskError), grafted(model, tmp_path / "patch"):
        pass
    assert same(state(model), before)


KERNEL, CODE = {"_attn_implementation": "evil/kernel"}, {"auto_map": {"AutoConfig": "evil.Config"}}


@pytest.mark.parametrize(
    ("setting", "words"), [(KERNEL, "a kernel of the hub"), (CODE, "code that comes with the model")]
)
def test_code_that_a_base_names_is_never_asked_for(standard, tmp_path, capsys, setting, words):
    shutil.copytree("models/pretrained", tmp_path / "base")
    (tmp_path / "base/SHA256SUMS").unlink()
    config = tmp_path / "base/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | setting))
    with pytest.raises(ModelError, match=f"config.json: {next(iter(setting))} names {words}"):
        load_graft(tmp_path / "base", "first")
    assert words in refused_command(capsys, "apply", "first", "--base", tmp_path / "base", "--to", tmp_path / "new")


def refused(model: nn.Module) -> str:
    with pytest.raises(MaskError) as error:
        open_patch("first", model)
    return str(error.value)


def test_other_models_are_refused_by_name(standard, projects, tmp_path):
    shutil.copytree("models/pretrained", tmp_path / "base")
    change_one_value(tmp_path / "base", "bert.embeddings.word_embeddings.weight")
    made_for = r"was made for pico \(fingerprint \w{12}\), not for this BertForSequenceClassification \(\w{12}\)$"
    with pytest.raises(MaskError, match=made_for):
        load_graft(tmp_path / "base", "first")
    line = refused(load("models/pretrained", num_labels=3))
    ours, theirs = (f"classifier.bias [{labels}], classifier.weight [{labels}, 32]" for labels in (2, 3))
    kind = "AutoModelForSequenceClassification for 2 labels"
    assert line.endswith(f": its head of {kind} is {ours}, and that of this BertForSequenceClassification is {theirs}")
    prompted = refused(load(projects["prompt"].folder / "models/pretrained", "prompt"))
    assert "not for this BertForMaskedLM: bert.pooler.dense.bias is [32] there and none here" in prompted
    fewer = load("models/pretrained", num_hidden_layers=1)
    assert "bert.encoder.layer.1.attention.output.LayerNorm.bias is [32] there and none here" in refused(fewer)
    config = load("models/pretrained").config
    with torch.device("meta"):
        hollow = transformers.AutoModelForSequenceClassification.from_config(config)
    assert "is torch.float32 on meta; only plain" in refused(hollow)
    model = load("models/pretrained")
    opened = open_patch("first", model)
    with pytest.raises(ModelError, match="was opened for another model"), grafted(load("models/pretrained"), opened):
        pass


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_a_model_that_apply_writes_has_the_type_of_its_base(standard, tmp_path, monkeypatch, kind):
    base, tuned = (load(folder).to(getattr(torch, kind)) for folder in ("models/pretrained", "first-model"))
    for model, name in ((base, "base"), (tuned, "tuned")):
        shutil.copytree(
            "models/pretrained", tmp_path / name, ignore=shutil.ignore_patterns("SHA256SUMS", "anatomy.json")
        )
        model.save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    graft("localize", "--base", "base", "--finetuned", "tuned", "--to", "patch", "--sparsity", "0.5", "--task", "toy")
    graft("apply", "patch", "--base", "base", "--to", "applied")
    found = load("applied", dtype="auto")
    assert found.config.dtype == next(found.parameters()).dtype == getattr(torch, kind)
    assert same(state(found.float()), state(load_graft("base", "patch")))
    sizes = [(Path(name) / "model.safetensors").stat().st_size for name in ("applied", "base")]
    assert sizes[0] < 1.1 * sizes[1]
