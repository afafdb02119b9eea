//! Writes an answer in each dialect, independently of the parsers.

use serde_json::{Map, Value, json};
use text::dialect::Tool;

#[derive(Debug, Clone)]
pub struct Answer {
    pub reasoning: Option<String>,
    pub content: String,
    pub calls: Vec<(String, Map<String, Value>)>,
}

/// The tools that answers call.
pub fn tools() -> Vec<Tool> {
    let weather = json!({"name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}, "opt": {"type": ["string", "null"]},
        "list": {"type": "array"}, "tree": {"type": "object"}, "x": {"type": "number"}, "code": {"type": "string"},
    }}});
    [weather, json!({"type": "function", "function": {"name": "now"}})].iter().filter_map(Tool::from_openai).collect()
}

pub const DIALECTS: &[&str] =
    &["qwen3", "qwen3.5", "gemma4", "harmony", "deepseek-v4", "glm", "minimax-m2", "llama", "mistral"];

/// What may not stand in a raw string value of the dialect.
pub fn value_end(dialect: &str) -> &'static str {
    match dialect {
        "qwen3.5" => "</parameter>",
        "glm" => "</arg_value>",
        "minimax-m2" => "</parameter>",
        "deepseek-v4" => "parameter>",
        "gemma4" => "<|\"|>",
        _ => "\0",
    }
}

fn raw(v: &Value) -> String {
    v.as_str().map_or_else(|| v.to_string(), str::to_owned)
}

fn gemma(v: &Value) -> String {
    match v {
        Value::String(s) => format!("<|\"|>{s}<|\"|>"),
        Value::Array(a) => format!("[{}]", a.iter().map(gemma).collect::<Vec<_>>().join(",")),
        Value::Object(o) => {
            format!("{{{}}}", o.iter().map(|(k, v)| format!("{k}:{}", gemma(v))).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// The answer as the model's output; `inside`: the prompt already opened the reasoning.
pub fn write(dialect: &str, a: &Answer, inside: bool) -> String {
    let mut out = String::new();
    if dialect == "harmony" {
        return harmony(a);
    }
    let (open, close) = match dialect {
        "gemma4" => ("<|channel>thought\n", "\n<channel|>"),
        "mistral" => ("[THINK]", "[/THINK]"),
        _ => ("<think>\n", "\n</think>\n\n"),
    };
    if let Some(r) = &a.reasoning {
        if !inside {
            out += open;
        }
        out += r;
        out += close;
    }
    out += &a.content;
    if a.calls.is_empty() {
        return out;
    }
    let each = |f: &dyn Fn(&str, &Map<String, Value>) -> String, sep: &str| {
        a.calls.iter().map(|(n, args)| f(n, args)).collect::<Vec<_>>().join(sep)
    };
    let params = |args: &Map<String, Value>, f: &dyn Fn(&str, &Value) -> String| {
        args.iter().map(|(k, v)| f(k, v)).collect::<String>()
    };
    let object = |n: &str, args: &Map<String, Value>, key: &str| {
        format!("{{\"name\": {}, \"{key}\": {}}}", json!(n), Value::Object(args.clone()))
    };
    out += &match dialect {
        "qwen3" => each(&|n, args| format!("\n<tool_call>\n{}\n</tool_call>", object(n, args, "arguments")), ""),
        "qwen3.5" => each(
            &|n, args| {
                let p = params(args, &|k, v| format!("<parameter={k}>\n{}\n</parameter>\n", raw(v)));
                format!("\n\n<tool_call>\n<function={n}>\n{p}</function>\n</tool_call>")
            },
            "\n",
        ),
        "gemma4" => {
            each(&|n, args| format!("<|tool_call>call:{n}{}<tool_call|>", gemma(&Value::Object(args.clone()))), "")
        }
        "deepseek-v4" => {
            let calls = each(
                &|n, args| {
                    let p = params(args, &|k, v| {
                        let s = v.is_string();
                        let v = raw(v);
                        format!("<｜DSML｜parameter name=\"{k}\" string=\"{s}\">{v}</｜DSML｜parameter>\n")
                    });
                    format!("<｜DSML｜invoke name=\"{n}\">\n{p}</｜DSML｜invoke>\n")
                },
                "",
            );
            format!("\n\n<｜DSML｜tool_calls>\n{calls}</｜DSML｜tool_calls>")
        }
        "glm" => each(
            &|n, args| {
                let sep = if args.len().is_multiple_of(2) { "" } else { "\n" };
                let p =
                    params(args, &|k, v| format!("<arg_key>{k}</arg_key>{sep}<arg_value>{}</arg_value>{sep}", raw(v)));
                format!("<tool_call>{n}{sep}{p}</tool_call>")
            },
            "\n",
        ),
        "minimax-m2" => {
            let calls = each(
                &|n, args| {
                    let p = params(args, &|k, v| format!("<parameter name=\"{k}\">{}</parameter>\n", raw(v)));
                    format!("<invoke name=\"{n}\">\n{p}</invoke>\n")
                },
                "",
            );
            format!("\n\n<minimax:tool_call>\n{calls}</minimax:tool_call>")
        }
        "llama" => {
            (if a.content.is_empty() { "" } else { "<|python_tag|>" }).to_owned()
                + &each(&|n, args| object(n, args, "parameters"), "; ")
        }
        "mistral" if a.calls.len().is_multiple_of(2) => {
            format!("[TOOL_CALLS][{}]", each(&|n, args| object(n, args, "arguments"), ", "))
        }
        "mistral" => each(&|n, args| format!("[TOOL_CALLS]{n}[ARGS]{}", Value::Object(args.clone())), ""),
        other => panic!("no writer for {other}"),
    };
    out
}

fn harmony(a: &Answer) -> String {
    let mut parts = Vec::new();
    if let Some(r) = &a.reasoning {
        parts.push(format!("<|channel|>analysis<|message|>{r}<|end|>"));
    }
    if !a.content.is_empty() {
        let channel = if a.calls.is_empty() { "final" } else { "commentary" };
        parts.push(format!("<|channel|>{channel}<|message|>{}<|end|>", a.content));
    }
    for (i, (n, args)) in a.calls.iter().enumerate() {
        let args = Value::Object(args.clone());
        parts.push(if i.is_multiple_of(2) {
            format!(" to=functions.{n}<|channel|>commentary json<|message|>{args}<|call|>")
        } else {
            format!("<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{args}<|call|>")
        });
    }
    parts.join("<|start|>assistant")
}
