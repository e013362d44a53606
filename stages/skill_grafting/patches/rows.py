"""Labelled rows for `graft localize`: what localizers take gradients of, and how the models score."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ..data.local import ENDINGS, read_file
from ..data.rows import BITS, Row, bare, content, rank
from ..data.tables import build_table, describe_dropped, dropped_in
from ..data.tasks import TaskSpec
from ..errors import DataError, ParamsError, plain_problem
from ..grafting.apply import graft_into
from ..grafting.mask import GraftMask
from ..localizers.evidence import Objective
from ..metrics.gain import with_gain
from ..metrics.scores import score_rows
from ..metrics.variants import FINETUNED, PRETRAINED, WHOLE_REGION
from ..models.comparing import ONE_LABEL, listed
from ..models.evaluation import Evaluation
from ..models.evidence import objective_of
from ..models.importing import require_causal, require_embeddings
from ..models.label_model import LabelModel
from ..models.loading import CLASSES, load_tokenizer
from ..models.stored_pairs import StoredPair
from ..models.visibility import most_tokens
from .card import Scores
from .label_models import longest_text, tuned_of

# of the rows that aren't tested on; localizers choose by them
DEV_SHARE = 0.2
NO_TEST = "none"
BINS = 15


@dataclass(frozen=True)
class Rows:
    """The fine-tuned model, live, with rows of train, dev and test; `line` is about them."""

    pair: StoredPair
    task: TaskSpec
    model: LabelModel
    parts: dict[str, list[Row]]
    line: str

    @classmethod
    def read(cls, request: Namespace, pair: StoredPair, task: TaskSpec, max_length: int) -> "Rows":
        """Those of --data and --test; raises DataError for rows that can't be used, ModelError where the model doesn't fit a prompt."""
        if pair.kind not in CLASSES:
            raise DataError(f"--data: rows are texts, which a {pair.kind} doesn't read; without: weights alone")
        parts, line = _split_rows(request, pair, task)
        model = tuned_of(pair, task, max_length)
        require_causal(request.finetuned, model.model, pair.kind, "--mode ")
        return cls(pair, task, model, parts, line)

    def objective(self, names: list[str], seed: int) -> Objective:
        """The loss on the rows of train, by these parameters; localizers may choose by dev."""
        dev, words = self.parts["dev"] or None, ("mask", self.task.name, seed)
        return objective_of(self.model, names, self.parts["train"], dev, words)

    def scores(self, masks: dict[str, GraftMask]) -> Scores:
        """The test scores of the pretrained model, the fine-tuned one, the graft of each mask, and that of the whole region.

        No smaller graft is expected to beat the last: where it scores lower than the fine-tuned model, something outside the
        region matters.
        """
        if not self.parts["test"]:
            return {}
        region, known = next(iter(masks.values())).region, self.model.parameters()
        weights = {name: known[name] for name in self.pair.before if name in known and name not in self.pair.heads}
        evaluation = Evaluation(self.model, {self.task.name: self.parts["test"]}, variants=3 + len(masks))
        with evaluation.progress("score"):
            for name, mask in {
                PRETRAINED: GraftMask.empty(region),
                **masks,
                WHOLE_REGION: GraftMask.full(region),
            }.items():
                self.model.put({name: self.pair.before[name] for name in weights})
                graft_into(known, self.pair.before, self.pair.after, mask)
                evaluation.predict(name)
            self.model.put({name: self.pair.after[name] for name in weights})
            evaluation.predict(FINETUNED)
        by_variant = {row["variant"]: row for row in score_rows(evaluation.predictions(), self.task, BINS)}
        return with_gain({name: by_variant[name] for name in (PRETRAINED, FINETUNED, *masks, WHOLE_REGION)})


def requested_task(request: Namespace, pair: StoredPair) -> TaskSpec:
    """The task: the labels are those of the classifier's head or of the verbalizer, none if there is neither."""
    name = request.task or Path(request.finetuned).resolve().name
    language = pair.kind in CLASSES and pair.kind != "standard"
    if not language and (request.prompt or request.verbalizer):
        raise DataError(
            "--prompt: is for a language model, and this is a classifier, whose labels are those of its head"
        )
    verbalizer = dict(request.verbalizer)
    labels = [*verbalizer] if language else pair.labels
    if not labels and (request.prompt or (request.data and pair.kind != "generative")):
        raise DataError("--prompt: rows need a template with {mask}, and a --verbalizer LABEL=WORD for each label")
    prompt = {"template": request.prompt or "", "verbalizer": verbalizer}
    try:
        return TaskSpec.read_as(name, labels, pair.kind, prompt if language and labels else None)
    except ValidationError as error:
        raise DataError("; ".join(map(_prompt_problem, error.errors()))) from None


