//! What streams look like: characters, ends, stop strings, usage.

use serde_json::{Value, json};

use crate::fold::{chat_stream, chat_whole, messages_stream, messages_whole, responses_stream, responses_whole, str};
use crate::rig::{Reply, Rig, Setup, says, user, with};

fn steps(steps: Value) -> Rig {
    Rig::new(Setup { script: json!({"answers": [{"steps": steps}]}), ..Setup::default() })
}

/// The text on all three APIs, streamed or not.
fn texts(rig: &Rig, more: Value) -> Vec<String> {
    let body = |stream: bool| with(json!({"stream": stream}), more.clone());
    let limit = more.get("max_tokens").map_or(json!({}), |n| json!({"max_output_tokens": n}));
    vec![
        chat_whole(&rig.chat(body(false))).text(),
        chat_stream(&rig.chat(body(true))).text(),
        messages_whole(&rig.messages(body(false))).text(),
        messages_stream(&rig.messages(body(true))).text(),
        responses_whole(&rig.responses(with(body(false), limit.clone()))).text(),
        responses_stream(&rig.responses(with(body(true), limit))).text(),
    ]
}

#[test]
fn characters_are_never_cut_and_broken_ones_become_one_replacement() {
    for (bytes, right) in [
        ("F09F9880", "😀"),
        ("EDA080", "\u{FFFD}"),
        ("C080", "\u{FFFD}"),
        ("6F6BFF6F6B", "ok\u{FFFD}ok"),
        ("F09F91A9E2808DF09F91A9E2808DF09F91A7", "👩‍👩‍👧"),
        ("E0A495E0A58DE0A4B7E0A4BF", "क्षि"),
    ] {
        let rig = steps(json!([{"bytes": bytes}]));
        assert_eq!(texts(&rig, json!({})), vec![right; 6], "{bytes}");
    }
    let rig = steps(json!([{"bytes": "F09F9880"}]));
    assert_eq!(texts(&rig, json!({"max_tokens": 2})), vec!["\u{FFFD}"; 6], "cut by the limit");
}

#[test]
fn ordinary_text_is_not_held_back() {
    let rig = steps(json!(["Hel", "lo", {"ms": 30}, " wor", "ld"]));
    let events = rig.chat(json!({"stream": true})).events();
    let pieces: Vec<&str> =
        events.iter().map(|e| str(&e["choices"][0]["delta"]["content"])).filter(|s| !s.is_empty()).collect();
    assert!(pieces.len() > 1 && pieces.concat() == "Hello world", "{pieces:?}");
}

#[test]
fn an_end_inside_reasoning_is_no_end() {
    let rig =
        steps(json!(["<think>", "the format ends with ", {"end": true}, "and so on", "</think>", "ok", {"end": true}]));
    for (said, good) in [
        (chat_whole(&rig.chat(json!({}))), "stop"),
        (chat_stream(&rig.chat(json!({"stream": true}))), "stop"),
        (messages_whole(&rig.messages(json!({}))), "end_turn"),
        (messages_stream(&rig.messages(json!({"stream": true}))), "end_turn"),
        (responses_whole(&rig.responses(json!({}))), "completed"),
        (responses_stream(&rig.responses(json!({"stream": true}))), "completed"),
    ] {
        assert_eq!(said.of("reasoning"), ["the format ends with"], "the region is closed and the model goes on");
        assert!(said.text().contains("ok") && said.finish == good, "{said:?}");
    }
    // Asked once to go on, it ends without an answer: that is said.
    let rig = steps(json!(["<think>", "hm", {"end": true}, "<think>", "hm again", {"end": true}]));
    let r = rig.chat(json!({})).ok();
    assert_eq!(r["choices"][0]["finish_reason"], "length");
    assert!(str(&r["choices"][0]["note"]).contains("inside its reasoning"));
    assert_eq!(messages_whole(&rig.messages(json!({}))).finish, "max_tokens");
    assert_eq!(responses_whole(&rig.responses(json!({}))).finish, "incomplete");
}

