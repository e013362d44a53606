"""oracle: verdicts of a report's claims once more from its CSV files, by numpy, pandas and scipy alone.

python -m tests.oracle                 those of docs/REPRODUCTION.md, from plots
python -m tests.oracle PAGES FIGURES   those of a dated report's folder of pages, from its folder of figures
One line a claim: tasks, sources, value, half its 95 % intervals over both, verdict; ends with 1 if the page says something else.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from ruamel.yaml import YAML
from scipy.stats import t

TASKS = YAML(typ="safe").load(Path(__file__).parents[1] / "stages/text/tasks/tasks.yaml")
PAIRS = [
    ("learned", "movement", "movement grafts"), ("attribution", "movement", "movement grafts"), ("movement", "random", "random grafts"),
    ("learned", "fish", "FISH grafts"), ("learned", "bias", "grafts of biases"),
]  # fmt: skip
RIVALS = {
    **{how: f"{how if how in ('average', 'arithmetic', 'consensus') else how.upper()} of whole models" for how in ("average", "arithmetic", "ties", "dare", "consensus")},
    **{how: how.replace("_", " ") for how in ("stitch_sum", "stitch_sequence", "stitch_largest", "grafted_arithmetic")},
    "stitch_0.01": "stitched Localize-and-Stitch masks", "movement_0.05": "stitched movement masks",
}  # fmt: skip


class Figures:
    """The CSV files of a report: those of the main pipeline and of further ones, of which not all need be there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.main = folder, folder / "main" if (folder / "main").is_dir() else folder

    def path(self, name: str) -> Path:
        return (self.folder if "/" in name else self.main) / f"{name}.csv"

    def read(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.path(name))

    def means(self, name: str, by: str, value: str, where: str) -> pd.DataFrame:
        """Means over seeds and all else, a row a task and a column a value of `by`."""
        return self.read(name).query(where).groupby(["task", by])[value].mean().unstack()


def main_claims(of: Figures):
    """Family, words, a value for each task or pair of tasks, and limit of each claim."""
    score, kept, ece, agree, gain = (of.means("scores", "variant", name, "n > 0") for name in ("score", "retained", "ece", "agreement", "gain"))
    constant, size = of.means("scores", "variant", "constant", "n > 0").finetuned, of.read("run")["size"][0]
    words = "label_words" in score
    yield "control", "", score.finetuned - score[["pretrained", *["label_words"] * words]].max(axis=1).clip(lower=constant), 0.0
    about = of.read("tasks").set_index("task")
    few, pairs = about.labels == 2, about.sentences.nunique() > 1
    yield "kept 95", f"A graft of {size} keeps 95 %", kept.grafted, 0.95
    yield "kept 90", f"A graft of {size} keeps 90 %", kept.grafted, 0.9
    for (sentences, two), tasks in about.groupby(["sentences", few]).groups.items():
        kind = f"{sentences}, " * pairs + ("two labels" if two else "more labels")
        yield "kinds", f"On tasks with {kind} the graft keeps", kept.grafted[tasks], 0.95
    yield "gain", "The graft keeps 95 % of what", gain.grafted.dropna(), 0.95
    if words:
        least = of.read("run").least_gain[0]
        beyond = (score.grafted - score.label_words) / (score.finetuned - score.label_words)
        yield "label words", "The graft keeps 80 % of what", beyond[score.finetuned - score.label_words >= least], 0.8
        yield "label words", "The graft scores 5 points above", score.grafted - score.label_words, 0.05
    if "loss" in of.read("scores"):
        loss = of.means("scores", "variant", "loss", "n > 0")
        yield "log loss", "The graft's log loss is lower", loss.finetuned - loss.grafted, 0.0
    yield "ece", "The graft is better calibrated than the fine-tuned", ece.finetuned - ece.grafted, 0.0
    yield "calibration", "Temperature scaling", ece.grafted - ece.finetuned_tempered, 0.0
    yield "calibration", "The graft's ECE is lower than that of WiSE-FT", ece.wise_ft - ece.grafted, 0.0
    yield "agreement", "Graft and fine-tuned model agree on 86 %", agree.grafted, 0.86
    yield "localizer", "The learned graft scores higher than the movement graft", score.grafted - score.movement_grafted, 0.0
    yield "localizer", "The learned graft agrees more", agree.grafted - agree.movement_grafted, 0.0


