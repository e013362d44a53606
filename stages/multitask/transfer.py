"""transfer: every region of one joint model, and every union of them, grafted and tested on every task (paper, section 5.1, figure 8).

A union is one graft for a group of tasks.  It is purified by a few gradient steps on the loss of all its tasks: the mask is
learned as a single task's is (skill_grafting/localizers/learned.py), but it starts from the union as its base, and for the sum of
the tasks' losses.  It ends with as many parameters as the union had, so what it gains isn't size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from torch import Tensor

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import read_mask
from skill_grafting.localizers.learned import Learned, MaskLogits, learn_mask
from skill_grafting.localizers.localizer import LocalizerInput
from stages.multitask.joint_model import JointCell, evaluation_of, open_joint
from stages.multitask.settings import Settings
from stages.text.models.objective import draws
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.scoring import variant_rows, write_record
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

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


def transfer(paradigm: str, localizer: str, sparsity: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store the scores of every region and every union on every task; returns a line for the log."""
    tasks = params.multitask.tasks
    cell = open_joint(paradigm, seed, tasks, params, machine)
    regions = {task: read_mask(paths.mask("skill", task, seed, paradigm, localizer, sparsity)).mask for task in tasks}
    sources = [Source(SINGLE, task, [task], mask) for task, mask in regions.items()]
    for name, members in {**params.multitask.groups, **params.transfer.unions}.items():
        sources.append(Source(UNION, name, members, reduce(or_, (regions[task] for task in members))))
    if params.transfer.purify_steps:
        sources += [purified(cell, source, params) for source in sources if source.kind == UNION]
    axes = (paradigm, localizer, sparsity)
    for task in tasks:
        _test(cell, task, sources, axes, params)
    return f"transfer {' '.join(axes)} {seed}: {len(sources)} regions and unions on {len(tasks)} tasks"


def purified(cell: JointCell, start: Source, params: Settings) -> Source:
    """A union after `transfer.purify_steps` gradient steps on its tasks' losses, of equal size.

    Raises TrainingError if the loss diverges.
    """
    steps = {"steps": params.transfer.purify_steps, "batch_size": params.transfer.purify_batch_size, "rule": "top_k"}
    inputs = [
        cell.objective_of(task, words).between(cell.region, cell.pretrained, cell.finetuned, draws(*words))
        for task, words in ((task, ("purify", start.name, task, cell.seed)) for task in start.members)
    ]
    mask = purify(start.mask, inputs, params.localizer.learned.model_copy(update=steps))
    return Source(PURIFIED, start.name, start.members, mask)


def _test(cell: JointCell, task: str, sources: list[Source], axes: tuple[str, ...], params: Settings) -> None:
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


def purify(start: GraftMask, inputs: Sequence[LocalizerInput], settings: Learned) -> GraftMask:
    """The mask of start.selected parameters that `settings.steps` steps from `start` lead to.

    inputs: one for each task, all about the same live weights and the same two models.  Overwrites the
    weights.  Raises TrainingError if the loss is not a number.
    """
    first = inputs[0]
    logits = MaskLogits.around(start, first.pretrained, first.finetuned, settings.offset)
    gradient = summed_gradient(inputs, settings.batch_size)
    return learn_mask(first.weights, logits, start.selected, settings, gradient)


def summed_gradient(inputs: Sequence[LocalizerInput], batch_size: int) -> Callable[..., Tensor]:
    """A function that gives the sum of the tasks' losses on their next batches and leaves its gradient in the weights."""

    streams = [given.batch_gradients(batch_size) for given in inputs]

    def gradient() -> Tensor:
        total, sums = 0, dict[str, Tensor]()
        for given, loss_gradient in zip(inputs, streams, strict=True):
            total += loss_gradient()
            for name, weight in given.weights.items():
                sums[name] = weight.grad if name not in sums else sums[name].add_(weight.grad)
                weight.grad = None  # the next task's pass makes a new one instead of adding to this
        for name, weight in inputs[0].weights.items():
            weight.grad = sums[name]
        return total

    return gradient


@stage
def main(params: Settings, machine: Runtime, paradigm: str, localizer: str, sparsity: str, seed: int) -> None:
    """Graft, predict, and purify unions on the way."""
    if not params.multitask.tasks:
        return
    print(transfer(paradigm, localizer, sparsity, seed, params, machine))
