"""Writes tests/integration/data/smollm2_greedy.json: what transformers makes of twenty prompts.

Greedy in float32, one prompt at a time, never stopping at an end token. Knows nothing of our model
code, so that it can be its reference. Invariant: run again with the same transformers and model, it
writes the same ids; beside each id stands how far ahead of the second best its logit was.

    .venv/bin/python scripts/make_reference_ids.py
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer

from segue.model_files.demo_model import SMOLLM2_135M, ensure_demo_model

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tests" / "integration" / "data" / "smollm2_greedy.json"
NUM_OUTPUT_TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "To make a good cup of tea, first",
    "The three laws of thermodynamics are",
    "1, 1, 2, 3, 5, 8,",
    "Q: Why is the sky blue?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "<|im_start|>user\nWhat is a noun?<|im_end|>\n<|im_start|>assistant\n",
    "Ingredients:\n- 2 eggs\n- 200 g flour\n",
    "Il était une fois",
    "Photosynthesis is the process by which",
    "In 1969, the first people",
    "SELECT name, age FROM users WHERE",
    "The opposite of hot is cold. The opposite of big is",
    "Water boils at 100 degrees Celsius, which in Fahrenheit",
    "Roses are red,\nViolets are blue,\n",
    "import numpy as np\n\n# The mean of each row\n",
    "Whales are not fish, because",
    "x",
)


@dataclass(slots=True, frozen=True)
class Reference:
    """`gaps[i]`: best logit less the second best, where output_ids[i] was chosen."""

    prompt: str
    prompt_ids: list[int]
    output_ids: list[int]
    gaps: list[float]


def main() -> int:
    torch.set_num_threads(1)
    model_dir = ensure_demo_model(lambda line: print(line, file=sys.stderr))
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.eval()
    references: list[Reference] = []
    for prompt in PROMPTS:
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        references.append(continue_greedily(model, prompt, prompt_ids))
        print(f"{prompt!r} -> {tokenizer.decode(references[-1].output_ids)!r}", file=sys.stderr)
    write(references)
    return 0


@torch.inference_mode()
def continue_greedily(
    model: transformers.PreTrainedModel, prompt: str, prompt_ids: list[int]
) -> Reference:
    output_ids: list[int] = []
    gaps: list[float] = []
    next_ids, cache = prompt_ids, None
    for _ in range(NUM_OUTPUT_TOKENS):
        result = model(torch.tensor([next_ids]), past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        best = result.logits[0, -1].topk(2)
        output_ids.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
        next_ids = output_ids[-1:]
    return Reference(prompt, prompt_ids, output_ids, gaps)


def write(references: list[Reference]) -> None:
    """One prompt a line, so that a difference can be read."""
    lines = ",\n".join(json.dumps(asdict(one), ensure_ascii=False) for one in references)
    source = json.dumps({**SMOLLM2_135M.source, "transformers": transformers.__version__})
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(f'{{"source": {source},\n"references": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
