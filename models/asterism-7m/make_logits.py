"""Makes logits.safetensors: transformers' f32 logits of the embedded model for a few prompts, on the CPU.

    python make_logits.py [--output logits.safetensors]

Prompt i has `{i}.ids` (I32) and `{i}.logits` (F32, (positions, vocab)) for the positions listed in `{i}.positions` (I32).
The texts stand below: a needle, variable chains, a bAbI story, plain words, and one long enough for large rotary angles.
"""
from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
SKY = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
NEEDLE = "One of the special magic numbers for quiet-harbour is: 4718302.\n"
ASK = "What is the special magic number for quiet-harbour mentioned in the provided text? " \
      "The special magic number for quiet-harbour mentioned in the provided text is"
PROMPTS = [
    SKY * 3 + NEEDLE + SKY * 3 + ASK,
    "VAR ABCDE = 10317.\n" + SKY + "VAR FGHIJ = VAR ABCDE.\n" + SKY + "Question: Find all variables that are assigned the value 10317",
    "Mary went to the garden. John picked up the apple. Mary moved to the kitchen.\nQuestion: Where is Mary? Answer:",
    "Unicode: naïve, 你好, 😀\tand 3.14159 -- don't!",
    SKY * 60 + NEEDLE + SKY * 60 + ASK,
]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=HERE / "logits.safetensors")
    output = parser.parse_args().output
    tokenizer = AutoTokenizer.from_pretrained(HERE)
    model = AutoModelForCausalLM.from_pretrained(HERE, dtype=torch.float32).eval()
    tensors = {}
    for i, prompt in enumerate(PROMPTS):
        ids = tokenizer(tokenizer.bos_token + prompt, add_special_tokens=False, return_tensors="pt").input_ids
        n = ids.shape[1]
        positions = torch.tensor([n // 3, 2 * n // 3, n - 1])
        tensors[f"{i}.ids"] = ids[0].to(torch.int32)
        tensors[f"{i}.positions"] = positions.to(torch.int32)
        tensors[f"{i}.logits"] = model(ids).logits[0, positions].contiguous()
        print(f"prompt {i}: {n} tokens, next {tokenizer.decode([int(tensors[f'{i}.logits'][-1].argmax())])!r}")
    save_file(tensors, output)


if __name__ == "__main__":
    main()
