#!/usr/bin/env python3
"""The session of a coding agent, forty turns of messages and tools: through chats and through Anthropic's Messages, every second turn
with all that was said before. Later turns use again what hosts have (`cached_tokens`), and both ways read the same prompt.

    tests/agent_session.py --binary target/release/asterism

With the embedded model, which answers nothing sensible: calls and their results are those of a recording that is made here. Python's
standard library alone; only loopback; stops what it started.
"""

import argparse
import json
import pathlib
import tempfile
import time
import urllib.request

from clusters import Cluster

MODEL, TURNS, WITHIN_S = "asterism-7m", 40, 120
SYSTEM = ("You are a coding agent. Read before you write, and say what you did. " * 40).strip()
SCHEMAS = {
    "read_file": {"type": "object", "properties": {"path": {"type": "string"}, "from": {"type": "integer"}}, "required": ["path"]},
    "write_file": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}, "required": ["path", "text"]},
    "run": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def recorded():
    """Turns: what the agent says and calls, and what comes of it; every eighth ends with what a person says."""
    for turn in range(TURNS):
        name = list(SCHEMAS)[turn % 3]
        given = {"read_file": {"path": f"src/part{turn}.rs", "from": turn}, "run": {"command": f"cargo test part{turn} -- --nocapture"},
                 "write_file": {"path": f"src/part{turn}.rs", "text": f"fn part{turn}() -> u32 {{ {turn} }}\n" * 2}}[name]
        result = f"part{turn}: " + {"read_file": f"fn part{turn}() {{ todo() }}\n" * 4, "run": "test result: ok. 3 passed; 0 failed\n",
                                    "write_file": "written"}[name]
        yield {"id": f"call{turn:05}", "says": f"Step {turn}." if turn % 2 else "", "name": name, "given": given, "result": result,
               "person": f"Good. Go on with part {turn + 1}." if turn % 8 == 7 else ""}


def chat(turns):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Write all parts of the program, and test each."}]
    for turn in turns:
        call = {"id": turn["id"], "type": "function", "function": {"name": turn["name"], "arguments": json.dumps(turn["given"])}}
        messages += [{"role": "assistant", "content": turn["says"] or None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": turn["id"], "content": turn["result"]}]
        messages += [{"role": "user", "content": turn["person"]}] if turn["person"] else []
    tools = [{"type": "function", "function": {"name": name, "description": f"{name} of the workspace", "parameters": schema}}
             for name, schema in SCHEMAS.items()]
    return {"messages": messages, "tools": tools}


def messages(turns):
    said = [{"role": "user", "content": "Write all parts of the program, and test each."}]
    for turn in turns:
        says = [{"type": "text", "text": turn["says"]}] if turn["says"] else []
        use = {"type": "tool_use", "id": turn["id"], "name": turn["name"], "input": turn["given"]}
        result = {"type": "tool_result", "tool_use_id": turn["id"], "content": [{"type": "text", "text": turn["result"]}]}
        person = [{"type": "text", "text": turn["person"]}] if turn["person"] else []
        said += [{"role": "assistant", "content": [*says, use]}, {"role": "user", "content": [result, *person]}]
    tools = [{"name": name, "description": f"{name} of the workspace", "input_schema": schema} for name, schema in SCHEMAS.items()]
    system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    return {"messages": said, "tools": tools, "system": system}


def ask(api, path, body):
    body = {"model": MODEL, "max_tokens": 2, **body}
    request = urllib.request.Request(f"http://{api}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    return json.loads(urllib.request.urlopen(request, timeout=WITHIN_S).read())


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    given = arguments.parse_args()
    turns = list(recorded())
    with tempfile.TemporaryDirectory(prefix="asterism-agent-") as folder:
        with Cluster(given.binary, pathlib.Path(folder), "agent", api='listen = "127.0.0.1:0"\n') as cluster:
            api = cluster.record()["api"]
            rows = {"chat": [], "messages": []}
            for way in rows:
                began = time.monotonic()
                for said in range(2, TURNS + 1, 2):
                    if way == "chat":
                        usage = ask(api, "/v1/chat/completions", chat(turns[:said]))["usage"]
                        rows[way].append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
                    else:
                        usage = ask(api, "/v1/messages", messages(turns[:said]))["usage"]
                        cached = usage["cache_read_input_tokens"]
                        rows[way].append((usage["input_tokens"] + cached, cached))
                prompts, cached = sum(row[0] for row in rows[way]), sum(row[1] for row in rows[way])
                print(f"{way}: a session of {TURNS} turns to {rows[way][-1][0]} tokens, {time.monotonic() - began:.0f} s; of {prompts} tokens asked, "
                      f"{cached} were there ({cached / prompts:.0%})", flush=True)
    assert [prompt for prompt, _ in rows["chat"]] == [prompt for prompt, _ in rows["messages"]], rows
    for way, told in rows.items():
        late = told[len(told) // 2:]
        assert all(cached > 0 for _, cached in late), (way, told)
        assert sum(cached for _, cached in late) > sum(prompt for prompt, _ in late) // 2, (way, told)


if __name__ == "__main__":
    main()
