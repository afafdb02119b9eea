//! Tool calls and reasoning in every dialect: streamed and whole, split at every byte, cut off and malformed.

mod cases;
mod vocab;
mod write;

use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use text::{
    Tokenizer,
    dialect::{Dialect, Ending, Event, Finish, OutputParser, Parsed, ParserOptions, Summary, Tool},
};
use write::{Answer, DIALECTS, tools, write};

fn tokenizer(markers: bool) -> &'static Tokenizer {
    static ONES: [OnceLock<Tokenizer>; 2] = [OnceLock::new(), OnceLock::new()];
    let make = if markers { vocab::with_markers } else { vocab::bytes_only };
    ONES[usize::from(markers)].get_or_init(make)
}

/// A run of a parser.
struct Run<'a> {
    dialect: &'a str,
    markers: bool,
    inside: bool,
    tools: &'a [Tool],
    /// Markers of other dialects become their ids, too.
    foreign: bool,
}

impl Run<'_> {
    fn parser(&self) -> OutputParser {
        let dialect = Dialect::named(self.dialect, tokenizer(self.markers)).unwrap();
        let options = ParserOptions { tools: self.tools, inside_reasoning: self.inside, id_seed: 7 };
        OutputParser::new(&dialect, &options)
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let t = tokenizer(self.markers);
        let own: Vec<&str> = Dialect::named(self.dialect, t).unwrap().markers().collect();
        vocab::ids(t, text, if self.foreign { vocab::MARKERS } else { &own })
    }

    /// Pushes the text's ids one by one.
    fn ids(&self, text: &str, how: Finish) -> (Parsed, Summary) {
        let t = tokenizer(self.markers);
        let (mut p, mut got) = (self.parser(), Checked::default());
        for id in self.encode(text) {
            p.push(t, id, &mut |e| got.push(e));
        }
        let summary = p.finish(how, &mut |e| got.push(e));
        (got.parsed, summary)
    }

    /// Pushes bytes in chunks of these sizes, then the rest at once; markers, if the vocabulary has them, alone.
    fn chunks(&self, text: &str, cuts: &[usize], how: Finish) -> (Parsed, Summary) {
        let t = tokenizer(self.markers);
        let (mut p, mut got) = (self.parser(), Checked::default());
        let mut cuts = cuts.iter().copied();
        let mut pending = Vec::new();
        let mut want = cuts.next().unwrap_or(usize::MAX);
        for id in self.encode(text) {
            if id < 256 {
                pending.push(id as u8);
            }
            if (id >= 256 || pending.len() >= want) && !pending.is_empty() {
                p.push_bytes(&pending, &mut |e| got.push(e));
                pending.clear();
                want = cuts.next().unwrap_or(usize::MAX);
            }
            if id >= 256 {
                p.push(t, id, &mut |e| got.push(e));
            }
        }
        p.push_bytes(&pending, &mut |e| got.push(e));
        let summary = p.finish(how, &mut |e| got.push(e));
        (got.parsed, summary)
    }
}

/// Collects events and holds them to their contract.
#[derive(Default)]
struct Checked {
    parsed: Parsed,
    open: Option<u32>,
}

impl Checked {
    fn push(&mut self, e: Event<'_>) {
        match e {
            Event::Reasoning(s) | Event::Content(s) => assert!(!s.is_empty()),
            Event::ToolCallStart { index, name, .. } => {
                assert_eq!(index as usize, self.parsed.calls.len());
                assert!(!name.is_empty());
                self.open = Some(index);
            }
            Event::ToolCallArgs { index, delta } => {
                assert_eq!(Some(index), self.open);
                assert!(!delta.is_empty());
            }
            Event::ToolCallEnd { index } => assert_eq!(self.open.take(), Some(index)),
        }
        self.parsed.push(e);
    }
}

fn check(answer: &Answer, got: &Parsed, summary: &Summary, context: &str) {
    assert_eq!(got.reasoning, answer.reasoning.clone().unwrap_or_default(), "{context}");
    assert_eq!(got.content, answer.content, "{context}");
    let calls: Vec<(String, Value)> = got
        .calls
        .iter()
        .map(|c| {
            assert!(c.complete, "{context}: {c:?}");
            (c.name.clone(), serde_json::from_str(&c.arguments).unwrap_or_else(|e| panic!("{e} in {c:?} of {context}")))
        })
        .collect();
    let wanted: Vec<(String, Value)> =
        answer.calls.iter().map(|(n, a)| (n.clone(), Value::Object(a.clone()))).collect();
    assert_eq!(calls, wanted, "{context}");
    let mut ids: Vec<&str> = got.calls.iter().map(|c| c.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), got.calls.len(), "ids are unique");
    assert_eq!(
        *summary,
        Summary { ending: Ending::Complete, calls: answer.calls.len() as u32, degraded: false },
        "{context}"
    );
}

