"""Every region of a joint model grafted and tested on every task (paper, section 5.1 and figure 8)."""

from dataclasses import dataclass

from skill_grafting.errors import TrainingError
from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import read_mask, require_model
from skill_grafting.runtime import Runtime
from skill_grafting.settings import Params
from stages.multitask.experiment.joint_model import JointCell, evaluation_of, open_joint
from stages.multitask.experiment.unions import purify, union
from stages.workflow.core import paths
from stages.workflow.core.evaluation.study_cell import variant_rows, write_record

SINGLE, UNION, PURIFIED = "single", "union", "purified"


@dataclass(frozen=True)
class Source:
    """A mask to be grafted: `name` is a task, or a union, of the tasks `members`."""

    kind: str
    name: str
    members: list[str]
    mask: GraftMask

    @property
    def variant(self) -> str:
        """Its name among stored predictions."""
        return f"{self.kind}:{self.name}"


def transfer(paradigm: str, localizer: str, sparsity: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store the scores of every region and every union on every task; returns a line for the log."""
    tasks = params.multitask.tasks
    cell = open_joint(paradigm, seed, tasks, params, machine)
    regions = read_regions(cell, localizer, sparsity, tasks)
    sources = [Source(SINGLE, task, [task], mask) for task, mask in regions.items()]
    for name, members in {**params.multitask.groups, **params.transfer.unions}.items():
        sources.append(Source(UNION, name, members, union([regions[task] for task in members])))
    if params.transfer.purify_steps:
        sources += [purified(cell, source, params) for source in sources if source.kind == UNION]
    axes = (paradigm, localizer, sparsity)
    for task in tasks:
        _test(cell, task, sources, axes, params)
    return f"transfer {' '.join(axes)} {seed}: {len(sources)} regions and unions on {len(tasks)} tasks"


def read_regions(cell: JointCell, localizer: str, sparsity: str, tasks: list[str]) -> dict[str, GraftMask]:
    """Task -> its stored region; raises MaskError if one is missing or belongs to another model."""
    fingerprint, regions = cell.fingerprint, {}
    for task in tasks:
        path = paths.skill_mask(cell.paradigm, localizer, sparsity, task, cell.seed)
        stored = read_mask(path)
        require_model(path, stored.about, cell.region, fingerprint, cell.anatomy.name)
        regions[task] = stored.mask
    return regions


def purified(cell: JointCell, start: Source, params: Params) -> Source:
    """A union after `transfer.purify_steps` gradient steps on its tasks' losses, of equal size.

    Raises TrainingError if the loss diverges.
    """
    steps = {"steps": params.transfer.purify_steps, "batch_size": params.transfer.purify_batch_size}
    settings = params.localizer.learned.model_copy(update=steps)
    evidences = [cell.evidence(task, "purify", start.name, task, cell.seed) for task in start.members]
    try:
        mask = purify(start.mask, evidences, settings)
    except FloatingPointError as error:
        raise TrainingError(f"{error}; lower localizer.learned.learning_rate ({settings.learning_rate})") from error
    return Source(PURIFIED, start.name, start.members, mask)


def _test(cell: JointCell, task: str, sources: list[Source], axes: tuple[str, ...], params: Params) -> None:
    """Store one column of the matrix: the scores of every source on this task."""
    evaluation = evaluation_of(cell.shared, task, cell.seed, params.multitask.test_max, len(sources))
    with evaluation.progress(f"transfer to {task}"):
        for source in sources:
            cell.model.put(graft(cell.pretrained, cell.finetuned, source.mask))
            evaluation.predict(source.variant)
    predictions = evaluation.predictions()
    facts = {
        source.variant: {
            "kind": source.kind, "source": source.name, "members": source.members, "selected": source.mask.selected,
        }
        for source in sources
    }  # fmt: skip
    # against the joint model's
    scores = variant_rows(predictions, task, cell.seed, params.calibration.bins, "level", axes[:1])
    rows = [{**row, **facts[row["variant"]]} for row in scores]
    header = {**cell.header(), "task": task, "localizer": axes[1], "sparsity": float(axes[2])}
    write_record("transfer", axes, header, predictions, rows)
