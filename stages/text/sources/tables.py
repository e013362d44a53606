"""From raw rows to the table of a data set: tidied, without duplicates, with a test split.

A row of a table is a dict with split, sentence1, sentence2 (or None) and label; one of given splits also has the seeds whose split
it is in, each as often as it is there.  Rows stand in an order that depends on their content alone, so the same rows give the same bytes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import permutations
from typing import Any, NamedTuple

from skill_grafting.support.errors import DataError, did_you_mean
from stages.text.rows.content import (
    BITS,
    SPLITS,
    Row,
    bare,
    capped,
    content,
    describe_dropped,
    letters,
    place,
    rank,
    text_key,
)
from stages.text.tasks.tasks import TaskSpec


class Texts(NamedTuple):
    """Fingerprints of the texts of a data set, to count what two data sets share."""

    trained: set[bytes]
    tested: list[bytes]


class Table(NamedTuple):
    """The rows of a data set, the facts about them that its card holds, and their texts."""

    rows: list[Row]
    card: dict[str, Any]
    texts: Texts


def build_table(
    spec: TaskSpec,
    raw: dict[str, list[Row]],
    origin: dict[str, Any],
    advice: str = "give the data a test split, or set {}",
) -> Table:
    """Turn the raw rows of each split into a table with a card.

    White space is collapsed, labels are renamed, and empty texts, repeated rows and texts with two labels are dropped and counted.
    Of given splits, whose rows have a `seed`, repeated rows and texts with two labels stay.  A test split that the source has is
    kept even where its texts are also in train; without one, `spec.holdout` of the
    training rows become test, by content.  Raises DataError for unknown labels and splits without rows; where too few rows are held
    out, with this advice, in which braces stand for the setting.
    """
    dropped: dict[str, Counter] = {split: Counter() for split in SPLITS if split in raw}
    pair = spec.is_pair or any(row.get("sentence2") is not None for rows in raw.values() for row in rows)
    tidied = {split: _tidied(spec, raw[split], pair, reasons) for split, reasons in dropped.items()}
    given = any("seed" in row for rows in raw.values() for row in rows)
    splits = {
        split: _of_seeds(tidied[split]) if given else _distinct(tidied[split], reasons)
        for split, reasons in dropped.items()
    }
    _require_rows(spec, splits, dropped)
    held_out = "train" in splits and "test" not in splits
    if held_out:
        splits = _hold_out(spec, splits, dropped, advice)
    ordered = ((split, row) for split in SPLITS for row in sorted(splits.get(split, []), key=place))
    rows = [{"split": split, **bare(row), **({"seeds": row["seeds"]} if given else {})} for split, row in ordered]
    texts = texts_of(rows)
    return Table(rows, _card(spec, origin, rows, texts, dropped, held_out), texts)


def texts_of(rows: Iterable[Row]) -> Texts:
    """The texts of a table: those of train and dev as a set, those of test one by one."""
    trained, tested = set(), []
    for row in rows:
        (tested.append if row["split"] == "test" else trained.add)(text_key(row))
    return Texts(trained, tested)


def together(parts: Iterable[Table]) -> dict[str, list[Row]]:
    """The rows of several tables by split, as raw rows of one; no test text of any is in train or dev."""
    rows = [row for part in parts for row in part.rows]
    tested = {*texts_of(rows).tested}
    splits = {row["split"]: [] for row in rows}
    for row in rows:
        if row["split"] == "test" or text_key(row) not in tested:
            splits[row["split"]].append(bare(row))
    return splits


def leakage(sets: dict[str, Texts]) -> dict[str, dict[str, dict[str, int]]]:
    """{train: {test_set: {"leaked": n, "test": all}}}: test texts of the second in train or dev of the first."""
    found: dict[str, dict[str, dict[str, int]]] = {train: {} for train in sets}
    for (train, mine), (test, other) in permutations(sets.items(), 2):
        leaked = sum(key in mine.trained for key in other.tested)
        found[train][test] = {"leaked": leaked, "test": len(other.tested)}
    return found


def ood_rows(rows: Iterable[Row], trained: set[bytes], leaks: str, most: int) -> list[Row]:
    """The test rows of another data set that a task is tested on: at most `most` (0 for all), chosen by content.

    With `leaks` "drop", rows whose text is among the `trained` texts of the task are left out first.
    """
    tests = [row for row in rows if row["split"] == "test" and (leaks == "keep" or text_key(row) not in trained)]
    return [bare(row) for row in capped(tests, most)]


def _tidied(spec: TaskSpec, rows: list[Row], pair: bool, dropped: Counter) -> list[Row]:
    tidied = []
    for row in rows:
        sentence1, sentence2 = (" ".join((row.get(name) or "").split()) for name in ("sentence1", "sentence2"))
        label = _label(spec, row["label"])
        if row["label"] is None:
            dropped["no label"] += 1
        elif label is None:
            dropped[f"with the label {row['label']!r}"] += 1
        elif not sentence1 or (pair and not sentence2):
            dropped["empty text"] += 1
        else:
            texts = {"sentence1": sentence1, "sentence2": sentence2 or None}
            tidied.append({**texts, "label": label, "group": row.get("group"), "seed": row.get("seed")})
    return tidied


def _label(spec: TaskSpec, label: str | None) -> str | None:
    """The task's label for one of the source's, None if rows with it are dropped."""
    if spec.relabel is not None:
        return spec.relabel.get(label, label if label in spec.labels else None)
    if label is not None and label not in spec.labels:
        hint = f"{did_you_mean(label, spec.labels)}; allowed: {', '.join(spec.labels)}"
        raise DataError(f"task {spec.name}: its source has the label {label!r}{hint}")
    return label


def _distinct(rows: list[Row], dropped: Counter) -> list[Row]:
    """Rows whose text is there once; which of several equal rows stays doesn't depend on their order."""
    labels = defaultdict(set)
    for row in rows:
        labels[content(row)].add(row["label"])
    kept: dict[tuple, Row] = {}
    for row in sorted(rows, key=lambda row: row["group"] or ""):
        if len(labels[content(row)]) > 1:
            dropped["text with two labels"] += 1
        elif kept.setdefault(content(row), row) is not row:
            dropped["duplicate"] += 1
    return list(kept.values())


