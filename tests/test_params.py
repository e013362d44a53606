"""params.yaml is read as DVC reads it, profiles fit it, and every mistake in it is named in plain words."""

import copy
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.utils.cli_parse import to_path_overrides
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import parse_yaml

from stages.commands import profile
from stages.lib import paths
from stages.lib.entry import guarded
from stages.lib.errors import ParamsError
from stages.lib.io import write_text
from stages.lib.localizers.names import NAMES
from stages.lib.merging.names import NAMES as MERGING
from stages.lib.models.anatomy import Anatomy, write_anatomy
from stages.workflow.settings import PIPELINES, RUNTIME, SECTIONS, checked, load_params, validate
from stages.lib.settings import at
from stages.lib.yaml12 import load_yaml
from tests.test_dvc_yaml import CODE, FILES, pipeline

ROOT = Path(__file__).parents[1]
PARAMS = ROOT / "params.yaml"
TEXT = PARAMS.read_text(encoding="utf-8")
RAW = load_yaml(PARAMS, ParamsError)
PROFILES = sorted(path.stem for path in (ROOT / "stages/profiles").glob("*.yaml"))

PROBES = """
    1e-05 5e-4 1e5 1E5 1.0e7 1.0e-5 1.0E+7 0.0001 .5 5. -.5 +.5 00.5 -1e-3 +1e3 1e+3 1.e3 12e03 .inf -.INF +.inf .nan .NaN
    0 -0 +3 -3 007 010 017 0x10 0xfF 0o17 0o9 0x1G 1.2.3 1e 1.5e .e3 . 1:30 12:30:45 1,000 1e1_0 - ""
    yes Yes no No NO on On off y n Y N true True TRUE tRue false False FALSE null Null NULL nUll ~ nul abc a.b a-b
    '1e-5' "5" 'null' "true" '' '0x10' [1,1e-5] {x:&nbsp;1e-5}
""".replace("&nbsp;", "\u00a0").split()

# ruamel goes beyond YAML 1.2's core schema here.  To us these are text, which a number setting refuses.
EXOTIC = ["1_000", "1__0", "0.1_0", "0b11", "-0o7", "-0x1f", "2001-12-14", "2001-12-14t21:59:43.10-05:00"]


def parsed_by_us(text: str, folder: Path) -> Any:
    path = folder / "probe.yaml"
    path.write_text(text, encoding="utf-8")
    return load_yaml(path, ParamsError)


def parsed_by_dvc(text: str) -> Any:
    return parse_yaml(text, "probe.yaml")


def outcome(parse: Callable[..., Any], *arguments: Any) -> str:
    """The value read, or that it is refused; in words, which tell 1 from true and in which nan equals nan."""
    try:
        return repr(parse(*arguments))
    except Exception:
        return "refused"


@pytest.mark.parametrize("probe", PROBES)
def test_a_value_is_read_as_dvc_reads_it(probe, tmp_path):
    text = f"a:\n  b: {probe}\n"
    assert outcome(parsed_by_us, text, tmp_path) == outcome(parsed_by_dvc, text)


def test_a_yaml_1_1_reader_would_fail_these_probes():
    texts = {probe: f"a: {probe}" for probe in PROBES}
    wrong = {probe for probe, text in texts.items() if outcome(yaml.safe_load, text) != outcome(parsed_by_dvc, text)}
    assert {"1e-05", "1.0e7", "yes", "No", "on", "010", "1:30"} <= wrong


@pytest.mark.parametrize("probe", EXOTIC)
def test_what_only_dvc_takes_for_a_number_or_a_date_is_text_and_so_refused(probe, tmp_path):
    assert parsed_by_us(f"a: {probe}\n", tmp_path) == {"a": probe}
    assert not isinstance(parsed_by_dvc(f"a: {probe}\n")["a"], str)
    assert "data.k: " in problems_of({"data.k": probe})[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: 1\nb: 2\na: 3\n", 3), ("a:\n  b: 1\n  b: 1\n", 3), ("a: {b: 1, b: 2}\n", 1), ("1: x\n1: y\n", 2), ("l:\n  - {x: 1, x: 1}\n", 2)],
)  # fmt: skip
def test_a_key_that_stands_twice_is_refused_with_its_line(text, line, tmp_path):
    with pytest.raises(ParamsError, match=rf"probe\.yaml: not valid YAML: .*stands twice, again in line {line}"):
        parsed_by_us(text, tmp_path)


def test_equal_keys_of_two_sections_anchors_and_merges_are_read_as_dvc_reads_them(tmp_path):
    text = "a: &one {x: 1e-5, y: 2}\nb: {<<: *one, y: 3}\nc: *one\n"
    known = {"a": {"x": 1e-5, "y": 2}, "b": {"x": 1e-5, "y": 3}, "c": {"x": 1e-5, "y": 2}}
    assert parsed_by_us(text, tmp_path) == parsed_by_dvc(text) == known


# --- The file and its profiles ---------------------------------------------------------------------------------


def test_the_file_of_the_project_is_valid_and_read_as_dvc_reads_it():
    assert {*validate(RAW, asked=SECTIONS)} == {*SECTIONS} == {*RAW}
    assert parsed_by_dvc(TEXT) == RAW


@pytest.mark.parametrize("key", ["graft.sparsity=0.0005", "model.mode=standard", "runtime.threads=2"])
def test_dvc_changes_one_line_of_the_file_and_no_other(key, tmp_path):
    override(tmp_path, key)
    lines = zip(TEXT.splitlines(), (tmp_path / "params.yaml").read_text().splitlines(), strict=True)
    assert sum(old != new for old, new in lines) == 1


