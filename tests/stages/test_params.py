"""The params.yaml files are read as DVC reads them, profiles fit them, and every mistake in them is named in plain words."""

import copy
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.cli_parse import to_path_overrides
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import parse_yaml
from ruamel.yaml import YAML

from skill_grafting.command import guarded
from skill_grafting.data.tasks import registry
from skill_grafting.errors import ParamsError
from skill_grafting.io import write_text
from skill_grafting.localizers.registry import NAMES, localizer_of
from skill_grafting.settings import get_by_path
from skill_grafting.yaml12 import load_yaml
from stages.commands import profile
from stages.merge.settings import KINDS as MERGING
from stages.workflow.change import change_settings
from stages.workflow.core import paths
from stages.workflow.core.settings import (
    PIPELINES,
    checked,
    flat,
    load_all,
    load_params,
    owner_of,
    params_file,
    read_files,
)
from tests.test_dvc_yaml import FILES, pipeline

ROOT = Path(__file__).parents[2]
TEXTS = {name: (ROOT / params_file(name)).read_text(encoding="utf-8") for name in PIPELINES}
RAW = {section: part for text in TEXTS.values() for section, part in parse_yaml(text, "").items()}
MAIN = [*PIPELINES[""].SECTIONS]
PROFILES = sorted(path.stem for path in (ROOT / paths.PROFILES).glob("*.yaml"))
PAPER = (ROOT / "docs/PAPER.md").read_text(encoding="utf-8")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The project's settings and profiles in an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / paths.PROFILES, paths.PROFILES)
    write_files(Path())
    return tmp_path


def write_files(folder: Path) -> None:
    for name, text in TEXTS.items():
        write_text(folder / params_file(name), text)


def texts() -> dict[str, str]:
    return {name: params_file(name).read_text(encoding="utf-8") for name in PIPELINES}


# --- The files and their profiles ------------------------------------------------------------------------------


def test_the_files_have_every_section_in_the_place_of_its_pipeline():
    assert {name: {*parse_yaml(text, "")} for name, text in TEXTS.items()} == {
        name: {*one.SECTIONS} for name, one in PIPELINES.items()
    }
    every = [section for one in PIPELINES.values() for section in one.SECTIONS]
    assert len({*every}) == len(every), "no section in two pipelines"
    assert TEXTS[""].count("\n") <= 280


def test_the_paper_s_localizer_stands_in_the_file_with_the_defaults_of_its_class():
    assert get_by_path(load_all(ROOT), "localizer.learned") == type(get_by_path(load_all(ROOT), "localizer.learned"))()


def places_in(text: str) -> set[str]:
    """Tables and figures named in a text: of `Figures 8, 11 to 14` each one."""
    found = set()
    for kind, numbers in re.findall(r"\b(table|figure)s? ((?:\d+[a-d]?(?:, | and | to )?)+)", text, re.IGNORECASE):
        for first, last in re.findall(r"(\d+)[a-d]?(?: to (\d+))?", numbers):
            found |= {f"{kind.capitalize()} {number}" for number in range(int(first), int(last or first) + 1)}
    return found


def named_settings() -> list[tuple[str, str, dict[str, Any]]]:
    """Place, profile and settings of every row of the last table of PAPER.md."""
    rows = re.findall(r"^\| (\S[^|]*) \| (`[^|]*`) \|$", PAPER.partition("## Settings")[2], re.MULTILINE)
    found = []
    for place, cell in rows:
        quoted = re.findall(r"`([^`]+)`", cell)
        profiles = [text.removeprefix("PROFILE=") for text in quoted if "=" in text]
        settings = dict(text.split(": ", 1) for text in quoted if "=" not in text)
        values = {key: YAML(typ="safe").load(text) for key, text in settings.items()}
        found.append((place, *(profiles or ["paper_4096"]), values))
    return found


def holds(given: Any, wanted: Any) -> bool:
    """Whether a setting is the wanted one, or has all that is wanted of a list or a table."""
    if isinstance(wanted, dict):
        return all(holds(given.get(key), part) for key, part in wanted.items())
    return {*wanted} <= {*(given or ())} if isinstance(wanted, list) else given == wanted


def test_every_table_and_figure_of_the_paper_is_listed_and_reached_by_a_profile_alone(files):
    assert places_in("Figures 2 and 4a, table 8, figures 11 to 12") == {
        *("Figure 2", "Figure 4", "Table 8", "Figure 11", "Figure 12")
    }
    all_places = {f"Table {n}" for n in range(1, 10)} | {f"Figure {n}" for n in range(2, 16)}
    above, _, settings = PAPER.partition("## Settings")
    assert places_in(above) == places_in(settings) == all_places
    rows = named_settings()
    assert {place for row, *_ in rows for place in places_in(row)} == all_places
    chosen = {name: changed_by(name) for name in {profile for _, profile, _ in rows}}
    for place, name, wanted in rows:
        for key, value in wanted.items():
            assert holds(get_by_path(chosen[name], key), value), f"{place}: {key} of {name}"
            assert not holds(get_by_path(RAW, key), value), f"{place}: {key} is not the profile's doing"
            owned = flat({key.split(".")[0]: profile.profile_settings(name)[key.split(".")[0]]})
            assert any(f"{own}.".startswith(f"{key}.") for own in owned), f"{place}: {name} does not set {key}"


