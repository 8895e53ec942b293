#!/usr/bin/env python3
"""Writes what transformers makes of conversations and texts, for tests/conformance.rs to compare with.

    pip install torch transformers
    python3 tests/conformance/make.py

Every tokenizer of kinds.py, which goes to tokenizers/NAME.json, stands behind every template of templates/. Ids are those of
`apply_chat_template` and of the tokenizer's own call; tokens and logprobs those of tests/golden/models/tiny-llama in f32, greedy.
Conversations with the name of a special token in a message are no part of this: there transformers takes it for the token.
"""

import codecs
import datetime
import json
import shutil
import sys
import tempfile
from pathlib import Path

import jinja2
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import chat_template_utils

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "golden/models/tiny-llama"
DATE = "2026-11-25"
MOST = 4

# Which names stand at both ends of a text in the models that a template is of.
ENDS = {
    "llama2": ("<s>", "</s>"), "mistral_v0_2": ("<s>", "</s>"), "mistral_v0_3": ("<s>", "</s>"),
    "mistral_small_2501": ("<s>", "</s>"), "zephyr": ("<s>", "</s>"), "vicuna": ("<s>", "</s>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"), "llama3_2": ("<|begin_of_text|>", "<|eot_id|>"),
    "gemma": ("<bos>", "<eos>"), "granite": ("<|end_of_text|>", "<|end_of_text|>"),
    "r1_distill": ("<|begin_of_sentence|>", "<|end_of_sentence|>"),
}
OTHERS = ("<|endoftext|>", "<|im_end|>")

DOCUMENT = ("The harbour lantern was lit at six.\n\nOld Marten kept the keys, and nobody but Marten knew that number: 4817. "
            "  It's \"the\" café's tale.\nEnd of tale.")
TURNS = [
    [("user", "Hello there")],
    [("user", f"{DOCUMENT}\n\nWho kept the keys?")],
    [("system", "Be brief."), ("user", "Who kept the keys?")],
    [("user", "Hi."), ("assistant", "Hello! How may I help?"), ("user", "What is 2+2?")],
    [("system", f"Use this:\n{DOCUMENT}\n"), ("user", " Who? \n"), ("assistant", " Marten.\n"), ("user", "\n\tAnd why?  ")],
    [("user", "Think."), ("assistant", "<think>\nA number, then.\n</think>\n\nIt is 4."), ("user", "Sure?")],
    [("user", "naïve 你好 😀\u00a0e\u0301 ﬁ ½"), ("assistant", "ÀÉ — “ok”…"), ("user", "x  y   z\n\n\n")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"), ("assistant", "f"), ("user", ".")],
    [("system", ""), ("user", "\n\nWhy?")],
    [("user", "Count: 1 2 3"), ("assistant", "4 5")],
    [("user", "One?"), ("system", "Be brief."), ("user", "Two?")],
    [("assistant", "Ask me."), ("user", "Why?")],
]
# A document with two questions, the second behind the answer to the first.
FIRST, SECOND = "Who kept the keys?", "And the number?"
TEXTS = ["The capital of France is", "", " ", " leading", "trailing ", "a\n\nb\n\nc", "Hello there", "naïve 你好 😀", "x  y   z\n\n",
         "<|im_start|>user\nHi<|im_end|>\n", DOCUMENT]
# Keys of tokenizer_config.json that might say what begins and ends a text.
ENDINGS = {"bos_token": "<s>", "eos_token": "</s>"}
BEGINNINGS = [
    ENDINGS,
    ENDINGS | {"add_bos_token": True},
    ENDINGS | {"add_bos_token": False},
    ENDINGS | {"add_bos_token": True, "add_eos_token": True},
    {"bos_token": None, "eos_token": "</s>"},
]
# Classes that other files than their own do not name.
SENTENCEPIECE = ["llama2", "mistral-first", "metaspace-always", "metaspace-never", "llama-class"]
BYTE_LEVEL = ["gpt2", "llama3", "qwen2", "smollm"]
CLASSES = [(SENTENCEPIECE, ENDINGS | {"tokenizer_class": name, **more}) for name in ("LlamaTokenizer", "LlamaTokenizerFast")
           for more in ({}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}, {"add_bos_token": False})]
CLASSES += [(BYTE_LEVEL, ENDINGS | {"tokenizer_class": name}) for name in ("LlamaTokenizerFast", "Qwen2TokenizerFast", "GPT2TokenizerFast")]


