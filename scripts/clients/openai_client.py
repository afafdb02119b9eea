"""The `openai` package against a server of the built-in model (SNUG_URL) and one of a script (SNUG_SCRIPT_URL)."""

import json
import os
from typing import Literal

import openai
from pydantic import BaseModel

from checks import check, first_whole, lines, raises, run

KEY = os.environ["SNUG_API_KEY"]
model = openai.OpenAI(base_url=os.environ["SNUG_URL"] + "/v1", api_key=KEY, max_retries=0)
script = openai.OpenAI(base_url=os.environ["SNUG_SCRIPT_URL"] + "/v1", api_key=KEY, max_retries=0)
NAME = model.models.list().data[0].id
HELLO = [{"role": "user", "content": "Tell me about a lighthouse."}]
CALLS = [{"role": "user", "content": "Say the calls"}]
REASON = [{"role": "user", "content": "Say a reason"}]
# The built-in model is a toy: left to itself it would reason, or call, until its context is full.
BRIEF = {"reasoning_effort": "none", "parallel_tool_calls": False}
SAME = {"model": NAME, "messages": HELLO}
FIXED = {**SAME, "seed": 7, "temperature": 0.8, "max_tokens": 12}

WEATHER = {"type": "object", "additionalProperties": False, "required": ["city", "unit"],
           "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"type": "string", "enum": ["c", "f"]}}}
TIME = {"type": "object", "additionalProperties": False, "properties": {}}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters, "strict": True}}


TOOLS = [tool("get_weather", WEATHER), tool("get_time", TIME)]
FLAT = [{"type": "function", **t["function"]} for t in TOOLS]


def ended(**kw):
    """An answer that did not run into its limit; it remembers its seed."""
    def ask(seed):
        a = model.chat.completions.create(**SAME, **BRIEF, seed=seed, **kw)
        a.seed = seed
        return a if a.choices[0].finish_reason != "length" else None
    return first_whole(ask)


def calls_of(answer):
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    assert choice.message.tool_calls, choice
    for c in choice.message.tool_calls:
        args = json.loads(c.function.arguments)
        if c.function.name == "get_weather":
            assert set(args) == {"city", "unit"} and args["unit"] in ("c", "f"), args
        else:
            assert c.function.name == "get_time" and args == {}, c
    return choice.message.tool_calls


@check
def models_say_their_context():
    m = model.models.list().data[0]
    assert m.context_length == 2048 and m.owned_by == "snug", m
    assert model.models.retrieve(NAME).id == NAME


@check
def a_plain_answer_has_text_and_usage():
    a = model.chat.completions.create(**FIXED)
    assert a.choices[0].message.content and a.choices[0].finish_reason == "length", a
    assert a.usage.completion_tokens == 12 and a.usage.total_tokens == a.usage.prompt_tokens + 12, a.usage
    assert a.usage.prompt_tokens_details.cached_tokens >= 0


@check
def a_stream_adds_up_to_the_plain_answer():
    whole = model.chat.completions.create(**FIXED)
    text, usage, ended = "", None, None
    for chunk in model.chat.completions.create(**FIXED, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for c in chunk.choices:
            text += c.delta.content or ""
            ended = c.finish_reason or ended
    assert text == whole.choices[0].message.content, (text, whole)
    assert ended == "length" and usage.completion_tokens == 12 and usage.prompt_tokens == whole.usage.prompt_tokens


@check
def several_answers_and_their_logprobs():
    a = model.chat.completions.create(**FIXED, n=2, logprobs=True, top_logprobs=3)
    assert [c.index for c in a.choices] == [0, 1]
    for c in a.choices:
        assert len(c.logprobs.content) == 12 and all(len(t.top_logprobs) == 3 for t in c.logprobs.content), c
        assert all(t.logprob <= 0 for t in c.logprobs.content)


@check
def a_stop_string_is_cut_off():
    whole = model.chat.completions.create(**FIXED).choices[0].message.content
    stop = whole[len(whole) // 2:][:3]
    a = model.chat.completions.create(**FIXED, stop=[stop]).choices[0]
    assert a.finish_reason == "stop" and a.message.content == whole[:whole.index(stop)], (a, whole, stop)


@check
def text_is_completed_and_a_limit_of_nothing_is_nothing():
    a = model.completions.create(model=NAME, prompt="Once upon a time", max_tokens=5, temperature=0)
    assert a.usage.completion_tokens == 5 and a.choices[0].text
    b = model.completions.create(model=NAME, prompt="Once upon", max_tokens=0, echo=True)
    assert b.choices[0].text == "Once upon" and b.usage.completion_tokens == 0, b


@check
def required_tools_are_called():
    calls_of(ended(tools=TOOLS, tool_choice="required", max_tokens=200))


@check
def a_named_tool_is_called_and_only_once():
    a = ended(tools=TOOLS, max_tokens=200, tool_choice={"type": "function", "function": {"name": "get_weather"}})
    assert [c.function.name for c in calls_of(a)] == ["get_weather"], a


@check
def streamed_calls_add_up():
    kw = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200}
    answer = ended(**kw)
    whole = calls_of(answer)[0]
    name, arguments, ids = "", "", set()
    for chunk in model.chat.completions.create(**kw, **SAME, **BRIEF, seed=answer.seed, stream=True):
        for c in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            name += c.function.name or ""
            arguments += c.function.arguments or ""
            ids |= {c.id} - {None}
    assert (name, arguments) == (whole.function.name, whole.function.arguments) and len(ids) == 1, (name, arguments, ids)


@check
def tools_may_be_left_alone():
    for choice in ("auto", "none"):
        a = model.chat.completions.create(**FIXED, tools=TOOLS, tool_choice=choice)
        assert a.choices[0].finish_reason in ("length", "stop", "tool_calls")
        assert choice == "auto" or not a.choices[0].message.tool_calls


@check
def scripted_calls_come_in_parallel_and_go_back():
    a = script.chat.completions.create(model=NAME, messages=CALLS, tools=TOOLS)
    calls = calls_of(a)
    assert [c.function.name for c in calls] == ["get_weather", "get_time"], calls
    assert len({c.id for c in calls}) == 2
    results = [{"role": "tool", "tool_call_id": c.id, "content": [{"type": "text", "text": "fine"}]} for c in calls]
    b = script.chat.completions.create(model=NAME, messages=CALLS + [a.choices[0].message] + results, tools=TOOLS)
    assert b.choices[0].message.content, b


@check
def scripted_reasoning_is_told_apart():
    a = script.chat.completions.create(model=NAME, messages=REASON).choices[0].message
    assert a.reasoning_content == "It is short." and a.content == "Four.", a
    thought, text = "", ""
    for chunk in script.chat.completions.create(model=NAME, messages=REASON, stream=True):
        for c in chunk.choices:
            thought += getattr(c.delta, "reasoning_content", None) or ""
            text += c.delta.content or ""
    assert (thought, text) == ("It is short.", "Four."), (thought, text)


class Pet(BaseModel):
    kind: Literal["cat", "dog"]


@check
def a_schema_is_followed():
    def parsed(seed):
        try:
            return model.chat.completions.parse(**SAME, response_format=Pet, seed=seed, max_tokens=100, reasoning_effort="none")
        except openai.LengthFinishReasonError:
            return None

    assert first_whole(parsed).choices[0].message.parsed.kind in ("cat", "dog")


@check
def a_json_object_is_one():
    a = model.chat.completions.create(model=NAME, messages=HELLO, response_format={"type": "json_object"}, seed=2, max_tokens=300, reasoning_effort="none")
    if a.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(a.choices[0].message.content), dict)


