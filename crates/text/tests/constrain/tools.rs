//! Tool calls under constraint: what is sampled is parsed by the dialect's parser and holds to the tool's schema.

use serde_json::{Value, json};
use text::{
    Error, Tokenizer,
    constrain::{Choice, Constraint, Matcher, Reasoning, ToolChoice, Warning},
    dialect::{Dialect, Ending, Finish, OutputParser, Parsed, ParserOptions, Summary, Tool},
};

use crate::{Random, accepts, sample, tokenizer, vocab};

const DIALECTS: &[&str] =
    &["qwen3", "qwen3.5", "gemma4", "harmony", "deepseek-v4", "glm", "minimax-m2", "llama", "mistral"];

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), parameters, strict: true }
}

fn tools() -> Vec<Tool> {
    vec![
        tool("now", json!({"type": "object", "properties": {}, "additionalProperties": false})),
        tool(
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string", "minLength": 1}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
                "unit": {"type": "string", "enum": ["c", "°f", "a \"b\""]},
            }, "required": ["city", "unit"], "additionalProperties": false}),
        ),
        tool(
            "edit.file-2",
            json!({"type": "object", "$defs": {"edit": {"type": "object", "properties": {"old": {"type": "string"}, "count": {"type": ["integer", "null"]}},
                    "required": ["old"], "additionalProperties": false}},
                "properties": {"path": {"type": "string", "pattern": "^[a-z/]{1,9}$"}, "edits": {"type": "array", "items": {"$ref": "#/$defs/edit"}, "minItems": 1, "maxItems": 2},
                    "note": {"type": ["string", "null"]}, "day": {"type": "string", "format": "date"}, "at": {"type": "string", "format": "date-time"}, "id": {"type": ["string", "integer"]}, "tree": {"anyOf": [{"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": false}, {"type": "null"}]}},
                "required": ["path", "edits"], "additionalProperties": false}),
        ),
    ]
}

fn build(
    dialect: &str,
    markers: bool,
    tools: &[Tool],
    choice: Choice<'_>,
    parallel: bool,
    r: Reasoning,
) -> Result<Matcher, Error> {
    let t = tokenizer(markers);
    let d = Dialect::named(dialect, t).unwrap();
    Constraint::Tools(ToolChoice { dialect: &d, tools, choice, parallel, answer: None }).build(t, &d, r)
}

fn parse(dialect: &str, t: &Tokenizer, tools: &[Tool], ids: &[u32]) -> (Parsed, Summary) {
    let d = Dialect::named(dialect, t).unwrap();
    let mut p = OutputParser::new(&d, &ParserOptions { tools, ..Default::default() });
    let mut got = Parsed::default();
    for id in ids {
        p.push(t, *id, &mut |e| got.push(e));
    }
    let summary = p.finish(Finish::End, &mut |e| got.push(e));
    (got, summary)
}

fn check(got: &Parsed, summary: &Summary, tools: &[Tool], context: &str) {
    assert_eq!((summary.ending, summary.degraded), (Ending::Complete, false), "{context}");
    for call in &got.calls {
        let tool = tools.iter().find(|t| t.name == call.name).unwrap_or_else(|| panic!("{} of {context}", call.name));
        let args: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|e| panic!("{e}: {context}"));
        let validator = jsonschema::options().should_validate_formats(true).build(&tool.parameters).unwrap();
        let errors: Vec<String> = validator.iter_errors(&args).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{context}\n{args}\n{errors:?}");
    }
}

#[test]
fn sampled_calls_are_read_and_valid() {
    let tools = tools();
    let mut random = Random(0xCA11);
    for dialect in DIALECTS {
        for markers in [true, false] {
            let t = tokenizer(markers);
            let (mut ended, mut calls) = (0, 0);
            for round in 0..12 {
                let parallel = round % 3 == 0;
                let named = round % 3 == 1;
                let choice = if named { Choice::Named("edit.file-2") } else { Choice::Required };
                let mut m = build(dialect, markers, &tools, choice, parallel, Reasoning::Off)
                    .unwrap_or_else(|e| panic!("{dialect}: {e}"));
                let Some(ids) = sample(t, &mut m, &mut random) else { continue };
                ended += 1;
                let text = t.decode(&ids, false);
                let (got, summary) = parse(dialect, t, &tools, &ids);
                check(&got, &summary, &tools, &format!("{dialect} {markers}: {text}"));
                assert_eq!(got.content, "", "{dialect}: {text}");
                assert!(!got.calls.is_empty() && (parallel || got.calls.len() == 1), "{dialect}: {text}");
                assert!(!named || got.calls[0].name == "edit.file-2", "{dialect}: {text}");
                calls += got.calls.len();
            }
            assert!(ended >= 4 && calls >= ended, "{dialect} {markers}: only {ended} of 12 ended, {calls} calls");
        }
    }
}

