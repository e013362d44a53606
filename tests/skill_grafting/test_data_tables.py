"""Tables: tidied, without duplicates, held out by content, and honest about what sets share."""

import random
from types import SimpleNamespace

import pytest

from skill_grafting.data.rows import text_key
from skill_grafting.data.tables import build_table, leakage, ood_rows, texts_of
from skill_grafting.data.tasks import TaskSpec, resolve_tasks
from skill_grafting.errors import DataError
from skill_grafting.io import read_json, read_rows, write_rows
from stages import fetch

SPEC = TaskSpec(name="mine", title="Mine", kind="test", labels=["negative", "positive"])


def row(text, label="positive", **more):
    return {"sentence1": text, "label": label, **more}


def many(count, prefix="text", **more):
    return [row(f"{prefix} {number}", ["negative", "positive"][number % 2], **more) for number in range(count)]


def build(raw, spec=SPEC):
    return build_table(spec, raw, {"source": "local"})


def side(table, split):
    return {item["sentence1"] for item in table.rows if item["split"] == split}


def test_white_space_duplicates_and_contradictions():
    raw = [row(" a \n b "), row("a b"), row("c", "negative"), row("c"), row("  "), row("d", None), row("A b")]
    table = build({"train": raw, "test": [row("e")]})
    assert side(table, "train") == {"a b", "A b"}
    assert table.card["dropped"]["train"] == {"duplicate": 1, "empty text": 1, "no label": 1, "text with two labels": 2}
    assert table.card["counts"] == {"train": {"negative": 0, "positive": 2}, "test": {"negative": 0, "positive": 1}}


def test_relabel_renames_and_drops():
    spec = SPEC.model_copy(update={"relabel": {"yes": "positive", "no": "negative"}})
    train = [row("a", "yes"), row("b", "no"), row("c", "maybe"), row("e", "positive"), row("f", "negative")]
    table = build({"train": train, "test": [row("d", "no")]}, spec)
    labels = {item["sentence1"]: item["label"] for item in table.rows}
    assert labels == {"a": "positive", "b": "negative", "e": "positive", "f": "negative", "d": "negative"}
    assert table.card["dropped"]["train"] == {"with the label 'maybe'": 1}
    dropped = "1 dropped (with the label 'maybe': 1); labels that are used: negative, positive, yes, no"
    assert fetch.summary_line(table.card) == f"mine: 4 train, 1 test rows, {dropped}"


@pytest.mark.parametrize(("raw", "message"), [
    ({"train": [row("a", "positve")]}, r"task mine: its source has the label 'positve' \(did you mean 'positive'\?\); allowed: negative, positive"),
    ({"train": many(4), "test": [row("")]}, "task mine: no rows are left in test; dropped: empty text: 1; labels that are used: negative, positive"),
    ({"train": many(1)}, "holding out 20% of 1 rows leaves .* give the data a test split, or set task.mine.holdout"),
])  # fmt: skip
def test_what_is_no_table_is_refused(raw, message):
    with pytest.raises(DataError, match=message):
        build(raw)


def test_pair_without_second_sentence_is_dropped():
    table = build({"train": [row("a", sentence2="x"), row("b", sentence2="")], "test": [row("c", sentence2="y")]})
    assert side(table, "train") == {"a"} and table.card["dropped"]["train"] == {"empty text": 1}


def test_order_of_rows_does_not_change_a_byte():
    raw = many(300)
    raw += [{**item, "group": "g"} for item in raw[:5]]  # duplicates, once in a group and once not
    for attempt in range(3):
        assert build({"train": random.Random(attempt).sample(raw, len(raw))}) == build({"train": raw})


def test_hold_out_is_a_share_by_content():
    table = build({"train": many(2000)})
    assert table.card["held_out"] and 320 < len(side(table, "test")) < 480
    more = build({"train": many(2000) + many(50, "new")})
    assert side(table, "test") == {text for text in side(more, "test") if not text.startswith("new")}
    renamed = build({"train": many(2000)}, SPEC.model_copy(update={"name": "other"}))
    assert side(renamed, "test") == side(table, "test")


def test_official_test_split_is_kept_and_what_it_shares_is_counted():
    table = build({"train": many(20), "test": [row("Text  0."), row("other")]})
    assert not table.card["held_out"] and len(side(table, "test")) == 2 and table.card["test_texts_in_train"] == 1


def test_held_out_test_shares_nothing_with_train():
    changed = [{"sentence1": item["sentence1"].upper() + " !", "group": str(n)} for n, item in enumerate(many(500))]
    table = build({"train": many(500) + [item | change for item, change in zip(many(500), changed, strict=True)]})
    assert table.card["test_texts_in_train"] == 0
    assert table.card["dropped"]["train"]["text is in test"] > 0  # the groups did part texts that are the same


def test_groups_stay_on_one_side():
    raw = [{**item, "group": f"review {number // 10}"} for number, item in enumerate(many(1000))]
    group_of = {item["sentence1"]: item["group"] for item in raw}
    groups = lambda table: [{group_of[text] for text in side(table, split)} for split in ("train", "test")]  # noqa: E731
    grouped = groups(build({"train": raw}))
    assert grouped[0].isdisjoint(grouped[1]) and all(grouped)
    control = groups(build({"train": many(1000)}))
    assert not control[0].isdisjoint(control[1])


