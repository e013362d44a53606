"""inspect and diff in words, for a terminal."""

from collections.abc import Sequence
from typing import Any

from stages.lib.report.format import counted, percent, small_percent

# as many signs as tell a fingerprint from others
SHORT = 12


def inspection_text(facts: dict[str, Any]) -> str:
    """What `inspect_mask` found, as lines for a terminal."""
    tensors = facts["tensors"]
    return "\n".join([
        identity_text(facts),
        f"  in {tensors['selected_in']} of {counted(tensors['graftable'], 'graftable tensor')}{_head(facts['head'])}",
        "",
        most_text(facts),
        "",
        _places(facts["layers"], "layer"),
        "",
        _places(facts["kinds"], "kind"),
        "",
        _largest(facts["largest"]),
    ])  # fmt: skip


def comparison_text(facts: dict[str, Any]) -> str:
    """What `compare` found, as lines for a terminal."""
    same = "of the same base model" if facts["same_model"] else "NOT of the same base model"
    lines = [
        "A  " + identity_text(facts["first"], "   "),
        "B  " + identity_text(facts["second"], "   "),
        "",
        f"They are {same}.",
    ]
    if facts["overlap"] is None:
        return "\n".join([*lines, "Their regions are not the same parameters, so there is nothing to compare."])
    found, values = facts["overlap"], facts["values"]
    lines += [
        f"Both select {counted(found['both'], 'parameter')}: {percent(found['of_first'])} % of A (chance {small_percent(found['chance_of_first'])}), "
        f"{percent(found['of_second'])} % of B (chance {small_percent(found['chance_of_second'])}).",
        f"Intersection over union: {percent(found['iou'])} % (chance {small_percent(found['chance_iou'])}).",
        _values(values),
        "",
        _overlaps(facts["layers"]),
    ]
    return "\n".join(lines)


def identity_text(facts: dict[str, Any], indent: str = "") -> str:
    """Two lines: whose mask this is, and its size with both denominators."""
    made = {"seed": facts["seed"], "localizer": facts["localizer"]}
    details = "".join(f", {name} {value}" for name, value in made.items() if value is not None)
    share = facts["share_of_model"]
    of_model = f", {small_percent(share)} of the model's {facts['model_parameters']:,}" if share is not None else ""
    return (
        f"{facts['file']}: {facts['form']} for {', '.join(facts['tasks'])} on {facts['model']} "
        f"(fingerprint {str(facts['fingerprint'])[:SHORT]}){details}\n"
        f"{indent}  {facts['selected']:,} of {facts['graftable']:,} graftable parameters ({small_percent(facts['sparsity'])}){of_model}"
    )


def place_name(row: dict[str, Any]) -> str:
    """A layer by its number from 1, or a kind of module."""
    if "kind" in row:
        return row["kind"]
    return "outside the layers" if row["layer"] is None else f"layer {row['layer'] + 1}"


def most_text(facts: dict[str, Any]) -> str:
    """A sentence: where most of a mask lies, and where it is furthest above chance."""
    if not facts["selected"]:
        return "It selects nothing."
    densest = [max(facts[name], key=lambda row: row["share"] / row["chance"]) for name in ("layers", "kinds")]
    fullest = [max(facts[name], key=lambda row: row["share"]) for name in ("layers", "kinds")]
    most = " and ".join(f"{place_name(row)} ({percent(row['share'])} %)" for row in fullest)
    above = " and ".join(f"{place_name(row)} ({_times(row)} times)" for row in densest)
    return f"Most of it lies in {most}; furthest above chance are {above}."


def _head(head: dict[str, list[int]]) -> str:
    return f", with a trained head ({', '.join(head)})" if head else ", without a head of its own"


def _times(row: dict[str, Any]) -> str:
    return (
        f"{row['share'] / row['chance']:.2g}"
        if row["share"] < 10 * row["chance"]
        else f"{row['share'] / row['chance']:.0f}"
    )


def _places(rows: list[dict[str, Any]], by: str) -> str:
    table = [[by, "selected", "share", "chance", "times chance"]]
    for row in rows:
        shares = [f"{percent(row[name])} %" for name in ("share", "chance")]
        table.append([place_name(row), f"{row['selected']:,}", *shares, _times(row)])
    return _aligned(table)


def _overlaps(rows: list[dict[str, Any]]) -> str:
    table = [["layer", "A", "B", "both", "IoU", "chance"]]
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("first", "second", "both")]
        table.append([place_name(row), *counts, f"{percent(row['iou'])} %", small_percent(row["chance_iou"])])
    return _aligned(table)


def _values(values: dict[str, Any]) -> str:
    if not values["differ"]:
        return "Their values there are the same." if values["shared"] else "So there are no values to compare."
    return (
        f"Of these, {values['differ']:,} have other values in A than in B: the median difference is "
        f"{values['median_difference']:.2g}, the largest {values['largest_difference']:.2g}."
    )


def _largest(movements: list[dict[str, Any]] | None) -> str:
    if movements is None:
        return "Largest movements: not known without the base model; say --base FOLDER."
    lines = [
        f"  {row['name']}[{', '.join(map(str, row['place']))}]: {row['before']:.5f} -> {row['after']:.5f} ({row['after'] - row['before']:+.5f})"
        for row in movements
    ]
    return "\n".join(["Largest movements, pretrained -> fine-tuned:", *lines])


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
    return "\n".join(f"  {row}" for row in rows)
