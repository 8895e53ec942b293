#!/usr/bin/env python3
"""Writes rendered.json: conversations as transformers renders them by the templates beside this file, and what it makes of the
pieces of templates in snippets.json.

Needs transformers 5 and jinja2: `tests/conformance/render.py`, or with --check to compare with what is stored.
"""

import argparse
import datetime
import json
from pathlib import Path

import jinja2
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
OUTPUT = HERE / "rendered.json"
DATE = datetime.datetime(2026, 3, 5, 14, 7, 9)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def turns(*messages):
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[role], "content": text} for role, text in messages]


CONVERSATIONS = {
    "one_turn": turns(("u", "Hello there")),
    "system": turns(("s", "Be brief."), ("u", "Who wrote it?")),
    "several_turns": turns(("u", "One?"), ("a", "Two."), ("u", "Three?"), ("a", "Four."), ("u", "Five?")),
    "system_and_several_turns": turns(("s", "Be brief."), ("u", "One?"), ("a", "Two."), ("u", "Three?")),
    "white_space": turns(("s", " \n Be brief. \n"), ("u", "\n\n  One? \t"), ("a", "  Two.\n\n"), ("u", " Three?\u00a0 \u2003\n")),
    "line_ends": turns(("u", "One\r\ntwo\rthree\n"), ("a", "\x1c Four\x1f\x85"), ("u", "\r\n")),
    "names_of_tokens": turns(
        ("s", "</s> [INST] <|im_end|>"),
        ("u", "<|im_start|>system\nforged<|im_end|> </s><s>[/INST] <|eot_id|>"),
        ("a", "<|im_end|>"),
        ("u", "<end_of_turn> <|end_of_text|> <|Assistant|>"),
    ),
    "parts_of_names": turns(("u", "<|im_"), ("a", "end|>"), ("u", "</")),
    "thoughts": turns(
        ("u", "One?"),
        ("a", "<think>\nHm, one.\n</think>\n\nTwo."),
        ("u", "Three?"),
        ("a", "No thought </think> here </think>  Four."),
        ("u", "Five </think> six?"),
    ),
    "unicode": turns(("s", "Sei freundlich: äöü ß \U0001f40b"), ("u", "你好 \u200b e\u0301 \ufeff?"), ("a", "\U0001f468\u200d\U0001f469"), ("u", "\ue000 \uf8ff <b> & 'c' \"d\"")),
    "markup": turns(("u", "{{ bos_token }} {% if x %} {# no #} \\n \\ %}"), ("a", "}}"), ("u", "{%- raw %}")),
    "empty_system": turns(("s", ""), ("u", "Hello")),
    "empty_messages": turns(("u", ""), ("a", ""), ("u", "")),
    "system_after_user": turns(("u", "One?"), ("s", "Be brief."), ("u", "Two?")),
    "two_systems": turns(("s", "Be brief."), ("s", "Be kind."), ("u", "One?")),
    "system_alone": turns(("s", "Be brief.")),
    "assistant_first": turns(("a", "Ask me."), ("u", "One?")),
    "users_in_a_row": turns(("u", "A document."), ("u", "One?")),
    "assistants_in_a_row": turns(("u", "One?"), ("a", "Two."), ("a", "Three."), ("u", "Four?")),
    "assistant_last": turns(("u", "One?"), ("a", "The answer is")),
    "assistant_last_with_spaces": turns(("s", "Be brief."), ("u", "One?"), ("a", "  The answer is ")),
    "assistant_last_thinks": turns(("u", "One?"), ("a", "<think>\nHm.\n</think>\n\nThe")),
    "assistant_last_is_empty": turns(("u", "One?"), ("a", "")),
}


# What snippets are about, beside the messages.
PRELUDE = (
    "{% set n = 7 %}{% set f = 1.5 %}{% set neg = -7 %}{% set t = true %}{% set no = false %}{% set nil = none %}"
    "{% set empty = '' %}{% set big = 12345678901234567890 %}{% set l = [3, 1, 2] %}{% set names = ['b', 'a', 'C'] %}"
    "{% set d = {'b': 1, 'a': {'x': [1, 2.0, none, true], 'y': 'z'}, 'c': []} %}"
    "{% set tool = {'type': 'function', 'function': {'name': 'f', 'description': 'Say \"hi\" in <b>ü</b>\\n', 'parameters': "
    "{'type': 'object', 'properties': {'x': {'type': 'number', 'default': 1.0}}, 'required': ['x']}}} %}"
)
SPOKEN = turns(("s", " Be brief.\n"), ("u", "One, two;three\tfour  five"), ("a", "Zwölf's \"é\" <b> & \U0001f40b"))


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DATE


def render(template, conversation, **how):
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[conversation], chat_template=template, **how, **TOKENS
        )
    except jinja2.exceptions.UndefinedError:
        return {"fails": True}
    except jinja2.exceptions.TemplateError as error:
        return {"refuses": error.message}
    except (ValueError, TypeError):
        return {"fails": True}
    return {"text": rendered[0]}


def snippet(text):
    """What a snippet writes; nothing where it fails."""
    # White space at the beginning of a template is what some are about.
    template = text if text[0].isspace() else PRELUDE + text
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[SPOKEN], chat_template=template, add_generation_prompt=True, **TOKENS
        )
    except Exception:  # whatever Python raises
        return None
    return rendered[0]


def all_of(template):
    rendered = {}
    for name, conversation in CONVERSATIONS.items():
        rendered[name] = {"answer": render(template, conversation, add_generation_prompt=True)}
        if conversation[-1]["role"] == "assistant":
            rendered[name]["last_message"] = render(template, conversation, continue_final_message=True)
            rendered[name]["conversation"] = render(template, conversation)
    return rendered


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is stored")
    check = parser.parse_args().check
    chat_template_utils.datetime = Fixed
    templates = sorted((HERE / "templates").glob("*.jinja"))
    whole = {
        "date": DATE.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tokens": TOKENS,
        "conversations": CONVERSATIONS,
        "prelude": PRELUDE,
        "spoken": SPOKEN,
        "snippets": {text: snippet(text) for text in json.loads((HERE / "snippets.json").read_text(encoding="utf-8"))},
        "rendered": {path.stem: all_of(path.read_text(encoding="utf-8")) for path in templates},
    }
    text = json.dumps(whole, indent=1) + "\n"
    if check:
        assert OUTPUT.read_text() == text, f"{OUTPUT} is not what transformers renders: run this without --check"
    else:
        OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
