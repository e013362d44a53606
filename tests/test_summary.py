"""The summary against numbers worked out by hand, and its figures and words, on synthetic cells."""

import hashlib
import io
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from rich.console import Console
from safetensors.numpy import save_file

from stages import summary as stage
from stages.lib import paths
from stages.lib.data.tasks import resolve_tasks
from stages.lib.errors import DataError, MaskError
from stages.lib.io import read_json, write_json
from stages.lib.metrics.predictions import Predictions
from stages.lib.metrics.scores import calibration_scores, classification_scores
from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED, VARIANTS
from stages.lib.report.document import Claim, Report, Verdict
from stages.lib.report.format import small_percent
from stages.lib.report.markdown import to_markdown
from stages.lib.report.plot_data import write_plot_data
from stages.lib.report.stats import clean
from stages.lib.report.style import styled, wrapped
from stages.lib.report.terminal import to_terminal
from stages.report import figures
from stages.report.aggregate import summarize
from stages.report.cells import MEASURES, collect
from stages.report.compose import mask_facts, write_report
from stages.report.paper import shots_for, table2, table3
from stages.report.verdict import judge

LONG = [
    f"{word}_of_a_rather_long_name" for word in ("inference", "paraphrase", "sentiment", "acceptability", "topicality")
]
SPECS, _ = resolve_tasks({name: {"labels": ["no", "yes"], "metric": "f1"} for name in LONG})
THIRTEEN = ["sst2", "cr", "mr", "mpqa", "trec", "ag_news", "subj", "qnli", "snli", "mnli", "rte", "mrpc", "qqp"]
PAIRS = {"sst2": ["imdb", "yelp"], "qnli": ["mnli_2"]}
# margin of the right label's logit, and what all logits are multiplied with: fine-tuning makes overconfident
SKILL = {PRETRAINED: (0.2, 0.8), FINETUNED: (1.2, 5.0), MOVEMENT_GRAFTED: (0.8, 1.6), GRAFTED: (1.15, 1.3)}
OUTPUTS = ["metrics/summary.json", "metrics/summary.md", "metrics/summary.report.json"] + [
    *(f"plots/{name}.csv" for name in ("scores", "ood", "reliability", "confidence")),
    *(f"plots/{name}.png" for name in ("accuracy", "calibration", "reliability", "confidence", "ood")),
]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_cells(
    tasks: list[str], seeds: list[int], sets: dict[str, list[str]] | None = None, skill: dict = SKILL, n: int = 400
) -> None:
    """Write what the stages before the summary write, with made-up logits."""
    sets = sets or {}
    for task in tasks:
        write_json(paths.card(task), {"task": SPECS[task].model_dump()})
        for seed in seeds:
            make_cell(task, seed, sets.get(task, []), skill, n)
    leaks = {task: {test: {"leaked": 342, "test": 2000, "used": n} for test in tests} for task, tests in sets.items()}
    write_json(paths.LEAKAGE, leaks)


def make_cell(task: str, seed: int, tests: list[str], skill: dict, n: int) -> None:
    """Write the files of one cell."""
    spec = SPECS[task]
    own, others = predictions(spec, [task], seed, skill, n), predictions(spec, tests, seed, skill, n)
    both = Predictions(spec.labels, own.labels | others.labels, own.logits | others.logits)
    write_json(paths.scores("evaluate", task, seed), {"scores": classification_scores(own, spec)})
    write_json(paths.scores("ood", task, seed), {"scores": classification_scores(others, spec)})
    write_json(
        paths.scores("calibration", task, seed),
        {"bins": 15, "histogram_bins": 20, "scores": calibration_scores(both, 15, 20)},
    )
    make_mask(task, seed)


def predictions(spec, test_sets: list[str], seed: int, skill: dict, n: int) -> Predictions:
    """Logits of models that are right more often, and surer, the larger their margin and scale; they share most noise."""
    labels, logits = {}, {}
    for test_set in test_sets:
        key = hashlib.sha256(f"{spec.name}/{test_set}/{seed}".encode()).digest()
        random = np.random.default_rng(list(key))
        labels[test_set] = random.integers(0, len(spec.labels), n)
        right = np.eye(len(spec.labels))[labels[test_set]]
        noise = random.normal(size=(n, len(spec.labels)))
        logits[test_set] = {
            variant: (scale * (margin * right + noise + 0.35 * random.normal(size=noise.shape))).astype(np.float32)
            for variant, (margin, scale) in skill.items()
        }
    return Predictions(spec.labels, labels, logits)


