"""Whatever README.md and the pages that it leads to tell a reader to type, open or set is there."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from ruamel.yaml import YAML

from skill_grafting.errors import DataError, ParamsError
from skill_grafting.io import read_json
from stages.commands import profile
from stages.workflow.change import change_settings
from stages.workflow.core import paths
from stages.workflow.core.settings import OWNERS as SECTIONS
from stages.workflow.core.settings import PIPELINES, flat, load_all
from tests.settings_files import lay_out_settings
from tests.test_dvc_yaml import ALL, lies_in, output_paths

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README", *(f"docs/{name}" for name in ("PAPER", "DEVIATIONS", "FORMAT", "SCALING")))
TEXT = "\n".join((ROOT / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
# with the pages whose commands and settings belong together (tests/test_everyday.py); REPRODUCTION.md is made by `make report`
WRITTEN = [ROOT / "README.md", *(page for page in (ROOT / "docs").glob("*.md") if page.stem != "REPRODUCTION")]
WHOLE = "\n".join(page.read_text(encoding="utf-8") for page in WRITTEN)
MOST_WORDS, MOST_IN_ALL = 900, 12_000
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# files inside folders that are made, a file of the user's, and one that every pipeline may have
INSIDE = {
    "settings.py",
    "anatomy.json",
    "curve.png",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "test.csv",
    "relative.py",
}
ENDINGS = "html|py|yaml|md|json|jsonl|csv|tsv|png|txt|toml|safetensors|lock"
MADE = [path for name in ALL for path in output_paths(name, "outs", "metrics")]


def fences(language: str) -> list[str]:
    """Content of every fenced block of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Every command of the bash blocks as words, without its comment."""
    return [shlex.split(line, comments=True) for block in fences("bash") for line in block.splitlines() if line.strip()]


def quoted(text: str = TEXT) -> list[str]:
    """Everything between single backticks outside of fences."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def targets() -> set[str]:
    """Targets of the Makefile; one rule may have several."""
    lines = re.findall(r"^([a-z][a-z -]*):(?!=)", MAKEFILE, re.MULTILINE)
    return {name for line in lines for name in line.split()}


def test_clean_removes_what_stages_make_and_nothing_of_the_users(tmp_path):
    own = {f"{folder}/mine/file" for folder in ("data/local", "models/local", "models/checkpoints")}
    made = {re.sub(r"\$\{[^}]*\}", "x", path) for path in MADE if not path.startswith(("metrics/", "plots/"))}
    assert {path.split("/")[0] for path in made} == {"data", "models", "masks"}
    for file in (*own, *(f"{path}/file" for path in made)):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    for name in (".gitignore", "Makefile"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert subprocess.run(["git", "check-ignore", *own], cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0
    subprocess.run(["make", "-s", "clean"], cwd=tmp_path, check=True)
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("file")}
    assert left == own


def test_every_make_target_exists():
    used = {word for words in commands() if words[0] == "make" for word in words[1:] if "=" not in word}
    used |= {text.split()[1] for text in quoted() if text.startswith("make ")}
    assert used and used <= targets()
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    assert {*phony} == targets()
    told = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {*re.findall(r"^make ([a-z-]+)", told, re.MULTILINE)} == targets()


def test_what_make_starts_may_keep_its_bytecode_wherever_it_runs():
    asks, forbidden = "--eval=shown: ; @env", {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    told = subprocess.run(["make", "-s", asks, "shown"], cwd=ROOT, env=forbidden, capture_output=True, text=True)
    assert "PATH=" in told.stdout and "PYTHONDONTWRITEBYTECODE" not in told.stdout, told.stderr


def test_every_profile_that_is_named_exists_and_every_profile_is_named():
    known = profile.profiles()
    used = {word.removeprefix("PROFILE=") for words in commands() for word in words if word.startswith("PROFILE=")}
    used |= {*re.findall(r"stages\.profile ([a-z0-9_]+)", "\n".join([*fences("bash"), *quoted()]))}
    assert used and used <= {*known}
    assert {*known} <= {*quoted()}


def test_every_module_that_is_run_exists():
    used = re.findall(r"python -m ([a-z0-9_.]+)", WHOLE)
    modules = {name for name in used if name.startswith(("stages", "tests"))}
    assert modules >= {"stages.workflow.plan", "stages.workflow.compare"}
    places = {name: ROOT / name.replace(".", "/") for name in modules}
    there = {name for name, at in places.items() if at.with_suffix(".py").is_file() or (at / "__main__.py").is_file()}
    assert modules - there == set()


def test_every_override_is_allowed(tmp_path):
    overrides = [words[number + 1] for words in commands() for number, word in enumerate(words) if word == "-S"]
    assert overrides
    for override in overrides:
        lay_out_settings(folder=tmp_path)
        change_settings([override], lambda: load_all(tmp_path), tmp_path)


def test_every_piece_of_settings_fits_params_yaml(tmp_path):
    for block in fences("yaml"):
        settings = YAML(typ="safe").load(block.replace(", ...}", "}"))
        lay_out_settings(settings, folder=tmp_path)
    with pytest.raises(ParamsError):  # the control
        lay_out_settings({"data": {"source": "nowhere"}}, folder=tmp_path)


def test_every_setting_that_is_named_exists():
    named = {text.split(":")[0].split("=")[0] for text in quoted() if re.match(r"[a-z]+\.[a-z_0-9]+\b(?!/)", text)}
    settings = {name for name in named if name.split(".")[0] in SECTIONS and not re.search(rf"\.({ENDINGS})$", name)}
    fields = {
        name: getattr(kind, "model_fields", ()) for one in PIPELINES.values() for name, kind in one.SECTIONS.items()
    }
    known = {*flat(load_all(ROOT)), *(f"{name}.{field}" for name, own in fields.items() for field in own)}
    parts = {key.rpartition(".")[0] for key in known}
    assert settings and settings <= {*known} | parts


def paths_named() -> set[str]:
    """Everything in backticks or links that looks like a path of this project."""
    words = [word for text in quoted(WHOLE) for word in text.split()]
    words += re.findall(r"\]\(([^)#:]+)\)", WHOLE)
    looks = re.compile(rf"(?:[\w<>.-]+/)+[\w<>.-]*|[\w-]+\.(?:{ENDINGS})")
    return {word for word in words if looks.fullmatch(word) and not word.startswith("<")}


def is_there(path: str) -> bool:
    """True if a path exists, is made by a stage, or is a place for the user's files."""
    plain = path.rstrip("/").replace("<task>", "${item.task}").replace("<seed>", "${item.seed}")
    if "<" in plain:
        return (ROOT / plain.partition("<")[0]).is_dir()
    example = re.sub(r"/13/reviews(?=[./]|$)", "/${item.seed}/${item.task}", plain)
    return (
        (ROOT / plain).exists()
        or (ROOT / "stages" / plain).exists() or (ROOT / "docs" / plain).exists()
        or plain in (str(paths.PAGE), str(paths.LIVE))
        or any(lies_in(example, made) for made in MADE)
        or plain.startswith(("data/local/", "models/local/", ".dvc/tmp/"))
        or plain in INSIDE
    )


def test_every_path_that_is_named_exists_or_is_made():
    named = paths_named()
    assert {"stages/skill_grafting/grafting/apply.py", "metrics/summary.md", "params.yaml"} <= named
    assert [path for path in sorted(named) if not is_there(path)] == []
    assert not is_there("stages/skill_grafting/grafting/applied.py") and not is_there("plots/nothing.png")


def test_the_first_page_is_short_and_leads_to_all_others():
    assert len(README.split()) <= MOST_WORDS
    made = ROOT / "docs/REPRODUCTION.md"
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("data/local/*.md"),
        *ROOT.glob("models/*/*.md"),
    ]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages if page != made) <= MOST_IN_ALL
    linked = {*re.findall(r"\]\((?:docs/)?(\w+)\.md\)", README)}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= linked


