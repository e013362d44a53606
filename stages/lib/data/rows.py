"""One row of a data set: what it holds, when two are the same text, and where it stands in an order by content."""

import re

from stages.lib.data.ranking import fingerprint, rank

NOT_LETTERS = re.compile(r"[\W_]+")

Row = dict[str, str | None]


def content(row: Row) -> tuple[str | None, str | None]:
    """The text of a row, both sentences."""
    return row["sentence1"], row.get("sentence2")


def letters(row: Row) -> tuple[str | None, ...]:
    """The letters and digits of a row's text, in lower case."""
    # Data sets made from the same sentences space and quote them differently ("it 's", "it's"): with case and
    # white space alone evened out, half of what MR's test shares with SST-2's training data would go unseen.
    return tuple(text and (NOT_LETTERS.sub("", text.lower()) or text) for text in content(row))


def text_key(row: Row) -> bytes:
    """Fingerprint of a row's letters and digits, by which texts are called the same across splits and sets."""
    return fingerprint(letters(row))


def place(row: Row) -> int:
    """Where a row stands in a table: a number that depends on its content alone."""
    return rank(("table",), (*content(row), row["label"]))


def capped(rows: list[Row], most: int) -> list[Row]:
    """At most `most` rows (0 for all): always the same ones, in the order of a table."""
    return sorted(rows, key=place)[: most or None]


def bare(row: Row) -> Row:
    """A row as samples hold it: sentence1, sentence2, label."""
    return {name: row.get(name) for name in ("sentence1", "sentence2", "label")}