#[test]
fn auto_lets_text_pass_and_holds_calls_to_their_schema() {
    let tools = tools();
    let good = [
        ("qwen3", "Hello < there {\"x\"}.", "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"),
        ("qwen3.5", "Hi </x>\n\n", "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
        (
            "deepseek-v4",
            "a < b\n\n",
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ),
        ("glm", "Hi", "<tool_call>now</tool_call>"),
        ("gemma4", "Hi", "<|tool_call>call:now{}<tool_call|>"),
        ("minimax-m2", "Hi\n", "<minimax:tool_call>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>"),
        ("mistral", "Hi", "[TOOL_CALLS]now[ARGS]{}"),
    ];
    for (dialect, text, call) in good {
        for markers in [true, false] {
            if dialect == "mistral" && !markers {
                continue; // Without the token the older form is written.
            }
            let t = tokenizer(markers);
            let make = || build(dialect, markers, &tools, Choice::Auto, true, Reasoning::Off).unwrap();
            assert!(accepts(&mut make(), t, text), "{dialect} {markers}: text");
            assert!(accepts(&mut make(), t, call.trim_start()), "{dialect} {markers}: call");
            assert!(accepts(&mut make(), t, &format!("{text}{call}")), "{dialect} {markers}: both");
            let wrong = format!("{text}{}", call.replace("now", "nix"));
            assert!(!accepts(&mut make(), t, &wrong), "{dialect} {markers}: a tool that does not exist");
        }
    }
    let t = tokenizer(true);
    let make = || build("harmony", true, &tools, Choice::Auto, true, Reasoning::Allowed).unwrap();
    let think = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    assert!(accepts(&mut make(), t, &format!("{think}<|channel|>final<|message|>Hi")));
    assert!(accepts(
        &mut make(),
        t,
        &format!("{think}<|channel|>commentary to=functions.now <|constrain|>json<|message|>{{}}")
    ));
    assert!(!accepts(&mut make(), t, &format!("{think}<|channel|>commentary to=functions.nix")));
}

#[test]
fn without_a_call_an_answer_keeps_to_its_format() {
    let tools = tools();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let answer = Constraint::JsonSchema(&schema);
    let calls = [
        ("qwen3", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"),
        ("qwen3.5", "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
        ("glm", "<tool_call>now</tool_call>"),
        ("gemma4", "<|tool_call>call:now{}<tool_call|>"),
        ("mistral", "[TOOL_CALLS]now[ARGS]{}"),
    ];
    for (dialect, call) in calls {
        let t = tokenizer(true);
        let d = Dialect::named(dialect, t).unwrap();
        let make = || {
            let choice =
                ToolChoice { dialect: &d, tools: &tools, choice: Choice::Auto, parallel: true, answer: Some(&answer) };
            Constraint::Tools(choice).build(t, &d, Reasoning::Off).unwrap()
        };
        assert!(accepts(&mut make(), t, "{\"a\": 5}"), "{dialect}");
        assert!(accepts(&mut make(), t, call), "{dialect}");
        assert!(!accepts(&mut make(), t, "Hello"), "{dialect}");
        assert!(!accepts(&mut make(), t, "{\"a\": true}"), "{dialect}");
        assert!(!accepts(&mut make(), t, &call.replace("now", "nix")), "{dialect}");
    }
    let t = tokenizer(true);
    let d = Dialect::named("llama", t).unwrap();
    let choice = ToolChoice { dialect: &d, tools: &tools, choice: Choice::Auto, parallel: true, answer: Some(&answer) };
    let refused = Constraint::Tools(choice).build(t, &d, Reasoning::Off);
    assert!(matches!(&refused, Err(Error::Grammar(what)) if what.contains("tool_choice")), "{refused:?}");
    let d = Dialect::named("harmony", t).unwrap();
    let choice = ToolChoice { dialect: &d, tools: &tools, choice: Choice::Auto, parallel: true, answer: Some(&answer) };
    let make = || Constraint::Tools(choice).build(t, &d, Reasoning::Allowed).unwrap();
    let think = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    assert!(accepts(&mut make(), t, &format!("{think}<|channel|>final<|message|>{{\"a\": 1}}")));
    assert!(!accepts(&mut make(), t, &format!("{think}<|channel|>final<|message|>Hi")));
}

#[test]
fn reasoning_then_calls() {
    let tools = tools();
    for markers in [true, false] {
        let t = tokenizer(markers);
        let call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
        let make = |r| build("qwen3.5", markers, &tools, Choice::Named("now"), false, r).unwrap();
        assert!(accepts(&mut make(Reasoning::Open), t, &format!("Hm.\n</think>\n\n{call}")));
        assert!(accepts(&mut make(Reasoning::Allowed), t, &format!("<think>\nHm.\n</think>\n\n{call}")));
        assert!(accepts(&mut make(Reasoning::Allowed), t, call));
        assert!(!accepts(&mut make(Reasoning::Off), t, &format!("<think>\nHm.\n</think>\n\n{call}")));
        assert!(!accepts(&mut make(Reasoning::Off), t, &format!("{call}\n{call}")), "one call only");
    }
}

#[test]
fn choices_that_make_no_sense_are_refused() {
    let refused = |tools: &[Tool], choice| match build("qwen3", true, tools, choice, true, Reasoning::Off) {
        Err(Error::Grammar(what)) => what,
        other => panic!("{other:?}"),
    };
    assert!(refused(&tools(), Choice::Named("nix")).contains("now, get_weather"));
    assert!(refused(&[], Choice::Required).contains("no tools"));
    assert!(build("plain", true, &tools(), Choice::Required, true, Reasoning::Off).is_err());
}

#[test]
fn what_a_tool_asks_in_vain_is_relaxed_with_a_warning() {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true},
        "s": {"type": "string", "pattern": "("}, "u": {"type": "string", "format": "idn-email"},
    }, "required": ["a", "s", "u"], "additionalProperties": false});
    let loose = [tool("t", schema)];
    let m = build("qwen3", true, &loose, Choice::Required, false, Reasoning::Off).unwrap();
    let found: Vec<(&str, &str)> =
        m.warnings().iter().map(|w: &Warning| (w.path.as_str(), w.keyword.as_str())).collect();
    assert_eq!(found, [("t/properties/a", "uniqueItems"), ("t/properties/u", "format"), ("t/properties/s", "pattern")]);
    // The rest of the schema still holds.
    let mut m = m;
    let t = tokenizer(true);
    let text = |a: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"t\", \"arguments\": {{\"a\": {a}, \"s\": \"x\", \"u\": \"y\"}}}}\n</tool_call>"
        )
    };
    assert!(!accepts(&mut m, t, &text("[\"no\"]")));
    let mut m = build("qwen3", true, &loose, Choice::Required, false, Reasoning::Off).unwrap();
    assert!(accepts(&mut m, t, &text("[1, 1]")));
    // What a strict tool cannot have at all is an error.
    let composed =
        json!({"anyOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}]});
    let strict = [tool("t", composed.clone())];
    assert!(
        matches!(build("qwen3.5", true, &strict, Choice::Required, false, Reasoning::Off), Err(Error::Schema { keyword, .. }) if keyword == "anyOf")
    );
    let lax = [Tool { name: "t".into(), parameters: composed, strict: false }];
    assert_eq!(build("qwen3.5", true, &lax, Choice::Required, false, Reasoning::Off).unwrap().warnings().len(), 1);
}

#[test]
fn numbers_keep_their_bounds_in_every_notation() {
    let schema = json!({"type": "object", "properties": {
        "n": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}]},
        "r": {"$ref": "#/properties/n/anyOf/0"},
    }, "required": ["n", "r"], "additionalProperties": false});
    type Written = fn(i32, i32) -> String;
    let written: [(&str, Written); 3] = [
        ("qwen3", |n, r| {
            let call = format!("{{\"name\": \"t\", \"arguments\": {{\"n\": {n}, \"r\": {r}}}}}");
            format!("<tool_call>\n{call}\n</tool_call>")
        }),
        ("qwen3.5", |n, r| {
            let one = |k: &str, v: i32| format!("<parameter={k}>\n{v}\n</parameter>\n");
            format!("<tool_call>\n<function=t>\n{}{}</function>\n</tool_call>", one("n", n), one("r", r))
        }),
        ("gemma4", |n, r| format!("<|tool_call>call:t{{n:{n},r:{r}}}<tool_call|>")),
    ];
    let taken = |dialect: &str, schema: &Value, call: &str| {
        let tools = [tool("t", schema.clone())];
        let mut m = build(dialect, true, &tools, Choice::Required, false, Reasoning::Off).unwrap();
        assert!(m.warnings().is_empty(), "{dialect}");
        accepts(&mut m, tokenizer(true), call)
    };
    for (dialect, call) in written {
        assert!(taken(dialect, &schema, &call(1, 9)), "{dialect}");
        assert!(!taken(dialect, &schema, &call(0, 9)) && !taken(dialect, &schema, &call(1, 10)), "{dialect}");
    }
    // Beside strings, which Gemma 4 quotes.
    let mixed = json!({"type": "object", "properties": {"s": {"type": ["string", "integer"], "maximum": 5}},
        "required": ["s"], "additionalProperties": false});
    let gemma = |s: &str| taken("gemma4", &mixed, &format!("<|tool_call>call:t{{s:{s}}}<tool_call|>"));
    assert!(gemma("5") && gemma("<|\"|>6<|\"|>") && !gemma("6"));
}

