//! From a client's history through a template to a prompt, and from the prompt's calls back through the parser: small
//! templates with the constructs that the families' own ones use.

#[path = "dialect/vocab.rs"]
mod vocab;

use serde_json::{Value, json};
use text::{
    ChatTemplate, History, Prompt, Tokenizer,
    dialect::{Dialect, Ending, Finish, OutputParser, Parsed, ParserOptions, Tool},
};

/// Calls as JSON in tags (Qwen3).
const JSON_TAGS: &str = r#"{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' and m.reasoning_content %}{{- '<think>\n' + m.reasoning_content.strip('\n') + '\n</think>\n\n' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}{%- if c.function %}{%- set c = c.function %}{%- endif %}
{%- if loop.index0 > 0 or m.content %}{{- '\n' }}{% endif %}
{{- '<tool_call>\n{"name": "' }}{{- c.name }}{{- '", "arguments": ' }}
{%- if c.arguments is string %}{{- c.arguments }}{%- else %}{{- c.arguments | tojson }}{%- endif %}{{- '}\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"#;

/// Functions and parameters in tags (Qwen3.5).
const FUNCTION_TAGS: &str = r#"{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' and m.reasoning_content %}{{- '<think>\n' + m.reasoning_content | trim + '\n</think>\n\n' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}{%- if loop.first and m.content | trim %}{{- '\n\n' }}{%- elif not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n<function=' + c.function.name + '>\n' }}
{%- for k, v in c.function.arguments | items %}{{- '<parameter=' + k + '>\n' }}
{%- set v = v | tojson | safe if v is mapping or (v is sequence and v is not string) else v | string %}{{- v }}{{- '\n</parameter>\n' }}{%- endfor %}
{{- '</function>\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"#;

/// Keys and values in tags (GLM).
const KEY_TAGS: &str = r#"{%- for m in messages %}{{- '<|' + m.role + '|>' }}
{%- if m.role == 'assistant' %}{{- '<think>' + (m.reasoning_content or '') + '</think>' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}{{- '<tool_call>' + c.function.name }}{%- set args = c.function.arguments %}
{%- for k, v in args.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>{%- endfor %}
{{- '</tool_call>' }}{%- endfor %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|><think>' }}{%- endif %}"#;

/// Invocations in a section (MiniMax-M2).
const INVOKE_TAGS: &str = r#"{%- for m in messages %}{{- ']~b]' ~ ('ai' if m.role == 'assistant' else m.role) ~ '\n' }}
{%- if m.reasoning_content %}{{- '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{% endif %}
{{- m.content }}
{%- if m.tool_calls %}{{- '\n<minimax:tool_call>\n' }}{%- for c in m.tool_calls %}{{- '<invoke name="' ~ c.function.name ~ '">\n' }}
{%- for k, v in c.function.arguments.items() %}{{- '<parameter name="' ~ k ~ '">' ~ (v if v is string else v | tojson) ~ '</parameter>\n' }}{%- endfor %}
{{- '</invoke>\n' }}{%- endfor %}{{- '</minimax:tool_call>' }}{%- endif %}{{- '[e~[\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- ']~b]ai\n<think>\n' }}{%- endif %}"#;

const ALL: [(&str, &str, &str, &str); 4] = [
    ("qwen3", JSON_TAGS, "<|im_start|>assistant\n", "<|im_end|>"),
    ("qwen3.5", FUNCTION_TAGS, "<|im_start|>assistant\n", "<|im_end|>"),
    ("glm", KEY_TAGS, "<|assistant|>", "<|tool|>"),
    ("minimax-m2", INVOKE_TAGS, "]~b]ai\n", "[e~["),
];

fn render(template: &str, t: &Tokenizer, messages: &Value) -> String {
    let h = History::new(messages.as_array().unwrap()).unwrap();
    let prompt = Prompt { messages: &h.messages, add_generation_prompt: true, ..Default::default() };
    ChatTemplate::new(template).unwrap().render(&prompt, t).unwrap().text().to_owned()
}

fn conversation(assistant: Value) -> Value {
    json!([
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}, assistant,
        {"role": "tool", "tool_call_id": "c1", "content": "{\"temp\": 21}"},
    ])
}

fn assistant(arguments: Value) -> Value {
    let call = json!({"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}});
    json!({"role": "assistant", "content": "", "reasoning_content": "Need the tool.", "tool_calls": [call]})
}

#[test]
fn equal_histories_render_equal_prompts() {
    let t = vocab::with_markers();
    let args = json!({"city": "Paris", "days": 2, "opts": {"é": ["\"x\"", null]}});
    for (name, template, ..) in ALL {
        let base = render(template, &t, &conversation(assistant(args.clone())));
        let mut forms = vec![assistant(args.to_string().into())];
        for content in [json!(null), json!([]), json!([{"type": "text", "text": ""}])] {
            let mut a = assistant(args.to_string().into());
            a["content"] = content;
            forms.push(a);
        }
        for a in forms {
            assert_eq!(render(template, &t, &conversation(a.clone())), base, "{name}: {a}");
        }
        // Broken arguments cost their call, not the conversation.
        let broken = render(template, &t, &conversation(assistant("{\"city\": ".into())));
        assert!(broken.contains("_raw_arguments"), "{name}");
    }
}

#[test]
fn what_a_template_writes_the_parser_reads() {
    let t = vocab::with_markers();
    let args = json!({"city": "Pa\"r\\is\n😀", "days": 2, "opts": {"é": ["\"x\"", null, true]}, "n": "007"});
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "opts": {"type": "object"}, "n": {"type": "string"}}});
    let tools = [Tool { name: "get_weather".into(), parameters, strict: false }];
    for (name, template, begin, end) in ALL {
        let prompt = render(template, &t, &conversation(assistant(args.clone())));
        let turn = prompt.split(begin).nth(1).unwrap().split(end).next().unwrap();
        let dialect = Dialect::detect(Some(template), &t);
        assert_eq!(dialect.name(), name);
        assert_eq!(Dialect::detect(Some(template), &vocab::bytes_only()).name(), name);
        assert_eq!(dialect.opens_reasoning(&prompt), name != "qwen3", "{prompt}");
        let mut p = OutputParser::new(&dialect, &ParserOptions { tools: &tools, ..Default::default() });
        let mut got = Parsed::default();
        let own: Vec<&str> = dialect.markers().collect();
        for id in vocab::ids(&t, turn, &own) {
            p.push(&t, id, &mut |e| got.push(e));
        }
        assert_eq!(p.finish(Finish::End, &mut |e| got.push(e)).ending, Ending::Complete, "{name}: {turn}");
        assert_eq!(
            (got.reasoning.as_str(), got.content.as_str(), got.calls.len()),
            ("Need the tool.", "", 1),
            "{name}: {turn}"
        );
        assert_eq!(serde_json::from_str::<Value>(&got.calls[0].arguments).unwrap(), args, "{name}: {turn}");
    }
}