def listed(value: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of all lists, and of those that null stands for."""
    if isinstance(value, list) or (value is None and key.endswith(".tasks")):
        yield key
    for name, part in value.items() if isinstance(value, dict) else ():
        yield from listed(part, f"{key}.{name}".removeprefix("."))


def around(section: str) -> str:
    """The text of a section and of the next one, whose comments stand at its end."""
    starts = [found.start() for found in re.finditer(r"^\w+:", TEXT, re.MULTILINE)] + [len(TEXT)] * 2
    place = starts.index(re.search(rf"^{section}:", TEXT, re.MULTILINE).start())
    return TEXT[starts[place] : starts[place + 2]]


LISTED = [*listed(RAW)]


@pytest.mark.parametrize("keys", [*([key] for key in LISTED), LISTED], ids=[*LISTED, "all"])
def test_dvc_can_empty_every_list_and_every_comment_stays(keys, tmp_path):
    # ruamel.yaml runs lines together where an empty list takes the place of one with a comment beside it
    path, text = tmp_path / "params.yaml", TEXT if keys == LISTED else around(keys[0].partition(".")[0])
    path.write_text(text, encoding="utf-8")
    for value in ("[]", "[1]", "[]"):
        apply_overrides(path, [f"{key}={value}" for key in keys])
    after = load_yaml(path, ParamsError)
    assert after == {section: changed({key: [] for key in keys})[section] for section in after}
    assert comments(path.read_text(encoding="utf-8")) == comments(text)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_writes_what_dvc_writes_and_applies_to_what_dvc_wrote(name, tmp_path):
    read = override(tmp_path, *flags_of(name))
    written = (tmp_path / "params.yaml").read_text(encoding="utf-8")
    assert applied(name) == written == profile.apply(written, profile.profile_settings(name))
    assert read == parsed_by_dvc(applied(name))


@cache
def applied(name: str) -> str:
    """The text of params.yaml with a profile."""
    return profile.apply(TEXT, profile.profile_settings(name))


def flags_of(name: str) -> list[str]:
    """The arguments of `-S` that set a profile."""
    settings = profile.flatten(profile.profile_settings(name))
    return [flag for key, value in settings.items() for flag in profile.flags(key, value)]


def comments(text: str) -> list[str]:
    return sorted(line.partition("# ")[2] for line in text.splitlines() if "# " in line)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_valid_keeps_every_comment_and_changes_nothing_else(name):
    settings, after = profile.flatten(profile.profile_settings(name)), parsed_by_dvc(applied(name))
    assert comments(applied(name)) == comments(TEXT) != []
    old, new = profile.flatten(RAW), profile.flatten(after)
    assert {key: new[key] for key in settings} == settings
    assert {**new, **dict.fromkeys(settings)} == {**old, **dict.fromkeys(settings)} and new != old
    # the rules of a pipeline are for those profiles that have something to say about it
    assert validate(after, asked={key.partition(".")[0] for key in settings})


@pytest.mark.parametrize("name", PROFILES)
def test_the_flags_of_a_profile_are_those_that_give_dvc_the_same_settings(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["profile", name, "--flags"])
    profile.main()
    flags = shlex.split(capsys.readouterr().out)
    assert {*flags[::2]} == {"-S"} and flags[1::2] == flags_of(name)
    assert [*to_path_overrides(flags[1::2])] == ["params.yaml"]  # what stands before a colon may be another file to DVC


def override(folder: Path, *overrides: str) -> dict[str, Any]:
    """The settings that our reader finds after DVC's `-S` has rewritten a copy of params.yaml; it has to be valid."""
    path = shutil.copyfile(PARAMS, folder / "params.yaml")
    apply_overrides(path, list(overrides))
    raw = load_yaml(path, ParamsError)
    validate(raw)
    return raw


@pytest.mark.parametrize("written", ["0.00005", "5e-5", "5.0e-05", "5E-5"])
def test_a_tiny_number_survives_dvcs_rewriting_as_a_number(written, tmp_path):
    sparsity = override(tmp_path, f"graft.sparsity={written}")["graft"]["sparsity"]
    assert (type(sparsity), sparsity) == (float, 0.00005)
    assert "5e-05" in (tmp_path / "params.yaml").read_text(encoding="utf-8")  # which YAML 1.1 takes for text


@pytest.mark.parametrize("text", ["1234567", "1e10", "0x10", "null", "true", "007"])
def test_text_that_looks_like_something_else_survives_dvcs_rewriting(text, tmp_path):
    raw = override(tmp_path, f"model.revision='{text}'", "graft.sparsity=0.0005")
    assert raw["model"]["revision"] == text


def test_a_stage_gets_the_settings_it_asks_for_and_no_others():
    chosen = load_params("tasks", "graft", "data.k", "data.scarce", path=PARAMS)
    assert ({*vars(chosen)}, {*vars(chosen.data)}) == ({"tasks", "graft", "data"}, {"k", "scarce"})
    assert chosen.data.k == 64 and chosen.graft.sparsity == 0.01
    with pytest.raises(ValueError, match="frozen"):
        chosen.graft.sparsity = 0.5
    chosen = load_params("order.domain_first", "method.replay", path=PARAMS)
    assert vars(chosen.order) == {"domain_first": RAW["order"]["domain_first"]} and [*vars(chosen.method)] == ["replay"]


@pytest.fixture
def choose(project, monkeypatch, capsys):
    """choose(*words): `profile` with these words in a folder with profiles and a params.yaml; exit code, output, errors."""
    shutil.copytree(ROOT / paths.PROFILES, paths.PROFILES)
    shutil.copyfile(PARAMS, "params.yaml")

    def run(*words: str) -> tuple[int, str, str]:
        code = 0
        monkeypatch.setattr(sys, "argv", ["profile", *words])
        try:
            guarded("profile", profile.main)
        except SystemExit as left:
            code = left.code
        return code, *capsys.readouterr()

    return run


def test_a_profile_is_written_with_the_settings_changed_as_dvc_changes_them(choose, tmp_path):
    changes = ["graft.sparsity=0.0005", "seeds=[1,2]", "ood.sets={movies:[tweets]}"]
    code, out, _ = choose("bert_tiny", *(word for change in changes for word in ("-S", change)))
    assert code == 0 and f"has the profile bert_tiny with {', '.join(changes)}; " in out
    written = (tmp_path / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(applied("bert_tiny"), encoding="utf-8")
    apply_overrides(tmp_path / "params.yaml", changes)
    assert written == (tmp_path / "params.yaml").read_text(encoding="utf-8") != applied("bert_tiny")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("graft.sparsty=0.1", "profile: -S graft.sparsty=0.1: unknown setting 'graft.sparsty' (did you mean 'graft.sparsity'?)"),
        ("graft.sparsity", "profile: -S graft.sparsity: KEY=VALUE is wanted, as in graft.sparsity=0.0005"),
        ("graft.sparsity=abc", "  graft.sparsity: 'abc' is not allowed: should be a number"),
        ("smallest.localizers=[nix]", "  smallest.localizers: unknown localizer 'nix'; known: "),
        ("~graft.rule", "  graft.rule: this setting is missing"),
        *((bad, f"profile: -S data.test_max=7 -S {bad}: DVC can't set this; KEY=VALUE is wanted, as in graft.sparsity=0.0005")
          for bad in ("data.k=1,2", "data.k=range(1,3)", "data.k=${x}", "~nix")),
    ],
)  # fmt: skip
def test_a_wrong_change_of_a_profile_is_told_and_nothing_is_written(choose, change, told, tmp_path):
    code, _, error = choose("bert_tiny", "-S", "data.test_max=7", "-S", change)
    assert code == 2 and error.splitlines()[-1].startswith(told)
    assert (tmp_path / "params.yaml").read_bytes() == PARAMS.read_bytes()


