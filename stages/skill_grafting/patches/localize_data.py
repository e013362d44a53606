"""localize with rows: localizers that take gradients, and how the pretrained model, the fine-tuned one and the graft score."""

import sys
import tempfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ..data.local import ENDINGS, read_file
from ..data.rows import BITS, Row, bare, content, rank
from ..data.tables import build_table, describe_dropped, dropped_in
from ..data.tasks import TaskSpec
from ..errors import DataError
from ..grafting.mask import GraftMask
from ..localizers.registry import FoundMask
from ..metrics.gain import with_gain
from ..metrics.scores import score_rows
from ..metrics.variants import FINETUNED, PRETRAINED, WHOLE_REGION
from ..models.checkpoints import listed
from ..models.evaluation import Evaluation
from ..models.evidence import draws, evidence_about, with_scores
from ..models.folders import has_tokenizer, wanted_links, weight_files
from ..models.label_model import LabelModel
from ..models.visibility import require_causal
from ..progress import each_pass
from ..runtime import Runtime, start
from ..settings import ModelParams, RuntimeParams
from .card import Scores
from .localize_context import LocalizeContext
from .pair import Pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# of the rows that aren't tested on; localizers choose by them
DEV_SHARE = 0.2
NO_TEST = "none"
GIBIBYTE = 2**30
# of a model without a limit of its own
MOST_TOKENS = 512
# padded tokens of a batch, which memory grows with
BATCH_TOKENS = 512
BINS = 15


def find_with_data(work: LocalizeContext) -> tuple[list[FoundMask], Scores, list[str]]:
    """The masks of the chosen localizer, the scores of all models on the test rows, and lines on the rows.

    Scored with them is the graft of the whole region, which no smaller one is expected to beat: where it scores lower than the
    fine-tuned model, something outside the region matters.
    Raises DataError for rows that can't be used, ModelError where the model doesn't fit a prompt.
    """
    _warn_of_size(work.pair)
    rows, lines = _split_rows(work)
    pair, request = work.pair, work.request
    model = _load(work)
    require_causal(request.finetuned, model.model, pair.spec.mode, "--mode ")
    words = ("mask", work.task.name, request.seed)
    before, after = (side.values(work.peak.measure, model.runtime.device) for side in (pair.base, pair.finetuned))
    grafts = work.graft_names
    evaluation = Evaluation(model, {work.task.name: rows["test"]} if rows["test"] else {}, variants=3 + len(grafts))
    with evaluation.progress("score"):
        evaluation.predict(FINETUNED)
        model.put(before)
        evaluation.predict(PRETRAINED)
        with work.peak.progress("localize", None, "pass") as step, each_pass(model.model, step):
            rounded = pair.rounded_base.values(work.peak.measure, model.runtime.device)
            evidence = evidence_about(model, work.region, rounded, after, rows["train"], words)
            evidence = replace(evidence, generator=draws(request.localizer, *words[1:]))
            evidence = with_scores(evidence, model, rows["train"], rows["dev"]) if rows["dev"] else evidence
            found = work.find_masks(evidence)
        masks = [one.mask for one in found]
        for name, mask in zip((*grafts, WHOLE_REGION), (*masks, GraftMask.full(work.region)), strict=True):
            replace(evidence, pretrained=before).put_graft(mask)
            evaluation.predict(name)
    scored = score_rows(evaluation.predictions(), work.task, BINS) if rows["test"] else []
    by_variant = {row["variant"]: row for row in scored}
    kept = {name: by_variant[name] for name in (PRETRAINED, FINETUNED, *grafts, WHOLE_REGION) if scored}
    return found, with_gain(kept), lines


def _warn_of_size(pair: Pair) -> None:
    """Warn on stderr if the files of a model that is loaded whole are larger than the free memory."""
    size = sum(file.stat().st_size for file in weight_files(pair.finetuned.checkpoint.folder))
    if size > (free := psutil.virtual_memory().available):
        print(
            f"warning: the fine-tuned weights take {size / GIBIBYTE:.1f} GiB on disk, {free / GIBIBYTE:.1f} GiB of memory are "
            "free, and with --data all of them are loaded; movement without --data reads one tensor at a time",
            file=sys.stderr,
        )


def _load(work: LocalizeContext) -> LabelModel:
    """The fine-tuned model, live."""
    tuned, base = work.pair.finetuned.checkpoint.folder, work.pair.base.checkpoint.folder
    settings = ModelParams.model_construct(mode=work.pair.spec.mode, max_length=work.max_length)
    with tempfile.TemporaryDirectory(prefix="graft-localize-") as scratch:
        links = wanted_links(tuned, tuned if has_tokenizer(tuned) else base, Path(scratch))
        return LabelModel.load(links, work.task, settings, best_device())


def best_device() -> Runtime:
    """The best device that there is, in float32."""
    usual = {"device": "auto", "precision": "float32", "threads": 0, "gradient_checkpointing": False}
    return start(RuntimeParams.model_construct(batch_tokens=BATCH_TOKENS, **usual))


def longest_text(tokenizer: "PreTrainedTokenizerBase", most_tokens: int | None) -> int:
    """The tokens that a text may have by its tokenizer and by what the model can read; at most MOST_TOKENS."""
    return min(tokenizer.model_max_length, MOST_TOKENS, most_tokens or MOST_TOKENS)


def _split_rows(work: LocalizeContext) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows of train, dev and test, which share no text, and a line about them.

    Without a test file a fifth of the rows is held out by their text; a fifth of the others is dev, by text and seed.
    """
    request = work.request
    if work.pair.finetuned.checkpoint.config.get("problem_type") not in (None, "single_label_classification"):
        kind = "is of a problem type whose rows have several labels or none"
        raise DataError(f"{request.finetuned}: {kind}; take no --data")
    spec, raw = _raw_rows(request, work.task)
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
    return {"train": train, "dev": dev, "test": parts["test"]}, [f"{line}{renamed}."]


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
