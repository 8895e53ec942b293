#!/usr/bin/env python3
"""OpenAI's own Python client, and LangChain's, against a cluster: models, completions, chat, responses, streams, batches,
errors, keys, cancellation.

    tests/openai_client.py --binary target/release/asterism

Makes a virtual environment for the packages. Ends with 0 and a loud line where they cannot be had. Only loopback; stops what it started.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from clusters import Cluster, python_with, skipped

PACKAGES = ["openai==2.54.0", "langchain-openai==1.7.3"]
# SHA-256 of "moon".
KEYS = "alice 9e78b43ea00edcac8299e0cc8df7f6f913078171335f733a21d5d911b6999132 8\n"
HARBOUR = pathlib.Path(__file__).parent.parent / "examples/harbour.txt"
QUESTION, FACT = "What is the special magic number for harbour-lantern?", "4817263"
DEADLINE_S = 60


def skip(why):
    skipped(f"OpenAI's client was not run: {why}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="asterism-openai-") as folder:
        folder = pathlib.Path(folder)
        python = python_with(PACKAGES, folder, skip)
        cluster = Cluster(given.binary, folder, "harbour", api=f'listen = "127.0.0.1:0"\napi_key_file = "{folder}/keys"\n')
        cluster.secret("keys", KEYS)
        with cluster:
            cluster.run("session", "create", "--context", HARBOUR.resolve(), "--name", "harbour")
            record = cluster.record()
            here = [python, pathlib.Path(__file__).resolve(), "--ask", record["api"], record["admin"]]
            ended = subprocess.run(here, cwd=folder, timeout=400)
    sys.exit(ended.returncode)


def ask(api, admin):
    """What runs in the virtual environment."""
    import openai

    client = openai.OpenAI(base_url=f"http://{api}/v1", api_key="moon", max_retries=0, timeout=DEADLINE_S)
    document = HARBOUR.read_text()
    messages = [{"role": "system", "content": document}, {"role": "user", "content": QUESTION}]
    for test in [models, whole, streamed, completions, logprobs, sessions, responses, tools, structured, background, batch, errors, keys]:
        test(openai, client, api, messages)
        print(f"ok: {test.__name__}")
    cancelled(client, admin, messages)
    print("ok: cancelled")
    langchain(api, messages)
    print("ok: langchain")


def models(openai, client, api, messages):
    listed = client.models.list().data
    assert [model.id for model in listed] == ["asterism-7m"], listed
    assert client.models.retrieve("asterism-7m").context_length == 16384


def whole(openai, client, api, messages):
    answer = client.chat.completions.create(model="asterism-7m", messages=messages, max_completion_tokens=32, user="me", seed=7)
    choice, usage = answer.choices[0], answer.usage
    assert FACT in choice.message.content and choice.message.role == "assistant", answer
    assert choice.finish_reason in ["stop", "length"], answer
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.prompt_tokens > 1000, usage
    assert usage.prompt_tokens_details.cached_tokens is not None, usage
    short = client.chat.completions.create(model="asterism-7m", messages=messages, max_tokens=3)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3), short
    # One message with the document and the question behind a blank line is the same.
    one = [{"role": "user", "content": [{"type": "text", "text": messages[0]["content"] + "\n\n" + QUESTION}]}]
    same = client.chat.completions.create(model="asterism-7m", messages=one, max_completion_tokens=32)
    assert same.choices[0].message.content == choice.message.content, (same, answer)
    stopped = client.chat.completions.create(model="asterism-7m", messages=messages, max_completion_tokens=32, stop=[FACT])
    assert FACT not in stopped.choices[0].message.content and stopped.choices[0].finish_reason == "stop", stopped


def streamed(openai, client, api, messages):
    expected = client.chat.completions.create(model="asterism-7m", messages=messages, max_tokens=32)
    chunks = list(client.chat.completions.create(model="asterism-7m", messages=messages, max_tokens=32, stream=True,
                                                 stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected.choices[0].message.content, (text, expected)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == expected.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == expected.usage.completion_tokens and len({chunk.id for chunk in chunks}) == 1
    # A document that nobody has encoded yet, with progress.
    fresh = [{"role": "system", "content": "The whale is white. " * 1200}, {"role": "user", "content": "Which colour?"}]
    told = list(client.chat.completions.create(model="asterism-7m", messages=fresh, max_tokens=2, stream=True,
                                               extra_body={"return_progress": True}))
    progress = [chunk.prompt_progress for chunk in told if getattr(chunk, "prompt_progress", None)]
    assert progress and all(seen["processed"] <= seen["total"] and seen["hosts"] for seen in progress), told


def completions(openai, client, api, messages):
    document = messages[0]["content"]
    text = client.completions.create(model="asterism-7m", prompt=document + "\n\n" + QUESTION, max_tokens=32)
    assert FACT in text.choices[0].text, text
    apart = client.completions.create(model="asterism-7m", prompt=QUESTION, max_tokens=32, extra_body={"context": document})
    assert apart.choices[0].text == text.choices[0].text, (apart, text)
    chunks = client.completions.create(model="asterism-7m", prompt=[document + "\n\n" + QUESTION], max_tokens=32, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text.choices[0].text
    ids = client.completions.create(model="asterism-7m", prompt=[5, 6, 7, 8], max_tokens=2,
                                    extra_body={"attention": {"method": "dense"}})
    assert ids.usage.prompt_tokens == 4, ids


def logprobs(openai, client, api, messages):
    asked = {"model": "asterism-7m", "messages": messages, "max_tokens": 16, "logprobs": True, "top_logprobs": 2}
    answer = client.chat.completions.create(**asked)
    told = answer.choices[0].logprobs.content
    assert len(told) == answer.usage.completion_tokens and bytes(sum((token.bytes for token in told), [])).decode() == \
        answer.choices[0].message.content, answer
    assert all(token.logprob <= 0 and token.top_logprobs[0].token == token.token for token in told), told
    chunks = client.chat.completions.create(stream=True, **asked)
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert [token.logprob for token in streamed] == [token.logprob for token in told], (streamed, told)
    text = client.completions.create(model="asterism-7m", prompt=messages[0]["content"] + "\n\n" + QUESTION, max_tokens=4,
                                     logprobs=5)
    assert len(text.choices[0].logprobs.tokens) == 4 and len(text.choices[0].logprobs.top_logprobs[0]) == 5, text
    for beyond in [{"top_logprobs": 21}, {"logprobs": False}]:
        try:
            client.chat.completions.create(**{**asked, **beyond})
        except openai.BadRequestError as error:
            assert error.param == "top_logprobs", error
        else:
            raise AssertionError(f"{beyond} was taken")


def sessions(openai, client, api, messages):
    answer = client.chat.completions.create(model="asterism-7m", messages=messages[1:], max_tokens=32,
                                            extra_body={"session_id": "harbour"})
    assert FACT in answer.choices[0].message.content and answer.usage.prompt_tokens_details.cached_tokens > 0, answer


def responses(openai, client, api, messages):
    asked = {"model": "asterism-7m", "instructions": messages[0]["content"], "input": QUESTION, "max_output_tokens": 32}
    answer = client.responses.create(**asked)
    assert FACT in answer.output_text and answer.status in ["completed", "incomplete"], answer
    assert answer.usage.input_tokens > 1000 and answer.usage.output_tokens <= 32 and answer.output[0].role == "assistant", answer
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    events = list(client.responses.create(stream=True, **asked))
    assert events[0].type == "response.created" and events[-1].type == f"response.{answer.status}", events
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers)), numbers
    listed = client.responses.create(model="asterism-7m", max_output_tokens=32, input=messages)
    assert listed.output_text == answer.output_text, listed
    with client.responses.stream(**asked) as stream:
        assert stream.until_done().get_final_response().output_text == answer.output_text


def tools(openai, client, api, messages):
    city = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}
    weather = {"type": "function", "name": "weather", "description": "Tells the weather.", "parameters": city}
    asked = {"model": "asterism-7m", "input": "How is the weather in Oslo?", "tools": [weather], "tool_choice": "required",
             "max_output_tokens": 64}
    answer = client.responses.create(**asked)
    [call] = answer.output
    assert (call.type, call.name, call.status, answer.output_text) == ("function_call", "weather", "completed", ""), answer
    assert json.loads(call.arguments)["city"] in ["Oslo", "Rome"] and answer.tools[0].name == "weather", answer
    assert client.responses.retrieve(answer.id).output == answer.output
    events = list(client.responses.create(stream=True, **asked))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == ["created", "in_progress", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
                     "output_item.done", "completed"], kinds
    assert events[3].delta == events[4].arguments == events[5].item.arguments == call.arguments, events
    with client.responses.stream(**asked) as stream:
        assert stream.until_done().get_final_response().output[0].arguments == call.arguments
    named = client.responses.create(**asked | {"tool_choice": {"type": "function", "name": "weather"}})
    assert json.loads(named.output[0].arguments)["city"] in ["Oslo", "Rome"], named
    one_call(client, weather, asked)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "cold"}
    said = {"role": "user", "content": asked["input"]}
    behind = client.responses.create(model="asterism-7m", previous_response_id=answer.id, input=[output], max_output_tokens=8)
    apart = client.responses.create(model="asterism-7m", input=[said, call.model_dump(), output], max_output_tokens=8)
    assert behind.output_text == apart.output_text and behind.usage.input_tokens == apart.usage.input_tokens, (behind, apart)
    for fields, param in [({"tools": [{"type": "web_search"}]}, "tools"), ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
                          ({"tool_choice": {"type": "function", "name": "time"}}, "tool_choice"),
                          ({"input": [output | {"call_id": None}]}, "input"),
                          ({"tools": [weather | {"parameters": {"type": "nothing"}}]}, "tools")]:
        try:
            client.responses.create(**asked | fields)
        except openai.BadRequestError as error:
            assert error.param == param, (fields, error.body)
        else:
            raise AssertionError(f"{fields} was taken")


def one_call(client, weather, asked):
    """An answer of two calls, unless no other is wanted behind the first: then it ends there."""
    form = r"\n".join(r'<tool_call>\{"name": "weather", "arguments": \{"city": "CITY"\}\}</tool_call>'.replace("CITY", city) for city in ["Oslo", "Rome"])
    said = {"model": "asterism-7m", "messages": [{"role": "user", "content": asked["input"]}], "max_tokens": 400,
            "tools": [{"type": "function", "function": {name: weather[name] for name in ["name", "parameters"]}}]}
    taken = {}
    for parallel, cities in [(None, ["Oslo", "Rome"]), (True, ["Oslo", "Rome"]), (False, ["Oslo"])]:
        wanted = {"extra_body": {"guided_regex": form}} | ({} if parallel is None else {"parallel_tool_calls": parallel})
        answer = client.chat.completions.create(**said, **wanted)
        called = [json.loads(call.function.arguments)["city"] for call in answer.choices[0].message.tool_calls]
        assert (called, answer.choices[0].finish_reason) == (cities, "tool_calls"), answer
        taken[parallel] = answer.usage.completion_tokens
        chunks = list(client.chat.completions.create(**said, **wanted, stream=True))
        streamed = [call.function.name for chunk in chunks for call in chunk.choices[0].delta.tool_calls or [] if call.function.name]
        assert len(streamed) == len(cities) and chunks[-1].choices[0].finish_reason == "tool_calls", chunks
        responded = client.responses.create(**asked | {"tool_choice": "auto", "max_output_tokens": 400}, **wanted)
        assert [json.loads(call.arguments)["city"] for call in responded.output] == cities, responded
        assert responded.parallel_tool_calls is (parallel is not False), responded
        again = client.responses.retrieve(responded.id)
        assert (again.output, again.parallel_tool_calls) == (responded.output, responded.parallel_tool_calls), again
        *_, last = client.responses.create(**asked | {"tool_choice": "auto", "max_output_tokens": 400}, **wanted, stream=True)
        assert len(last.response.output) == len(cities), last
    assert taken[True] == taken[None] and 2 * taken[False] < taken[True] + 2, taken


def structured(openai, client, api, messages):
    schema = {"type": "object", "properties": {"depth": {"type": "integer"}}, "required": ["depth"], "additionalProperties": False}
    asked = {"model": "asterism-7m", "input": "How deep is it?", "max_output_tokens": 64}
    form = {"type": "json_schema", "name": "sea", "schema": schema, "strict": True}
    answer = client.responses.create(text={"format": form}, **asked)
    assert isinstance(json.loads(answer.output_text)["depth"], int) and answer.text.format.name == "sea", answer
    for wrong in [form | {"schema": {"type": "nothing"}}, {"type": "grammar"}]:
        try:
            client.responses.create(text={"format": wrong}, **asked)
        except openai.BadRequestError as error:
            assert error.param == "text.format", error.body
        else:
            raise AssertionError(f"{wrong} was taken")


def background(openai, client, api, messages):
    asked = {"model": "asterism-7m", "instructions": messages[0]["content"], "input": QUESTION, "background": True}
    made = client.responses.create(max_output_tokens=32, **asked)
    assert made.status in ["queued", "in_progress"] and made.background, made
    until = time.monotonic() + DEADLINE_S
    while (made := client.responses.retrieve(made.id)).status in ["queued", "in_progress"]:
        assert time.monotonic() < until, made
    assert FACT in made.output_text, made
    # A stream that breaks off after three pieces goes on from there.
    stream, heard, last = client.responses.create(stream=True, max_output_tokens=200, extra_body={"ignore_eos": True}, **asked), [], None
    for event in stream:
        last = event.sequence_number
        name = event.response.id if event.type == "response.created" else name
        if event.type == "response.output_text.delta":
            heard.append(event.delta)
        if len(heard) == 3:
            break
    stream.close()
    for event in client.responses.retrieve(name, stream=True, starting_after=last):
        assert event.sequence_number > last, event
        if event.type == "response.output_text.delta":
            heard.append(event.delta)
    whole = client.responses.retrieve(name)
    assert "".join(heard) == whole.output_text and whole.usage.output_tokens == 200 and whole.status == "incomplete", (heard, whole)
    long = client.responses.create(max_output_tokens=8000, extra_body={"ignore_eos": True}, **asked)
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.cancel(long.id).status == "cancelled", "again"


def batch(openai, client, api, messages):
    line = lambda name, body: json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
    about = lambda question: {"model": "asterism-7m", "max_tokens": 32, "messages": messages[:1] + [{"role": "user", "content": question}]}
    questions = {f"q{number}": f"{QUESTION} Answer {number}." for number in range(6)} | {"the-fact": QUESTION}
    lines = "".join(line(name, about(question)) for name, question in questions.items()) + line("wrong", about(QUESTION) | {"n": 2})
    file = client.files.create(file=("questions.jsonl", lines.encode()), purpose="batch")
    assert client.files.retrieve(file.id).filename == "questions.jsonl" and client.files.content(file.id).text == lines
    assert file.id in [listed.id for listed in client.files.list()]
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"for": "us"})
    until = time.monotonic() + DEADLINE_S
    while made.status == "in_progress":
        assert time.monotonic() < until, made
        made = client.batches.retrieve(made.id)
    counts = made.request_counts
    assert (made.status, counts.total, counts.completed, counts.failed, made.metadata) == ("completed", 8, 7, 1, {"for": "us"}), made
    answers = [json.loads(answer) for answer in client.files.content(made.output_file_id).text.splitlines()]
    assert [answer["custom_id"] for answer in answers] == list(questions), answers
    bodies = {answer["custom_id"]: answer["response"]["body"] for answer in answers}
    assert FACT in bodies["the-fact"]["choices"][0]["message"]["content"], bodies["the-fact"]
    assert all(body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for body in bodies.values()), "encoded once"
    [wrong] = [json.loads(answer) for answer in client.files.content(made.error_file_id).text.splitlines()]
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("wrong", 400), wrong
    assert made.id in [listed.id for listed in client.batches.list()]
    assert client.files.delete(file.id).deleted
    long = "".join(line(f"l{number}", about(QUESTION) | {"max_tokens": 8000, "ignore_eos": True}) for number in range(3))
    file = client.files.create(file=("long.jsonl", long.encode()), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    made = client.batches.cancel(made.id)
    while made.status == "cancelling":
        assert time.monotonic() < until, made
        made = client.batches.retrieve(made.id)
    assert made.status == "cancelled" and made.request_counts.completed == 0, made


def errors(openai, client, api, messages):
    def refused(kind, code, param, **fields):
        try:
            client.chat.completions.create(**{"model": "asterism-7m", "messages": messages, "max_tokens": 2, **fields})
        except kind as error:
            assert (error.code, error.param) == (code, param) and error.request_id, (error.code, error.param, error.body)
            return str(error)
        raise AssertionError(f"{fields} was taken")

    refused(openai.NotFoundError, "model_not_found", "model", model="gpt-4")
    refused(openai.NotFoundError, "session_not_found", "session_id", messages=messages[1:], extra_body={"session_id": "none"})
    refused(openai.BadRequestError, "invalid_request", "n", n=17)
    refused(openai.BadRequestError, "sampling", "presence_penalty", presence_penalty=3)
    refused(openai.BadRequestError, "unsupported_parameter", "tools",
            tools=[{"type": "web_search"}])
    refused(openai.BadRequestError, "unknown_parameter", "whale", extra_body={"whale": 3})
    refused(openai.BadRequestError, "sampling", "temperature", temperature=-1)
    refused(openai.BadRequestError, "invalid_request", "messages", messages=[])
    try:
        client.responses.retrieve("resp_" + "0" * 32)
    except openai.NotFoundError as error:
        assert error.code == "response_not_found", error.body
    else:
        raise AssertionError("a response that is not there")
    said = refused(openai.BadRequestError, "context_too_long", "messages", messages=[{"role": "user", "content": "word " * 20000}])
    assert "maximum context length is 16384 tokens" in said, said
    said = refused(openai.BadRequestError, "context_too_long", "messages", max_tokens=16000)
    assert "maximum context length is 16384 tokens" in said and "you requested 17" in said, said


def keys(openai, client, api, messages):
    for key in ["sun", "9e78b43ea00edcac8299e0cc8df7f6f913078171335f733a21d5d911b6999132"]:
        try:
            openai.OpenAI(base_url=f"http://{api}/v1", api_key=key, max_retries=0).models.list()
        except openai.AuthenticationError as error:
            assert error.code == "invalid_api_key", error.body
        else:
            raise AssertionError(f"{key} was let in")


def cancelled(client, admin, messages):
    def jobs():
        with urllib.request.urlopen(f"http://{admin}/api/v1/jobs?limit=1") as answer:
            return json.load(answer)

    def wait_for(state, what):
        until = time.monotonic() + DEADLINE_S
        while (newest := jobs()[0])["state"] != state:
            assert time.monotonic() < until, f"{what}: {newest['state']}"
        return newest

    long = {"model": "asterism-7m", "messages": messages, "max_tokens": 8000, "extra_body": {"ignore_eos": True}}
    stream = client.chat.completions.create(stream=True, **long)
    next(iter(stream))
    stream.close()
    wait_for("CANCELLED", "a stream was closed")
    try:
        client.with_options(timeout=1).chat.completions.create(**long)
    except Exception as error:
        assert type(error).__name__ == "APITimeoutError", error
    ended = wait_for("CANCELLED", "a client gave up")
    assert ended["generated_tokens"] < 8000, ended


def langchain(api, messages):
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"http://{api}/v1", api_key="moon", model="asterism-7m", max_tokens=32, max_retries=0, timeout=DEADLINE_S)
    asked = [("system", messages[0]["content"]), ("human", QUESTION)]
    answer = chat.invoke(asked)
    assert FACT in answer.content and answer.usage_metadata["input_tokens"] > 1000, answer
    assert "".join(chunk.content for chunk in chat.stream(asked)) == answer.content
    weather = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"], "additionalProperties": False}}
    for by_responses in [False, True]:
        caller = ChatOpenAI(base_url=f"http://{api}/v1", api_key="moon", model="asterism-7m", max_tokens=64, max_retries=0,
                            timeout=DEADLINE_S, use_responses_api=by_responses).bind_tools([weather], tool_choice="any")
        [call] = caller.invoke("How is the weather in Oslo?").tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"}), call
        chunks = list(caller.stream("How is the weather in Oslo?"))
        streamed = sum(chunks[1:], chunks[0])
        assert [(call["name"], call["args"]) for call in streamed.tool_calls] == [("weather", {"city": "Oslo"})], streamed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        ask(*sys.argv[2:4])
    else:
        main()
