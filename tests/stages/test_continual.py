"""Continual learning: pieces, penalties and stored rows, whatever the data are, and on pico models what each method moves and keeps."""

import json
import re
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from skill_grafting.grafting.apply import graft, values_at
from skill_grafting.grafting.mask_files import StoredMask
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.support.errors import MaskError
from skill_grafting.support.io import read_json
from stages.continual import methods
from stages.continual.continual import ALONE, collect, derive, measures
from stages.continual.methods import METHODS, Elastic, Ewc, Naive, TaskSequence, put_together, stored_rows
from stages.continual.sequence import learn_in_order, require_unchanged, run_sequence
from stages.continual.settings import EwcParams, NoParams, ReplayParams
from stages.text.models.label_model import LabelModel
from stages.text.scores.predictions import read_predictions
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.text.tasks.runtime import seeded_torch
from stages.text.training.finetuning import at_point, finetune
from stages.workflow.cells.training import chosen_point, open_training
from stages.workflow.report.publish import markdown
from stages.workflow.report.spec import read_spec
from stages.workflow.stage import paths
from tests.cells import SEED, TASKS
from tests.committed import ROOT
from tests.pico import finetune_settings, graft_settings, model_settings, random_mask, runtime, same, values_of

STEPS, TEST = 8, 24
ORDER = [*TASKS]
MODES = ["standard", "prompt"]
TRAINING = finetune_settings(max_steps=STEPS, dropout=0.2)


def params(mode: str) -> SimpleNamespace:
    """All settings of the stage."""
    methods = {
        "replay": ReplayParams(examples=2),
        "ewc": EwcParams(strengths=[100.0], fisher="expected", examples=8),
    }
    return SimpleNamespace(
        model=model_settings(mode), finetune=TRAINING, calibration=SimpleNamespace(bins=15),
        sequence=SimpleNamespace(test_max=TEST),
        order={"forward": ORDER, "backward": ORDER[::-1]},
        method=SimpleNamespace(naive=NoParams(), grafting=NoParams(), **methods),
    )  # fmt: skip


def learner(method: str, mode: str, order: list[str] = ORDER, **settings: Any) -> Naive:
    """A method at the start of a sequence, with other settings of its own if there are any."""
    chosen = params(mode)
    own = getattr(chosen.method, method).model_copy(update=settings)
    return METHODS[method](TaskSequence.open(order, SEED, chosen, runtime()), own)


def learned(method: str, mode: str, tasks: list[str] = ORDER, **settings: Any) -> Naive:
    """A method after these tasks."""
    made = learner(method, mode, **settings)
    for task in tasks:
        made.learn(task)
    return made


def weights_of(made: Naive) -> dict[str, Tensor]:
    return values_of(made.sequence.shared)


# --- One task at a time ----------------------------------------------------------------------------------------


def test_the_first_task_of_a_naive_sequence_is_its_own_fine_tuning_bit_for_bit(after_main):
    after_main(mode := "standard")
    for order in (ORDER, ORDER[::-1]):
        made = learner("naive", mode, order)
        for place, task in enumerate(order):
            made.learn(task)
            own = at_point(TRAINING, chosen_point(task, SEED))
            alone = finetune(open_training(task, SEED, model_settings(mode), runtime()), own).model
            assert same(values_of(made.sequence.view(task)), values_of(alone)) == (place == 0)


def test_an_order_changes_neither_the_head_that_a_task_starts_from_nor_its_batches(after_main):
    after_main("standard")
    starts = []
    for order in (ORDER, ORDER[::-1]):
        sequence = TaskSequence.open(order, SEED, params("standard"), runtime())
        for task in order[: order.index("pairs")]:  # what came before draws random numbers of its own
            METHODS["naive"](sequence, NoParams()).learn(task)
        with seeded_torch("finetune", "pairs", SEED):
            sequence.new_head("pairs")
        examples = sequence.view("pairs").encode(sequence.rows["pairs"]["train"])
        batches = [batch for [(_, batch)] in islice(sequence.batches("pairs", examples, 8, "finetune"), 5)]
        starts.append((sequence.head("pairs"), batches))
    (head, batches), (other_head, other_batches) = starts
    assert same(head, other_head) and batches == other_batches
    with seeded_torch("finetune", "pairs", SEED + 1):  # the control
        sequence.new_head("pairs")
    assert not same(head, sequence.head("pairs"))


