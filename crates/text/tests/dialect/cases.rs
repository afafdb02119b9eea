//! Single cases that say what is right when a model does something odd.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use text::{
    Tokenizer,
    dialect::{Dialect, Ending, Event, Finish, OutputParser, Parsed, ParserOptions, Region, Summary},
};

use crate::{
    Run, tokenizer,
    write::{Answer, DIALECTS, tools, write},
};

/// Runs with and without marker ids, byte by byte and whole; all must agree.
fn read(dialect: &str, inside: bool, text: &str, how: Finish) -> (Parsed, Summary) {
    let tools = tools();
    let runs = [true, false].map(|markers| {
        let run = Run { dialect, markers, inside, tools: &tools, foreign: false };
        let whole = run.chunks(text, &[], how);
        assert_eq!(run.ids(text, how), whole, "{dialect} byte by byte: {text}");
        whole
    });
    assert_eq!(runs[0], runs[1], "{dialect} with and without marker ids: {text}");
    runs[0].clone()
}

fn ended(dialect: &str, text: &str, how: Finish) -> Ending {
    read(dialect, false, text, how).1.ending
}

fn call(dialect: &str, text: &str) -> (String, Value) {
    let (got, summary) = read(dialect, false, text, Finish::End);
    assert_eq!((summary.ending, summary.degraded), (Ending::Complete, false), "{text}");
    assert_eq!((got.content.as_str(), got.calls.len()), ("", 1), "{text}");
    (got.calls[0].name.clone(), serde_json::from_str(&got.calls[0].arguments).unwrap())
}

#[test]
fn the_end_inside_reasoning_is_said() {
    for (dialect, text) in [
        ("qwen3", "<think>\nthe format ends with "),
        ("gemma4", "<|channel>thought\nhm"),
        ("harmony", "<|channel|>analysis<|message|>hm"),
        ("plain", "<think>hm"),
    ] {
        let (got, summary) = read(dialect, false, text, Finish::End);
        assert_eq!(summary.ending, Ending::InsideReasoning, "{dialect}");
        assert!(!got.reasoning.is_empty() && got.content.is_empty());
    }
    let (got, summary) = read("glm", true, "so far", Finish::Cut);
    assert_eq!((got.reasoning.as_str(), summary.ending), ("so far", Ending::InsideReasoning));
}

#[test]
fn an_end_token_inside_reasoning_can_be_overruled() {
    let t = tokenizer(true);
    let dialect = Dialect::named("qwen3.5", t).unwrap();
    let mut p = OutputParser::new(&dialect, &ParserOptions { inside_reasoning: true, ..Default::default() });
    let mut got = Parsed::default();
    p.push_bytes(b"the format ends with ", &mut |e| got.push(e));
    assert_eq!(p.region(), Region::Reasoning);
    // As words:
    p.push_bytes(b"<eos>, ", &mut |e| got.push(e));
    // Or closed and made to go on:
    for id in crate::vocab::ids(t, dialect.reasoning_end().unwrap(), &["</think>"]) {
        p.push(t, id, &mut |e| got.push(e));
    }
    assert_eq!(p.region(), Region::Content);
    p.push_bytes(b"\n\nok", &mut |e| got.push(e));
    assert_eq!(p.finish(Finish::End, &mut |e| got.push(e)).ending, Ending::Complete);
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("the format ends with <eos>,", "ok"));
}

#[test]
fn end_tokens_say_nothing() {
    let t = tokenizer(true);
    let mut p = OutputParser::new(&Dialect::named("qwen3", t).unwrap(), &ParserOptions::default());
    let mut got = Parsed::default();
    for id in [u32::from(b'a'), t.eos().unwrap(), u32::from(b'b'), 99_999] {
        p.push(t, id, &mut |e| got.push(e));
    }
    p.finish(Finish::End, &mut |e| got.push(e));
    assert_eq!(got.content, "ab");
}

#[test]
fn reasoning_may_talk_about_calls() {
    let text = "<think>\nI could write `<tool_call>` or <tool_call>\n<function=nonsense>\n here.\n</think>\n\nHi";
    let (got, summary) = read("qwen3.5", false, text, Finish::End);
    assert_eq!(got.reasoning, "I could write `<tool_call>` or <tool_call>\n<function=nonsense>\n here.");
    assert_eq!((got.content.as_str(), got.calls.len(), summary.degraded), ("Hi", 0, false));
    // Even a whole one, in backticks.
    let text = "<think>Like `<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>`.</think>Hi";
    let (got, _) = read("qwen3", false, text, Finish::End);
    assert_eq!((got.calls.len(), got.content.as_str()), (0, "Hi"));
}

