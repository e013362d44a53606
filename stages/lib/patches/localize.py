"""localize: the patch between two checkpoints of anybody's, found tensor by tensor, so at any size."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..data.tasks import Prompt, TaskSpec
from ..errors import DataError, ParamsError, did_you_mean, plain_problem
from ..graft.mask_file import StoredMask
from ..graft.region import Region
from ..localizers.registry import Budget, FoundMask, Localizer, find_mask, localizer_of
from ..localizers.settings import ARRAYS, NAMES, SETTINGS, NoSettings
from ..memory import PeakMemory
from ..models.checkpoints import listed
from ..models.classes import CLASSES
from ..models.evidence import draws, from_tensors
from ..progress import progress
from ..settings import Section
from ..yaml12 import load_yaml
from .build_patch import Reading, new_patch
from .export import write_patch
from .format import card_text, render
from .inspect import inspect_mask
from .locations import AS_PATCH, free
from .pair import Movement, Pair, carried, open_pair, survey
from .room import WIDTHS, require_room

DEFAULTS = Path(__file__).parents[1] / "localizers/defaults.yaml"
GROUPS = ("layers", "embeddings", "pooler", "lm_head")
# of a model that says no limit itself
MOST_TOKENS = 512
# as of model.max_length and runtime.batch_tokens
LEAST_LENGTH, LEAST_BATCH = 8, 16


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line (localize_options.py)."""

    base: str
    finetuned: str
    to: Path
    sparsity: float = 1e-4
    localizer: str = "movement"
    region: list[str] = field(default_factory=lambda: ["layers"])
    mode: str | None = None
    revision: str | None = None
    finetuned_revision: str | None = None
    task: str | None = None
    labels: list[str] | None = None
    prompt: str | None = None
    verbalizer: list[str] | None = None
    data: Path | None = None
    test: str | None = None
    sentence1: str = "sentence1"
    sentence2: str = "sentence2"
    label_column: str = "label"
    max_length: int | None = None
    batch_tokens: int = 512
    dtype: str = "float32"
    changes: list[str] = field(default_factory=list)
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """The mask, how the models score on test rows (variant -> measures), and lines on the rows."""

    mask: FoundMask
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """Everything that a localizer is run with."""

    request: Request
    pair: Pair
    region: Region
    budget: Budget
    task: TaskSpec
    reading: Reading
    settings: Section
    peak: PeakMemory


def localize(request: Request) -> str:
    """Write the patch that takes the base model towards the fine-tuned one; gives a summary.

    Raises GraftError with every reason why these two can't be compared, or the settings can't be used.
    """
    started, peak, target = time.monotonic(), PeakMemory(), free(request.to)
    settings = _checked(request)
    revisions = request.revision, request.finetuned_revision
    pair = open_pair(request.base, request.finetuned, request.mode, revisions)
    region = pair.anatomy.region(request.region)
    budget = Budget.of(region, request.sparsity, "top_k", "--sparsity")
    _require_readable(request, pair)
    _require_exact(request, pair)
    width = WIDTHS[request.dtype] if request.data else 0
    require_room(request.localizer, width, request.batch_tokens, pair.anatomy, region, budget.k)
    most = min(pair.tokenizer.model_max_length, MOST_TOKENS, pair.most_tokens or MOST_TOKENS)
    task = task_of(request, pair)
    reading = Reading(request.max_length or most, pair.tokenizer.pad_token_id)
    work = Work(request, pair, region, budget, task, reading, settings, peak)
    with progress("compare", len(pair.base.stored), "tensor") as bar:
        moved = survey(pair, lambda _: (bar.update(), peak.look()))
    found = _find(work)
    stored, scores = _patch(work, found, target), found.scores
    facts = inspect_mask(target, None)
    share = carried(pair, stored.mask, stored.values) / sum(
        moved[name].squares for name in request.region if name in moved
    )
    return render(
        "localize.txt.j2",
        facts=facts,
        work=work,
        said=_said(work, moved) + found.lines,
        carried=share,
        scores=scores,
        seconds=time.monotonic() - started,
        mebibytes=peak.bytes / 2**20,
    )


def _checked(request: Request) -> Section:
    """The settings of the localizer; raises ParamsError with all that is wrong with the request by itself."""
    problems = [
        *_range_problems(request),
        *_localizer_problems(request),
        *_verbalizer_problems(request.verbalizer or ()),
    ]
    settings: Section = NoSettings()
    if request.localizer in NAMES:
        try:
            settings = settings_of(request.localizer, request.changes)
        except ParamsError as error:
            problems.append(str(error))
    if problems:
        raise ParamsError("; ".join(problems))
    return settings


def _range_problems(request: Request) -> Iterator[str]:
    if not 0 < request.sparsity <= 1:
        yield f"--sparsity: {request.sparsity} is not allowed: should be above 0, and at most 1 for all parameters"
    for name in request.region:
        if name not in GROUPS:
            yield f"--region: unknown group {name!r}{did_you_mean(name, GROUPS)}; known: {', '.join(GROUPS)}"
    for option, value, least in (
        ("--max-length", request.max_length, LEAST_LENGTH),
        ("--batch-tokens", request.batch_tokens, LEAST_BATCH),
    ):
        if value is not None and value < least:
            yield f"{option}: {value} is not allowed: should be {least} or more"
    if request.mode not in (None, *CLASSES):
        yield f"--mode: {request.mode!r} is not allowed{did_you_mean(request.mode, CLASSES)}; one of {', '.join(CLASSES)}"