def test_a_profile_replaces_all_orders():
    assert parsed_by_dvc(profile.apply(TEXT, {"order": ORDERS, "sequence": {"orders": ["back"]}}))["order"] == ORDERS


def test_an_unknown_profile_names_the_nearest_and_all():
    told = f"unknown profile 'bert_tinny' (did you mean 'bert_tiny'?); known: {', '.join(PROFILES)}"
    with pytest.raises(ParamsError, match=f"^{re.escape(told)}$"):
        profile.profile_settings("bert_tinny")


@pytest.mark.parametrize(("text", "told"), [
    ("tasks: [movies]", "should have `about`, a line on it, and `set`, its settings by section"),
    ("{about: mine, set: [1]}", "should have `about`, a line on it, and `set`, its settings by section"),
    ("{about: mine, set: {data: {kk: 8}, foo: {a: 1}}}", "no setting is called 'data.kk' (did you mean 'data.k'?), 'foo.a'"),
])  # fmt: skip
def test_what_is_no_profile_is_told_in_one_line(text, told, project):
    write_text(paths.PROFILES / "mine.yaml", text)
    with pytest.raises(ParamsError) as error:
        profile.profile_settings("mine")
    assert str(error.value) == f"{paths.PROFILES}/mine.yaml: {told}"


def test_settings_that_a_profile_before_it_has_left_are_told(choose):
    before = choose("bert_tiny")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", *words], check=True)
    assert "left as they were" not in before[1] + choose("bert_tiny")[1]
    choose("smollm2")
    plain, named = (choose("base", *words)[1].splitlines()[-1] for words in ([], ["-S", "finetune.optimizer=adamw"]))
    told = "left as they were, which is neither the profile's nor as committed: "
    assert plain.startswith(told) and named.startswith(told)
    assert "finetune.optimizer" in plain and "finetune.optimizer" not in named, "asked for, so not left"


def test_a_profile_over_a_broken_file_writes_nothing():
    with pytest.raises(ParamsError, match=r"finetune\.optimizer: 'sdg'"):
        profile.apply(TEXT.replace("optimizer: sgd ", "optimizer: sdg "), {"data": {"k": 3}})


# --- Mistakes --------------------------------------------------------------------------------------------------

ABSENT = object()
PROMPT = {"template": "{sentence1} It was {mask}.", "verbalizer": {"bad": "terrible", "good": "great"}}
LABELS = {"labels": ["bad", "good"]}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """params.yaml once these dotted keys have these values."""
    raw = copy.deepcopy(RAW)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = raw
        for section in sections:
            place = place[section]
        place[last] = value
        if value is ABSENT:
            del place[last]
    return raw


def problems_of(changes: dict[str, Any], asked: Collection[str] = ()) -> list[str]:
    """The problems that params.yaml has once these dotted keys have these values."""
    with pytest.raises(ParamsError) as problem:
        validate(changed(changes), asked=asked)
    head, *lines = str(problem.value).split("\n")
    assert head == f"params.yaml has {len(lines)} problem(s):"
    return [line.removeprefix("  ") for line in lines]


def own(**fields: Any) -> dict[str, Any]:
    """The settings of a user's task `reviews` with these fields, as the only task."""
    return {"tasks": ["reviews"], "task": {"reviews": LABELS | fields}, "ood.sets": {}}


ALL_TASKS = (
    "ag_news, amazon, bbc, bbc_pair, boolq, cb, cola, copa, cr, domain, editorials, imdb, mnli, mnli_2, movies, mpqa, mr, mrpc, "
    "multirc, products, qnli, qqp, record, rte, sentiment, snli, snli_2, sst2, subj, trec, tweets, wic, wnli, wsc, yelp; "
    "define your own under `task:`"
)
NAME = "should be a name of a-z, 0-9, _ and . that starts with a letter or a digit"
GROUPS = "'layers', 'embeddings', 'pooler' or 'lm_head'"
ONCE = "should be a template with {mask} once, and otherwise only {sentence1} and {sentence2}"

