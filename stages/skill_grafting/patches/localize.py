"""localize: the patch between any two checkpoints, found tensor by tensor, so at any size."""

import json
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tabulate import tabulate

from ..data.tasks import TaskSpec
from ..errors import DataError, ParamsError, plain_problem
from ..grafting.mask_file import StoredMask
from ..io import require_free
from ..localizers.evidence import from_tensors
from ..localizers.registry import NAMES, Budget, FoundMask, Localizer, kind_of, localizer_of
from ..metrics.variants import GRAFTED
from ..models.anatomy import HEAD
from ..models.checkpoints import listed
from ..models.evidence import draws
from ..words import percent
from .card import AS_PATCH, Scores, score_table, write_folder
from .localize_context import LocalizeContext, PeakMemory
from .localize_data import find_with_data, longest_text
from .pair import Pair, open_pair, squared_movement, squared_movement_in
from .patch_file import PATCH, GraftFile, make_patch, task_of


def localize(**options: Any) -> str:
    """Write the patch that takes the base model towards the fine-tuned one, or one of each size; gives a summary.

    Raises GraftError with every reason why these two can't be compared, or why the options (__main__.py) can't be used.
    """
    request = Namespace(**options)
    started, peak, target, localizer = time.monotonic(), PeakMemory(), require_free(request.to), _localizer(request)
    if several := len(sizes := sorted({*request.sparsity})) > 1:
        from .curve import save_curve  # what it needs is found missing before the work, not after
    pair = open_pair(request.base, request.finetuned, request.mode, (request.revision, request.finetuned_revision))
    region = pair.spec.region(request.region, "--region")
    budgets = [Budget.of(region, size, "--sparsity") for size in sizes]
    if pair.most_tokens and (request.max_length or 0) > pair.most_tokens:
        most = f"{pair.spec.name} can read at most {pair.most_tokens} tokens"
        raise ParamsError(f"--max-length: {request.max_length} is not allowed: {most}")
    length = request.max_length or longest_text(pair.tokenizer, pair.most_tokens)
    work = LocalizeContext(request, pair, region, budgets, _task(request, pair), length, localizer, peak)
    with peak.progress("compare", len(pair.finetuned.stored), "tensor") as step:
        moved = squared_movement(pair, request.region, step)
    found, scores, lines = find_with_data(work) if request.data else (_find(work), {}, [])
    whole = sum(moved[name] for name in {*request.region})
    written, shares = _write(work, found, scores, target, whole)
    if several:
        save_curve(target / "curve.png", work, shares, scores)
    notes = [*_assumptions(work, moved), *lines]
    scored = tabulate(score_table(scores, "in %"), tablefmt="plain", disable_numparse=True)
    took = (
        f"{time.monotonic() - started:.1f} seconds, at most {peak.bytes / 2**20:.0f} MiB of memory beside mapped files."
    )
    return "\n".join([*written, *notes, *filter(None, [scored]), took])


def _write(
    work: LocalizeContext, found: list[FoundMask], scores: Scores, target: Path, whole: float
) -> tuple[list[str], list[float]]:
    """Write the patches of the masks; gives lines about them, and each one's share of the `whole` squared movement."""
    names, lines, shares = work.graft_names, [], []
    for name, budget, one in zip(names, work.budgets, found, strict=True):
        folder = target if len(names) == 1 else target / f"{budget.share:g}"
        patch = _make_patch(work, one, folder)
        own = {GRAFTED if key == name else key: row for key, row in scores.items() if key not in names or key == name}
        shares.append(squared_movement_in(work.pair, patch.stored.mask, patch.stored.values) / whole)
        lines.append(write_folder(folder, patch, AS_PATCH, own))
        lines.append(f"{percent(shares[-1])} % of the region's squared movement.")
    return lines, shares


def _localizer(request: Namespace) -> Localizer:
    """The localizer with its settings; raises ParamsError for options that don't go together."""
    name = request.localizer
    if request.test and request.data is None:
        raise ParamsError("--test: is for the rows of --data")
    if request.data is None and kind_of(name).needs_model:
        others = ", ".join(other for other in NAMES if not kind_of(other).needs_model)
        raise ParamsError(f"--localizer: {name} takes gradients, so it needs --data; without: {others}")
    return localizer_of(name, {key: parsed(text) for key, text in request.set}, "--set ")


