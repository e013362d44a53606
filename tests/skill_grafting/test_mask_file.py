"""A mask file gives back what was stored, or says in one line why it can't."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sets
from safetensors import safe_open
from safetensors.torch import save_file

from skill_grafting.errors import MaskError
from skill_grafting.grafting.apply import values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import StoredMask, read_mask, require_model, write_mask
from skill_grafting.grafting.mask_indices import read_header, read_indices
from skill_grafting.grafting.region import Region
from skill_grafting.localizers.movement import movement_mask

HEAD = {"head.weight": torch.eye(2)}


@pytest.fixture
def stored(triple):
    region, pretrained, finetuned = triple
    mask = movement_mask(pretrained, finetuned, region, 20)
    about = {"model": "pico", "fingerprint": region.fingerprint(pretrained), "task": "toy", "seed": 13, "k": 64}
    return StoredMask(mask, values_at(finetuned, mask), HEAD, about | {"rule": "top_k"})


@pytest.fixture
def file(tmp_path, stored):
    write_mask(tmp_path / "mask.safetensors", stored)
    return tmp_path / "mask.safetensors"


def rewrite(file: Path, change: Callable[[dict, dict], object]) -> None:
    """Change tensors and header of a stored file."""
    with safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        header = json.loads(opened.metadata()["graft"])
    change(tensors, header)
    save_file(tensors, file, metadata={"graft": json.dumps(header)})


def complaint(file: Path, read: Callable[[Path], object] = read_mask) -> str:
    with pytest.raises(MaskError) as caught:
        read(file)
    text = str(caught.value)
    assert text.startswith(f"{file}: ") and "\n" not in text
    return text.removeprefix(f"{file}: ")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(sizes=lists(integers(1, 30), min_size=1, max_size=4), chosen=sets(integers(0, 29)))
def test_any_mask_is_read_as_it_was_written_in_equal_bytes(tmp_path_factory, sizes, chosen):
    file, region = (
        tmp_path_factory.mktemp("mask") / "m",
        Region({f"{n}.weight": (size, 2) for n, size in enumerate(sizes)}),
    )
    mask = GraftMask.from_region_indices(
        region, torch.tensor(sorted(at for at in chosen if at < region.size), dtype=torch.int64)
    )
    values = {name: torch.randn(len(at)) for name, at in mask.indices.items()}
    write_mask(file, StoredMask(mask, values, HEAD, {"task": "toy"}))
    again, first = read_mask(file), file.read_bytes()
    assert again.mask.equals(mask) and again.values.keys() == values.keys() and read_header(file) == again.about
    assert all(torch.equal(again.values[name], values[name]) for name in values)
    assert torch.equal(again.head["head.weight"], HEAD["head.weight"])
    shares = {"selected": mask.selected, "graftable": region.size, "sparsity": mask.selected / region.size}
    assert again.about.items() >= {"task": "toy", **shares}.items()
    assert (read_indices(file)[0], read_indices(file)[1].tolist()) == (region, mask.region_indices().tolist())
    write_mask(file, again)
    assert file.read_bytes() == first
    write_mask(file, StoredMask(mask, values, HEAD, {"task": "other"}))
    assert file.read_bytes() != first, "control"


def test_a_file_is_eight_bytes_for_each_parameter_and_a_header(tmp_path):
    region = Region({f"layer.{number}.weight": (500, 1000) for number in range(4)})
    mask = GraftMask.from_region_indices(region, torch.arange(0, region.size, 100))
    values = {name: torch.ones(len(indices)) for name, indices in mask.indices.items()}
    write_mask(tmp_path / "m", StoredMask(mask, values, {}, {"model": "x"}))
    assert 8 * mask.selected < (tmp_path / "m").stat().st_size < 8 * mask.selected + 4096


def test_indices_beyond_int32_are_kept(tmp_path):
    mask = GraftMask(Region({"w": (2**31 + 1,)}), {"w": torch.tensor([2**31])})
    write_mask(tmp_path / "m", StoredMask(mask, {"w": torch.ones(1)}, {}, {}))
    assert read_mask(tmp_path / "m").mask.equals(mask)


def test_other_files_are_not_masks(tmp_path):
    file = tmp_path / "other"
    assert complaint(file) == "no such mask; in the pipeline `dvc repro` makes it"
    file.write_text("not a mask " * 100)
    assert complaint(file).startswith("damaged: ")
    for header in (None, "[1]", '"graft-mask"', "{}", '{"format": "other"}'):
        save_file({"x": torch.zeros(3)}, file, metadata=header and {"graft": header})
        assert complaint(file) == "not a mask file"
    for header in ("{", "[" * 100_000, '{"format": ' + "9" * 5000 + "}"):  # no JSON, too deep, too many digits
        save_file({"x": torch.zeros(3)}, file, metadata={"graft": header})
        assert complaint(file).startswith("damaged: ")


Change = Callable[[dict, dict], object]


def part(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors, _header: tensors.update({name: change(tensors[name])})


def number(name: str, place: int | tuple[int, int], value: float) -> Change:
    return lambda tensors, _header: tensors[name].__setitem__(place, value)


def add(**parts: float) -> Change:
    return lambda tensors, _header: tensors.update({name: torch.tensor([value]) for name, value in parts.items()})


def without(name: str) -> Change:
    return lambda tensors, header: (tensors if "/" in name else header).pop(name)


def say(**words: object) -> Change:
    return lambda _tensors, header: header.update(words)


INDICES, VALUES, HEADS = "indices/b.weight", "values/b.weight", "head/head.weight"
DAMAGES = [
    (part(INDICES, lambda row: row.unsqueeze(1)), "b.weight: indices must be one row of whole numbers"),
    (part(INDICES, torch.Tensor.float), "b.weight: indices must be one row of whole numbers"),
    (number(INDICES, -1, 35), "must rise strictly within 0..34"),
    (part(INDICES, lambda row: row.flip(0)), "must rise strictly within 0..34"),
    (part(VALUES, lambda row: row.unsqueeze(1)), "indices and values of the shape"),
    (part(VALUES, lambda row: row[1:]), "indices and"),
    (part(VALUES, torch.Tensor.int), "b.weight holds torch.int32"),
    (part(HEADS, torch.Tensor.bool), "head.weight holds torch.bool"),
    (number(VALUES, 0, float("nan")), "not numbers"),
    (number(HEADS, (0, 0), float("inf")), "not numbers"),
    (without(VALUES), "don't name the same tensors"),
    (without(INDICES), "don't name the same tensors"),
    (add(**{"indices/other": 0, "values/other": 0.0}), "don't name the same tensors"),
    (add(**{"extra/b.weight": 0.0}), "extra"),
    (without("shapes"), "shapes"),
    (say(shapes=5), "header.shapes"),
    (say(shapes={}), "header.shapes"),
    (say(shapes={"b.weight": [-7, 5]}), "header.shapes.b.weight.0: -7"),
    (say(shapes={"b.weight": [2**62, 2]}), "fewer than 2^63"),
    (say(task={"name": "toy"}), "header.task"),
    (say(task="\ud800"), "'utf-8' codec can't encode"),
    (say(seed="13"), "header.seed"),
    (say(model_parameters=0), "header.model_parameters"),
    (say(version=1), "format version 1, this program reads 2"),
    (say(selected=21), "selects 20 parameters, its header says 21"),
]


@pytest.mark.parametrize(("change", "words"), DAMAGES)
def test_damage_is_refused_in_one_line(file, change, words):
    rewrite(file, lambda _tensors, _header: None)
    read_mask(file)
    rewrite(file, change)
    assert words in complaint(file)


def test_a_mask_is_refused_for_another_model_and_another_region(file, triple):
    region, pretrained, finetuned = triple
    about = read_header(file)
    require_model(file, about, region, region.fingerprint(pretrained), "pico")
    other = Region({**region.shapes, "a.bias": (12,)})
    for wanted, fingerprint in ((region, region.fingerprint(finetuned)), (other, region.fingerprint(pretrained))):
        text = complaint(file, lambda path, w=wanted, f=fingerprint: require_model(path, about, w, f, "nano"))
        assert "was made for pico" in text and "not for nano" in text
