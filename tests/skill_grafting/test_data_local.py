"""Files of the user's: every form is read alike, and every mistake is named with file and line."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from skill_grafting.data.local import load_local
from skill_grafting.data.tasks import Prompt, TaskSpec
from skill_grafting.errors import DataError, ModelError
from skill_grafting.models.folders import find_checkpoint
from stages import fetch
from stages.workflow.core import paths
from tests.settings_files import lay_out_settings

SINGLE = TaskSpec(name="mine", title="Mine", kind="test", labels=["negative", "positive"])
PROMPT = Prompt(template="{sentence1} {mask} {sentence2}", verbalizer={"negative": "No", "positive": "Yes"})
PAIR = SINGLE.model_copy(update={"prompt": PROMPT})
ROWS = [
    {"sentence1": 'a "good" one, é', "sentence2": None, "label": "positive"},
    {"sentence1": "a bad one", "sentence2": None, "label": "negative"},
]


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


def test_an_experiment_in_a_folder_of_its_own_names_the_option_for_what_git_does_not_have(tmp_path, monkeypatch):
    for place, told in ((tmp_path, False), (tmp_path / ".dvc/tmp/exps/temp/x", True)):
        (place / "data/local/other").mkdir(parents=True)
        monkeypatch.chdir(place)
        for root, missing in (("data/local", "data/local/mine"), ("absent", "absent")):
            with pytest.raises(DataError) as error:
                load_local(SINGLE, Path(root))
            assert str(error.value).endswith(f"takes along what git doesn't have by `-C {missing}`") == told
        with pytest.raises(
            ModelError, match=r"no such folder.* by `-C models/local/x`$" if told else "no such folder$"
        ):
            find_checkpoint("./models/local/x")


TEXTS = [
    'a "good" one',
    "tab\there",
    "line\nbreak",
    "NA",
    "null",
    "007",
    "1.0",
    "#no",
    '"',
    " and a \u2028 ",
    "last",
    "x",
]


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("form", [{}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}])
@pytest.mark.parametrize("texts", [TEXTS, ["line\nbreak", "x", "last"], ["plain", "x", "last"]])
def test_what_a_writer_of_tables_wrote_is_read_as_it_was(folder, delimiter, encoding, form, texts):
    with (folder / f"train.{'csv' if delimiter == ',' else 'tsv'}").open("w", encoding=encoding, newline="") as file:
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
    ({"relabel": {"pos": "positive"}}, ["neutral"], ["neutral"]),  # tables.py leaves it out
])  # fmt: skip
def test_labels_are_taken_as_the_file_spells_them(folder, change, given, labels):
    (folder / "train.jsonl").write_bytes(as_jsonl([{"sentence1": "a", "label": label} for label in given]))
    assert [row["label"] for row in read(folder, SINGLE.model_copy(update=change))[0]["train"]] == labels


LABELS = "the labels of the task mine: negative, positive"
UGLY = [
    ("train.jsonl", b'{"sentence1": "a", "label": "positive"}\n\n{"sentence1": "a", "label": ""}', "3: the label is empty"),
    ("train.jsonl", b'{"sentence1": "a", "label": null}', "1: the label is empty"),
    ("train.jsonl", b'{"sentence1": "a", "label": "POSITIV"}', "1: the label 'POSITIV' is none of the task's (did you mean 'positive'?)"),
    ("train.jsonl", b'{"sentence1": 3, "label": "positive"}', "1: 'sentence1' should be text, not 3"),
    ("train.jsonl", b'{"sentence1": "a", "label": "positive"}\n{"sentence1"', "2: not valid JSON: Expecting ':' delimiter (column 13)"),
    ("train.jsonl", b'{"sentence1": 0, "label": "positive"}', "1: 'sentence1' should be text, not 0"),
    ("train.jsonl", b'{"sentence1": "a", "sentence2": false, "label": "positive"}', "1: 'sentence2' should be text, not false"),
    ("train.jsonl", b'{"sentence1": "a\\ud800", "label": "positive"}', "1: 'sentence1' has half of a character in it (\\ud800), which no text file can hold"),
    ("train.jsonl", b'{"sentence1": "a", "label": "x", "label": "positive"}', "1: not valid JSON: 'label' stands twice"),
    ("train.jsonl", b'{"sentence1": "a", "label": %s}' % (b"9" * 5000), "1: not valid JSON: a number of too many digits"),
    ("train.jsonl", b'{"sentence1": "a", "label": %s}' % (b"[" * 100_000), "1: not valid JSON: nested too deeply"),
    ("train.jsonl", b'["a"]', "1: should be an object of named values, not a list"),
    ("train.jsonl", b'{"sentence1": "a", "label": "positive"}\n{"sentence1": "a"}', "2: no 'label'"),
    ("train.jsonl", b'{"sentence1": "a", "label": ["positive"]}', "1: 'label' should be text, not ['positive']"),
    ("train.tsv", b'sentence1\tlabel\n"a\nb\tpositive\n', "2: 1 cells, but the header has 2; a text with tabs or line breaks wants quotes"),
    ("train.csv", b"sentence1,label\na,positive\nb, c,negative\n", "3: 3 cells, but the header has 2; a text with commas wants quotes"),
    ("train.csv", b"sentence1,label\na,\n", "2: the label is empty"),
    ("train.csv", b'sentence1,label\n"he said \\"a\\" ok",positive\n', "2: not a valid table from here on: ',' expected after '\"'"),
    ("train.csv", b'sentence1,label\nb,positive\n"a,positive\nc,positive\n', "3: not a valid table from here on: a quotation mark that is never closed"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), UGLY)
def test_a_bad_row_is_shown_with_its_line_and_the_labels(folder, name, content, message):
    (folder / name).write_bytes(content)
    assert fails(folder) == f"HERE/{name}: a row can't be used\n  HERE/{name}:{message}\n  {LABELS}"


def test_all_bad_rows_are_counted_and_the_first_five_shown(folder):
    (folder / "train.csv").write_text("sentence1,label\n" + "x,Good\ny,positive\n" * 25, encoding="utf-8")
    head, *lines, more, labels = fails(folder).split("\n  ")
    assert (head, more, labels) == ("HERE/train.csv: 25 rows can't be used", "and 20 more", LABELS)
    assert lines == [f"HERE/train.csv:{2 * row}: the label 'Good' is none of the task's" for row in range(1, 6)]


@pytest.mark.parametrize(("name", "content", "message"), [
    ("train.jsonl", b"", ": no rows in it"),
    ("train.csv", b"sentence1,label\n", ": no rows in it"),
    ("train.csv", b"", ": no rows in it"),
    ("train.jsonl", b'{"sentence1": "a", "lable": "x"}', ": no column 'label' (did you mean 'lable'?); the columns are sentence1, lable; name it by data.columns.label"),
    ("train.csv", b"sentence,label\na,positive\n", ": no column 'sentence1' (did you mean 'sentence'?); the columns are sentence, label; name it by data.columns.sentence1"),
    ("train.csv", b"text;label\na;positive\n", ": no column 'sentence1' and no column 'label' (did you mean 'text;label'?); the columns are text;label; name them by data.columns.sentence1 and data.columns.label; cells of a .csv are separated by commas, those of a .tsv by tabs"),
    ("train.csv", b"sentence1,label,label\na,positive,negative\n", ":1: two columns are called 'label'; the columns are sentence1, label, label"),
    ("train.csv", b"sentence1,sentence2,sentence2,label\na,b,c,positive\n", ":1: two columns are called 'sentence2'; the columns are sentence1, sentence2, sentence2, label"),
    ("train.tsv", "sentence1\tlabel\nfine\tpositive\ncaf\xe9\tpositive\n".encode("latin-1"), ", line 3: not UTF-8 text (byte 4 of the line is 0xe9); save the file as UTF-8"),
    ("train.jsonl.gz", gzip.compress(b'{"sentence1": "caf\xe9"}', mtime=0), ", line 1: not UTF-8 text (byte 19 of the line is 0xe9); save the file as UTF-8"),
    ("train.jsonl.gz", b"no gzip", ": can't be read: Not a gzipped file (b'no')"),
    ("train.jsonl.gz", gzip.compress(as_jsonl(ROWS), mtime=0)[:-9], ": can't be read: Compressed file ended before the end-of-stream marker was reached"),
])  # fmt: skip
def test_a_file_that_is_not_rows_is_refused(folder, name, content, message):
    (folder / name).write_bytes(content)
    assert fails(folder) == f"HERE/{name}{message}"


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


def test_training_rows_have_to_be_there(folder):
    (folder / "test.jsonl").write_bytes(as_jsonl(ROWS))
    assert fails(folder) == "HERE: no train.jsonl (or .jsonl.gz, .csv, .tsv) here; there is test.jsonl"


def test_a_second_sentence_is_required_where_the_task_needs_it(folder):
    (folder / "train.jsonl").write_bytes(as_jsonl(ROWS))
    assert "HERE/train.jsonl:1: the sentence2 is empty, which the task mine needs" in fails(folder, PAIR)
    (folder / "train.jsonl").write_bytes(as_jsonl([{"sentence1": "a", "label": "positive"}]))
    assert fails(folder, PAIR).startswith("HERE/train.jsonl: no column 'sentence2'")


def test_a_file_of_a_split_that_would_not_be_read_is_refused(folder):
    (folder / "train.jsonl").write_bytes(as_jsonl(ROWS))
    for name in ("notes.csv", "train.csv.bak"):
        (folder / name).write_text("of something else")
    assert {*read(folder)[0]} == {"train"}, "control: none of a split that is missing"
    for name in ("Test.csv", "test.csv.gz", "validation.csv"):
        (folder / name).write_text("sentence1,label")
    assert fails(folder) == (
        "HERE: Test.csv would not be read as test, test.csv.gz would not be read as test, validation.csv would not be read as dev; "
        "a file is called train or dev or test with .jsonl (or .jsonl.gz, .csv, .tsv), in small letters"
    )
    (folder / "dev.jsonl").write_bytes(as_jsonl(ROWS))
    for name in ("Test.csv", "test.csv.gz"):
        (folder / name).unlink()
    assert {*read(folder)[0]} == {"train", "dev"}, "control: there is a dev split, so nothing is missed"


def test_two_files_for_one_split(folder):
    (folder / "train.jsonl").write_bytes(as_jsonl(ROWS))
    (folder / "train.csv").write_text("sentence1,label\na,positive\n", encoding="utf-8")
    assert fails(folder) == "HERE: train.jsonl and train.csv both hold the split train; keep one"


def test_missing_folder_names_the_nearest(folder):
    folder.rename(folder.with_name("mines"))
    assert fails(folder) == "task mine: there is no folder HERE (did you mean 'mines'?); ROOT has mines"


def test_missing_root():
    message = "data.root: there is no folder nowhere; data.source=local reads nowhere/TASK/train.jsonl"
    with pytest.raises(DataError, match=message):
        load_local(SINGLE, Path("nowhere"))


def test_all_data_sets_that_can_not_be_read_are_named_at_once(project, capsys):
    task = {name: SINGLE.model_dump(include={"labels"}) for name in ("mine", "other", "away")}
    task = {name: values | {"prompt": PROMPT.model_dump()} for name, values in task.items()}
    settings = {
        "tasks": ["mine", "other"],
        "task": task,
        "data": {"source": "local"},
        "ood": {"sets": {"other": ["away"]}},
    }
    lay_out_settings(settings)
    (project / "data/local/mine").mkdir(parents=True)
    (project / "data/local/mine/train.csv").write_text("sentence1,label\nfine,good\n", encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        fetch.main([])
    said = capsys.readouterr().err
    assert end.value.code == 2 and "mine/train.csv: no column 'sentence2'" in said, said
    assert "task other: there is no folder data/local/other; data/local has mine\n" in said
    assert said.endswith(
        "task away: there is no folder data/local/away; data/local has mine (ood.sets.other asks for it)\n"
    )
    assert not paths.TABLES.exists()
