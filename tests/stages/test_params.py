"""The params.yaml files are read as DVC reads them, profiles fit them, and every mistake in them is one line that names the setting."""

import copy
import math
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir, nullcontext
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import parse_yaml
from ruamel.yaml import YAML

from skill_grafting.localizers.registry import localizer_of
from skill_grafting.support.command import guarded
from skill_grafting.support.errors import ParamsError
from skill_grafting.support.io import write_text
from stages.commands import profile
from stages.text.tasks.settings import get_by_path
from stages.text.tasks.yaml12 import load_yaml
from stages.workflow.change import change_settings
from stages.workflow.stage import paths
from stages.workflow.stage.settings import (
    PIPELINES,
    checked,
    flat,
    load_all,
    load_params,
    owner_of,
    params_file,
    read_files,
    sections_of,
)
from tests.settings_files import start_texts, write_settings
from tests.test_dvc_yaml import FILES, pipeline

ROOT = Path(__file__).parents[2]
COMMITTED = {name: (ROOT / params_file(name)).read_text(encoding="utf-8") for name in PIPELINES}  # or edited since
TEXTS = start_texts()
PROFILES = sorted(path.stem for path in (ROOT / paths.PROFILES).glob("*.yaml"))
PAPER = (ROOT / "docs/PAPER.md").read_text(encoding="utf-8")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The project's settings and profiles in an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / paths.PROFILES, paths.PROFILES)
    write_settings(TEXTS)
    return tmp_path


def texts(folder: Path = Path()) -> dict[str, str]:
    return {name: (folder / params_file(name)).read_text(encoding="utf-8") for name in PIPELINES}


@cache
def chosen(profile_name: str) -> dict[str, str]:
    """The files after a profile was chosen."""
    with TemporaryDirectory() as folder, chdir(ROOT):
        write_settings(TEXTS, place := Path(folder))
        change_settings(profile.flags(profile.profile_settings(profile_name)), lambda: load_all(place), place)
        return texts(place)


def settings_in(files: dict[str, str]) -> dict[str, Any]:
    return {section: value for text in files.values() for section, value in parse_yaml(text, "").items()}


def comments(text: str) -> list[str]:
    return sorted(line.partition("# ")[2] for line in text.splitlines() if "# " in line)


RAW = settings_in(TEXTS)


# --- The files, and what DVC makes of them ----------------------------------------------------------------------


def test_the_files_have_every_section_in_the_place_of_its_pipeline():
    assert {name: {*parse_yaml(text, "")} for name, text in COMMITTED.items()} == {
        name: {*sections_of(name)} for name in PIPELINES
    }
    every = [section for name in PIPELINES for section in sections_of(name)]
    assert len({*every}) == len(every), "no section in two pipelines"


@pytest.mark.slow
def test_the_settings_that_the_project_has_are_as_dvc_writes_them_with_the_defaults_of_the_papers_localizer(files):
    """This doesn't hold of everybody's own."""
    write_settings(COMMITTED)
    for name in PIPELINES:
        apply_overrides(params_file(name), [])
    assert texts() == COMMITTED
    learned = load_all()["localizer"].learned
    assert learned == type(learned)()


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


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [("graft.sparsity", number, 0.00005) for number in ("0.00005", "5e-5", "5E-5")]
    + [("model.revision", f"'{text}'", text) for text in ("1234567", "1e10", "0x10", "null", "true", "007")],
)
def test_what_dvc_writes_is_read_as_it_was_meant_and_no_other_line_changes(key, written, value, files):
    apply_overrides(paths.PARAMS, [f"{key}={written}"])
    assert get_by_path(load_params(key), key) == value
    lines = zip(TEXTS[""].splitlines(), texts()[""].splitlines(), strict=True)
    assert sum(old != new for old, new in lines) == 1


