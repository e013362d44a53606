"""The ways to learn one task after another on one shared model: naive, grafting, replay and EWC.

All train each task in the same number of steps, with the same clipping, and draw its batches in the same order (TaskSequence).
They differ in what else is in a step, in what may move, and in what they keep of a task.  The learning rate is that of the task's own
fine-tuning for all of them, and the gradient is clipped as naive fine-tuning clips it, before a mask leaves anything of it out: so a
selected parameter takes the step that it would take there.

Grafting (paper, section 5.2 and appendix C.3): with gamma_n the region of the n-th task, training for it
moves  gamma_n without the union of gamma_i, i < n  alone, and the model for task n is the graft of the
union of gamma_i, i <= n.  So what later tasks train is never part of an earlier task's model: nothing
is forgotten, whatever the data are.  What the paper leaves open, and what is chosen here:

* whose regions: "from an independent run of the model on the task", so the main pipeline's learned
  masks, of models that were fine-tuned from the pretrained one on that task alone;
* where a region starts: at its pretrained values, as "train the parameters in the region" says, with
  the earlier tasks' regions in place as trained and everything else pretrained.  That is the model
  that will answer for the task, so training sees what inference uses;
* how long and with which step: as the task's own fine-tuning;
* a new head (standard mode; the paper has none): trained with its task's region, kept with it.

Experience replay (Chaudhry et al. 2019): a few rows of every earlier task are stored, and each batch of a new one has
as many of them on top as it has rows of its own.

Elastic weight consolidation (Kirkpatrick et al. 2017): each task that was learned adds
strength / 2 * sum over i of F_i (theta_i - theta*_i)^2  to the loss of all later ones, with F the
diagonal of the Fisher information of its data at the weights theta* that it ended with.  A sum of such
penalties is one penalty again, up to a constant: with the sum of all F and the mean of all theta*
weighted by F.  These two tensors are all that is kept, for any number of tasks.  The penalty takes a proximal step
after each of the task's own: the same as a step along its gradient to first order in the rate, and it cannot overshoot
where the penalty is steeper than 2 / rate, at which plain steps diverge.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, islice
from operator import sub
from typing import Any

import torch
from torch import Tensor

from skill_grafting.grafting.apply import transplant, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, read_mask, read_mask_for
from skill_grafting.grafting.region import Region, Tensors
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.errors import MaskError
from skill_grafting.support.fields import HEAD, Section
from skill_grafting.support.io import read_rows
from stages.continual.settings import EwcParams, ReplayParams, Settings
from stages.text.models.batching import shuffled
from stages.text.models.encoding import Example
from stages.text.models.fisher import squared_gradients
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score
from stages.text.models.shared import SharedModel
from stages.text.models.structure import groups_of
from stages.text.tasks.runtime import Runtime, numpy_generator, permuted, seeded_torch
from stages.text.tasks.settings import FinetuneParams, ModelParams
from stages.text.training.finetuning import plan_for, steps_for, trained_names
from stages.text.training.trainer import Batches, Hooks, Part, TrainPlan, train
from stages.workflow.cells.stored import read_task
from stages.workflow.cells.training import bytes_of, chosen_point, stored_bytes
from stages.workflow.stage import paths


@dataclass
class TaskSequence:
    """The shared model, live, and what its tasks are learned from.

    Each task is trained as in its own fine-tuning: at the grid point that was chosen there, with the same random head,
    batches and dropout, whichever tasks came before.  So the first task of a naive sequence is that fine-tuning, bit for bit.
    `rows`: task -> split -> rows.
    """

    shared: SharedModel
    rows: dict[str, dict[str, list[dict]]]
    chosen: dict[str, dict[str, Any]]
    finetune: FinetuneParams
    model: ModelParams
    seed: int
    learned: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, order: list[str], seed: int, params: Settings, machine: Runtime) -> "TaskSequence":
        """Load the pretrained model and the rows of these tasks; raises ModelError if one wasn't fine-tuned."""
        specs = [read_task(task) for task in order]
        splits = ("train", "dev", "test")
        rows = {task: {split: read_rows(paths.sample(task, seed, split)) for split in splits} for task in order}
        chosen = {task: chosen_point(task, seed) for task in order}
        with seeded_torch("sequence", seed):  # no head of a load for all is used: see new_head
            shared = SharedModel.load(paths.PRETRAINED, specs, params.model, machine, params.finetune.dropout)
        return cls(shared, rows, chosen, params.finetune, params.model, seed)

    def view(self, task: str) -> LabelModel:
        """The shared model as it reads this task."""
        return self.shared.views[task]

    def steps(self, task: str) -> int:
        """Optimizer steps of one training of a task."""
        return steps_for(self.finetune, len(self.view(task).task.labels), len(self.rows[task]["train"]))

    def plan(self, task: str) -> TrainPlan:
        """The plan of a task's own training."""
        size, rate = (self.chosen[task][name] for name in ("batch_size", "learning_rate"))
        return plan_for(self.finetune, size, rate, self.steps(task))

    def new_head(self, task: str) -> None:
        """Give a task the head that its own fine-tuning started from; torch's generator has to be seeded for it."""
        view = self.view(task)
        alone = LabelModel.load(paths.PRETRAINED, view.task, self.model, view.runtime, self.finetune.dropout)
        view.put({name: alone.parameters()[name].detach() for name in self.shared.heads()[task]})

    def batches(self, task: str, examples: list[Example], batch_size: int, *purpose: object) -> Batches:
        """Endless shuffled batches of a task, the same ones for the same purpose."""
        rows = shuffled(examples, batch_size, numpy_generator(*purpose, task, self.seed))
        return ([(self.view(task), [examples[row] for row in batch])] for batch in rows)

    def shared_names(self, names: set[str], task: str) -> set[str]:
        """Those of a view's names that all tasks share."""
        groups = groups_of(self.view(task))
        return {name for name in names if groups[name] != HEAD}

    def head(self, task: str) -> dict[str, Tensor]:
        """A copy of a task's own head, on the CPU; empty where the vocabulary head serves all tasks."""
        return {name: weight.detach().cpu().clone() for name, weight in self.shared.heads()[task].items()}

    def head_bytes(self, tasks: Iterable[str]) -> int:
        """Bytes of the heads of these tasks."""
        return bytes_of(weight for task in tasks for weight in self.shared.heads()[task].values())

    def model_bytes(self) -> int:
        """Bytes of one model without any head."""
        return bytes_of(self.shared.parameters().values()) - self.head_bytes(self.rows)