def make_mask(task: str, seed: int, selected: int = 106_467) -> None:
    """Write a mask file with a header alone."""
    header = {
        "selected": selected,
        "graftable": 10_646_784,
        "model_parameters": 22_713_216,
        "model": "tiny",
        "mode": "prompt",
        "k": 64,
    }
    path = paths.learned(task, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"indices/a": np.zeros(1, np.int32)}, path, metadata={"graft": json.dumps(header)})


def run_stage(monkeypatch: pytest.MonkeyPatch, tasks: list[str], seeds: list[int], sets: dict[str, list[str]]) -> None:
    """Run the stage with these settings."""
    ood = SimpleNamespace(sets=sets, leaks="drop")
    settings = SimpleNamespace(
        tasks=tasks, seeds=seeds, ood=ood, summary=SimpleNamespace(retained_target=0.95, ece_target=0.4)
    )
    monkeypatch.setattr(stage, "load_params", lambda *keys: settings)
    stage.main([])


def report_text(tasks: list[str], seeds: list[int], sets: dict, width: int = 80) -> str:
    """What the terminal shows."""
    cells = collect(tasks, seeds, sets)
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(to_terminal(write_report(cells, summarize(cells), 0.95, 0.4, "drop")))
    return console.file.getvalue()


def test_means_and_deviations_are_those_of_numpy():
    make_cells(["movies", "mrpc"], [1, 2, 3])
    result = summarize(collect(["movies", "mrpc"], [1, 2, 3], {}))
    for task, variant, measure in itertools.product(["movies", "mrpc"], VARIANTS, MEASURES):
        stage_name = "calibration" if measure == "ece" else "evaluate"
        values = [
            read_json(paths.scores(stage_name, task, seed))["scores"][task][variant][measure] for seed in (1, 2, 3)
        ]
        ours = result["task"][task][variant]
        assert ours[f"{measure}_mean"] == pytest.approx(np.mean(values), abs=1e-6)
        assert ours[f"{measure}_std"] == pytest.approx(np.std(values, ddof=1), abs=1e-6)
        assert (ours["n"], ours["seeds"]) == (400, 3)
    for variant, measure in itertools.product(VARIANTS, MEASURES):
        means = [result["task"][task][variant][f"{measure}_mean"] for task in ("movies", "mrpc")]
        assert result["average"][variant][measure] == pytest.approx(np.mean(means), abs=2e-6)


def test_score_of_an_f1_task_is_its_f1():
    make_cells(["mrpc"], [1])
    values = summarize(collect(["mrpc"], [1], {}))["task"]["mrpc"][GRAFTED]
    assert values["score_mean"] == values["f1_mean"] != values["accuracy_mean"]


def test_two_ways_to_average_the_reduction_of_ece():
    make_cells(["movies"], [1, 2])
    for seed, (before, after) in {1: (0.20, 0.05), 2: (0.04, 0.03)}.items():
        path = paths.scores("calibration", "movies", seed)
        values = read_json(path)
        values["scores"]["movies"][FINETUNED]["ece"], values["scores"]["movies"][GRAFTED]["ece"] = before, after
        write_json(path, values)
    average = summarize(collect(["movies"], [1, 2], {}))["average"][GRAFTED]
    assert average["ece_reduction"] == pytest.approx(1 - 0.08 / 0.24, abs=1e-6)
    assert average["ece_reduction_mean_of_cells"] == pytest.approx((0.75 + 0.25) / 2, abs=1e-6)


def test_summary_holds_nothing_but_numbers():
    make_cells(["movies", "sst2"], [1, 2], {"sst2": ["imdb"]})

    def leaves(value):
        return itertools.chain.from_iterable(map(leaves, value.values())) if isinstance(value, dict) else [value]

    result = summarize(collect(["movies", "sst2"], [1, 2], {"sst2": ["imdb"]}))
    assert all(type(leaf) in (int, float) and np.isfinite(leaf) for leaf in leaves(result))
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert clean({"a": float("nan"), "b": -0.00000001, "c": np.int64(2)}) == {"b": 0.0, "c": 2}


def test_a_missing_cell_is_named_with_the_target_that_makes_it():
    make_cells(["movies", "bbc"], [1, 2])
    paths.scores("calibration", "bbc", 2).unlink()
    paths.learned("movies", 1).unlink()
    with pytest.raises(DataError) as problem:
        collect(["movies", "bbc"], [1, 2], {})
    assert "metrics/calibration/2/bbc.json: not there; `dvc repro calibration@2` makes it" in str(problem.value)
    assert "masks/learned/1/movies.safetensors: not there; `dvc repro mask@movies-1` makes it" in str(problem.value)
    assert "evaluate" not in str(problem.value)