#[test]
fn a_real_call_ends_reasoning_that_was_not_closed() {
    let text = "Need it.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let (got, summary) = read("qwen3", true, text, Finish::End);
    assert_eq!((got.reasoning.as_str(), got.content.as_str(), got.calls.len()), ("Need it.", "", 1));
    assert_eq!(summary.ending, Ending::Complete);
    let text = "Need it.\n<tool_call>\n<function=now>\n</function>\n</tool_call>";
    assert_eq!(read("qwen3.5", true, text, Finish::End).0.calls.len(), 1);
}

#[test]
fn calls_that_are_cut_off_are_never_prose() {
    let a = Answer {
        reasoning: None,
        content: "Look:".into(),
        calls: vec![("get_weather".into(), json!({"city": "Paris", "days": 2}).as_object().cloned().unwrap())],
    };
    for dialect in DIALECTS {
        let text = write(dialect, &a, false);
        let begin = text.find("Look:").unwrap() + 5;
        let last = text.rfind("days").unwrap();
        for cut in (begin..last).filter(|c| text.is_char_boundary(*c)) {
            let (got, summary) = read_cut(dialect, &text[..cut]);
            assert!(got.calls.iter().all(|c| !c.complete), "{dialect}: {}", &text[..cut]);
            assert!(!got.content.contains("get_weather"), "{dialect}: {}", &text[..cut]);
            if !got.calls.is_empty() {
                assert_eq!(summary.ending, Ending::InsideCall { index: Some(0) }, "{dialect}: {}", &text[..cut]);
            }
        }
    }
    for (dialect, text) in [
        ("qwen3", "<tool_call>\n{\"na"),
        ("glm", "a<tool_call>get"),
        ("harmony", "<|channel|>commentary to=functions.no"),
    ] {
        assert_eq!(ended(dialect, text, Finish::End), Ending::InsideCall { index: None }, "{dialect}");
    }
}

/// A cut may fall inside a marker, so only text is compared.
fn read_cut(dialect: &str, text: &str) -> (Parsed, Summary) {
    let tools = tools();
    let run = Run { dialect, markers: false, inside: false, tools: &tools, foreign: false };
    run.ids(text, Finish::Cut)
}

#[test]
fn calls_are_recovered_when_only_their_end_is_missing() {
    let city = json!({"city": "x"});
    for (dialect, text) in [
        ("qwen3", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"}"),
        ("qwen3", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"},"),
        ("qwen3", "<tool_call>{\"arguments\": {\"city\": \"x\"}, \"name\": \"get_weather\"}"),
        ("qwen3", "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"x\\\"}\"}</tool_call>"),
        ("qwen3.5", "<function=get_weather>\n<parameter=city>\nx\n</parameter>\n</function>"),
        ("qwen3.5", "<tool_call>\n<function=get_weather>\n<parameter=city>x</parameter>\n</tool_call>"),
        (
            "minimax-m2",
            "<minimax:tool_call><invoke name=\"get_weather\"><parameter name=\"city\">x</parameter></invoke>",
        ),
        ("gemma4", "<|tool_call>call:get_weather{city:x}"),
        ("harmony", "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"x\"}"),
        ("mistral", "[TOOL_CALLS][{\"arguments\": {\"city\": \"x\"}, \"name\": \"get_weather\"}"),
        ("llama", "{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"x\"}}"),
    ] {
        assert_eq!(call(dialect, text), ("get_weather".into(), city.clone()), "{dialect}: {text}");
    }
    // Quotes that belong to a key, a pair that does not, and keys that cannot stand bare.
    let keys = "say \"hi\":1,\"q\":2,<|\"|>a:b<|\"|>:3,<|\"|>\"z\"<|\"|>:say \"hi\"";
    let (_, got) = call("gemma4", &format!("<|tool_call>call:get_weather{{{keys}}}<tool_call|>"));
    assert_eq!(got, json!({"say \"hi\"": 1, "q": 2, "a:b": 3, "\"z\"": "say \"hi\""}));
    for (dialect, text) in [
        ("qwen3", "<tool_call>{\"name\": \"now\"}</tool_call>"),
        ("qwen3", "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>"),
        ("harmony", "<|channel|>commentary to=functions.now<|message|>"),
        ("harmony", "<|channel|>commentary to=functions.now<|message|><|call|>"),
        ("glm", "<tool_call>\nnow\n</tool_call>"),
        ("llama", "<|python_tag|>{\"name\": \"now\"}"),
    ] {
        assert_eq!(call(dialect, text), ("now".into(), json!({})), "{dialect}: {text}");
    }
    // The next call begins although the first was not closed.
    let text = "<tool_call>\n<function=now>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let (got, _) = read("qwen3.5", false, text, Finish::End);
    assert_eq!((got.calls.len(), got.calls.iter().all(|c| c.complete)), (2, true));
}