# --- Grafting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_grafting_predicts_an_earlier_task_as_before_bit_for_bit_and_naive_does_not(after_main, mode):
    after_main(mode)
    steps = {method: learn_in_order(learner(method, mode), method, TEST).logits["toy"] for method in METHODS}
    assert np.array_equal(steps["grafting"]["toy"], steps["grafting"]["pairs"])
    for method in ("naive", "replay", "ewc"):  # the control
        assert not np.array_equal(steps[method]["toy"], steps[method]["pairs"])
    assert not np.array_equal(steps["grafting"]["toy"], steps["naive"]["toy"])


def test_a_changed_prediction_is_an_error(after_main):
    after_main("prompt")
    done = learn_in_order(learner("grafting", "prompt"), "grafting", TEST)
    require_unchanged(done)
    done.logits["toy"]["pairs"][3, 1] = np.nextafter(done.logits["toy"]["pairs"][3, 1], np.float32(9e9))
    with pytest.raises(RuntimeError, match="toy is predicted differently after pairs"):
        require_unchanged(done)


def test_grafting_moves_only_what_no_earlier_task_has(after_main):
    after_main(mode := "standard")
    before, made = weights_of(learner("grafting", mode)), learned("grafting", mode, ["toy"])
    first = weights_of(made)
    made.learn("pairs")
    both = weights_of(made)
    taken, own = (made.pieces[task].mask.region_indices() for task in ORDER)
    flat = made.region.flatten
    assert 0 < len(own) < made.masks["pairs"].selected and not torch.isin(own, taken).any()
    moved = (flat(both) != flat(first)).nonzero().reshape(-1)
    assert torch.isin(moved, own).all() and len(moved) > len(own) // 2
    outside = {name for name in before if name not in made.region.shapes and ":" not in name}
    assert outside and all(torch.equal(before[name], both[name]) for name in outside)
    union = torch.cat([taken, own])
    assert torch.equal(flat(both)[union], torch.cat([flat(first)[taken], flat(both)[own]]))
    made.recall("toy")
    recalled = weights_of(made)
    assert same({**recalled, **{k: v for k, v in first.items() if k.startswith("pairs:")}}, first)
    assert not same(recalled, both)  # the control


def test_a_region_that_is_taken_as_a_whole_is_an_error_where_no_head_is_left_to_train(after_main):
    for mode in MODES:
        after_main(mode)
        made = learner("grafting", mode)
        made.masks["pairs"] = made.masks["toy"]
        made.learn("toy")
        if mode == "prompt":
            with pytest.raises(MaskError, match=r"pairs.*taken by earlier tasks.*raise graft\.sparsity"):
                made.learn("pairs")
        else:
            made.learn("pairs")
            assert made.facts("pairs")["own"] == 0


# --- Replay and EWC --------------------------------------------------------------------------------------------


def test_replay_of_nothing_and_a_penalty_without_strength_are_naive_bit_for_bit(after_main, monkeypatch):
    after_main(mode := "prompt")
    naive = weights_of(learned("naive", mode))
    for method in ("replay", "ewc"):
        assert not same(weights_of(learned(method, mode)), naive)  # the control
    monkeypatch.setattr(METHODS["replay"], "stored", lambda *_: [])
    for method, without in (("replay", {}), ("ewc", {"strengths": [0.0]})):
        assert same(weights_of(learned(method, mode, **without)), naive)


def test_replay_adds_to_each_batch_as_many_stored_rows_as_it_has(after_main):
    after_main("prompt")
    made = learned("replay", "prompt", examples=4)
    sequence, plan = made.sequence, SimpleNamespace(batch_size=8)
    stored = {task: sequence.view(task).encode(made.stored(task)) for task in ORDER}
    new = sequence.batches("toy", sequence.view("toy").encode(sequence.rows["toy"]["train"]), 8, "again")
    seen = []
    for [(view, examples), *more] in islice(made.batches("toy", new, plan), 10):
        assert view is sequence.view("toy") and len(examples) == 8 == sum(len(part) for _, part in more)
        assert all(example in stored[reader.task.name] for reader, part in more for example in part)
        seen += [(reader.task.name, example.input_ids) for reader, part in more for example in part]
    # 80 draws are 4 rounds of all 4 * 2 + 4 * 3 rows, of both tasks together
    assert {seen.count(row) for row in seen} == {4} and len(seen) == 4 * 20


