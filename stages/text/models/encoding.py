"""From rows of text to token ids: plain, or inside a prompt."""

import string
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skill_grafting.support.errors import DataError, ModelError
from stages.text.tasks.prompts import SENTENCES, TEXT_FORMS, Prompt
from stages.text.tasks.tasks import TaskSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNCUT = 10**6  # tokens, more than any text has


@dataclass(frozen=True)
class Example:
    """One encoded input: ids, segment ids if the model has them, label number, position where it is read."""

    input_ids: list[int]
    token_type_ids: list[int] | None
    label: int
    position: int


def encode(
    rows: Sequence[dict], task: TaskSpec, tokenizer: "PreTrainedTokenizerBase", mode: str, max_length: int
) -> list[Example]:
    """Encode the rows of a task for a mode of reading labels.

    standard: sentence1 (and sentence2) as the tokenizer joins them; prompt and autoregressive: the
    task's template, of which only the sentences are cut when it is longer than `max_length`.
    Raises DataError for a label the task doesn't have.
    """
    labels = {name: number for number, name in enumerate(task.labels)}
    prompt, examples, closing = task.prompt_for(mode), [], _closing(tokenizer)
    for row in rows:
        if row["label"] not in labels:
            raise DataError(f"{task.name}: label {row['label']!r} is not one of {', '.join(task.labels)}")
        if mode == "autoregressive":
            ids = tokenizer(rendered(row, prompt, tokenizer, max_length, None))["input_ids"]
            encoded = {"input_ids": ids[: len(ids) - closing]}
        elif prompt:
            encoded = tokenizer(rendered(row, prompt, tokenizer, max_length, tokenizer.mask_token))
        else:
            encoded = tokenizer(row["sentence1"], row.get("sentence2"), truncation=True, max_length=max_length)
        position = _position(encoded["input_ids"], tokenizer, mode, task.name)
        examples.append(Example(encoded["input_ids"], encoded.get("token_type_ids"), labels[row["label"]], position))
    return examples


def label_word_ids(prompt: Prompt, labels: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The token id that stands for each label, in order.

    Words follow a space, as in running text, or the line break before a causal template's {mask}.
    Raises ModelError, of all labels at once, if one isn't a single known token
    or two share a token.
    """
    words = [word_ids(prompt, label, tokenizer) for label in labels]
    _require_words(dict(zip(labels, words, strict=True)), prompt, tokenizer)
    return [word for [word] in words]


def word_ids(prompt: Prompt, label: str, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The tokens of a label's word as it stands in a prompt, however many they are."""
    word, between = prompt.verbalizer[label], prompt.template.removesuffix("{mask}")[-1:]
    if prompt.template.endswith("{mask}") and between.isspace() and between != " ":
        # tokenized behind it: some tokenizers put a space before every text
        before, whole = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (between, between + word))
        return whole[len(before) :]
    return tokenizer(_space(tokenizer) + word, add_special_tokens=False)["input_ids"]


def _space(tokenizer: "PreTrainedTokenizerBase") -> str:
    """The space before a word in running text, or nothing if the tokenizer puts it before every text itself, as Llama's does."""
    alone, twice = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("a", "a a"))
    return "" if twice == alone * 2 else " "


