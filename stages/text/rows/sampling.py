"""The k-shot protocol of LM-BFF (Gao et al. 2021): k rows per class to train on, k more as dev.

Both come from the train split, whatever other splits there are.  Each class is put in an order that depends on its
rows, the task and the seed alone; train is taken from the front and dev from the back.  So a sample doesn't change with
the order of rows, with other classes, seeds or tasks, and the sample of a smaller k is part of that of a larger one.

Nothing is drawn from splits that are given for each seed, nor without a k: then train and dev are all the rows that these splits have.
"""

from collections import Counter, defaultdict

from skill_grafting.support.errors import DataError
from stages.text.rows.content import Row, bare, capped, content, rank, text_key
from stages.text.tasks.settings import DataParams


def draw_sample(rows: list[Row], labels: list[str], task: str, seed: int, data: DataParams) -> dict[str, list[Row]]:
    """Give the rows of train, dev and test.  Those that are drawn share no text, and test is the same for every seed.

    `rows` is a table, `labels` are the task's, `data` has the settings k, scarce, dev_share and test_max.  Training rows whose
    text is also in the test split are never drawn.  Raises DataError of all classes that have too few rows.
    """
    given = sorted({one for row in rows for one in row.get("seeds", ())})
    if given and seed not in given:
        raise DataError(
            f"task {task}: no splits are given for seed {seed}; there are those of {', '.join(map(str, given))}"
        )
    rows = [row for row in rows for _ in range(row["seeds"].count(seed))] if given else rows
    tests = [row for row in rows if row["split"] == "test"]
    if not tests:
        raise DataError(f"task {task}: its data has no test split")
    whole = given or data.k is None
    sample = _whole(rows, labels, task, data.k) if whole else _drawn(rows, labels, task, seed, data)
    chosen = {split: sorted(part, key=lambda row: _place(row, task, seed)) for split, part in sample.items()}
    chosen["test"] = capped(tests, data.test_max)
    return {split: [*map(bare, part)] for split, part in chosen.items()}


def _whole(rows: list[Row], labels: list[str], task: str, k: int | None) -> dict[str, list[Row]]:
    """All rows of train and dev; raises DataError if one has none, or not k of each class where there is a k."""
    sample = {split: [row for row in rows if row["split"] == split] for split in ("train", "dev")}
    if not sample["dev"]:
        raise DataError(
            f"task {task}: there is no dev split, which data.k=null takes whole; add one, or set data.k to a number"
        )
    for split, part in sample.items():
        counts = Counter(row["label"] for row in part)
        for label in (label for label in labels if k not in (None, counts[label])):
            needs = f"but data.k={k}; splits of a seed are taken as they are, so set data.k to null"
            raise DataError(f"task {task}: its {split} split has {counts[label]} rows of class {label!r}, {needs}")
    return sample


def _drawn(rows: list[Row], labels: list[str], task: str, seed: int, data: DataParams) -> dict[str, list[Row]]:
    pool = _pool(rows, {text_key(row) for row in rows if row["split"] == "test"})
    sample: dict[str, list[Row]] = {"train": [], "dev": []}
    problems = []
    for label in labels:
        ranked = sorted((row for row in pool if row["label"] == label), key=lambda row: _place(row, task, seed))
        try:
            train, dev = split_sizes(len(ranked), task, label, data)
        except DataError as problem:
            problems.append(str(problem))
            continue
        sample["train"] += ranked[:train]
        sample["dev"] += ranked[len(ranked) - dev :]
    if problems:
        passed = sum(row["split"] == "train" for row in rows) - len(pool)
        over = f"task {task}: {passed} more have a text that is also in test, in another such row, or under two labels"
        raise DataError("\n".join(problems + [over] * (passed > 0)))
    return sample


def spread(rows: list[Row], most: int) -> list[Row]:
    """At most so many rows, 0 for all: of each label its share, evenly among its rows, in their order."""
    if not 0 < most < len(rows):
        return rows
    by_label = sorted(range(len(rows)), key=lambda number: rows[number]["label"])
    chosen = sorted(by_label[(2 * number + 1) * len(rows) // (2 * most)] for number in range(most))
    return [rows[number] for number in chosen]


def _pool(rows: list[Row], tested: set[bytes]) -> list[Row]:
    """The training rows to draw from, one of each text, case and spacing aside; none whose text is in test or has two labels."""
    chosen: dict[bytes, Row] = {}
    labels: dict[bytes, set[str | None]] = defaultdict(set)
    trained = (row for row in rows if row["split"] == "train")
    # of several the first in the alphabet, so that the choice doesn't depend on the order of rows
    for row in sorted(trained, key=lambda row: [text or "" for text in content(row)]):
        if (key := text_key(row)) not in tested:
            chosen.setdefault(key, row)
            labels[key].add(row["label"])
    return [row for key, row in chosen.items() if len(labels[key]) == 1]


def split_sizes(available: int, task: str, label: str, data: DataParams) -> tuple[int, int]:
    """Numbers of train and dev rows among the `available` ones of a class; raise DataError if they are too few."""
    if available >= 2 * data.k:
        return data.k, data.k
    few = f"task {task}: class {label!r} has {available} training rows"
    all_of_k = f"data.k={data.k} needs {2 * data.k} ({data.k} for train, {data.k} for dev)"
    needs = all_of_k if data.scarce == "error" else "train and dev need one each"
    if available < 2:
        raise DataError(f"{few}, but {needs}; it takes more rows, or a task without this class")
    if data.scarce == "error":
        raise DataError(f"{few}, but {needs}; lower data.k to {available // 2} or set data.scarce=split")
    dev = min(data.k, available - 1, max(1, round(data.dev_share * available)))
    return min(data.k, available - dev), dev


def _place(row: Row, task: str, seed: int) -> int:
    return rank(("sample", task, seed), content(row))