def test_a_stage_gets_the_settings_it_asks_for_and_no_others(files):
    chosen = load_params("tasks", "graft", "data.k", "data.scarce")
    assert ({*vars(chosen)}, {*vars(chosen.data)}) == ({"tasks", "graft", "data"}, {"k", "scarce"})
    assert chosen.data.k == 64 and chosen.graft.sparsity == 0.01
    with pytest.raises(ValueError, match="frozen"):
        chosen.graft.sparsity = 0.5
    chosen = load_params("order.domain_first", "method.replay", "localizer.${graft.localizer}")
    assert chosen.order == {"domain_first": RAW["order"]["domain_first"]} and [*vars(chosen.method)] == ["replay"]
    assert [*chosen.localizer.model_extra] == ["learned"] and chosen.localizer.learned.steps == 20
    with pytest.raises(AttributeError, match="no attribute 'graft'"):
        _ = chosen.graft


# --- Profiles ---------------------------------------------------------------------------------------------------


def places_in(text: str) -> set[str]:
    """Tables and figures named in a text: of `Figures 8, 11 to 14` each one."""
    found = set()
    for kind, numbers in re.findall(r"\b(table|figure)s? ((?:\d+[a-d]?(?:, | and | to )?)+)", text, re.IGNORECASE):
        for first, last in re.findall(r"(\d+)[a-d]?(?: to (\d+))?", numbers):
            found |= {f"{kind.capitalize()} {number}" for number in range(int(first), int(last or first) + 1)}
    return found


def holds(given: Any, wanted: Any) -> bool:
    """Whether a setting is the wanted one, or has all that is wanted of a list or a table."""
    if isinstance(wanted, dict):
        return all(holds(given.get(key), part) for key, part in wanted.items())
    return {*wanted} <= {*(given or ())} if isinstance(wanted, list) else given == wanted


def test_every_table_and_figure_of_the_paper_is_reached_by_a_profile():
    settings = PAPER.partition("## Settings")[2]
    assert places_in(settings) == {f"Table {n}" for n in range(1, 10)} | {f"Figure {n}" for n in range(2, 16)}
    for place, cell in re.findall(r"^\| (\S[^|]*) \| (`[^|]*`) \|$", settings, re.MULTILINE):
        quoted = re.findall(r"`([^`]+)`", cell)
        name = next((text.removeprefix("PROFILE=") for text in quoted if "=" in text), "paper_4096")
        now = settings_in(chosen(name))
        for key, text in (one.split(": ", 1) for one in quoted if "=" not in one):
            assert holds(get_by_path(now, key), YAML(typ="safe").load(text)), f"{place}: {key} of {name}"


STRANGE = ["2019", "007", "1e5", "1.5", "0x10", "null", "nan", "inf", "true", "na"]