#[test]
fn names_of_arguments_come_back_as_they_were_written() {
    let names = ["say \"hi\"", "\"all\"", "a:b", "a,b", "{a}", "[", " a ", "a b"];
    for (dialect, open) in [("gemma4", "<|tool_call>call:t{"), ("qwen3.5", "<tool_call>\n<function=t>\n")] {
        for name in names {
            let schema = json!({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name],
                "additionalProperties": false});
            let mut m = build(dialect, true, &[tool("t", schema)], Choice::Required, false, Reasoning::Off).unwrap();
            let bare = name == "say \"hi\"" || name == "a b";
            let call = match (dialect, bare) {
                ("gemma4", true) => format!("{open}{name}:5}}<tool_call|>"),
                ("gemma4", false) => format!("{open}<|\"|>{name}<|\"|>:5}}<tool_call|>"),
                _ => format!("{open}<parameter={name}>\n5\n</parameter>\n</function>\n</tool_call>"),
            };
            assert!(accepts(&mut m, tokenizer(true), &call), "{dialect}: {call}");
        }
    }
}

#[test]
fn what_a_notation_cannot_hold_a_strict_tool_to_is_an_error() {
    let object = |s: Value| json!({"type": "object", "properties": {"a": s}, "required": ["a"]});
    let named = json!({"type": "object", "patternProperties": {"^x": {"type": "integer"}}});
    let pair = object(json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}}));
    let both = object(json!({"type": "string", "format": "date", "pattern": "^2"}));
    for (dialect, schema, wanted) in [
        ("qwen3.5", &named, "patternProperties"),
        ("gemma4", &named, "patternProperties"),
        ("gemma4", &pair, "prefixItems"),
        ("qwen3.5", &both, "format"),
        ("gemma4", &both, "format"),
        ("qwen3.5", &json!({"type": "object", "properties": {"a>b": {"type": "integer"}}}), "properties"),
        ("gemma4", &json!({"type": "object", "properties": {"a<|\"|>b": {"type": "integer"}}}), "properties"),
    ] {
        let of = |strict: bool| {
            let t = [Tool { name: "t".into(), parameters: schema.clone(), strict }];
            build(dialect, true, &t, Choice::Required, false, Reasoning::Off)
        };
        assert!(
            matches!(of(true), Err(Error::Schema { keyword, .. }) if keyword == wanted),
            "{dialect} {wanted} {:?}",
            of(true).err()
        );
        let lax = of(false).unwrap();
        assert_eq!(lax.warnings().len(), 1, "{dialect} {wanted}");
    }
}

