#!/usr/bin/env python3
"""Chats of a real model about a document over OpenAI's API, as clients send them that know nothing of Asterism: no session, no key, whatever
method is the default. Four turns of each of two clients in turn, then an agent's turn with a tool. Prints for each turn what was held and the
seconds to its first and last token. Ends with 1 where a later turn encodes the document again, or an answer is not the one without guesses.

    tests/chats.py --binary target/debug/asterism-under-test --model target/real_models/Qwen2.5-Coder-0.5B-Instruct-v5 [--tokens 5000]

Only loopback; stops what it started. Python's standard library alone.
"""

import argparse
import pathlib
import sys
import tempfile
import urllib.request

from agent_turns import Asked
from clusters import Cluster, skipped

QUESTIONS = ["Who is this text about? Answer in one sentence.", "Quote the sentence that says so, word for word.",
             "What happens right after that?", "Quote the first three sentences of the text, word for word."]
TOOL = {"type": "function", "function": {"name": "find_verse", "description": "Finds a verse in the text by a word in it.",
                                         "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}}
# Tokens of the turn before that a turn may encode again: its question, and the rest of a block.
BLOCK = 1024 + 256


def document(folder, name, tokens):
    text = " ".join((folder / name).read_text().split())
    return text[:tokens * 4]


class Client:
    def __init__(self, name, model, text):
        self.name, self.model, self.messages = name, model, [{"role": "user", "content": f"{text}\n\n{QUESTIONS[0]}"}]

    def turn(self, number, address, tokens, tools=None, content=None):
        """One turn: what was asked, and its answer."""
        if number > 0:
            self.messages.append({"role": "user", "content": content or QUESTIONS[number]})
        body = {"model": self.model, "messages": self.messages, "max_tokens": tokens, "temperature": 0} | ({"tools": tools} if tools else {})
        asked = Asked(address, None, body)
        self.messages.append({"role": "assistant", "content": asked.text})
        print(f"{self.name:>8} {number + 1:>4} {asked.prompt:>8} {asked.cached:>8} {asked.first or 0:>8.2f} {asked.last:>8.2f}  {asked.text[:70]!r}", flush=True)
        return asked


def metric(admin, name):
    text = urllib.request.urlopen(f"http://{admin}/metrics", timeout=60).read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def cluster(given, folder, speculation):
    """A cluster that speculates so, and what comes of its chats."""
    sections = f'[model]\npath = "{given.model.resolve()}"\ndtype = "{given.dtype}"\n[serving]\nspeculation = "{speculation}"\n'
    (folder / speculation).mkdir()
    with Cluster(given.binary, folder / speculation, "chats", contexts=1, api='listen = "127.0.0.1:0"\n', sections=sections) as here:
        print(f"speculation = \"{speculation}\"", flush=True)
        return chats(given, here.record()["api"], here.record()["admin"])


def chats(given, api, admin):
    """Answers of all turns, and those that failed."""
    host, _, port = api.rpartition(":")
    address, texts, model, answers, failed = (host, int(port)), given.model.resolve().parent, given.model.name, [], []
    print(f"{'client':>8} {'turn':>4} {'prompt':>8} {'held':>8} {'first s':>8} {'last s':>8}", flush=True)
    one, other = [Client(name, model, document(texts, f"{name}.txt", given.tokens)) for name in ["ruth", "esther"]]
    before = {}
    for number in range(len(QUESTIONS)):
        for client in (one, other):
            asked = client.turn(number, address, given.answer)
            answers.append(asked.text)
            # The second turn is the first that tells a chat from a question alone.
            if number > 1 and asked.cached < before[client.name] - BLOCK:
                failed.append(f"{client.name}, turn {number + 1}: {asked.cached} of {asked.prompt} tokens were held")
            before[client.name] = asked.prompt
    agent = Client("agent", model, document(texts, "ruth.txt", given.tokens))
    called = agent.turn(0, address, given.answer, [TOOL])
    agent.messages[-1] = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "find_verse", "arguments": '{"word": "Bethlehem"}'}}]}
    agent.messages.append({"role": "tool", "tool_call_id": "call00001", "content": "So they two went until they came to Bethlehem."})
    asked = agent.turn(1, address, given.answer, [TOOL], "Where did they go?")
    again = agent.turn(2, address, given.answer, [TOOL], "And who went with her?")
    answers += [called.text, asked.text, again.text]
    if again.cached < asked.prompt - BLOCK:
        failed.append(f"the agent's third turn: {again.cached} of {again.prompt} tokens were held")
    guessed, right = [metric(admin, f"asterism_spec_decode_num_{kind}_tokens_total") for kind in ["draft", "accepted"]]
    print(f"{metric(admin, 'asterism_generation_tokens_total'):.0f} tokens, {right:.0f} of {guessed:.0f} guesses right", flush=True)
    return answers, failed


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path)
    arguments.add_argument("--server", help="OpenAI's API and the admin API of a cluster that is up: HOST:PORT,HOST:PORT")
    arguments.add_argument("--model", type=pathlib.Path, required=True, help="its folder, beside which documents lie")
    arguments.add_argument("--tokens", type=int, default=5000, help="of a document, about")
    arguments.add_argument("--answer", type=int, default=48, help="tokens")
    arguments.add_argument("--dtype", default="bf16")
    arguments.add_argument("--speculation", default="off,auto", help="each of these in a cluster of its own")
    given = arguments.parse_args()
    if not given.binary and not given.server:
        arguments.error("name --binary or --server")
    if not (given.model / "config.json").exists():
        skipped(f"there is no model in {given.model}")
    with tempfile.TemporaryDirectory(prefix="asterism-chats-") as folder:
        if given.server:
            runs = [chats(given, *given.server.split(","))]
        else:
            runs = [cluster(given, pathlib.Path(folder), speculation) for speculation in given.speculation.split(",")]
    failed = [failure for _, failures in runs for failure in failures]
    failed += [f"answers differ: {one!r}, {other!r}" for one, other in zip(runs[0][0], runs[-1][0]) if one != other]
    for failure in failed:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