def test_the_python_of_the_first_page_runs_as_it_is_printed(capsys):
    [block] = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    exec(block, {})
    size, losses = capsys.readouterr().out.splitlines()
    assert f"`{size}`" in README
    before, grafted, finetuned = map(float, re.findall(r"\d\.\d\d", losses))
    assert finetuned <= grafted < before / 5, losses


def test_the_numbers_of_the_first_page_are_those_of_committed_files():
    table = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+ \| [\d.]+) \|$", README, re.MULTILINE))
    assert table == {name: f"{100 * paper:.1f} | {100 * ours:.1f}" for name, (paper, ours) in front_page().items()}


def front_page() -> dict[str, tuple[float, float]]:
    """The rows of the table of README.md: what it is -> the paper's and our number."""
    runs = ("24_base_sets/main", "24_base_pairs/main", "25_base_eight/sets", "25_base_eight/pairs")
    rows = pd.concat(pd.read_csv(ROOT / f"plots/reports/2026-11-{run}/scores.csv") for run in runs)
    ours = rows.groupby(["task", "variant"])[["score", "ece", "retained"]].mean().unstack()
    paper = pd.read_csv(ROOT / "stages/paper.csv").query("place == 'Table 2' and shots == 64 and task in @ours.index")
    paper = paper.pivot(index="task", columns="variant", values=["score", "ece"])
    paper["retained", "grafted"] = paper["score", "grafted"] / paper["score", "finetuned"]
    order = pd.read_csv(ROOT / "stages/continual/paper.csv").groupby("method").accuracy.mean()
    steps = read_json(ROOT / "metrics/reports/2026-11-26_base_continual/continual.json", DataError)["average"]
    both = {column: (paper[column].mean(), ours[column].mean()) for column in paper if column in ours}
    return {
        "score on eight data sets, fine-tuned": both["score", "finetuned"],
        "the same, grafted": both["score", "grafted"],
        "share kept, mean of data sets": both["retained", "grafted"],
        "calibration error (ECE), fine-tuned": both["ece", "finetuned"],
        "calibration error (ECE), grafted": both["ece", "grafted"],
        "reduction of the calibration error by grafting": tuple(
            1 - grafted / tuned for tuned, grafted in zip(both["ece", "finetuned"], both["ece", "grafted"], strict=True)
        ),
        "accuracy after three tasks in sequence, naive": (order.naive, steps["naive"]),
        "accuracy after three tasks in sequence, grafting": (order.grafting, steps["grafting"]),
    }