MISTAKES: list[tuple[dict[str, Any], str]] = [
    # sections and settings
    ({"grafts": {}}, f"grafts: unknown section (did you mean 'graft'?); known: {', '.join(SECTIONS)}"),
    ({"movement": ABSENT}, "movement: this section is missing"),
    ({"movement": None}, "movement: null is not allowed: should be `name: value` pairs"),
    ({"movement": [1]}, "movement: [1] is not allowed: should be `name: value` pairs"),
    ({"movement.keeep": 1}, "movement.keeep: unknown setting (did you mean 'keep'?); known: keep"),
    ({"movement.keep": ABSENT}, "movement.keep: this setting is missing"),
    ({"data.columns": {"sentence1": "label"}}, "data.columns: two of sentence1, label are the column 'label'"),
    # numbers
    ({"graft.sparsity": 0}, "graft.sparsity: 0 is not allowed: should be greater than 0"),
    ({"graft.sparsity": 1.5}, "graft.sparsity: 1.5 is not allowed: should be less than or equal to 1"),
    ({"graft.sparsity": "abc"}, "graft.sparsity: 'abc' is not allowed: should be a number"),
    ({"graft.sparsity": "0.01"}, "graft.sparsity: '0.01' is not allowed: should be a number (without quotes)"),
    ({"graft.sparsity": True}, "graft.sparsity: true is not allowed: should be a number"),
    ({"graft.sparsity": None}, "graft.sparsity: null is not allowed: should be a number"),
    ({"graft.sparsity": math.nan}, "graft.sparsity: nan is not allowed: should be a finite number"),
    ({"finetune.steps_per_example": math.inf}, "finetune.steps_per_example: inf is not allowed: should be a finite number"),
    ({"data.k": -1}, "data.k: -1 is not allowed: should be greater than or equal to 1"),
    ({"data.k": 1.5}, "data.k: 1.5 is not allowed: should be a whole number"),
    ({"data.k": "64"}, "data.k: '64' is not allowed: should be a whole number (without quotes)"),
    ({"data.k": True}, "data.k: true is not allowed: should be a whole number"),
    ({"finetune.max_steps": "none"}, "finetune.max_steps: 'none' is not allowed: should be a whole number or null"),
    ({"finetune.dropout": 1.0}, "finetune.dropout: 1.0 is not allowed: should be less than 1 or null"),
    ({"finetune.bias_only": "yes"}, "finetune.bias_only: 'yes' is not allowed: should be true or false"),
    ({"finetune.bias_only": 1}, "finetune.bias_only: 1 is not allowed: should be true or false"),
    # text and choices
    ({"finetune.optimizer": "sdg"}, "finetune.optimizer: 'sdg' is not allowed: should be 'sgd' or 'adamw' (did you mean 'sgd'?)"),
    ({"finetune.optimizer": None}, "finetune.optimizer: null is not allowed: should be 'sgd' or 'adamw'"),
    ({"finetune.optimizer": True}, "finetune.optimizer: true is not allowed: should be 'sgd' or 'adamw'"),
    ({"model.name": ""}, "model.name: '' is not allowed: should be some text, not nothing"),
    ({"model.name": 5}, "model.name: 5 is not allowed: should be text (put it in quotes)"),
    ({"model.revision": 1234567}, "model.revision: 1234567 is not allowed: should be text or null (put it in quotes)"),
    # lists
    ({"tasks": []}, "tasks: [] is not allowed: should be a list of at least 1"),
    ({"tasks": "movies"}, "tasks: 'movies' is not allowed: should be a list"),
    ({"tasks": ["movies", "bbc", "movies"]}, "tasks: movies stands twice"),
    ({"tasks": ["moveis"]}, f"tasks: unknown task 'moveis' (did you mean 'movies'?); known: {ALL_TASKS}"),
    ({"tasks": ["my-task"]}, f"tasks.0: 'my-task' is not allowed: {NAME}"),
    ({"seeds": [13, 13]}, "seeds: 13 stands twice"),
    ({"seeds": [True]}, "seeds.0: true is not allowed: should be a whole number"),
    ({"seeds": [1.0]}, "seeds.0: 1.0 is not allowed: should be a whole number"),
    ({"seeds": ["13"]}, "seeds.0: '13' is not allowed: should be a whole number (without quotes)"),
    ({"seeds": [1, -2]}, "seeds.1: -2 is not allowed: should be greater than or equal to 0"),
    ({"finetune.learning_rates": []}, "finetune.learning_rates: [] is not allowed: should be a list of at least 1"),
    ({"finetune.learning_rates": [0.1, 0]}, "finetune.learning_rates.1: 0 is not allowed: should be greater than 0"),
    ({"finetune.batch_sizes": [8, 8]}, "finetune.batch_sizes: 8 stands twice"),
    ({"graft.region": ["layer"]}, f"graft.region.0: 'layer' is not allowed: should be {GROUPS} (did you mean 'layers'?)"),
    ({"graft.region": ["layers", "layers"]}, "graft.region: layers stands twice"),
    # between sections
    ({"graft.sparsity": 0.2}, "graft.sparsity: 0.2 is more than movement.keep (0.1); raise movement.keep to at least that"),
    ({"graft.region": ["embeddings"]}, "graft.region: 'embeddings' is not among finetune.train (layers), so it never moves"),
    ({"ood.sets": {"movies": ["domain"]}}, "ood.sets.movies: domain has the labels movie, product, newspaper, tweet, movies has negative, positive"),
    ({"ood.sets": {"movies": ["movies"]}}, "ood.sets.movies: movies is the task itself"),
    ({"ood.sets": {"movies": ["tweets", "tweets"]}}, "ood.sets.movies: tweets stands twice"),
    ({"ood.sets": {"movie": ["tweets"]}}, f"ood.sets: unknown task 'movie' (did you mean 'movies'?); known: {ALL_TASKS}"),
    ({"ood.sets": {"movies": ["tweet"]}}, f"ood.sets.movies: unknown task 'tweet' (did you mean 'tweets'?); known: {ALL_TASKS}"),
    ({"ood.sets": {"movies": None}}, "ood.sets.movies: null is not allowed: should be a list"),
    # a user's own task
    (own() | {"model.mode": "prompt"}, "task.reviews.prompt: model.mode=prompt needs a template and a verbalizer here"),
    (own(prompt=PROMPT) | {"model.mode": "autoregressive"}, "task.reviews.causal_prompt: model.mode=autoregressive needs a template and a verbalizer here"),
    (own(prompt=PROMPT | {"template": "It was great."}), f"task.reviews.prompt.template: 'It was great.' is not allowed: {ONCE}"),
    (own(prompt=PROMPT | {"template": "It was {mask}."}), "task.reviews.prompt.template: 'It was {mask}.' is not allowed: should be a template with {sentence1} or {sentence2}, or every row would be the same"),
    (own(prompt=PROMPT | {"template": "{sentence1!r} {mask}"}), f"task.reviews.prompt.template: '{{sentence1!r}} {{mask}}' is not allowed: {ONCE}"),
    (own(prompt=PROMPT, relabel={"pos": "god"}), "task.reviews.relabel: should be a mapping to the labels bad, good, and 'god' (did you mean 'good'?) is none"),
    (own(prompt=PROMPT | {"template": "{mask} {mask}"}), f"task.reviews.prompt.template: '{{mask}} {{mask}}' is not allowed: {ONCE}"),
    (own(prompt=PROMPT | {"template": "{text} {mask}"}), f"task.reviews.prompt.template: '{{text}} {{mask}}' is not allowed: {ONCE}"),
    (own(prompt=PROMPT | {"verbalizer": {"bad": "terrible"}}), "task.reviews.prompt: should be a prompt whose verbalizer has exactly the labels bad, good, not bad"),
    (own(prompt=PROMPT | {"verbalizer": {"bad": "so", "good": "so"}}), "task.reviews.prompt.verbalizer: should be a verbalizer with a different word for each label, not so, so"),
    *((own(prompt=PROMPT | {"verbalizer": {"bad": "terrible", "good": word}}), f"task.reviews.prompt.verbalizer: should be a verbalizer of words, none empty or with a space around it, not {word!r}") for word in ("", " great", "great ")),
    (own(prompt=PROMPT | {"tmplate": "x"}), "task.reviews.prompt.tmplate: unknown setting (did you mean 'template'?); known: template, verbalizer"),
    (own(prompt={"template": "{sentence1} {mask}"}), "task.reviews.prompt.verbalizer: this setting is missing"),
    (own(prompt="It was {mask}."), "task.reviews.prompt: 'It was {mask}.' is not allowed: should be `name: value` pairs or null"),
    (own(causal_prompt=PROMPT), "task.reviews.causal_prompt: should be a prompt whose template ends with {mask}: a causal model sees only what stands before it"),
    (own(labels=["bad"]), "task.reviews.labels: ['bad'] is not allowed: should be a list of at least 2, or null for rows of a prompt and a completion"),
    (own(labels=["bad", "bad"]), "task.reviews.labels: ['bad', 'bad'] is not allowed: should be labels that differ from each other"),
    (own(labels=["bad ", "good"]), "task.reviews.labels: ['bad ', 'good'] is not allowed: should be labels of which none is empty or has a space around it"),
    (own(labels=["bad", False]), "task.reviews.labels.1: false is not allowed: should be text (put it in quotes)"),
    (own(prompt=PROMPT, positive="nice"), "task.reviews.positive: 'nice' is not allowed: should be one of the labels bad, good"),
    (own(prompt=PROMPT, metric="f2"), "task.reviews.metric: 'f2' is not allowed: should be 'accuracy', 'f1' or 'mcc'"),
    ({"tasks": ["2025"], "task": {2025: LABELS | {"prompt": PROMPT}}}, "task: 2025 is not allowed: should be text (put it in quotes)"),
    ({"tasks": ["a" * 101]}, f"tasks.0: '{'a' * 99}... is not allowed: should be a name of at most 100 characters"),
    ({"task": {"my-reviews": LABELS}}, f"task: 'my-reviews' is not allowed: {NAME}"),
    ({"task": {"reviews": {}}}, "task.reviews.labels: this setting is missing"),
    ({"task": None}, "task: null is not allowed: should be `name: value` pairs"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), MISTAKES, ids=[f"{number}-{next(iter(changes))}" for number, (changes, _) in enumerate(MISTAKES)])  # fmt: skip