def _localizer_problems(request: Request) -> Iterator[str]:
    localizer = request.localizer
    if request.dtype not in WIDTHS:
        yield f"--dtype: {request.dtype!r} is not allowed; one of {', '.join(WIDTHS)}"
    elif request.dtype != "float32" and localizer in ARRAYS:
        slim = ", ".join(name for name in NAMES if name not in ARRAYS and needs_data(localizer_of(name)))
        yield f"--dtype: {localizer} works in float32; {request.dtype} is for {slim}"
    if localizer not in NAMES:
        yield f"--localizer: unknown localizer {localizer!r}{did_you_mean(localizer, NAMES)}; known: {', '.join(NAMES)}"
    elif request.data is None and needs_data(localizer_of(localizer)):
        free_ones = ", ".join(name for name in NAMES if not needs_data(localizer_of(name)))
        yield f"--localizer: {localizer} takes gradients, so it needs --data; without: {free_ones}"


def _verbalizer_problems(items: Sequence[str]) -> Iterator[str]:
    for item in items:
        if "=" not in item.strip("="):
            yield f"--verbalizer: {item!r} is not allowed: should be LABEL=WORD"
    labels = [item.partition("=")[0] for item in items]
    for label in dict.fromkeys(labels):
        if labels.count(label) > 1:
            yield f"--verbalizer: {label!r} has two words"


def _require_readable(request: Request, pair: Pair) -> None:
    """Raise ParamsError for texts that are to be longer than the model can read."""
    most, asked = pair.most_tokens, request.max_length
    if most and asked and asked > most:
        raise ParamsError(f"--max-length: {asked} is not allowed: {pair.anatomy.name} can read at most {most} tokens")


def _require_exact(request: Request, pair: Pair) -> None:
    """Raise ParamsError where the live model would round what a checkpoint has."""
    if request.dtype == "float32":
        return
    wider = [side.checkpoint.title for side in (pair.base, pair.finetuned) if side.types != {"BF16"}]
    if wider:
        raise ParamsError(
            f"--dtype: bfloat16 would round the weights of {' and '.join(wider)}, which are stored in another type; take float32"
        )


def needs_data(localizer: Localizer) -> bool:
    """True for a localizer that looks at a model with rows, and not at two sets of weights alone."""
    return localizer.rank_needs_model or localizer.refine is not None


def settings_of(localizer: str, changes: list[str]) -> Section:
    """The default settings of a localizer with these changes, each NAME=VALUE; raises ParamsError."""
    values = dict(load_yaml(DEFAULTS, ParamsError).get(localizer) or {})
    for change in changes:
        name, _, text = change.partition("=")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    kind = SETTINGS.get(localizer, NoSettings)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ParamsError("; ".join(plain_problem(one, f"--set {localizer}", kind) for one in error.errors())) from None


def task_of(request: Request, pair: Pair) -> TaskSpec:
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


def _find(work: Work) -> Found:
    if work.request.data is not None:
        from .localize_data import find_with_data

        return find_with_data(work)
    with progress("localize", len(work.region.shapes), "tensor") as bar:
        after = work.pair.finetuned.watched(lambda _: (bar.update(), work.peak.look()))
        generator = draws(work.request.localizer, work.task.name, work.request.seed)
        evidence = from_tensors(work.region, work.pair.base.values(), after, generator)
        return Found(find_mask(work.request.localizer, evidence, work.settings, work.budget))


def _patch(work: Work, found: Found, target: Path) -> StoredMask:
    """Write the patch of a mask; gives what was written."""
    pair, mask = work.pair, found.mask.mask
    base = pair.pretrained_parameters()
    about = {
        "model": base.anatomy.name,
        "task": work.task.name,
        "seed": work.request.seed,
        "localizer": work.request.localizer,
        "mode": pair.mode,
        "model_parameters": base.anatomy.parameters,
        "rule": "top_k",
    }
    with progress("fingerprint", len(pair.base.stored) + len(work.region.shapes), "tensor") as bar:
        noted = pair.base.watched(lambda _: (bar.update(), work.peak.look()))
        base = replace(base, tensors=noted)
        about["fingerprint"] = base.fingerprint(work.region)
        values = {name: pair.finetuned.read(name).reshape(-1)[indices] for name, indices in mask.indices.items()}
        stored = StoredMask(mask, values, pair.head(), {**about, **found.mask.record})
        patch, use = new_patch(target, stored, work.task, base, work.reading)
    write_patch(target, patch, card_text(patch, use, found.scores, AS_PATCH))
    return patch


def _said(work: Work, moved: dict[str, Movement]) -> list[str]:
    """What was taken for granted, and what moved outside the region."""
    pair, whole = work.pair, sum(group.squares for group in moved.values())
    lines = [
        f"Read as {pair.mode}; " + (f"labels: {', '.join(work.task.labels)}." if work.task.labels else "no labels.")
    ]
    outside = {name: group for name, group in moved.items() if name not in work.request.region and group.moved}
    if outside:
        shares = ", ".join(f"{name} {100 * group.squares / whole:.2g} %" for name, group in outside.items())
        lines.append(
            f"Moved too, and left as they were pretrained: {shares} of all squared movement; --region takes them in."
        )
    kind = pair.finetuned.checkpoint.config.get("problem_type")
    return lines + ([f"The checkpoint's problem type is {kind}."] if kind else [])
