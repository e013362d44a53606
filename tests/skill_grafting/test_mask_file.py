"""A mask file gives back what was stored, or says in one line why it can't."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from skill_grafting.errors import MaskError
from skill_grafting.grafting.apply import values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import (
    StoredMask,
    read_header,
    read_mask,
    require_model,
    write_mask,
)
from skill_grafting.grafting.region import Region
from skill_grafting.localizers.movement import movement_mask

HEAD = {"head.weight": torch.eye(2)}


@pytest.fixture
def stored(triple):
    region, pretrained, finetuned = triple
    mask = movement_mask(pretrained, finetuned, region, 20)
    about = {"model": "pico", "fingerprint": region.fingerprint(pretrained), "task": "toy", "seed": 13, "k": 64}
    about |= {"rule": "top_k"}
    return StoredMask(mask, values_at(finetuned, mask), HEAD, about)


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


def test_what_was_written_is_read_again(file, stored):
    again = read_mask(file)
    assert again.mask.equals(stored.mask) and again.mask.region.shapes == stored.mask.region.shapes
    assert again.values.keys() == stored.values.keys() == again.mask.indices.keys()
    assert all(torch.equal(again.values[name], stored.values[name]) for name in stored.values)
    assert torch.equal(again.head["head.weight"], HEAD["head.weight"])
    added = {"selected": 20, "graftable": 71, "sparsity": 20 / 71, "version": 2}
    assert again.about.items() >= {**stored.about, **added}.items()
    assert read_header(file) == again.about


@pytest.mark.parametrize("make", [GraftMask.empty, GraftMask.full])
def test_empty_and_full_masks_can_be_stored(tmp_path, triple, make):
    region, _, finetuned = triple
    mask = make(region)
    write_mask(tmp_path / "m", StoredMask(mask, values_at(finetuned, mask), {}, {}))
    assert read_mask(tmp_path / "m").mask.equals(mask)


def test_writing_again_gives_equal_bytes(file, stored):
    first = file.read_bytes()
    write_mask(file, stored)
    assert file.read_bytes() == first
    write_mask(file, read_mask(file))
    assert file.read_bytes() == first, "also after reading"
    write_mask(file, StoredMask(stored.mask, stored.values, stored.head, {**stored.about, "seed": 21}))
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


def test_a_missing_file_names_what_makes_it(tmp_path):
    assert complaint(tmp_path / "none") == "no such mask; in the pipeline `dvc repro` makes it"


def test_other_files_are_not_masks(tmp_path):
    file = tmp_path / "other"
    file.write_text("not a mask " * 100)
    assert complaint(file).startswith("damaged: ")
    for header in (None, "[1]", '"graft-mask"', "{}", '{"format": "other"}'):
        save_file({"x": torch.zeros(3)}, file, metadata=header and {"graft": header})
        assert complaint(file) == "not a mask file"


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
    (part(VALUES, lambda row: row.unsqueeze(1)), "indices and values of the shape"),
    (part(VALUES, torch.Tensor.int), "b.weight holds torch.int32, not float32, bfloat16 or float16"),
    (part(HEADS, torch.Tensor.bool), "head.weight holds torch.bool, not float32, bfloat16 or float16"),
    (say(shapes={"b.weight": [-7, 5]}), "damaged: header.shapes.b.weight.0: -7 is not allowed"),
    (say(shapes={"b.weight": [2**62, 2]}), "damaged: header.shapes: should be shapes"),
    (say(shapes={}), "damaged: header.shapes: should be shapes"),
    (say(task={"name": "toy"}), "damaged: header.task: {'name': 'toy'} is not allowed: should be text"),
    (say(seed="13"), "damaged: header.seed: '13' is not allowed: should be a whole number"),
    (say(task="\ud800"), "damaged: 'utf-8' codec can't encode"),
    (say(model_parameters=0), "damaged: header.model_parameters: 0 is not allowed"),
    (say(version=1), "format version 1, this program reads 2; what made it makes it anew"),
    (without("shapes"), "shapes"),
    (say(shapes=5), "damaged"),
    (say(selected=21), "selects 20 parameters, its header says 21"),
    (say(selected=19), "selects 20 parameters, its header says 19"),
    (number(INDICES, -1, 35), "must rise strictly within 0..34"),
    (part(INDICES, lambda row: row.flip(0)), "must rise strictly within 0..34"),
    (number(VALUES, 0, float("nan")), "not numbers"),
    (number(HEADS, (0, 0), float("inf")), "not numbers"),
    (without(VALUES), "don't name the same tensors"),
    (without(INDICES), "don't name the same tensors"),
    (part(VALUES, lambda row: row[1:]), "indices and"),
    (part(VALUES, lambda row: torch.tensor(1.0)), "damaged"),
    (add(**{"indices/other": 0, "values/other": 0.0}), "don't name the same tensors"),
    (add(**{"extra/b.weight": 0.0}), "extra"),
]


@pytest.mark.parametrize(
    "header", ["{", "[" * 100_000, '{"format": ' + "9" * 5000 + "}"], ids=["end", "depth", "digits"]
)
def test_a_header_that_no_json_reader_takes_is_damaged(file, header):
    save_file({"x": torch.zeros(3)}, file, metadata={"graft": header})
    assert complaint(file).startswith("damaged: ")


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
