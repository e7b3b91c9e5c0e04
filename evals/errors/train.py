"""Learn which words of an error suggest which kind, from the labelled errors of this folder. Needs scikit-learn.

    python evals/errors/train.py                          write the weights of src/mulligan/classify
    python evals/errors/train.py --without eighth ninth   without these corpora, to measure on them

It is a linear model with one score for each kind. Small weights are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy
from scipy.sparse import csr_matrix
from sklearn.svm import LinearSVC

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent), str(HERE)]

from measure import Row, read_corpora  # noqa: E402
from sixth import read_rows as read_sixth  # noqa: E402

import mulligan.classify.word_weights as model  # noqa: E402

TARGET = Path(model.__file__).parent / "rules" / "word_weights.tsv"
MIN_TEXTS = 3
"""Texts in which a feature must occur."""
MIN_WEIGHT = 0.1
MAX_STEPS = 60


def read_texts(without: list[str]) -> list[Row]:
    """Return the failures with a kind. Whether a call failed at all, or why is unknown, is nothing to learn."""
    rows = [*read_corpora(), *({**row, "corpus": "sixth"} for row in read_sixth() if row["kind"])]
    for row in rows:
        row["label"] = row.get("counts_as", row["kind"]).split("|")[0]
    return [
        row
        for row in rows
        if row["corpus"] not in without
        and row["text"].strip()
        and not row["label"].startswith("none/")
        and not row["label"].endswith("/unknown")
    ]


def train(rows: list[Row]) -> str:
    """Return the content of the file of weights."""
    counts = [Counter(model.iter_features(row["text"])) for row in rows]
    texts = Counter(feature for count in counts for feature in count)
    features = sorted(feature for feature, number in texts.items() if number >= MIN_TEXTS)
    numbers = {feature: number for number, feature in enumerate(features)}
    rarity = numpy.log((1 + len(rows)) / (1 + numpy.array([texts[feature] for feature in features]))) + 1
    entries = [
        (row, numbers[feature], model.weigh_feature(count[feature], len(count.keys() & numbers.keys())))
        for row, count in enumerate(counts)
        for feature in count.keys() & numbers.keys()
    ]
    lines, columns, values = zip(*entries, strict=True)
    matrix = csr_matrix((values, (lines, columns)), (len(rows), len(features)))
    scale = SCALE * rarity
    machine = LinearSVC(C=0.5, class_weight="balanced").fit(
        matrix.multiply(scale).tocsr(), [row["label"] for row in rows]
    )
    weights = machine.coef_ * scale
    file = [" ".join(machine.classes_), "\t" + _encode(machine.intercept_, 0.0)]
    file += [f"{feature}\t{_encode(weights[:, number], MIN_WEIGHT)}" for feature, number in numbers.items()]
    return "\n".join(line for line in file if not line.endswith("\t")) + "\n"


SCALE = 0.17
"""Mean length of a text's vector without it, so that the machine sees lengths of about 1."""


def _encode(weights: numpy.ndarray, minimum: float) -> str:
    steps = numpy.clip(numpy.round(weights / model.WEIGHT_STEP), -MAX_STEPS, MAX_STEPS).astype(int)
    return "".join(
        chr(model.FIRST_KIND_LETTER + kind) + chr(model.ZERO_WEIGHT_LETTER + steps[kind])
        for kind in range(len(weights))
        if abs(weights[kind]) >= minimum and steps[kind]
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--without", nargs="*", default=[], help="corpora to leave out")
    rows = read_texts(options.parse_args().without)
    TARGET.write_text(train(rows), encoding="utf-8")
    print(f"{len(rows)} errors; {TARGET.stat().st_size / 1000:.0f} KB in {TARGET.name}")


if __name__ == "__main__":
    main()