#[test]
fn what_is_no_call_is_text_without_markup() {
    for (dialect, text, content) in [
        ("qwen3", "<tool_call>hello</tool_call> there", "hello there"),
        ("qwen3", "<tool_call>\n{\"name\": 5}\n</tool_call>", "\n{\"name\": 5}\n"),
        ("qwen3.5", "<tool_call>\nweather?\n</tool_call>", "\nweather?\n"),
        ("minimax-m2", "<minimax:tool_call>oops</minimax:tool_call>", "oops"),
        ("gemma4", "<|tool_call>weather<tool_call|>", "weather"),
        ("harmony", "<|channel|>junk word<|message|>Hi<|return|>", "Hi"),
        ("deepseek-v4", "<｜DSML｜tool_calls>\nno\n</｜DSML｜tool_calls>", "\nno\n"),
        ("mistral", "[TOOL_CALLS]!", "!"),
    ] {
        let (got, summary) = read(dialect, false, text, Finish::End);
        assert_eq!((got.content.as_str(), got.calls.len(), summary.degraded), (content, 0, true), "{dialect}: {text}");
    }
    // Not even malformed: answers in JSON, prose about tags.
    for (dialect, text) in [
        ("llama", "{\"name\": \"Bob\", \"parameters\": {\"age\": 5}}"),
        ("llama", "{\"a\": 1}"),
        ("qwen3.5", "In C: a <function=b> tag"),
        ("harmony", "<|message|>Hi"),
        ("plain", "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"),
    ] {
        let (got, summary) = read(dialect, false, text, Finish::End);
        assert_eq!(got.content, text.trim_start_matches("<|message|>"), "{dialect}");
        assert_eq!(
            (got.calls.len(), summary.degraded, summary.ending),
            (0, false, Ending::Complete),
            "{dialect}: {text}"
        );
    }
}

#[test]
fn a_call_that_breaks_its_grammar_has_no_end() {
    for (dialect, text) in [
        ("qwen3", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\" 1}}</tool_call>after"),
        ("gemma4", "<|tool_call>call:now{a:1]<tool_call|>after"),
        (
            "harmony",
            "<|channel|>commentary to=functions.now<|message|>print(1)<|call|><|start|>assistant<|channel|>final<|message|>after",
        ),
    ] {
        let (got, summary) = read(dialect, false, text, Finish::End);
        assert_eq!(summary.ending, Ending::BrokenCall { index: 0 }, "{dialect}");
        assert_eq!((got.calls.len(), got.calls[0].complete, got.content.as_str()), (1, false, "after"), "{dialect}");
    }
}

#[test]
fn gpt_oss_headers_in_every_order() {
    for head in [
        " to=functions.now<|channel|>commentary json",
        " to=functions.now<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.now <|constrain|>json",
        "<|channel|>commentary to=functions.now<|constrain|>json",
        "<|channel|>analysis to=functions.now code",
        "<|channel|>commentary what to=functions.now",
    ] {
        let text = format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{head}<|message|>{{}}<|call|>");
        let (got, summary) = read("harmony", false, &text, Finish::End);
        assert_eq!((got.reasoning.as_str(), got.calls.len(), summary.degraded), ("Hm.", 1, false), "{head}");
        assert_eq!((got.calls[0].name.as_str(), got.calls[0].complete), ("now", true), "{head}");
    }
    let two =
        "<|channel|>commentary<|message|>First,<|end|><|start|>assistant<|channel|>final<|message|>then.<|return|>";
    assert_eq!(read("harmony", false, two, Finish::End).0.content, "First,\n\nthen.");
    let long = "x".repeat(1000);
    let (got, summary) = read("harmony", false, &long, Finish::End);
    assert_eq!((got.content, summary.degraded), (long, true), "a header that never ends is text");
}

