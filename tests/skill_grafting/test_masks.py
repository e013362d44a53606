"""Masks are sets of the parameters of a region; a mask file gives back what was stored, or says in one line why it can't."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import skill_grafting as sg
from skill_grafting.grafting import fingerprint as fingerprints
from skill_grafting.grafting import mask as mask_module
from skill_grafting.grafting.apply import values_at
from skill_grafting.grafting.fingerprint import differing, fingerprint, identify
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, read_mask, read_mask_for, seal, write_mask
from skill_grafting.grafting.region import LazyTensors, Region
from skill_grafting.grafting.select import best
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.support.errors import MaskError
from stages.text.scores.overlap import share_inside

HEAD = {"head.weight": torch.eye(2)}
SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
REGIONS = st.dictionaries(st.sampled_from("abcdefgh"), SHAPES, min_size=1).map(Region)


def masks_of(region: Region) -> st.SearchStrategy[GraftMask]:
    """Any mask of a region: of no parameter, of all, or of some."""
    indices = st.sets(st.integers(0, region.size - 1)).map(lambda found: torch.tensor([*found], dtype=torch.int64))
    drawn = indices.map(lambda found: GraftMask.from_region_indices(region, found))
    return st.sampled_from([GraftMask.empty(region), GraftMask.full(region)]) | drawn


TWO_MASKS = REGIONS.flatmap(lambda region: st.tuples(masks_of(region), masks_of(region)))


# --- Sets --------------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True)
@given(TWO_MASKS, st.sampled_from([1, 64]))
def test_masks_are_sets(masks, part):
    """By search and by booleans."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mask_module, "PART", part)
        are_sets(*masks)


def are_sets(first: GraftMask, second: GraftMask) -> None:
    masks = first, second
    one, other = ({*mask.region_indices().tolist()} for mask in masks)
    for made, wanted in ((first & second, one & other), (first | second, one | other), (first - second, one - other)):
        assert made.region_indices().tolist() == sorted(wanted)
        assert made.selected == sum(made.counts.values()) == len(wanted)
        again = GraftMask.from_region_indices(first.region, made.region_indices().flip(0))
        assert made == again and hash(made) == hash(again) and len(made) == len(wanted)
        assert torch.equal(first.region.flatten(made.dense()).nonzero().reshape(-1), made.region_indices())
    assert {*(~first).region_indices().tolist()} == {*range(first.region.size)} - one and ~~first == first
    assert (first == second) == (one == other) and first != one and first.overlap(second) == second.overlap(first)
    assert first.overlap(second) == (len(one & other) / len(one | other) if one | other else 0)
    assert share_inside(first, second)["overlap"] == (len(one & other) / len(other) if other else 0)
    assert first.sparsity == len(one) / first.region.size


def test_masks_of_two_regions_are_sets_of_the_tensors_of_both():
    """As of two fine-tunings that moved other tensors."""
    one = GraftMask(Region({"a": (3,), "b": (4,)}), {"a": torch.tensor([1]), "b": torch.tensor([0, 2])})
    other = GraftMask(Region({"b": (4,), "c": (2,)}), {"b": torch.tensor([2, 3]), "c": torch.tensor([1])})
    region = Region({"a": (3,), "b": (4,), "c": (2,)})
    wanted = {"a": [1], "b": [0, 2, 3], "c": [1]}, {"b": [2]}, {"a": [1], "b": [0]}, {"b": [3], "c": [1]}
    for made, selected in zip((one | other, one & other, one - other, other - one), wanted, strict=True):
        assert made.region == region and {name: at.tolist() for name, at in made.indices.items()} == selected
    assert one.overlap(other) == other.overlap(one) == 1 / 5 and one | other == other | one and one != one | GraftMask.empty(other.region)


def test_masks_are_compared_by_what_they_select_alone():
    one, other = (Region(dict.fromkeys(names, (2, 2))) for names in ("ab", "ba"))
    first, second = (GraftMask(region, {"b": torch.tensor([1, 3])}) for region in (one, other))
    assert first == second == GraftMask(one, {"a": torch.empty(0, dtype=torch.int64), **first.indices}) != GraftMask.empty(one)
    assert (first | GraftMask.full(other)) == GraftMask.full(one) and {first: 1}[second] == 1