def test_a_mistake_is_named_by_key_value_and_what_is_allowed(changes, expected):
    assert problems_of(changes) == [expected]


AXES = {
    (name, value[2:-1])
    for name, file in FILES.items()
    for stage in pipeline(file)["stages"].values()
    for value in stage.get("matrix", {}).values()
}


@pytest.mark.parametrize(("name", "axis"), sorted(AXES))
def test_no_axis_takes_what_a_shell_would_run(name, axis):
    asked = [key.partition(".")[0] for key in CODE[name]["params"]]  # by the stage that runs before all others
    first = at(changed({}), axis)[0]
    bad = [f"{first} $(touch x)", f"{first};touch x", f"{first}\n", "-x", "../x", "a b", ["`touch x`"], {"a": "$x"}]
    assert len([line for line in problems_of({axis: [first, *bad]}, asked) if line.startswith(f"{axis}.")]) == len(bad)


def test_no_message_speaks_the_validators_language():
    jargon = ("Input", "valid ", "instance", "after validation", "parse", "NoneType", "dictionary", "True", "None", "pydantic", "[key]")  # fmt: skip
    assert [message for _, message in MISTAKES if any(word in message for word in jargon)] == []


def test_all_problems_come_in_one_message_in_the_order_of_the_file():
    wrong = {"ood.sets": {"movies": ["movies"]}, "finetune.l1": -1, "finetune.optimizer": "x", "data.k": 0, "seeds": []}
    places = ["grafts", "seeds", "data.k", "finetune.optimizer", "finetune.l1", "ood.sets.movies"]
    assert [line.split(":")[0] for line in problems_of({"grafts": {}, **wrong})] == places


