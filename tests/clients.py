#!/usr/bin/env python3
"""Clients and benchmarks of other servers, unchanged, against a cluster of the embedded model: each that is installed in a Python is
run, and a table says which, in which version, and whether it works.

    python3 -m venv clients && clients/bin/pip install openai anthropic instructor 'lm_eval[api]' guidellm langchain-openai litellm
    tests/clients.py --binary target/release/asterism --python clients/bin/python

The model is tiny: what is asked for is not whether answers are right, but that each has the form that its client wants. Ends with 1 where
one that is installed does not work. Only loopback; stops what it started.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from clusters import Cluster, skipped

MODEL, DEADLINE_S = "asterism-7m", 240
HARBOUR = pathlib.Path(__file__).parent.parent / "examples/harbour.txt"
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}


def openai_client(api):
    import openai
    from pydantic import BaseModel

    client = openai.OpenAI(base_url=f"http://{api}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
    messages = [{"role": "system", "content": HARBOUR.read_text()}, {"role": "user", "content": "Which city, and how long?"}]

    class Trip(BaseModel):
        city: str
        days: int

    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Trip, max_tokens=80)
    assert isinstance(parsed.choices[0].message.parsed, Trip), parsed
    tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    for choice in ["required", {"type": "function", "function": {"name": "weather"}}]:
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, tool_choice=choice, max_tokens=90)
        [call] = answer.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ["Oslo", "Rome"], answer
        said = [{"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
                {"role": "tool", "tool_call_id": call.id, "content": "cold"}]
        assert client.chat.completions.create(model=MODEL, messages=messages + said, tools=tools, max_tokens=4).choices
    streamed = client.chat.completions.create(model=MODEL, messages=messages, n=3, max_tokens=4, temperature=1, stream=True)
    assert {chunk.choices[0].index for chunk in streamed} == {0, 1, 2}
    scored = client.completions.create(model=MODEL, prompt="The sea is blue.", echo=True, logprobs=1, max_tokens=0)
    assert scored.choices[0].logprobs.token_logprobs[0] is None and len(scored.choices[0].logprobs.tokens) > 2, scored
    answer = client.responses.parse(model=MODEL, input=messages, text_format=Trip, max_output_tokens=80)
    assert isinstance(answer.output_parsed, Trip), answer


def anthropic_client(api):
    import anthropic

    client = anthropic.Anthropic(base_url=f"http://{api}", api_key="none", max_retries=0, timeout=DEADLINE_S)
    asked = {"model": MODEL, "max_tokens": 90, "system": HARBOUR.read_text(), "messages": [{"role": "user", "content": "Which city?"}]}
    answer = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text
    tools = [{"name": "weather", "description": "Tells the weather.", "input_schema": WEATHER}]
    called = client.messages.create(**asked, tools=tools, tool_choice={"type": "any"})
    [call] = called.content
    assert call.type == "tool_use" and call.input["city"] in ["Oslo", "Rome"] and called.stop_reason == "tool_use", called
    with client.messages.stream(**asked, tools=tools, tool_choice={"type": "tool", "name": "weather"}) as stream:
        assert stream.get_final_message().content[0].input["days"] > 0
    # Twenty calls and what came of them: the session of an agent.
    turns = list(asked["messages"])
    for number in range(20):
        turns += [{"role": "assistant", "content": [{"type": "tool_use", "id": f"t{number}", "name": "weather",
                                                     "input": {"city": "Oslo", "days": 1 + number % 9}}]},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{number}", "content": "cold " * 8}]}]
    told = client.messages.create(**{**asked, "messages": turns, "max_tokens": 4}, tools=tools)
    assert told.usage.input_tokens + told.usage.cache_read_input_tokens > answer.usage.input_tokens + 200, told
    assert client.messages.count_tokens(model=MODEL, messages=turns).input_tokens > 200


def instructor(api):
    import instructor
    import openai
    from pydantic import BaseModel

    class Trip(BaseModel):
        city: str
        days: int

    client = openai.OpenAI(base_url=f"http://{api}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
    for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON]:
        # Any JSON is an object of another kind, with a model that knows no schema.
        extra = {"extra_body": {"guided_json": Trip.model_json_schema()}, "response_format": None} if mode == instructor.Mode.JSON else {}
        patched = instructor.from_openai(client, mode=mode)
        trip = patched.chat.completions.create(model=MODEL, response_model=Trip, max_retries=0, max_tokens=80,
                                               messages=[{"role": "user", "content": "Three days in Oslo."}], **extra)
        assert isinstance(trip, Trip), (mode, trip)


def lm_eval(api):
    folder = pathlib.Path(tempfile.mkdtemp())
    rows = [{"context": "The whale is white. The whale is", "choices": [" white", " seventeen"], "label": 0, "number": "7"}] * 4
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder}/rows.jsonl\ntest_split: test\n"
    (folder / "choose.yaml").write_text(f'task: choose\n{data}output_type: multiple_choice\ndoc_to_text: "{{{{context}}}}"\n'
                                        'doc_to_choice: choices\ndoc_to_target: label\ntarget_delimiter: ""\nmetric_list:\n  - metric: acc\n')
    (folder / "say.yaml").write_text(f'task: say\n{data}output_type: generate_until\ndoc_to_text: "{{{{context}}}}"\n'
                                     'doc_to_target: "{{number}}"\ngeneration_kwargs:\n  until: ["."]\n  max_gen_toks: 8\n'
                                     'metric_list:\n  - metric: exact_match\n')
    tokenizer = ("tokenizer_backend=none,tokenized_requests=False" if os.environ.get("NO_TOKENIZER")
                 else f"tokenizer={pathlib.Path(__file__).parent.parent.resolve()}/models/asterism-7m,tokenizer_backend=huggingface")
    for batch in [1, 4]:
        run = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", "choose,say", "--include_path", str(folder),
               "--batch_size", str(batch), "--model_args", f"model={MODEL},base_url=http://{api}/v1/completions,{tokenizer}",
               "--output_path", str(folder / "out")]
        ended = subprocess.run(run, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        assert ended.returncode == 0, ended.stderr[-2000:]
        assert "|choose" in ended.stdout and "|say" in ended.stdout, ended.stdout


def guidellm(api):
    model = f"{pathlib.Path(__file__).parent.parent.resolve()}/models/asterism-7m"
    for profile in ["throughput", "sweep"]:
        run = [str(pathlib.Path(sys.executable).parent / "guidellm"), "run", "--backend", f"kind=openai_http,target=http://{api}",
               "--profile", f"kind={profile}" + {"throughput": ",max_concurrency=4", "sweep": ",sweep_size=3"}[profile], "--constraint", "kind=max_requests,count=4", "--constraint", "kind=max_duration,seconds=5",
               "--tokenizer", f"kind=huggingface_auto,model={model}", "--disable-progress",
               "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=8"]
        ended = subprocess.run(run, capture_output=True, text=True, timeout=DEADLINE_S, cwd=tempfile.mkdtemp(),
                               env={**os.environ, "HF_HUB_OFFLINE": "1"})
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-2000:]


def langchain_openai(api):
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Trip(BaseModel):
        """A trip."""

        city: str
        days: int

    chat = ChatOpenAI(base_url=f"http://{api}/v1", api_key="none", model=MODEL, max_tokens=90, max_retries=0, timeout=DEADLINE_S)
    for method in ["json_schema", "function_calling"]:
        assert isinstance(chat.with_structured_output(Trip, method=method).invoke("Three days in Oslo."), Trip), method
    bound = chat.bind_tools([Trip], tool_choice="Trip")
    assert bound.invoke("Three days in Oslo.").tool_calls[0]["name"] == "Trip"


def litellm(api):
    import litellm

    asked = {"model": f"openai/{MODEL}", "api_base": f"http://{api}/v1", "api_key": "none", "max_tokens": 90, "timeout": DEADLINE_S,
             "messages": [{"role": "user", "content": "Three days in Oslo."}]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
    answer = litellm.completion(**asked, tools=tools, tool_choice="required")
    assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments)["days"] > 0, answer
    schema = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    answer = litellm.completion(**asked, response_format=schema)
    assert json.loads(answer.choices[0].message.content)["city"], answer


def schemas(api):
    """Many schemas of many kinds: every answer is valid, or refused by name."""
    import random

    import jsonschema
    import openai

    client = openai.OpenAI(base_url=f"http://{api}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
    draw, counts = random.Random(41), {"valid": 0, "refused": 0, "cut off": 0}

    def schema(depth):
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "length", "range"]
        kinds += ["object", "array", "anyOf", "ref"] if depth < 3 else []
        match draw.choice(kinds):
            case "enum": return {"enum": draw.sample(["a", "b\n\"", "é", 1, 2.5, None, True], 3)}
            case "const": return {"const": draw.choice(["x y", 7, [1, "a"], {"k": None}])}
            case "pattern": return {"type": "string", "pattern": draw.choice(["^[a-z]{2,4}$", "^\\d{4}-\\d{2}$", "^(yes|no)$", "(?=a)b"])}
            case "length": return {"type": "string", "minLength": 1, "maxLength": draw.choice([1, 5, 20])}
            case "range": return {"type": "integer", "minimum": draw.randint(-50, 0), "maximum": draw.randint(1, 500)}
            case "object":
                names = draw.sample(["name", "age", "größe", "a b", "id", "x"], draw.randint(0, 4))
                return {"type": "object", "properties": {name: schema(depth + 1) for name in names},
                        "required": names[:draw.randint(0, len(names))], "additionalProperties": draw.choice([False, {"type": "integer"}])}
            case "array": return {"type": "array", "items": schema(depth + 1), "minItems": draw.randint(0, 1), "maxItems": draw.randint(1, 3)}
            case "anyOf": return {"anyOf": [schema(depth + 1), schema(depth + 1)]}
            case "ref": return {"$ref": "#/$defs/node"}
            case kind: return {"type": kind}

    for number in range(int(os.environ.get("SCHEMAS", "60"))):
        asked = schema(0) | {"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                                                "required": ["next"], "additionalProperties": False}}}
        try:
            answer = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Write JSON."}], max_tokens=200, temperature=draw.choice([0, 1.2]), seed=number,
                response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": asked}})
        except openai.BadRequestError as error:
            assert error.param == "response_format" and "/" in str(error), error
            counts["refused"] += 1
            continue
        if answer.choices[0].finish_reason == "length":
            counts["cut off"] += 1
            continue
        jsonschema.validate(json.loads(answer.choices[0].message.content), asked)
        counts["valid"] += 1
    print(counts, file=sys.stderr)
    assert counts["cut off"] <= sum(counts.values()) / 20, counts


# What is run, by the package that it wants.
CLIENTS = {"openai": openai_client, "anthropic": anthropic_client, "instructor": instructor, "lm_eval": lm_eval, "guidellm": guidellm,
           "langchain-openai": langchain_openai, "litellm": litellm, "jsonschema": schemas}


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--python", type=pathlib.Path, default=pathlib.Path(sys.executable), help="one that has the packages")
    arguments.add_argument("--only", nargs="*", default=list(CLIENTS))
    given = arguments.parse_args()
    script, rows, failed = pathlib.Path(__file__).resolve(), [], False
    python = given.python if given.python.is_absolute() else pathlib.Path.cwd() / given.python
    with tempfile.TemporaryDirectory(prefix="asterism-clients-") as folder:
        folder = pathlib.Path(folder)
        with Cluster(given.binary, folder, "clients", api='listen = "127.0.0.1:0"\n') as cluster:
            api = cluster.record()["api"]
            for package in given.only:
                asked = [python, script, "--ask", package, api]
                ended = subprocess.run(asked, cwd=folder, capture_output=True, text=True, timeout=2 * DEADLINE_S)
                told = ended.stdout.strip().splitlines()
                if ended.returncode == 3:
                    rows.append((package, "not installed", ""))
                    continue
                failed |= ended.returncode != 0
                rows.append((package, told[-1] if told else "?", "yes" if ended.returncode == 0 else "no"))
                print(f"{package}: {'ok' if ended.returncode == 0 else 'FAILED'} {ended.stderr[-3000:] if ended.returncode else ended.stderr[-200:]}",
                      file=sys.stderr)
    print("| client | version | works |\n|---|---|---|")
    for row in rows:
        print("| {} | {} | {} |".format(*row))
    if all(works == "" for _, _, works in rows):
        skipped(f"none of {', '.join(CLIENTS)} is installed")
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        if version(sys.argv[2]) is None:
            sys.exit(3)
        print(version(sys.argv[2]))
        CLIENTS[sys.argv[2]](sys.argv[3])
    else:
        main()
