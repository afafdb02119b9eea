#!/usr/bin/env python3
"""Records what Jinja2, set up as Hugging Face transformers sets it up, makes of small templates of our own.

The result, crates/text/tests/data/jinja_cases.json.lzma, is what ChatTemplate must equal byte for byte. A case that Python
refuses is recorded as an error; for `raise_exception` the text is recorded too.

    pip install jinja2==3.1.6
    python3 scripts/record_jinja.py
"""

import datetime
import json
import lzma
import pathlib

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = pathlib.Path(__file__).parent.parent / "crates/text/tests/data/jinja_cases.json.lzma"
NOW = 1767411045  # 2026-01-03 03:30:45 UTC


class Generation(Extension):
    """`{% generation %}` the way transformers renders it: the body, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Raised(jinja2.exceptions.TemplateError):
    pass


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise Raised(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return env


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hi <there> & \"you\"\n\n"},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "now", "arguments": {"city": "Zürich", "days": 2, "exact": True, "scale": 1.0, "none": None}}},
        {"id": "c2", "type": "function", "function": {"name": "later", "arguments": {}}},
    ]},
    {"role": "tool", "tool_call_id": "c1", "name": "now", "content": "21 °C"},
    {"role": "tool", "tool_call_id": "c2", "name": "later", "content": "dry"},
    {"role": "user", "content": "Thanks 🙂"},
]
TOOLS = [
    {"type": "function", "function": {"name": "now", "description": "Weather \"now\" in a <city>\n'today'", "parameters": {
        "type": "object", "required": ["city"],
        "properties": {"zeta": {"type": "number", "minimum": 0.5}, "city": {"type": "string", "enum": ["Zürich", "日本", "🙂"]}, "alpha": {"type": ["string", "null"], "default": None}},
    }}},
    {"type": "function", "function": {"name": "later", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
EXTRA = {
    "numbers": [0, -1, 1.0, 0.1, 1e16, 1e-5, 123456789012345678, 1.5e300, -0.0],
    "words": ["b", "a", "C", "ä"],
    "empty": [],
    "nothing": None,
    "yes": True,
    "nested": {"b": [1, [2, [], {}]], "a": {"x": {"y": "z"}}},
    "path": "one/two/three",
    "odd": "tab\there \u0001 \u007f \u2028 back\\slash",
    "html": "<a href='x'>&amp;</a>",
}

# name -> template; the context is messages, tools, add_generation_prompt, bos_token, eos_token and EXTRA
TEMPLATES = {
    "namespace in a loop": "{% set ns = namespace(n=0, seen='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'user' %}{% set ns.seen = ns.seen ~ loop.index0 ~ ',' %}{% endif %}{% endfor %}{{ ns.n }}:{{ ns.seen }}",
    "set does not leave a loop": "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% endfor %}{{ x }}",
    "break and continue": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% if m.role == 'tool' %}{% break %}{% endif %}[{{ m.role }}]{% endfor %}",
    "loop variables": "{% for m in messages %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}{% if loop.previtem is defined %}<{{ loop.previtem.role }}{% endif %}{% if loop.nextitem is defined %}>{{ loop.nextitem.role }}{% endif %};{% endfor %}",
    "loop cycle and changed": "{% for m in messages %}{{ loop.cycle('a', 'b') }}{% if loop.changed(m.role) %}!{% endif %}{% endfor %}",
    "for else": "{% for m in empty %}x{% else %}none{% endfor %}",
    "for with filter": "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.role }}{% endfor %}",
    "for over items": "{% for k, v in nested.items() %}{{ k }}={{ v }};{% endfor %}",
    "slices": "{{ words[::-1] }}{{ words[1:] }}{{ words[:-1] }}{{ words[-1] }}{{ path[::-1] }}{{ path[4:7] }}{{ messages[1:][0].role }}{{ messages[::-1][0].role }}",
    "last turn first": "{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}{{ i }}{{ m.role }} {% endfor %}",
    "raise": "{% if messages[0].role != 'user' %}{{ raise_exception('Roles must alternate, not ' + messages[0].role) }}{% endif %}",
    "raise not reached": "{% if messages[0].role == 'user' %}{{ raise_exception('no') }}{% endif %}ok",
    "tojson": "{{ tools | tojson }}",
    "tojson each": "{% for t in tools %}{{ t | tojson }}\n{% endfor %}",
    "tojson indent": "{{ tools | tojson(indent=2) }}",
    "tojson indent 4": "{{ nested | tojson(indent=4) }}{{ empty | tojson(indent=4) }}",
    "tojson ensure_ascii": "{{ tools | tojson(ensure_ascii=true) }}{{ messages[-1] | tojson(ensure_ascii=True) }}{{ tools | tojson(ensure_ascii=false) }}",
    "tojson separators": "{{ tools | tojson(separators=(',', ':')) }}{{ nested | tojson(indent=1, separators=(' ,', ' : ')) }}",
    "tojson sort_keys": "{{ tools | tojson(sort_keys=true) }}",
    "tojson scalars": "{{ 'a' | tojson }}{{ 1 | tojson }}{{ 1.0 | tojson }}{{ true | tojson }}{{ none | tojson }}{{ [] | tojson }}{{ {} | tojson }}{{ (1, 2) | tojson }}",
    "tojson numbers": "{{ numbers | tojson }}",
    "tojson escapes": "{{ odd | tojson }}{{ odd | tojson(ensure_ascii=true) }}{{ html | tojson }}",
    "tojson keys": "{{ {1: 'a', 'b': 2, 1.5: 3, true: 4, none: 5} | tojson }}",
    "tojson of undefined": "{{ missing | tojson }}",
    "tojson of undefined inside": "{{ {'a': missing} | tojson }}",
    "tojson of a filter's result": "{{ words | map('upper') | list | tojson }}{{ words | sort | tojson }}",
    "tojson arguments": "{% for c in messages[2].tool_calls %}{\"name\": {{ c.function.name | tojson }}, \"arguments\": {{ c.function.arguments | tojson }}}\n{% endfor %}",
    "strftime": "{{ strftime_now('%d %b %Y %H:%M') }}|{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%B %-d, %A %j %I:%M:%S %p %y %%') }}",
    "macro": "{% macro row(a, b='x', c=none) %}[{{ a }}|{{ b }}|{{ c }}]{% endmacro %}{{ row(1) }}{{ row(1, 2, 3) }}{{ row(1, c='z') }}",
    "macro with caller": "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('p') %}in {{ yes }}{% endcall %}",
    "macro calls itself": "{% macro down(n) %}{{ n }}{% if n > 0 %},{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(20) }}",
    "macro over a schema": "{% macro show(v) %}{% if v is mapping %}{ {%- for k, x in v.items() %}{{ k }}:{{ show(x) }}{% if not loop.last %},{% endif %}{% endfor -%} }{% elif v is iterable and v is not string %}[{% for x in v %}{{ show(x) }}{% if not loop.last %},{% endif %}{% endfor %}]{% elif v is string %}{{ '\"' ~ v ~ '\"' }}{% else %}{{ v }}{% endif %}{% endmacro %}{{ show(tools) }}",
    "generation": "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.reasoning_content }}{% endgeneration %}\n{% endif %}\n{% endfor %}",
    "generation and white space": "a\n  {%- generation -%}  \n b \n {% endgeneration %}\nc\n   {% generation %}\n x\n   {% endgeneration +%}\n d",
    "generation is a scope": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "dict methods": "{{ nested.get('a').get('x').get('y') }}{{ nested.get('q', 'd') }}{{ nested.get('q') }}{% for k in nested.keys() %}{{ k }}{% endfor %}{% for v in nested.values() %}{{ v }}{% endfor %}",
    "items filter and dictsort": "{% for k, v in nested | items %}{{ k }}{% endfor %}{% for k, v in nested | dictsort %}{{ k }}{% endfor %}",
    "string methods": "{{ path.split('/') }}{{ path.split('/') | last }}{{ path.split('/')[-1] }}{{ '\n\nx\n'.lstrip('\n') }}|{{ 'xyy'.rstrip('y') }}|{{ '  s '.strip() }}|{{ path.startswith('one') }}{{ path.endswith('x') }}{{ 'ab cd-ef'.title() }}{{ 'aB'.upper() }}{{ 'aB'.lower() }}{{ 'ab'.capitalize() }}{{ path.replace('/', '.') }}{{ path.find('two') }}{{ path.count('t') }}",
    "split with limits": "{{ 'a</think>b</think>c'.split('</think>', 1) }}{{ 'a b  c'.split() }}{{ 'a,b,c'.rsplit(',', 1) if false else '' }}",
    "join": "{{ words | join(', ') }}{{ ','.join(words) }}",
    "string operators": "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }}{{ 'ab' * 2 }}{{ 'a' in 'bab' }}{{ 'q' not in words }}{{ 'a' + 'b' }}",
    "percent formatting": "{{ 'x%sy%d' % ('s', 3) }}",
    "modulo": "{{ 7 % 3 }}{{ -7 % 3 }}{{ loop_index | default(3) % 2 == 0 }}",
    "format": "{{ '%s-%d' | format('a', 3) }}{{ '{}:{}'.format('a', 1) }}",
    "arithmetic": "{{ 7 // 2 }}{{ 7 / 2 }}{{ 7 % 3 }}{{ 2 ** 8 }}{{ -7 // 2 }}{{ 1 + 2.0 }}{{ 10 / 5 }}{{ (1, 2) + (3,) }}",
    "printing values": "{{ true }}{{ false }}{{ none }}{{ 1.0 }}{{ words }}{{ nested }}{{ (1, 'a') }}{{ [none, true, 'it\\'s'] }}{{ 1e20 }}{{ 0.1 + 0.2 }}",
    "printing strings in lists": "{{ [html, 'a\"b', \"a'b\", 'é🙂', 'tab\t\u0001\u007f\\'] }}",
    "printing separators in lists": "{{ [odd] }}",
    "filters": "{{ ' x ' | trim }}{{ words | first }}{{ words | last }}{{ words | length }}{{ 'ab' | upper }}{{ 'AB' | lower }}{{ 'ab cd' | title }}{{ 'ab' | capitalize }}{{ words | sort | join }}{{ words | reverse | list }}{{ path | replace('/', '-') }}{{ nothing | default('d', true) }}{{ missing | default('m') }}{{ '3' | int + 1 }}{{ 3.7 | int }}{{ '2.5' | float }}{{ -3 | abs }}{{ 2.567 | round(1) }}{{ yes | string }}{{ [3, 1, 2] | max }}{{ [3, 1, 2] | min }}{{ [1, 2] | sum }}{{ [1, 1, 2] | unique | list }}",
    "select and map": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | join(',') }}{{ messages | map(attribute='role') | unique | join(',') }}{{ numbers | select('integer') | list | length }}{{ messages | selectattr('tool_calls', 'defined') | list | length }}{{ words | reject('equalto', 'a') | list }}{{ messages | groupby('role') | length }}",
    "indent filter": "{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a\nb' | indent(2, true) }}",
    "kinds": "{% for v in [none, missing, 'a', [], {}, 1, 1.0, true, (1,)] %}{{ v is none }}{{ v is undefined }}{{ v is defined }}{{ v is string }}{{ v is mapping }}{{ v is iterable }}{{ v is sequence }}{{ v is number }}{{ v is integer }}{{ v is float }}{{ v is boolean }} {% endfor %}",
    "lazy sequences": "{{ range(2) is sequence }}{{ (words | map('upper')) is sequence }}",
    "tests": "{{ nested is mapping }}{{ words is mapping }}{{ 'a' is string }}{{ words is iterable }}{{ 'a' is iterable }}{{ nested is iterable }}{{ 1 is iterable }}{{ none is none }}{{ missing is undefined }}{{ missing is defined }}{{ yes is true }}{{ yes is boolean }}{{ 1 is number }}{{ true is number }}{{ 1.0 is float }}{{ 1 is integer }}{{ words is sequence }}{{ 'a' is sequence }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 1 is sameas 1 }}{{ 'a' is in words }}{{ messages[0].nope is defined }}{{ messages[2].content is none }}",
    "ternary": "{{ 'a' if yes else 'b' }}{{ 'a' if not yes }}|{{ 'a' if missing else 'b' }}{{ ('x' if nothing) is defined }}",
    "truth": "{% for v in [0, 1, '', 'x', [], [0], {}, none, true, missing] %}{{ 1 if v else 0 }}{% endfor %}{{ yes and 'a' }}{{ nothing or 'b' }}{{ not nothing }}{{ 1 < 2 < 3 }}{{ 1 == 1.0 }}{{ 'a' < 'b' }}{{ [1] == [1] }}",
    "undefined is nothing": "[{{ missing }}][{{ messages[0].nope }}][{% for x in missing %}x{% endfor %}]",
    "attribute of undefined": "{{ missing.attribute }}",
    "attribute of undefined twice": "{{ messages[0].nope.deeper }}",
    "index out of range": "[{{ words[99] }}]",
    "set block": "{% set text %}\n  a {{ yes }}\n{% endset %}<{{ text }}>{{ text | trim | length }}",
    "filter block": "{% filter upper %}abc {{ path }}{% endfilter %}",
    "with": "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "raw and comments": "{% raw %}{{ not }} {% a %}{% endraw %}{# a comment\n over lines #}x{#- y -#} z",
    "trim blocks": "{% if yes %}\n  a\n{% endif %}\n{% for m in words %}\n  {{ m }}\n{% endfor %}\nend\n",
    "lstrip blocks": "x\n    {% if yes %}\n    y {{ path }}\n    {% endif %}\n  {# c #}\nz {% if yes %} w {% endif %}\n",
    "minus signs": "  a  {%- if yes -%}  b  {%- endif -%}  c  {{- path -}}  d \n {{ yes }} \n{%- if yes %} e{% endif %}\n",
    "plus signs": "a\n  {%+ if yes %}b{% endif +%}\nc\n",
    "newlines at the end": "a\n\n\n",
    "no newline at the end": "a",
    "carriage returns": "a\r\nb\r\n{% if yes %}\r\nc{% endif %}\r\n",
    "whitespace after block at end of line": "{% if yes %}   \n  x{% endif %}   \n",
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "bos and eos": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    "tool calls": "{%- for m in messages %}\n{%- if m.tool_calls is defined and m.tool_calls %}\n{%- for c in m.tool_calls %}\n{%- set f = c.function %}\n<call>{{ f.name }}{% for k, v in f.arguments | items %}<{{ k }}>{{ v | tojson if v is mapping or (v is sequence and v is not string) else v }}</{{ k }}>{% endfor %}</call>\n{%- endfor %}\n{%- endif %}\n{%- endfor %}",
    "content parts": "{% for p in [{'type': 'text', 'text': 'a'}, {'type': 'image'}] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% elif 'image' in p or p.type == 'image' %}<img>{% endif %}{% endfor %}",
    "concatenated lists": "{% set l = [1] + [2, 3] %}{{ l }}{% set l = l + [messages | length] %}{{ l | length }}",
    "dict literals": "{% set d = {'a': 1, 'b': {'c': [1, 2]}} %}{{ d.b.c[1] }}{{ d['a'] }}{{ d | length }}{{ 'a' in d }}{{ dict(a=1).a }}",
    "range": "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}{{ range(4) | list }}",
    "unpacking": "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% set x, y = 1, 2 %}{{ x }}{{ y }}",
    "do nothing with namespaces": "{% set ns = namespace() %}{% set ns.a = [] %}{% for m in messages %}{% set ns.a = ns.a + [m.role[0]] %}{% endfor %}{{ ns.a | join }}",
    "nested loops": "{% for a in [1, 2] %}{% set outer = loop %}{% for b in [1, 2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "recursive loop": "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "escapes in strings": "{{ '\\n\\t\\\\\\'' }}{{ \"\\\"\" }}{{ '\\u00e9' }}",
    "continued string": "{{ 'a\\\nb' }}",
    "unicode": "{{ '日本' | length }}{{ '🙂'[0] }}{{ 'ß'.upper() }}{{ 'ÉCOLE' | lower }}",
    "the last question": "{%- set seen = namespace(open=true, at=messages|length - 1) %}{%- for m in messages[::-1] %}{%- set i = (messages|length - 1) - loop.index0 %}{%- if seen.open and m.role == \"user\" %}{%- set c = (m.content or '')|trim %}{%- if not(c.startswith('<r>') and c.endswith('</r>')) %}{%- set seen.open = false %}{%- set seen.at = i %}{%- endif %}{%- endif %}{%- endfor %}{%- if seen.open %}{{- raise_exception('nobody asked') }}{%- endif %}{{ seen.at }}{% for m in messages %}{% if loop.index0 > seen.at %}+{% else %}-{% endif %}{% endfor %}",
    "results share a turn": "{%- for m in messages %}{%- if m.role == \"tool\" %}{%- if loop.previtem and loop.previtem.role != \"tool\" %}{{- '<turn>' }}{%- endif %}{{- '\\n' + m.content }}{%- if not loop.last and loop.nextitem.role != \"tool\" %}{{- '</turn>\\n' }}{%- elif loop.last %}{{- '</end>' }}{%- endif %}{%- endif %}{%- endfor %}",
    "thoughts cut out": "{%- for c in ['<think>\\n a \\n</think>\\n\\nb', 'b', '<think></think>c</think>d'] %}{%- set r = '' %}{%- set content = c %}{%- if '</think>' in content %}{%- set r = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}[{{ r|trim }}|{{ content }}]{%- endfor %}",
    "values by kind": "{%- for k, v in {'s': 'a \"b\"', 'n': 2, 'f': 1.0, 'yes': true, 'no': none, 'l': [1, 'ü'], 'm': {'k': false}}|items %}<{{ k }}>{%- set v = v | tojson | safe if v is mapping or (v is sequence and v is not string) else v | string %}{{- v }}{%- endfor %}{%- for c in messages[2].tool_calls %}{%- if c.function is defined %}{%- set c = c.function %}{%- endif %}{%- if c.arguments is string %}{{- c.arguments }}{%- else %}{{- c.arguments | tojson }}{%- endif %}{%- endfor %}",
    "parts counted": "{%- set pictures = namespace(n=0) %}{%- macro show(content, counts, plain=false) %}{%- if content is string %}{{- content }}{%- elif content is iterable and content is not mapping %}{%- for p in content %}{%- if 'image' in p or p.type == 'image' %}{%- if plain %}{{- raise_exception('no pictures here') }}{%- endif %}{%- if counts %}{%- set pictures.n = pictures.n + 1 %}{%- endif %}{{- '(picture ' ~ pictures.n ~ ')' }}{%- elif 'text' in p %}{{- p.text }}{%- endif %}{%- endfor %}{%- elif content is none or content is undefined %}{{- '' }}{%- endif %}{%- endmacro %}{{ show([{'type': 'image'}, {'type': 'text', 'text': ' and '}, {'image': 'x'}], true)|trim }};{{ show(none, false) }};{{ show(missing, false) }};{{ show('s', true, true) }}",
    "switches": "{%- if yes is defined and yes is false %}off{%- elif yes is defined and yes %}on{%- else %}none{%- endif %}{%- if absent is defined and absent is false %}off{%- else %}left{%- endif %}{{ 'a' if nothing is none else 'b' }}",
    "unknown filter": "{{ 'a' | nonsense }}",
    "unknown function": "{{ nonsense('a') }}",
    "unknown method": "{{ 'a'.nonsense() }}",
    "list has no append": "{% set x = words.append('q') %}{{ words }}",
    "string plus number": "{{ 'a' + 1 }}",
    "none plus string": "{{ 'a' + messages[2].content }}",
    "iterating a number": "{% for x in 5 %}{% endfor %}",
    "deep recursion": "{% macro down(n) %}{% if n > 0 %}{{ down(n - 1) }}{% else %}bottom{% endif %}{% endmacro %}{{ down(50) }}",
    "endless recursion": "{% macro down() %}{{ down() }}{% endmacro %}{{ down() }}",
}

# name -> (template, the line where the trouble starts)
BROKEN = {
    "unclosed if": ("a\nb\n{% if x %}\nc\n", 3),
    "unclosed expression": ("a\n{{ x \nb", 2),
    "unknown tag": ("\n\n{% nonsense %}", 3),
    "stray end": ("a\n{% endif %}", 2),
    "bad expression": ("{{ 1 + }}", 1),
}


def main():
    cases = []
    context = dict(messages=MESSAGES, tools=TOOLS, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", **EXTRA)
    for name, source in TEMPLATES.items():
        case = {"name": name, "template": source}
        try:
            case["text"] = environment().from_string(source).render(**context)
        except Raised as e:
            case["raised"] = str(e)
        except (Exception, RecursionError) as e:
            case["error"] = f"{type(e).__name__}: {e}"[:120]
        cases.append(case)
    broken = []
    for name, (source, line) in BROKEN.items():
        try:
            environment().from_string(source)
            raise SystemExit(f"{name} parsed")
        except jinja2.TemplateSyntaxError as e:
            broken.append({"name": name, "template": source, "line": line, "python_line": e.lineno})
    data = {
        "made_by": f"scripts/record_jinja.py, jinja2 {jinja2.__version__}",
        "now": NOW,
        "messages": MESSAGES,
        "tools": TOOLS,
        "extra": EXTRA,
        "cases": cases,
        "broken": broken,
    }
    text = (json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
    OUT.write_bytes(lzma.compress(text, lzma.FORMAT_ALONE, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