/// Text with all that is hard in it, but no white space at its ends and nothing that is markup in any dialect.
fn prose() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-z ]{1,6}",
        Just("😀".to_owned()),
        Just("\n\n".to_owned()),
        Just("<".to_owned()),
        Just("</".to_owned()),
        Just("<tool_".to_owned()),
        Just("a < b".to_owned()),
        Just("\"".to_owned()),
        Just("\\".to_owned()),
        Just("é".to_owned()),
        Just("`x`".to_owned()),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|v| v.concat().trim().to_owned())
}

/// A string value: with markup of every dialect in it, as text.
fn string(dialect: &'static str) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => prose(),
        1 => Just("</tool_call>".to_owned()),
        1 => Just("</parameter".to_owned()),
        1 => Just("\n</function>".to_owned()),
        1 => Just("</think>".to_owned()),
        1 => Just("007".to_owned()),
        1 => Just("{\"a\": 1}".to_owned()),
        1 => Just("\t\r\n".to_owned()),
        1 => Just("\u{1}\u{7f}".to_owned()),
    ];
    prop::collection::vec(piece, 0..4)
        .prop_map(|v| v.concat())
        .prop_filter("ends the value", move |s| !s.contains(write::value_end(dialect)))
}

fn tree(dialect: &'static str) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        string(dialect).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec(("[a-z]{1,4}", inner), 0..3).prop_map(|v| Value::Object(v.into_iter().collect())),
        ]
    })
}