#[test]
fn a_gpt_oss_message_without_its_header_is_text() {
    for (text, reasoning, content) in [
        ("Hello there.", "", "Hello there."),
        ("Hello there.<|return|>", "", "Hello there."),
        ("Hello there.<|end|><|start|>assistant<|channel|>final<|message|>More.", "", "Hello there.\n\nMore."),
        ("<|channel|>analysis<|message|>Hm.<|end|>So it is.", "Hm.", "So it is."),
        ("To be or not to=be", "", "To be or not to=be"),
    ] {
        let (got, summary) = read("harmony", false, text, Finish::End);
        assert_eq!((got.reasoning.as_str(), got.content.as_str(), got.calls.len()), (reasoning, content, 0), "{text}");
        assert_eq!((summary.ending, summary.degraded), (Ending::Complete, true), "{text}");
    }
    // A header that was cut off is none of the answer.
    for text in ["<|channel|>fin", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant", "assistant"] {
        let (got, _) = read("harmony", false, text, Finish::Cut);
        assert_eq!(got.content, "", "{text}");
    }
}

#[test]
fn what_follows_a_call_that_broke_and_was_not_closed_is_text() {
    for (dialect, text) in [
        ("qwen3", "Hi <tool_call>{\"name\": \"now\", \"arguments\": {\"a\" 1}} tail"),
        ("gemma4", "Hi <|tool_call>call:now{a:1] tail"),
        ("harmony", "<|channel|>commentary to=functions.now<|message|>print(1) tail"),
    ] {
        let (got, summary) = read(dialect, false, text, Finish::End);
        assert_eq!(summary.ending, Ending::BrokenCall { index: 0 }, "{dialect}");
        assert!(got.content.ends_with("tail"), "{dialect}: {:?}", got.content);
    }
}

#[test]
fn long_arguments_stream_and_take_linear_time() {
    let code = "fn main() { println!(\"\\\\ 😀 </tool_call> {}\"); }\n".repeat(1400);
    assert!(code.len() > 64 << 10);
    let args: Map<String, Value> = json!({"code": code, "list": [code]}).as_object().cloned().unwrap();
    let a = Answer { reasoning: None, content: String::new(), calls: vec![("get_weather".into(), args)] };
    let tools = tools();
    for dialect in DIALECTS {
        let text = write(dialect, &a, false);
        let t = tokenizer(true);
        let d = Dialect::named(dialect, t).unwrap();
        let own: Vec<&str> = d.markers().collect();
        let begun = Instant::now();
        let mut p = OutputParser::new(&d, &ParserOptions { tools: &tools, ..Default::default() });
        let (mut got, mut deltas) = (Parsed::default(), 0);
        for id in crate::vocab::ids(t, &text, &own) {
            p.push(t, id, &mut |e| {
                deltas += u32::from(matches!(e, Event::ToolCallArgs { .. }));
                got.push(e);
            });
        }
        p.finish(Finish::End, &mut |e| got.push(e));
        let args: Value = serde_json::from_str(&got.calls[0].arguments).unwrap();
        assert_eq!(args, Value::Object(a.calls[0].1.clone()), "{dialect}");
        assert!(deltas > 40_000, "{dialect}: {deltas}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{dialect}: {:?}", begun.elapsed());
    }
}

#[test]
fn ids_are_unique_stable_and_of_the_dialects_form() {
    let t = tokenizer(true);
    let make = |dialect: &str, seed: u64| {
        let d = Dialect::named(dialect, t).unwrap();
        let mut p = OutputParser::new(&d, &ParserOptions { id_seed: seed, ..Default::default() });
        let mut got = Parsed::default();
        p.push_bytes(b"", &mut |_| ());
        let text = if dialect == "mistral" {
            "[TOOL_CALLS]a[ARGS]{}"
        } else {
            "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>"
        };
        let own: Vec<&str> = d.markers().collect();
        for id in crate::vocab::ids(t, text, &own).repeat(3) {
            p.push(t, id, &mut |e| got.push(e));
        }
        p.finish(Finish::End, &mut |e| got.push(e));
        got.calls.into_iter().map(|c| c.id).collect::<Vec<_>>()
    };
    let all: Vec<String> = (0..200).flat_map(|seed| make("qwen3", seed)).collect();
    let distinct: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (600, 600));
    assert_eq!(make("qwen3", 3), make("qwen3", 3));
    assert!(make("mistral", 1).iter().all(|id| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())));
}