def test_a_cell_without_a_test_set_is_named():
    make_cells(["sst2"], [1])
    with pytest.raises(
        DataError, match=r"metrics/ood/1/sst2.json: has no scores of pretrained on imdb; `dvc repro ood@1`"
    ):
        collect(["sst2"], [1], {"sst2": ["imdb"]})


def test_a_damaged_mask_and_scores_of_other_rows_are_errors():
    make_cells(["movies"], [1])
    path = paths.scores("evaluate", "movies", 1)
    values = read_json(path)
    values["scores"]["movies"][PRETRAINED]["n"] = 7
    write_json(path, values)
    with pytest.raises(DataError, match="is about 400 test rows, evaluate about 7"):
        collect(["movies"], [1], {})
    paths.learned("movies", 1).write_bytes(b"no mask")
    with pytest.raises(MaskError, match="masks/learned/1/movies.safetensors"):
        collect(["movies"], [1], {})


def test_cells_left_by_an_earlier_run_are_not_counted():
    make_cells(["movies"], [1, 2])
    before = summarize(collect(["movies"], [1, 2], {}))
    make_cells(["bbc"], [1, 2])
    make_cell("movies", 3, [], SKILL, 400)
    assert summarize(collect(["movies"], [1, 2], {})) == before


def test_the_order_of_tasks_is_that_of_the_settings():
    make_cells(["tweets", "bbc", "movies"], [1])
    assert list(summarize(collect(["tweets", "bbc", "movies"], [1], {}))["task"]) == ["tweets", "bbc", "movies"]


def test_a_single_seed_has_no_deviation():
    make_cells(["movies"], [1])
    result = summarize(collect(["movies"], [1], {}))
    assert "score_std" not in result["task"]["movies"][GRAFTED]
    assert "score_mean" in result["task"]["movies"][GRAFTED]
    assert "(" not in next(
        line for line in report_text(["movies"], [1], {}).splitlines() if line.strip().startswith("movies")
    )


def test_a_worthless_fine_tuned_model_leaves_its_share_undefined():
    make_cells(["movies"], [1])
    path = paths.scores("evaluate", "movies", 1)
    values = read_json(path)
    for variant in VARIANTS:
        values["scores"]["movies"][variant] |= {"score": 0.0, "retained": None}
    write_json(path, values)
    result = summarize(collect(["movies"], [1], {}))
    assert "retained" not in result["average"][GRAFTED]
    claim = judge(result, 0.95, 0.4)[0]
    assert (claim.holds, claim.verdict) == (None, "not measurable")
    assert "n/a" in report_text(["movies"], [1], {})


def test_mask_sizes_have_both_denominators():
    make_cells(["movies", "bbc"], [1, 2])
    make_mask("bbc", 2, selected=106_367)
    masks = summarize(collect(["movies", "bbc"], [1, 2], {}))["mask"]
    assert masks["movies"] == {
        "selected": 106_467,
        "graftable": 10_646_784,
        "model_parameters": 22_713_216,
        "sparsity": 0.01,
        "sparsity_of_model": 0.004687,
    }
    assert masks["bbc"]["selected"] == 106_417
    line = "106,467 of 10,646,784 graftable parameters (1.00 %), 0.47 % of the model's 22,713,216"
    assert mask_facts({"a": masks["movies"], "b": masks["movies"]}) == [f"Mask: {line}"]
    assert mask_facts({"a": masks["movies"], "b": masks["bbc"]})[0] == f"Mask of a: {line}"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.01, "1.00 %"), (0.0001, "0.010 %"), (0.000043, "0.0043 %"), (1.0, "100.00 %"), (0.0, "0.00 %")],
)
def test_small_shares_show_two_digits(share, text):
    assert small_percent(share) == text


def test_the_verdict_holds_for_good_grafts_and_does_not_for_bad_ones():
    tasks = ["movies", "tweets"]
    make_cells(tasks, [1, 2, 3])
    assert [claim.holds for claim in judge(summarize(collect(tasks, [1, 2, 3], {})), 0.95, 0.4)] == [
        True,
        True,
        True,
        True,
    ]
    # the control: a graft as unskilled as the pretrained model and as overconfident as the fine-tuned one
    make_cells(tasks, [1, 2, 3], skill=SKILL | {GRAFTED: (0.15, 9.0)})
    claims = judge(summarize(collect(tasks, [1, 2, 3], {})), 0.95, 0.4)
    assert [claim.verdict for claim in claims] == ["does not hold"] * 4
    assert all("movies" in " ".join(claim.exceptions) and "tweets" in " ".join(claim.exceptions) for claim in claims)
    assert "% higher" in claims[1].figure
    assert report_text(tasks, [1, 2, 3], {}).count("does not hold") == 4


