"""Surgical fine-tuning: scores of layers, which layers they choose, that those alone are trained, and how rankings agree."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torchmetrics.functional import matthews_corrcoef, spearman_corrcoef
from transformers import BertModel, GPT2Model, LlamaModel

from skill_grafting.grafting.region import Region
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.errors import ParamsError, TrainingError
from skill_grafting.support.fields import LAYERS
from skill_grafting.support.io import read_json, write_json, write_rows
from stages.surgical import fim, robustness, surgery
from stages.surgical.layers import AGGREGATIONS, by_layer, layer_norms, layer_scores, layers_of, scores_by_count
from stages.surgical.rankings import (  # fmt: skip
    across,
    agreement,
    mask_share_in_top,
    of_heads,
    of_pairs,
    over_training,
)
from stages.surgical.rankings import chosen as scored_by
from stages.surgical.selections import SIZED, UNSIZED, choose, order, parse
from stages.surgical.settings import ChosenScore, FimScores, LayerTraining
from stages.surgical.surgery import whole_layers
from stages.surgical.surgical import CELL, best_layers, ranked, selected
from stages.text.models.fisher import squared_gradients
from stages.text.models.importing import import_model
from stages.text.models.label_model import LabelModel
from stages.text.scores.classification import mcc
from stages.text.scores.overlap import spearman
from stages.text.scores.predictions import Predictions
from stages.text.scores.scores import classification_scores, own_scores
from stages.text.scores.variants import FINETUNED
from stages.text.tasks.runtime import derive_seed, numpy_generator, permuted
from stages.text.tasks.settings import WarmedUp
from stages.text.training.finetuning import TrainingCell, finetune, train_again
from stages.text.training.trainer import TrainPlan
from stages.workflow.stage import paths
from tests.pico import (
    TOY,
    bert_config,
    finetune_settings,
    model_settings,
    runtime,
    same,
    save_bert,
    toy_rows,
    values_of,
)

SEED, DEPTH = 13, 4
TARGETS = ["label_logit", "empirical", "expected"]
ROWS = {"train": toy_rows(24, 1), "dev": toy_rows(16, 2), "test": toy_rows(40, 3)}


def params(**changes: Any) -> SimpleNamespace:
    """All settings of the pipeline's stages; `changes` are of the training, its steps those of any fine-tuning."""
    steps = changes.pop("max_steps", 12)
    training = {"also": [], "learning_rate": 3e-3, "warmup_steps": 2, "batch_size": 8, **changes}
    score = ChosenScore(target="empirical", aggregation="sum_fro", examples=6)
    operation = {"tasks": ["toy"], "test_max": 0, "draws": 3, "training": LayerTraining(**training), "score": score}
    return SimpleNamespace(
        model=model_settings("standard"),
        finetune=finetune_settings(dropout=0.2, max_steps=steps),
        fim=SimpleNamespace(tasks=["toy"], scores=FimScores(targets=TARGETS, examples=[6, 3, 100, 200], heads=2)),
        surgery=SimpleNamespace(**operation),
        robustness=SimpleNamespace(tasks=["toy"], every=5),
    )


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A project folder to stand in, with one cell of a BERT of four thin layers, and its scores."""
    thin = save_bert(tmp_path_factory.mktemp("thin"), bert_config(DEPTH, 16))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("project"))
        anatomy = import_model(thin, model_settings("standard"), paths.PRETRAINED)
        write_json(paths.card("toy"), {"task": TOY.model_dump()})
        for split, rows in ROWS.items():
            write_rows(paths.sample("toy", SEED, split), rows)
        fim.score_layers("toy", SEED, params(), runtime())
        yield SimpleNamespace(anatomy=anatomy, layers=layers_of(anatomy))


def fresh(seed: int) -> LabelModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LabelModel.load(paths.PRETRAINED, TOY, model_settings("standard"), runtime())


@pytest.fixture(scope="module")
def model(cell) -> LabelModel:
    return fresh(5)


def training_cell(mode: str = "standard") -> TrainingCell:
    return TrainingCell(TOY, SEED, ROWS, model_settings(mode), runtime(), paths.PRETRAINED)


def names_of(layers: dict[int, list[str]]) -> list[str]:
    return [name for part in layers.values() for name in part]


def close(left: dict[str, Tensor], right: dict[str, Tensor], factor: float = 1.0) -> bool:
    """Tensor by tensor within 1e-4 of its norm; where gradients cancel to nothing, what is left is rounding."""
    noise = 1e-6 * max(float(values.norm()) for values in right.values())
    return all(
        (left[name] - factor * values).norm() <= factor * (1e-4 * values.norm() + noise)
        for name, values in right.items()
    )


SMALL = {
    "num_hidden_layers": 12, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "size"), [(BertModel, {}, 7_087_872), (GPT2Model, {}, 7_087_872), (LlamaModel, SMALL, 10_304)])
def test_layers_of_real_models_have_their_known_size_and_1_is_neither_10_nor_11(kind, changes, size):
    with torch.device("meta"):
        model = kind(kind.config_class(**changes))
    blocks = ("encoder.layer.", "h.", "layers.")
    region = Region({name: tuple(value.shape) for name, value in model.named_parameters() if name.startswith(blocks)})
    layers = by_layer(region)
    assert [*layers] == [*range(12)] and sorted(names_of(layers)) == sorted(region.shapes)
    for chosen in ((1,), (10,), (11,), (1, 10), (1, 10, 11), (0, 2, 4, 6, 8)):
        mask = whole_layers(region, chosen)
        assert {*mask.indices} == {name for layer in chosen for name in layers[layer]}
        assert mask.selected == len(chosen) * size
    # the control: what the beginning of a name says
    prefix = layers[1][0][: layers[1][0].index("1") + 1]
    assert {name for name in region.shapes if name.startswith(prefix)} >= {*layers[1], *layers[10], *layers[11]}


PLAN = TrainPlan(steps=20, learning_rate=0.1, batch_size=4)
SCORES = [0.1, 0.9, 0.5, 0.5, 0.2, 0.5]


def chosen(name: str, draws: int = 1, scores: list[float] = SCORES) -> list[tuple[int, ...]]:
    return choose(name, scores, draws, np.random.default_rng(3))


def test_selections_by_score_and_by_place():
    assert order(SCORES) == [1, 2, 3, 5, 4, 0]
    expected = {
        "all": tuple(range(6)), "none": (), "top_1": (1,), "top_3": (1, 2, 3), "bottom_1": (0,), "bottom_3": (0, 4, 5),
        "first_2": (0, 1), "middle_2": (2, 3), "middle_1": (2,), "last_2": (4, 5), "top_6": tuple(range(6)),
    }  # fmt: skip
    assert {name: chosen(name) for name in expected} == {name: [layers] for name, layers in expected.items()}
    assert {parse(name)[0] for name in expected} | {"random"} == {*UNSIZED, *SIZED}
    assert (chosen("top_3", scores=[1.0] * 6), chosen("bottom_3", scores=[1.0] * 6)) == ([(0, 1, 2)], [(3, 4, 5)])


def test_random_sets_differ_and_more_draws_begin_with_the_same():
    few, many = chosen("random_2", 5), chosen("random_2", 9)
    assert many[:5] == few and len({*many}) == 9 and all(len({*layers}) == 2 for layers in many)
    assert chosen("random_2", 5, SCORES[::-1]) == few  # whatever the scores are
    assert len(chosen("random_6", 5)) == 1 and len(chosen("random_1", 50)) == 6
    assert chosen("random_1", 50) != chosen("random_1", 50, [0.0] * 7)


REFUSED = [
    *((lambda name=name: parse(name), ValueError, "top_K") for name in ("top", "top_0", "top_01", "all_1", "best_2", "top_1 ", "", "top_-1")),
    (lambda: chosen("top_7"), ParamsError, "6 layers"), (lambda: robustness.looks(12, 12), ParamsError, "12 steps"),
    (lambda: surgery.operate("top_5", "toy", SEED, params(), runtime()), ParamsError, "surgery.selections"),
    (lambda: replace(PLAN, warmup_steps=20), TrainingError, "warm-up"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "word"), REFUSED)
def test_what_a_model_or_a_plan_does_not_allow_is_refused(cell, call, error, word):
    with pytest.raises(error, match=word):
        call()
    assert surgery.chosen_sets(f"top_{DEPTH}", "toy", SEED, params().surgery) == [(*range(DEPTH),)] and robustness.looks(12, 11) == {11, 12}, "control"


def test_aggregations_are_what_their_names_say():
    squares = {"a": torch.tensor([[6.0, 8.0]]), "b": torch.tensor([10.0]), "c": torch.tensor([2.0, 0.0])}
    wanted = {"sum_fro": [10.0, 1.0], "fro_concat": [50**0.5, 1.0], "trace": [12.0, 1.0], "mean": [4.0, 0.5]}
    assert layer_scores(squares, 2, {0: ["a", "b"], 1: ["c"]}) == {
        name: pytest.approx(values) for name, values in wanted.items()
    }
    assert layer_norms(squares, {0: ["a", "b"], 1: ["c"]}) == pytest.approx([200**0.5, 2.0])
    assert layer_scores({"a": torch.tensor([1.0, 2.0**-30])}, 1, {0: ["a"]})["trace"] == [1 + 2.0**-30], "in float64"


def test_larger_logits_scale_their_own_score_exactly_and_no_rank(cell, model):
    examples, names = model.encode(ROWS["train"][:4]), names_of(cell.layers)
    head = {name: values for name, values in values_of(model).items() if "classifier" in name}
    found = {}
    for size in (3, 1):
        model.put({name: size * values for name, values in head.items()})
        found[size] = {target: squared_gradients(model, examples, names, target) for target in TARGETS}
    assert close(found[3]["label_logit"], found[1]["label_logit"], 9.0)
    assert not close(found[3]["empirical"], found[1]["empirical"], 9.0)
    ranks = [order(layer_scores(part["label_logit"], 4, cell.layers)["sum_fro"]) for part in found.values()]
    assert ranks[0] == ranks[1]


def test_the_stored_scores_are_those_of_examples_in_a_drawn_order_averaged_over_heads(cell):
    record = read_json(paths.record("fim", "toy", SEED))
    assert record["parameters"] == [whole_layers(cell.anatomy.region([LAYERS]), [0]).selected] * DEPTH
    # 24 rows: the smallest larger count takes them all, and the next one is left out
    assert {(row["examples"], row["used"]) for row in record["rows"]} == {(3, 3), (6, 6), (100, 24)}
    assert len(record["rows"]) == 3 * len(TARGETS) * len(AGGREGATIONS) * 2
    direct, drawn = [], permuted(ROWS["train"], "fim", "rows", "toy", SEED)
    assert drawn[:6] != ROWS["train"][:6] and drawn[:6] != permuted(ROWS["train"], "fim", "rows", "toy", SEED + 1)[:6]
    for head in range(2):
        headed = fresh(derive_seed("fim", "toy", SEED, head))
        squares = squared_gradients(headed, headed.encode(drawn[:6]), names_of(cell.layers), "label_logit")
        direct.append(layer_scores(squares, 6, cell.layers)["trace"])
    assert direct[0] != direct[1]  # heads matter
    six, hundred, most = (surgery.read_scores("toy", SEED, "label_logit", "trace", count) for count in (6, 100, 200))
    assert six == pytest.approx(np.mean(direct, 0).tolist()) and hundred == most


def test_correlations_of_ranks():
    scores = [0.3, 0.1, 0.7, 0.2]
    assert spearman(scores, scores) == spearman(scores, [10 * score for score in scores]) == pytest.approx(1)
    assert spearman(scores, [-score for score in scores]) == pytest.approx(-1)
    assert spearman(scores, [1.0] * 4) is None
    generator = np.random.default_rng(0)
    for _ in range(20):
        left, right = generator.integers(0, 6, (2, 9)).astype(float)  # with ties
        both = torch.tensor(left), torch.tensor(right)
        assert spearman(left, right) == pytest.approx(float(spearman_corrcoef(*both)), abs=1e-5)


def test_matthews_correlation():
    generator = np.random.default_rng(1)
    for labels in (3, 5, 2):
        logits, true = generator.normal(size=(50, labels)), generator.integers(0, labels, 50)
        known = matthews_corrcoef(torch.tensor(logits.argmax(1)), torch.tensor(true), "multiclass", num_classes=labels)
        assert mcc(logits, true) == pytest.approx(float(known), abs=1e-6)
    assert mcc(np.eye(2)[[1] * 4], np.array([0, 1, 1, 1])) == 0
    assert mcc(np.eye(2)[[0, 1, 0]], np.array([0, 1, 0])) == pytest.approx(1)
    task = TOY.model_copy(update={"metric": "mcc"})
    predictions = Predictions(TOY.labels, {"toy": true}, {"toy": {FINETUNED: logits}})
    for found in (classification_scores(predictions, task)["toy"], own_scores(predictions, "toy", task)):
        assert found[FINETUNED]["score"] == mcc(logits, true)


def trained_by(**changes: Any) -> WarmedUp:
    """How layers are trained."""
    settings = params(**changes)
    return settings.surgery.training.over(settings.finetune)


def trained(layers: tuple[int, ...], also: tuple[str, ...] = (), **changes: Any) -> dict[str, Tensor]:
    """Every parameter after training these layers alone, on a cell."""
    training, anatomy = trained_by(also=[*also], **changes), read_anatomy(paths.PRETRAINED)
    mask = surgery.mask_of(anatomy, layers, [*also])
    return values_of(surgery.train_layers(training_cell(), training, mask).model)


def before(anatomy: Any) -> dict[str, Tensor]:
    return read_tensors(paths.PRETRAINED, anatomy.names([LAYERS, "embeddings", "pooler"]))


def test_all_layers_are_training_as_ever_and_none_trains_the_head_alone(cell):
    ordinary = values_of(finetune(training_cell(), trained_by(also=["embeddings"])).model)
    everything, nothing = trained(tuple(range(DEPTH)), ("embeddings",)), trained(())
    assert same(ordinary, everything)
    assert all(torch.equal(values, nothing[name]) for name, values in before(cell.anatomy).items())
    heads = [part["classifier.weight"] for part in (trained((0, 1), ("embeddings",)), nothing, everything)]
    assert not torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_without_a_head_no_layer_means_the_pretrained_model(pico_bert, project):
    anatomy, training = import_model(pico_bert, model_settings("prompt"), paths.PRETRAINED), trained_by()
    mask = surgery.mask_of(anatomy, (), [])
    done = surgery.train_layers(training_cell("prompt"), training, mask)
    after, start = values_of(done.model), read_tensors(paths.PRETRAINED, anatomy.names([LAYERS]))
    assert all(torch.equal(values, after[name]) for name, values in start.items())
    assert surgery.peak_learning_rate(training, done.record) == 0 and surgery.trained_size(anatomy, mask) == 0


def test_a_selection_is_trained_and_measured(cell):
    surgery.operate("random_2", "toy", SEED, params(), runtime())
    record = read_json(paths.record("surgery", "toy", SEED, "random_2"))
    sets = choose("random_2", [0.0] * DEPTH, 3, numpy_generator("random_layers", "toy", SEED, 2))
    assert [tuple(row["layers"]) for row in record["rows"]] == sets
    head = 16 * 2 + 2
    for number, row in enumerate(record["rows"]):
        assert row["draw"] == number and row["n"] == 40 and row["majority"] == 0.5
        assert row["trained"] == 2 * fim.layer_sizes(cell.anatomy)[0] + head
        assert row["peak_learning_rate"] >= 0.99 * 3e-3
    assert len({row["loss"] for row in record["rows"]}) == 3


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("warmup", [0, 1, 5, 19])
def test_a_warm_up_rises_to_the_whole_learning_rate_and_the_rest_is_as_ever(schedule, warmup):
    plan, rest = replace(PLAN, schedule=schedule, warmup_steps=warmup), 20 - warmup
    rising = [(step + 1) / warmup for step in range(warmup)]
    falling = [1 - step / rest if schedule == "linear" else 1.0 for step in range(rest + 1)]
    assert [plan.factor(step) for step in range(21)] == [*rising, *falling]


def test_watching_changes_nothing_and_sees_the_layers_move(cell):
    def score(model: LabelModel, examples: list) -> list[float]:
        return scores_by_count(model, examples, [4], cell.layers, "empirical")[4]["sum_fro"]

    settings, rows = trained_by(), []
    unwatched = finetune(training_cell(), settings).model
    watched = train_again(training_cell(), settings, robustness.watching({5, 12}, ROWS, cell.layers, score, rows))
    after = values_of(watched)
    assert same(values_of(unwatched), after)
    assert [row["step"] for row in rows] == [0, 5, 12]
    assert rows[0]["moved"] == [0.0] * DEPTH and all(later > 0 for later in rows[1]["moved"])
    start = read_tensors(paths.PRETRAINED, names_of(cell.layers))
    moved = {name: after[name] - values for name, values in start.items()}
    assert rows[-1]["moved"] == pytest.approx(layer_norms(moved, cell.layers))
    assert rows[-1]["scores"] == pytest.approx(score(watched, watched.encode(ROWS["train"])))
    assert rows[-1]["scores"] != rows[0]["scores"]


# --- The report: rankings of layers whose order is known

# score of each of four layers
RANKED = {("cr", 13): [4, 3, 2, 1], ("cr", 21): [4, 3, 2, 1], ("qnli", 13): [1, 2, 3, 4], ("qnli", 21): [1, 2, 4, 3]}


def series(scores):
    rows = [(*cell, layer, value) for cell, values in scores.items() for layer, value in enumerate(values, start=1)]
    return pd.DataFrame(rows, columns=[*CELL, "layer", "score"]).set_index([*CELL, "layer"]).score


def examined(**axes):
    """Scores of 4 and of 8 examples by two heads; those of 8 are ten times as high, of the second head twice."""
    parts = []
    for examples, head in ((4, 0), (4, 1), (8, 0), (8, 1)):
        scores = series(RANKED) * (10 if examples == 8 else 1) * (1 + head)
        parts.append(scores.reset_index().assign(examples=examples, head=head, target="expected", aggregation="trace"))
    return pd.concat(parts, ignore_index=True).assign(**axes)


def test_a_score_is_the_mean_over_heads_and_of_the_most_examples_there_are():
    way = {"target": "expected", "aggregation": "trace"}
    assert scored_by(examined(), 8, **way)["cr", 13].tolist() == [60, 45, 30, 15]
    less = scored_by(examined().query("task != 'cr' or examples < 8"), 8, **way)
    assert less["cr", 13].tolist() == [6, 4.5, 3, 1.5] and less["qnli", 13].max() == 60
    assert of_heads(examined(), 8, **way).value.tolist() == [1] * 4 and of_heads(examined().query("head == 0"), 8, **way).empty


def test_tasks_and_seeds_agree_as_their_orders_do_and_layers_stand_in_them():
    tasks, seeds = across(series(RANKED))
    assert tasks.to_dict() == pytest.approx({("cr", "qnli", 13): -1, ("cr", "qnli", 21): -0.8})
    assert seeds["cr"].tolist() == pytest.approx([1, 1]) and seeds["qnli"].tolist() == pytest.approx([0.8, 0.8])
    pairs = of_pairs(tasks, seeds)
    assert pairs.apart.tolist() == pytest.approx([1.9, 1.7]), "the mean of both tasks' own less that of the pair"
    rows = ranked(series(RANKED)).set_index("task")
    assert rows.layers.to_dict() == {"cr": "1 2 3 4", "qnli": "3 4 2 1"}, "of equal ones the earlier layer"
    assert rows["first"].tolist() == [0.4, 0.35] and rows.n.tolist() == [2, 2]


def test_a_mask_is_caught_where_it_was_put():
    regions = series({cell: [0.1, 0.1, 0.2, 0.6] for cell in RANKED}).rename("share").reset_index().assign(chance=0.25)
    found = mask_share_in_top(series(RANKED), regions, [1, 2]).set_index(["task", "seed", "size"])
    assert found.share["qnli", 13].tolist() == pytest.approx([0.6, 0.8])
    assert found.share["cr", 13].tolist() == pytest.approx([0.1, 0.2])
    assert found.chance.tolist() == pytest.approx([0.25, 0.5] * 4)
    even = agreement(series(RANKED), series({cell: [1] * 4 for cell in RANKED}))
    assert even.isna().all(), "what is the same everywhere has no ranking"


def test_a_ranking_that_turns_round_in_training_is_told_with_how_far_the_layers_moved():
    steps = pd.DataFrame({
        "task": "cr", "seed": 13, "step": [0] * 3 + [20] * 3, "layer": [1, 2, 3] * 2, "score": [3, 2, 1, 1, 2, 3],
        "moved": [0.0] * 3 + [3.0, 4.0, 0.0], "start": [6.0, 8.0, 0.0] * 2, "dev_accuracy": [0.5] * 3 + [0.8] * 3,
    })  # fmt: skip
    rows = over_training(steps).set_index("step")
    assert rows.spearman.tolist() == pytest.approx([1, -1])
    assert rows.moved.tolist() == pytest.approx([0, 0.5]) and rows.dev_accuracy.tolist() == [0.5, 0.8]


def test_draws_count_as_one_cell_and_a_share_is_kept_of_a_positive_score_alone():
    def run(selection, kind, size, score, **more):
        own = {"selection": selection, "kind": kind, "size": size, "task": "cr", "seed": 13, "score": score, "accuracy": score}
        return {**own, "constant": 0.5, "trained": 10, "model_parameters": 100, "flagged": score < 0.5, **more}

    runs = [run("all", "all", None, 0.8), run("none", "none", None, 0.6)]
    runs += [run("random_2", "random", 2, score) for score in (0.4, 0.8)]
    found = selected(pd.DataFrame(runs), half=2).set_index("selection")
    assert found.kept.to_dict() == pytest.approx({"all": 1, "none": 0.75, "random_2": 0.75})
    assert found.above["all"] == pytest.approx(0.2) and found.less_all["random_2"] == pytest.approx(-0.2)
    assert found.loc["random_2", ["flagged", "runs", "best", "half"]].tolist() == [1, 2, best_layers(2), True]
    nothing = selected(pd.DataFrame([run("all", "all", None, 0.0), *runs[2:]]), half=2)
    assert nothing.kept.isna().all()
