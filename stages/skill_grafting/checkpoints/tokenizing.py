"""Whether two tokenizers read texts alike, as what is measured with the one and handed on with the other has to be read."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..models.loading import TOKENIZER_FILES, load_tokenizer
from ..support.errors import ModelError
from .folders import has_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# letters of several scripts and cases, accents, numbers, marks, white space
TEXTS = (
    "The QUICK brown fox's 1,234.50 don't-stop_words!? (a+b)=[c] {d} #tag @user http://x.org/y?z=1 50% <s> </s> [CLS] [SEP] [MASK]",
    "  two  spaces,\ttabs\nand lines\r\n Stra\u00dfe caf\u00e9 cafe\u0301 \u00c4RGER \u0130 \u041f\u0440\u0418\u03a3 \ufb01 \uff21 \u200b \u00ad",
    "\u4e2d\u6587 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0639\u0631\u0628 \u05e2\u05d1\u05e8 \U0001f600",
    "",
)
# words of the vocabulary that are read, too
SAMPLED = 2_000


def other_reading(ours: Path, theirs: Path, words: tuple[str, ...] = ()) -> str:
    """Why the tokenizer of our folder can't read texts as that of theirs does; empty if it can, or if one has none that loads.

    Padding doesn't matter: it is no part of a text.  `words` are the special ones that matter, such as eos_token.
    """
    if not (has_tokenizer(ours) and has_tokenizer(theirs)) or _same_files(ours, theirs):
        return ""
    try:
        own, other = load_tokenizer(ours), load_tokenizer(theirs)
    except ModelError:  # files that make no tokenizer
        return ""
    problem = _difference(own, other, words)
    remedy = "a graft is read by that of its base, so put the files of this one into a copy of the base's folder, and take that for it"
    return f"its tokenizer reads texts otherwise: {problem}; {remedy}" if problem else ""


def _same_files(ours: Path, theirs: Path) -> bool:
    files = [
        [(folder / name).read_bytes() if (folder / name).is_file() else None for name in TOKENIZER_FILES]
        for folder in (ours, theirs)
    ]
    return files[0] == files[1]


def _difference(one: "PreTrainedTokenizerBase", other: "PreTrainedTokenizerBase", words: tuple[str, ...]) -> str:
    known, names = one.get_vocab(), other.get_vocab()
    if known != names:
        token = min(token for token in {*known, *names} if known.get(token) != names.get(token))
        places = [f"number {there[token]}" if token in there else "none" for there in (names, known)]
        return f"the token {token!r} is {places[0]} of its own and {places[1]} of the base's"
    for word in (*words, "truncation_side"):
        if (mine := getattr(one, word)) != (its := getattr(other, word)):
            return f"its {word} is {its}, and the base's {mine}"
    some = sorted(known)[:: max(1, len(known) // SAMPLED)]
    for text in (*TEXTS, " ".join(some), "".join(some), " ".join(some).swapcase()):
        if (problem := _differ(one, other, text)) is not None:
            return f"it makes {problem[1]} of {problem[2]!r}, and the base's {problem[0]}"
    return ""


def _differ(one: "PreTrainedTokenizerBase", other: "PreTrainedTokenizerBase", text: str) -> tuple[str, str, str] | None:
    """What two tokenizers make of a text, or of its first word that they read differently; None if they make the same of it."""
    if (
        one(text)["input_ids"] == other(text)["input_ids"]
        and one(text, "a")["input_ids"] == other(text, "a")["input_ids"]
    ):
        return None
    for part in (*text.split(), text):
        read = [" ".join(each.convert_ids_to_tokens(each(part)["input_ids"])) for each in (one, other)]
        if read[0] != read[1]:
            return read[0][:80], read[1][:80], part[:40]
    return "other pairs", "pairs", text[:40]
