"""Writes the rows of generated.md, `python written_rows.py DATA OUT`: prompts with answers to write.

OUT/words has SST-2's sentences, whose answer is a word, OUT/answers the questions of SQuAD whose answer is at
most five words of a sentence of at most 200 characters, which is the text to copy it from. Each has
`train.jsonl`, `held.jsonl` and the rows to judge on in the forms of the scores: `written.jsonl`,
`likelihood.jsonl` and, of words, `choices.jsonl` and `spaced.jsonl`, with one space too many before a word.
A completion ends with a line break, so that the model learns to stop.
"""

import json
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

N_TRAIN, N_HELD, N_JUDGED = 1000, 50, {"words": 200, "answers": 150}
WORDS = (" negative", " positive")


def reviews(file: Path) -> Iterator[dict[str, object]]:
    """SST-2's sentences, and which of the words is right."""
    for row in map(json.loads, file.open(encoding="utf-8")):
        prompt = f"Review: {str(row['sentence']).strip()}\nSentiment:"
        yield {"prompt": prompt, "gold": row["label"], "answers": [WORDS[row["label"]]]}


def questions(file: Path) -> Iterator[dict[str, object]]:
    """SQuAD's questions, each with the sentence that holds its first answer."""
    for article in json.loads(file.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            ends = [0, *(m.end() for m in re.finditer(r"[.!?]\s+", paragraph["context"])), None]
            for row in paragraph["qas"]:
                start = row["answers"][0]["answer_start"]
                k = max(i for i, end in enumerate(ends[:-1]) if end <= start)
                sentence = paragraph["context"][ends[k] : ends[k + 1]].strip()
                answers = list(dict.fromkeys(f" {answer['text']}" for answer in row["answers"]))
                if answers[0] in f" {sentence}" and len(sentence) <= 200 and len(answers[0].split()) <= 5:
                    prompt = f"Text: {sentence}\nQuestion: {row['question'].strip()}\nAnswer:"
                    yield {"prompt": prompt, "answers": answers}


def write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(data: Path, out: Path) -> None:
    """Write all files of both tasks; the same rows every time."""
    for name, read, pattern in (
        ("words", reviews, "sst2/{}.jsonl"),
        ("answers", questions, "squad/{}.json"),
    ):
        chance, drawn = random.Random(0), []
        for split, n in (("train", N_TRAIN + N_HELD), ("validation", N_JUDGED[name])):
            pool = list(read(data / pattern.format(split)))
            drawn.append(chance.sample(pool, min(len(pool), n)))
        completed = [
            [{"prompt": row["prompt"], "completion": f"{row['answers'][0]}\n"} for row in rows]
            for rows in drawn
        ]
        n_held = min(N_HELD, len(drawn[0]) // 2)
        write(out / name / "held.jsonl", completed[0][:n_held])
        write(out / name / "train.jsonl", completed[0][n_held:])
        write(out / name / "likelihood.jsonl", completed[1])
        answers = ([answer.strip() for answer in row["answers"]] for row in drawn[1])
        write(
            out / name / "written.jsonl",
            ({"prompt": row["prompt"], "answers": own} for row, own in zip(drawn[1], answers)),
        )
        if name == "words":
            for file, space in (("choices", ""), ("spaced", " ")):  # the harness puts a space before a choice
                choices = [f"{space}{word.strip()}" for word in WORDS]
                rows = ({"context": r["prompt"], "choices": choices, "gold": r["gold"]} for r in drawn[1])
                write(out / name / f"{file}.jsonl", rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