def test_a_profile_keeps_names_that_look_like_numbers_truth_values_or_nothing(files):
    wanted = {"tasks": STRANGE, "model": {"name": "007"}}
    change_settings(profile.flags(wanted), lambda: None)
    assert {"tasks": (now := parse_yaml(texts()[""], ""))["tasks"], "model": {"name": now["model"]["name"]}} == wanted
    change_settings([f"tasks=[{','.join(STRANGE)}]"], lambda: None)
    assert parse_yaml(texts()[""], "")["tasks"] != STRANGE, "the control: without quotes"


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_valid_keeps_every_comment_and_says_what_the_settings_are(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    files = chosen(name)
    assert [comments(text) for text in files.values()] == [comments(text) for text in TEXTS.values()]
    now, wanted = (flat({"set": settings}) for settings in (settings_in(files), profile.profile_settings(name)))
    assert {key: now.get(key) for key in wanted} == wanted and files != TEXTS
    if name.startswith("paper"):
        authors = {"select": "authors", "eval_steps": 1, "rule": "threshold", "rate_kind": "absolute", "learning_rate": 1e7}
        assert get_by_path(settings_in(files), "localizer.learned").items() >= authors.items()


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


def test_a_profile_is_written_with_settings_of_several_files_changed_as_dvc_changes_them(choose):
    talos = "stages/talos/params.yaml:talos.sparsity=0.05"
    changes = ["graft.sparsity=0.0005", "seeds=[1,2]", "ood.sets={movies:[tweets]}", talos]
    changes += ["++localizer.grown.rounds=5", "+localizer.mine={of:learned,base_share:0.5}", "graft.localizer=mine"]
    code, out, _ = choose("bert_tiny", *(word for change in changes for word in ("-S", change)))
    assert code == 0 and f"have the profile bert_tiny with {', '.join(changes)}" in out
    values = load_all()
    assert (values["graft"].sparsity, values["talos"].sparsity, values["localizer"].grown.rounds) == (0.0005, 0.05, 5)
    assert load_params("localizer.${graft.localizer}").localizer.mine == localizer_of("learned", {"base_share": 0.5})


WRONG = [
    *(
        (["-S", change], word)
        for change, word in {
            "graft.sparsty=0.1": "'sparsity'", "talos.sparsity=0.1": "stages/talos/params.yaml", "localizer.learned.steps=-1": "-1 is not allowed",
            "+localizer.mine={of:learned,step:3}": "'steps'", "+localizer.mine={of:lerned}": "'learned'", "~graft.region": "missing",
            "data.k": "DVC can't set", "data.k=${x}": "DVC can't set",
        }.items()
    ),
    (["-S", "~ood.sets", "-S", "stages/study/params.yaml:sweep"], "-S stages/study/params.yaml:sweep: DVC can't set"),
    ("tasks: [movies]", "`about`"), ("{about: mine, set: [1]}", "`about`"), ("{about: mine, set: {data: {kk: 8}}}", "'k'"),
    ("{about: mine, set: {talo: {a: 1}}}", "'talos'"), (["nix"], "'nix'"), (["minlm"], "'minilm'"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "told"), WRONG)
def test_a_wrong_profile_or_change_is_told_and_nothing_is_written(choose, words, told):
    own = isinstance(words, str)
    write_text(paths.PROFILES / "mine.yaml", words if own else "{about: mine, set: {data: {k: 8}}}")
    code, _, error = choose(*(["mine"] if own or words[0] == "-S" else []), *([] if own else words))
    assert code == 2 and told in error.splitlines()[-1] and texts() == TEXTS


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


CANNOT_BE_SET = {
    "graft.sparsity": "expected KEY=VALUE", "stages/studi/params.yaml:study.test_max=5": "stages/studi/params.yaml: no such file (did you mean 'stages/study/params.yaml'?)",
    "~nope": "there is no nope that could be taken away",
}  # fmt: skip


@pytest.mark.parametrize("asked", CANNOT_BE_SET)
def test_what_dvc_cannot_set_is_told(asked, files):
    before = texts()
    with pytest.raises(ParamsError, match=re.escape(f"-S {asked}: DVC can't set this; {CANNOT_BE_SET[asked]}")):
        change_settings(["graft.sparsity=0.5", asked], lambda: None)
    assert texts() == before


# --- Mistakes ---------------------------------------------------------------------------------------------------

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


def own(place: str = "", **fields: Any) -> tuple[str, dict[str, Any]]:
    """A mistake at a place of a user's task `reviews`, which is the only task and has these fields."""
    where = ".".join(["task.reviews", place]) if place else "task.reviews"
    return where, {"tasks": ["reviews"], "task": {"reviews": LABELS | fields}, "ood.sets": {}}


def prompt(place: str = "", field: str = "prompt", **fields: Any) -> tuple[str, dict[str, Any]]:
    """The same, of its prompt with these fields."""
    return own(f"{field}.{place}".rstrip("."), **{field: PROMPT | fields})


GAME = {"edit.methods": ["full", "talos"], "arithmetic.methods": ["talos"], "disentangle.methods": ["talos"]}
# place, or place and changes (else the value is wrong at that place); value; what has to be said
MISTAKES: list[tuple[str | tuple[str, dict[str, Any]], Any, str]] = [
    ("grafts", {}, "'graft'"), ("summary", ABSENT, "missing"), ("summary.least_gains", 1, "'least_gain'"),
    # numbers, texts and choices
    ("graft.sparsity", 0, "greater than 0"), ("graft.sparsity", "0.01", "valid number"), ("graft.sparsity", math.nan, "finite"),
    ("finetune.dropout", 1.0, "less than 1"), ("runtime.gradient_checkpointing", 1, "boolean"), ("finetune.optimizer", "sdg", "'sgd'"),
    ("model.revision", 1234567, "string"),
    # lists
    ("tasks", [], "at least 1 item"), ("tasks", ["movies", "bbc", "movies"], "twice"), ("tasks", ["moveis"], "'movies'"),
    (("tasks.0", {"tasks": ["my-task"]}), None, "pattern"), (("seeds.1", {"seeds": [1, -2]}), None, "greater than or equal to 0"),
    (("graft.region.0", {"graft.region": ["layer"]}), None, "'layers'"),
    # between sections
    ("graft.region", ["embeddings"], "never moves"), (("ood.sets.movies", {"ood.sets": {"movies": ["domain"]}}), None, "labels"),
    (("ood.sets.movies", {"ood.sets": {"movies": ["movies"]}}), None, "itself"), (("ood.sets.movies", {"ood.sets": {"movies": ["tweet"]}}), None, "'tweets'"),
    ("ood.sets", {"movie": ["tweets"]}, "'movies'"),
    # a user's own task
    (own("prompt"), None, "template and a verbalizer"), (prompt("template", template="It was great."), None, "{mask} once"),
    (prompt("template", template="It was {mask}."), None, "every row"), (prompt("template", template="{text} {mask}"), None, "only {sentence1}"),
    (prompt(verbalizer={"bad": "terrible"}), None, "exactly"), (prompt("verbalizer", verbalizer={"bad": "so", "good": "so"}), None, "different word"),
    *((prompt("verbalizer", verbalizer={"bad": "no", "good": word}), None, repr(word)) for word in ("", "yes ")),
    (prompt("tmplate", tmplate="x"), None, "'template'"), (own("prompt", prompt="It was {mask}."), None, "dictionary"),
    (prompt(field="causal_prompt"), None, "ends with {mask}"), (own("relabel", prompt=PROMPT, relabel={"pos": "god"}), None, "'good'"),
    (own("labels", labels=["bad"]), None, "at least 2 items"), (own("labels", labels=["bad", "bad"]), None, "differ"),
    (own("labels", labels=["bad ", "good"]), None, "space"), (own("positive", prompt=PROMPT, positive="nice"), None, "one of the labels"),
    (("task.2025", {"task": {2025: LABELS | {"prompt": PROMPT}}}), None, "string"),
    # further pipelines; DVC looks for the masks of its points, though no task uses them
    ("study.tasks", ["movie"], "'movies'"), ("sweep.localizers", ["learned", "bias", "randon"], "'random'"), ("readout.sparsities", [0.5], "sweep.sparsities"),
    (("readout.localizers", {"readout.tasks": [], "readout.localizers": ["fish"], "sweep.localizers": ["learned"]}), None, "sweep.localizers"),
    (("peft.methods.0", {"peft.methods": ["lora8", "lora_8"]}), None, "lora_RANK"), ("merge.groups", {"a": ["movies", "nix"]}, "'nix'"),
    ("combination.methods", ["stich_mean"], "'stitch_mean'"), ("combination.methods", ["stich_0.01"], "'stitch'"),
    ("combination.shares.dare", 0.0, "greater than 0"), ("sequence.orders", ["domain_lst"], "order"),
    (("sequence.methods.0", {"sequence.methods": ["nave"]}), None, "'naive'"),
    (("order", {"sequence.orders": ["a.b"], "order": {"a.b": ["bbc", "movies"]}}), None, "dot"),
    (("edit.methods", GAME | {"edit.methods": ["full", "talos", "talas"]}), None, "'talos'"),
    (("arithmetic.methods", GAME | {"arithmetic.methods": ["lota"]}), None, "edit.methods"),
    (("arithmetic.negation.controls.movies", {"arithmetic.negation.controls": {"movies": "movies"}}), None, "itself"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "value", "words"), MISTAKES, ids=lambda part: "absent" if part is ABSENT else str(part[0] if isinstance(part, tuple) else part)[:40])  # fmt: skip
def test_a_mistake_is_one_line_with_its_place_where_the_pipeline_is_used_and_nowhere_else(at, value, words):
    place, changes = (at, {at: value}) if isinstance(at, str) else at
    name = owner_of(place.partition(".")[0]) or ""
    [line] = problems_of(changes, name)
    assert line.startswith(f"{place}: ") and words in line, line
    assert not name or checked({other: part for other, part in changed(changes).items() if other != name})


def test_all_problems_by_kind_come_at_once_and_those_between_settings_after_them():
    kinds = {"finetune.l1": -1, "finetune.optimizer": "x", "data.k": 0, "seeds": [], "task": {"b": {"labels": ["a"]}}}
    rules = {"ood.sets": {"movies": ["movies"]}, "talos.tasks": ["nix"], "graft.region": ["embeddings"]}
    places = ["seeds", "data.k", "finetune.optimizer", "finetune.l1", "grafts", "task.b.labels", "talos.dev_max"]
    assert [line.split(":")[0] for line in problems_of({"grafts": {}, **kinds, **rules, "talos.dev_max": -1})] == places
    assert [line.split(":")[0] for line in problems_of(rules)] == ["ood.sets.movies", "graft.region", "talos.tasks"]


AXES = {
    value[2:-1]
    for file in FILES.values()
    for stage in pipeline(file)["stages"].values()
    for value in stage.get("matrix", {}).values()
}


@pytest.mark.parametrize("axis", sorted(AXES))
def test_no_axis_takes_what_a_shell_would_run(axis):
    first = get_by_path(RAW, axis)[0]
    bad = [f"{first} $(touch x)", f"{first};touch x", f"{first}\n", "-x", "../x", "a b", ["`touch x`"], {"a": "$x"}]
    assert len([line for line in problems_of({axis: [first, *bad]}) if line.startswith(f"{axis}.")]) == len(bad)


# --- What fits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [["reviews"], ["reviews", "movies"]], ids=["one task", "two tasks"])
def test_own_tasks_and_seeds_are_two_lines_and_then_no_pipeline_complains(tasks):
    changes = {"tasks": tasks, "seeds": [1], "task": {"reviews": LABELS | {"prompt": PROMPT}, "movies": {"title": "M"}}}
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
        ({"study.tasks": ["tweets"], "peft.tasks": None}, "readout.tasks", ["tweets"], ""),
        ({"study.tasks": ["tweets"], "peft.tasks": ["movies"]}, "peft.tasks", [], "peft.tasks: movies left out"),
        ({"talos.tasks": ["movies"]}, "talos.tasks", [], "talos.tasks: off, since it takes 2 tasks or more"),
        ({"merge.groups": {"a": None, "b": ["movies", "bbc_pair"]}}, "merge.groups", {"a": RAW["tasks"]}, "merge.groups: bbc_pair"),
        ({"order.domain_first": ["domain", "bbc_pair", "movies"]}, "order.domain_first", ["domain", "movies"], "order: bbc_pair left out"),
        ({"order.domain_first": ["domain", "bbc_pair"]}, "order.domain_first", [], "order: bbc_pair left out"),
        ({"arithmetic.negation.controls": {"movies": "bbc_pair"}}, "arithmetic.negation.controls", {}, "arithmetic.negation.controls: bbc_pair"),
        ({"ood.sets": {"bbc_pair": ["tweets"]}}, "ood.sets", {}, "ood.sets: bbc_pair left out, not among tasks"),
    ],
)  # fmt: skip
def test_tasks_that_are_not_there_are_left_out_in_one_line(changes, key, expected, said):
    values, lines = checked(changed(changes))
    assert get_by_path(values, key) == expected
    assert len(lines) == bool(said) and "".join(lines).startswith(said)