#[test]
fn an_end_behind_reasoning_is_no_good_end() {
    // It ends inside its reasoning, is made to close it and go on, and ends again.
    let twice = || steps(json!(["<think>", "hm", {"end": true}, {"end": true}]));
    let closed = || steps(json!(["<think>", "hm", "</think>", {"end": true}]));
    let harmony = |script: Value| {
        let script = json!({"answers": [{"steps": script}]});
        Rig::new(Setup { script, dialect: Some("harmony"), ..Setup::default() })
    };
    let analysis = || harmony(json!(["<|channel|>analysis<|message|>", "hm", {"end": true}, {"end": true}]));
    let ended = || harmony(json!(["<|channel|>analysis<|message|>", "hm", "<|end|>", {"end": true}]));
    for rig in [twice(), closed(), analysis(), ended()] {
        for (said, right) in [
            (chat_whole(&rig.chat(json!({}))), "length"),
            (chat_stream(&rig.chat(json!({"stream": true}))), "length"),
            (messages_whole(&rig.messages(json!({}))), "max_tokens"),
            (messages_stream(&rig.messages(json!({"stream": true}))), "max_tokens"),
            (responses_whole(&rig.responses(json!({}))), "incomplete"),
            (responses_stream(&rig.responses(json!({"stream": true}))), "incomplete"),
        ] {
            assert_eq!((said.of("reasoning"), said.text().as_str(), said.finish.as_str()), (vec!["hm"], "", right));
        }
        let r = rig.chat(json!({})).ok();
        assert!(str(&r["choices"][0]["note"]).contains("no answer"), "{r}");
    }
}

#[test]
fn a_message_without_its_header_is_the_answer_in_gpt_oss() {
    let script = json!({"answers": [{"steps": ["Hello there."]}]});
    let rig = Rig::new(Setup { script, dialect: Some("harmony"), ..Setup::default() });
    assert_eq!(texts(&rig, json!({})), vec!["Hello there."; 6]);
}

#[test]
fn a_budget_of_reasoning_closes_it_and_the_model_goes_on() {
    let rig = steps(json!(["<think>", "one two three four five", "</think>", "ok"]));
    let thought = "one tw";
    let n = thought.len() + "<think>".len().min(1);
    for said in [
        chat_whole(&rig.chat(json!({"thinking_budget": n}))),
        chat_stream(&rig.chat(json!({"reasoning": {"max_tokens": n}, "stream": true}))),
        messages_whole(&rig.messages(json!({"thinking": {"type": "enabled", "budget_tokens": n - 1}}))),
        messages_stream(
            &rig.messages(json!({"thinking": {"type": "enabled", "budget_tokens": n - 1}, "stream": true})),
        ),
        responses_whole(&rig.responses(json!({"thinking_budget": n}))),
    ] {
        let thought = said.of("reasoning").concat();
        assert!(!thought.is_empty() && thought.len() <= n, "{said:?}");
        // The script goes on regardless; a model would see that its reasoning is over.
        assert!(said.text().ends_with("fiveok"), "{said:?}");
    }
    // One that is not reached changes nothing, and an answer held to a form may follow.
    let said = chat_whole(&rig.chat(json!({"thinking_budget": 1000})));
    assert_eq!((said.of("reasoning"), said.text().as_str()), (vec!["one two three four five"], "ok"));
    let said = chat_whole(&rig.chat(json!({"thinking_budget": n, "regex": "[0-9]{2}"})));
    assert!(said.of("reasoning").concat().len() <= n, "{said:?}");
    assert!(said.text().len() == 2 && said.text().bytes().all(|b| b.is_ascii_digit()), "{said:?}");
}

#[test]
fn stop_strings_end_the_text_before_them_and_never_leak() {
    let rig = says(&["one STOP two"]);
    let r = rig.chat(json!({"stop": ["STOP", "x"]})).ok();
    assert_eq!(
        (&r["choices"][0]["message"]["content"], &r["choices"][0]["finish_reason"]),
        (&json!("one "), &json!("stop"))
    );
    let events = rig.chat(json!({"stop": "STOP", "stream": true})).events();
    assert!(events.iter().all(|e| !str(&e["choices"][0]["delta"]["content"]).contains('S')));
    let r = rig.messages(json!({"stop_sequences": ["STOP"]})).ok();
    assert_eq!(
        (&r["stop_reason"], &r["stop_sequence"], &r["content"][0]["text"]),
        (&json!("stop_sequence"), &json!("STOP"), &json!("one "))
    );
    let last = rig.messages(json!({"stop_sequences": ["STOP"], "stream": true})).events();
    let delta = last.iter().find(|e| e["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"], json!({"stop_reason": "stop_sequence", "stop_sequence": "STOP"}));
    let said = |stop: Value| chat_whole(&rig.chat(json!({"stop": stop})));
    for all in [json!(null), json!(""), json!([]), json!([""])] {
        assert_eq!(said(all).text(), "one STOP two");
    }
    assert_eq!(said(json!("one")).text(), "", "the very first output");
    assert_eq!(rig.chat(json!({"stop": (0..20).map(|i| format!("s{i}")).collect::<Vec<_>>()})).status, 200);
    assert_eq!(rig.chat(json!({"stop": (0..65).map(|i| format!("s{i}")).collect::<Vec<_>>()})).status, 400);
    assert_eq!(rig.chat(json!({"stop": ["a", null]})).status, 400);
    let special = says(&["a<|im_end|>b"]);
    let r = special.post("/v1/completions", &json!({"prompt": "x", "stop": "<|im_end|>", "max_tokens": 50})).ok();
    assert_eq!(r["choices"][0]["text"], "a", "a special token as a stop string is where the model ends anyway");
}