ROUNDS: list[tuple[dict[str, Any], list[str]]] = [
    # other sections, further settings of the section, and rules between sections
    ({"movement": None, "graft.sparsity": 0.9, "tasks": ["nix"], "ood": None, "task": {"x": {"labels": ["a"]}}}, ["movement", "ood", "tasks", "task.x.labels"]),
    ({"graft.rule": "x", "graft.sparsity": 0.2, "graft.region": ["pooler"]}, ["graft.rule", "graft.sparsity", "graft.region"]),
    ({"graft.localizer": "lerned", "graft.region": 5}, ["graft.region", "graft.localizer"]),
    ({"data.k": 0, "data.columns": {"sentence1": "label"}}, ["data.k", "data.columns"]),
    ({"finetune.l1": -1, "finetune.batch_sizes": [8, 8], "finetune.train": ["pooler"]}, ["finetune.l1", "finetune.batch_sizes", "graft.region"]),
    ({"ood.test_max": -1, "ood.sets": {"movies": ["movies"], "bbc": ["nix"]}}, ["ood.test_max", "ood.sets.movies", "ood.sets.bbc"]),
    ({"ood.sets": {"movies": ["movies"], "bbc": 5}}, ["ood.sets.bbc", "ood.sets.movies"]),
    ({"localizer.learned.steps": -1, "localizer.tensorwise": ABSENT, "graft.localizer": "tensorwise"}, ["localizer.learned.steps", "localizer.tensorwise"]),
    ({"sweep.localizers": "x", "sweep.sparsities": [0.5], "readout.readouts": []}, ["sweep.localizers", "sweep.sparsities"]),
    ({"paradigm.max_steps": 0, "paradigm.paradigms": ["standard"], "model.mode": "standard", "model.max_length": 1}, ["model.max_length", "paradigm.max_steps", "paradigm.paradigms"]),
    ({"edit.training.clip_norm": -1, "edit.methods": ["talas"], "arithmetic.methods": [], "disentangle.methods": []}, ["edit.training.clip_norm", "edit.methods"]),
    ({"arithmetic.points": 0, "arithmetic.negation.retention": 5, "arithmetic.negation.controls": {"bbc": "bbc"}}, ["arithmetic.points", "arithmetic.negation.retention", "arithmetic.negation.controls.bbc"]),
    ({"surgery.training.l1": -1, "surgery.training.warmup_steps": 99, "surgery.score.target": "x", "surgery.score.examples": 9}, ["surgery.score.target", "surgery.training.l1", "surgery.score.examples", "surgery.training.warmup_steps"]),
    ({"sequence.test_max": -1, "sequence.orders": ["a.b"]}, ["sequence.test_max", "sequence.orders", "order"]),
    ({"multitask.test_max": -1, "multitask.groups": {"movies": ["movies", "bbc"]}, "skill.sparsities": 3, "skill.localizers": ["nix"]}, ["multitask.test_max", "skill.sparsities", "multitask.groups.movies", "skill.localizers"]),
    ({"combination.search.dev_max": -1, "combination.methods": ["tise"]}, ["combination.search.dev_max", "combination.methods"]),
    # tasks of the user's
    (own(metric="f2"), ["task.reviews.metric", "task.reviews.prompt"]),
    ({"task": {"My": {"labels": ["a"]}, "b": 5}, "tasks": ["movies", "b", "nix"]}, ["task", "task.b", "tasks", "task.My.labels"]),
    # nothing follows from what is wrong
    ({"graft.localizer": 5, "graft.sparsity": 0, "movement.keep": 0}, ["movement.keep", "graft.localizer", "graft.sparsity"]),
    ({"localizer.movement": None, "localizer.grown": ABSENT, "sweep.localizers": ["movement", "grown"], "readout.readouts": []}, ["localizer.grown", "localizer.movement"]),
    ({"data.columns": {"label": 5, "sentence1": "label"}}, ["data.columns.label"]),
    ({"sweep.localizers": ["Learned"]}, ["sweep.localizers.0"]),
    ({"order.domain_last": ["Domain"]}, ["order.domain_last.0"]),
    ({"fim.scores.examples": 5, "surgery.score.examples": 9}, ["fim.scores.examples"]),
    ({"edit": None, "disentangle.grid.pairs": {"bbc": "bbc"}}, ["edit", "disentangle.grid.pairs.bbc"]),
    ({"study.tasks": 5, "readout.localizers": ["nix"]}, ["study.tasks", "readout.localizers"]),
    ({"task": {"b": {"labels": ["a"]}, "c": LABELS | {"parts": ["b", "d"]}, "d": LABELS}}, ["task.b.labels"]),
    ({"task": {"b": LABELS | {"prompt": 5}}, "tasks": ["b"], "ood.sets": {}}, ["task.b.prompt"]),
    ({"talos": ABSENT, "seeds": None, "movement": 3}, ["seeds", "movement", "talos"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "places"), ROUNDS, ids=[f"{number}-{next(iter(changes))}" for number, (changes, _) in enumerate(ROUNDS)])  # fmt: skip
def test_a_wrong_value_hides_nothing_but_what_follows_from_it(changes, places):
    found = problems_of(changes, asked=SECTIONS)
    assert [line.split(":")[0] for line in found] == places


# --- Other pipelines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [["reviews"], ["reviews", "movies"]], ids=["one task", "two tasks"])
def test_own_tasks_and_seeds_are_two_lines_and_then_no_pipeline_complains(tasks):
    changes = {"tasks": tasks, "seeds": [1], "task": {"reviews": LABELS | {"prompt": PROMPT}}}
    values, lines = checked(changed(changes), asked=SECTIONS)
    assert values["study"].tasks == values["trajectory"].tasks == values["surgery"].tasks == tasks
    several = tasks if len(tasks) > 1 else []
    assert values["talos"].tasks == values["multitask"].tasks == several
    assert [*values["merge"].groups.values()] == [several] * bool(several)
    assert {line.partition(":")[0] for line in lines} >= {"order"}
    assert checked(RAW, asked=SECTIONS)[1] == [], "the control: all tasks that the file names are there"


@pytest.mark.parametrize(
    ("changes", "key", "expected", "said"),
    [
        ({"readout.tasks": ["movies", "bbc_pair"]}, "readout.tasks", ["movies"], "readout.tasks: bbc_pair left out, not among study.tasks"),
        ({"study.tasks": ["tweets"]}, "readout.tasks", ["tweets"], ""),
        ({"study.tasks": ["tweets"], "peft.tasks": ["movies"]}, "peft.tasks", [], "peft.tasks: movies left out"),
        ({"trajectory.tasks": []}, "trajectory.tasks", [], ""),
        ({"talos.tasks": ["movies"]}, "talos.tasks", [], "talos.tasks: off, since it takes 2 tasks or more"),
        ({"merge.groups": {"a": None, "b": ["movies", "bbc_pair"]}}, "merge.groups", {"a": ["movies", "products", "editorials", "tweets", "domain", "bbc"]},
         "merge.groups: bbc_pair left out"),
        ({"order.domain_first": ["domain", "bbc_pair", "movies"]}, "order.domain_first", ["domain", "movies"], "order: bbc_pair left out"),
        ({"order.domain_first": ["domain", "bbc_pair"]}, "order.domain_first", [], "order: bbc_pair left out"),
        ({"arithmetic.negation.controls": {"movies": "bbc_pair"}}, "arithmetic.negation.controls", {}, "arithmetic.negation.controls: bbc_pair"),
        ({"ood.sets": {"bbc_pair": ["tweets"]}}, "ood.sets", {}, "ood.sets: bbc_pair left out, not among tasks (movies, products, editorials, tweets, domain, bbc)"),
    ],
)  # fmt: skip
def test_tasks_that_are_not_there_are_left_out_in_one_line(changes, key, expected, said):
    values, lines = checked(changed(changes), asked=SECTIONS)
    assert at(values, key) == expected
    assert len(lines) == bool(said) and "".join(lines).startswith(said)


KNOWN_LOCALIZERS = ", ".join(NAMES)
ORDERS = {"there": ["movies", "bbc"], "back": ["bbc", "movies"]}
TALOS = {"edit.methods": ["full", "talos"], "arithmetic.methods": ["talos"], "disentangle.methods": ["talos"]}
MISFITS: list[tuple[dict[str, Any], list[str]]] = [
    ({"study.tasks": ["movie"]}, [f"study.tasks: unknown task 'movie' (did you mean 'movies'?); known: {ALL_TASKS}"]),
    ({"merge.groups": {"a": ["movies", "nix"]}}, [f"merge.groups: unknown task 'nix'; known: {ALL_TASKS}"]),
    ({"merge.groups": {"a": ["movies", "movies"]}}, ["merge.groups.a: movies stands twice"]),
    ({"paradigm.paradigms": ["sgd", "standard"]}, ["paradigm.paradigms: 'standard' is what model.mode=standard does anyway, as 'sgd'; take it out"]),
    ({"sweep.localizers": ["learned", "bias", "randon"]}, [f"sweep.localizers: unknown localizer 'randon' (did you mean 'random'?); known: {KNOWN_LOCALIZERS}"]),
    ({"sweep.sparsities": [0.01, 0.1, 0.2, 0.5]}, [f"sweep.sparsities: {size} is more than movement.keep (0.1); raise movement.keep to at least that" for size in (0.2, 0.5)]),
    ({"readout.localizers": ["fish"], "sweep.localizers": ["learned", "random"]}, ["readout.localizers: 'fish' is not among sweep.localizers (learned, random)"]),
    # DVC looks for the masks of its points, though no task uses them
    ({"readout.tasks": [], "readout.localizers": ["fish"], "sweep.localizers": ["learned", "random"]}, ["readout.localizers: 'fish' is not among sweep.localizers (learned, random)"]),
    ({"readout.sparsities": [0.5], "sweep.sparsities": [0.001]}, ["readout.sparsities: 0.5 is not among sweep.sparsities (0.001)"]),
    ({"trajectory.checkpoints": None}, ["trajectory.checkpoints: null is not allowed: should be `name: value` pairs"]),
    ({"combination.methods": ["stich_mean"]}, [f"combination.methods: unknown method 'stich_mean' (did you mean 'stitch_mean'?); known: {', '.join(MERGING)}, and LOCALIZER_SHARE, such as stitch_0.01"]),
    ({"combination.methods": ["stich_0.01"]}, [f"combination.methods: unknown localizer 'stich' (did you mean 'stitch'?); known: {KNOWN_LOCALIZERS}"]),
    ({"combination.search.alphas": [-0.5]}, ["combination.search.alphas.0: -0.5 is not allowed: should be greater than or equal to 0"]),
    ({"combination.shares.dare": 0.0}, ["combination.shares.dare: 0.0 is not allowed: should be greater than 0"]),
    ({"smallest.localizers": ["grwn"]}, [f"smallest.localizers: unknown localizer 'grwn' (did you mean 'grown'?); known: {KNOWN_LOCALIZERS}"]),
    ({"sequence.orders": ["their"], "order": ORDERS}, ["sequence.orders: 'their' is not among order (there, back) (did you mean 'there'?)"]),
    ({"sequence.orders": ["there"], "order": {}}, ["sequence.orders: 'there' is not among order (empty)"]),
    ({"sequence.orders": ["there"], "order": {"there": ["bbc", "movies", "bbc"]}}, ["order.there: bbc stands twice"]),
    ({"sequence.methods": ["nave"]}, ["sequence.methods.0: 'nave' is not allowed: should be 'naive', 'grafting', 'replay' or 'ewc' (did you mean 'naive'?)"]),
    ({"sequence.orders": ["a.b"], "order": {"a.b": ["bbc", "movies"]}}, ["order: 'a.b' has a dot in it, which stands between a section and its settings; use _ instead"]),
    (TALOS | {"edit.methods": ["full", "talas"], "arithmetic.methods": ["full"], "disentangle.methods": ["full"]}, [f"edit.methods: unknown method 'talas' (did you mean 'talos'?); known: full, graft, full_matched, linear, attention, {KNOWN_LOCALIZERS}"]),
    (TALOS | {"arithmetic.methods": ["lota"]}, ["arithmetic.methods: 'lota' is not among edit.methods (full, talos)"]),
    (TALOS | {"arithmetic.negation.controls": {"movies": "movies"}}, ["arithmetic.negation.controls.movies: movies is the task itself"]),
    (TALOS | {"disentangle.grid.pairs": {"movies": "movies"}}, ["disentangle.grid.pairs.movies: movies is the task itself"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), MISFITS, ids=[f"{number}-{next(iter(changes))}" for number, (changes, _) in enumerate(MISFITS)])  # fmt: skip
def test_what_does_not_fit_is_named_where_the_pipeline_is_used_and_nowhere_else(changes, expected):
    [own] = [{*one.SECTIONS} for one in PIPELINES.values() if next(iter(changes)).partition(".")[0] in one.SECTIONS]
    assert problems_of({"model.mode": "standard"} | changes, asked=own) == expected
    assert validate(changed(changes)) and validate(changed(changes), asked={*SECTIONS} - own)


@pytest.mark.parametrize(
    "changes",
    [
        {"readout.readouts": [], "readout.localizers": ["nix"], "readout.sparsities": [0.9]},
        {"readout.tasks": [], "readout.sparsities": [], "readout.localizers": ["nix"]},
        {"readout.readouts": [], "sweep.localizers": [], "sweep.sparsities": [0.9]},
        {"readout.readouts": [], "sweep.sparsities": [], "sweep.localizers": ["nix"]},
        {"study.tasks": [], "sweep.sparsities": [0.9], "readout.sparsities": []},
        {"fim.tasks": [], "surgery.score.examples": 5, "fim.scores.targets": ["expected"]},
        {"surgery.selections": [], "robustness.tasks": [], "surgery.training.warmup_steps": 99},
        {"merge.groups": {}, "combination.methods": ["nix"]},
        {"tasks": ["movies"], "ood.sets": {}, "combination.methods": ["nix"]},
        {"multitask.tasks": [], "skill.localizers": ["nix"]},
        {"talos.tasks": ["bbc"], "edit.methods": ["nix"], "arithmetic.methods": [], "disentangle.methods": []},
        {"arithmetic.methods": [], "arithmetic.negation.controls": {"movies": "movies"}},
        {"disentangle.methods": [], "disentangle.grid.pairs": {"movies": "movies"}},
        {"sequence.methods": [], "sequence.orders": ["nix"]},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_other_settings_of_a_stage_that_is_off_do_not_matter(changes):
    assert validate(changed(changes), asked=SECTIONS)


def test_a_warmup_matters_as_long_as_one_stage_trains_by_it():
    asked, long = ["surgical"], {"surgery.training.warmup_steps": 99}
    offs = {"surgery.tasks": []}, {"robustness.tasks": []}, {}
    [one], [other], [both] = (problems_of(long | off, asked) for off in offs)
    assert one == other == both
    assert one.startswith("surgery.training.warmup_steps: a warm-up of 99 steps is longer than training's 40")


def test_a_parameter_efficient_method_without_its_size_is_told_what_there_is():
    expected = "is not allowed: should be lora_RANK, houlsby_SIZE or pfeiffer_SIZE, for instance lora_8"
    told = problems_of({"peft.methods": ["lora8", "lora_8", "adapter_0"]}, asked=["study"])
    assert told == [f"peft.methods.0: 'lora8' {expected}", f"peft.methods.2: 'adapter_0' {expected}"]


def test_a_stage_is_stopped_by_mistakes_of_its_own_pipeline_alone(tmp_path):
    override(tmp_path, "trajectory.checkpoints.every=no", "talos.sparsity=7")
    assert load_params("movement", "graft.region", path=tmp_path / "params.yaml").movement.keep
    for key, line in (("anchor", r"trajectory\.checkpoints\.every: 'no'"), ("edit", r"talos\.sparsity: 7")):
        with pytest.raises(ParamsError, match=rf"1 problem\(s\):\n  {line}"):
            load_params("model", key, path=tmp_path / "params.yaml")


def test_no_two_pipelines_have_a_section_of_the_same_name():
    parts = [pipeline.SECTIONS for pipeline in PIPELINES.values()]
    assert [name for part in parts for name in part] == [*SECTIONS] and len(parts) >= 2


def test_own_tasks_and_other_values_for_built_in_ones_are_fine():
    tasks = {"reviews": LABELS | {"prompt": PROMPT}, "movies": {"title": "Mine"}}
    assert validate(changed({"tasks": [*tasks], "task": tasks, "model.mode": "prompt"}))["tasks"] == [*tasks]


# a few lines that stand for ten million values
BOMB = b"".join(b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10) if n else b"{}") for n in range(8))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "params.yaml: no such file; run this from the project's top folder"),
        (b"tasks: [\xff]\n", "params.yaml: not UTF-8 text (byte 8)"),
        (b"tasks: [movies\nseeds: 3\n", "params.yaml: not valid YAML: .*line 2"),
        (b"tasks: [movies]\ntask: {{mask}}\n", "params.yaml: not valid YAML: a key that is no plain name in line 2; put braces in quotes"),
        (b"tasks:\n\t- movies\n", "params.yaml: not valid YAML: .*line 2"),
        (b"", "params.yaml: expected sections (tasks, seeds, .*, found nothing"),
        (b"- movies\n", "params.yaml: expected sections (tasks, seeds, .*, found ['movies']"),
        (b"tasks: !!int x\n", "params.yaml: not valid YAML: the type 'int' in line 1; write the value alone"),
        (b"a: " + b"[" * 200_000, "params.yaml: not valid YAML: deeper nesting in line 1 than any settings need"),
        (b"a: " + b"9" * 5000, "params.yaml: not valid YAML: a number of 5,000 digits in line 1"),
        (b'model: "\\0"', "params.yaml: not valid YAML: the character \\0 in line 1"),
        (b'model: "\\ud800"', "params.yaml: not valid YAML: .*invalid Unicode"),
        (BOMB, "params.yaml: not valid YAML: more values in line 6 than any settings need"),
        (BOMB.replace(b"[", b"{<<: [").replace(b"]", b"]}"), "params.yaml: not valid YAML: more values in line 6 than"),
        (b"#" * (1 << 21), "params.yaml: too large to be settings (2,097,152 bytes; at most 1,048,576)"),
        (b"tasks: !!python/object/apply:os.system ['echo']\n", "params.yaml: not valid YAML: "),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_file_that_is_not_settings_is_named_with_the_place(content, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("params.yaml").write_bytes(content)
    with pytest.raises(ParamsError) as problem:
        load_params("data")
    start, _, rest = expected.partition(".*")
    assert str(problem.value).startswith(start) and rest in str(problem.value)
    assert "\n" not in str(problem.value)


def run_stage(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("label", "arguments"),
    [
        ("mask@movies-13", ["stages.mask", "--task", "movies", "--seed", "13"]),
        ("sweep@learned-0.01-13", ["stages.study.sweep", "--localizer", "learned", "--sparsity", "0.01", "--seed", "13"]),
        ("params", ["stages.lib.params"]),
    ],
)  # fmt: skip
def test_a_stage_with_mistakes_in_the_file_says_so_and_writes_nothing(label, arguments, tmp_path):
    text = TEXT.replace("optimizer: sgd ", "optimizer: sdg ").replace("k: 64 ", "k: -64 ")
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    result = run_stage(tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"{label}: params.yaml has 2 problem(s):",
        "  data.k: -64 is not allowed: should be greater than or equal to 1",
        "  finetune.optimizer: 'sdg' is not allowed: should be 'sgd' or 'adamw' (did you mean 'sgd'?)",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize("module", ["stages.mask", "stages.study.sweep"])
def test_a_stage_says_how_it_is_run(module, tmp_path):
    result = run_stage(tmp_path, module, "--nonsense")
    assert result.returncode == 2
    assert result.stderr.startswith(f"usage: python -m {module} ")
    assert f"python -m {module}: error: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told", "near"),
    [
        (["stages.mask", "--task", "movis", "--seed", "13"], "mask@movis-13: --task: 'movis' is not among tasks (movies, ", "movies"),
        (["stages.merge.combination", "--method", "tise", "--seed", "13"], "combination@tise-13: --method: 'tise' is not among combination.methods", "ties"),
    ],
)  # fmt: skip
def test_a_name_on_the_command_line_that_is_not_there_is_told_the_nearest(arguments, told, near):
    result = run_stage(ROOT, *arguments)
    assert result.returncode == 2 and result.stderr.startswith(told) and result.stderr.count("\n") == 1
    assert result.stderr.endswith(f" (did you mean {near!r}?)\n")


# --- The model in models/pretrained ----------------------------------------------------------------------------


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A project in which a model of 1,000 graftable parameters was imported."""
    monkeypatch.chdir(tmp_path)
    shape = {"layer.0.weight": [10, 100]}
    write_anatomy(Anatomy("mine", "local", None, "standard", dict.fromkeys(shape, "layers"), shape), paths.PRETRAINED)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "value", "asked", "off"),
    [
        ("graft.sparsity", 0.0009, "finetune", None),
        ("sweep.sparsities", [0.01, 0.0009], "anchor", {"study.tasks": []}),
        ("skill.sparsities", [0.0009], "joint.step_factor", {"multitask.tasks": []}),
        ("talos.sparsity", 0.0009, "edit", {"talos.tasks": []}),
        ("paradigm.sparsities", [0.0009], "paradigm", {"paradigm.paradigms": []}),
        ("combination.methods", ["stitch_0.0009"], "combination", {"merge.groups": {}}),
    ],
)
def test_too_small_a_share_is_told_before_anything_is_trained(imported, place, value, asked, off):
    def set_to(now: Any, **more: Any) -> None:
        (imported / "params.yaml").write_text(json.dumps(changed({"readout.readouts": [], place: now} | more)))

    set_to(value)
    load_params("model", asked)  # the stage that imports another model is not stopped by this one
    with pytest.raises(ParamsError, match=rf"1,000 graftable.*smallest share is 0\.001:\n  {place}: 0\.0009 is less"):
        load_params(*RUNTIME, asked)
    set_to(json.loads(json.dumps(value).replace("0.0009", "0.001")))
    assert load_params(*RUNTIME, asked)
    if off:
        set_to(value, **off)
        assert load_params(*RUNTIME, asked)


def test_the_check_looks_at_all_pipelines(tmp_path):
    override(tmp_path, "study.tasks=[nix]")
    result = run_stage(tmp_path, "stages.lib.params")
    assert result.returncode == 2 and "study.tasks: unknown task 'nix'" in result.stderr


def test_the_check_prints_every_resolved_setting(tmp_path):
    shutil.copyfile(PARAMS, tmp_path / "params.yaml")
    result = run_stage(tmp_path, "stages.lib.params")
    assert (result.returncode, result.stderr) == (0, "")
    shown = json.loads(result.stdout)
    assert shown["finetune"] == RAW["finetune"] and shown["study"]["tasks"] == RAW["tasks"]
    assert profile.flatten(shown).keys() == profile.flatten(RAW).keys()
