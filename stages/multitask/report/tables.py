"""The tables of multi-task learning, those without rows left out."""

from stages.lib.report.document import Row, Table
from stages.lib.report.format import UNKNOWN, percent, points, small_percent
from stages.lib.report.stats import mean_of, paired
from stages.multitask.report import contrasts, paper
from stages.multitask.report.collecting import Multitask
from stages.multitask.report.matrices import Key, called, of_matrix, similarity

PAPER = {contrasts.UNION_IN: "union", contrasts.PURIFIED_IN: "purified"}
OVER_SEEDS = "mean (standard deviation over seeds); n: test rows"
OVER_CELLS = "mean (standard deviation over cells), with the number of cells n: tasks and seeds, of unions also unions"


def tables(found: Multitask) -> list[Table]:
    """Tables in the order in which they are read."""
    made = (
        joint_table(found),
        undefined_table(found),
        gain_table(found),
        overlap_table(found),
        similarity_table(found),
    )
    return [table for table in made if table.rows]


def joint_table(found: Multitask) -> Table:
    """Does one model of all tasks do as well as one for each?"""
    rows = []
    for paradigm, levels in found.levels.groupby("paradigm", sort=False):
        rows.append(Row("group", [paradigm]))
        rows += [_joint_row(task, levels[levels.task == task]) for task in found.tasks]
        rows.append(_joint_row("average", levels))
    notes = [
        OVER_SEEDS,
        "single: fine-tuned on that task alone, by the main pipeline; pretrained: under the joint model's heads",
        "joint - single: mean over seeds and 95 % t-interval over cells (a task in a seed), in percentage points",
    ]
    header = ["task", "n", "pretrained", "single", "joint", "joint - single", "95 % from", "95 % to"]
    return Table("One model for all tasks: accuracy in %", header, rows, notes)


def _joint_row(name: str, levels: object) -> Row:
    values = [mean_of(levels[column]).text() for column in ("pretrained", "single", "joint")]
    difference = paired(levels.joint, levels.single)
    n = levels.groupby("task")["n"].first().sum()
    cells = [name, str(n), *values, points(difference.mean), points(difference.low), points(difference.high)]
    return Row("average" if name == "average" else "ours", cells)


def undefined_table(found: Multitask) -> Table:
    """Where equation 5 would divide by next to nothing."""
    rows = [
        Row("ours", [row.task, row.paradigm, str(row.seed), percent(row.pretrained), percent(row.joint), points(row.joint - row.pretrained)])
        for row in found.levels[~found.levels.gained.astype(bool)].itertuples()
    ]  # fmt: skip
    title = f"No relative gains here: the joint model gained less than {100 * found.least_gain:g} points (multitask.least_gain)"
    note = "equation 5 divides by this gain; such cells are hatched in the figures and left out of all means"
    return Table(title, ["task", "paradigm", "seed", "pretrained", "joint", "gain"], rows, [note])


def gain_table(found: Multitask) -> Table:
    """Figure 8b to d in a row each."""
    rows = []
    for key in found.matrices:
        selected = of_matrix(found.gains, key).selected.min()
        said = _gain_rows(found, key)
        rows += [Row("group", [f"{called(key)} ({selected:,} parameters or more)"]), *said] if said else []
    notes = [
        OVER_CELLS,
        "0: the pretrained model, 100: the joint one (equation 5), both under the joint model's heads",
        "similar: some group of multitask.groups has both tasks; paper: RoBERTa-base, 8 tasks, section 5.1",
    ]
    return Table("Relative gain in %, by whose region is grafted", ["grafted", "n", "relative gain"], rows, notes)


def _gain_rows(found: Multitask, key: Key) -> list[Row]:
    rows = []
    for kind in contrasts.GAIN_KINDS:
        value = mean_of(contrasts.gain_by_cell(found, key, kind))
        if value.n:
            rows.append(Row("ours", [kind, str(value.n), value.text()]))
        if value.n and kind in PAPER:
            rows.append(Row("paper", ["paper", "", f"about {percent(paper.multitask(PAPER[kind]), 0)}"]))
    return rows


def overlap_table(found: Multitask) -> Table:
    """Figure 8a, between its floor and its ceiling."""
    rows = []
    for key in found.matrices:
        rows.append(Row("group", [called(key)]))
        for kind in contrasts.OVERLAP_KINDS:
            pairs = contrasts.overlap_rows(found, key, kind)
            value = mean_of(pairs.overlap)
            if value.n:
                rows.append(Row("ours", [kind, str(value.n), value.text(), small_percent(pairs.chance.mean())]))
    notes = [
        "mean (standard deviation over pairs); n: ordered pairs of regions; chance: what random regions of these sizes give",
        "two seeds, one task: the ceiling, as far as two joint models can agree on a task's region; needs two seeds or more",
    ]
    header = ["regions of", "n", "overlap", "chance"]
    return Table("Overlap |A ∩ B| / |B| of regions in %", header, rows, notes)


def similarity_table(found: Multitask) -> Table:
    """Are regions that overlap more those that transfer more?"""
    rows = []
    for key in found.matrices:
        value = similarity(found, key)
        numbers = [UNKNOWN if one is None else f"{one:+.2f}" for one in (value.rho, value.low, value.high)]
        rows.append(Row("ours", [called(key), str(value.pairs), *numbers]))
    notes = [
        "Spearman's correlation of overlap and relative gain over ordered pairs of different tasks, both means over seeds",
        "95 %: bootstrap over tasks, since pairs with a task in common are not independent; wide where there are few tasks",
    ]
    header = ["regions", "pairs", "rho", "95 % from", "95 % to"]
    return Table("Overlap against transfer", header, rows, notes)