@pytest.mark.parametrize("name", ["paper", "paper_4096", "paper_50k"])
def test_the_profiles_of_the_paper_take_its_authors_settings(files, name):
    values = changed_by(name)
    learned = values["localizer"]["learned"]
    assert (learned["select"], learned["eval_steps"]) == ("authors", 1)
    assert (learned["rate_kind"], learned["learning_rate"], learned["rule"]) == ("absolute", 1e7, "threshold")
    assert values["finetune"]["clip_norm"] == values["peft"]["training"]["clip_norm"] == 1.0


def changed_by(name: str) -> dict[str, Any]:
    """All settings after a profile was chosen, from the files as they were."""
    for pipeline_name, text in TEXTS.items():
        write_text(params_file(pipeline_name), text)
    change_settings(profile.flags(profile.profile_settings(name)), load_all)
    return {section: value for text in texts().values() for section, value in parse_yaml(text, "").items()}


@pytest.mark.parametrize("key", ["graft.sparsity=0.0005", "model.mode=standard", "runtime.threads=2"])
def test_dvc_changes_one_line_of_the_file_and_no_other(key, files):
    apply_overrides(paths.PARAMS, [key])
    lines = zip(TEXTS[""].splitlines(), texts()[""].splitlines(), strict=True)
    assert sum(old != new for old, new in lines) == 1