def parsed(text: str) -> object:
    """The value of a setting as in JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _task(request: Namespace, pair: Pair) -> TaskSpec:
    """The task: the labels are those of the classifier's head or of the verbalizer, none if there is neither."""
    name = request.task or Path(request.finetuned).resolve().name
    standard = pair.spec.mode == "standard"
    if standard and (request.prompt or request.verbalizer):
        raise DataError(
            "--prompt: is for a language model, and this is a classifier, whose labels are those of its head"
        )
    verbalizer = dict(request.verbalizer)
    labels = pair.labels if standard else [*verbalizer]
    if not labels and (request.prompt or (request.data and pair.spec.mode != "generative")):
        raise DataError("--prompt: rows need a template with {mask}, and a --verbalizer LABEL=WORD for each label")
    prompt = {"template": request.prompt or "", "verbalizer": verbalizer}
    try:
        return task_of(name, name, labels, pair.spec.mode, None if standard or not labels else prompt)
    except ValidationError as error:
        raise DataError("; ".join(map(_prompt_problem, error.errors()))) from None


def _prompt_problem(problem: dict) -> str:
    """A finding about the prompt of a task, by the option that gave it."""
    field = problem["loc"][1] if len(problem["loc"]) > 1 else "template"
    return plain_problem({**problem, "loc": ()}, "--prompt" if field == "template" else f"--{field}", TaskSpec)


def _find(work: LocalizeContext) -> list[FoundMask]:
    """The masks by a localizer that looks at weights alone."""
    request, pair = work.request, work.pair
    with work.peak.progress("localize", len(work.region.shapes), "tensor") as step:
        generator = draws(request.localizer, work.task.name, request.seed)
        evidence = from_tensors(work.region, pair.rounded_base.values(), pair.finetuned.values(step), generator)
        return work.find_masks(evidence)


def _make_patch(work: LocalizeContext, found: FoundMask, target: Path) -> GraftFile:
    """The patch of a mask, which `target` is to hold."""
    pair, mask = work.pair, found.mask
    about = {
        "model": pair.spec.name,
        "task": work.task.name,
        "seed": work.request.seed,
        "localizer": work.request.localizer,
        "mode": pair.spec.mode,
        "model_parameters": pair.spec.parameters,
        "rule": "top_k",
    }
    head = {name: pair.finetuned.read(name).clone() for name in pair.spec.names([HEAD])}
    values = {name: pair.finetuned.read(name).reshape(-1)[indices] for name, indices in mask.indices.items()}
    with work.peak.progress("fingerprint", len(pair.base.stored) + len(work.region.shapes), "tensor") as step:
        pretrained = pair.base.values(step)
        about["fingerprint"] = work.region.fingerprint(pretrained)
        graft = GraftFile(target / PATCH, StoredMask(mask, values, head, {**about, **found.record}))
        return make_patch(graft, work.task, pair.spec, pretrained, work.max_length, pair.tokenizer.pad_token_id)


def _assumptions(work: LocalizeContext, moved: Counter[str]) -> list[str]:
    """Lines on how the checkpoints were read and compared, and on what the patch leaves out."""
    labels = f"labels: {', '.join(work.task.labels)}." if work.task.labels else "no labels."
    lines = [f"Read as {work.pair.spec.mode}; {labels}"]
    if outside := {name: squares for name, squares in moved.items() if name not in work.request.region and squares}:
        shares = ", ".join(f"{name} {100 * squares / moved.total():.2g} %" for name, squares in outside.items())
        lines.append(
            f"Moved too, and left as they were pretrained: {shares} of all squared movement; --region takes them in."
        )
    if without := [group for group in work.request.region if not work.pair.spec.names([group])]:
        lines.append(f"This model has no parameters of {', '.join(without)}.")
    lines += work.pair.rounding
    if left := work.pair.unread:
        reason = "Not read, as no model of its class computes with it"
        lines.append(f"{reason}: {listed(left)} of {work.request.finetuned}.")
    return lines
