"""A graft in words, by the templates beside this module: cards of what is exported, inspect and diff for a terminal."""

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tabulate import tabulate

from ..metrics.gain import relative_gain
from ..metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from ..words import counted, percent, small_percent, words
from .locations import AS_PATCH, MODEL, PATCH, PEFT, SPARSE_DELTA, WHOLE_DELTA

if TYPE_CHECKING:
    from ..grafting.mask_file import StoredMask
    from .patch_file import PatchMetadata

# the last is of completions
MEASURES = {name: name for name in ("score", "agreement", "retained", "gain")}
MEASURES |= {"ece": "ECE", "token_accuracy": "tokens right"}
# what fine-tuning has to gain for a part of it to be said; as the default of summary.least_gain
LEAST_GAIN = 0.05
NAMES = {
    MODEL: "a whole model",
    AS_PATCH: "a patch",
    PEFT: "an adapter that peft loads",
    WHOLE_DELTA: "a difference from the base model",
    SPARSE_DELTA: "a sparse difference from the base model",
}
# as many signs as tell a fingerprint from others
SHORT = 12


def card_text(
    stored: "StoredMask", use: "PatchMetadata", scores: dict[str, dict[str, Any]], form: str, said: str = ""
) -> str:
    """README.md of what is exported in one of FORMS: how to use it without this project, and where it comes from.

    `said` is a sentence about what the form holds.
    """
    scores = _with_gain(scores)
    source = json.dumps(use.base if use.source == "hub" else f"path/to/{use.base}")
    made = {name: stored.about.get(name) for name in ("localizer", "seed", "rule", "k")}
    return render(
        "card.md.j2",
        use=use,
        mask=stored.mask,
        size=size_text(stored),
        head_values=sum(values.numel() for values in stored.head.values()),
        made_with={name: value for name, value in made.items() if value is not None},
        scores=scores,
        measures=_measures(scores),
        generative=stored.about.get("mode") == "generative",
        form=form,
        name=NAMES[form],
        said=said,
        front=_front(use, scores, form),
        # as Python: what the config says otherwise than that of the base model
        settings=repr(use.config | ({"id2label": dict(enumerate(use.labels))} if "id2label" in use.config else {})),
        patch=PATCH,
        source=source,
        base=f"{source}, revision={json.dumps(use.revision)}" if use.revision else source,
    )


def _measures(scores: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: title for name, title in MEASURES.items() if any(name in row for row in scores.values())}


def _with_gain(scores: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The relative gain beside each score where both ends are known: a trained head alone retains much, and gains nothing."""
    if not {PRETRAINED, FINETUNED} <= scores.keys():
        return scores
    ends = scores[PRETRAINED]["score"], scores[FINETUNED]["score"]
    return {name: {**row, "gain": relative_gain(row["score"], *ends, LEAST_GAIN)} for name, row in scores.items()}


def _front(use: "PatchMetadata", scores: dict[str, dict[str, Any]], form: str) -> str:
    """The front matter of a card for the hub, as YAML: of the graft, its scores with the number of rows they are of."""
    from huggingface_hub import EvalResult, ModelCardData

    row = scores.get(GRAFTED, {})
    results = [
        EvalResult(
            task_type="text-classification",
            dataset_type=use.task,
            dataset_name=use.title,
            dataset_split="test",
            dataset_args={"n": row["n"]},
            metric_type=measure,
            metric_name=title,
            metric_value=row[measure],
        )
        for measure, title in MEASURES.items()
        if row.get(measure) is not None
    ]
    return ModelCardData(
        base_model=use.base if use.source == "hub" else None,
        base_model_relation=("finetune" if form == MODEL else "adapter") if use.source == "hub" else None,
        library_name="peft" if form == PEFT else "transformers",
        tags=["model-grafting"],
        model_name=f"Graft for {use.title}" if results else None,
        eval_results=results or None,
    ).to_yaml()


def render(template: str, **values: Any) -> str:
    """A template of this folder, filled in."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        finalize=_without_html if template.endswith(".md.j2") else None,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=template.endswith((".md.j2", ".py.j2")),
    )
    filters = (words, percent, small_percent, counted, identity, most, places, overlaps, scored)
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters |= {"quoted": json.dumps, "grouped": "{:,}".format}
    return environment.get_template(template).render(**values)