fn arguments(dialect: &'static str) -> impl Strategy<Value = Map<String, Value>> {
    let field = prop_oneof![
        string(dialect).prop_map(|s| ("city", json!(s))),
        string(dialect).prop_map(|s| ("code", json!(s))),
        any::<i32>().prop_map(|n| ("days", json!(n))),
        (-1000..1000).prop_map(|n| ("x", json!(f64::from(n) / 8.0))),
        any::<bool>().prop_map(|b| ("metric", json!(b))),
        Just(("opt", Value::Null)),
        prop::collection::vec(tree(dialect), 0..3).prop_map(|v| ("list", Value::from(v))),
        prop::collection::vec(("[a-z]{1,4}", tree(dialect)), 0..3)
            .prop_map(|v| ("tree", Value::Object(v.into_iter().collect()))),
    ];
    prop::collection::vec(field, 0..5).prop_map(|v| v.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

fn answer(dialect: &'static str) -> impl Strategy<Value = Answer> {
    let call = prop_oneof![
        arguments(dialect).prop_map(|a| ("get_weather".to_owned(), a)),
        Just(("now".to_owned(), Map::new())),
        arguments(dialect).prop_map(|mut a| {
            // A tool nobody offered: nothing says which types its values have.
            a.retain(|_, v| !v.is_string());
            ("unknown.tool-1".to_owned(), a)
        }),
    ];
    (prop::option::of(prose()), prose(), prop::collection::vec(call, 0..3)).prop_map(|(reasoning, content, calls)| {
        Answer { reasoning: reasoning.filter(|r| !r.is_empty()), content, calls }
    })
}

/// Llama's calls are only calls where they begin the answer, and only to known tools.
fn fit(dialect: &str, mut a: Answer) -> Answer {
    if dialect == "llama" {
        a.calls.retain(|(n, _)| n != "unknown.tool-1");
    }
    a
}

fn any_answer() -> impl Strategy<Value = (&'static str, Answer)> {
    prop::sample::select(DIALECTS).prop_flat_map(|d| answer(d).prop_map(move |a| (d, fit(d, a))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn what_was_written_is_read((dialect, a) in any_answer(), cuts in prop::collection::vec(1usize..9, 0..40), inside in any::<bool>()) {
        let tools = tools();
        for markers in [false, true] {
            // Markup inside strings is text there; as ids it stays what the model chose.
            let inside = inside && a.reasoning.is_some() && dialect != "harmony";
            let run = Run { dialect, markers, inside, tools: &tools, foreign: false };
            let text = write(dialect, &a, inside);
            let (whole, summary) = run.chunks(&text, &[], Finish::End);
            check(&a, &whole, &summary, &format!("{dialect}, markers {markers}: {text}"));
            prop_assert_eq!(run.ids(&text, Finish::End), (whole.clone(), summary), "byte by byte");
            prop_assert_eq!(run.chunks(&text, &cuts, Finish::End), (whole, summary), "in chunks");
        }
    }

    /// Any soup of markup and text, cut anywhere: the same for every chunking, no markup in the content, and every call that
    /// ends has valid arguments.
    #[test]
    fn soup_is_chunk_invariant(
        dialect in prop::sample::select(DIALECTS), markers in any::<bool>(), inside in any::<bool>(),
        parts in prop::collection::vec(soup(), 0..24), cuts in prop::collection::vec(1usize..9, 0..40), cut in any::<bool>(),
    ) {
        let tools = tools();
        let run = Run { dialect, markers, inside, tools: &tools, foreign: true };
        let (text, how) = (parts.concat(), if cut { Finish::Cut } else { Finish::End });
        let (whole, summary) = run.chunks(&text, &[], how);
        prop_assert_eq!(&run.ids(&text, how), &(whole.clone(), summary));
        prop_assert_eq!(&run.chunks(&text, &cuts, how), &(whole.clone(), summary));
        prop_assert_eq!(whole.calls.len(), summary.calls as usize);
        for c in whole.calls.iter().filter(|c| c.complete) {
            prop_assert!(serde_json::from_str::<Value>(&c.arguments).is_ok_and(|v| v.is_object()), "{:?} of {:?}", c, text);
        }
        let unfinished = whole.calls.iter().any(|c| !c.complete);
        if unfinished {
            prop_assert!(matches!(summary.ending, Ending::InsideCall { .. } | Ending::BrokenCall { .. }), "{:?} {:?}", whole, summary);
        }
        if markers {
            let own = Dialect::named(dialect, tokenizer(true)).unwrap();
            for m in own.markers() {
                prop_assert!(!whole.content.contains(m), "{} in {:?}", m, whole.content);
            }
        }
    }
}

/// Pieces of every dialect.
fn soup() -> impl Strategy<Value = String> {
    let pieces: Vec<String> = vocab::MARKERS
        .iter()
        .copied()
        .chain([
            "<function=get_weather>",
            "<function=now>\n",
            "<parameter=city>",
            "</parameter>",
            "</function>",
            "\n",
            " ",
            "`",
            "{",
            "}",
            "[",
            "]",
            "\"",
            ":",
            ",",
            "call:now{",
            "city:",
            "functions",
            "assistant",
            " to=functions.now",
            "analysis",
            "final",
            "commentary",
            "json",
            "{\"name\": \"now\", \"arguments\": {",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"",
            "}}",
            "\"}}",
            "now",
            "a",
            "😀",
            "tool_calls>",
            "<",
            "</",
            "invoke name=\"now\">",
            "<invoke name=\"get_weather\">",
            "</invoke>",
            "<parameter name=\"days\">",
            "parameter name=\"city\" string=\"true\">",
            "parameter>",
            "invoke>",
            "true",
            "007",
            ";",
            "thought\n",
        ])
        .map(str::to_owned)
        .collect();
    prop::sample::select(pieces)
}

#[test]
fn markers_split_at_every_byte() {
    let tools = tools();
    let object = |v: Value| v.as_object().cloned().unwrap();
    let a = Answer {
        reasoning: Some("Need the <tool, `x` 😀.".into()),
        content: "On \"it\" \\ now".into(),
        calls: vec![
            ("get_weather".into(), object(json!({"city": "Pa\"r\\is\n😀 </tool_call>", "days": 2, "metric": true}))),
            ("now".into(), Map::new()),
        ],
    };
    for dialect in DIALECTS {
        let run = Run { dialect, markers: false, inside: false, tools: &tools, foreign: false };
        let text = write(dialect, &a, false);
        let whole = run.chunks(&text, &[], Finish::End);
        check(&a, &whole.0, &whole.1, &format!("{dialect}: {text}"));
        for cut in 1..text.len() {
            assert_eq!(run.chunks(&text, &[cut], Finish::End), whole, "{dialect}, cut at {cut}");
        }
    }
}