def folder(where, kind, settings, template=None):
    """A model's folder: the tiny model with this tokenizer and template."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir()
    shutil.copy(MODEL / "config.json", where)
    shutil.copy(HERE / "tokenizers" / f"{kind}.json", where / "tokenizer.json")
    (where / "tokenizer_config.json").write_text(json.dumps(settings))
    if template:
        shutil.copy(template, where / "chat_template.jinja")
    return AutoTokenizer.from_pretrained(where)


def chat(tokenizer, turns):
    """Ids of a conversation, or what its template says of it."""
    messages = [{"role": role, "content": content} for role, content in turns]
    last = {"continue_final_message": True} if turns[-1][0] == "assistant" else {"add_generation_prompt": True}
    try:
        return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **last)
    except jinja2.exceptions.TemplateError as error:
        return {"refused": error.message}


class Fixed(datetime.datetime):
    """A clock for templates that name the day."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(DATE)


@torch.no_grad()
def greedy(model, ids):
    """Greedy tokens and their logprobs, without the token that ends them."""
    tokens, logprobs = [], []
    while len(tokens) < MOST:
        row = torch.log_softmax(model(torch.tensor([ids + tokens])).logits[0, -1].float(), -1)
        if int(row.argmax()) == model.config.eos_token_id:
            break
        tokens.append(int(row.argmax()))
        logprobs.append(round(float(row.max()), 6))
    return {"prompt_tokens": len(ids), "tokens": tokens, "logprobs": logprobs}


def told(tokenizer, ids):
    """The text of an answer as clusters tell it: without a character that its last bytes only begin."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    bytes_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokens = tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True)
    letters = "".join(token or "" for token in tokens)
    if not text.endswith("\ufffd") or not set(letters) <= set(bytes_of):
        return text
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(bytes(bytes_of[letter] for letter in letters))
    return text[:-1] if decoder.getstate()[0] else text


def kept(model, tokenizer):
    """What is answered to a second question about a document, behind the first and its answer as text."""
    turns = [("user", f"{DOCUMENT}\n\n{FIRST}")]
    first = greedy(model, chat(tokenizer, turns))
    text = told(tokenizer, first["tokens"])
    ids = chat(tokenizer, [*turns, ("assistant", text), ("user", SECOND)])
    return {"first": first, "text": text, "ids": ids, "second": greedy(model, ids)}


def main():
    sys.path.insert(0, str(HERE))
    from kinds import KINDS
    chat_template_utils.datetime = Fixed
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    (HERE / "tokenizers").mkdir(exist_ok=True)
    templates = sorted((HERE / "templates").glob("*.jinja"))
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch) / "model"
        cases = []
        for kind, (tokenizer, _) in KINDS.items():
            path = HERE / "tokenizers" / f"{kind}.json"
            if not path.exists():
                path.write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
        for at, (kind, (_, settings)) in enumerate(KINDS.items()):
            for number, template in enumerate(templates):
                bos, eos = ENDS.get(template.stem, OTHERS)
                config = settings | {"bos_token": bos, "eos_token": eos}
                tokenizer = folder(where, kind, config, template)
                chats = [chat(tokenizer, turns) for turns in TURNS]
                case = {"tokenizer": kind, "template": template.stem, "config": config, "chats": chats}
                if number == at % len(templates):
                    case["answers"] = [greedy(model, ids) if isinstance(ids, list) else None for ids in chats]
                    case["kept"] = kept(model, tokenizer)
                cases.append(case)
        texts = []
        for kind, (_, settings) in KINDS.items():
            for more in [*BEGINNINGS, *(more for kinds, more in CLASSES if kind in kinds)]:
                tokenizer = folder(where, kind, settings | more)
                ids = [tokenizer(text).input_ids for text in TEXTS]
                case = {"tokenizer": kind, "config": settings | more, "ids": ids}
                if more is BEGINNINGS[0]:
                    case["answers"] = [greedy(model, one) if len(one) > 1 else None for one in ids]
                texts.append(case)
    conversations = [[{"role": role, "content": content} for role, content in turns] for turns in TURNS]
    asked = {"document": DOCUMENT, "first": FIRST, "second": SECOND}
    small = {"date": DATE, "max_tokens": MOST, "conversations": conversations, "texts": TEXTS, "asked": asked}
    write(HERE / "prompts.json", small, {"chats": cases, "raw": texts})


def write(path, small, large):
    """One case a line, so that a difference can be read."""
    lines = [f'"{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in small.items()]
    for name, cases in large.items():
        lines.append(f'"{name}": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