def listed(value: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of all lists, and of those that null stands for."""
    if isinstance(value, list) or (value is None and key.endswith(".tasks")):
        yield key
    for name, part in value.items() if isinstance(value, dict) else ():
        yield from listed(part, f"{key}.{name}".removeprefix("."))


@pytest.mark.parametrize("name", PIPELINES)
def test_dvc_can_empty_every_list_and_every_comment_stays(name, files):
    # ruamel.yaml runs lines together where an empty list takes the place of one with a comment beside it
    file, keys = params_file(name), [*listed(parse_yaml(TEXTS[name], ""))]
    for value in ("[]", "[1]", "[]"):
        apply_overrides(file, [f"{key}={value}" for key in keys])
    assert load_yaml(file, ParamsError) == changed({key: [] for key in keys})[name]
    assert comments(texts()[name]) == comments(TEXTS[name]) != []


def comments(text: str) -> list[str]:
    return sorted(line.partition("# ")[2] for line in text.splitlines() if "# " in line)


@cache
def leaves(text: str) -> list[str]:
    """Settings of a file, a table of the user's names as one."""
    return [*flat(parse_yaml(text, ""))]


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_valid_keeps_every_comment_and_is_what_its_flags_say(name, files, choose):
    assert choose(name)[0] == 0
    written = texts()
    assert [comments(text) for text in written.values()] == [comments(text) for text in TEXTS.values()]
    wanted = flat({"set": profile.profile_settings(name)})
    now = {**flat({"set": {s: part for text in written.values() for s, part in parse_yaml(text, "").items()}})}
    assert {key: now.get(key) for key in wanted} == wanted and written != TEXTS
    words = shlex.split(choose(name, "--flags")[1])
    assert {*words[::2]} == {"-S"} and words[1::2] == profile.flags(profile.profile_settings(name))


def test_dvc_makes_the_same_of_the_flags_of_a_profile_and_a_profile_of_that(files, choose):
    assert choose("paper_4096")[0] == 0
    written = texts()
    write_files(files)
    for file, items in to_path_overrides(profile.flags(profile.profile_settings("paper_4096"))).items():
        apply_overrides(file, items)
    assert texts() == written != TEXTS
    assert choose("paper_4096")[0] == 0 and texts() == written, "it applies to what DVC wrote"


@pytest.fixture
def choose(files, monkeypatch, capsys):
    """choose(*words): `profile` with these words; exit code, output, errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = 0
        monkeypatch.setattr(sys, "argv", ["profile", *words])
        try:
            guarded("profile", profile.main)
        except SystemExit as left:
            code = left.code
        return code, *capsys.readouterr()

    return run


def test_a_profile_is_written_with_settings_of_several_files_changed_as_dvc_changes_them(choose, files):
    talos = "stages/talos/params.yaml:talos.sparsity=0.05"
    changes = ["graft.sparsity=0.0005", "seeds=[1,2]", "ood.sets={movies:[tweets]}", talos]
    changes += ["+localizer.grown.rounds=5", "+localizer.mine={of:learned,base_share:0.5}", "graft.localizer=mine"]
    code, out, _ = choose("bert_tiny", *(word for change in changes for word in ("-S", change)))
    assert code == 0 and f"have the profile bert_tiny with {', '.join(changes)}" in out
    values = load_all()
    assert (values["graft"].sparsity, values["talos"].sparsity, values["localizer"].grown.rounds) == (0.0005, 0.05, 5)
    assert load_params("localizer.${graft.localizer}").localizer.mine == localizer_of("learned", {"base_share": 0.5})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("graft.sparsty=0.1", "  graft.sparsty: unknown setting (did you mean 'sparsity'?); known: localizer, "),
        ("talos.sparsity=0.1", "  talos: this section belongs in stages/talos/params.yaml"),
        ("graft.sparsity=abc", "  graft.sparsity: 'abc' is not allowed: should be a number"),
        ("localizer.learned.steps=-1", "  localizer.learned.steps: -1 is not allowed: should be greater than or equal to 0"),
        ("+localizer.mine={of:learned,step:3}", "  localizer.mine.step: unknown setting (did you mean 'steps'?); known: base_share, "),
        ("+localizer.mine={of:lerned}", "  localizer.mine.of: unknown localizer 'lerned' (did you mean 'learned'?); known: "),
        ("stages/study/params.yaml:sweep.localizers=[nix]", "  sweep.localizers: unknown localizer 'nix'; known: "),
        ("~graft.region", "  graft.region: this setting is missing"),
        *((bad, f"profile: -S {bad}: DVC can't set this; expected KEY=VALUE, as in graft.sparsity=0.0005")
          for bad in ("data.k", "data.k=1,2", "data.k=range(1,3)", "data.k=${x}", "~nix")),
    ],
)  # fmt: skip
def test_a_wrong_change_of_a_profile_is_told_and_nothing_is_written(choose, change, told, monkeypatch):
    monkeypatch.setattr(profile, "flags", lambda _: [])
    code, _, error = choose("bert_tiny", "-S", change)
    assert code == 2 and error.splitlines()[-1].startswith(told)
    assert texts() == TEXTS


def test_a_profile_starts_from_the_committed_settings_and_no_others(choose):
    subprocess.run("git init -q && git add . && git commit -qm settings", shell=True, check=True)
    assert choose("bert_tiny")[0] == 0 and (written := texts()) != TEXTS
    assert choose("bert_tiny")[0] == 0 and texts() == written, "once more"
    code, _, error = choose("minilm")
    assert code == 2 and "params.yaml, " in error and "git checkout '*params.yaml'" in error and texts() == written
    subprocess.run(["git", "checkout", "-q", "."], check=True)
    assert choose("minilm")[0] == 0, "the control"


def test_a_line_that_dvc_would_break_inside_a_name_is_told(files):
    prompt = '{template: "{sentence1} It was {mask}.", verbalizer: {%s: bad, %s: good}}'
    task, file = "task:\n  mood:\n    labels: [no, yes]\n    prompt: %s\n", Path("params.yaml")
    for names, broken in ((("no", "very good"), True), (("no", "good"), False)):
        text = TEXTS[""].replace("task: {}\n", task % (prompt % names))
        file.write_text(text)
        with pytest.raises(ParamsError, match="break a long line inside a name") if broken else nullcontext():
            change_settings(["graft.sparsity=0.0005"], lambda: None)
        assert (file.read_text() == text) == broken


def test_what_dvc_cannot_set_is_named_and_not_what_was_removed_before_it(choose):
    bad = "stages/study/params.yaml:sweep.localizers"
    code, _, error = choose("bert_tiny", "-S", "~ood.sets", "-S", bad)
    assert code == 2 and f"profile: -S {bad}: DVC can't set this" in error
    assert texts() == TEXTS


@pytest.mark.parametrize(("text", "told"), [
    ("tasks: [movies]", "stages/profiles/mine.yaml: should have `about`, a line on it, and `set`, its settings by section"),
    ("{about: mine, set: [1]}", "stages/profiles/mine.yaml: should have `about`, a line on it, and `set`, its settings by section"),
    ("{about: mine, set: {data: {kk: 8}}}", "data.kk: unknown setting (did you mean 'k'?); known: "),
    ("{about: mine, set: {talo: {a: 1}}}", "stages/profiles/mine.yaml: unknown section 'talo' (did you mean 'talos'?)"),
    (None, f"unknown profile 'mine' (did you mean 'minilm'?); known: {', '.join(PROFILES)}"),
])  # fmt: skip
def test_what_is_no_profile_is_told_in_one_line(text, told, choose):
    if text:
        write_text(paths.PROFILES / "mine.yaml", text)
    code, _, error = choose("mine")
    assert code == 2 and told in error.splitlines()[-1] and texts() == TEXTS


@pytest.mark.parametrize("written", ["0.00005", "5e-5", "5.0e-05", "5E-5"])
def test_a_tiny_number_survives_dvcs_rewriting_as_a_number(written, files):
    apply_overrides(paths.PARAMS, [f"graft.sparsity={written}"])
    assert load_params("graft.sparsity").graft.sparsity == 0.00005
    assert "5e-05" in texts()[""]  # which YAML 1.1 takes for text


@pytest.mark.parametrize("text", ["1234567", "1e10", "0x10", "null", "true", "007"])
def test_text_that_looks_like_something_else_survives_dvcs_rewriting(text, files):
    apply_overrides(paths.PARAMS, [f"model.revision='{text}'", "graft.sparsity=0.0005"])
    assert load_params("model").model.revision == text


def test_a_stage_gets_the_settings_it_asks_for_and_no_others():
    chosen = load_params("tasks", "graft", "data.k", "data.scarce", folder=ROOT)
    assert ({*vars(chosen)}, {*vars(chosen.data)}) == ({"tasks", "graft", "data"}, {"k", "scarce"})
    assert chosen.data.k == 64 and chosen.graft.sparsity == 0.01
    with pytest.raises(ValueError, match="frozen"):
        chosen.graft.sparsity = 0.5
    chosen = load_params("order.domain_first", "method.replay", "localizer.${graft.localizer}", folder=ROOT)
    assert vars(chosen.order) == {"domain_first": RAW["order"]["domain_first"]} and [*vars(chosen.method)] == ["replay"]
    assert [*vars(chosen.localizer)] == ["learned"] and chosen.localizer.learned.steps == 20


# --- Mistakes --------------------------------------------------------------------------------------------------

ABSENT = object()
PROMPT = {"template": "{sentence1} It was {mask}.", "verbalizer": {"bad": "terrible", "good": "great"}}
LABELS = {"labels": ["bad", "good"]}


def changed(changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What stands in the files, by pipeline, once these dotted keys have these values; an unknown section is in the main one."""
    raw = copy.deepcopy(RAW)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = raw
        for section in sections:
            place = place[section]
        place[last] = value
        if value is ABSENT:
            del place[last]
    found: dict[str, dict[str, Any]] = {name: {} for name in PIPELINES}
    for section, part in raw.items():
        found[owner_of(section) or ""][section] = part
    return found


def problems_of(changes: dict[str, Any], *pipelines: str) -> list[str]:
    """The problems of these pipelines' files, by default all, once these dotted keys have these values."""
    with pytest.raises(ParamsError) as problem:
        checked(
            {name: part for name, part in changed(changes).items() if not (pipelines and name) or name in pipelines}
        )
    lines = str(problem.value).split("\n")
    heads = [line for line in lines if not line.startswith("  ")]
    told = [int(re.fullmatch(r"[\w/]*params.yaml has (\d+) problem\(s\):", line)[1]) for line in heads]
    assert sum(told) == len(lines) - len(heads)
    return [line.removeprefix("  ") for line in lines if line not in heads]


def own(**fields: Any) -> dict[str, Any]:
    """The settings of a user's task `reviews` with these fields, as the only task."""
    return {"tasks": ["reviews"], "task": {"reviews": LABELS | fields}, "ood.sets": {}}


ALL_TASKS = f"{', '.join(sorted(registry()))}; define your own under `task:`"
NAME = "should be a name of a-z, 0-9, _ and . that starts with a letter or a digit"
GROUPS = "'layers', 'embeddings', 'pooler' or 'lm_head'"
ONCE = "should be a template with {mask} once, and otherwise only {sentence1} and {sentence2}"

MISTAKES: list[tuple[dict[str, Any], str]] = [
    # sections and settings
    ({"grafts": {}}, f"grafts: unknown section (did you mean 'graft'?); known: {', '.join(MAIN)}"),
    ({"summary": ABSENT}, "summary: this section is missing"),
    ({"summary": None}, "summary: null is not allowed: should be `name: value` pairs"),
    ({"summary": [1]}, "summary: [1] is not allowed: should be `name: value` pairs"),
    ({"summary.least_gains": 1}, "summary.least_gains: unknown setting (did you mean 'least_gain'?); known: least_gain"),
    ({"summary.least_gain": ABSENT}, "summary.least_gain: this setting is missing"),
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
    ({"runtime.gradient_checkpointing": "yes"}, "runtime.gradient_checkpointing: 'yes' is not allowed: should be true or false"),
    ({"runtime.gradient_checkpointing": 1}, "runtime.gradient_checkpointing: 1 is not allowed: should be true or false"),
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
    ({"tasks": ["movies", "bbc", "movies"]}, "tasks: movies is listed twice"),
    ({"tasks": ["moveis"]}, f"tasks: unknown task 'moveis' (did you mean 'movies'?); known: {ALL_TASKS}"),
    ({"tasks": ["my-task"]}, f"tasks.0: 'my-task' is not allowed: {NAME}"),
    ({"seeds": [13, 13]}, "seeds: 13 is listed twice"),
    ({"seeds": [True]}, "seeds.0: true is not allowed: should be a whole number"),
    ({"seeds": [1.0]}, "seeds.0: 1.0 is not allowed: should be a whole number"),
    ({"seeds": ["13"]}, "seeds.0: '13' is not allowed: should be a whole number (without quotes)"),
    ({"seeds": [1, -2]}, "seeds.1: -2 is not allowed: should be greater than or equal to 0"),
    ({"finetune.learning_rates": []}, "finetune.learning_rates: [] is not allowed: should be a list of at least 1"),
    ({"finetune.learning_rates": [0.1, 0]}, "finetune.learning_rates.1: 0 is not allowed: should be greater than 0"),
    ({"finetune.batch_sizes": [8, 8]}, "finetune.batch_sizes: 8 is listed twice"),
    ({"graft.region": ["layer"]}, f"graft.region.0: 'layer' is not allowed: should be {GROUPS} (did you mean 'layers'?)"),
    ({"graft.region": ["layers", "layers"]}, "graft.region: layers is listed twice"),
    # between sections
    ({"graft.region": ["embeddings"]}, "graft.region: 'embeddings' is not among finetune.train (layers), so it never moves"),
    ({"ood.sets": {"movies": ["domain"]}}, "ood.sets.movies: domain has the labels movie, product, newspaper, tweet, movies has negative, positive"),
    ({"ood.sets": {"movies": ["movies"]}}, "ood.sets.movies: movies is the task itself"),
    ({"ood.sets": {"movies": ["tweets", "tweets"]}}, "ood.sets.movies: tweets is listed twice"),
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
    (own(prompt=PROMPT | {"template": "{sentence1:upper} {mask}"}), f"task.reviews.prompt.template: '{{sentence1:upper}} {{mask}}' is not allowed: {ONCE}"),
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
    ({"tasks": ["a" * 101]}, f"tasks.0: '{'a' * 99}... is not allowed: should be at most 100 characters"),
    ({"task": {"my-reviews": LABELS}}, f"task: 'my-reviews' is not allowed: {NAME}"),
    ({"task": {"reviews": {}}}, "task.reviews.labels: this setting is missing"),
    ({"task": None}, "task: null is not allowed: should be `name: value` pairs"),
]  # fmt: skip
MISTAKES_BY_NAME = [pytest.param(*one, id=f"{number}-{next(iter(one[0]))}") for number, one in enumerate(MISTAKES)]


@pytest.mark.parametrize(("changes", "expected"), MISTAKES_BY_NAME)
def test_a_mistake_is_named_by_key_value_and_what_is_allowed(changes, expected):
    assert problems_of(changes, "") == [expected]


AXES = {
    (name, value[2:-1])
    for name, file in FILES.items()
    for stage in pipeline(file)["stages"].values()
    for value in stage.get("matrix", {}).values()
}


@pytest.mark.parametrize(("name", "axis"), sorted(AXES))
def test_no_axis_takes_what_a_shell_would_run(name, axis):
    first = get_by_path(RAW, axis)[0]
    bad = [f"{first} $(touch x)", f"{first};touch x", f"{first}\n", "-x", "../x", "a b", ["`touch x`"], {"a": "$x"}]
    assert len([line for line in problems_of({axis: [first, *bad]}) if line.startswith(f"{axis}.")]) == len(bad)


def test_no_message_speaks_the_validators_language():
    jargon = ("Input", "valid ", "instance", "after validation", "parse", "NoneType", "dictionary", "True", "None", "pydantic", "[key]")  # fmt: skip
    assert [message for _, message in MISTAKES if any(word in message for word in jargon)] == []


def test_all_problems_by_kind_come_at_once_and_those_between_settings_after_them():
    kinds = {"finetune.l1": -1, "finetune.optimizer": "x", "data.k": 0, "seeds": [], "task": {"b": {"labels": ["a"]}}}
    rules = {"ood.sets": {"movies": ["movies"]}, "talos.tasks": ["nix"], "graft.region": ["embeddings"]}
    places = ["seeds", "data.k", "finetune.optimizer", "finetune.l1", "grafts", "task.b.labels", "talos.dev_max"]
    assert [line.split(":")[0] for line in problems_of({"grafts": {}, **kinds, **rules, "talos.dev_max": -1})] == places
    assert [line.split(":")[0] for line in problems_of(rules)] == ["ood.sets.movies", "graft.region", "talos.tasks"]


# --- Other pipelines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [["reviews"], ["reviews", "movies"]], ids=["one task", "two tasks"])
def test_own_tasks_and_seeds_are_two_lines_and_then_no_pipeline_complains(tasks):
    changes = {"tasks": tasks, "seeds": [1], "task": {"reviews": LABELS | {"prompt": PROMPT}}}
    values, lines = checked(changed(changes))
    assert values["study"].tasks == values["trajectory"].tasks == values["surgery"].tasks == tasks
    several = tasks if len(tasks) > 1 else []
    assert values["talos"].tasks == values["multitask"].tasks == several
    assert [*values["merge"].groups.values()] == [several] * bool(several)
    assert {line.partition(":")[0] for line in lines} >= {"order"}
    assert checked(changed({}))[1] == [], "the control: all tasks that the file names are there"


@pytest.mark.parametrize(
    ("changes", "key", "expected", "said"),
    [
        ({"readout.tasks": ["movies", "bbc_pair"]}, "readout.tasks", ["movies"], "readout.tasks: bbc_pair left out, not among study.tasks"),
        ({"study.tasks": ["tweets"]}, "readout.tasks", ["tweets"], ""),
        ({"study.tasks": ["tweets"], "peft.tasks": ["movies"]}, "peft.tasks", [], "peft.tasks: movies left out"),
        ({"trajectory.tasks": []}, "trajectory.tasks", [], ""),
        ({"talos.tasks": ["movies"]}, "talos.tasks", [], "talos.tasks: off, since it takes 2 tasks or more"),
        ({"merge.groups": {"a": None, "b": ["movies", "bbc_pair"]}}, "merge.groups", {"a": RAW["tasks"]},
         "merge.groups: bbc_pair left out"),
        ({"order.domain_first": ["domain", "bbc_pair", "movies"]}, "order.domain_first", ["domain", "movies"], "order: bbc_pair left out"),
        ({"order.domain_first": ["domain", "bbc_pair"]}, "order.domain_first", [], "order: bbc_pair left out"),
        ({"arithmetic.negation.controls": {"movies": "bbc_pair"}}, "arithmetic.negation.controls", {}, "arithmetic.negation.controls: bbc_pair"),
        ({"ood.sets": {"bbc_pair": ["tweets"]}}, "ood.sets", {}, f"ood.sets: bbc_pair left out, not among tasks ({', '.join(RAW['tasks'])})"),
    ],
)  # fmt: skip
def test_tasks_that_are_not_there_are_left_out_in_one_line(changes, key, expected, said):
    values, lines = checked(changed(changes))
    assert get_by_path(values, key) == expected
    assert len(lines) == bool(said) and "".join(lines).startswith(said)


KNOWN_LOCALIZERS = ", ".join(sorted({*NAMES, *RAW["localizer"]}))
ORDERS = {"there": ["movies", "bbc"], "back": ["bbc", "movies"]}
TALOS = {"edit.methods": ["full", "talos"], "arithmetic.methods": ["talos"], "disentangle.methods": ["talos"]}
MISFITS: list[tuple[dict[str, Any], list[str]]] = [
    ({"study.tasks": ["movie"]}, [f"study.tasks: unknown task 'movie' (did you mean 'movies'?); known: {ALL_TASKS}"]),
    ({"merge.groups": {"a": ["movies", "nix"]}}, [f"merge.groups: unknown task 'nix'; known: {ALL_TASKS}"]),
    ({"merge.groups": {"a": ["movies", "movies"]}}, ["merge.groups.a: movies is listed twice"]),
    ({"paradigm.paradigms": ["sgd", "standard"]}, ["paradigm.paradigms: 'standard' is what model.mode=standard does anyway, as 'sgd'; take it out"]),
    ({"sweep.localizers": ["learned", "bias", "randon"]}, [f"sweep.localizers: unknown localizer 'randon' (did you mean 'random'?); known: {KNOWN_LOCALIZERS}"]),
    ({"readout.localizers": ["fish"], "sweep.localizers": ["learned", "random"]}, ["readout.localizers: 'fish' is not among sweep.localizers (learned, random)"]),
    # DVC looks for the masks of its points, though no task uses them
    ({"readout.tasks": [], "readout.localizers": ["fish"], "sweep.localizers": ["learned", "random"]}, ["readout.localizers: 'fish' is not among sweep.localizers (learned, random)"]),
    ({"readout.sparsities": [0.5], "sweep.sparsities": [0.001]}, ["readout.sparsities: 0.5 is not among sweep.sparsities (0.001)"]),
    ({"trajectory.checkpoints": None}, ["trajectory.checkpoints: null is not allowed: should be `name: value` pairs"]),
    ({"combination.methods": ["stich_mean"]}, [f"combination.methods: unknown method 'stich_mean' (did you mean 'stitch_mean'?); known: {', '.join(MERGING)}, and LOCALIZER_SHARE, such as stitch_0.01"]),
    ({"combination.methods": ["stich_0.01"]}, [f"combination.methods: unknown localizer 'stich' (did you mean 'stitch'?); known: {KNOWN_LOCALIZERS}"]),
    ({"combination.search.alphas": [-0.5]}, ["combination.search.alphas.0: -0.5 is not allowed: should be greater than or equal to 0"]),
    ({"combination.shares.dare": 0.0}, ["combination.shares.dare: 0.0 is not allowed: should be greater than 0"]),
    ({"sequence.orders": ["their"], "order": ORDERS}, ["sequence.orders: 'their' is not among order (there, back) (did you mean 'there'?)"]),
    ({"sequence.orders": ["there"], "order": {}}, ["sequence.orders: 'there' is not among order (empty)"]),
    ({"sequence.orders": ["there"], "order": {"there": ["bbc", "movies", "bbc"]}}, ["order.there: bbc is listed twice"]),
    ({"sequence.methods": ["nave"]}, ["sequence.methods.0: 'nave' is not allowed: should be 'naive', 'grafting', 'replay' or 'ewc' (did you mean 'naive'?)"]),
    ({"sequence.orders": ["a.b"], "order": {"a.b": ["bbc", "movies"]}}, ["order: 'a.b' has a dot in it, which stands between a section and its settings; use _ instead"]),
    (TALOS | {"edit.methods": ["full", "talas"], "arithmetic.methods": ["full"], "disentangle.methods": ["full"]}, [f"edit.methods: unknown method 'talas' (did you mean 'talos'?); known: full, graft, full_matched, linear, attention, {KNOWN_LOCALIZERS}"]),
    (TALOS | {"arithmetic.methods": ["lota"]}, ["arithmetic.methods: 'lota' is not among edit.methods (full, talos)"]),
    (TALOS | {"arithmetic.negation.controls": {"movies": "movies"}}, ["arithmetic.negation.controls.movies: movies is the task itself"]),
    (TALOS | {"disentangle.grid.pairs": {"movies": "movies"}}, ["disentangle.grid.pairs.movies: movies is the task itself"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), MISFITS, ids=[f"{number}-{next(iter(changes))}" for number, (changes, _) in enumerate(MISFITS)])  # fmt: skip
def test_what_does_not_fit_is_named_where_the_pipeline_is_used_and_nowhere_else(changes, expected):
    name = owner_of(next(iter(changes)).partition(".")[0])
    assert problems_of({"model.mode": "standard"} | changes, name) == expected
    assert checked({other: part for other, part in changed(changes).items() if other != name})


@pytest.mark.parametrize(
    "changes",
    [
        {"readout.readouts": [], "readout.localizers": ["nix"], "readout.sparsities": [0.9]},
        {"readout.tasks": [], "readout.sparsities": [], "readout.localizers": ["nix"]},
        {"readout.readouts": [], "sweep.localizers": [], "sweep.sparsities": [0.9]},
        {"readout.readouts": [], "sweep.sparsities": [], "sweep.localizers": ["nix"]},
        {"study.tasks": [], "sweep.sparsities": [0.9], "readout.sparsities": []},
        {"fim.tasks": [], "surgery.score.examples": 5, "fim.scores.targets": ["expected"]},
        {"surgery.selections": [], "robustness.tasks": [], "surgery.training.warmup_steps": 9999},
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
    assert checked(changed(changes))


def test_a_warmup_matters_as_long_as_one_stage_trains_by_it():
    long = {"surgery.training.warmup_steps": 9999}
    offs = {"surgery.tasks": []}, {"robustness.tasks": []}, {}
    [one], [other], [both] = (problems_of(long | off) for off in offs)
    assert one == other == both
    assert one.startswith("surgery.training.warmup_steps: a warm-up of 9999 steps is longer than training's 1000")


def test_a_parameter_efficient_method_without_its_size_is_told_what_there_is():
    expected = "is not allowed: should be lora_RANK, houlsby_SIZE or pfeiffer_SIZE, for instance lora_8"
    told = problems_of({"peft.methods": ["lora8", "lora_8", "adapter_0"]})
    assert told == [f"peft.methods.0: 'lora8' {expected}", f"peft.methods.2: 'adapter_0' {expected}"]


def test_a_stage_is_stopped_by_mistakes_of_its_own_pipeline_alone(files):
    for name, change in (("study", "trajectory.checkpoints.every=no"), ("talos", "talos.sparsity=7")):
        apply_overrides(params_file(name), [change])
    assert load_params("graft.region", "graft.sparsity").graft.sparsity
    for key, line in (("anchor", r"trajectory\.checkpoints\.every: 'no'"), ("edit", r"talos\.sparsity: 7")):
        with pytest.raises(ParamsError, match=rf"/params.yaml has 1 problem\(s\):\n  {line}"):
            load_params("model", key)


def test_a_model_that_completes_has_the_main_pipeline_alone():
    [told] = problems_of({"model.mode": "generative"}, "talos")
    assert told.startswith("model.mode: generative is for the main pipeline")
    assert checked({"": changed({"model.mode": "generative"})[""]})


def test_own_tasks_and_other_values_for_built_in_ones_are_fine():
    tasks = {"reviews": LABELS | {"prompt": PROMPT}, "movies": {"title": "Mine"}}
    files = changed({"tasks": [*tasks], "task": tasks, "model.mode": "prompt"})
    assert checked({"": files[""]})[0]["tasks"] == [*tasks]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "params.yaml: no such file; run this from the project's top folder"),
        (b"tasks: [\xff]\n", "params.yaml: not UTF-8 text (byte 8)"),
        (b"tasks: [movies\nseeds: 3\n", "params.yaml: not valid YAML: .*line 2"),
        (b"tasks: [movies]\ntask: {{mask}}\n", "params.yaml: not valid YAML: .*key in line 2; put braces in quotes"),
        (b"tasks:\n\t- movies\n", "params.yaml: not valid YAML: .*line 2"),
        (b"a: 1\nb: 2\na: 3\n", 'params.yaml: not valid YAML: .*found duplicate key "a" .*in line 3'),
        (b"", "params.yaml: expected sections (tasks, seeds, .*, found nothing"),
        (b"- movies\n", "params.yaml: expected sections (tasks, seeds, .*, found ['movies']"),
        (b"tasks: !!int x\n", "params.yaml: not valid YAML: "),
        (b"a: " + b"[" * 3000, "params.yaml: not valid YAML: "),
        (b"a: 2001-99-99", "params.yaml: not valid YAML: month must be in 1..12"),
        (b'model: "\\ud800"', "params.yaml: not valid YAML: .*invalid Unicode"),
        (b"tasks: !!python/object/apply:os.system ['echo']\n", "params.yaml: not valid YAML: "),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_file_that_is_not_settings_is_named_with_the_place(content, expected, tmp_path):
    if content is not None:
        (tmp_path / "params.yaml").write_bytes(content)
    with pytest.raises(ParamsError) as problem:
        read_files([""], tmp_path)
    said = str(problem.value).replace(f"{tmp_path}/", "")
    assert re.match(".*".join(map(re.escape, expected.split(".*"))), said) and "\n" not in said


@pytest.mark.parametrize(
    ("label", "arguments"),
    [
        ("mask@movies-13", ["stages.mask", "--task", "movies", "--seed", "13"]),
        ("sweep@learned-13", ["stages.study.sweep", "--localizer", "learned", "--seed", "13"]),
        ("settings", ["stages.workflow.core.settings"]),
    ],
)  # fmt: skip
def test_a_stage_with_mistakes_in_the_file_says_so_and_writes_nothing(label, arguments, files, command):
    write_text(paths.PARAMS, TEXTS[""].replace("optimizer: sgd ", "optimizer: sdg ").replace("k: 64 ", "k: -64 "))
    before = sorted(files.rglob("*"))
    code, out, error = command(*arguments)
    assert (code, out) == (2, "")
    assert error.splitlines() == [
        f"{label}: params.yaml has 2 problem(s):",
        "  data.k: -64 is not allowed: should be greater than or equal to 1",
        "  finetune.optimizer: 'sdg' is not allowed: should be 'sgd' or 'adamw' (did you mean 'sgd'?)",
    ]
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "told", "near"),
    [
        (["stages.mask", "--nonsense"], "usage: python -m stages.mask ", None),
        (["stages.mask", "--task", "movis", "--seed", "13"], "mask@movis-13: --task: 'movis' is not among tasks (movies, ", "movies"),
        (["stages.merge.combination", "--method", "tise", "--seed", "13"], "combination@tise-13: --method: 'tise' is not among combination.methods", "ties"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_told_with_the_nearest(arguments, told, near, files, command):
    code, _, error = command(*arguments)
    assert code == 2 and error.startswith(told)
    assert near is None or (error.endswith(f" (did you mean {near!r}?)\n") and error.count("\n") == 1)


def test_the_check_looks_at_all_files(files, command):
    check = "stages.workflow.core.settings"
    assert command(check) == (0, "params.yaml is fine, and so are those of 6 more pipelines\n", "")
    apply_overrides(params_file("study"), ["study.tasks=[nix]"])
    code, _, error = command(check)
    assert code == 2 and "study.tasks: unknown task 'nix'" in error
