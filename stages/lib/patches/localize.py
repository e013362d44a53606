"""localize: the patch between two checkpoints of anybody's, found tensor by tensor, so at any size."""

import json
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..data.tasks import Prompt, TaskSpec
from ..errors import DataError, ParamsError, did_you_mean, plain_problem
from ..grafting.mask_file import StoredMask
from ..localizers.names import NAMES
from ..localizers.registry import Budget, LocalizerSettings, find_mask, localizer_of, settings_of
from ..models.anatomy import CLASSES, HEAD
from ..models.checkpoints import listed
from ..models.evidence import draws, from_tensors
from ..models.sources import weight_files
from ..progress import progress
from ..settings import Section
from .base import Base
from .build_patch import new_patch
from .export import write_patch
from .format import card_text, render
from .inspect import facts_of
from .localize_context import LocalizeContext, LocalizeResult
from .locations import AS_PATCH, free, mask_at
from .memory import PeakMemory, warn_of_size
from .pair import Pair, carried, open_pair, survey

GROUPS = ("layers", "embeddings", "pooler", "lm_head")
# of a model that says no limit itself
MOST_TOKENS = 512
# as of model.max_length and runtime.batch_tokens
LEAST_LENGTH, LEAST_BATCH = 8, 16
DTYPES = ("float32", "bfloat16")


def localize(**options: Any) -> str:
    """Write the patch that takes the base model towards the fine-tuned one; gives a summary.

    The options are those of LOCALIZE in __main__.py, all of them.  Raises GraftError with every reason why these two can't be
    compared, or the settings can't be used.
    """
    request = Namespace(**options)
    request.region = [*dict.fromkeys(request.region or ["layers"])]
    started, peak, target = time.monotonic(), PeakMemory(), free(request.to)
    settings = _checked(request)
    revisions = request.revision, request.finetuned_revision
    pair = open_pair(request.base, request.finetuned, request.mode, revisions)
    region = pair.anatomy.region(request.region, "--region")
    budget = Budget.of(region, request.sparsity, "top_k", "--sparsity")
    _require_fit(request, pair)
    if request.data:
        warn_of_size(weight_files(pair.finetuned.checkpoint.folder))
    most = min(pair.tokenizer.model_max_length, MOST_TOKENS, pair.most_tokens or MOST_TOKENS)
    work = LocalizeContext(
        request, pair, region, budget, task_of(request, pair), request.max_length or most, settings, peak
    )
    with progress("compare", len(pair.base.stored), "tensor") as bar:
        moved = survey(pair, request.region, lambda _: (bar.update(), peak.look()))
    found = _find(work)
    stored = _patch(work, found, target)
    return render(
        "localize.txt.j2",
        facts=facts_of(mask_at(target), stored),
        said=_said(work, moved) + found.lines,
        carried=carried(pair, stored.mask, stored.values) / sum(moved[name] for name in request.region),
        scores=found.scores,
        seconds=time.monotonic() - started,
        mebibytes=peak.bytes / 2**20,
    )


def _checked(request: Namespace) -> Section:
    """The settings of the localizer; raises ParamsError with all that is wrong with the request by itself."""
    problems = [
        *_range_problems(request),
        *_localizer_problems(request),
        *_verbalizer_problems(request.verbalizer or ()),
        *(["--test: is for the rows of --data"] if request.test and request.data is None else ()),
    ]
    settings: Section = LocalizerSettings()
    if request.localizer in NAMES:
        try:
            settings = settings_of(request.localizer, changes_of(request.changes), "--set ")
        except ParamsError as error:
            problems.append(str(error))
    if problems:
        raise ParamsError("; ".join(problems))
    return settings


def _range_problems(request: Namespace) -> Iterator[str]:
    if not 0 < request.sparsity <= 1:
        yield f"--sparsity: {request.sparsity} is not allowed: should be above 0, and at most 1 for all parameters"
    for name in request.region:
        if name not in GROUPS:
            yield f"--region: unknown group {name!r}{did_you_mean(name, GROUPS)}; known: {', '.join(GROUPS)}"
    least_of = ("--max-length", request.max_length, LEAST_LENGTH), ("--batch-tokens", request.batch_tokens, LEAST_BATCH)
    for option, value, least in least_of:
        if value is not None and value < least:
            yield f"{option}: {value} is not allowed: should be {least} or more"
    if request.mode not in (None, *CLASSES):
        yield f"--mode: {request.mode!r} is not allowed{did_you_mean(request.mode, CLASSES)}; one of {', '.join(CLASSES)}"


def _localizer_problems(request: Namespace) -> Iterator[str]:
    localizer = request.localizer
    if request.dtype not in DTYPES:
        yield f"--dtype: {request.dtype!r} is not allowed; one of {', '.join(DTYPES)}"
    elif request.dtype != "float32" and localizer in NAMES and localizer_of(localizer).arrays:
        found = {name: localizer_of(name) for name in NAMES}
        slim = ", ".join(name for name, one in found.items() if not one.arrays and one.needs_model)
        yield f"--dtype: {localizer} works in float32; {request.dtype} is for {slim}"
    if localizer not in NAMES:
        yield f"--localizer: unknown localizer {localizer!r}{did_you_mean(localizer, NAMES)}; known: {', '.join(NAMES)}"
    elif request.data is None and localizer_of(localizer).needs_model:
        free_ones = ", ".join(name for name in NAMES if not localizer_of(name).needs_model)
        yield f"--localizer: {localizer} takes gradients, so it needs --data; without: {free_ones}"


def _verbalizer_problems(items: Sequence[str]) -> Iterator[str]:
    for item in items:
        if "=" not in item.strip("="):
            yield f"--verbalizer: {item!r} is not allowed: should be LABEL=WORD"
    labels = [item.partition("=")[0] for item in items]
    for label in dict.fromkeys(labels):
        if labels.count(label) > 1:
            yield f"--verbalizer: {label!r} has two words"