#[test]
fn white_space_between_the_parts_belongs_to_none() {
    let (got, _) = read("qwen3", false, "  two\n\nlines \n", Finish::End);
    assert_eq!(got.content, "  two\n\nlines \n", "content alone is exact");
    let text = "<think>\n\n a \n\n</think>\n\n b \n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n\n";
    let (got, _) = read("qwen3", false, text, Finish::End);
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("a", "b"));
    // No reasoning was opened, but the model closes some.
    assert_eq!(read("qwen3", false, "hm</think>\n\nHi", Finish::End).0.content, "hmHi");
}

#[test]
fn dialects_are_detected() {
    let (bytes, all) = (tokenizer(false), tokenizer(true));
    for (template, name) in [
        ("{{ '<tool_call>' }} {\"name\": <function-name>", "qwen3"),
        ("<tool_call>\n<function=example>", "qwen3.5"),
        ("<|tool_call>call:", "gemma4"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
        ("<｜DSML｜tool_calls>", "deepseek-v4"),
        ("<tool_call>{name}<arg_key>", "glm"),
        ("<minimax:tool_call>", "minimax-m2"),
        ("<|python_tag|>", "llama"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|im_start|>{{ message.content }}", "plain"),
    ] {
        assert_eq!(Dialect::detect(Some(template), bytes).name(), name);
        assert_eq!(Dialect::named(name, bytes).unwrap().name(), name);
    }
    assert_eq!(Dialect::detect(None, bytes).name(), "plain");
    assert_eq!(Dialect::detect(None, all).name(), "harmony");
    assert!(Dialect::named("nonsense", bytes).is_none());
    assert_eq!(Dialect::names().count(), 10);
}

#[test]
fn whether_reasoning_is_open_follows_from_the_prompt() {
    let t: &Tokenizer = tokenizer(true);
    for (name, prompt, open) in [
        ("qwen3.5", "<|im_start|>assistant\n<think>\n", true),
        ("qwen3.5", "<|im_start|>assistant\n<think>\n\n</think>\n\n", false),
        ("qwen3", "<|im_start|>assistant\n", false),
        ("glm", "<|assistant|><think>", true),
        ("glm", "<|assistant|></think>", false),
        ("minimax-m2", "]~b]ai\n<think>\n", true),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", false),
        ("gemma4", "<|turn>model\n<|channel>thought\n", true),
        ("harmony", "<|start|>assistant", false),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", true),
    ] {
        assert_eq!(Dialect::named(name, t).unwrap().opens_reasoning(prompt), open, "{prompt}");
    }
    // A model that does not know the marker does not reason.
    let plain = Dialect::detect(Some("no such thing"), tokenizer(false));
    assert!(!plain.opens_reasoning("user: <think>"));
    let mut p = OutputParser::new(&plain, &ParserOptions::default());
    let mut got = Parsed::default();
    p.push_bytes(b"<think>a</think>", &mut |e| got.push(e));
    p.finish(Finish::End, &mut |e| got.push(e));
    assert_eq!(got.content, "<think>a</think>");
}

#[test]
fn characters_are_never_broken_by_markup() {
    let t = tokenizer(true);
    let mut p = OutputParser::new(&Dialect::named("qwen3", t).unwrap(), &ParserOptions::default());
    let mut got = Parsed::default();
    for b in [0xF0, 0x9F] {
        p.push(t, b, &mut |e| got.push(e));
    }
    assert_eq!(got.content, "", "an incomplete character waits");
    p.push(t, t.id_of("<think>").unwrap(), &mut |e| got.push(e));
    p.push_bytes("é".as_bytes(), &mut |e| got.push(e));
    p.finish(Finish::Cut, &mut |e| got.push(e));
    assert_eq!((got.content.as_str(), got.reasoning.as_str()), ("\u{FFFD}", "é"));
}
