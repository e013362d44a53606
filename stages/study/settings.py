"""Settings of the single-task study, and the rules between them and the main pipeline."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from skill_grafting.support.fields import Count, Positive, Section, Weight
from stages.text.tasks.settings import AdamWParams, Name, Part, Rates, Share, Tasks, Values
from stages.workflow.stage import sections
from stages.workflow.stage.rules import Choice, is_on, not_among, unknown_localizers


class StudyParams(Section):
    tasks: Tasks
    test_max: Count


class AnchorParams(Section):
    pruned: list[Share]


class SweepParams(Section):
    localizers: list[Name]
    sparsities: list[Share]


class ReadoutParams(Section):
    readouts: list[Literal["graft", "retrain", "reset", "prune"]]
    localizers: list[Name]
    sparsities: list[Share]
    tasks: Tasks
    learning_rates: Rates


class WiseParams(Section):
    alphas: list[Annotated[float, Field(ge=0, le=1)]]


def _method(name: str) -> str:
    if not re.fullmatch(r"(lora|houlsby|pfeiffer)_[1-9][0-9]{0,4}|norms", name):
        raise ValueError("lora_RANK, houlsby_SIZE, pfeiffer_SIZE or norms, for instance lora_8")
    return name


class PeftTraining(Section):
    """With AdamW, in as many steps of as many examples as the whole model was fine-tuned in."""

    learning_rates: Rates
    weight_decay: Part
    clip_norm: Weight


class PeftParams(Section):
    methods: list[Annotated[str, AfterValidator(_method)]]
    tasks: Tasks
    training: PeftTraining


class ParadigmParams(Section):
    paradigms: list[Literal["sgd", "adamw", "adamw_l1", "standard"]]
    tasks: Tasks
    sparsities: list[Share]
    adamw: AdamWParams


class Checkpoints(Section):
    every: Positive
    region_step: Positive
    sparsities: list[Share] = Field(min_length=1)


class TrajectoryParams(Section):
    tasks: Tasks
    checkpoints: Checkpoints


class CompressionParams(Section):
    tasks: Tasks
    bytes: list[Annotated[int, Field(ge=100)]]
    forms: list[Literal["learned", "movement", "svd", "one_bit"]]

    @property
    def on(self) -> bool:
        """Whether there is anything to measure of a task."""
        return bool(self.bytes and self.forms)


class Settings(sections.Settings):
    """Those of the main pipeline and, below, the sections of this one's params.yaml."""

    study: StudyParams
    anchor: AnchorParams
    sweep: SweepParams
    readout: ReadoutParams
    wise: WiseParams
    peft: PeftParams
    paradigm: ParadigmParams
    trajectory: TrajectoryParams
    compression: CompressionParams


# what fine-tunes anew needs no anchor, so paradigms may be of any task
TASKS = (
    Choice("study.tasks"),
    Choice("paradigm.tasks"),
    *(Choice(f"{section}.tasks", "study.tasks") for section in ("readout", "peft", "trajectory", "compression")),
)


def problems(values: Values) -> Iterator[str]:
    """Read-outs are of masks of the sweep.  A stage that an empty list switches off has no rules."""
    readout, sweep = values["readout"], values["sweep"]
    # DVC looks for the mask of each point, whatever the tasks are
    if readout.readouts and readout.localizers and readout.sparsities:
        yield from not_among(values, "readout.localizers", "sweep.localizers")
        yield from not_among(values, "readout.sparsities", "sweep.sparsities")
    if is_on(values, "sweep"):
        yield from unknown_localizers(values, "sweep.localizers", sweep.localizers)
