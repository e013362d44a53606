"""A project folder as the pipeline leaves it behind for one pico cell: model, task, masks and what was predicted."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from torch import Tensor

from skill_grafting.grafting.apply import transplant, values_at
from skill_grafting.grafting.fingerprint import fingerprint
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, read_mask, write_mask
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.patches.__main__ import main
from skill_grafting.support.fields import HEAD
from stages.commands import patch as patch_command
from stages.text.models.label_model import reset_to_pretrained
from stages.text.models.predicting import predict
from stages.text.models.structure import groups_of
from tests.cells import Cell
from tests.pico import TOY

ROOT = Path(__file__).parents[1]
MASK = Path("masks/learned/13/toy.safetensors")
SELECTED = 400


@dataclass(frozen=True)
class Project:
    """Its top folder and the cell it was made of."""

    folder: Path
    cell: Cell

    @property
    def mask(self) -> StoredMask:
        """The mask it has stored."""
        return read_mask(self.folder / MASK)

    def logits(self, stored: StoredMask) -> Tensor:
        """The pipeline's predictions with the graft of a mask, (rows, labels)."""
        model = self.cell.load()
        reset_to_pretrained(model, self.cell.anatomy, self.cell.pretrained_folder)
        model.put(transplant(self.cell.pretrained(), stored.values, stored.mask) | dict(stored.head))
        return predict(model, model.encode(self.cell.rows["test"]))

    def store(self, path: Path, mask: GraftMask, **about: object) -> Path:
        """Store another mask of the same cell; gives its place."""
        values = values_at(self.cell.finetuned(), mask)
        write_mask(self.folder / path, StoredMask(mask, values, self.mask.head, {**self.mask.about, **about}))
        return path


def make_project(folder: Path, cell: Cell) -> Project:
    """Write the project of a cell."""
    shutil.copytree(cell.pretrained_folder, folder / "models/pretrained")
    (folder / "params.yaml").write_text("model: {max_length: 64}\n")
    write(folder / "data/tables/toy/card.json", {"task": TOY.model_dump()})
    region, before, after = cell.region, cell.pretrained(), cell.finetuned()
    mask = replace(movement_mask(before, after, region, SELECTED), record={"method": "learned", "settings": {}})
    about = {"model": "pico", "fingerprint": fingerprint(region, before), "model_parameters": cell.anatomy.parameters}
    about |= {"task": "toy", "seed": 13, "localizer": "learned", "found": mask.record}
    write_mask(folder / MASK, StoredMask(mask, values_at(after, mask), head(cell), about))
    scores = {"finetuned": {"n": 200, "score": 0.9}, "grafted": {"n": 200, "score": 0.875, "retained": 0.972}}
    write(folder / "metrics/evaluate/13/toy.json", {"scores": {"toy": scores}})
    return Project(folder, cell)


def head(cell: Cell) -> dict[str, Tensor]:
    """The trained head of a cell, none where the mode has none."""
    model = cell.load()
    return {name: model.parameters()[name].detach().clone() for name, group in groups_of(model).items() if group == HEAD}


def write(file: Path, value: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def graft(*words: object) -> None:
    """The command, with each word as text."""
    main([str(word) for word in words])


def as_patch(mask: Path, to: Path | str) -> Path | str:
    """The patch that the pipeline makes of a mask; gives its place."""
    patch_command.main([str(mask), "--to", str(to)])
    return to


def refused(capsys, *words: object) -> str:
    """The line with which a command refuses; nothing is written beside its target."""
    capsys.readouterr()
    beside = Path(words[words.index("--to") + 1]).parent if "--to" in words else Path()
    before = sorted(beside.glob("*"))
    with pytest.raises(SystemExit) as left:
        graft(*words)
    shown = capsys.readouterr()
    assert left.value.code == 2 and shown.out == "" and sorted(beside.glob("*")) == before
    assert shown.err.startswith(f"graft {words[0]}: ") and shown.err.count("\n") == 1, shown.err
    return shown.err.removeprefix(f"graft {words[0]}: ").strip()
