"""From rows of text to token ids: plain, inside a prompt, or as a prompt and the completion that a causal model is to write.

An end token closes each completion if the tokenizer has one: without it a greedy completion would have no end, and "one" would
be an exact match of "one day".
"""

import string
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skill_grafting.support.errors import DataError, ModelError
from skill_grafting.support.prompts import SENTENCES, TEXT_FORMS, Prompt
from stages.text.tasks.tasks import TaskSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 40


@dataclass(frozen=True)
class Example:
    """One encoded input: ids, segment ids if the model has them, label number, position where it is read.

    With a `completion` its tokens stand for the label (which is -1), and are read at `position` and those after it.
    """

    input_ids: list[int]
    token_type_ids: list[int] | None
    label: int
    position: int
    completion: tuple[int, ...] = ()

    @property
    def targets(self) -> tuple[int, ...]:
        """The target, from `position` on: the label, or the tokens of the completion."""
        return self.completion or (self.label,)


def encode(
    rows: Sequence[dict], task: TaskSpec, tokenizer: "PreTrainedTokenizerBase", mode: str, max_length: int
) -> list[Example]:
    """Encode the rows of a task for a mode of reading labels.

    standard: sentence1 (and sentence2) as the tokenizer joins them; prompt and autoregressive: the
    task's template, of which only the sentences are cut when it is longer than `max_length`.
    Raises DataError for a label the task doesn't have.
    """
    _require_labels(rows, task)
    labels = {name: number for number, name in enumerate(task.labels)}
    prompt, examples, closing = task.prompt_for(mode), [], _closing(tokenizer)
    for row in rows:
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


def _require_labels(rows: Sequence[dict], task: TaskSpec) -> None:
    for row in rows:
        if row["label"] not in task.labels:
            raise DataError(f"{task.name}: label {row['label']!r} is not one of {', '.join(task.labels)}")


def label_word_ids(prompt: Prompt, labels: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The token id that stands for each label, in order.

    Words follow a space, as in running text, or the line break before a causal template's {mask}.
    Raises ModelError, of all labels at once, if one isn't a single known token
    or two share a token.
    """
    words = [_word(prompt, label, tokenizer) for label in labels]
    _require_words(dict(zip(labels, words, strict=True)), prompt, tokenizer, most=1)
    return [word for [word] in words]


def _word(prompt: Prompt, label: str, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
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


def _require_words(
    words: dict[str, Sequence[int]], prompt: Prompt, tokenizer: "PreTrainedTokenizerBase", most: int | None = None
) -> None:
    """Raise ModelError unless the words of labels are known, of at most so many tokens, and no two the same tokens."""
    wrong, owners = [], {}
    for label, tokens in words.items():
        named, owner = f"{prompt.verbalizer[label]!r} (label {label!r})", owners.setdefault(tuple(tokens), label)
        if not tokens or tokenizer.unk_token_id in tokens:
            wrong.append(f"{named} is unknown to this tokenizer")
        elif most and len(tokens) > most:
            pieces = " ".join(tokenizer.convert_ids_to_tokens(tokens))
            wrong.append(f"{named} is {len(tokens)} tokens ({pieces}) for this tokenizer")
        elif owner != label:
            wrong.append(f"{named} has the tokens of {prompt.verbalizer[owner]!r} (label {owner!r})")
    if wrong:
        rule = "one known token" if most == 1 else "known tokens"
        raise ModelError(
            f"verbalizer: {'; '.join(wrong)}; a word must be {rule}, another for each label: choose others under `task:`"
        )


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


def rendered(
    row: dict, prompt: Prompt, tokenizer: "PreTrainedTokenizerBase", max_length: int, mask: str | None, beside: int = 0
) -> str:
    """Fill the template, cutting the longest sentence until the whole fits into `max_length` tokens, `beside` of them taken.

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
        excess = len(tokenizer(whole)["input_ids"]) + beside - max_length
        if excess <= 0:
            return whole
        longest = max(SENTENCES, key=lambda field: len(texts[field]))
        if not texts[longest]:
            alone = f"with a completion of {beside + 1} tokens" if beside else "alone"
            raise ModelError(f"model.max_length: {max_length} is shorter than the template {prompt.template!r} {alone}")
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


def encode_completions(
    rows: Sequence[dict], task: TaskSpec, tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> list[Example]:
    """Encode rows for a model that completes them; inputs are the prompt and all of the completion but its last token.

    With labels the prompt is the task's template up to {mask}, of which the sentences are cut so that the longest label word
    fits beside it (so the cut is the same for every label), and the completion is the label's word.  Without, prompts are cut
    from the left.  Raises DataError for a label the task doesn't have and for completions that don't fit into `max_length`.
    """
    if not task.labels:
        return _plain(rows, task, tokenizer, max_length)
    words = dict(zip(task.labels, label_completions(task.causal_prompt, task.labels, tokenizer), strict=True))
    _require_labels(rows, task)
    beside, closing = max(map(len, words.values())) - 1, _closing(tokenizer)
    examples = []
    for row in rows:
        ids = tokenizer(rendered(row, task.causal_prompt, tokenizer, max_length, None, beside))["input_ids"]
        examples.append(_example(ids[: len(ids) - closing], words[row["label"]]))
    return examples


def label_completions(
    prompt: Prompt, labels: Sequence[str], tokenizer: "PreTrainedTokenizerBase"
) -> list[tuple[int, ...]]:
    """The tokens of each label's word, in order; raises ModelError for unknown ones, and if two labels have the same."""
    words = {label: _word(prompt, label, tokenizer) for label in labels}
    _require_words(words, prompt, tokenizer)
    return [(*ids, *_end(tokenizer)) for ids in words.values()]


def _plain(
    rows: Sequence[dict], task: TaskSpec, tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> list[Example]:
    """Rows of prompts (sentence1) and completions (label)."""
    examples, too_long, space, closing = [], [], _space(tokenizer), _closing(tokenizer)
    for row in rows:
        prompt, completion = row["sentence1"].rstrip(" "), row["label"].strip(" ").rstrip()
        # one space between, or the line break that one of them brings
        between = "" if prompt[-1:].isspace() or completion[:1].isspace() else space
        ids = (*tokenizer(between + completion, add_special_tokens=False)["input_ids"], *_end(tokenizer))
        encoded = tokenizer(prompt, return_special_tokens_mask=True)
        read = encoded["input_ids"][: len(encoded["input_ids"]) - closing]
        first = [*encoded["special_tokens_mask"], 0].index(0)
        excess = max(0, len(read) + len(ids) - 1 - max_length)
        if first + excess >= len(read):
            too_long.append((len(ids), completion))
        cut = read[:first] + read[first + excess :]
        examples.append(_example(cut, ids))
    if too_long:
        length, text = max(too_long)
        raise DataError(
            f"task {task.name}: {len(too_long)} of {len(rows)} completions don't fit into model.max_length={max_length}, "
            f"the longest with {length} tokens: {text[:SHOWN]!r}; raise model.max_length or leave them out"
        )
    return examples


def _example(prompt: list[int], completion: tuple[int, ...]) -> Example:
    return Example([*prompt, *completion[:-1]], None, -1, len(prompt) - 1, completion)


def _end(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