def test_same_text_overlooks_case_spacing_and_punctuation():
    keys = {text_key(row(text)) for text in ("It 's fine .", "it's fine", "IT'S  FINE")}
    assert len(keys) == 1
    assert len({text_key(row(text)) for text in ("it is fine", "it's fine", ":)", ":(")}) == 4
    assert text_key(row("`` good ''")) == text_key(row('"good"'))
    others = ("कल गया", "कल गयी", "C++", "C#", "a > b", "a < b", "e\u0301", "e", "\N{GRINNING FACE}", "\N{CRYING FACE}")
    assert len({text_key(row(text)) for text in others}) == len(others), "marks and symbols tell texts apart"
    assert text_key(row("Straße")) == text_key(row("STRASSE"))
    assert text_key(row("ab", sentence2="c")) != text_key(row("a", sentence2="bc"))


def test_leakage_counts_each_ordered_pair():
    first = build({"train": many(10), "test": [row("x"), row("y")]})
    second = build({"train": [row("X !"), row("z")], "test": [row("text 1"), row("TEXT 2"), row("new")]})
    shared = leakage({"first": texts_of(first.rows), "second": texts_of(second.rows)})
    assert shared == {"first": {"second": {"leaked": 2, "test": 3}}, "second": {"first": {"leaked": 1, "test": 2}}}


@pytest.mark.parametrize(("leaks", "most", "expected"), [("drop", 0, 30), ("keep", 0, 40), ("drop", 5, 5)])
def test_ood_rows(leaks, most, expected):
    other = build({"train": many(4, "o"), "test": many(40)})
    trained = texts_of(build({"train": many(10), "test": [row("x")]}).rows).trained
    rows = ood_rows(other.rows, trained, leaks, most)
    assert len(rows) == expected and {*rows[0]} == {"sentence1", "sentence2", "label"}
    assert rows == ood_rows(other.rows[::-1], trained, leaks, most)


def test_whole_folder(tmp_path):
    for name, rows in (("first", many(60)), ("second", many(30, "Text"))):
        (tmp_path / name).mkdir()
        train = "\n".join(["sentence1\tlabel", *(f"{item['sentence1']}\t{item['label']}" for item in rows)])
        for split, text in (("train", train), ("test", train.replace("5", "55"))):
            (tmp_path / name / f"{split}.tsv").write_text(text, encoding="utf-8")
    data = SimpleNamespace(source="local", root=str(tmp_path), columns={})
    ood = SimpleNamespace(sets={"first": ["second"], "absent": ["third"]}, test_max=0, leaks="drop")
    names = fetch.needed_sets(["first"], ood.sets)
    assert names == ["first", "second"]
    specs, out = {name: SPEC.model_copy(update={"name": name}) for name in names}, tmp_path / "out"
    written = {name: fetch.write_table(spec, data, None, out, {}) for name, spec in specs.items()}
    shared = fetch.write_ood(["first"], {name: texts for name, (texts, _) in written.items()}, ood, out)
    counts = shared["first"]["second"]
    assert counts["used"] == counts["test"] - counts["leaked"] and counts["leaked"] > 0
    assert read_json(out / "leakage.json") == shared
    assert len(read_rows(out / "first/ood/second.jsonl")) == counts["used"]
    assert read_json(out / "first/card.json") == written["first"][1]
    files = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    sets = {f"{name}/{file}" for name in names for file in ("card.json", "table.jsonl")}
    assert {*files} == sets | {"leakage.json", "first/ood/second.jsonl"}
    assert fetch.summary_line(written["second"][1]) == "second: 30 train, 30 test rows, 27 test texts also in train"
    line = f"first -> second: {counts['used']} of 30 test rows; {counts['leaked']} in first's training data, left out"
    assert [*fetch.ood_lines(["first"], ood, shared)] == [line]


def test_a_task_made_of_others_has_their_rows_and_trains_on_no_test_text_of_any(tmp_path):
    sides = {
        "first": {"train": [row("one"), row("two", "negative"), row("shared")], "test": [row("three")]},
        "second": {"train": [row("three"), row("four", "negative")], "test": [row("shared"), row("five", "negative")]},
    }
    specs = {name: SPEC.model_copy(update={"name": name}) for name in sides}
    for name, splits in sides.items():
        for split, rows in splits.items():
            write_rows(tmp_path / name / f"{split}.jsonl", [{"sentence2": None, **item} for item in rows])
    both = SPEC.model_copy(update={"name": "both", "parts": [*sides]})
    data = SimpleNamespace(source="local", root=str(tmp_path), columns={})
    _, card = fetch.write_table(both, data, None, tmp_path / "out", {**specs, "both": both})
    rows = read_rows(tmp_path / "out/both/table.jsonl")
    assert {item["sentence1"] for item in rows if item["split"] == "train"} == {"one", "two", "four"}
    assert {item["sentence1"] for item in rows if item["split"] == "test"} == {"three", "shared", "five"}
    assert card["test_texts_in_train"] == 0 and [*card["origin"]["parts"]] == [*sides]
    assert card["origin"]["parts"]["first"]["counts"]["train"] == {"negative": 1, "positive": 2}


@pytest.mark.parametrize(("parts", "problem"), [
    (["mr", "nix"], "task.mine.parts: unknown task 'nix'"),
    (["mr", "sst"], "task.mine.parts: unknown task 'sst' (did you mean 'sst2'?)"),
    (["mr", "subj"], "task.mine.parts: subj has the labels objective, subjective, mine has negative, positive"),
    (["mr", "sentiment"], "task.mine.parts: sentiment has parts itself; name those"),
])  # fmt: skip
def test_parts_that_do_not_fit_are_named(parts, problem):
    _, problems = resolve_tasks({"mine": {"labels": ["negative", "positive"], "parts": parts}})
    assert problems == [problem]
    assert resolve_tasks({"mine": {"labels": ["negative", "positive"], "parts": ["mr", "cr"]}})[1] == []