@pytest.mark.parametrize(
    "changes",
    [
        {"readout.readouts": [], "readout.localizers": ["nix"], "readout.sparsities": [0.9]},
        {"readout.readouts": [], "sweep.localizers": [], "sweep.sparsities": [0.9]},
        {"study.tasks": [], "sweep.sparsities": [0.9], "readout.sparsities": []},
        {"fim.tasks": [], "surgery.score.examples": 5, "fim.scores.targets": ["expected"]},
        {"tasks": ["movies"], "ood.sets": {}, "combination.methods": ["nix"]},
        {"multitask.tasks": [], "skill.localizers": ["nix"]},
        {"talos.tasks": ["bbc"], "edit.methods": ["nix"], "arithmetic.methods": [], "disentangle.methods": []},
        {"arithmetic.methods": [], "arithmetic.negation.controls": {"movies": "movies"}},
        {"sequence.methods": [], "sequence.orders": ["nix"]},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_other_settings_of_a_stage_that_is_off_do_not_matter(changes):
    assert checked(changed(changes))


# --- Commands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file; run this from the project's top folder"),
        (b"tasks: [\xff]\n", "not UTF-8 text (byte 8)"),
        (b"tasks: [movies\nseeds: 3\n", "line 2"),
        (b"tasks: [movies]\ntask: {{mask}}\n", "key in line 2; put braces in quotes"),
        (b"a: 1\nb: 2\na: 3\n", 'found duplicate key "a"'),
        (b"", "expected sections (tasks, seeds, "),
        (b"- movies\n", "found ['movies']"),
        (b"a: " + b"[" * 3000, "not valid YAML: "),
        (b"a: 2001-99-99", "month must be in 1..12"),
        (b'model: "\\ud800"', "invalid Unicode"),
        (b"tasks: !!python/object/apply:os.system ['echo']\n", "not valid YAML: "),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_file_that_is_not_settings_is_named_with_the_place(content, expected, tmp_path):
    if content is not None:
        (tmp_path / "params.yaml").write_bytes(content)
    with pytest.raises(ParamsError) as problem:
        read_files([""], tmp_path)
    said = str(problem.value).replace(f"{tmp_path}/", "")
    assert said.startswith("params.yaml: ") and expected in said and "\n" not in said


GROWING = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
VALUES = [
    "[[1, 2], [3]]", "!!bool maybe", "!!float", "!!set {a, b}", "&a {of: learned, rate_kind: *a}", "*a8", "[" + "x, " * 200_000 + "1]",
    "[" + "x, " * 9000 + "1]", "[" + "movies, " * 9000 + "movies]", "0x" + "f" * 5000, "{sparsity: " * 60 + "1" + "}" * 60, "&a [*a]", "!!int x", "!!timestamp 2020-99-99", "!!omap [a: 1]", "!!binary zzz=", "!foo bar", "1e999", "{? [1] : 3}",
    "{<<: [1]}", "{null: 1}", "{1.5: 2}", "2020-01-01", "%", "@x", "---", "[{}, {}]", "!!bool 1", "!!set [1]", "*nope", "<<", "[null, [true]]", "!!pairs 3",
]  # fmt: skip


def test_no_damage_of_the_files_is_anything_but_told(files):
    random, ends = Random(0), Counter()
    for _ in range(60):
        name = random.choice([*PIPELINES])
        lines = (GROWING * random.randrange(2) + TEXTS[name]).splitlines()
        place = random.choice([place for place, line in enumerate(lines) if re.match(r"\s*\w+:", line)])
        lines[place] = f"{lines[place].partition(':')[0]}: {random.choice(VALUES)}"
        write_text(params_file(name), "\n".join(lines) + "\n")
        started = time.process_time()
        try:
            load_all()
            ends["fine"] += 1
        except ParamsError as problem:
            ends["told"] += 1
            assert max(map(len, str(problem).splitlines())) < 1600 and str(problem).count("\n") < 80
        assert time.process_time() - started < 2
        write_text(params_file(name), TEXTS[name])
    assert ends["told"] > 50
    with pytest.raises(IndexError):  # the control
        YAML(typ="safe").load("!!float")


def test_a_stage_with_mistakes_in_the_file_says_so_and_writes_nothing(files, command):
    write_text(paths.PARAMS, TEXTS[""].replace("optimizer: sgd ", "optimizer: sdg ").replace("k: 64 ", "k: -64 "))
    before = sorted(files.rglob("*"))
    code, out, error = command("stages.study.sweep", "--localizer", "learned", "--seed", "13")
    assert (code, out) == (2, "") and sorted(files.rglob("*")) == before
    assert [line.split(": ")[:2] for line in error.splitlines()[1:]] == [
        ["  data.k", "-64 is not allowed"], ["  finetune.optimizer", "'sdg' is not allowed"],
    ]  # fmt: skip
    assert error.startswith("sweep@learned-13: params.yaml has 2 problem(s):\n")


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