def test_ewc_takes_the_mean_over_as_many_training_rows_as_it_is_told(after_main, monkeypatch):
    after_main("prompt")
    drawn = []

    def squares(view: LabelModel, examples: list, names: set[str], _fisher: str) -> dict[str, Tensor]:
        drawn.extend(examples)
        return {name: torch.full_like(view.parameters()[name], len(examples)) for name in names}

    monkeypatch.setattr(methods, "squared_gradients", squares)
    made = learned("ewc", "prompt", ["toy"], examples=8)
    train = made.sequence.view("toy").encode(made.sequence.rows["toy"]["train"])
    assert len(drawn) == 8 and all(example in train for example in drawn)
    assert {float(value) for part in made.elastic.importance.values() for value in part.unique()} == {1.0}


# --- What is kept and what is stored ---------------------------------------------------------------------------


def test_every_method_takes_the_same_number_of_steps_and_what_it_keeps_is_counted_in_bytes(after_main):
    after_main("standard")
    kept = {}
    for method in METHODS:
        made, seen = learner(method, "standard"), []
        for task in ORDER:
            made.learn(task, lambda seen=seen: seen.append(1))
        assert len(seen) == 2 * STEPS, method
        kept[method] = made.kept()
    heads = 4 * (32 * 2 + 2 + 32 * 3 + 3)
    assert {found["head"] for found in kept.values()} == {heads}
    grafting, region = learner("grafting", "standard"), read_anatomy(paths.PRETRAINED).region(["layers"])
    backbone = sum(4 * values.numel() for name, values in weights_of(grafting).items() if ":" not in name)
    assert grafting.sequence.model_bytes() == backbone
    union = torch.cat([mask.region_indices() for mask in grafting.masks.values()]).unique()
    skills = {method: found["skill"] for method, found in kept.items()}
    assert skills["naive"] == 0 and skills["grafting"] == 8 * len(union) and skills["ewc"] == 2 * 4 * region.size
    toy, pairs = (grafting.sequence.rows[task]["train"] for task in ORDER)
    stored = toy[:4] + pairs[:6]  # 2 of each label, which come in turn
    assert skills["replay"] == sum(len(json.dumps(row, ensure_ascii=False).encode()) + 1 for row in stored)


@pytest.mark.parametrize("method", ["naive", "grafting"])
def test_a_sequence_stores_logits_of_every_task_after_every_step_since_its_own(after_main, method):
    after_main("standard")
    line = run_sequence(method, "backward", SEED, params("standard"), runtime())
    assert re.match(rf"sequence {method} backward {SEED}: pairs [01]\.\d+ -> .*, toy [01]\.", line)
    found = {task: read_predictions(paths.logits("sequence", task, SEED, method, "backward")) for task in TASKS}
    assert [*found["pairs"].logits["pairs"]] == ["after_pairs", "after_toy"]
    assert [*found["toy"].logits["toy"]] == ["after_toy"]
    assert found["pairs"].logits["pairs"]["after_toy"].shape == (TEST, 3)
    record = read_json(paths.record("sequence", "pairs", SEED, method, "backward"))
    assert (record["place"], record["tasks"], record["method"]) == (1, ["pairs", "toy"], method)
    assert record["training"]["steps"] == STEPS and record["kept_bytes"]["head"] == 4 * (32 * 3 + 3)
    rows = {row["variant"]: row for row in record["rows"]}
    assert {name: row["step"] for name, row in rows.items()} == {
        FINETUNED: 0, PRETRAINED: 0, "after_pairs": 1, "after_toy": 2,
    }  # fmt: skip
    assert rows["after_pairs"]["unchanged"] and rows["after_toy"]["unchanged"] == (method == "grafting")
    assert all(row["n"] == TEST for row in rows.values())
    then, later = (logits.argmax(1) for logits in found["pairs"].logits["pairs"].values())
    assert rows["after_toy"]["agreement_with_own"] == (then == later).mean()
    frames = frames_of([method], ["backward"])
    walked = frames["accuracy"].query("task == 'pairs'").set_index("variant")
    assert walked.accuracy.to_dict() == {name: row["accuracy"] for name, row in rows.items()} and {*walked.length} == {2}
    skill = read_json(paths.record("sequence", "toy", SEED, method, "backward"))["kept_bytes"]["skill"] / record["model_bytes"]
    sizes = frames["sizes"].set_index("method")
    assert sizes.loc[method, ["last", "each"]].tolist() == pytest.approx([skill, skill / 2]) and sizes.loc[ALONE, "last"] == 2
    for empty in ([[], ["backward"]], [[method], []]):
        page = markdown(read_spec(ROOT / "stages/continual/report.yaml"), frames_of(*empty))
        assert "Off: the settings ask for nothing here." in page and "##" not in page


