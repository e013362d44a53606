"""oracle: verdicts of docs/REPRODUCTION.md once more from the CSV files, by numpy, pandas and scipy alone.

python -m tests.oracle   one line a claim: n, value, half its 95 % interval, verdict; ends with 1 if the page says something else
"""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t

PAIRS = [("learned", "movement", "movement grafts"), ("attribution", "movement", "movement grafts"), ("learned", "fish", "FISH grafts"), ("learned", "bias", "grafts of biases")]


def means(name: str, by: str, value: str, where: str) -> pd.DataFrame:
    """Means over seeds and all else, a row a task and a column a value of `by`."""
    return pd.read_csv(f"plots/{name}.csv").query(where).groupby(["task", by])[value].mean().unstack()


def main_claims():
    """Family, words, a value for each task or pair of tasks, and limit of each claim."""
    score, kept, ece, agree, gain = (means("scores", "variant", name, "n > 0") for name in ("score", "retained", "ece", "agreement", "gain"))
    constant = means("scores", "variant", "constant", "n > 0").finetuned
    yield "control", "", score.finetuned - np.maximum(score.pretrained, constant), 0.0
    few = pd.read_csv("plots/tasks.csv").set_index("task").labels == 2
    yield "kept 95", "| A graft of 1.00 % keeps 95 %", kept.grafted, 0.95
    yield "kept 90", "| A graft of 1.00 % keeps 90 %", kept.grafted, 0.9
    yield "kinds", "On tasks with two labels the graft keeps", kept.grafted[few], 0.95
    yield "kinds", "On tasks with more labels the graft keeps", kept.grafted[~few], 0.95
    yield "gain", "| The graft keeps 95 % of what", gain.grafted, 0.95
    yield "ece", "better calibrated than the fine-tuned", ece.finetuned - ece.grafted, 0.0
    yield "calibration", "Temperature scaling", ece.grafted - ece.finetuned_tempered, 0.0
    yield "calibration", "lower than that of WiSE-FT", ece.wise_ft - ece.grafted, 0.0
    yield "agreement", "agree on 86 %", agree.grafted, 0.86
    yield "localizer", "graft scores higher than the movement graft", score.grafted - score.movement_grafted, 0.0
    yield "localizer", "agrees more", agree.grafted - agree.movement_grafted, 0.0


def study_claims():
    """The same of the study, where the sizes of one claim are a family."""
    tuned, elsewhere = (means("study/anchor", "variant", *of).finetuned for of in (("ece", "where == 'id'"), ("score", "where == 'ood'")))
    for size in (0.001, 0.01, 0.1):
        own, at = f"sparsity == {size} and variant == 'grafted' and where == ", f"{100 * size:.2f} %"
        score, ece, kept = (means("study/sweep", "localizer", name, f"{own}'id'") for name in ("score", "ece", "retained"))
        for a, b, rival in PAIRS:
            yield f"{a} {b}", f"{a.capitalize()} grafts score higher than {rival}, at {at}", score[a] - score[b], 0.0
        yield "kept", f"A learned graft of {at} keeps 95 % of the fine-tuned", kept.learned, 0.95
        yield "ece", f"ECE is higher than that of its learned graft of {at}", tuned - ece.learned, 0.0
        far = means("study/sweep", "localizer", "score", f"{own}'ood'").learned - elsewhere
        yield "ood", f"distribution shift a learned graft of {at} scores higher than the fine-tuned", far.dropna(), 0.0
        rows = pd.read_csv("plots/study/task_overlap.csv").query(f"localizer == 'learned' and sparsity == {size}")
        over = rows.assign(over=rows.overlap - rows.chance).groupby(["first", "second"]).over.mean()
        yield "overlap", f"Learned masks of {at} of two tasks overlap", over, 0.0


def judged(values: pd.Series, limit: float) -> tuple[int, float, float, float]:
    """How many tasks, the mean, half the width of its interval, and p, by leaving out each task with all that it is part of."""
    names = [{*name} if isinstance(name, tuple) else {name} for name in values.index]
    tasks = sorted(set.union(*names))
    left = np.array([values[[task not in own for own in names]].mean() for task in tasks])
    error = (len(tasks) * values.mean() - (len(tasks) - 1) * left).std(ddof=1) / len(tasks) ** 0.5
    p_value = 2 * t.sf(abs(values.mean() - limit) / error, len(tasks) - 1)
    return len(tasks), values.mean(), error * t.ppf(0.975, len(tasks) - 1), p_value


if __name__ == "__main__":
    page, differ = Path("docs/REPRODUCTION.md").read_text(encoding="utf-8"), 0
    for claims in (main_claims(), study_claims()):
        rows = [(*one, *judged(*one[2:])) for one in claims]
        for family, words, _, limit, n, mean, half, p_value in rows:
            ranked = sorted(row[-1] for row in rows if row[0] == family)
            holm = max((len(ranked) - place) * p for place, p in enumerate(ranked) if p <= p_value)
            verdict = "not measurable" if n < 4 else "not shown" if holm >= 0.05 else "holds" if mean > limit else "does not hold"
            said = re.findall(rf"{re.escape(words)}.* \| ([a-z ]+)(?: \(Holm\))? \|$", page, re.M) if words else ["holds"]
            differ += said != [verdict]
            print(f"{words or family:75.75} n {n:2} {100 * mean:6.1f} ± {100 * half:5.1f}  {verdict}{'' if said == [verdict] else said}")
    sys.exit(differ > 0)
