"""The hub: asked for once, from the cache if there is one, and clear about what a data set lacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skill_grafting.data.hub import load_hub
from skill_grafting.data.tasks import HubSource, TaskSpec
from skill_grafting.errors import DataError
from skill_grafting.io import read_json

UNREACHABLE = "http://127.0.0.1:9"
# says on the other stream how often it has knocked
LOAD = """
import json, sys
knocks = []
sys.addaudithook(lambda event, words: knocks.append(words[1][1]) if event == "socket.connect" else None)
from skill_grafting.data.hub import load_hub
from skill_grafting.data.tasks import resolve_tasks
from skill_grafting.errors import DataError
try:
    print(json.dumps(load_hub(resolve_tasks({})[0]["sst2"])))
except DataError as error:
    print(error)
print("knocks", knocks.count(9), file=sys.stderr)
"""


def load_sst2(cache: Path) -> tuple[str, int]:
    """The task sst2 as a new process makes it, which has no network, and how often it has asked for the hub."""
    kept = [name for name in os.environ if not name.startswith("HF_") and "proxy" not in name.lower()]
    environment = {name: os.environ[name] for name in kept}
    environment |= {"HF_ENDPOINT": UNREACHABLE, "HF_HOME": str(cache), "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), int(done.stderr.rpartition("knocks ")[2])


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def task_of(folder, record, **hub):
    """The task of a data set in this folder, three records a split, made of the split's name and a number."""
    for split in ("train", "validation"):
        lines = (json.dumps(record(split, number)) for number in range(3))
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    labels = ["negative", "positive"]
    splits = {"train": "train", "test": "validation"}
    source = HubSource(**{"path": str(folder), "splits": splits, "labels": labels, **hub})
    return TaskSpec(name="mine", title="Mine", kind="test", labels=labels, hub=source)


@pytest.fixture
def spec(tmp_path):
    columns = {"sentence1": "sentence", "label": "label"}
    return task_of(tmp_path, lambda split, n: {"sentence": f"{split} {n}", "label": n - 1}, columns=columns)


def test_an_unreachable_hub_is_tried_once_and_reported(tmp_path):
    message, knocks = load_sst2(tmp_path)
    assert knocks == 1, "libraries would knock again and again, and wait longer each time"
    start = f"task sst2: {UNREACHABLE} can't be reached, and nyu-mll/glue is not in the cache of `datasets`"
    assert message.startswith(start)
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


def test_rows_and_missing_labels(spec, offline):
    rows, _ = load_hub(spec)
    assert [row["label"] for row in rows["train"]] == [None, "negative", "positive"]
    assert {split: len(part) for split, part in rows.items()} == {"train": 3, "test": 3}


@pytest.mark.parametrize(("changes", "message"), [
    ({"splits": {"train": "training"}}, "task.mine.hub.splits: .* has no split 'training'; it has train, validation"),
    ({"columns": {"sentence1": "text", "label": "label"}}, "task.mine.hub.columns: .* has no column 'text'; it has sentence, label"),
    ({"labels": ["negative"]}, "task.mine.hub.labels: .* has the label 1, which is not the number of one of negative"),
])  # fmt: skip
def test_what_the_data_set_lacks(spec, offline, changes, message):
    with pytest.raises(DataError, match=message):
        load_hub(spec.model_copy(update={"hub": spec.hub.model_copy(update=changes)}))


def with_items(tmp_path, second="{word} is {item}"):
    """A task of records with several texts and lists, of which the last is without an answer."""

    def record(split, number):
        return {"text": f"{split} {number}", "word": "{word}", "names": ["Ann", "Bob"], "right": ["Bob"] * (number < 2)}

    columns, splits = {"sentence1": "text", "sentence2": second}, {"train": "train[:2]", "test": "validation"}
    return task_of(tmp_path, record, splits=splits, each="names", among="right", columns=columns)


def test_a_row_for_each_item_with_texts_put_together_and_the_start_of_a_split(tmp_path, offline):
    rows, _ = load_hub(with_items(tmp_path))
    assert rows["train"][:3] == [
        {"sentence1": "train 0", "sentence2": "{word} is Ann", "label": "negative"},
        {"sentence1": "train 0", "sentence2": "{word} is Bob", "label": "positive"},
        {"sentence1": "train 1", "sentence2": "{word} is Ann", "label": "negative"},
    ]
    assert (len(rows["train"]), len(rows["test"])) == (4, 6)  # the first two of three records, and all
    assert [row["label"] for row in rows["test"][-2:]] == [None, None]  # no answer is given


def test_columns_inside_texts_are_looked_for_too(tmp_path, offline):
    message = "task.mine.hub.columns: .* has no column 'wrod'; it has text, word, names, right"
    with pytest.raises(DataError, match=message):
        load_hub(with_items(tmp_path, "{wrod} {item}"))


@pytest.mark.parametrize("text", ["{word", "{} is it"])
def test_texts_that_are_no_pattern_are_refused(tmp_path, text):
    with pytest.raises(ValueError, match="a text such as"):
        with_items(tmp_path, text)


def test_task_that_is_not_on_the_hub(spec):
    message = "task mine: no data set of the hub is known for it; set data.source to packaged or local"
    with pytest.raises(DataError, match=message):
        load_hub(spec.model_copy(update={"hub": None}))