def frames_of(methods: list[str], orders: list[str]) -> dict[str, pd.DataFrame]:
    """The frames of a report on these."""
    chosen = params("standard")
    chosen.tasks, chosen.seeds, chosen.graft, chosen.data = ORDER, [SEED], graft_settings(), SimpleNamespace(k=8, scarce="error")
    chosen.sequence = SimpleNamespace(methods=methods, orders=orders)
    return derive(collect(chosen))


NAN = np.nan
R = np.array([[0.9, NAN, NAN], [0.7, 0.8, NAN], [0.75, 0.6, 0.5]])


def measured(accuracies: np.ndarray) -> pd.Series:
    """Measures of one walk from R[step, task]."""
    known, length = np.argwhere(~np.isnan(accuracies)), len(accuracies)
    rows = [{"step": step + 1, "place": task + 1, "task": str(task), "accuracy": accuracies[step, task]} for step, task in known]
    [measure] = measures(pd.DataFrame(rows).assign(method="naive", order="paper", seed=1, length=length)).itertuples()
    return measure


def test_measures_of_a_walk_done_by_hand():
    better = R.copy()
    better[1, 0] = 0.95  # the second step helped the first task: forgetting is measured from the best step
    for accuracies, best in ((R, 0.9), (better, 0.95)):
        assert measured(accuracies).average == pytest.approx((0.75 + 0.6 + 0.5) / 3)
        assert measured(accuracies).learned == pytest.approx((0.9 + 0.8 + 0.5) / 3)
        assert measured(accuracies).forgetting == pytest.approx(((best - 0.75) + (0.8 - 0.6)) / 2)
    assert measured(np.array([[0.9, NAN], [0.9, 0.8]])).forgetting == 0
    assert measured(np.array([[0.5, NAN], [0.75, 0.8]])).forgetting == -0.25, "the last step isn't among the best"


# --- Memory: pieces, stored rows, penalties ----------------------------------------------------------------------


def test_pieces_of_one_model_put_together_are_the_graft_of_their_union(triple):
    region, pretrained, finetuned = triple
    first, second = random_mask(region, 30, 0), random_mask(region, 30, 1)
    pieces = [StoredMask(mask, values_at(finetuned, mask), {}, {}) for mask in (first, second - first)]
    expected = graft(pretrained, finetuned, first | second)
    for order in (pieces, pieces[::-1]):
        assert same(put_together(pretrained, order), expected)
    assert not same(put_together(pretrained, pieces[:1]), expected)  # the control
    assert same(put_together(pretrained, []), pretrained)


