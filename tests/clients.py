#!/usr/bin/env python3
"""Clients and benchmarks of other servers, unchanged, against a cluster of the embedded model: each that is there is run, and a table
says which, in which version, and whether it works.

    tests/clients.py --binary target/release/asterism --install --write docs/openai.md
    tests/clients.py --binary target/release/asterism --install --only openai instructor ai
    tests/clients.py --binary target/release/asterism --python clients/bin/python --only litellm

`--install` makes environments of the versions below: of all clients, 8 GB, most of that torch. vLLM's benchmark needs no GPU: of what its
wheel requires, all is installed but what only a GPU uses. What is not there is said to be skipped. The model is tiny: what is asked for is
not whether answers are right, but that each has the form that its client wants. Ends with 1 where one that is there does not work. Only
loopback; stops what it started.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Literal

from clusters import Cluster, python_with, skipped

MODEL, DEADLINE_S = "asterism-7m", 240
HARBOUR = pathlib.Path(__file__).parent.parent / "examples/harbour.txt"
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}


def openai_client(api):
    import openai
    from pydantic import BaseModel, ConfigDict, Field

    client = openai.OpenAI(base_url=f"http://{api}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
    messages = [{"role": "system", "content": HARBOUR.read_text()}, {"role": "user", "content": "Which city, and how long?"}]

    class Trip(BaseModel):
        # What a model that knows no language says has an end, too.
        model_config = ConfigDict(extra="forbid")
        city: Literal["Oslo", "Rome"]
        days: int = Field(ge=0, le=99)

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
    # Two calls, unless the answer is to end behind the first.
    form = r"\n".join(r'<tool_call>\{"name": "weather", "arguments": \{"city": "CITY", "days": 1\}\}</tool_call>'.replace("CITY", city)
                      for city in ["Oslo", "Rome"])
    for alone, cities in [(False, ["Oslo", "Rome"]), (True, ["Oslo"])]:
        wanted = {**asked, "max_tokens": 400, "tools": tools, "tool_choice": {"type": "auto", "disable_parallel_tool_use": alone},
                  "extra_body": {"guided_regex": form}}
        told = client.messages.create(**wanted)
        assert [block.input["city"] for block in told.content] == cities and told.stop_reason == "tool_use", told
        with client.messages.stream(**wanted) as stream:
            assert [block.input for block in stream.get_final_message().content] == [block.input for block in told.content]
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
    from pydantic import BaseModel, ConfigDict, Field

    class Trip(BaseModel):
        # What a model that knows no language says has an end, too.
        model_config = ConfigDict(extra="forbid")
        city: Literal["Oslo", "Rome"]
        days: int = Field(ge=0, le=99)

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
    from pydantic import BaseModel, ConfigDict, Field

    class Trip(BaseModel):
        """A trip."""

        # What a model that knows no language says has an end, too.
        model_config = ConfigDict(extra="forbid")
        city: Literal["Oslo", "Rome"]
        days: int = Field(ge=0, le=99)

    chat = ChatOpenAI(base_url=f"http://{api}/v1", api_key="none", model=MODEL, max_tokens=90, max_retries=0, timeout=DEADLINE_S)
    for method in ["json_schema", "function_calling"]:
        assert isinstance(chat.with_structured_output(Trip, method=method).invoke("Three days in Oslo."), Trip), method
    bound = chat.bind_tools([Trip], tool_choice="Trip")
    assert bound.invoke("Three days in Oslo.").tool_calls[0]["name"] == "Trip"
    if version("langgraph") is None:
        return
    # An agent: its first answer is held to a call, the one behind the result is not.
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    asked = []

    def weather(city: str, days: int) -> str:
        """Tells the weather."""
        asked.append((city, days))
        return "cold"

    first, rest = chat.bind_tools([weather], tool_choice="weather"), chat.bind_tools([weather])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [(rest if asked else first).invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([weather]))
    graph.set_entry_point("model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls and not asked else "__end__")
    graph.add_edge("tools", "model")
    ended = graph.compile().invoke({"messages": [("user", "How is the weather in Oslo?")]})
    assert len(asked) == 1 and [message.type for message in ended["messages"]] == ["human", "ai", "tool", "ai"], ended


def llama_index(api):
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike
    from pydantic import BaseModel, ConfigDict, Field

    class Trip(BaseModel):
        """A trip."""

        # What a model that knows no language says has an end, too.
        model_config = ConfigDict(extra="forbid")
        city: Literal["Oslo", "Rome"]
        days: int = Field(ge=0, le=99)

    asked = {"model": MODEL, "api_base": f"http://{api}/v1", "api_key": "none", "max_tokens": 90, "timeout": DEADLINE_S, "max_retries": 0,
             "context_window": 8192}
    chat = OpenAILike(**asked, is_chat_model=True, is_function_calling_model=True)
    said = [ChatMessage(role="user", content="Three days in Oslo.")]
    whole = chat.chat(said).message.content
    assert "".join(piece.delta or "" for piece in chat.stream_chat(said)) == whole
    assert isinstance(OpenAILike(**asked, is_chat_model=False).complete("The sea is").text, str)
    trip = chat.as_structured_llm(Trip).chat(said).raw
    assert isinstance(trip, Trip), trip

    def weather(city: str, days: int) -> str:
        """Tells the weather."""
        return f"cold in {city} for {days} days"

    answer = chat.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="How is it in Oslo?", tool_required=True)
    [call] = chat.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather" and "city" in call.tool_kwargs, answer


def inspect_ai(api):
    os.environ |= {"ASTERISM_BASE_URL": f"http://{api}/v1", "ASTERISM_API_KEY": "none", "INSPECT_DISPLAY": "none"}
    from inspect_ai import Task, eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, ResponseSchema
    from inspect_ai.scorer import choice, includes
    from inspect_ai.solver import generate, multiple_choice, use_tools
    from inspect_ai.tool import ToolFunction, tool
    from inspect_ai.util import json_schema
    from pydantic import BaseModel, ConfigDict, Field

    class Trip(BaseModel):
        # What a model that knows no language says has an end, too.
        model_config = ConfigDict(extra="forbid")
        city: Literal["Oslo", "Rome"]
        days: int = Field(ge=0, le=99)

    @tool
    def weather():
        async def execute(city: str) -> str:
            """Tells the weather.

            Args:
                city: Where.
            """
            return "cold"

        return execute

    harbour = f"{HARBOUR.read_text()}\n\nWhat is the special magic number for harbour-lantern?"
    schema = GenerateConfig(response_schema=ResponseSchema(name="trip", json_schema=json_schema(Trip)))
    tasks = [
        Task(name="say", dataset=[Sample(input=harbour, target="4817263")], solver=generate(), scorer=includes()),
        Task(name="choose", dataset=[Sample(input="Which is a city?", choices=["Oslo", "seven"], target="A")], solver=multiple_choice(), scorer=choice()),
        Task(name="form", dataset=[Sample(input="Three days in Oslo.", target="days")], solver=generate(), scorer=includes(), config=schema),
        Task(name="call", dataset=[Sample(input="How is it in Oslo?", target="cold")],
             solver=[use_tools(weather(), tool_choice=ToolFunction(name="weather")), generate(tool_calls="single")], scorer=includes()),
    ]
    for log in evaluate(tasks, model=f"openai-api/asterism/{MODEL}", max_tokens=90, log_dir=tempfile.mkdtemp(), logprobs=True, top_logprobs=2):
        assert log.status == "success", (log.eval.task, log.error)
        [sample] = log.samples
        if log.eval.task in ["say", "form"]:
            assert sample.scores["includes"].value == "C", sample.output
        if log.eval.task == "call":
            assert any(message.role == "tool" for message in sample.messages), sample.messages


def vllm(api):
    """Its benchmark, from its wheel."""
    folder = pathlib.Path(tempfile.mkdtemp())
    run = [str(pathlib.Path(sys.executable).parent / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", f"http://{api}", "--model", MODEL,
           "--tokenizer", f"{pathlib.Path(__file__).parent.parent.resolve()}/models/asterism-7m", "--dataset-name", "random",
           "--random-input-len", "64", "--random-output-len", "8", "--num-prompts", "8", "--max-concurrency", "4", "--save-result",
           "--result-dir", str(folder)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-2000:]
    [result] = folder.glob("*.json")
    assert json.loads(result.read_text())["completed"] == 8, result.read_text()[:500]


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
    """Schemas of many kinds: every answer is valid, or the refusal names the part at fault."""
    import random
    from collections import Counter
    from concurrent.futures import ThreadPoolExecutor

    import jsonschema
    import openai

    from schemas import generated

    client = openai.OpenAI(base_url=f"http://{api}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
    # The package takes RFC 3339's times for none.
    formats = jsonschema.FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])
    clock = "([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
    for name, pattern in [("time", clock), ("date-time", f"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[tT ]{clock}")]:
        formats.checks(name)(lambda text, form=re.compile(pattern): not isinstance(text, str) or bool(form.fullmatch(text)))

    def answered(number):
        draw = random.Random(f"41 {number}")
        asked = generated(draw, number)
        try:
            answer = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Write JSON."}], max_tokens=300, temperature=draw.choice([0, 1.2]), seed=number,
                response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": asked}})
        except openai.BadRequestError as error:
            assert error.param == "response_format" and "/" in str(error), (asked, error)
            return "refused", str(error)
        except openai.APIError as error:
            raise AssertionError((asked, str(error))) from error
        content = answer.choices[0].message.content
        if answer.choices[0].finish_reason == "length":
            return "cut off", json.dumps(asked)[:200]
        try:
            jsonschema.validate(json.loads(content), asked, format_checker=formats)
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError((asked, content, str(error)[:300])) from error
        return "valid", ""

    count = int(os.environ.get("SCHEMAS", "300"))
    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(answered, range(count)))
    counts = Counter(end for end, _ in ended)
    if os.environ.get("SCHEMAS_SHOWN"):
        print(*(f"{number} {end} {why}" for number, (end, why) in enumerate(ended) if end != "valid"), sep="\n", file=sys.stderr)
    print(dict(counts), file=sys.stderr)
    # What needs more than the room that there is, such as a text of 100,000 letters, is cut off.
    assert counts["valid"] >= 0.75 * count and counts["cut off"] <= 0.08 * count, counts


def promptfoo(api, node):
    """Through a schema, a stream of tokens' probabilities and a list of prompts."""
    folder = pathlib.Path(tempfile.mkdtemp())
    schema = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": WEATHER}}
    config = {
        "prompts": ["{{city}}, three days.", "How is {{city}}?"],
        "providers": [{"id": f"openai:chat:{MODEL}", "config": {"apiBaseUrl": f"http://{api}/v1", "apiKey": "none", "max_tokens": 90,
                                                               "temperature": 0, "response_format": schema}}],
        "tests": [{"vars": {"city": city}, "assert": [{"type": "is-json", "value": WEATHER}, {"type": "latency", "threshold": 60000}]}
                  for city in ["Oslo", "Rome"]],
    }
    (folder / "promptfooconfig.json").write_text(json.dumps(config))
    quiet = {name: "1" for name in ["PROMPTFOO_DISABLE_TELEMETRY", "PROMPTFOO_DISABLE_UPDATE", "PROMPTFOO_DISABLE_REMOTE_GENERATION"]}
    run = [node / "node_modules/.bin/promptfoo", "eval", "-c", folder / "promptfooconfig.json", "-o", folder / "out.json", "--no-cache",
           "--no-progress-bar"]
    ended = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S,
                           env={**os.environ, **quiet, "PROMPTFOO_CONFIG_DIR": str(folder)})
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-2000:]
    stats = json.loads((folder / "out.json").read_text())["results"]["stats"]
    assert (stats["successes"], stats["failures"], stats["errors"]) == (4, 0, 0), stats


