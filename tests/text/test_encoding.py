"""Prompts: the template stays whole, the sentences give way, and a user's text is only text."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import EsmTokenizer

from skill_grafting.models.loading import load_tokenizer
from skill_grafting.support.errors import DataError, ModelError, ParamsError
from stages.text.models.batching import by_length, collate, shuffled
from stages.text.models.encoding import Example, cut_share, encode, label_word_ids, rendered, word_ids
from stages.text.tasks.prompts import Prompt
from stages.text.tasks.tasks import TaskSpec, resolve_tasks
from stages.text.tasks.yaml12 import load_yaml
from stages.workflow.tokens import Tokens, stored_tokenizer
from tests.pico import (
    FILLERS,
    PAIRS,
    TOY,
    VOCABULARY,
    byte_tokenizer,
    prepending_tokenizer,
    runtime,
    set_config,
    word_tokenizer,
)

WORDS, BYTES = word_tokenizer(), byte_tokenizer()
ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "stages/profiles"


def row(sentence1: str, sentence2: str | None = None, label: str = "positive") -> dict:
    return {"sentence1": sentence1, "sentence2": sentence2, "label": label}


def encoded(*sentences: str | None, task: TaskSpec = TOY, mode: str = "prompt", most: int = 32, **more: str) -> Example:
    (example,) = encode([row(*sentences, **more)], task, BYTES if mode == "autoregressive" else WORDS, mode, most)
    return example


def text_of(example: Example) -> str:
    return " ".join(WORDS.convert_ids_to_tokens(example.input_ids))


def bytes_of(example: Example) -> str:
    return BYTES.decode(example.input_ids, clean_up_tokenization_spaces=False)


def with_template(template: str) -> TaskSpec:
    return TOY.model_copy(update={"prompt": Prompt(template=template, verbalizer=TOY.prompt.verbalizer)})


def long_text(words: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(FILLERS, words))


def test_a_template_is_filled():
    example = encoded("the film was good")
    assert text_of(example) == "[CLS] the film was good it was [MASK] . [SEP]"
    assert example.label == 1 and example.token_type_ids == [0] * 10
    doubled = encoded("film", task=with_template("{{ {sentence1} }} {mask}"))
    assert text_of(doubled) == "[CLS] { film } [MASK] [SEP]", "doubled braces are braces"


def test_a_pair_is_written_as_lm_bff_writes_it():
    task = with_template("{sentence1:cut}?{mask}, {sentence2:lower}")
    assert rendered(row("He left.", "She stayed."), task.prompt, WORDS, 32, "[MASK]") == "He left?[MASK], she stayed."
    specs = resolve_tasks({})[0]
    pairs = {name: specs[name].prompt.template for name in ("qnli", "rte", "snli", "mnli", "mrpc", "qqp")}
    assert {*pairs.values()} == {task.prompt.template, "{sentence1}{mask}, {sentence2:lower}"}
    short = rendered(row(f"{long_text(40)}.", "She stayed."), task.prompt, WORDS, 16, "[MASK]")
    assert short.endswith("?[MASK], she stayed."), "what is cut to length"


def test_standard_mode_has_no_template():
    one, two = (encoded("the film", second, mode="standard") for second in (None, "was good"))
    assert text_of(one) == "[CLS] the film [SEP]" and text_of(two) == "[CLS] the film [SEP] was good [SEP]"
    assert two.token_type_ids == [0, 0, 0, 0, 1, 1, 1] and one.position == two.position == 0


def authors_text(task: str, a: str, b: str | None) -> str:
    """What src/gpt2_processors.py (76f4aa8) makes of the texts of a row, written as there."""
    if task in ("sst2", "cr", "mr", "mpqa", "subj"):  # lines 332, 375 and 417
        return f'"{a}" has a tone that is'
    if task == "ag_news":  # line 501
        return f" summary: {a}\n topic:"
    # lines 51, 96, 148, 197, 243 and 289
    question = "true, false, or neither?" if task in ("mnli", "snli") else "true or false?"
    return f" {a}\n question: {b} {question}\n answer:"


# of our labels, by the numbers that theirs have in the same places, and in run_experiment.sh
SENTIMENT, TRUE = {"negative": " negative", "positive": " positive"}, {"not_entailment": " false", "entailment": " true"}
NEITHER = {"contradiction": " false", "entailment": " true", "neutral": " neither"}
AUTHORS_WORDS = {
    "sst2": SENTIMENT, "cr": SENTIMENT, "mr": SENTIMENT, "mpqa": SENTIMENT,
    "subj": {"subjective": " object", "objective": " subject"},
    "ag_news": {"World": " World", "Sports": " Sports", "Business": " Business", "Sci/Tech": " Science"},
    "qnli": TRUE, "rte": TRUE, "mnli": NEITHER, "snli": NEITHER,
    "mrpc": {"not_equivalent": " false", "equivalent": " true"}, "qqp": {"not_duplicate": " false", "duplicate": " true"},
}  # fmt: skip


@pytest.mark.parametrize("name", AUTHORS_WORDS)
def test_a_causal_model_reads_what_the_authors_gpt_2_reads(name):
    assert {*AUTHORS_WORDS} == {*load_yaml(PROFILES / "gpt2.yaml", ParamsError)["set"]["tasks"]}
    spec = resolve_tasks({})[0][name]
    texts = ("A film, with wit", "She stayed." if spec.is_pair else None)
    example = encoded(*texts, task=spec, mode="autoregressive", most=256, label=spec.labels[0])
    assert bytes_of(example) == authors_text(name, *texts)
    words = {label: BYTES.decode(word_ids(spec.causal_prompt, label, BYTES)) for label in spec.labels}
    assert words == AUTHORS_WORDS[name]


def closing_tokenizer(mask: bool = False):
    """One that puts its end token behind every text, and may have a mask token."""
    tokenizer = byte_tokenizer()
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    if mask:
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer", [closing_tokenizer(), closing_tokenizer(mask=True), word_tokenizer()], ids=["end", "mask", "bert"]
)
def test_a_causal_prompt_ends_where_the_answer_comes(tokenizer):
    whole = tokenizer("the film was good . It was")["input_ids"]
    [example] = encode([row("the film was good .")], TOY, tokenizer, "autoregressive", 32)
    assert example.input_ids == whole[:-1] and example.position == len(whole) - 2


@pytest.mark.parametrize(
    ("end", "sent", "word"),
    [(" {mask}", "film", " great"), ("  {mask}", "film ", " great"), ("\n{mask}", "film\n", "great"), (":\n\n{mask}", "film:\n\n", "great")],
)  # fmt: skip
def test_blanks_and_line_breaks_before_the_answer_are_sent_as_written(end, sent, word):
    prompt = Prompt(template="{sentence1}" + end, verbalizer={"negative": "terrible", "positive": "great"})
    task = TOY.model_copy(update={"causal_prompt": prompt})
    assert bytes_of(encoded("film", task=task, mode="autoregressive")) == sent
    for tokenizer in (BYTES, closing_tokenizer()):
        assert tokenizer.decode(word_ids(prompt, "positive", tokenizer)) == word


@pytest.mark.parametrize("text", ["{", "}", "{mask}", "{sentence2} {0} {}", "a {b} c"])
def test_braces_in_a_text_stay_text(text):
    for mode, tokenizer in (("prompt", WORDS), ("autoregressive", BYTES)):
        plain, start = tokenizer(text, add_special_tokens=False)["input_ids"], mode == "prompt"
        assert encoded(text, mode=mode).input_ids[start : start + len(plain)] == plain


def test_a_mask_token_in_a_text_is_left_out():
    assert text_of(encoded("the [MASK] film [MASK]")) == "[CLS] the film it was [MASK] . [SEP]"
    assert WORDS("the [MASK] film")["input_ids"].count(WORDS.mask_token_id) == 1, "control: the tokenizer makes one"


TEMPLATES = ["{sentence1} It was {mask}.", "It was {mask}. {sentence1}", "{mask} {sentence1} it"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(FILLERS), min_size=1, max_size=30), st.sampled_from(TEMPLATES), st.integers(8, 40))
def test_a_template_stays_whole_and_the_sentence_gives_way_no_more_than_it_must(words, template, most):
    before, after = (WORDS.tokenize(part.replace("{mask}", "[MASK]")) for part in template.split("{sentence1}"))
    example = encoded(" ".join(words), task=with_template(template), most=most)
    kept = words[: most - 2 - len(before) - len(after)]
    assert text_of(example).split() == ["[CLS]", *before, *kept, *after, "[SEP]"]
    assert example.input_ids[example.position] == WORDS.mask_token_id


@pytest.mark.parametrize("ending", [" zzz qqq €", "€€€€€€", " a€b😀c", "😀"])
def test_cutting_keeps_byte_level_text_within_the_length(ending):
    for words in range(1, 30):
        text = long_text(words, words) + ending
        example = encoded(text, mode="autoregressive", most=12)
        assert len(example.input_ids) <= 12 and bytes_of(example).endswith(" It was")
        assert text.startswith(bytes_of(example).removesuffix(" It was").rstrip("\ufffd")), "a beginning of the text"


@pytest.mark.parametrize("max_length", [7, 8, 12, 40])
def test_cutting_needs_no_fast_tokenizer(tmp_path, max_length):
    words = ["<cls>", "<pad>", "<eos>", "<unk>", *VOCABULARY[5:], "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    slow, task = EsmTokenizer(str(tmp_path / "vocab.txt")), with_template("{sentence1} it was {mask} .")
    for count in range(1, 30):
        (example,) = encode([row(long_text(count, count))], task, slow, "prompt", max_length)
        kept = slow.convert_ids_to_tokens(example.input_ids)[1:-5]
        assert kept == long_text(count, count).split()[: max_length - 6]


def test_of_two_sentences_the_longer_gives_way():
    first, second, both = (
        encoded(*sentences, task=PAIRS, most=16, label="maybe")
        for sentences in ((long_text(30), "the end"), ("the end", long_text(30)), (long_text(30), long_text(30, 1)))
    )
    assert text_of(first).endswith("? [MASK] , the end [SEP]") and len(first.input_ids) == 16
    assert text_of(second).startswith("[CLS] the end ? [MASK] ,") and len(second.input_ids) == 16
    assert second.label == 2
    assert len(both.input_ids) <= 16 and both.input_ids.count(WORDS.mask_token_id) == 1
    plain = encoded(long_text(30), long_text(30, 1), mode="standard", most=16)
    assert len(plain.input_ids) == 16 and plain.input_ids.count(WORDS.sep_token_id) == 2


def test_a_length_below_the_template_is_refused():
    said = r"model.max_length: 5 is shorter than the template '\{sentence1\} It was \{mask\}.' alone"
    with pytest.raises(ModelError, match=said):
        encoded("the film", most=5)
    assert len(encoded("the film", most=6).input_ids) == 6, "control: the template alone fits"


@pytest.mark.parametrize(("mode", "tokenizer"), [("prompt", WORDS), ("standard", WORDS), ("autoregressive", BYTES)])
def test_the_share_of_cut_texts_is_of_those_that_are_longer(mode, tokenizer):
    rows = [row("a film"), row(" ".join(FILLERS)), row("a story"), row(" ".join(FILLERS * 2))]
    longest = len(tokenizer(" ".join(FILLERS))["input_ids"])
    assert cut_share(rows, TOY, tokenizer, mode, longest) == (0.25 if mode == "standard" else 0.5), "a template takes room"
    whole = next(most for most in range(longest, 3 * longest) if cut_share(rows[:2], TOY, tokenizer, mode, most) == 0)
    assert cut_share(rows, TOY, tokenizer, mode, whole) == 0.25 and cut_share(rows[:2], TOY, tokenizer, mode, whole - 1) == 0.5
    assert cut_share(rows, TOY, tokenizer, mode, 10 * longest) == 0, "the control"


TEXTS = ["", "the film was good .", "The  FILM\twas gòod -- and [MASK] </s> \U0001f600 unheardof", " ".join(FILLERS)]


@pytest.mark.parametrize(
    ("tokenizer", "kind"), [(WORDS, {}), (WORDS, {"tokenizer_class": "BertTokenizer"}), (BYTES, {}), (prepending_tokenizer(), {}), (closing_tokenizer(mask=True), {})]
)
def test_a_report_counts_the_tokens_that_the_model_reads(tokenizer, kind, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    set_config(tmp_path, "tokenizer_config.json", **kind)
    load_tokenizer(tmp_path).save_pretrained(tmp_path)  # as the stage `model` writes it
    ours, theirs = stored_tokenizer(tmp_path), load_tokenizer(tmp_path)
    assert isinstance(ours, Tokens) and (ours.mask_token, ours.mask_token_id) == (theirs.mask_token, theirs.mask_token_id)
    for text, special, more in product(TEXTS, (True, False), ({}, {"truncation": True, "max_length": 7})):
        both = [one(text, add_special_tokens=special, return_offsets_mapping=True, **more) for one in (ours, theirs)]
        assert len({(*one["input_ids"], *one["offset_mapping"]) for one in both}) == 1, (text, special, more)
        assert ours(text, TEXTS[1], **more)["input_ids"] == theirs(text, TEXTS[1], **more)["input_ids"]


def test_the_main_report_starts_without_torch():
    told = "import sys, stages.summary, stages.workflow.tokens; print({'torch', 'transformers', 'pandas'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, cwd=ROOT).stdout == "{'pandas'}\n"


def test_an_unknown_label_is_named_with_the_known_ones():
    with pytest.raises(DataError, match="toy: label 'fine' is not one of negative, positive"):
        encode([row("a"), row("b", label="fine")], TOY, WORDS, "prompt", 32)


def test_label_words_are_single_tokens_after_a_space():
    assert WORDS.convert_ids_to_tokens(label_word_ids(TOY.prompt, TOY.labels, WORDS)) == ["terrible", "great"]
    assert BYTES.convert_ids_to_tokens(label_word_ids(TOY.causal_prompt, TOY.labels, BYTES)) == ["Ġterrible", "Ġgreat"]
    prepending = prepending_tokenizer()
    there = prepending.convert_ids_to_tokens(label_word_ids(TOY.causal_prompt, TOY.labels, prepending))
    assert there == ["▁terrible", "▁great"] == prepending.tokenize("It was terrible great")[2:]
    assert label_word_ids(TOY.prompt, TOY.labels[::-1], WORDS) == label_word_ids(TOY.prompt, TOY.labels, WORDS)[::-1]


NOT_ONE = (
    r"^verbalizer: '{}' \(label 'positive'\) is 2 tokens \({}\) for this tokenizer; a word must be one known token"
)
UNKNOWN = "'{}' \\(label '{}'\\) is unknown to this tokenizer"


@pytest.mark.parametrize(
    ("negative", "positive", "said"),
    [
        ("terrible", "greatness", NOT_ONE.format("greatness", "great ##ness")),
        ("terrible", "zebra", f"^verbalizer: {UNKNOWN.format('zebra', 'positive')}; a word"),
        ("yak", "zebra", f"{UNKNOWN.format('yak', 'negative')}; {UNKNOWN.format('zebra', 'positive')}; a word"),
        ("terrible", "good film", NOT_ONE.format("good film", "good film")),
        ("Great", "great", r"'great' \(label 'positive'\) has the tokens of 'Great' \(label 'negative'\); a word"),
    ],
)
def test_a_word_that_is_not_one_token_of_its_own_is_named(negative, positive, said):
    prompt = Prompt(template="{sentence1} {mask}", verbalizer={"negative": negative, "positive": positive})
    with pytest.raises(ModelError, match=said):
        label_word_ids(prompt, TOY.labels, WORDS)


def examples_of(lengths: list[int]) -> list[Example]:
    return [Example([7] * length, None, number % 2, length - 1) for number, length in enumerate(lengths)]


LENGTHS = np.random.default_rng(0).integers(1, 60, 200).tolist()


@pytest.mark.parametrize("batch_tokens", [16, 100, 512, 2048])
def test_batches_by_length_hold_each_example_once_and_no_more_tokens_than_allowed(batch_tokens):
    batches = by_length(examples_of(LENGTHS), batch_tokens)
    assert sorted(index for batch in batches for index in batch) == [*range(200)]
    padded = [len(batch) * max(LENGTHS[index] for index in batch) for batch in batches]
    assert all(len(batch) == 1 or size <= batch_tokens for batch, size in zip(batches, padded, strict=True))
    assert batch_tokens > 512 or sum(padded) < 1.15 * sum(LENGTHS), "they hardly pad"
    assert 200 * max(LENGTHS) > 1.8 * sum(LENGTHS), "control: padding to the longest of all costs far more"
    assert by_length([], batch_tokens) == []


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