def drawn(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def of_one_task(fisher: Tensor, centre: Tensor) -> Elastic:
    elastic = Elastic()
    elastic.add({"a": fisher}, {"a": centre})
    return elastic


def test_a_pull_is_the_proximal_step_of_the_penalties_of_all_tasks():
    """Where it ends the gradient of  |theta - start|^2 / 2 + rate * penalties  is zero, and that is strictly convex."""
    elastic, rate, strength, parts = Elastic(), 0.3, 3.0, drawn(3, 2, 12)
    parts[0, 0, 6:] = 0  # of no importance to the first task
    parts[:, 0, 11] = 0  # nor this one to any
    tasks = [[{"a": part[:8].view(4, 2), "b": part[8:]} for part in task] for task in parts]
    start = {name: torch.ones_like(values) for name, values in tasks[0][1].items()}
    leaves = {name: values.clone().requires_grad_() for name, values in start.items()}
    for fisher, ended in tasks:
        elastic.add(fisher, ended)
    elastic.pull(leaves | {"head": (head := torch.ones(2))}, rate * strength)
    assert torch.equal(head, torch.ones(2)), "heads are left alone"
    loss = sum((leaves[name] - start[name]).square().sum() / 2 for name in leaves)
    for fisher, ended in tasks:
        loss += rate * sum(strength / 2 * (fisher[name] * (leaves[name] - ended[name]) ** 2).sum() for name in leaves)
    left = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, [*leaves.values()])])
    torch.testing.assert_close(left, torch.zeros(12, dtype=torch.float64), atol=1e-14, rtol=0)
    assert not torch.equal(leaves["a"], start["a"]) and leaves["b"][-1] == start["b"][-1]
    assert sum(tensor.numel() for tensor in elastic.tensors()) == 2 * 12, "two tensors, however many tasks"


@pytest.mark.parametrize(
    ("stiffness", "plain_stays"), [(0.1, True), (1.9, True), (2.1, False), (1e3, False), (1e12, False)]
)
def test_a_pull_of_any_strength_is_stable_where_steps_along_the_gradient_diverge(stiffness, plain_stays):
    elastic, pulled, plain = of_one_task(torch.ones(3), torch.zeros(3)), torch.ones(3), torch.ones(3)
    ways: dict[str, list[float]] = {"pulled": [1.0], "plain": [1.0]}
    for _ in range(5):
        elastic.pull({"a": pulled}, stiffness)
        plain -= stiffness * plain
        ways["pulled"].append(float(pulled[0]))
        ways["plain"].append(float(plain[0]))
    assert all(0 <= after < before or before == after == 0 for before, after in pairwise(ways["pulled"]))
    assert (abs(ways["plain"][-1]) < 1) == plain_stays


def test_ewc_pulls_with_its_strength_at_the_rate_of_the_step():
    learner, leaf = Ewc(None, SimpleNamespace(strengths=[6.0])), torch.ones(3)
    learner.elastic.add({"a": torch.full((3,), 2.0)}, {"a": torch.zeros(3)})
    learner.hold_back({"a": leaf}, 0.25)
    torch.testing.assert_close(leaf, torch.full((3,), 0.25))  # 1 / (1 + 0.25 * 6 * 2)


def test_of_some_strengths_the_sequence_of_the_best_mean_on_dev_is_kept(after_main):
    after_main(mode := "prompt")
    given, bits = params(mode), {}
    for strengths in ([0.0], [1e9], [0.0, 1e9]):
        given.method.ewc = EwcParams(strengths=strengths, fisher="expected", examples=8)
        run_sequence("ewc", "forward", SEED, given, runtime())
        records = [read_json(paths.record("sequence", task, SEED, "ewc", "forward")) for task in ORDER]
        assert {record["strength"] for record in records} <= {*strengths} and len({record["strength"] for record in records}) == 1
        bits[len(strengths), strengths[0]] = records
    tried = bits[2, 0.0][0]["tried"]
    best = max(tried, key=lambda one: one["dev"])
    assert tried[0]["dev"] != tried[1]["dev"], "control"
    assert best["settings"]["strengths"] == [bits[2, 0.0][0]["strength"]]
    alone = bits[1, bits[2, 0.0][0]["strength"]]
    assert [record["rows"] for record in bits[2, 0.0]] == [record["rows"] for record in alone]
    assert all("tried" not in record for record in alone)


def test_the_first_rows_of_every_class_are_stored():
    rows = [{"sentence1": str(number), "label": label} for number, label in enumerate("aababbba")]
    assert [row["sentence1"] for row in stored_rows(rows, ["a", "b"], 2)] == ["0", "1", "2", "4"]
    assert stored_rows(rows, ["b", "a"], 99) == rows
    assert stored_rows(rows, ["c"], 2) == []