def ai_sdk(api, node):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "node_modules").symlink_to((node / "node_modules").resolve())
    shutil.copy(pathlib.Path(__file__).parent / "clients.mjs", folder)
    ended = subprocess.run(["node", "clients.mjs", f"http://{api}", MODEL], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-2000:]


# What is run, by the package that it wants: of PyPI, and of npm.
CLIENTS = {"openai": openai_client, "anthropic": anthropic_client, "instructor": instructor, "lm_eval": lm_eval, "guidellm": guidellm,
           "langchain-openai": langchain_openai, "litellm": litellm, "llama-index-llms-openai-like": llama_index, "inspect-ai": inspect_ai,
           "vllm": vllm, "jsonschema": schemas}
NODE_CLIENTS = {"ai": ai_sdk, "promptfoo": promptfoo}
# What is installed, by environment.
PACKAGES = [
    ["openai==3.3.0", "anthropic==2.14.0", "instructor==1.17.0", "langchain-openai==1.7.4", "langgraph==1.2.24", "litellm==1.110.2",
     "jsonschema==4.26.0"],
    ["llama-index-llms-openai-like==0.8.1"],
    ["inspect-ai==0.3.285", "openai==3.57.0"],
    ["lm_eval[api]==0.4.13", "transformers==4.57.6"],
    ["guidellm==0.8.1"],
    ["vllm==0.33.0"],
]
# Of vLLM's requirements, those that only a GPU uses.
FOR_GPUS = re.compile("PyNvVideoCodec|apache-tvm|fastsafetensors|flashinfer|humming|instanttensor|nvidia|nvtx|quack|tilelang|tokenspeed|torchaudio|torchcodec")
NODE_PACKAGES = {"ai": ["ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7"], "promptfoo": ["promptfoo@0.121.20"]}
MARKS = ("<!-- clients: written by tests/clients.py -->\n", "<!-- end of clients -->")


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def client_of(package):
    return re.split(r"[\[=]", package)[0]


