"""Prompts: the template stays whole, the sentences give way, and a user's text is only text."""

import numpy as np
import pytest

from stages.lib.data.batching import by_length, collate, shuffled
from stages.lib.data.encoding import Example, encode, label_word_ids
from stages.lib.data.tasks import Prompt, TaskSpec
from stages.lib.errors import DataError, ModelError
from tests.pico import FILLERS, PAIRS, TOY, byte_tokenizer, runtime, word_tokenizer

WORDS = word_tokenizer()
BYTES = byte_tokenizer()


def row(sentence1: str, sentence2: str | None = None, label: str = "positive") -> dict:
    return {"sentence1": sentence1, "sentence2": sentence2, "label": label}


def text_of(example: Example) -> str:
    return " ".join(WORDS.convert_ids_to_tokens(example.input_ids))


def bytes_of(example: Example) -> str:
    return BYTES.decode(example.input_ids, clean_up_tokenization_spaces=False)


def with_template(template: str) -> TaskSpec:
    return TOY.model_copy(update={"prompt": Prompt(template=template, verbalizer=TOY.prompt.verbalizer)})


def long_text(words: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(FILLERS, words))


def test_a_template_is_filled():
    (example,) = encode([row("the film was good")], TOY, WORDS, "prompt", 32)
    assert text_of(example) == "[CLS] the film was good it was [MASK] . [SEP]"
    assert example.label == 1 and example.token_type_ids == [0] * 10


def test_standard_mode_has_no_template():
    one, two = encode([row("the film"), row("the film", "was good")], TOY, WORDS, "standard", 32)
    assert text_of(one) == "[CLS] the film [SEP]" and text_of(two) == "[CLS] the film [SEP] was good [SEP]"
    assert two.token_type_ids == [0, 0, 0, 0, 1, 1, 1] and one.position == two.position == 0


def test_a_causal_template_ends_where_the_word_comes():
    (example,) = encode([row("the film was good.")], TOY, BYTES, "autoregressive", 32)
    assert bytes_of(example) == "the film was good. It was" and example.position == len(example.input_ids) - 1


@pytest.mark.parametrize("text", ["{", "}", "{mask}", "{sentence2} {0} {}", "a {b} c"])
def test_braces_in_a_text_stay_text(text):
    for mode, tokenizer in (("prompt", WORDS), ("autoregressive", BYTES)):
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = encode([row(text)], TOY, tokenizer, mode, 32)[0].input_ids
        start = mode == "prompt"
        assert ids[start : start + len(plain)] == plain


def test_doubled_braces_in_a_template_are_braces():
    (example,) = encode([row("film")], with_template("{{ {sentence1} }} {mask}"), WORDS, "prompt", 32)
    assert text_of(example) == "[CLS] { film } [MASK] [SEP]"


def test_a_mask_token_in_a_text_is_left_out():
    (example,) = encode([row("the [MASK] film [MASK]")], TOY, WORDS, "prompt", 32)
    assert text_of(example) == "[CLS] the film it was [MASK] . [SEP]"
    assert WORDS("the [MASK] film")["input_ids"].count(WORDS.mask_token_id) == 1, (
        "control: the tokenizer would have made one"
    )


@pytest.mark.parametrize(
    "template", ["{sentence1} It was {mask}.", "It was {mask}. {sentence1}", "{mask} {sentence1} it"]
)
@pytest.mark.parametrize("max_length", [9, 12, 20])
def test_the_position_is_that_of_the_mask(template, max_length):
    rows = [row(long_text(words, words)) for words in range(30)]
    for example in encode(rows, with_template(template), WORDS, "prompt", max_length):
        assert example.input_ids[example.position] == WORDS.mask_token_id
        assert len(example.input_ids) <= max_length


@pytest.mark.parametrize("max_length", [8, 9, 15, 40])
def test_cutting_takes_from_the_sentence_only_and_no_more_than_it_must(max_length):
    for words in range(1, 30):
        text = long_text(words, words)
        (example,) = encode([row(text)], TOY, WORDS, "prompt", max_length)
        ending = WORDS("it was [MASK] .", add_special_tokens=False)["input_ids"] + [WORDS.sep_token_id]
        assert example.input_ids[-len(ending) :] == ending
        kept = min(words, max_length - 1 - len(ending))
        assert text_of(example).split()[1 : 1 + kept] == text.split()[:kept]
        assert len(example.input_ids) == 1 + kept + len(ending)


def test_cutting_keeps_byte_level_text_within_the_length():
    for words in range(1, 30):
        text = long_text(words, words) + " zzz qqq €"
        (example,) = encode([row(text)], TOY, BYTES, "autoregressive", 12)
        assert len(example.input_ids) <= 12 and bytes_of(example).endswith(" It was")
        assert text.startswith(bytes_of(example).removesuffix(" It was").rstrip("\ufffd")), "a beginning of the text"


def test_of_two_sentences_the_longer_gives_way():
    (example,) = encode([row(long_text(30), "the end", "yes")], PAIRS, WORDS, "prompt", 16)
    assert text_of(example).endswith("? [MASK] , the end [SEP]") and len(example.input_ids) == 16
    (example,) = encode([row("the end", long_text(30), "maybe")], PAIRS, WORDS, "prompt", 16)
    assert text_of(example).startswith("[CLS] the end ? [MASK] ,") and len(example.input_ids) == 16
    assert example.label == 2
    (example,) = encode([row(long_text(30), long_text(30, 1), "no")], PAIRS, WORDS, "prompt", 16)
    assert len(example.input_ids) <= 16 and example.input_ids.count(WORDS.mask_token_id) == 1