def test_a_task_that_does_not_follow_is_named_though_the_average_holds():
    make_cells(["movies", "bbc"], [1, 2])
    make_cell("movies", 1, [], SKILL | {GRAFTED: (0.7, 1.3)}, 400)
    make_cell("movies", 2, [], SKILL | {GRAFTED: (0.7, 1.3)}, 400)
    claim = judge(summarize(collect(["movies", "bbc"], [1, 2], {})), 0.9, 0.4)[0]
    assert claim.holds
    assert [text.split()[0] for text in claim.exceptions] == ["movies"]


def test_equal_grafts_do_not_beat_each_other():
    make_cells(["movies"], [1])
    for stage_name in ("evaluate", "calibration"):
        path = paths.scores(stage_name, "movies", 1)
        values = read_json(path)
        values["scores"]["movies"][GRAFTED] = values["scores"]["movies"][MOVEMENT_GRAFTED]
        write_json(path, values)
    assert [claim.holds for claim in judge(summarize(collect(["movies"], [1], {})), 0.95, 0.4)[2:]] == [False, False]


def test_paper_values_stand_below_paper_tasks_only():
    make_cells(["sst2", "movies"], [1, 2])
    lines = report_text(["sst2", "movies"], [1, 2], {}, width=140).splitlines()
    sst2 = next(number for number, line in enumerate(lines) if line.strip().startswith("sst2"))
    assert lines[sst2 + 1].split()[:3] == ["paper", "90.5", "(0.4)"]
    assert sum(line.strip().startswith("paper ") for line in lines) == 1
    assert any("64-shot" in line for line in lines)
    assert "paper" not in report_text(["movies"], [1, 2], {})


def test_paper_averages_are_those_the_paper_prints():
    single = [table2(task, 64) for task in THIRTEEN[:7]]
    double = [table2(task, 64) for task in THIRTEEN[7:]]
    printed = [(89.1, 11.0, 87.7, 7.2), (73.3, 25.3, 70.6, 17.5)]
    for values, averages in zip((single, double), printed, strict=True):
        ours = [
            100 * np.mean([task[variant][name][0] for task in values])
            for variant in (FINETUNED, GRAFTED)
            for name in ("score", "ece")
        ]
        assert np.allclose(ours, averages, atol=0.06)
    assert np.allclose(
        100 * np.mean([table2(task, 4096)[GRAFTED]["agreement"][0] for task in THIRTEEN[:7] if task != "trec"]),
        95.2,
        atol=0.06,
    )
    assert (shots_for(4096), shots_for(16), table2("movies", 64)) == (4096, 64, {})
    assert (table3("sst2", "imdb"), table3("sst2", "movies")) == (pytest.approx((0.815, 0.007)), None)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width):
    make_cells(THIRTEEN, [1, 2], PAIRS)
    text = report_text(THIRTEEN, [1, 2], PAIRS, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "\x1b" not in text
    assert "mrpc†" in text
    assert "sst2 -> imdb: 342 of 2,000 test texts are in the training data, dropped" in " ".join(text.split())


def test_markdown_tables_are_rectangular_and_say_the_same():
    make_cells(["sst2", "mrpc", "ag_news"], [1, 2], {"sst2": ["imdb"]})
    cells = collect(["sst2", "mrpc", "ag_news"], [1, 2], {"sst2": ["imdb"]})
    report = write_report(cells, summarize(cells), 0.95, 0.4, "keep")
    text = to_markdown(report)
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count("|") for line in table.splitlines()}) == 1
    assert all(claim.figure.split(" (")[0] in text for claim in report.claims)
    assert "training data, kept" in text
    assert "ag\\_news" in text


def test_plot_data_is_tidy_and_pooled_over_seeds():
    make_cells(["movies"], [1, 2])
    write_plot_data(collect(["movies"], [1, 2], {}), paths.PLOTS)
    scores = (paths.PLOTS / "scores.csv").read_text().splitlines()
    assert scores[0] == "task,seed,variant,n,score,accuracy,f1,ece,agreement,retained"
    assert len(scores) == 1 + 2 * 4
    assert (
        paths.PLOTS / "ood.csv"
    ).read_text() == "task,test_set,seed,variant,n,score,accuracy,f1,ece,agreement,retained\n"
    rows = [line.split(",") for line in (paths.PLOTS / "reliability.csv").read_text().splitlines()]
    assert rows[0] == ["task", "variant", "bin", "count", "confidence", "accuracy"]
    parts = [read_json(paths.scores("calibration", "movies", seed))["scores"]["movies"][GRAFTED] for seed in (1, 2)]
    count = sum(part["bin_count"][14] for part in parts)
    confidence = sum(part["bin_count"][14] * part["bin_confidence"][14] for part in parts) / count
    last = next(row for row in rows if row[1:3] == [GRAFTED, "14"])
    assert (int(last[3]), float(last[4])) == (count, pytest.approx(confidence, abs=1e-6))