def vllm_without_gpu(install, python, packages):
    """Its wheel, and of what that requires all that its benchmark needs."""
    got = install("--no-deps", *packages)
    if got.returncode:
        return got
    listed = "import importlib.metadata as metadata; print(*metadata.requires('vllm'), sep='\\n')"
    required = subprocess.run([python, "-c", listed], check=True, capture_output=True, text=True).stdout.splitlines()
    return install(*(line for line in required if "extra ==" not in line and not FOR_GPUS.match(line)))


def installed(folder, only):
    """Pythons and a folder of node_modules with the clients in `only`."""
    def skip(why):
        skipped(f"no client was run: {why}")

    # It installs in seconds what pip takes minutes for.
    uv = python_with(["uv==0.13.9"], folder, skip).parent / "uv"
    pythons = []
    of_clients = [packages for packages in PACKAGES if any(client_of(package) in only for package in packages)]
    for number, packages in enumerate(of_clients):
        python = folder / f"clients-{number}/bin/python"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, python.parent.parent], check=True)

        def install(*words):
            return subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *words], capture_output=True, text=True)

        got = vllm_without_gpu(install, python, packages) if client_of(packages[0]) == "vllm" else install(*packages)
        if got.returncode:
            skip(f"PyPI does not give {' and '.join(packages)}: {got.stderr[-300:]}")
        pythons.append(python)
    wanted = [package for client, packages in NODE_PACKAGES.items() if client in only for package in packages]
    if not wanted:
        return pythons, []
    node = folder / "node"
    node.mkdir()
    (node / "package.json").write_text("{}")
    if shutil.which("npm") is None or subprocess.run(["npm", "install", "--silent", *wanted], cwd=node, capture_output=True).returncode:
        print(f"SKIPPED: no npm here that gives {' and '.join(wanted)}", file=sys.stderr)
        return pythons, []
    return pythons, [node]