def _prompt_problem(problem: dict) -> str:
    """A finding about the prompt of a task, by the option that gave it."""
    field = problem["loc"][1] if len(problem["loc"]) > 1 else "template"
    return plain_problem({**problem, "loc": ()}, "--prompt" if field == "template" else f"--{field}", TaskSpec)


def longest_request(request: Namespace, pair: StoredPair) -> int:
    """Tokens of a text: --max-length, or what the model can read; raises ParamsError for more than that."""
    most = most_tokens(pair.model)
    if most and (request.max_length or 0) > most:
        raise ParamsError(
            f"--max-length: {request.max_length} is not allowed: {pair.spec.name} can read at most {most} tokens"
        )
    tokenizer = load_tokenizer(pair.base.checkpoint.folder)
    require_embeddings(pair.base.checkpoint.title, pair.model, len(tokenizer))
    return request.max_length or longest_text(tokenizer, pair.model)


def _split_rows(request: Namespace, pair: StoredPair, task: TaskSpec) -> tuple[dict[str, list[Row]], str]:
    """Rows of train, dev and test, which share no text, and a line about them.

    Without a test file a fifth of the rows is held out by their text; a fifth of the others is dev, by text and seed.
    """
    if pair.tuned.checkpoint.config.get("problem_type") not in (None, ONE_LABEL):
        kind = "is of a problem type whose rows have several labels or none"
        raise DataError(f"{request.finetuned}: {kind}; take no --data")
    spec, raw = _raw_rows(request, task)
    table = build_table(spec, raw, {}, "give --test a file, or none")
    parts = {split: [bare(row) for row in table.rows if row["split"] == split] for split in ("train", "test")}
    if request.test == NO_TEST:
        parts["test"] = []
    train, dev = [], []
    for row in parts["train"]:
        (dev if rank(("localize", request.seed), content(row)) < DEV_SHARE * 2**BITS else train).append(row)
    if not train:
        train, dev = parts["train"], []
    line = f"Rows: {len(train):,} to localize by, {len(dev):,} to choose by, {len(parts['test']):,} to score on"
    dropped = dropped_in(table.card, [split for split, rows in parts.items() if rows])
    line += f"; {dropped.total():,} dropped ({describe_dropped(dropped)})" if dropped else ""
    numbers = ", ".join(f"{key} {label}" for key, label in (spec.relabel or {}).items())
    renamed = f"; labels by their numbers: {numbers}" if numbers else ""
    return {"train": train, "dev": dev, "test": parts["test"]}, f"{line}{renamed}."


def _raw_rows(request: Namespace, task: TaskSpec) -> tuple[TaskSpec, dict[str, list[Row]]]:
    """The rows of --data and --test; of the task, labels by their numbers if that is what the rows have."""
    if task.labels:
        there = {row["label"] for row in _read("--data", request, task.model_copy(update={"relabel": {}}))} - {None}
        numbers = {str(number): label for number, label in enumerate(task.labels)}
        if there <= numbers.keys() and not there <= {*task.labels}:
            task = task.model_copy(update={"relabel": numbers})
    raw = {"train": _read("--data", request, task)}
    if request.test is not None:
        raw["test"] = raw["train"] if request.test == NO_TEST else _read("--test", request, task)
    if task.relabel and (other := {row["label"] for row in raw.get("test", ()) if row["label"]} - task.relabel.keys()):
        none = f"of which {listed(sorted(other))} stands for none; known: {listed([*task.relabel])}"
        raise DataError(f"--test: labels by their numbers, {none}")
    return task, raw


def _read(option: str, request: Namespace, task: TaskSpec) -> list[Row]:
    """The rows of the file that an option names."""
    path = Path(getattr(request, option.removeprefix("--")))
    if not path.is_file():
        raise DataError(f"{option}: there is no file {path}")
    if not path.name.endswith(ENDINGS):
        raise DataError(f"{option}: {path} should be one of *{', *'.join(ENDINGS)}")
    return read_file(path, task, dict(request.columns), "--columns {}=...")
