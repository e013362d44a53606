"""The ways to learn one task after another: naive, grafting, replay and EWC.

All train each task in the same number of steps, with the same clipping, and draw its batches in the same order (see
task_sequence.py).  They differ in what else is in a step, in what may move, and in what they keep of a task.  The learning
rate is one of the same few for all, and the new task's dev rows choose it for each method: at the rate of full fine-tuning
a region of 1 % would be trained less than it can be.  The gradient is clipped as naive fine-tuning clips it, before a mask leaves
anything of it out: so at one rate a selected parameter takes the step that it would take there.

What the paper leaves open about its own method, grafting (section 5.2, appendix C.3), and what is
chosen here:

* whose regions: "from an independent run of the model on the task", so the main pipeline's learned
  masks, of models that were fine-tuned from the pretrained one on that task alone;
* where a region starts: at its pretrained values, as "train the parameters in the region" says, with
  the earlier tasks' regions in place as trained and everything else pretrained.  That is the model
  that will answer for the task, so training sees what inference uses;
* how long and with which step: as the task's own fine-tuning, at a multiple of the rate chosen there;
* a new head (standard mode; the paper has none): trained with its task's region, kept with it.
"""

import json
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

from torch import Tensor

from skill_grafting.data.batching import shuffled
from skill_grafting.errors import MaskError
from skill_grafting.grafting.apply import values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import INT32_LIMIT, read_mask, read_mask_for
from skill_grafting.grafting.region import Region
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.fisher import squared_gradients
from skill_grafting.models.label_model import put
from skill_grafting.models.loading import bytes_of, read_tensors
from skill_grafting.models.predicting import dev_score
from skill_grafting.runtime import numpy_generator, permuted, seeded_torch
from skill_grafting.settings import Section
from skill_grafting.training.course import Part
from skill_grafting.training.finetuning import train_head_first, trained_names
from skill_grafting.training.grid import Point, Trained, search
from skill_grafting.training.training import Batches, Hooks, TrainPlan, train
from stages.continual.experiment.memory import Elastic, Piece, put_together, remainder, stored_rows
from stages.continual.experiment.task_sequence import TaskSequence
from stages.continual.settings import EwcParams, ReplayParams
from stages.workflow.core import paths