def _require_fit(request: Namespace, pair: Pair) -> None:
    """Raise ParamsError for texts longer than the model can read, or where the live one would round what a checkpoint has."""
    most, asked = pair.most_tokens, request.max_length
    if most and asked and asked > most:
        raise ParamsError(f"--max-length: {asked} is not allowed: {pair.anatomy.name} can read at most {most} tokens")
    wider = [side.checkpoint.title for side in (pair.base, pair.finetuned) if side.types != {"BF16"}]
    if request.dtype != "float32" and wider:
        raise ParamsError(
            f"--dtype: bfloat16 would round the weights of {' and '.join(wider)}, which are stored in another type; take float32"
        )


def changes_of(items: list[str]) -> dict[str, Any]:
    """Settings given as NAME=VALUE, values as in JSON, or else as text."""
    changes: dict[str, Any] = {}
    for item in items:
        name, _, text = item.partition("=")
        try:
            changes[name] = json.loads(text)
        except ValueError:
            changes[name] = text
    return changes


def task_of(request: Namespace, pair: Pair) -> TaskSpec:
    """The task by the request and the checkpoint's own labels; one without labels if neither says any."""
    name = request.task or Path(request.finetuned).resolve().name
    words = dict(item.partition("=")[::2] for item in request.verbalizer or ())
    labels = request.labels or (pair.labels if pair.mode == "standard" else [*words])
    if pair.mode == "standard" and len(labels) != len(pair.labels):
        theirs = f"the checkpoint has {len(pair.labels)} ({listed(pair.labels)})"
        raise DataError(f"--labels: names {len(labels)} labels, and {theirs}")
    if pair.mode == "standard" and (request.prompt or words):
        raise DataError(
            "--prompt: is for a language model, and this is a classifier, whose labels are those of its head"
        )
    if not labels:
        if (request.data and pair.mode != "generative") or request.prompt:
            raise DataError("--prompt: rows need a template with {mask}, and a --verbalizer LABEL=WORD for each label")
        return TaskSpec.model_construct(name=name, title=name, kind=name, labels=[])
    try:
        prompt = Prompt(template=request.prompt or "", verbalizer=words) if pair.mode != "standard" else None
        where = {"standard": {}, "prompt": {"prompt": prompt}}.get(pair.mode, {"causal_prompt": prompt})
        if "causal_prompt" in where and not prompt.template.endswith("{mask}"):
            raise DataError(
                f"--prompt: {prompt.template!r} is not allowed: should end with {{mask}}, as a causal model sees only what stands before it"
            )
        return TaskSpec(name=name, title=name, kind=name, labels=labels, **where)
    except ValidationError as error:
        raise DataError("; ".join(plain_problem(one, "--prompt", TaskSpec) for one in error.errors())) from None


def _find(work: LocalizeContext) -> LocalizeResult:
    if work.request.data is not None:
        from .localize_data import find_with_data

        return find_with_data(work)
    with progress("localize", len(work.region.shapes), "tensor") as bar:
        after = work.pair.finetuned.values(lambda _: (bar.update(), work.peak.look()))
        generator = draws(work.request.localizer, work.task.name, work.request.seed)
        evidence = from_tensors(work.region, work.pair.base.values(), after, generator)
        return LocalizeResult(find_mask(work.request.localizer, evidence, work.settings, work.budget))


def _patch(work: LocalizeContext, found: LocalizeResult, target: Path) -> StoredMask:
    """Write the patch of a mask; gives what was written."""
    pair, mask = work.pair, found.mask.mask
    about = {
        "model": pair.anatomy.name,
        "task": work.task.name,
        "seed": work.request.seed,
        "localizer": work.request.localizer,
        "mode": pair.mode,
        "model_parameters": pair.anatomy.parameters,
        "rule": "top_k",
    }
    head = {name: pair.finetuned.read(name).clone() for name in pair.anatomy.names([HEAD])}
    with progress("fingerprint", len(pair.base.stored) + len(work.region.shapes), "tensor") as bar:
        noted = pair.base.values(lambda _: (bar.update(), work.peak.look()))
        base = Base(pair.base.checkpoint.folder, pair.anatomy, noted)
        about["fingerprint"] = base.fingerprint(work.region)
        values = {name: pair.finetuned.read(name).reshape(-1)[indices] for name, indices in mask.indices.items()}
        stored = StoredMask(mask, values, head, {**about, **found.mask.record})
        patch, use = new_patch(target, stored, work.task, base, work.max_length, pair.tokenizer.pad_token_id)
    write_patch(target, patch, card_text(patch, use, found.scores, AS_PATCH))
    return patch


def _said(work: LocalizeContext, moved: Counter[str]) -> list[str]:
    """Assumptions that were made, and parameters that moved outside the region."""
    labels = f"labels: {', '.join(work.task.labels)}." if work.task.labels else "no labels."
    lines = [f"Read as {work.pair.mode}; {labels}"]
    outside = {name: squares for name, squares in moved.items() if name not in work.request.region and squares}
    if outside:
        shares = ", ".join(f"{name} {100 * squares / moved.total():.2g} %" for name, squares in outside.items())
        lines.append(
            f"Moved too, and left as they were pretrained: {shares} of all squared movement; --region takes them in."
        )
    if left := work.pair.unread:
        lines.append(
            f"Not read, as no model of its class computes with it: {listed(left)} of {work.request.finetuned}."
        )
    kind = work.pair.finetuned.checkpoint.config.get("problem_type")
    return lines + ([f"The checkpoint's problem type is {kind}."] if kind else [])