#[test]
fn sixty_tools_at_once() {
    let tools: Vec<Tool> = (0..60)
        .map(|i| tool(&format!("tool_{i}"), json!({"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text"]})))
        .collect();
    for dialect in DIALECTS {
        let mut m = build(dialect, true, &tools, Choice::Required, true, Reasoning::Off).unwrap();
        assert!(m.mask().unwrap().iter().any(|w| *w != 0), "{dialect}");
    }
    let t = tokenizer(true);
    let mut m = build("qwen3", true, &tools, Choice::Required, true, Reasoning::Off).unwrap();
    assert!(accepts(&mut m, t, "<tool_call>\n{\"name\": \"tool_59\", \"arguments\": {\"text\": \"a\"}}\n</tool_call>"));
    assert!(vocab::MARKERS.len() > 20);
}

#[test]
fn a_schema_that_leads_back_to_itself_is_relaxed_or_refused() {
    let circle = json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]});
    for dialect in DIALECTS {
        let of = |strict: bool| {
            let tools = [Tool { name: "f".into(), parameters: circle.clone(), strict }];
            build(dialect, true, &tools, Choice::Required, false, Reasoning::Off)
        };
        let m = of(false).unwrap_or_else(|e| panic!("{dialect}: {e}"));
        assert_eq!(m.warnings()[0].path, "f/properties/a", "{dialect}");
        match of(true) {
            Err(Error::Schema { path, keyword, .. }) => {
                assert_eq!((path.as_str(), keyword.as_str()), ("f/properties/a", "$ref"))
            }
            other => panic!("{dialect}: {other:?}"),
        }
    }
}