def node_version(node, package):
    described = node / "node_modules" / package / "package.json"
    return json.loads(described.read_text())["version"] if described.exists() else None


def run_all(given, api, folder, pythons, nodes):
    """Rows of client, version, date and whether it works, of those that are there."""
    script, rows = pathlib.Path(__file__).resolve(), []
    asked = [(package, [python, script, "--ask", package, api]) for python in pythons for package in CLIENTS]
    asked += [(package, [sys.executable, script, "--ask-node", package, api, node]) for node in nodes for package in NODE_CLIENTS]
    for package, words in asked:
        if package not in given.only or any(row[0] == package for row in rows):
            continue
        began = time.monotonic()
        ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=4 * DEADLINE_S)
        if ended.returncode == 3:
            continue
        told = ended.stdout.strip().splitlines()
        rows.append((package, told[0] if told else "?", datetime.date.today().isoformat(), "yes" if ended.returncode == 0 else "no"))
        state = "FAILED" if ended.returncode else "ok"
        print(f"{package}: {state} {time.monotonic() - began:.0f} s {ended.stderr[-3000:] if ended.returncode else ended.stderr[-200:]}",
              file=sys.stderr, flush=True)
    return rows


def table(rows):
    return "| client | version | date | works |\n|---|---|---|---|\n" + "".join("| {} | {} | {} | {} |\n".format(*row) for row in rows)