def test_standard_pairs_are_cut_to_the_length():
    (example,) = encode([row(long_text(30), long_text(30, 1))], TOY, WORDS, "standard", 16)
    assert len(example.input_ids) == 16 and example.input_ids.count(WORDS.sep_token_id) == 2


def test_a_length_below_the_template_is_refused():
    with pytest.raises(
        ModelError, match=r"model.max_length: 5 is shorter than the template '\{sentence1\} It was \{mask\}.' alone"
    ):
        encode([row("the film")], TOY, WORDS, "prompt", 5)
    assert len(encode([row("the film")], TOY, WORDS, "prompt", 6)[0].input_ids) == 6, "control: the template alone fits"


def test_an_empty_text_is_encoded():
    for mode, tokenizer in (("prompt", WORDS), ("standard", WORDS), ("autoregressive", BYTES)):
        (example,) = encode([row("")], TOY, tokenizer, mode, 32)
        assert len(example.input_ids) >= 2


def test_an_unknown_label_is_named_with_the_known_ones():
    with pytest.raises(DataError, match="toy: label 'fine' is not one of negative, positive"):
        encode([row("a"), row("b", label="fine")], TOY, WORDS, "prompt", 32)


# label words


def test_label_words_are_single_tokens_after_a_space():
    assert WORDS.convert_ids_to_tokens(label_word_ids(TOY.prompt, TOY.labels, WORDS)) == ["terrible", "great"]
    assert BYTES.convert_ids_to_tokens(label_word_ids(TOY.causal_prompt, TOY.labels, BYTES)) == ["Ġterrible", "Ġgreat"]
    assert label_word_ids(TOY.prompt, TOY.labels[::-1], WORDS) == label_word_ids(TOY.prompt, TOY.labels, WORDS)[::-1]


@pytest.mark.parametrize(
    ("word", "pieces"), [("greatness", "great ##ness"), ("zebra", r"\[UNK\]"), ("good film", "good film")]
)
def test_a_word_that_is_not_one_token_is_named_with_its_pieces(word, pieces):
    prompt = Prompt(template="{mask}", verbalizer={"negative": "terrible", "positive": word})
    with pytest.raises(ModelError, match=rf"verbalizer word '{word}' \(label 'positive'\) is . tokens.*\({pieces}\)"):
        label_word_ids(prompt, TOY.labels, WORDS)


def test_two_labels_with_one_token_are_refused():
    prompt = Prompt(template="{mask}", verbalizer={"negative": "Great", "positive": "great"})
    with pytest.raises(ModelError, match="two labels have the same token"):
        label_word_ids(prompt, TOY.labels, WORDS)


# batches


def examples_of(lengths: list[int]) -> list[Example]:
    return [Example([7] * length, None, number % 2, length - 1) for number, length in enumerate(lengths)]


LENGTHS = np.random.default_rng(0).integers(1, 60, 200).tolist()


@pytest.mark.parametrize("batch_tokens", [16, 100, 2048])
def test_batches_by_length_hold_each_example_once_and_no_more_tokens_than_allowed(batch_tokens):
    batches = by_length(examples_of(LENGTHS), batch_tokens)
    assert sorted(index for batch in batches for index in batch) == [*range(200)]
    assert all(
        len(batch) == 1 or len(batch) * max(LENGTHS[index] for index in batch) <= batch_tokens for batch in batches
    )
    assert by_length([], batch_tokens) == []


def test_batches_by_length_hardly_pad():
    batches = by_length(examples_of(LENGTHS), 512)
    padded = sum(len(batch) * max(LENGTHS[index] for index in batch) for batch in batches)
    assert sum(LENGTHS) <= padded < 1.15 * sum(LENGTHS)
    assert 200 * max(LENGTHS) > 1.8 * sum(LENGTHS), "control: padding to the longest of all costs far more"


@pytest.mark.parametrize(("batch_size", "bucket"), [(8, 16), (7, 1), (200, 2), (1000, 16)])
def test_every_example_comes_once_an_epoch(batch_size, bucket):
    batches = shuffled(examples_of(LENGTHS), batch_size, np.random.default_rng(1), bucket)
    for _ in range(3):
        epoch: list[int] = []
        while len(epoch) < 200:
            batch = next(batches)
            assert 0 < len(batch) <= batch_size
            epoch += batch
        assert sorted(epoch) == [*range(200)]


def test_the_order_is_that_of_the_seed():
    def first(seed: int) -> list[list[int]]:
        batches = shuffled(examples_of(LENGTHS), 8, np.random.default_rng(seed))
        return [next(batches) for _ in range(60)]

    assert first(1) == first(1) != first(2)
    assert sorted(map(tuple, first(1)[:25])) != sorted(map(tuple, first(1)[25:50])), "epochs differ"


def test_batches_are_padded_to_their_own_longest():
    batch = collate(examples_of([3, 5, 1]), 9, runtime().device)
    assert batch.inputs["input_ids"].tolist() == [[7, 7, 7, 9, 9], [7] * 5, [7, 9, 9, 9, 9]]
    assert batch.inputs["attention_mask"].sum(1).tolist() == [3, 5, 1]
    assert batch.labels.tolist() == [0, 1, 0] and batch.positions.tolist() == [2, 4, 0]
    assert "token_type_ids" not in batch.inputs