fn usage_chunks(r: &Reply) -> Vec<Value> {
    r.events().into_iter().filter(|e| e.get("usage").is_some_and(|u| !u.is_null())).collect()
}

#[test]
fn usage_comes_once_at_the_end_if_asked_for() {
    let rig = says(&["five."]);
    for options in [json!(null), json!({}), json!({"include_usage": false})] {
        assert!(usage_chunks(&rig.chat(json!({"stream": true, "stream_options": options}))).is_empty());
    }
    let r = rig.chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let chunks = usage_chunks(&r);
    assert_eq!(chunks.len(), 1);
    assert_eq!(chunks[0]["choices"], json!([]));
    let u = &chunks[0]["usage"];
    assert_eq!((&u["completion_tokens"], &u["prompt_tokens_details"]["cached_tokens"]), (&json!(5), &json!(0)));
    assert_eq!(r.events().last().unwrap(), &chunks[0]);
    assert!(r.text().ends_with("data: [DONE]\n\n"));
    let whole = rig.chat(json!({"stream_options": {"include_usage": true}})).ok();
    assert_eq!(whole["usage"], *u);
    assert_eq!(u["total_tokens"].as_u64(), Some(u["prompt_tokens"].as_u64().unwrap() + 5));
    let r = rig.responses(json!({"stream": true}));
    let last = r.events().pop().unwrap();
    assert_eq!(last["response"]["usage"]["output_tokens"], 5);
    let m = rig.messages(json!({})).ok();
    assert_eq!(m["usage"]["output_tokens"], 5);
    assert_eq!(m["usage"]["input_tokens"], u["prompt_tokens"]);
}

#[test]
fn every_event_names_its_type_and_streams_have_their_headers() {
    let rig = says(&["x"]);
    for r in [rig.messages(json!({"stream": true})), rig.responses(json!({"stream": true}))] {
        let mut lines = r.text().lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("event: ") {
                let data: Value = serde_json::from_str(lines.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
                assert_eq!(data["type"], name);
            }
        }
        assert!(r.header("content-type").unwrap().starts_with("text/event-stream"));
        assert!(r.header("x-request-id").unwrap().starts_with("req_"));
    }
}

#[test]
fn several_answers_have_their_own_indices_and_seeds() {
    let script = json!({"parallel": 4, "answers": [{"steps": ["one"]}, {"steps": ["two"]}, {"steps": ["three"]}]});
    let rig = Rig::new(Setup { script, ..Setup::default() });
    let r = rig.chat(json!({"n": 3})).ok();
    let mut texts: Vec<&str> = r["choices"].as_array().unwrap().iter().map(|c| str(&c["message"]["content"])).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["one", "three", "two"]);
    assert_eq!(r["usage"]["completion_tokens"], 11);
    let mut streamed = vec![String::new(); 3];
    let mut ends = 0;
    for e in rig.chat(json!({"n": 3, "stream": true})).events() {
        let c = &e["choices"][0];
        streamed[c["index"].as_u64().unwrap() as usize].push_str(str(&c["delta"]["content"]));
        ends += usize::from(c["finish_reason"] == "stop");
    }
    streamed.sort_unstable();
    assert_eq!((streamed, ends), (vec!["one".to_owned(), "three".into(), "two".into()], 3));
}