@check
def a_schema_that_cannot_be_followed_is_refused_by_path():
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    e = raises(openai.BadRequestError, lambda: model.chat.completions.create(**FIXED, response_format=form))
    assert "uniqueItems" in e.message and "/properties/a" in e.message, e.message


@check
def errors_are_the_packages_own():
    e = raises(openai.BadRequestError, lambda: model.chat.completions.create(**{**FIXED, "temperature": -1}))
    assert e.param == "temperature", e.body
    e = raises(openai.BadRequestError, lambda: model.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": lines("word", 2000)}]))
    assert e.code == "context_length_exceeded" and "2048" in e.message, e.body
    raises(openai.AuthenticationError, lambda: model.with_options(api_key="wrong").models.list())
    raises(openai.NotFoundError, lambda: model.responses.retrieve("resp_none"))
    raises(openai.NotFoundError, lambda: model.models.retrieve("none"))
    e = raises(openai.BadRequestError, lambda: model.chat.completions.create(
        **FIXED, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nix"}}))
    assert "nix" in e.message, e.message


@check
def responses_answer_stream_and_are_kept():
    kw = {"model": NAME, "input": "Tell me about a lighthouse.", "max_output_tokens": 12, "temperature": 0}
    a = model.responses.create(**kw)
    assert a.output_text and a.status == "incomplete" and a.incomplete_details.reason == "max_output_tokens", a
    assert a.usage.output_tokens == 12
    text, done = "", None
    for event in model.responses.create(**kw, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in ("response.completed", "response.incomplete"):
            done = event.response
    assert text == a.output_text and done.output_text == text, (text, a.output_text)
    assert model.responses.retrieve(a.id).output_text == a.output_text
    b = model.responses.create(model=NAME, input="And then?", previous_response_id=a.id, max_output_tokens=4)
    assert b.usage.input_tokens > a.usage.input_tokens + 12, (a.usage, b.usage)
    model.responses.delete(a.id)
    raises(openai.NotFoundError, lambda: model.responses.retrieve(a.id))


@check
def responses_call_tools_and_follow_schemas():
    def completed(**kw):
        def ask(seed):
            a = model.responses.create(model=NAME, reasoning={"effort": "none"}, extra_body={"seed": seed}, **kw)
            return a if a.status == "completed" else None
        return first_whole(ask)

    a = completed(input="Weather?", tools=FLAT, max_output_tokens=200, parallel_tool_calls=False,
                  tool_choice={"type": "function", "name": "get_weather"})
    call = [o for o in a.output if o.type == "function_call"]
    assert len(call) == 1 and set(json.loads(call[0].arguments)) == {"city", "unit"}, a.output
    form = {"type": "json_schema", "name": "pet", "schema": Pet.model_json_schema(), "strict": True}
    Pet.model_validate_json(completed(input="A pet.", text={"format": form}, max_output_tokens=100).output_text)
    s = script.responses.create(model=NAME, input="Say a reason")
    assert [o.type for o in s.output] == ["reasoning", "message"] and s.output_text == "Four.", s.output
    with script.responses.stream(model=NAME, input="Say the calls", tools=FLAT) as stream:
        final = [e for e in stream][-1].response
    assert [o.name for o in final.output if o.type == "function_call"] == ["get_weather", "get_time"], final.output


if __name__ == "__main__":
    run("openai for Python")
