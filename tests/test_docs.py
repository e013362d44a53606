"""Whatever the pages tell a reader to type, open or set is there, and the first page's Python and numbers are right."""

import csv
import re
import runpy
import shlex
import subprocess
import sys
from os.path import normpath
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from ruamel.yaml import YAML

from skill_grafting.patches.__main__ import ARGUMENTS
from skill_grafting.support.errors import ParamsError
from skill_grafting.support.io import read_json
from stages.commands import profile
from stages.text.tasks.tasks import resolve_tasks
from stages.workflow.change import change_settings
from stages.workflow.report.stats import estimate
from stages.workflow.stage import paths
from stages.workflow.stage.settings import PIPELINES, flat, load_all, sections_of
from tests.committed import committed
from tests.dvc_project import fenced
from tests.settings_files import lay_out_settings
from tests.test_dvc_yaml import ALL, FILES, lies_in, output_paths, pipeline

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# all but what `make report` makes
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "REPRODUCTION"]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
# their commands and settings belong together and are run by tests/walkthroughs/test_own.py
APART = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.stem not in ("OWN", "CONTRIBUTING"))
# inside folders that are made, of the user's, and what every pipeline may have
INSIDE = (
    "indices/<name> values/<name> head/<name> settings.py anatomy.json config.json model.safetensors tokenizer.json test.csv relative.py"
).split()
ENDINGS = "html|py|yaml|md|json|jsonl|csv|tsv|png|txt|toml|safetensors|lock"
MADE = [path for name in ALL for path in output_paths(name, "outs", "metrics")]


