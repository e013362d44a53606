"""anatomy.json: names, shapes and groups of a model's parameters, kept beside its weights.

Stages that only do arithmetic on tensors read it instead of building the model, which would cost
them seconds of start-up.
"""

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

from stages.lib.errors import ModelError
from stages.lib.graft.region import Region
from stages.lib.io import read_json, write_json

FILE = "anatomy.json"


@dataclass(frozen=True)
class Anatomy:
    """What a model consists of; `parameters` counts the pretrained ones, without a new head."""

    name: str
    source: str
    revision: str | None
    mode: str
    groups: dict[str, str]
    shapes: dict[str, list[int]]

    @property
    def parameters(self) -> int:
        """Number of pretrained parameters, the second denominator of sparsity."""
        return sum(prod(self.shapes[name]) for name, group in self.groups.items() if group != "head")

    def names(self, groups: list[str]) -> list[str]:
        """Names of the parameters of some groups, in the model's order."""
        return [name for name, group in self.groups.items() if group in groups]

    def region(self, groups: list[str]) -> Region:
        """The graftable parameters; raises ModelError if there are none."""
        names = self.names(groups)
        if not names:
            raise ModelError(
                f"graft.region: {self.name} has no parameters in {', '.join(groups)}; it has {', '.join(dict.fromkeys(self.groups.values()))}"
            )
        return Region({name: tuple(self.shapes[name]) for name in names})


def write_anatomy(anatomy: Anatomy, folder: Path) -> None:
    """Write anatomy.json into a model folder."""
    write_json(folder / FILE, asdict(anatomy))


def read_anatomy(folder: Path) -> Anatomy:
    """Read anatomy.json of a model folder; raises ModelError if it isn't there."""
    return Anatomy(**read_json(folder / FILE, ModelError))
