"""The cells that params.yaml names for each stage of the study."""

from itertools import product
from typing import Any

from stages.study.report.records import Cell


def study_cells(params: Any) -> dict[str, list[Cell]]:
    """Stage -> cells, in the order of the stage's axes, sizes spelt as in the paths; a stage that is off has none."""
    study, sweep, readout, wise, peft = params.study, params.sweep, params.readout, params.wise, params.peft
    paradigm, trajectory = params.paradigm, params.trajectory
    curved = [task for task in study.tasks if params.ood.sets.get(task)]
    axes = {
        "anchor": (study.seeds, study.tasks),
        "sweep": (sweep.localizers, _sizes(sweep.sparsities), study.seeds, study.tasks),
        "readout": (
            readout.readouts,
            readout.localizers,
            _sizes(readout.sparsities),
            readout.seeds,
            readout.tasks,
        ),
        "wise": (wise.seeds, curved),
        "peft": (peft.methods, peft.seeds, peft.tasks),
        "paradigm": (paradigm.paradigms, paradigm.seeds, paradigm.tasks),
        "trajectory": (trajectory.seeds, trajectory.tasks),
    }
    return {stage: [*product(*values)] for stage, values in axes.items()}


def _sizes(sparsities: list[float]) -> list[str]:
    return [str(sparsity) for sparsity in sparsities]
