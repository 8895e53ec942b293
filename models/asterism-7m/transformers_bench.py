"""Times prefill and decode of this model with transformers on the CPU and prints one JSON object.

    python transformers_bench.py --tokens 8192 [--dtype f32|bf16] [--threads 2] [--decode 16] [--repeat 3]
                                 [--ids IDS.json] [--model DIR]

The prompt is a JSON list of token ids, or made here: id 0, then `8 + (state >> 33) % (vocab - 8)` for the states of
`state = state * 6364136223846793005 + 1442695040888963407 (mod 2^64)` from state 0: the same ids as `asterism bench`.
Prefill is one pass over the prompt with the logits of its last row. Decode is greedy over the KV cache behind that very
prompt, one token a pass. Every repetition is reported; compare medians.
"""
from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def synthetic_prompt(tokens: int, vocab: int) -> list[int]:
    ids, state = [0], 0
    while len(ids) < tokens:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(8 + (state >> 33) % (vocab - 8))
    return ids


@torch.inference_mode()
def measure(model, prompt: torch.Tensor, decode: int) -> tuple[float, list[float], list[int]]:
    """Seconds of the prefill, seconds of each decoded token, the tokens."""
    start = time.perf_counter()
    out = model(prompt, use_cache=True, logits_to_keep=1)
    prefill = time.perf_counter() - start
    tokens, steps = [int(out.logits[0, -1].argmax())], []
    for _ in range(decode):
        start = time.perf_counter()
        out = model(torch.tensor([[tokens[-1]]]), past_key_values=out.past_key_values, use_cache=True)
        tokens.append(int(out.logits[0, -1].argmax()))
        steps.append(time.perf_counter() - start)
    return prefill, steps, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--decode", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ids", type=Path, help="JSON list of token ids to use instead")
    parser.add_argument("--model", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=DTYPES[args.dtype]).eval()
    ids = json.loads(args.ids.read_text()) if args.ids else synthetic_prompt(args.tokens, model.config.vocab_size)
    measure(model, torch.tensor([ids[:256]]), 2)
    runs = [measure(model, torch.tensor([ids]), args.decode) for _ in range(args.repeat)]
    prefill = statistics.median(run[0] for run in runs)
    print(json.dumps({
        "program": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "dtype": args.dtype,
        "threads": args.threads,
        "prompt_tokens": len(ids),
        "prefill_seconds": prefill,
        "prefill_tokens_per_second": len(ids) / prefill,
        "decode_ms_per_token": 1000 * statistics.median(step for run in runs for step in run[1]) if args.decode else None,
        "prefill_seconds_all": [run[0] for run in runs],
        "tokens": runs[0][2],
    }))


if __name__ == "__main__":
    main()