def study_claims(of: Figures):
    """The same of the study, where the sizes of one claim are a family."""
    tuned = of.means("study/anchor", "variant", "ece", "where == 'id'").finetuned
    for size in sorted(of.read("study/sweep").sparsity.unique()):
        own, at = f"sparsity == {size} and variant == 'grafted' and where == ", f"{100 * size:.{2 + (size < 0.001)}f} %"
        score, ece, kept = (of.means("study/sweep", "localizer", name, f"{own}'id'") for name in ("score", "ece", "retained"))
        for a, b, rival in PAIRS:
            if {a, b} <= {*score}:
                yield f"{a} {b}", f"{a.capitalize()} grafts score higher than {rival}, at {at}", score[a] - score[b], 0.0
        if "learned" not in score:
            continue
        yield "kept", f"A learned graft of {at} keeps 95 % of the fine-tuned", kept.learned, 0.95
        yield "ece", f"The fine-tuned model's ECE is higher than that of its learned graft of {at}", tuned - ece.learned, 0.0
        elsewhere = of.means("study/anchor", "variant", "score", "where == 'ood'").finetuned
        far = of.means("study/sweep", "localizer", "score", f"{own}'ood'").learned - elsewhere
        yield "ood", f"Under small distribution shift a learned graft of {at} scores higher than the fine-tuned", far.dropna(), 0.0
        rows = of.read("study/task_overlap").query(f"localizer == 'learned' and sparsity == {size}")
        over = rows.assign(over=rows.overlap - rows.chance).groupby(["first", "second"]).over.mean()
        yield "overlap", f"Learned masks of {at} of two tasks overlap", over, 0.0


def merge_claims(of: Figures):
    """The same of merged models, where all comparisons with the stitched mean are a family."""
    score, kept = (of.means("merge/scores", "method", name, "n > 0") for name in ("score", "own"))
    constant = of.means("merge/scores", "method", "constant", "n > 0").grafted
    yield "control", "", score.grafted - np.maximum(score.pretrained, constant), 0.0
    for method, words in RIVALS.items():
        if method in score:
            yield "stitched", f"The stitched mean scores higher than the {words}", score.stitch_mean - score[method], 0.0
    yield "kept", "The stitch mean keeps 95 %", kept.stitch_mean, 0.95


def source(task: str) -> str:
    """The package that a task's texts are from; of a task that none holds itself."""
    return TASKS.get(task, {}).get("packaged", {"package": task})["package"]


def judged(values: pd.Series, limit: float) -> tuple[int, int, float, float, float, float]:
    """How many tasks and sources, the mean, half the width of both intervals, and p, by leaving out each task with all that it is part of."""
    names = [{*name} if isinstance(name, tuple) else {name} for name in values.index]
    tasks = sorted(set.union(*names))
    left = np.array([values[[task not in own for own in names]].mean() for task in tasks])
    off = pd.Series((len(tasks) - 1) * (left.mean() - left), [source(task) for task in tasks])
    halves, p_values, numbers = [], [], []
    for sums in (off, off.groupby(level=0).sum()):
        freedom = len(sums) - 1
        error = ((sums**2).sum() * len(sums) / freedom) ** 0.5 / len(tasks) if freedom else np.nan
        halves.append(error * t.ppf(0.975, freedom))
        p_values.append(2 * t.sf(abs(values.mean() - limit) / error, freedom))
        numbers.append(len(sums))
    return *numbers, values.mean(), *halves, max(p_values)


def verdicts(text: str, words: str) -> list[str]:
    """What a page says of a claim: in a row of a table, or at the start of a line."""
    row = rf"^\| {re.escape(words)}.* \| ([a-z ]+)(?: \(Holm\))?(?:; [a-z]+: [a-z ]+)? \|$"
    line = rf"^- \*\*([a-z ]+)\*\*: {re.escape(words)}"
    return re.findall(row, text, re.MULTILINE) + re.findall(line, text, re.MULTILINE)


def main(pages: list[Path], figures: Figures) -> bool:
    """Print every claim; gives whether a page says something else."""
    text, differ = "\n".join(page.read_text(encoding="utf-8") for page in pages), False
    parts = {"scores": main_claims, "study/sweep": study_claims, "merge/scores": merge_claims}
    for name, claims in parts.items():
        if not figures.path(name).exists():
            continue
        rows = [(*one, *judged(*one[2:])) for one in claims(figures) if len(one[2])]
        ungained = False
        for family, words, _, limit, n, sources, mean, half, by_source, p_value in rows:
            ranked = sorted(row[-1] for row in rows if row[0] == family and min(row[4:6]) >= 4)
            holm = max(((len(ranked) - place) * p for place, p in enumerate(ranked) if p <= p_value), default=1)
            few, side = min(n, sources) < 4, "holds" if mean > limit else "does not hold"
            verdict = "not measurable" if few or ungained else "not shown" if holm >= 0.05 else side
            ungained |= family == "control" and verdict != "holds"  # then nothing is said of what a graft keeps of it
            said = verdicts(text, words) if words else [verdict]
            differ |= said != [verdict]
            halves = f"{100 * half:5.1f}, {100 * by_source:5.1f}"
            print(f"{words or family:75.75} n {n:2}, {sources} {100 * mean:6.1f} ± {halves}  {verdict}{'' if said == [verdict] else said}")
    return differ


if __name__ == "__main__":
    folders = [Path(name) for name in sys.argv[1:]] or [Path(), Path("plots")]
    pages = [*folders[0].glob("*.md")] if sys.argv[1:] else [Path("docs/REPRODUCTION.md")]
    sys.exit(main(pages, Figures(folders[-1])))
