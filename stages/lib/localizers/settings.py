"""Names and settings of all localizers, so that params.yaml can be checked without loading torch.

A localizer is a file of this folder that bears its name.  One that needs settings has a class here; to all others
params.yaml gives none.
"""

import re
from math import ceil, log2
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..errors import did_you_mean
from ..settings import Rate, Section, told

# files of this folder that are no localizers
SUPPORT = ("__init__", "evidence", "registry", "settings")
NAMES = tuple(sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {*SUPPORT}))


# Those that other code calls, which are part of what every stage depends on (.dvcignore).  A stage that is told of a localizer by
# another name than its own (`learned_0.1`, a method) can't depend on its file, and takes these alone.
SHARED = ("attribution", "attribution_learned", "grown", "learned", "lota", "movement", "random", "stitch", "talos")


def localizer_in(name: str) -> str:
    """The localizer that a name with a share at its end is about: `learned` of learned_0.1."""
    return re.sub(r"_[0-9.]+$", "", name)


class LocalizerSettings(Section):
    """What all sections of `localizer` have in common."""

    def gradient_examples(self, rows: float, size: float) -> float:
        """Training examples, of so many `rows` of them, that it takes a gradient of for a mask of `size` parameters."""
        return 0.0


class NoSettings(LocalizerSettings):
    """Of a localizer that needs nothing besides."""


class Learning(LocalizerSettings):
    """Gradient steps on a mask (learned.py)."""

    base_share: float = Field(ge=0, le=1, description="size of the base as a share of the budget")
    # beyond, the slope of a mask value this near 1 is lost in float32
    offset: float = Field(gt=0, le=12, description="mask logits start at -offset, on the base at +offset")
    l1: float = Field(
        ge=0,
        description="weight of the sum of all mask values in the loss; relative: 1 would keep the last of the budget out",
    )
    steps: int = Field(ge=0, description="gradient steps on the mask logits; 0 keeps the base alone")
    rate_kind: Literal["relative", "absolute"] = Field(description="relative: scale-free; absolute: as the paper's")
    learning_rate: Rate = Field(
        description="relative: 1 would let the last of the budget in at the last step, 4 after a quarter; absolute: step size"
    )
    batch_size: int = Field(ge=1, description="examples per step; the whole training set if it is smaller")
    eval_steps: int = Field(
        ge=0,
        description="steps between ratings by agreement on dev: the best mask is kept, or movement where that is better; "
        "0 keeps the last and asks nothing",
    )

    def gradient_examples(self, rows: float, size: float) -> float:
        return max(self.steps, 1) * min(self.batch_size, rows)


class Stitching(Learning):
    """Learning as Localize-and-Stitch has it (stitch.py)."""

    base_share: float = Field(ge=0, le=1, description="size of the base as a share of the region")


class Attribution(LocalizerSettings):
    """Gradients on the path from the pretrained to the fine-tuned model."""

    path_points: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        min_length=1, description="points between pretrained (0) and fine-tuned (1) where it takes a gradient"
    )
    sign: Literal["signed", "magnitude"] = Field(description="signed: harmful movement comes last")

    def gradient_examples(self, rows: float, size: float) -> float:
        return len(self.path_points) * rows


class AttributionLearned(Learning, Attribution):
    """Learning from a base by attribution."""

    def gradient_examples(self, rows: float, size: float) -> float:
        return Learning.gradient_examples(self, rows, size) + Attribution.gradient_examples(self, rows, size)


class Grown(LocalizerSettings):
    """Masks that grow in rounds."""

    rounds: int = Field(ge=1, description="gradients, each at the graft so far")
    enough: float | None = Field(
        gt=0,
        lt=1,
        description="agreement with the fine-tuned model at which growth ends before its budget, if dev shows at least as "
        "much with 95 % confidence (too much where dev also chose that model); null: never",
    )

    def gradient_examples(self, rows: float, size: float) -> float:
        return self.rounds * rows


class Doubling(LocalizerSettings):
    """Masks that grow to twice their size in every round."""

    start: int = Field(
        ge=1, description="parameters of the first graft; each of log2(budget / start) rounds takes a gradient"
    )

    def gradient_examples(self, rows: float, size: float) -> float:
        return max(0, ceil(log2(size / self.start))) * rows


class Stable(LocalizerSettings):
    """The parameters that many draws of examples agree on (stable.py)."""

    draws: int = Field(ge=1, le=1000, description="gradients, each of other training examples")
    batch_size: int = Field(ge=1, description="examples of a draw; half of the training set gives complementary pairs")
    path_point: float = Field(
        ge=0, le=1, description="where between pretrained (0) and fine-tuned (1) gradients are taken"
    )

    def gradient_examples(self, rows: float, size: float) -> float:
        return self.draws * min(self.batch_size, rows)


class Fish(LocalizerSettings):
    """Squared gradients before fine-tuning."""

    examples: int = Field(ge=1, description="training examples whose squared gradients make the Fisher information")

    def gradient_examples(self, rows: float, size: float) -> float:
        return min(self.examples, rows)


class Talos(LocalizerSettings):
    """Sensitivity, and the rounds in which the least of it is found."""

    examples: int = Field(ge=1, description="training examples that sensitivity is measured on")
    mode: Literal["expected", "sampled", "empirical", "sampled_logit", "label_logit"] = Field(
        description="whose gradient is squared: of the model's own labels, of the true one, or of a raw logit"
    )
    draws: int = Field(ge=1, le=100_000, description="labels drawn for each example, of the sampled modes")
    score: Literal["fisher", "fisher_times_theta2"] = Field(description="squared gradients, or times squared weights")
    rounds: int = Field(ge=1, le=100, description="rounds in which the least sensitive are found")
    attenuation: float = Field(ge=0, le=1, description="what weights that are out are multiplied by (rho)")

    def gradient_examples(self, rows: float, size: float) -> float:
        return self.rounds * min(self.examples, rows) * self.draws


# float32 arrays of the region's size that a localizer makes at once, gradients among them, beside live weights; others make none
ARRAYS = {
    "attribution_learned": 2, "doubling": 1, "fish": 2, "learned": 2, "stable": 5, "stitch": 2, "stitch_exact": 2, "talos": 6,
}  # fmt: skip

SETTINGS: dict[str, type[LocalizerSettings]] = {
    "learned": Learning, "stitch": Stitching, "stitch_exact": Learning, "attribution": Attribution,
    "attribution_learned": AttributionLearned, "grown": Grown, "doubling": Doubling, "stable": Stable, "fish": Fish, "talos": Talos,
}  # fmt: skip


def name_problems(values: dict[str, Any], place: str, names: list[str], among: tuple[str, ...] = NAMES) -> list[str]:
    """A problem for each of these names, which stand at `place`, that is none of these localizers or has no section of its own."""
    unknown, known = [name for name in names if name not in among], ", ".join(among)
    found = [f"{place}: unknown localizer {name!r}{did_you_mean(name, among)}; known: {known}" for name in unknown]
    return found + told([_missing], values, place, names)


def _missing(values: dict[str, Any], place: str, names: list[str]) -> list[str]:
    listed = {*SETTINGS} | values["localizer"].model_fields_set  # one that needs settings is missed by the schema
    return [
        f"localizer.{name}: this section is missing, and {place} names it; write `{name}: {{}}` under `localizer`"
        for name in names
        if name in NAMES and name not in listed
    ]
