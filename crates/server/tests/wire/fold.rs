//! Streams of the three APIs folded to what their responses say at once.

use serde_json::{Map, Value, json};

use crate::rig::Reply;

/// An answer without ids and times, comparable between the APIs' two forms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Reasoning, text and calls in order, neighbours of one kind joined.
    pub items: Vec<(&'static str, String)>,
    pub finish: String,
}

impl Said {
    fn push(&mut self, kind: &'static str, text: &str) {
        match self.items.last_mut() {
            Some((k, t)) if *k == kind && kind != "call" => t.push_str(text),
            _ if text.is_empty() && kind != "call" => {}
            _ => self.items.push((kind, text.into())),
        }
    }

    fn more(&mut self, text: &str) {
        self.items.last_mut().unwrap().1.push_str(text);
    }

    pub fn of(&self, kind: &str) -> Vec<&str> {
        self.items.iter().filter(|(k, _)| *k == kind).map(|(_, t)| t.as_str()).collect()
    }

    pub fn text(&self) -> String {
        self.of("text").concat()
    }

    /// All of one kind joined, as chat completions have them.
    fn joined(mut self) -> Self {
        let texts = |k| self.of(k).concat();
        let (reasoning, text) = (texts("reasoning"), texts("text"));
        self.items.retain(|(k, _)| *k == "call");
        let head = [("reasoning", reasoning), ("text", text)];
        self.items.splice(0..0, head.into_iter().filter(|(_, t)| !t.is_empty()));
        self
    }
}

pub fn str(v: &Value) -> &str {
    v.as_str().unwrap_or_default()
}

/// A chat completion.
pub fn chat_whole(r: &Reply) -> Said {
    let choice = &r.ok()["choices"][0];
    let m = &choice["message"];
    let mut said = Said { finish: str(&choice["finish_reason"]).into(), ..Said::default() };
    said.push("reasoning", str(&m["reasoning_content"]));
    said.push("text", str(&m["content"]));
    for c in m["tool_calls"].as_array().into_iter().flatten() {
        said.push("call", &format!("{}{}", str(&c["function"]["name"]), str(&c["function"]["arguments"])));
    }
    said
}

/// A stream of chat completion chunks.
pub fn chat_stream(r: &Reply) -> Said {
    let mut said = Said::default();
    let mut calls = 0;
    for e in r.events() {
        let Some(choice) = e["choices"].get(0) else { continue };
        let d = &choice["delta"];
        said.push("reasoning", str(&d["reasoning_content"]));
        said.push("text", str(&d["content"]));
        for c in d["tool_calls"].as_array().into_iter().flatten() {
            if let Some(name) = c["function"]["name"].as_str() {
                assert_eq!(c["index"], calls, "calls are numbered in order");
                assert!(c["id"].as_str().is_some_and(|id| !id.is_empty()) && c["type"] == "function");
                calls += 1;
                said.push("call", name);
            } else {
                assert_eq!(c["index"], calls - 1);
            }
            said.more(str(&c["function"]["arguments"]));
        }
        if let Some(f) = choice["finish_reason"].as_str() {
            assert_eq!(said.finish, "", "an end comes once");
            said.finish = f.into();
        }
    }
    said.joined()
}

fn block(said: &mut Said, b: &Value) {
    match str(&b["type"]) {
        "thinking" => said.push("reasoning", str(&b["thinking"])),
        "text" => said.push("text", str(&b["text"])),
        "tool_use" => said.push("call", &format!("{}{}", str(&b["name"]), b["input"])),
        other => panic!("a block of type {other}"),
    }
}

/// A message.
pub fn messages_whole(r: &Reply) -> Said {
    let m = r.ok();
    let mut said = Said { finish: str(&m["stop_reason"]).into(), ..Said::default() };
    m["content"].as_array().unwrap().iter().for_each(|b| block(&mut said, b));
    said
}