def write(page, rows):
    """Puts rows into a page, in place of those of the same clients."""
    before, rest = page.read_text().split(MARKS[0])
    known, after = rest.split(MARKS[1])
    kept = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in known.splitlines()[2:]]
    kept = {row[0]: row for row in kept} | {row[0]: row for row in rows}
    order = [*CLIENTS, *NODE_CLIENTS]
    page.write_text(before + MARKS[0] + table(sorted(kept.values(), key=lambda row: order.index(row[0]))) + MARKS[1] + after)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--install", action="store_true", help="from PyPI and npm")
    arguments.add_argument("--python", type=pathlib.Path, nargs="*", default=[], help="some that have the packages")
    arguments.add_argument("--node", type=pathlib.Path, nargs="*", default=[], help="folders with node_modules")
    arguments.add_argument("--only", nargs="*", default=[*CLIENTS, *NODE_CLIENTS])
    arguments.add_argument("--write", type=pathlib.Path, help="the page with the table")
    given = arguments.parse_args()
    # Not resolved: a Python of an environment is a link to another.
    pythons, nodes = [pathlib.Path.cwd() / python for python in given.python], [node.resolve() for node in given.node]
    with tempfile.TemporaryDirectory(prefix="asterism-clients-") as folder:
        folder = pathlib.Path(folder)
        if given.install:
            more = installed(folder, given.only)
            pythons, nodes = pythons + more[0], nodes + more[1]
        with Cluster(given.binary, folder, "clients", api='listen = "127.0.0.1:0"\n') as cluster:
            rows = run_all(given, cluster.record()["api"], folder, pythons, nodes)
    print(table(rows), end="")
    missing = [package for package in given.only if all(package != row[0] for row in rows)]
    if not rows:
        skipped(f"none of {', '.join(missing)} is installed")
    if missing:
        print(f"SKIPPED: {', '.join(missing)}: not installed", file=sys.stderr)
    if given.write:
        write(given.write, rows)
    sys.exit(any(row[-1] == "no" for row in rows))


if __name__ == "__main__":
    match sys.argv[1:2]:
        case ["--ask"]:
            if version(sys.argv[2]) is None:
                sys.exit(3)
            print(version(sys.argv[2]), flush=True)
            CLIENTS[sys.argv[2]](sys.argv[3])
        case ["--ask-node"]:
            found = node_version(pathlib.Path(sys.argv[4]), sys.argv[2])
            if found is None:
                sys.exit(3)
            print(found, flush=True)
            NODE_CLIENTS[sys.argv[2]](sys.argv[3], pathlib.Path(sys.argv[4]))
        case _:
            main()
