#!/usr/bin/env python3
"""lm-eval's loglikelihoods of a real model through the API, against those that transformers computes: each within 1e-3.

    python3 tests/real_models.py FOLDER qwen
    tests/loglikelihoods.py --binary target/release/asterism --model FOLDER/Qwen2.5-Coder-0.5B-Instruct-v5 --python PYTHON

PYTHON has lm_eval[api] and transformers; without it an environment is made. `--make`, with a Python that has torch, computes the
expected values anew. Ends with 0 and a loud line where the model or the packages cannot be had. Only loopback; stops what it started.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from clusters import Cluster, python_with, skipped

EXPECTED = pathlib.Path(__file__).with_name("loglikelihoods.json")
# Choices that share their context's tokens, that split a word, that are long, and that are not ASCII.
ROWS = [
    ("The capital of France is", [" Paris", " Berlin", " a river that flows through the mountains"]),
    ("def add(a, b):\n    return", [" a + b", " a - b", " None"]),
    ("Und es ward Licht. Und Gott sah, dass das Licht", [" gut war", " größer wäre"]),
    ("Water freezes at zero degrees", [" Celsius", " Kelvin", " of doubt"]),
    ("1, 1, 2, 3, 5, 8,", [" 13", " 9"]),
    ("In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon the face of",
     [" the deep", " Jonah", " the waters"]),
    ("für i in range(10):\n    print(", ["i)", "🙂)"]),
    ("Answer with yes or no. Is the sea dry?\nAnswer:", [" no", " yes"]),
]
WITHIN, TASK = 1e-3, "likely"


def rows(folder):
    """The task, as lm-eval reads it."""
    data = [{"context": context, "choices": choices, "label": 0} for context, choices in ROWS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    (folder / f"{TASK}.yaml").write_text(
        f"task: {TASK}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder}/rows.jsonl\ntest_split: test\n"
        'output_type: multiple_choice\ndoc_to_text: "{{context}}"\ndoc_to_choice: choices\ndoc_to_target: label\n'
        'target_delimiter: ""\nmetric_list:\n  - metric: acc\n')


def make(model):
    """What transformers computes, tokens split as lm-eval splits them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    language_model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    expected = []
    for context, choices in ROWS:
        before = tokenizer(context).input_ids
        sums = []
        for choice in choices:
            # As lm-eval puts them together: where a token reaches over the border, the context's stay.
            ids = before + tokenizer(context + choice).input_ids[len(before):]
            with torch.no_grad():
                logprobs = language_model(torch.tensor([ids])).logits[0].log_softmax(-1)
            sums.append(sum(logprobs[at - 1, ids[at]].item() for at in range(len(before), len(ids))))
        expected.append({"context": context, "loglikelihoods": sums})
    EXPECTED.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in expected) + "\n]\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path)
    arguments.add_argument("--model", type=pathlib.Path, required=True)
    arguments.add_argument("--python", type=pathlib.Path)
    arguments.add_argument("--make", action="store_true")
    given = arguments.parse_args()
    if not given.model.exists():
        skipped(f"loglikelihoods were not compared: there is no model at {given.model}")
    if given.make:
        return make(given.model)
    with tempfile.TemporaryDirectory(prefix="asterism-likely-") as folder:
        folder = pathlib.Path(folder)
        python = pathlib.Path.cwd() / given.python if given.python else python_with(
            ["lm_eval[api]==0.4.13", "transformers==5.24.0"], folder, lambda why: skipped(f"loglikelihoods were not compared: {why}"))
        rows(folder)
        model = f'[model]\npath = "{given.model.resolve()}"\ndtype = "f32"\ndevice = "cpu"\n'
        with Cluster(given.binary, folder, "likely", contexts=1, api='listen = "127.0.0.1:0"\n', sections=model) as cluster:
            api = cluster.record()["api"]
            run = [python, "-m", "lm_eval", "--model", "local-completions", "--tasks", TASK, "--include_path", folder, "--batch_size", "4",
                   "--model_args", f"model={given.model.name},base_url=http://{api}/v1/completions,tokenizer={given.model.resolve()},"
                   "tokenizer_backend=huggingface", "--output_path", folder / "out", "--log_samples"]
            ended = subprocess.run(run, capture_output=True, text=True, timeout=900, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        assert ended.returncode == 0, ended.stderr[-3000:]
        [samples] = (folder / "out").rglob("samples_*.jsonl")
        got = {sample["doc"]["context"]: [float(pair[0]) for pair in sample["filtered_resps"]]
               for sample in map(json.loads, samples.read_text().splitlines())}
    worst, wrong = 0.0, []
    for row in json.loads(EXPECTED.read_text()):
        context, expected = row["context"], row["loglikelihoods"]
        assert len(got[context]) == len(expected), (got[context], row)
        for one, other in zip(got[context], expected):
            worst = max(worst, abs(one - other))
            wrong += [(context, one, other)] if abs(one - other) > WITHIN else []
    print(f"{sum(len(choices) for _, choices in ROWS)} loglikelihoods, the farthest {worst:.2e} from transformers'")
    assert not wrong, wrong


if __name__ == "__main__":
    main()