/// A stream of a message's events.
pub fn messages_stream(r: &Reply) -> Said {
    let (mut said, mut open, mut json_text, mut next) = (Said::default(), None::<Value>, String::new(), 0);
    let mut over = false;
    for e in r.events() {
        assert!(!over, "nothing comes after message_stop");
        match str(&e["type"]) {
            "message_start" => assert_eq!(e["message"]["content"], json!([])),
            "content_block_start" => {
                assert!(open.is_none(), "one block at a time");
                assert_eq!(e["index"], next);
                next += 1;
                open = Some(e["content_block"].clone());
                json_text.clear();
            }
            "content_block_delta" => {
                assert_eq!(e["index"], next - 1);
                let (b, d) = (open.as_mut().unwrap(), &e["delta"]);
                let mut add = |key: &str| b[key] = format!("{}{}", str(&b[key]), str(&d[key])).into();
                match str(&d["type"]) {
                    "thinking_delta" => add("thinking"),
                    "signature_delta" => add("signature"),
                    "text_delta" => add("text"),
                    "input_json_delta" => json_text.push_str(str(&d["partial_json"])),
                    other => panic!("a delta of type {other}"),
                }
            }
            "content_block_stop" => {
                let mut b = open.take().unwrap();
                if b["type"] == "tool_use" {
                    // What a client makes of pieces that are no object is its own affair; ours are kept under a name.
                    let whole = serde_json::from_str::<Map<String, Value>>(&json_text).map(Value::from);
                    b["input"] = whole.unwrap_or_else(|_| json!({text::RAW_ARGUMENTS: json_text}));
                }
                block(&mut said, &b);
            }
            "message_delta" => said.finish = str(&e["delta"]["stop_reason"]).into(),
            "message_stop" => over = true,
            "ping" => {}
            other => panic!("an event of type {other}"),
        }
    }
    assert!(over && open.is_none());
    said
}

fn item(said: &mut Said, i: &Value) {
    match str(&i["type"]) {
        "reasoning" => said.push("reasoning", str(&i["content"][0]["text"])),
        "message" => said.push("text", str(&i["content"][0]["text"])),
        "function_call" => said.push("call", &format!("{}{}", str(&i["name"]), str(&i["arguments"]))),
        "custom_tool_call" => said.push("call", &format!("{}{}", str(&i["name"]), str(&i["input"]))),
        other => panic!("an item of type {other}"),
    }
}

/// A response.
pub fn responses_whole(r: &Reply) -> Said {
    response(&r.ok())
}

fn response(r: &Value) -> Said {
    let mut said = Said { finish: str(&r["status"]).into(), ..Said::default() };
    r["output"].as_array().unwrap().iter().for_each(|i| item(&mut said, i));
    said
}

/// A stream of a response's events: the deltas and the items that end must say the same as the response at the end.
pub fn responses_stream(r: &Reply) -> Said {
    let mut from_deltas = Said::default();
    let mut from_items = Said::default();
    for (n, e) in r.events().iter().enumerate() {
        assert_eq!(e["sequence_number"], n);
        let delta = str(&e["delta"]);
        match str(&e["type"]) {
            "response.output_item.added" => match str(&e["item"]["type"]) {
                "function_call" | "custom_tool_call" => from_deltas.push("call", str(&e["item"]["name"])),
                _ => {}
            },
            "response.output_text.delta" => from_deltas.push("text", delta),
            "response.reasoning_text.delta" => from_deltas.push("reasoning", delta),
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                from_deltas.more(delta)
            }
            "response.output_item.done" => {
                assert_eq!(e["output_index"].as_u64().unwrap() as usize, from_items.items.len());
                item(&mut from_items, &e["item"]);
            }
            "response.completed" | "response.incomplete" => {
                let last = response(&e["response"]);
                (from_deltas.finish, from_items.finish) = (last.finish.clone(), last.finish.clone());
                assert_eq!(from_deltas, last);
                assert_eq!(from_items, last);
                return last;
            }
            _ => {}
        }
    }
    panic!("the stream has no end: {}", r.text());
}