#[test]
fn every_prompt_of_a_completion_has_its_answers() {
    let rig = says(&["one", "two", "three", "four"]);
    let ask = |more: Value| rig.post("/v1/completions", &with(json!({"max_tokens": 9, "echo": true}), more));
    let texts = |choices: &Value| -> Vec<String> {
        choices
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
            .map(|(i, c)| {
                assert_eq!(c["index"], i);
                str(&c["text"]).to_owned()
            })
            .collect()
    };
    let r = ask(json!({"prompt": ["a", [98, 99]], "n": 2})).ok();
    assert_eq!(texts(&r["choices"]), ["aone", "atwo", "bcthree", "bcfour"]);
    assert_eq!((&r["usage"]["prompt_tokens"], &r["usage"]["completion_tokens"]), (&json!(3), &json!(15)));
    let mut streamed = vec![String::new(); 2];
    for e in ask(json!({"prompt": ["a", "b"], "stream": true})).events() {
        let c = &e["choices"][0];
        streamed[c["index"].as_u64().unwrap() as usize].push_str(str(&c["text"]));
    }
    assert_eq!(streamed, ["aone", "btwo"]);
    for (bad, field) in
        [(json!(["a", 5]), "prompt[1]"), (json!([[1], [-1]]), "prompt[1][0]"), (json!(vec!["x"; 65]), "prompt")]
    {
        let r = ask(json!({"prompt": bad}));
        assert_eq!((r.status, r.json()["error"]["param"].as_str()), (400, Some(field)), "{}", r.text());
    }
}

#[test]
fn logprobs_come_for_every_token_streamed_and_whole() {
    let rig = steps(json!(["h", {"bytes": "C3A9"}]));
    let r = rig.chat(json!({"logprobs": true, "top_logprobs": 2})).ok();
    let content = &r["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().unwrap().len(), 3);
    assert_eq!((&content[0]["token"], &content[0]["bytes"]), (&json!("h"), &json!([104])));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(content[1]["bytes"], json!([0xC3]), "half a character has its bytes");
    let streamed: Vec<Value> = rig
        .chat(json!({"logprobs": true, "top_logprobs": 2, "stream": true}))
        .events()
        .iter()
        .flat_map(|e| e["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(json!(streamed), *content);
    let r = rig.responses(json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1})).ok();
    assert_eq!(r["output"][0]["content"][0]["logprobs"].as_array().unwrap().len(), 3);
    let c = rig.post("/v1/completions", &json!({"prompt": "ab", "echo": true, "max_tokens": 0, "logprobs": 1})).ok();
    let c = &c["choices"][0];
    assert_eq!((&c["text"], &c["finish_reason"]), (&json!("ab"), &json!("length")));
    assert_eq!(c["logprobs"]["tokens"], json!(["a", "b"]));
    assert_eq!(
        (&c["logprobs"]["token_logprobs"][0], c["logprobs"]["token_logprobs"][1].is_number()),
        (&json!(null), true)
    );
    assert_eq!(c["logprobs"]["text_offset"], json!([0, 1]));
}

#[test]
fn reasoning_switches_reach_the_template_and_reasoning_is_apart() {
    let rig = says(&["because</think>ok"]);
    let on = |r: &Reply| {
        assert_eq!(r.status, 200, "{}", r.text());
        rig.prompts().pop().unwrap().ends_with("<think>\n")
    };
    assert!(on(&rig.chat(json!({"reasoning_effort": "high"}))));
    assert!(!on(&rig.chat(json!({"reasoning_effort": "none"}))));
    assert!(on(&rig.chat(json!({"chat_template_kwargs": {"enable_thinking": true}}))));
    assert!(on(&rig.messages(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}))));
    assert!(!on(&rig.messages(json!({"thinking": {"type": "disabled"}}))));
    assert!(on(&rig.responses(json!({"reasoning": {"effort": "low"}}))));
    let said = chat_whole(&rig.chat(json!({"reasoning_effort": "high", "messages": [user("x")]})));
    assert_eq!((said.of("reasoning"), said.text().as_str()), (vec!["because"], "ok"));
    let m = rig.messages(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})).ok();
    assert_eq!((&m["content"][0]["thinking"], &m["content"][1]["text"]), (&json!("because"), &json!("ok")));
    assert!(!str(&m["content"][0]["signature"]).is_empty());
    let back = json!([user("x"), {"role": "assistant", "content": m["content"]}, user("y")]);
    rig.messages(json!({"messages": back})).ok();
    assert!(rig.prompts().pop().unwrap().contains("<think>because</think>ok"), "signed reasoning is taken back");
}