def test_rows_columns_and_heads_are_counted():
    mask = GraftMask(Region({"q": (4, 3), "b": (4,), "one": ()}), {"q": torch.tensor([0, 2, 3, 11]), "b": torch.tensor([1])})
    whole = mask.dense()["q"].long()
    assert mask.by_row("q").tolist() == whole.sum(1).tolist() == [2, 1, 0, 1] and mask.by_row("q", axis=1).tolist() == whole.sum(0).tolist()
    assert mask.by_row("q", parts=2).tolist() == [3, 1] and mask.by_row("b", parts=2).tolist() == [1, 0] and mask.by_row("b", axis=-1).sum() == 1


def test_modules_are_counted_by_their_names():
    region = Region({"a.w": (10,), "a.b.w": (5, 2), "c.w": (4,)})
    mask = GraftMask.from_region_indices(region, torch.tensor([0, 3, 9, 12]))
    assert mask.by_module() == {"a": 3, "a.b": 1, "c": 0} and mask.by_module(1) == {"a": 4, "c": 0}


def test_budget_is_the_floor_without_binary_rounding():
    region = Region({"w": (10, 10)})
    assert [region.budget(n / 100) for n in range(101)] == [*range(101)]
    assert [int(n / 100 * 100) for n in range(101)] != [*range(101)], "control: plain floor loses some"
    assert (region.budget(0.009), region.budget(0.999)) == (0, 99)


def test_fingerprint_tells_values_names_and_shapes_apart(triple):
    region, pretrained, _ = triple
    print_ = fingerprint(region, pretrained)
    changed = {name: values.clone() for name, values in pretrained.items()}
    assert fingerprint(region, changed) == print_
    changed["d.scale"][0] = torch.nextafter(changed["d.scale"][0], torch.tensor(9.0))
    reshaped = Region({**region.shapes, "b.weight": (5, 7)})
    assert fingerprint(region, changed) != print_ and fingerprint(reshaped, pretrained) != print_
    named = {f"other.{name}": values for name, values in pretrained.items()}
    renamed = Region({name: tuple(values.shape) for name, values in named.items()})
    assert fingerprint(renamed, named) != print_
    assert not GraftMask.empty(region).equals(GraftMask.empty(renamed)), "nor are masks of them equal"