class Naive:
    """Fine-tune one model on one task after another; nothing is kept but the heads."""

    def __init__(self, sequence: TaskSequence, settings: Section) -> None:
        self.sequence, self.settings = sequence, settings

    @classmethod
    def choices(cls, settings: Section) -> list[Section]:
        """The settings among which dev chooses."""
        return [settings]

    def learn(self, task: str, on_step: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Train the model on the next task, and return the record."""
        self.prepare(task)
        sequence, view = self.sequence, self.sequence.view(task)
        plan = sequence.plan(task)
        examples, dev = (view.encode(sequence.rows[task][split]) for split in ("train", "dev"))
        with seeded_torch("finetune", task, sequence.seed):
            sequence.new_head(task)
            trained = self.trained(task)
            batches = self.batches(task, sequence.batches(task, examples, plan.batch_size, "finetune"), plan)
            hooks = Hooks(lambda: dev_score(view, dev), on_step, self.hold_back)
            training = train(batches, trained, plan, hooks, self.moving(task, trained))
        sequence.learned.append(task)
        self.keep(task)
        return {"learning_rate": plan.learning_rate, "kept_step": training.step}

    def prepare(self, task: str) -> None:
        """Bring the model into the state that training for a task starts from."""

    def trained(self, task: str) -> dict[str, Tensor]:
        """The parameters that a task may move, live."""
        view = self.sequence.view(task)
        return view.train_only(trained_names(groups_of(view), self.sequence.finetune))

    def moving(self, task: str, trained: dict[str, Tensor]) -> GraftMask | None:
        """The mask of the parameters that move, besides the head; None if all move."""

    def batches(self, task: str, new: Batches, plan: TrainPlan) -> Batches:
        """The batches of each step."""
        return new

    def hold_back(self, leaves: dict[str, Tensor], rate: float) -> None:
        """Protect earlier tasks once a step at this learning rate is done."""

    def keep(self, task: str) -> None:
        """Store the memory of the task just learned."""

    def recall(self, task: str) -> None:
        """Bring the model into the state in which it predicts a task."""

    def kept(self) -> dict[str, int]:
        """Bytes of everything kept beside one model: for each task's `head`, and for its `skill`."""
        return {"head": self.sequence.head_bytes(self.sequence.learned), "skill": self.skill_bytes()}

    def skill_bytes(self) -> int:
        """Bytes of what is kept of all tasks so far, without heads."""
        return 0

    def facts(self, task: str) -> dict[str, Any]:
        """Further entries of the record of a task."""
        return {}


def put_together(pretrained: Tensors, pieces: Sequence[StoredMask]) -> dict[str, Tensor]:
    """The region's tensors with every piece in them: the graft of their union.  The inputs are not changed."""
    region = {name: values.detach() for name, values in pretrained.items()}
    for piece in pieces:
        region = transplant(region, piece.values, piece.mask)
    return region


class Grafting(Naive):
    """The paper's method: each task trains what is left of its region, and is predicted by the graft of the union so far.

    Raises MaskError if a task's mask belongs to another pretrained model.
    """

    def __init__(self, sequence: TaskSequence, settings: Section) -> None:
        super().__init__(sequence, settings)
        files = {task: paths.mask("learned", task, sequence.seed) for task in sequence.rows}
        self.region = read_mask(next(iter(files.values()))).mask.region  # that of all
        self.pretrained, name = read_tensors(paths.PRETRAINED, self.region.shapes), read_anatomy(paths.PRETRAINED).name
        self.masks = {task: read_mask_for(file, self.pretrained, name).mask for task, file in files.items()}
        # of each task the parameters that are its own, their trained values, and its head if it has one
        self.pieces: dict[str, StoredMask] = {}

    def prepare(self, task: str) -> None:
        """All earlier tasks' regions as trained, everything else pretrained."""
        self._put(task, [*self.pieces.values()])

    def trained(self, task: str) -> dict[str, Tensor]:
        """All that naive fine-tuning trains, so that the gradient has the same norm, and all that the region selects from."""
        view = self.sequence.view(task)
        return view.train_only(trained_names(groups_of(view), self.sequence.finetune) | {*self.masks[task].indices})

    def moving(self, task: str, trained: dict[str, Tensor]) -> GraftMask:
        """The task's own parameters, as a mask of everything that is trained but the head."""
        shared = self.sequence.shared_names({*trained}, task)
        region = Region({name: tuple(weight.shape) for name, weight in trained.items() if name in shared})
        return GraftMask(region, self.only(task).indices)

    def only(self, task: str) -> GraftMask:
        """The region of the task without those of earlier ones; raises MaskError if nothing is left to train."""
        mask = reduce(sub, (piece.mask for piece in self.pieces.values()), self.masks[task])
        if not mask.selected and not self.sequence.shared.heads()[task]:
            raise MaskError(
                f"{paths.mask('learned', task, self.sequence.seed)}: all {self.masks[task].selected:,} parameters of this region "
                "are taken by earlier tasks of the sequence; raise graft.sparsity"
            )
        return mask

    def keep(self, task: str) -> None:
        """The values of the task's own parameters, and its head."""
        mask, weights = self.only(task), self.sequence.view(task).parameters()
        values = {name: part.cpu() for name, part in values_at(weights, mask).items()}
        self.pieces[task] = StoredMask(mask, values, self.sequence.head(task), {})

    def recall(self, task: str) -> None:
        """The graft of the union of all regions up to the task's, from what is kept alone."""
        known = [*self.pieces]
        self._put(task, [self.pieces[name] for name in known[: known.index(task) + 1]])
        self.sequence.view(task).put(self.pieces[task].head)

    def skill_bytes(self) -> int:
        """Indices and values; the order of the pieces says which task each is of."""
        return sum(stored_bytes(piece.mask, piece.values) for piece in self.pieces.values())

    def facts(self, task: str) -> dict[str, Any]:
        """Number of parameters of the task's region, and of those that no earlier task had."""
        return {"region": self.masks[task].selected, "own": self.pieces[task].mask.selected}

    def _put(self, task: str, pieces: list[StoredMask]) -> None:
        self.sequence.view(task).put(put_together(self.pretrained, pieces))


Row = dict[str, str | None]


def stored_rows(rows: Sequence[Row], labels: Sequence[str], per_class: int) -> list[Row]:
    """The first rows of every class, in their order, all of a class that has fewer.

    The rows of a class come in a random order already (rows/sampling.py), so these are a random draw.
    """
    chosen = []
    for label in labels:
        chosen += islice((number for number, row in enumerate(rows) if row["label"] == label), per_class)
    return [rows[number] for number in sorted(chosen)]


class Replay(Naive):
    """Naive, each batch with as many stored rows of earlier tasks on top; their heads train along."""

    settings: ReplayParams

    def trained(self, task: str) -> dict[str, Tensor]:
        """The parameters of the task's own training, and the heads of all earlier tasks."""
        sequence, view = self.sequence, self.sequence.view(task)
        names = sequence.shared_names(trained_names(groups_of(view), sequence.finetune), task)
        heads = {f"{known}:{name}" for known in [*sequence.learned, task] for name in sequence.shared.heads()[known]}
        return sequence.shared.train_only(names | heads)

    def batches(self, task: str, new: Batches, plan: TrainPlan) -> Batches:
        """The new task's batches, with rows on top that are drawn from the stored ones of all earlier tasks."""
        views = [self.sequence.view(known) for known in self.sequence.learned]
        stored = [(view, example) for view in views for example in view.encode(self.stored(view.task.name))]
        if not stored:
            return new
        draw = numpy_generator("replay", task, self.sequence.seed)
        rows = chain.from_iterable(shuffled([example for _, example in stored], plan.batch_size, draw, 1))

        def on_top(count: int) -> list[Part]:
            chosen = [stored[row] for row in islice(rows, count)]
            parts = [(view, [example for reader, example in chosen if reader is view]) for view in views]
            return [(view, examples) for view, examples in parts if examples]

        return (batch + on_top(len(batch[0][1])) for batch in new)

    def stored(self, task: str) -> list[dict]:
        """The rows that are kept of a task."""
        return stored_rows(
            self.sequence.rows[task]["train"], self.sequence.view(task).task.labels, self.settings.examples
        )

    def skill_bytes(self) -> int:
        """The stored rows as lines of JSON."""
        rows = [row for task in self.sequence.learned for row in self.stored(task)]
        return sum(len(json.dumps(row, ensure_ascii=False).encode()) + 1 for row in rows)


class Elastic:
    """The penalties of all tasks learned so far: `importance` and `centre`, by name, in the weights' shapes."""

    def __init__(self) -> None:
        self.importance: dict[str, Tensor] = {}
        self.centre: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, fisher: Tensors, weights: Tensors) -> None:
        """Add a task: its Fisher information (not negative) and the weights it ended with; both are copied."""
        for name, added in fisher.items():
            if name not in self.importance:
                self.importance[name] = added.detach().clone()
                self.centre[name] = weights[name].detach().clone()
                continue
            self.importance[name] += added
            share = added / self.importance[name].clamp(min=torch.finfo(added.dtype).tiny)
            self.centre[name] += share * (weights[name].detach() - self.centre[name])

    @torch.no_grad()
    def pull(self, leaves: Mapping[str, Tensor], stiffness: float) -> None:
        """Move each leaf to the minimum of  (theta - leaf)^2 / 2 + stiffness / 2 * F (theta - centre)^2.

        That is the mean of leaf and centre, weighted 1 : stiffness * F, so nothing is carried past its centre.  It is the proximal
        step of the penalty where `stiffness` is learning rate times strength.
        """
        for name, leaf in leaves.items():
            if name in self.importance:
                share = self.importance[name] * stiffness
                leaf.lerp_(self.centre[name], share / (share + 1.0))

    def tensors(self) -> list[Tensor]:
        """Everything that is kept."""
        return [*self.importance.values(), *self.centre.values()]