def fences(language: str) -> list[str]:
    """Every fenced block of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", APART, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Every command of the bash blocks as words, without its comment."""
    lines = [line for block in fences("bash") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def quoted() -> list[str]:
    """Everything between single backticks outside of fences."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL))


def targets() -> set[str]:
    lines = re.findall(r"^([a-z][a-z -]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return {name for line in lines for name in line.split()}


def test_clean_removes_what_stages_make_and_nothing_of_the_users(tmp_path):
    own = {f"{folder}/mine/file" for folder in ("data/local", "models/local", "models/checkpoints")}
    made = {re.sub(r"\$\{[^}]*\}", "x", path) for path in MADE if not path.startswith(("metrics/", "plots/"))}
    for file in (*own, *(f"{path}/file" for path in made)):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    for name in (".gitignore", "Makefile"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["make", "-s", "clean"], cwd=tmp_path, check=True)
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("file")} == own


def test_help_tells_every_target_and_pages_name_no_other():
    used = {word for words in commands() if words[0] == "make" for word in words[1:] if "=" not in word}
    used |= {text.split()[1] for text in quoted() if text.startswith("make ")}
    assert used and used <= targets()
    told = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {*re.findall(r"^make ([a-z-]+)", told, re.MULTILINE)} == targets()


def test_every_option_of_graft_in_running_text_is_one():
    known = {name: {*options} for name, options in ARGUMENTS.items()}
    named = [(words[1], word) for text in quoted() if (words := text.split())[0] == "graft" and words[1:2] for word in words[2:] if word.startswith("--")]
    assert named and [(name, word) for name, word in named if word not in known[name]] == []


def test_every_profile_has_a_name_in_the_pages():
    assert {*profile.profiles()} <= {*quoted()}


def test_every_override_is_allowed(tmp_path):
    overrides = [words[number + 1] for words in commands() for number, word in enumerate(words) if word == "-S"]
    assert overrides
    for override in overrides:
        lay_out_settings(folder=tmp_path)
        change_settings([override], lambda: load_all(tmp_path), tmp_path)


def test_every_piece_of_settings_fits_params_yaml(tmp_path):
    for block in fences("yaml"):
        lay_out_settings(YAML(typ="safe").load(block.replace(", ...}", "}")), folder=tmp_path)
    with pytest.raises(ParamsError):  # the control
        lay_out_settings({"data": {"source": "nowhere"}}, folder=tmp_path)


def test_every_setting_that_is_named_exists(tmp_path):
    lay_out_settings(folder=tmp_path)
    named = {text.split(":")[0].split("=")[0] for text in quoted() if re.match(r"[a-z]+\.[a-z_0-9]+\b(?!/)", text)}
    sections = {name: kind for one in PIPELINES for name, kind in sections_of(one).items()}
    settings = {name for name in named if name.split(".")[0] in sections and not re.search(rf"\.({ENDINGS})$", name)}
    known = {f"{name}.{field}" for name, kind in sections.items() for field in getattr(kind, "model_fields", ())}
    known |= {*flat(load_all(tmp_path))}
    assert settings and settings <= known | {key.rpartition(".")[0] for key in known}


PAPERS = ("paper", "paper_4096", "paper_50k", "gpt2")  # the profiles of the paper


def switches() -> list[tuple[str, object, set[str]]]:
    """Of the table of the method in DEVIATIONS.md: each setting with the authors' value, and the profiles of the paper that are said to have it."""
    page = (ROOT / "docs/DEVIATIONS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|(.*)\|$", page.partition("## The method")[2].partition("\n## ")[0], re.MULTILINE)
    cells = [row.rpartition(" | ")[2] for row in rows[2:]]
    found = [switch for cell in cells for switch in re.findall(r"`([a-z_]+(?:\.\w+)+): ([^`]+)`(?: \(([^)]*)\))?", cell)]
    names = [{*re.findall(r"`(\w+)`", where)} if where else {*PAPERS} for *_, where in found]
    return [(key, YAML(typ="safe").load(value), own) for (key, value, _), own in zip(found, names, strict=True)]


def profiled(name: str) -> dict[str, object]:
    """Every setting under a profile."""
    return {**flat(load_all(ROOT)), **{
        key: value for section, part in profile.profile_settings(name).items() for key, value in flat({section: part}).items()
    }}  # fmt: skip


def wrongly_claimed(settings: dict[str, dict[str, object]]) -> set[tuple[str, str]]:
    """(profile, setting) for which DEVIATIONS.md says something else than the settings of the profiles."""
    return {(name, key) for key, value, own in switches() for name in PAPERS if (settings[name][key] == value) != (name in own)}


def test_each_profile_of_the_paper_has_the_switches_that_deviations_claims_for_it():
    settings = {name: profiled(name) for name in PAPERS}
    assert len(switches()) >= 12 and wrongly_claimed(settings) == set()
    for key, value, own in switches():
        for name in own:  # the control: a profile that loses it
            lost = {**settings, name: {**settings[name], key: None}}
            assert wrongly_claimed(lost) == {(name, key)}, (key, value)


def paths_named() -> set[str]:
    """All that looks like a path of this project, in backticks or links, and the files of the modules that are run."""
    words = [word for text in quoted() for word in text.split()] + re.findall(r"\]\(([^)#:]+)\)", TEXT)
    looks = re.compile(rf"(?:[\w<>.-]+/)+[\w<>.-]*|[\w-]+\.(?:{ENDINGS})")
    modules = {name.replace(".", "/") for name in re.findall(r"python -m ((?:stages|tests)[\w.]+)", TEXT)}
    return {word for word in words if looks.fullmatch(word) and not word.startswith("<")} | modules


def is_there(path: str) -> bool:
    """True if a path exists, is made by a stage, or is a place for the user's files."""
    plain = path.rstrip("/").replace("<task>", "${item.task}").replace("<seed>", "${item.seed}")
    if plain in INSIDE:
        return True
    if "<" in plain:
        return (ROOT / plain.partition("<")[0]).is_dir()
    example = re.sub(r"/13/reviews(?=[./]|$)", "/${item.seed}/${item.task}", plain)
    return (
        any((ROOT / top / f"{plain}{end}").exists() for top in (".", "stages", "docs") for end in ("", ".py"))
        or plain == str(paths.PAGE)
        or any(lies_in(example, made) for made in MADE)
        or plain.startswith(("data/local/", "models/local/", ".dvc/", ".venv/"))
    )


def test_every_path_that_is_named_exists_or_is_made():
    named = paths_named()
    assert {"stages/skill_grafting/grafting/apply.py", "metrics/summary.md", "stages/workflow/stage/paths.py"} <= named
    assert [path for path in sorted(named) if not is_there(path)] == []
    assert not is_there("stages/skill_grafting/grafting/applied.py") and not is_there("plots/nothing.png")


def test_the_first_page_leads_to_all_others():
    linked = {*re.findall(r"\]\((?:docs/)?(\w+)\.md\)", README)}
    assert {path.stem for path in PAGES} - {"README"} <= linked


def hooks() -> SimpleNamespace:
    """What docs/hooks.py makes of the pages, without mkdocs."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs/hooks.py")))


def test_the_site_has_every_picture_of_the_first_page_and_no_bytecode():
    shown = hooks().pictures()
    assert "plots/schematic_dark.svg" in shown and any(name.endswith("/main/accuracy.png") for name in shown)
    assert [name for name in shown if not (ROOT / name).is_file()] == []
    site = YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {"__pycache__/", "hooks.py"} <= {*site["exclude_docs"].split()}


def test_a_site_that_names_what_it_does_not_have_is_not_built(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two.html").write_text('<h1 id="there">Two</h1><a href="https://elsewhere.example/no">x</a><a href="one/">x</a><img src="data:image/png;base64,xx">')
    (tmp_path / "one/index.html").write_text('<a href="../two.html#there">x</a><img src="/a%20b.png"><a href="#gone">x</a><source srcset="dark.svg 2x"><a href="../two.html#not">')
    (tmp_path / "a b.png").touch()
    broken = hooks().broken
    assert broken(tmp_path) == [f"one/index.html: {name}" for name in ("#gone", "dark.svg", "../two.html#not")]


@pytest.mark.slow
def test_every_link_and_picture_of_the_built_site_is_there(tmp_path):
    pytest.importorskip("mkdocs", reason="`make docs` installs it")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")], cwd=ROOT, check=True)
    assert "plots/reports" in (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert hooks().broken(tmp_path / "site") == [] and not [*tmp_path.rglob("__pycache__")]


def test_every_page_has_a_place_in_the_site():
    site = YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    entries = [place for entry in site["nav"] for place in entry.values()]
    there = {name for place in entries for name in ([place] if isinstance(place, str) else place)}
    made = dict(re.findall(r'"([\w./]+\.md)": "(\w+\.md)"', (ROOT / "docs/hooks.py").read_text(encoding="utf-8")))
    own = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    notebooks = {f"{file.stem}.md" for file in (ROOT / "docs/notebooks").glob("*.ipynb")}
    assert there == {*own, *made.values(), *notebooks, "api.md"} and all((ROOT / file).is_file() for file in made)


def test_the_version_is_one():
    versions = [re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)[1] for file, pattern in (
        ("pyproject.toml", r'^version = "(.*)"'), ("CITATION.cff", r"^version: (.*)"), ("CHANGELOG.md", r"^## (.*)"),
    )]  # fmt: skip
    assert len({*versions}) == 1


def test_the_python_of_the_first_page_and_of_methods_runs_as_it_is_printed(capsys):
    [block, own] = (block for page in ("README.md", "docs/METHODS.md") for language, block in fenced(page) if language == "python")
    exec(own, {})
    assert "Those that are largest after fine-tuning." in capsys.readouterr().out
    exec(block, {})
    size, losses = capsys.readouterr().out.splitlines()
    assert f"`{size}`" in README
    before, grafted, finetuned = map(float, re.findall(r"\d\.\d\d", losses))
    assert finetuned <= grafted < before / 5, losses


def test_the_numbers_of_the_first_page_are_those_of_committed_files():
    found = re.findall(r"^\| ([a-z][^|]+) \| ([^|]*) \| ([^|]*) \| ([\d.+-][^|]*) \| ([\d.+-][^|]*) \| ([\d.+-][^|]*) \|", README, re.MULTILINE)
    assert {name: tuple(cells) for name, *cells in found} == front_page()


def on_own_rows(folder: str, *names: str) -> dict[str, pd.DataFrame]:
    """Frames of a study's folder below plots, of the tasks' own test rows alone."""
    read = {name: pd.read_csv(ROOT / f"plots/{folder}/{name}.csv") for name in names}
    return {name: frame[frame["where"] == "id"] for name, frame in read.items()}


def test_the_numbers_of_methods_are_those_of_the_study():
    page = " ".join((ROOT / "docs/METHODS.md").read_text().split())
    own = on_own_rows("study", "anchor", "sweep", "peft", "compression")

    def mean(rows, column: str) -> str:
        return f"{100 * rows[column].mean():.1f}"

    grafts = own["sweep"].query("sparsity == 0.01")
    told = dict(re.findall(r"\| `(\w+)` \| [^|]* \| [\d,]+ \| ([\d.]+) % \|", page))
    assert told == {name: mean(rows, "retained") for name, rows in grafts.groupby("localizer")}
    larger = own["sweep"].query("sparsity == 0.1").groupby("localizer")
    moved, learned = (mean(larger.get_group(name), "retained") for name in ("movement", "learned"))
    assert f"at 10 % it keeps {moved} % and `learned` {learned} %" in page
    lora = own["peft"].query("method == 'lora_1'")
    alike = own["anchor"].query("variant == 'finetuned'"), grafts.query("localizer == 'learned'")
    tuned, graft = (rows[rows.task.isin(lora.task)] for rows in alike)
    assert f"rank 1 ({lora.trained.iloc[0]:,.0f} parameters) has {mean(lora, 'score')} %, a learned graft of 1 %" in page
    assert f"({graft.selected.iloc[0]:,.0f}) {mean(graft, 'score')} and the fine-tuned model {mean(tuned, 'score')}." in page
    assert f"Its ECE, {mean(lora, 'ece')} %, is the fine-tuned model's ({mean(tuned, 'ece')}); the graft's is {mean(graft, 'ece')}." in page
    forms = own["compression"].groupby("bytes")
    small, large = (
        {name: mean(rows, "retained") for name, rows in forms.get_group(size).groupby("variant")} for size in (8_000, 32_000)
    )
    assert f"SVD keeps {small['svd']} % of the score, signs with" in page
    assert f"{small['one_bit']} %, learned grafts {small['learned']} % and movement grafts {small['movement']} %" in page
    assert "32 kB {svd}, {one_bit}, {learned} and {movement} %; the pretrained".format(**large) in page


def test_the_table_of_trained_rivals_is_that_of_its_frames():
    folder = "reports/2026-11-30_smollm2_rivals"
    own = on_own_rows(f"{folder}/study", "anchor", "sweep", "readout", "peft")
    ends = {"pretrained": "pretrained", "calibrated words": "label_words", "fine-tuned": "finetuned"}
    rows = {name: own["anchor"].query("variant == @variant") for name, variant in ends.items()}
    rows |= {"movement graft": own["sweep"], "training inside movement's mask": own["readout"].query("readout == 'retrain'")}
    rows |= {"LoRA of rank 1": own["peft"].query("method == 'lora_1'"), "norms alone": own["peft"].query("method == 'norms'")}
    lines = (ROOT / f"metrics/{folder}/README.md").read_text().splitlines()
    for name, part in rows.items():
        size = "" if name in ends else f"{part.get('trained', part.get('selected')).iloc[0]:,.0f}"
        shares = [*part.set_index("task").score[["brands", "polar", "domain"]], part.score.mean(), part.ece.mean()]
        numbers = [*(f"{100 * share:.1f}" for share in shares), f"{part.loss.mean():.3f}", f"{100 * part.agreement.mean():.1f}"]
        assert " | ".join([f"| {name}", size, *numbers]) + " |" in lines, name
    score, loss = ({name: format(one * part[column].mean(), kind) for name, part in rows.items()} for column, one, kind in (("score", 100, ".1f"), ("loss", 1, ".3f")))
    lora, graft, tuned = "LoRA of rank 1", "movement graft", "fine-tuned"
    inside, norms = "training inside movement's mask", "norms alone"
    page, methods = (" ".join(text.split()) for text in (README, (ROOT / "docs/METHODS.md").read_text()))
    assert f"scores {score[lora]} %, training inside movement's mask {score[inside]} and norms alone {score[norms]}, where the movement graft has {score[graft]} and" in page
    assert f"log loss, {loss[graft]} nats, is lower than theirs ({loss[lora]}, {loss[inside]}, {loss[norms]};" in page
    assert f"has {score[lora]} %, a movement graft (53,101) {score[graft]} and the fine-tuned model {score[tuned]}, at log losses of {loss[lora]}, {loss[graft]} and" in methods


def test_what_a_rule_of_selection_is_worth_follows_from_its_frames():
    """The page prints the run's rows, the frames have some of them only as pages print them, so both agree within 0.1 points."""
    page = (ROOT / "metrics/reports/2026-11-27_selection_rules/README.md").read_text(encoding="utf-8")
    rows = pd.read_csv(ROOT / "plots/reports/2026-11-27_selection_rules/rules.csv").assign(seed=13)
    values = rows.pivot(index=["task", "seed"], columns="rule", values=["score", "agreement", "ece"])
    names = {"last step": "last", "authors' rule": "authors"}
    pairs = re.findall(r"^\| ([a-z' ]+) - ([a-z' ]+) \|([^|]+)\|([^|]+)\|([^|]+)\|$", page, re.MULTILINE)
    assert len(pairs) == 6
    for one, other, *told in pairs:
        for measure, text in zip(("score", "agreement", "ece"), told, strict=True):
            a, b = (values[measure, names.get(name, name)] for name in (one, other))
            found = [float(number) for number in re.findall(r"[+-]\d+\.\d", format(estimate(a - b), "interval"))][:3]
            assert [float(number) for number in re.findall(r"[+-]\d+\.\d", text)] == pytest.approx(found, abs=0.11), (one, other, measure)


def front_page() -> dict[str, tuple[str, ...]]:
    """The rows of the table of README.md: what it is -> the paper's numbers on all tasks and on single sentences, and ours, with intervals over tasks; the last but one are ours by source."""
    paper = pd.read_csv(ROOT / "stages/paper.csv").query("place == 'Table 9' and shots == 64").assign(seed=0)
    run = ROOT / "plots/reports/2026-11-30_smollm2_twelve/main"
    specs, _ = resolve_tasks({})
    ours, about = pd.read_csv(run / "scores.csv"), pd.read_csv(run / "tasks.csv")
    single = ours[ours.task.isin(about.task[about.sentences == "one sentence"])]
    frames = (paper, paper[[not specs[task].is_pair for task in paper.task]], ours, single)
    sides = [frame.pivot(index=["task", "seed"], columns="variant", values=["score", "ece"]) for frame in frames]

    def row(make, with_paper: bool = False) -> tuple[str, ...]:
        paper, whole, alone = [overall(make(side)) if with_paper else "" for side in sides[:2]], make(sides[2]), make(sides[3])
        low, high = estimate(whole).by_source
        return *paper, overall(whole), f"{100 * low:.1f} to {100 * high:.1f}", overall(alone)

    def overall(values) -> str:
        found = estimate(values)
        return f"{100 * found.mean:.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})"

    def kept(name: str):
        return lambda side: side.score[name] / side.score.finetuned

    def gain(start: str):
        return lambda side: (side.score.grafted - side.score[start]) / (gain := side.score.finetuned - side.score[start]).where(gain >= 0.05 - 1e-9)

    def error(one: str, other: str):
        return lambda side: side.ece[one] - side.ece[other]

    return {
        "share of the score that the graft keeps": row(kept("grafted"), with_paper=True),
        "the same of the movement graft": row(kept("movement_grafted")),
        "the same of WiSE-FT": row(kept("wise_ft")),
        "the same of the pretrained model": row(kept("pretrained")),
        "the same of the pretrained model with calibrated label words": row(kept("label_words")),
        "share of the gain over the pretrained model that the graft keeps": row(gain("pretrained")),
        "share of the gain over calibrated label words that the graft keeps": row(gain("label_words")),
        "calibration error: fine-tuned minus graft": row(error("finetuned", "grafted"), with_paper=True),
        "calibration error: WiSE-FT minus graft": row(error("wise_ft", "grafted")),
        "calibration error: graft minus fine-tuned at one temperature": row(error("grafted", "finetuned_tempered")),
    }


VERDICT, NOT_JUDGED = r"\b(holds|does not hold|not shown|not measurable)\b", "not judged"
NAMED = re.compile(r"<!-- ([\w/-]+): (.*?) -->")
INTERVAL = re.compile(r"([-+]?\d+\.\d) to ([-+]?\d+\.\d)(?=[;),]| \|)")


def told(text: str) -> list[str]:
    """The sentences of a page and the rows of its tables that have an interval or name a claim; a row stands behind the sentence before it."""
    lines = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found, before = [], ""
    for block in re.split(r"\n\s*(?=\n|[-*] |\|)", lines):
        block = " ".join(block.split())
        if block.startswith("|"):
            found.append(f"{before} {block}")
        elif block:
            sentences = re.split(r"(?<=[.!?]) (?=[A-Z\[*`])", block)
            found, before = found + sentences, sentences[-1]
    return [one for one in found if INTERVAL.search(one) or NAMED.search(one)]


def ill_told(text: str, metrics: Path) -> list[str]:
    """What is told of an interval without its verdict, or with another verdict or other ends than the claim has that it names."""
    return [one for one in told(text) if not well_told(one, metrics)]


def well_told(sentence: str, metrics: Path) -> bool:
    ends = []
    for name in NAMED.finditer(sentence):
        file = metrics / ("reports" if "/" in name[1] else "") / f"{name[1]}_claims.json"
        [claim] = (claim for words, claim in read_json(file).items() if words.startswith(name[2]))
        if re.findall(VERDICT, " ".join(sentence[: name.start()].split()))[-1:] != [claim["verdict"]]:
            return False
        ends += [tuple(f"{100 * end:.1f}" for end in claim[side]) for side in ("by_task", "by_source") if claim[side]]
    ends += [tuple(f"{-float(end):.1f}" for end in reversed(pair)) for pair in ends]
    row = "|" in sentence  # another test compares all its numbers
    shown = {tuple(end.lstrip("+") for end in pair) for pair in INTERVAL.findall(sentence)}
    return NOT_JUDGED in sentence or (bool(ends) and (row or shown <= {*ends}))


# of the results that they were written about; they should be those of the last commit, but for whoever has committed a run of their own
@pytest.mark.parametrize("pages", [PAGES, pytest.param([], marks=pytest.mark.slow)], ids=["their own results", "the last results"])
def test_every_interval_in_the_pages_has_the_verdict_and_the_ends_of_its_claim(pages, tmp_path):
    metrics = committed(tmp_path, "metrics", pages=pages) / "metrics"
    assert sum(len(told(page.read_text(encoding="utf-8"))) for page in PAGES) > 15
    assert [one for page in PAGES for one in ill_told(page.read_text(encoding="utf-8"), metrics)] == []
    # the controls: verdicts and numbers that are changed by hand, and a sentence without one
    sure = re.sub(r"not\s+shown(?=<!-- \S+summary: Temperature)", "holds", README)
    larger = README.replace("(9.1 to 17.3;", "(9.9 to 17.3;")
    bare = f"{README}\n\nThe graft is better, by 4.2 points (0.2 to 8.2).\n"
    row = README.replace("95 %: holds<!--", "95 %: not shown<!--")
    for changed in (sure, larger, bare, row):
        assert changed != README and len(ill_told(changed, metrics)) == 1


@pytest.mark.parametrize("name", FILES)
def test_what_dvc_draws_has_its_columns_and_its_template(name, published):
    plots = [entry for entry in pipeline(FILES[name])["plots"] if isinstance(entry, dict)]
    assert plots
    for plot in (plot for entry in plots for plot in entry.values()):
        assert (ROOT / f".dvc/plots/{plot['template']}.json").is_file()
        for file, column in (pair for axis in ("x", "y") for pair in plot[axis].items()):
            with Path(normpath(published / FILES[name] / ".." / file)).open(encoding="utf-8", newline="") as lines:
                rows = csv.DictReader(lines)
                assert column in rows.fieldnames and (any(row[column] for row in rows) or rows.line_num == 1)
