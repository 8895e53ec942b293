#!/usr/bin/env python3
"""Asks real models the questions of tests/smollm2.json and tests/qwen.json with transformers, and writes their greedy tokens there.

    python3 tests/real_models.py FOLDER smollm2|qwen
    pip install torch transformers accelerate
    python3 tests/real_answers.py FOLDER smollm2|qwen

In f32 on a CPU. Of a document the prompt is the chat template with document, blank line and question in one user message.
`margin` is the least distance of the two best logits on the way.
"""

import copy
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from real_models import MODELS


def main(folder, which):
    path, model = Path(__file__).with_name(f"{which}.json"), MODELS[which]
    fixture = json.loads(path.read_text())
    place = folder / (model["name"] + model["styles"][-1])
    tokenizer = AutoTokenizer.from_pretrained(place)
    asked = Asked(AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32), tokenizer, fixture["max_tokens"])
    for question in fixture["questions"]:
        document = (folder / f"{question['document']}.txt").read_text()
        question |= asked.answer([{"role": "user", "content": f"{document}\n\n{question['query']}"}])
        print(json.dumps(question, ensure_ascii=False), flush=True)
    for chat in fixture.get("chats", []):
        chat |= asked.answer(chat["messages"])
        print(json.dumps(chat, ensure_ascii=False), flush=True)
    lists = [f'"{name}": [\n  ' + ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n]"
             for name, value in fixture.items() if isinstance(value, list)]
    path.write_text(f'{{"max_tokens": {fixture["max_tokens"]}, {", ".join(lists)}}}\n')


class Asked:
    """A model, and what it has read of the last prompt."""

    def __init__(self, model, tokenizer, most):
        self.model, self.tokenizer, self.most = model, tokenizer, most
        self.ids, self.cache = [], DynamicCache()

    @torch.no_grad()
    def answer(self, messages):
        """Greedy tokens without the one that ends them, their text, and the least margin."""
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        same = next((at for at, (one, other) in enumerate(zip(ids, self.ids)) if one != other), min(len(ids), len(self.ids)))
        same = min(same, len(ids) - 1)
        cache = copy.deepcopy(self.cache)
        cache.crop(same - len(self.ids))
        tokens, margin, rest = [], float("inf"), ids[same:]
        while len(tokens) < self.most:
            logits = self.model(torch.tensor([rest]), past_key_values=cache, logits_to_keep=1).logits[0, -1]
            if not tokens:
                self.ids, self.cache = ids, copy.deepcopy(cache)
            best = torch.topk(logits, 2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            rest = [int(best.indices[0])]
            if rest[0] == self.model.config.eos_token_id:
                break
            tokens += rest
        return {"prompt_tokens": len(ids), "tokens": tokens, "margin": round(margin, 4),
                "text": self.tokenizer.decode(tokens, skip_special_tokens=True)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
