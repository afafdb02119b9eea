"""The `anthropic` package against a server of the built-in model (SNUG_URL) and one of a script (SNUG_SCRIPT_URL)."""

import os
from concurrent.futures import ThreadPoolExecutor

import anthropic

from checks import check, first_whole, lines, raises, run

KEY = os.environ["SNUG_API_KEY"]
model = anthropic.Anthropic(base_url=os.environ["SNUG_URL"], api_key=KEY, max_retries=0)
script = anthropic.Anthropic(base_url=os.environ["SNUG_SCRIPT_URL"], api_key=KEY, max_retries=0)
HELLO = [{"role": "user", "content": "Tell me about a lighthouse."}]
CALLS = [{"role": "user", "content": "Say the calls"}]
REASON = [{"role": "user", "content": "Say a reason"}]
SYSTEM = [{"type": "text", "text": "You are brief."},
          {"type": "text", "text": "You like the sea.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
TOOLS = [
    {"name": "get_weather", "description": "The weather.", "input_schema": {
        "type": "object", "additionalProperties": False, "required": ["city", "unit"], "properties": {
            "city": {"type": "string", "maxLength": 12}, "unit": {"type": "string", "enum": ["c", "f"]}}}},
    {"name": "get_time", "description": "The time.", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}},
]
FIXED = {"model": "claude-any", "max_tokens": 12, "messages": HELLO, "extra_body": {"temperature": 0}}


def read(usage):
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


@check
def a_plain_answer_has_text_and_usage():
    a = model.messages.create(**FIXED, system=SYSTEM)
    assert a.content[0].text and a.stop_reason == "max_tokens" and a.usage.output_tokens == 12, a
    assert a.id.startswith("msg_") and a.role == "assistant"


@check
def a_stream_adds_up_to_the_plain_answer():
    whole = model.messages.create(**FIXED)
    with model.messages.stream(**FIXED) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert text == whole.content[0].text == final.content[0].text, (text, whole)
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 12 and read(final.usage) == read(whole.usage)


@check
def counting_agrees_with_reading():
    more = {"type": "text", "text": "one more"}
    history = HELLO + [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "noon"}, more]}]}]
    for body in ({"messages": HELLO}, {"messages": HELLO, "system": SYSTEM}, {"messages": HELLO, "tools": TOOLS},
                 {"messages": history, "tools": TOOLS, "system": "Brief."}):
        n = model.messages.count_tokens(model="m", **body).input_tokens
        a = model.messages.create(model="m", max_tokens=1, **body)
        assert n == read(a.usage), (n, a.usage)


@check
def fifty_counts_at_once_are_answered():
    one = lambda i: model.messages.count_tokens(model="m", messages=[{"role": "user", "content": f"foo {i}"}], tools=TOOLS).input_tokens
    with ThreadPoolExecutor(50) as pool:
        counts = list(pool.map(one, range(50)))
    assert len(counts) == 50 and max(counts) - min(counts) <= 2, counts


@check
def a_stop_sequence_is_named():
    whole = model.messages.create(**FIXED).content[0].text
    stop = whole[len(whole) // 2:][:3]
    a = model.messages.create(**FIXED, stop_sequences=[stop])
    assert a.stop_reason == "stop_sequence" and a.stop_sequence == stop, a
    assert "".join(b.text for b in a.content) == whole[:whole.index(stop)], a


@check
def tools_any_and_named_are_called():
    kw = {"model": "m", "max_tokens": 200, "messages": HELLO, "tools": TOOLS, "thinking": {"type": "disabled"}}

    def ended(choice):
        def ask(seed):
            choose = {**choice, "disable_parallel_tool_use": True}
            a = model.messages.create(**kw, tool_choice=choose, extra_body={"seed": seed})
            return a if a.stop_reason != "max_tokens" else None
        return first_whole(ask)

    a = ended({"type": "any"})
    assert a.stop_reason == "tool_use" and any(b.type == "tool_use" for b in a.content), a
    b = ended({"type": "tool", "name": "get_weather"})
    use = [x for x in b.content if x.type == "tool_use"]
    assert len(use) == 1 and set(use[0].input) == {"city", "unit"}, b
    c = model.messages.create(**{**kw, "max_tokens": 8}, tool_choice={"type": "none"})
    assert not any(x.type == "tool_use" for x in c.content)


@check
def streamed_calls_add_up():
    with script.messages.stream(model="m", max_tokens=400, messages=CALLS, tools=TOOLS) as s:
        final = s.get_final_message()
    use = [b for b in final.content if b.type == "tool_use"]
    assert [u.name for u in use] == ["get_weather", "get_time"] and use[0].input == {"city": "Oslo", "unit": "c"}, final
    whole = script.messages.create(model="m", max_tokens=400, messages=CALLS, tools=TOOLS)
    assert [(b.name, b.input) for b in whole.content if b.type == "tool_use"] == [(u.name, u.input) for u in use]
    results = [{"type": "tool_result", "tool_use_id": u.id, "content": "fine", "is_error": i == 1} for i, u in enumerate(use)]
    again = CALLS + [{"role": "assistant", "content": final.content}, {"role": "user", "content": results}]
    b = script.messages.create(model="m", max_tokens=400, messages=again, tools=TOOLS)
    assert b.content[0].type == "text", b


@check
def thinking_is_told_apart_and_goes_back():
    kw = {"model": "m", "max_tokens": 2000, "messages": REASON, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    a = script.messages.create(**kw)
    assert [b.type for b in a.content] == ["thinking", "text"], a
    assert a.content[0].thinking == "It is short." and a.content[0].signature and a.content[1].text == "Four.", a
    with script.messages.stream(**kw) as s:
        assert [(b.type, getattr(b, "thinking", None)) for b in s.get_final_message().content] == [("thinking", "It is short."), ("text", None)]
    back = REASON + [{"role": "assistant", "content": a.content}, {"role": "user", "content": "Sure?"}]
    script.messages.create(**{**kw, "messages": back})


@check
def errors_are_the_packages_own():
    e = raises(anthropic.BadRequestError, lambda: model.messages.create(**{**FIXED, "extra_body": {"temperature": -1}}))
    assert e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error" and "temperature" in str(e), e.body
    e = raises(anthropic.BadRequestError, lambda: model.messages.create(
        **{**FIXED, "messages": [{"role": "user", "content": lines("word", 2000)}]}))
    assert "prompt is too long" in str(e) and "2047" in str(e), e.body
    raises(anthropic.AuthenticationError, lambda: model.with_options(api_key="wrong").models.list())
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    e = raises(anthropic.BadRequestError, lambda: model.messages.create(**{**FIXED, "messages": [{"role": "user", "content": [image]}]}))
    assert "image" in str(e), e.body
    e = raises(anthropic.BadRequestError, lambda: model.messages.create(**FIXED, tools=TOOLS, tool_choice={"type": "tool", "name": "nix"}))
    assert "nix" in str(e), e.body


@check
def models_are_listed():
    assert len(model.models.list().data) == 1


if __name__ == "__main__":
    run("anthropic for Python")
