"""From rows to prompts and completions: the tokens that a causal model reads, and those that it is to write.

An end token closes each completion if the tokenizer has one: without it nothing would tell that a greedy completion ends
where it should, and "one" would be an exact match of "one day".
"""

from collections.abc import Sequence
from typing import Any

from ..errors import DataError, ModelError
from .encoding import Example, rendered
from .tasks import Prompt, TaskSpec

SHOWN = 40


def encode_completions(rows: Sequence[dict], task: TaskSpec, tokenizer: Any, max_length: int) -> list[Example]:
    """Encode rows for a model that completes them; inputs are the prompt and all of the completion but its last token.

    With labels the prompt is the task's template up to {mask}, of which the sentences are cut so that the longest label word
    fits beside it (the cut tells nothing of the row's own), and the completion is the label's word.  Without, prompts are cut
    from the left.  Raises DataError for a label the task doesn't have and for completions that don't fit into `max_length`.
    """
    if not task.labels:
        return _plain(rows, task, tokenizer, max_length)
    words = dict(zip(task.labels, label_completions(task.causal_prompt, task.labels, tokenizer), strict=True))
    beside = max(map(len, words.values())) - 1
    examples = []
    for row in rows:
        if row["label"] not in words:
            raise DataError(f"{task.name}: label {row['label']!r} is not one of {', '.join(task.labels)}")
        ids = tokenizer(rendered(row, task.causal_prompt, tokenizer, max_length, beside))["input_ids"]
        examples.append(_example(ids, words[row["label"]]))
    return examples


def label_completions(prompt: Prompt, labels: Sequence[str], tokenizer: Any) -> list[tuple[int, ...]]:
    """The tokens of each label's word, in order; raises ModelError for unknown ones, and if two labels have the same."""
    found = [_closed(" " + prompt.verbalizer[label], tokenizer) for label in labels]
    # an end token may serve as the unknown one, and is no part of the word
    ends = len(_end(tokenizer))
    words = {prompt.verbalizer[label]: ids[: len(ids) - ends] for label, ids in zip(labels, found, strict=True)}
    unknown = [word for word, ids in words.items() if not ids or tokenizer.unk_token_id in ids]
    if unknown or len({*found}) < len(found):
        why = f"{unknown[0]!r} is unknown to this tokenizer" if unknown else "two labels have the same tokens"
        raise ModelError(f"verbalizer: {why}; choose other words under `task:`")
    return found


def _plain(rows: Sequence[dict], task: TaskSpec, tokenizer: Any, max_length: int) -> list[Example]:
    """Rows of prompts (sentence1) and completions (label)."""
    examples, too_long = [], []
    for row in rows:
        prompt, completion = row["sentence1"].rstrip(" "), row["label"].strip(" ").rstrip()
        # one space between, or the line break that one of them brings
        space = "" if prompt[-1:].isspace() or completion[:1].isspace() else " "
        ids = _closed(space + completion, tokenizer)
        encoded = tokenizer(prompt, return_special_tokens_mask=True)
        first = [*encoded["special_tokens_mask"], 0].index(0)
        excess = max(0, len(encoded["input_ids"]) + len(ids) - 1 - max_length)
        if first + excess >= len(encoded["input_ids"]):
            too_long.append((len(ids), completion))
        cut = encoded["input_ids"][:first] + encoded["input_ids"][first + excess :]
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


def _end(tokenizer: Any) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def _closed(text: str, tokenizer: Any) -> tuple[int, ...]:
    return (*tokenizer(text, add_special_tokens=False)["input_ids"], *_end(tokenizer))
