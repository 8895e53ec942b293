"""Scores a JSONL file with transformers: f32 on the CPU, greedy, and prints exact match per task.

    python transformers_eval.py FILE.jsonl [--model DIR] [--threads 2] [--max-new-tokens 128] [--answers OUT.jsonl]

A record has task, input_context, input_query and answer. Context and query are tokenised apart, BOS belongs to the
context, generation stops at an eos id. An answer counts when it holds every gold string, whatever the case: `answer`
split on ", ", and on spaces for the tasks whose gold strings are single words (fwe, vt).
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

WORD_TASKS = {"fwe", "vt"}


def gold_strings(record: dict) -> list[str]:
    return record["answer"].split() if record["task"] in WORD_TASKS else record["answer"].split(", ")


def is_right(record: dict, answer: str) -> bool:
    return all(gold.lower() in answer.lower() for gold in gold_strings(record))


@torch.inference_mode()
def answer(model, tokenizer, record: dict, max_new_tokens: int) -> str:
    """Greedy text: the context and the query in one pass, then one token at a time over the KV cache."""
    ids = tokenizer(tokenizer.bos_token + record["input_context"], add_special_tokens=False).input_ids
    ids += tokenizer(record["input_query"], add_special_tokens=False).input_ids
    eos = model.config.eos_token_id
    eos = set(eos if isinstance(eos, list) else [eos])
    step, cache, new = torch.tensor([ids]), None, []
    while len(new) < max_new_tokens:
        out = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, token = out.past_key_values, int(out.logits[0, -1].argmax())
        if token in eos:
            break
        new.append(token)
        step = torch.tensor([[token]])
    return tokenizer.decode(new, skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--answers", type=Path, help="write task, gold, answer and verdict of each record here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()

    scores: dict[str, list[bool]] = {}
    lines = []
    for line in args.file.read_text().splitlines():
        record = json.loads(line)
        text = answer(model, tokenizer, record, args.max_new_tokens)
        right = is_right(record, text)
        scores.setdefault(record["task"], []).append(right)
        lines.append({"task": record["task"], "gold": record["answer"], "answer": text, "right": right})
        print(f"{record['task']:18} {'right' if right else 'wrong'}", file=sys.stderr, flush=True)
    if args.answers:
        args.answers.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    for task, verdicts in scores.items():
        print(f"{task:18} {sum(verdicts):3} of {len(verdicts)}")
    verdicts = [v for task in scores.values() for v in task]
    print(f"{'all':18} {sum(verdicts):3} of {len(verdicts)}")


if __name__ == "__main__":
    main()