CHANGES = {
    "one number": lambda values: values[170, 3].copy_(values[170, 3].nextafter(torch.tensor(9.0))),
    "the last one": lambda values: values[-1, -1].mul_(2),
    "two change places": lambda values: values[:2, 7].copy_(values[:2, 7].flip(0)),
    "two neighbours change places": lambda values: values[9, :2].copy_(values[9, :2].flip(0)),
    "two rows change places": lambda values: values[4:6].copy_(values[4:6].flip(0)),
    "two halves change places": lambda values: values.copy_(values.roll(150, 0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_fingerprint_is_remembered_for_a_model_that_nobody_changed(change, monkeypatch):
    region, values = Region({"w": (300, 517)}), torch.randn(300, 517, generator=torch.Generator().manual_seed(0))
    known = fingerprint(region, {"w": values})
    hashed, exact = [], fingerprints.hashlib.sha256
    monkeypatch.setattr(fingerprints.hashlib, "sha256", lambda *given: hashed.append(given) or exact(*given))
    assert fingerprint(region, {"w": values.clone()}) == known and hashed == [], "of these numbers, whichever tensor holds them"
    assert differing(known, region, {"w": values}) == [] == differing("of another process", region, {"w": values})
    CHANGES[change](values.data)  # which torch doesn't notice
    assert fingerprint(region, {"w": values}) != known and len(hashed) == 1, "control"
    assert differing(known, region, {"w": values}) == ["w"]


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_what_a_patch_knows_its_base_by_spares_the_exact_hash(change, monkeypatch):
    region, values = Region({"w": (300, 517)}), torch.randn(300, 517, generator=torch.Generator().manual_seed(0))
    known = identify(region, {"w": values})
    assert known == identify(region, {"w": values})
    monkeypatch.setattr(fingerprints, "KNOWN", {})  # as in another process
    hashed, exact = [], fingerprints.hashlib.sha256
    monkeypatch.setattr(fingerprints.hashlib, "sha256", lambda *given: hashed.append(given) or exact(*given))
    if change is None:
        assert identify(region, {"w": values}, known) == known and not hashed
        assert identify(region, {"w": values.double()}, known).fingerprint != known.fingerprint and len(hashed) == 1, "another type"
        assert identify(region, {"w": values}, replace(known, fast=None)) == known and len(hashed) == 2, "of a patch without it"
    else:
        CHANGES[change](values.data)
        assert identify(region, {"w": values}, known).fingerprint != known.fingerprint and len(hashed) == 1, "control"


@pytest.mark.parametrize("k", [1, 1000, 4000, 5000, 12300])
def test_the_best_of_tensors_of_several_types_are_those_of_all_in_the_widest(k):
    generator = torch.Generator().manual_seed(0)
    kinds = {"a": (5000, torch.bfloat16), "b": (7000, torch.float32), "c": (300, torch.bfloat16)}
    scores = {name: torch.randn(size, generator=generator).to(kind) for name, (size, kind) in kinds.items()}
    region = Region({name: tuple(values.shape) for name, values in scores.items()})
    every = torch.cat([values.float() for values in scores.values()])
    assert torch.equal(best(region, scores, k)[1], every.sort(descending=True, stable=True).indices[:k].sort().values)


def test_rows_of_a_unit_matrix_that_change_places_are_another_model():
    region = Region({"w": (256, 256), "none": (0,)})
    unit, none = torch.eye(256), {"none": torch.empty(0)}
    moved = unit[[8, *range(1, 8), 0, *range(9, 256)]]
    assert fingerprint(region, {"w": unit} | none) != fingerprint(region, {"w": moved} | none)


def test_a_lazy_tensor_is_made_when_it_is_asked_for():
    made: list[str] = []
    lazy = LazyTensors(["a", "b"], lambda name: made.append(name) or torch.ones(1))
    assert [*lazy] == ["a", "b"] and len(lazy) == 2 and not made and "c" not in lazy
    assert lazy["b"] == 1 and made == ["b"]
    with pytest.raises(KeyError):
        lazy["c"]


# --- Files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(triple):
    region, pretrained, finetuned = triple
    mask = movement_mask(pretrained, finetuned, region, 20)
    about = {"model": "pico", "fingerprint": fingerprint(region, pretrained), "task": "toy", "seed": 13, "k": 64}
    return StoredMask(mask, values_at(finetuned, mask), HEAD, about | {"rule": "top_k"})


@pytest.fixture
def file(tmp_path, stored):
    write_mask(tmp_path / "mask.safetensors", stored)
    return tmp_path / "mask.safetensors"


def forge(file: Path, change: Callable[[dict, dict], object]) -> None:
    """Change tensors and header of a stored file, and write its digest anew."""
    with safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        header = json.loads(opened.metadata()["graft"])
    change(tensors, header)
    save_file(tensors, file, metadata={"graft": json.dumps(header)})
    seal(file)


def complaint(file: Path, read: Callable[[Path], object] = read_mask) -> str:
    with pytest.raises(MaskError) as caught:
        read(file)
    text = str(caught.value)
    assert text.startswith(f"{file}: ") and "\n" not in text
    return text.removeprefix(f"{file}: ")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(TWO_MASKS, st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_any_mask_is_read_as_it_was_written_in_equal_bytes_and_refused_if_one_byte_is_another_or_its_end_is_gone(tmp_path_factory, masks, share, flip):
    file, (mask, other) = tmp_path_factory.mktemp("mask") / "m", masks
    values = {name: torch.randn(len(at)) for name, at in mask.indices.items()}
    write_mask(file, StoredMask(mask, values, HEAD, {"task": "toy"}))
    again, first = read_mask(file), file.read_bytes()
    assert again.mask.equals(mask) and again.values.keys() == values.keys()
    assert all(torch.equal(again.values[name], values[name]) for name in values)
    assert torch.equal(again.head["head.weight"], HEAD["head.weight"])
    shares = {"selected": mask.selected, "graftable": mask.region.size, "sparsity": mask.sparsity}
    assert again.about.items() >= {"task": "toy", **shares}.items()
    assert (sg.load_mask(file), sg.load_mask(file).region) == (mask, mask.region)
    write_mask(file, again)
    assert file.read_bytes() == first
    place = int(share * len(first))
    for damaged in (first[:place] + bytes([first[place] ^ flip]) + first[place + 1 :], first[:place]):
        file.write_bytes(damaged)
        assert all(complaint(file, read) for read in READERS)
    write_mask(file, StoredMask(mask, values, HEAD, {"task": "other"}))
    assert file.read_bytes() != first, "control"
    alone = []
    for one in (mask, other):
        one.save(file)
        assert sg.load_mask(file).equals(one)
        alone.append(file.read_bytes())
    assert (alone[0] == alone[1]) == mask.equals(other)


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
FORGED = [
    (part(INDICES, lambda row: row.unsqueeze(1)), "b.weight: indices must be one row of whole numbers"),
    (part(INDICES, torch.Tensor.float), "b.weight: indices must be one row of whole numbers"),
    (number(INDICES, -1, 35), "must rise strictly within 0..34"),
    (part(INDICES, lambda row: row.flip(0)), "must rise strictly within 0..34"),
    (part(VALUES, lambda row: row.unsqueeze(1)), "indices and values of the shape"),
    (part(VALUES, lambda row: row[1:]), "indices and"),
    (part(VALUES, torch.Tensor.int), "b.weight is torch.int32, and held are float32, bfloat16, float16"),
    (part(HEADS, torch.Tensor.bool), "head.weight is torch.bool, and held are"),
    (number(VALUES, 0, float("nan")), "no numbers"),
    (number(HEADS, (0, 0), float("inf")), "no numbers"),
    (without(VALUES), "don't name the same tensors"),
    (without(INDICES), "selects"),
    (add(**{"indices/other": 0, "values/other": 0.0}), "other is not in the region"),
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
    (say(version=2), "format version 2, this program reads 3"),
    (say(format="other"), "not a mask file"),
    (say(selected=21), "selects 20 parameters, its header says 21"),
]
READERS = (read_mask, sg.load_mask, sg.Patch.from_pretrained)


@pytest.mark.parametrize(("change", "words"), FORGED)
def test_what_a_file_must_not_hold_is_refused_in_one_line_by_every_reader_though_it_is_sealed(file, change, words):
    forge(file, lambda _tensors, _header: None)
    read_mask(file)
    forge(file, change)
    assert all(words in complaint(file, read) for read in READERS)


def test_a_file_that_is_none_is_refused_by_every_reader(tmp_path, file):
    for header in (None, "[1]", "{}", "{", "[" * 100_000, '{"format": ' + "9" * 5000 + "}"):  # too deep, too many digits
        save_file({"x": torch.zeros(3)}, file, metadata=header and {"graft": header})
        assert all(re.match("damaged: |not a mask file", complaint(file, read)) for read in READERS)
    os.mkfifo(tmp_path / "pipe")
    for place, words in {"pipe": "is no regular file", "none": "no such mask", "file/in": "can't be read", "x" * 300: "can't be read"}.items():
        (tmp_path / "file").touch()
        assert all(complaint(tmp_path / place, read).startswith(words) for read in READERS)


def test_a_record_is_shown_in_a_few_words_and_is_all_there(triple):
    mask = GraftMask(triple[0], {}, {"method": "learned", "loss": [1 / number for number in range(1, 30)]})
    assert repr(mask.record) == "{'loss': [1, 0.5, 0.3333, ...], 'method': 'learned'}"
    assert mask.record["loss"][-1] == 1 / 29 and replace(mask).record == mask.record


def test_a_mask_is_refused_for_another_model_and_another_region(file, triple):
    region, pretrained, finetuned = triple
    assert read_mask_for(file, pretrained, "pico").mask.region == region
    for values in (finetuned, {**pretrained, "a.bias": torch.zeros(12)}):
        text = complaint(file, lambda path, values=values: read_mask_for(path, values, "nano"))
        assert "was made for pico" in text and "not for nano" in text