def test_the_stage_writes_every_output_and_the_same_bytes_again(monkeypatch, capsys):
    make_cells(["movies", "sst2"], [1, 2], {"sst2": ["imdb"]})
    digests = []
    for _ in range(2):
        run_stage(monkeypatch, ["movies", "sst2"], [1, 2], {"sst2": ["imdb"]})
        digests.append({name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in OUTPUTS})
        shutil.rmtree("plots")
    assert digests[0] == digests[1]
    assert "Verdict" in capsys.readouterr().out


def test_the_stage_writes_every_output_without_ood_sets_too(monkeypatch):
    make_cells(["movies"], [1])
    run_stage(monkeypatch, ["movies"], [1], {})
    assert sorted(str(path) for folder in ("metrics", "plots") for path in Path(folder).glob("*.*")) == sorted(OUTPUTS)
    assert read_json(paths.SUMMARY)["ood"] == {}
    assert "Out-of-distribution" not in Path("metrics/summary.md").read_text()


def test_a_mistake_is_one_message_and_an_exit_code(monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        run_stage(monkeypatch, ["movies"], [1], {})
    assert end.value.code == 2
    assert "summary: metrics/evaluate/1/movies.json: not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tasks", "sets"),
    [(["movies"], {}), (LONG, {LONG[0]: LONG[1:]}), (THIRTEEN, PAIRS)],
    ids=["one", "long names", "thirteen"],
)
def test_no_text_of_a_figure_overlaps_another_or_leaves_the_figure(tasks, sets):
    make_cells(tasks, [1, 2], sets)
    cells = collect(tasks, [1, 2], sets)
    for draw in (figures.accuracy, figures.calibration, figures.reliability, figures.confidence, figures.ood):
        with styled():
            drawn = draw(cells, summarize(cells))
            FigureCanvasAgg(drawn).draw()
        boxes = text_boxes(drawn)
        assert len(boxes) > 1
        outside = [
            text for text, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > drawn.bbox.x1 or box.y1 > drawn.bbox.y1
        ]
        assert not outside, draw.__name__
        assert not overlaps(boxes), draw.__name__


def test_overlapping_labels_are_noticed(monkeypatch):
    monkeypatch.setattr(figures, "wrapped", lambda name, width=0: name * 3)
    make_cells(LONG, [1])
    cells = collect(LONG, [1], {})
    with styled():
        drawn = figures.accuracy(cells, summarize(cells))
        FigureCanvasAgg(drawn).draw()
    assert overlaps(text_boxes(drawn))


def overlaps(boxes: list) -> list:
    """Pairs of texts that cover each other."""
    return [(a[0], b[0]) for a, b in itertools.combinations(boxes, 2) if a[1].padded(-1).overlaps(b[1].padded(-1))]


def text_boxes(drawn) -> list:
    """Every text of a figure that is drawn, with its bounding box in pixels."""
    left_out = set()
    for axis in (axis for axes in drawn.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = axis.get_view_interval()
        ends = 0 if axis.axis_name == "x" else 1
        left_out |= {
            label
            for label in axis.get_ticklabels()
            if not low <= label.get_position()[ends] <= high or not axis.axes.axison
        }
    texts = [
        text for text in drawn.findobj(Text) if text.get_visible() and text.get_text().strip() and text not in left_out
    ]
    return [(text.get_text(), text.get_window_extent(drawn.canvas.get_renderer())) for text in texts]


def test_long_names_are_wrapped():
    assert wrapped("ag_news") == "ag_news"
    assert wrapped("natural_language_inference").splitlines() == ["natural_", "language_", "inference"]
    assert max(map(len, wrapped("x" * 40).splitlines())) <= 12


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, "holds"), (-0.1, 0.3, "not shown"), (-0.3, -0.1, "does not hold"), (None, None, "not measurable")],
)
def test_a_difference_is_judged_by_all_of_its_interval(low, high, verdict):
    assert Verdict.of_interval(low, high) == verdict
    report = Report("", "", [], [], [Claim("", Verdict.of_interval(low, high), "", [])])
    assert ("does not hold where all of it is below" in to_markdown(report)) is (verdict == "not shown")
    if low is not None:  # the same about another limit
        assert Verdict.of_interval(low + 1, high + 1, limit=1.0) == verdict