def shown(template: str, facts: dict[str, Any], as_json: bool) -> str:
    """Facts as JSON, or in the words of a template."""
    return json.dumps(facts, indent=2) if as_json else render(template, facts=facts)


def _without_html(value: object) -> object:
    """Text as it reads in Markdown, which takes tags in a label for its own."""
    return escape(value, quote=False) if isinstance(value, str) else value


def size_text(stored: "StoredMask") -> str:
    """Selected parameters with both denominators."""
    return _size(stored.mask.selected, stored.mask.region.size, stored.about.get("model_parameters"))


def identity(facts: dict[str, Any], indent: str = "") -> str:
    """Two lines: whose mask this is, and its size."""
    model = f"{facts['model']} (fingerprint {str(facts['fingerprint'])[:SHORT]}){made(facts)}"
    size = _size(facts["selected"], facts["graftable"], facts["model_parameters"])
    return f"{facts['file']}: {facts['form']} for {', '.join(facts['tasks'])} on {model}\n{indent}  {size}"


def made(facts: dict[str, Any]) -> str:
    """Seed and localizer as far as they are known, each after a comma."""
    return "".join(f", {name} {facts[name]}" for name in ("seed", "localizer") if facts[name] is not None)


def most(facts: dict[str, Any]) -> str:
    """A sentence: where most of a mask lies, and where it is furthest above chance."""
    if not facts["selected"]:
        return "It selects nothing."
    both = facts["layers"], facts["kinds"]
    fullest = [max(rows, key=lambda row: row["share"]) for rows in both]
    densest = [max(rows, key=lambda row: row["share"] / row["chance"]) for rows in both]
    most = " and ".join(f"{_place(row)} ({percent(row['share'])} %)" for row in fullest)
    above = " and ".join(f"{_place(row)} ({_times(row)} times)" for row in densest)
    return f"Most of it lies in {most}; furthest above chance are {above}."


def places(rows: list[dict[str, Any]], by: str) -> str:
    """The shares of a mask by layer or by kind of module."""
    cells = []
    for row in rows:
        shares = (f"{percent(row[name])} %" for name in ("share", "chance"))
        cells.append([_place(row), f"{row['selected']:,}", *shares, _times(row)])
    return _table(cells, [by, "selected", "share", "chance", "times chance"])


def overlaps(rows: list[dict[str, Any]]) -> str:
    """Layer by layer, the parts of two masks that they share."""
    cells = []
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("first", "second", "both"))
        cells.append([_place(row), *counts, f"{percent(row['iou'])} %", small_percent(row["chance_iou"])])
    return _table(cells, ["layer", "A", "B", "both", "IoU", "chance"])


def scored(scores: dict[str, dict[str, Any]]) -> str:
    """Models by their measures on the same test rows, in %."""
    scores = _with_gain(scores)
    measures = _measures(scores)
    cells = []
    for variant, row in scores.items():
        cells.append([words(variant), f"{row['n']:,}", *(percent(row.get(name)) for name in measures)])
    return _table(cells, ["in %", "n", *measures.values()])


def _size(selected: int, graftable: int, whole: int | None) -> str:
    share = small_percent(selected / graftable if graftable else 0.0)
    text = f"{selected:,} of {graftable:,} graftable parameters ({share})"
    return text + (f", {small_percent(selected / whole)} of the model's {whole:,}" if whole else "")


def _place(row: dict[str, Any]) -> str:
    """A layer by its number from 1, or a kind of module."""
    layer = row.get("layer")
    return row["kind"] if "kind" in row else "outside the layers" if layer is None else f"layer {layer + 1}"


def _times(row: dict[str, Any]) -> str:
    """Share of a mask that lies there, as a multiple of that by chance."""
    times = row["share"] / row["chance"]
    return f"{times:.2g}" if times < 10 else f"{times:.0f}"


def _table(rows: list[list[str]], header: list[str]) -> str:
    align = ["left", *["right"] * (len(header) - 1)]
    # as a row among others, since tabulate pads a header
    drawn = tabulate([header, *rows], tablefmt="plain", colalign=align, disable_numparse=True)
    return "\n".join(f"  {line}" for line in drawn.splitlines())
