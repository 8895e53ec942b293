#!/usr/bin/env python3
"""Asks SmolLM2 the questions of tests/smollm2.json with transformers and writes its greedy tokens into that file.

    python3 tests/smollm2.py FOLDER
    pip install torch transformers accelerate gguf
    python3 tests/smollm2_answers.py FOLDER GGUF_FILE

The weights are those that transformers itself reads from the GGUF file, in f32 on a CPU; the prompt is the chat template
with document, blank line and question in one user message. `margin` is the least distance of the two best logits on the way.
"""

import copy
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

FIXTURE = Path(__file__).with_name("smollm2.json")
MOST = 14


def main(folder, gguf):
    fixture = json.loads(FIXTURE.read_text())
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    documents = {question["document"] for question in fixture["questions"]}
    for name in sorted(documents):
        document = (folder / f"{name}.txt").read_text()
        cache, cached = DynamicCache(), []
        for question in (it for it in fixture["questions"] if it["document"] == name):
            message = [{"role": "user", "content": f"{document}\n\n{question['query']}"}]
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(text, add_special_tokens=False).input_ids
            if not cached:
                cached = ids[:len(tokenizer(text[:text.index(document) + len(document)]).input_ids)]
                with torch.no_grad():
                    model(torch.tensor([cached]), past_key_values=cache, logits_to_keep=1)
            assert ids[:len(cached)] == cached, "the document's tokens depend on the question"
            tokens, margin = greedy(model, ids[len(cached):], copy.deepcopy(cache))
            question |= {"prompt_tokens": len(ids), "tokens": tokens, "margin": round(margin, 4),
                         "text": tokenizer.decode(tokens, skip_special_tokens=True)}
            print(json.dumps(question, ensure_ascii=False), flush=True)
    lines = ",\n  ".join(json.dumps(question, ensure_ascii=False) for question in fixture["questions"])
    FIXTURE.write_text(f'{{"max_tokens": {MOST}, "questions": [\n  {lines}\n]}}\n')


@torch.no_grad()
def greedy(model, ids, cache):
    """Greedy tokens after what the cache holds and `ids`, without the token that ends them, and the least margin."""
    tokens, margin = [], float("inf")
    while len(tokens) < MOST:
        logits = model(torch.tensor([ids]), past_key_values=cache, logits_to_keep=1).logits[0, -1]
        best = torch.topk(logits, 2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids = [int(best.indices[0])]
        if ids[0] == model.config.eos_token_id:
            break
        tokens += ids
    return tokens, margin


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