def _of_seeds(rows: list[Row]) -> list[Row]:
    """Each row of given splits once, with the seeds that have it in this split."""
    kept: dict[tuple, Row] = {}
    for row in rows:
        kept.setdefault((content(row), row["label"]), {**row, "seeds": []})["seeds"].append(row["seed"])
    return [{**row, "seeds": sorted(row["seeds"])} for row in kept.values()]


def _hold_out(
    spec: TaskSpec, splits: dict[str, list[Row]], dropped: dict[str, Counter], advice: str
) -> dict[str, list[Row]]:
    """Move a share of the training rows into test: whole groups, else texts, by their content alone.

    The choice doesn't involve the task's name, so tasks made from the same texts hold out the same ones.
    """
    test, rest = [], []
    for row in splits["train"]:
        unit = (row["group"],) if row["group"] else letters(row)  # stays on one side
        (test if rank(("holdout",), unit) < spec.holdout * 2**BITS else rest).append(row)
    tested = {text_key(row) for row in test}
    train = [row for row in rest if text_key(row) not in tested]
    if len(rest) > len(train):
        dropped["train"]["text is in test"] += len(rest) - len(train)
    if not train or not test:
        lost = f" (dropped before: {describe_dropped(dropped['train'])})" if dropped["train"] else ""
        raise DataError(
            f"task {spec.name}: holding out {spec.holdout:.0%} of {len(splits['train'])} rows leaves {len(train)} for train "
            f"and {len(test)} for test{lost}; {advice.format(f'task.{spec.name}.holdout')}"
        )
    return {**splits, "train": train, "test": test}


def _require_rows(spec: TaskSpec, splits: dict[str, list[Row]], dropped: dict[str, Counter]) -> None:
    for split in (split for split, rows in splits.items() if not rows):
        reasons = describe_dropped(dropped.get(split, Counter())) or "none"
        labels = ", ".join([*spec.labels, *(spec.relabel or ())])
        raise DataError(
            f"task {spec.name}: no rows are left in {split}; dropped: {reasons}; labels that are used: {labels}"
        )


def _card(
    spec: TaskSpec, origin: dict[str, Any], rows: list[Row], texts: Texts, dropped: dict[str, Counter], held_out: bool
) -> dict[str, Any]:
    counts = Counter((row["split"], row["label"]) for row in rows)
    there = [split for split in SPLITS if split in {row["split"] for row in rows}]
    return {
        "task": spec.model_dump(),
        "origin": origin,
        "held_out": held_out,
        "counts": {split: {label: counts[split, label] for label in spec.labels} for split in there},
        "dropped": {split: dict(sorted(reasons.items())) for split, reasons in dropped.items()},
        "test_texts_in_train": sum(key in texts.trained for key in texts.tested),
    }