class Ewc(Naive):
    """Naive, with elastic weight consolidation of what all tasks share."""

    settings: EwcParams

    def __init__(self, sequence: TaskSequence, settings: Section) -> None:
        super().__init__(sequence, settings)
        self.elastic = Elastic()

    @classmethod
    def choices(cls, settings: EwcParams) -> list[Section]:
        """One for each strength."""
        return [settings.model_copy(update={"strengths": [strength]}) for strength in settings.strengths]

    def hold_back(self, leaves: dict[str, Tensor], rate: float) -> None:
        """The penalty's proximal step, with the first strength."""
        self.elastic.pull(leaves, rate * self.settings.strengths[0])

    def keep(self, task: str) -> None:
        """Fisher information of training rows that are drawn, a mean over them, and the weights."""
        view = self.sequence.view(task)
        rows = permuted(self.sequence.rows[task]["train"], "ewc", task, self.sequence.seed)
        examples = view.encode(rows[: self.settings.examples])
        names = self.sequence.shared_names(trained_names(groups_of(view), self.sequence.finetune), task)
        squares = squared_gradients(view, examples, names, self.settings.fisher)
        self.elastic.add({name: total / len(examples) for name, total in squares.items()}, view.parameters())

    def facts(self, task: str) -> dict[str, Any]:
        """The strength that this is with."""
        return {"strength": self.settings.strengths[0]}

    def skill_bytes(self) -> int:
        """Two tensors, however many tasks."""
        return bytes_of(self.elastic.tensors())


METHODS: dict[str, type[Naive]] = {"naive": Naive, "grafting": Grafting, "replay": Replay, "ewc": Ewc}