class Naive:
    """Fine-tune one model on one task after another; nothing is kept but the heads."""

    def __init__(self, sequence: TaskSequence, settings: Section) -> None:
        self.sequence, self.settings = sequence, settings

    def learn(self, task: str, on_step: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Train the model on the next task at every rate, keep the best on its dev rows, and return the record."""
        self.prepare(task)
        sequence, view = self.sequence, self.sequence.view(task)
        plans = sequence.plans(task)
        examples, dev = (view.encode(sequence.rows[task][split]) for split in ("train", "dev"))
        # what earlier tasks left beside the weights follows from what their own training read
        start = copies(self.trained(task))

        def train_at(point: Point) -> Trained[dict[str, Tensor]]:
            plan = plans[point["rate_factor"]]
            put(self.trained(task), start)
            with seeded_torch("finetune", task, sequence.seed):
                sequence.new_head(task)
                train_head_first(view, examples, sequence.finetune, plan, (task, sequence.seed))
                trained = self.trained(task)
                batches = self.batches(task, sequence.batches(task, examples, plan.batch_size, "finetune"), plan)
                hooks = Hooks(lambda: dev_score(view, dev), on_step, self.hold_back, resumes=True)
                training = train(batches, trained, plan, hooks, self.moving(task, trained))
            record = {"learning_rate": plan.learning_rate, "kept_step": training.step}
            return Trained(copies(trained), dev_score(view, dev), record)

        best = search(({"rate_factor": factor} for factor in plans), train_at)
        put(self.trained(task), best.kept)
        sequence.learned.append(task)
        self.keep(task)
        return {**best.point, "grid": best.grid}

    def prepare(self, task: str) -> None:
        """Bring the model into the state that training for a task starts from."""

    def trained(self, task: str) -> dict[str, Tensor]:
        """The parameters that a task may move, live."""
        view = self.sequence.view(task)
        return view.train_only(trained_names(view.groups(), self.sequence.finetune))

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


class Grafting(Naive):
    """The paper's method: each task trains what is left of its region, and is predicted by the graft of the union so far.

    Raises MaskError if a task's mask belongs to another pretrained model.
    """

    def __init__(self, sequence: TaskSequence, settings: Section) -> None:
        super().__init__(sequence, settings)
        files = {task: paths.learned(task, sequence.seed) for task in sequence.rows}
        self.region = read_mask(next(iter(files.values()))).mask.region  # that of all
        self.pretrained, name = read_tensors(paths.PRETRAINED, self.region.shapes), read_anatomy(paths.PRETRAINED).name
        self.masks = {task: read_mask_for(file, self.pretrained, name).mask for task, file in files.items()}
        self.pieces: dict[str, Piece] = {}

    def prepare(self, task: str) -> None:
        """All earlier tasks' regions as trained, everything else pretrained."""
        self._put(task, [*self.pieces.values()])

    def trained(self, task: str) -> dict[str, Tensor]:
        """All that naive fine-tuning trains, so that the gradient has the same norm, and all that the region selects from."""
        view = self.sequence.view(task)
        return view.train_only(trained_names(view.groups(), self.sequence.finetune) | {*self.masks[task].indices})

    def moving(self, task: str, trained: dict[str, Tensor]) -> GraftMask:
        """The task's own parameters, as a mask of everything that is trained but the head."""
        shared = self.sequence.shared_names({*trained}, task)
        region = Region({name: tuple(weight.shape) for name, weight in trained.items() if name in shared})
        return GraftMask(region, self.only(task).indices)

    def only(self, task: str) -> GraftMask:
        """The region of the task without those of earlier ones; raises MaskError if nothing is left to train."""
        mask = remainder(self.masks[task], [piece.mask for piece in self.pieces.values()])
        if not mask.selected and not self.sequence.shared.heads()[task]:
            raise MaskError(
                f"{paths.learned(task, self.sequence.seed)}: all {self.masks[task].selected:,} parameters of this region "
                "are taken by earlier tasks of the sequence; raise graft.sparsity"
            )
        return mask

    def keep(self, task: str) -> None:
        """The values of the task's own parameters, and its head."""
        mask, weights = self.only(task), self.sequence.view(task).parameters()
        values = {name: part.cpu() for name, part in values_at(weights, mask).items()}
        self.pieces[task] = Piece(mask, values, self.sequence.head(task))

    def recall(self, task: str) -> None:
        """The graft of the union of all regions up to the task's, from what is kept alone."""
        known = [*self.pieces]
        self._put(task, [self.pieces[name] for name in known[: known.index(task) + 1]])
        self.sequence.view(task).put(self.pieces[task].head)

    def skill_bytes(self) -> int:
        """Indices and values; the order of the pieces says which task each is of."""
        return sum(bytes_of(piece.values.values()) + index_bytes(piece.mask) for piece in self.pieces.values())

    def facts(self, task: str) -> dict[str, Any]:
        """Number of parameters of the task's region, and of those that no earlier task had."""
        return {"region": self.masks[task].selected, "own": self.pieces[task].mask.selected}

    def _put(self, task: str, pieces: list[Piece]) -> None:
        self.sequence.view(task).put(put_together(self.pretrained, pieces))


class Replay(Naive):
    """Naive, each batch with as many stored rows of earlier tasks on top; their heads train along."""

    settings: ReplayParams

    def trained(self, task: str) -> dict[str, Tensor]:
        """The parameters of the task's own training, and the heads of all earlier tasks."""
        sequence, view = self.sequence, self.sequence.view(task)
        names = sequence.shared_names(trained_names(view.groups(), sequence.finetune), task)
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


class Ewc(Naive):
    """Naive, with elastic weight consolidation of what all tasks share."""

    settings: EwcParams

    def __init__(self, sequence: TaskSequence, settings: Section) -> None:
        super().__init__(sequence, settings)
        self.elastic = Elastic()

    def hold_back(self, leaves: dict[str, Tensor], rate: float) -> None:
        """The penalty's proximal step."""
        self.elastic.pull(leaves, rate * self.settings.strength)

    def keep(self, task: str) -> None:
        """Fisher information of training rows that are drawn, a mean over them, and the weights."""
        view = self.sequence.view(task)
        rows = permuted(self.sequence.rows[task]["train"], "ewc", task, self.sequence.seed)
        examples = view.encode(rows[: self.settings.examples])
        names = self.sequence.shared_names(trained_names(view.groups(), self.sequence.finetune), task)
        squares = squared_gradients(view, examples, names, self.settings.fisher)
        self.elastic.add({name: total / len(examples) for name, total in squares.items()}, view.parameters())

    def skill_bytes(self) -> int:
        """Two tensors, however many tasks."""
        return bytes_of(self.elastic.tensors())


METHODS: dict[str, type[Naive]] = {"naive": Naive, "grafting": Grafting, "replay": Replay, "ewc": Ewc}


def copies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of live parameters."""
    return {name: weight.detach().clone() for name, weight in weights.items()}


def index_bytes(mask: GraftMask) -> int:
    """Bytes of a mask's indices in a mask file."""
    sizes = dict(zip(mask.region.shapes, mask.region.sizes, strict=True))
    return sum(len(indices) * (4 if sizes[name] < INT32_LIMIT else 8) for name, indices in mask.indices.items())
