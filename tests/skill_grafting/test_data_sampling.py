"""A sample is a function of the set of rows, the task, the seed and k, and of nothing else."""

import random
import re
from types import SimpleNamespace

import pytest

from skill_grafting.data.sampling import draw_sample, split_sizes, spread
from skill_grafting.errors import DataError

LABELS = ["negative", "positive"]


def settings(**changes):
    return SimpleNamespace(**{"k": 8, "scarce": "error", "dev_share": 0.5, "test_max": 10, **changes})


def row(text, label, split="train"):
    return {"split": split, "sentence1": text, "sentence2": None, "label": label}


def make_rows(per_label=40, tests=30):
    train = [row(f"{label} text {number}", label) for label in LABELS for number in range(per_label)]
    return train + [row(f"test {number}", LABELS[number % 2], "test") for number in range(tests)]


def draw(rows, seed=13, task="movies", **changes):
    return draw_sample(rows, LABELS, task, seed, settings(**changes))


def texts(rows):
    return {(row["sentence1"], row["sentence2"]) for row in rows}


def test_k_of_each_class_in_train_and_dev_and_splits_share_no_text():
    sample = draw(make_rows(per_label=16))
    for split in ("train", "dev"):
        assert [sum(row["label"] == label for row in sample[split]) for label in LABELS] == [8, 8]
    assert len(sample["test"]) == 10
    assert {*sample["train"][0]} == {"sentence1", "sentence2", "label"}
    assert texts(sample["train"]).isdisjoint(texts(sample["dev"]))
    assert texts(sample["test"]).isdisjoint(texts(sample["train"]) | texts(sample["dev"]))


@pytest.mark.parametrize("other", [("negative", "test"), ("positive", "train")], ids=["in test", "with another label"])
def test_a_training_text_that_is_also_there_in_another_case_is_never_drawn(other):
    rows = [*make_rows(per_label=17), row("Negative  text 3!", *other)]

    def is_drawn(rows, seed):
        sample = draw(rows, seed, test_max=1)
        drawn = {text.casefold() for text, _ in texts(sample["train"] + sample["dev"])}
        return not drawn.isdisjoint({"negative text 3", "negative  text 3!"})

    assert not any(is_drawn(rows, seed) for seed in range(5))
    assert any(is_drawn(rows[:-1], seed) for seed in range(5)), "control: 16 of 17 are drawn, so it is at some seed"


def test_order_of_rows_does_not_matter():
    rows = make_rows()
    for attempt in range(5):
        shuffled = random.Random(attempt).sample(rows, len(rows))
        assert draw(shuffled) == draw(rows)


def test_other_classes_do_not_matter():
    rows = make_rows()
    more = rows + [row(f"new {number}", "positive") for number in range(200)]
    pick = lambda sample: [row for row in sample["train"] + sample["dev"] if row["label"] == "negative"]  # noqa: E731
    assert pick(draw(more)) == pick(draw(rows))
    assert draw(more) != draw(rows)  # the class that grew does change


def test_another_seed_or_task_draws_other_rows_but_the_same_test():
    rows = make_rows()
    alone = draw(rows)
    for other in (draw(rows, 14), draw(rows, task="products")):
        assert all(texts(other[split]) != texts(alone[split]) for split in ("train", "dev"))
        assert other["test"] == alone["test"]
    assert draw(rows) == alone, "whatever was drawn in between"


@pytest.mark.parametrize("split", ["train", "dev"])
def test_samples_are_nested_in_k(split):
    rows = make_rows()
    small, large = draw(rows, k=5), draw(rows, k=20)
    assert texts(small[split]) < texts(large[split])
    assert not texts(small[split]) < texts(draw(rows, 14, k=20)[split])


def test_a_test_cap_takes_the_same_rows_and_zero_takes_all():
    rows = make_rows()
    assert texts(draw(rows, test_max=5)["test"]) < texts(draw(rows, test_max=15)["test"])
    assert len(draw(rows, test_max=0)["test"]) == 30


def test_variants_of_one_text_do_not_part_into_train_and_dev():
    rows = make_rows(per_label=9)
    variants = [row(one["sentence1"].upper() + "!", one["label"]) for one in rows if one["split"] == "train"]
    with pytest.raises(DataError, match="has 9 training rows"):
        draw(rows + variants)
    assert draw(rows + variants, k=4) == draw(variants + rows, k=4)


def test_scarce_class_is_an_error_that_says_what_to_do():
    message = "task movies: class 'negative' has 11 training rows, but data.k=8 needs 16 (8 for train, 8 for dev); lower data.k to 5 or set data.scarce=split"
    with pytest.raises(DataError, match=f"^{re.escape(message)}\n"):
        draw(make_rows(per_label=11))


def test_all_scarce_classes_are_named_and_how_many_rows_were_passed_over():
    rows = make_rows(per_label=11)
    with pytest.raises(DataError) as error:
        draw([*rows, *(row(one["sentence1"], one["label"], "test") for one in rows[:3])])
    negative, positive, passed = str(error.value).splitlines()
    assert "'negative' has 8 training" in negative and "'positive' has 11 training" in positive
    assert passed == "task movies: 3 more have a text that is also in test, in another such row, or under two labels"


@pytest.mark.parametrize(("available", "share", "sizes"), [
    (16, 0.5, (8, 8)), (15, 0.5, (7, 8)), (11, 0.25, (8, 3)), (10, 0.2, (8, 2)), (3, 0.1, (2, 1)), (2, 1.0, (1, 1)), (15, 1.0, (7, 8)),
])  # fmt: skip
def test_scarce_split(available, share, sizes):
    assert split_sizes(available, "movies", "positive", settings(scarce="split", dev_share=share)) == sizes


@pytest.mark.parametrize("scarce", ["split", "error"])
@pytest.mark.parametrize("available", [0, 1])
def test_a_class_of_one_row_cannot_be_split(available, scarce):
    message = f"has {available} training rows; train and dev need one each, so it takes more"
    with pytest.raises(DataError, match=message):
        split_sizes(available, "movies", "positive", settings(scarce=scarce))


def test_without_a_test_split():
    with pytest.raises(DataError, match="task movies: its data has no test split"):
        draw(make_rows(tests=0))


def test_few_dev_rows_have_all_labels_in_proportion():
    rows = [{"label": label, "number": n} for n, label in enumerate(["b"] * 20 + ["a"] * 40)]
    some = spread(rows, 12)
    assert [row["label"] for row in some] == ["b"] * 4 + ["a"] * 8, "where the first rows have one label"
    assert [row["number"] for row in some] == [*range(2, 60, 5)], "evenly, and in their order"
    assert spread(rows, 0) == spread(rows, 60) == spread(rows, 99) == rows