def _require_words(words: dict[str, list[int]], prompt: Prompt, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raise ModelError unless the words of labels are known tokens, one each, and no two the same."""
    wrong, owners = [], {}
    for label, tokens in words.items():
        named, owner = f"{prompt.verbalizer[label]!r} (label {label!r})", owners.setdefault(tuple(tokens), label)
        if not tokens or tokenizer.unk_token_id in tokens:
            wrong.append(f"{named} is unknown to this tokenizer")
        elif len(tokens) > 1:
            pieces = " ".join(tokenizer.convert_ids_to_tokens(tokens))
            wrong.append(f"{named} is {len(tokens)} tokens ({pieces}) for this tokenizer")
        elif owner != label:
            wrong.append(f"{named} has the tokens of {prompt.verbalizer[owner]!r} (label {owner!r})")
    if wrong:
        rule = "a word must be one known token, another for each label: choose others under `task:`"
        raise ModelError(f"verbalizer: {'; '.join(wrong)}; {rule}")


def _position(ids: list[int], tokenizer: "PreTrainedTokenizerBase", mode: str, task: str) -> int:
    if mode == "standard":
        return 0
    if mode == "autoregressive":
        return len(ids) - 1
    if ids.count(tokenizer.mask_token_id) != 1:
        raise DataError(f"{task}: a prompt has {ids.count(tokenizer.mask_token_id)} mask tokens instead of one")
    return ids.index(tokenizer.mask_token_id)


def _closing(tokenizer: "PreTrainedTokenizerBase") -> int:
    """How many special tokens, such as </s> or [SEP], the tokenizer puts behind each text, where a causal model is to go on."""
    bare, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    starts = [start for start in range(len(whole)) if whole[start : start + len(bare)] == bare]
    return len(whole) - len(bare) - starts[0] if bare and starts else 0


def rendered(row: dict, prompt: Prompt, tokenizer: "PreTrainedTokenizerBase", max_length: int, mask: str | None) -> str:
    """Fill the template, cutting the longest sentence until the whole fits into `max_length` tokens.

    `mask` stands for {mask}, and nowhere else; None for causal models, whose template ends there.
    """
    forms = {
        name: TEXT_FORMS[form] for _, name, form, _ in string.Formatter().parse(prompt.template) if name in SENTENCES
    }
    texts = {field: forms.get(field, str)((row.get(field) or "").strip()) for field in SENTENCES}
    if mask:
        texts = {field: text.replace(mask, "") for field, text in texts.items()}
    while True:
        whole = _fill(prompt.template, texts, mask)
        excess = len(tokenizer(whole)["input_ids"]) - max_length
        if excess <= 0:
            return whole
        longest = max(SENTENCES, key=lambda field: len(texts[field]))
        if not texts[longest]:
            raise ModelError(f"model.max_length: {max_length} is shorter than the template {prompt.template!r} alone")
        texts[longest] = _cut(texts[longest], excess, tokenizer)


def _fill(template: str, texts: dict[str, str], mask: str | None) -> str:
    if mask is None:  # causal: the label word, with the last space before it, comes next
        template = template.removesuffix("{mask}").removesuffix(" ")
    values = {**texts, "mask": mask or ""}
    # not str.format, so that braces in a user's text stay text
    parts = string.Formatter().parse(template)
    return "".join(literal + (values[name] if name else "") for literal, name, _, _ in parts)


def _cut(text: str, tokens: int, tokenizer: "PreTrainedTokenizerBase") -> str:
    if tokenizer.is_fast:
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        keep = len(offsets) - tokens
        if keep <= 0:
            return ""
        # the tokens of one character have its place in common: a cut between two of them leaves it out, so that each makes the text shorter
        return text[: min(offsets[keep - 1][1], offsets[keep][0], len(text) - 1)].rstrip()
    # a tokenizer in Python has no offsets: look for the shortest beginning of the text that has the tokens that are kept
    kept = tokenizer(text, add_special_tokens=False)["input_ids"][:-tokens]

    def has_kept(end: int) -> bool:
        return tokenizer(text[:end], add_special_tokens=False)["input_ids"][: len(kept)] == kept

    # and never the whole text, so that each cut makes it shorter
    return text[: bisect_left(range(len(text) - 1), True, key=has_kept)].rstrip()


def cut_share(
    rows: Sequence[dict], task: TaskSpec, tokenizer: "PreTrainedTokenizerBase", mode: str, max_length: int
) -> float:
    """Share of rows, 0..1, whose text is longer than `max_length` tokens leave room for, so that a part of it is cut off."""
    pairs = zip(*(encode(rows, task, tokenizer, mode, length) for length in (max_length, UNCUT)), strict=True)
    return sum(cut.input_ids != whole.input_ids for cut, whole in pairs) / len(rows)
