//! Constrained decoding: random choices under the mask, held against an independent validator and against the parsers.

#[path = "../dialect/vocab.rs"]
mod vocab;

mod tools;

use std::sync::OnceLock;

use serde_json::{Value, json};
use text::{
    Error, Tokenizer,
    constrain::{Constraint, Matcher, Reasoning},
    dialect::Dialect,
};

fn tokenizer(markers: bool) -> &'static Tokenizer {
    static ONES: [OnceLock<Tokenizer>; 2] = [OnceLock::new(), OnceLock::new()];
    let make = if markers { vocab::with_markers } else { vocab::bytes_only };
    ONES[usize::from(markers)].get_or_init(make)
}

/// Pseudo-random numbers (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize) % n
    }
}

/// Samples an output: any allowed id, but leaning towards what ends things, more so as it gets long. `None` if it got too
/// long to end.
fn sample(t: &Tokenizer, m: &mut Matcher, random: &mut Random) -> Option<Vec<u32>> {
    let mut ids = Vec::new();
    for step in 0..1200 {
        let mask = m.mask().unwrap();
        let allowed: Vec<u32> = (0..t.vocab_size()).filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1).collect();
        assert!(!allowed.is_empty(), "nothing is allowed after {:?}", t.decode(&ids, false));
        let ends = |i: &u32| *i >= 256 || b"\"}]</>n,:".contains(&(*i as u8));
        let closing: Vec<u32> = allowed.iter().copied().filter(ends).collect();
        let lean = random.below(100) < 25 + step / 4;
        let from = if lean && !closing.is_empty() { &closing } else { &allowed };
        // Long outputs only want to close.
        let hard: Vec<u32> = closing.iter().copied().filter(|i| *i >= 256 || b"\"}]".contains(&(*i as u8))).collect();
        let from = if step > 150 && !hard.is_empty() && random.below(10) < 8 { &hard } else { from };
        let id = from[random.below(from.len())];
        let end = t.is_eog(id);
        assert!(!end || m.is_complete(), "an end is allowed where the grammar is not complete");
        if end {
            return Some(ids);
        }
        m.accept(id).unwrap();
        ids.push(id);
    }
    None
}

/// Takes white space wherever it may; after that what ends things. How many ids were white space between parts, and in all.
fn dawdle(t: &Tokenizer, m: &mut Matcher, random: &mut Random) -> (usize, Vec<u32>) {
    let (mut ids, mut blank, mut string, mut escaped) = (Vec::new(), 0, false, false);
    while ids.len() < 3000 {
        let mask = m.mask().unwrap();
        let allowed: Vec<u32> = (0..t.vocab_size()).filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1).collect();
        let spaces: Vec<u32> = allowed.iter().copied().filter(|i| b" \n\t".contains(&(*i as u8)) && *i < 256).collect();
        let end: &[u8] = if string { b"\"" } else { b"\"}]" };
        let ends: Vec<u32> = allowed.iter().copied().filter(|i| *i >= 256 || end.contains(&(*i as u8))).collect();
        let from = match () {
            () if !string && !spaces.is_empty() => &spaces,
            () if !ends.is_empty() => &ends,
            () => &allowed,
        };
        let id = from[random.below(from.len())];
        if t.is_eog(id) {
            return (blank, ids);
        }
        m.accept(id).unwrap();
        ids.push(id);
        blank += usize::from(!string && b" \n\t".contains(&(id as u8)));
        match id {
            _ if escaped => escaped = false,
            92 if string => escaped = true,
            34 => string = !string,
            _ => {}
        }
    }
    (blank, ids)
}

#[test]
fn white_space_is_bounded_in_all() {
    let t = tokenizer(true);
    let mut random = Random(0xB1A);
    for (name, schema) in &schemas() {
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        let mut m = Constraint::JsonSchema(schema).build(t, &plain(), Reasoning::Off).unwrap();
        let (blank, ids) = dawdle(t, &mut m, &mut random);
        assert!(blank <= 34 + ids.len() / 2, "{name}: {blank} of {}", ids.len());
        let text = t.decode(&ids, false);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
        assert!(validator.is_valid(&value), "{name}: {text}");
    }
    // Behind reasoning too, in which it means nothing.
    let d = Dialect::named("qwen3", t).unwrap();
    let schema = json!({"type": "array", "items": {"type": "integer"}, "minItems": 200});
    let mut m = Constraint::JsonSchema(&schema).build(t, &d, Reasoning::Open).unwrap();
    for id in vocab::ids(t, &format!("a \"{}</think>", " ".repeat(500)), vocab::MARKERS) {
        assert!(m.allows(id).unwrap());
        m.accept(id).unwrap();
    }
    let (blank, ids) = dawdle(t, &mut m, &mut random);
    assert!(blank <= 34 + ids.len() / 2, "{blank} of {}", ids.len());
}

fn plain() -> Dialect {
    Dialect::named("plain", tokenizer(true)).unwrap()
}

fn schemas() -> Vec<(String, Value)> {
    let all: Vec<Value> = serde_json::from_str(include_str!("../data/schemas.json")).unwrap();
    all.into_iter().map(|s| (s["name"].as_str().unwrap().to_owned(), s["schema"].clone())).collect()
}

#[test]
fn sampled_outputs_validate() {
    let t = tokenizer(true);
    let all = schemas();
    assert!(all.len() >= 60);
    let mut random = Random(0x5EED);
    for (name, schema) in &all {
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        let mut ended = 0;
        for _ in 0..10 {
            let mut m = Constraint::JsonSchema(schema)
                .build(t, &plain(), Reasoning::Off)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let Some(ids) = sample(t, &mut m, &mut random) else { continue };
            ended += 1;
            let text = t.decode(&ids, false);
            let value: Value = match serde_json::from_str(&text) {
                Ok(v) => v,
                // `1e655` is JSON, if no number for this machine.
                Err(e) if e.to_string().contains("number out of range") => continue,
                Err(e) => panic!("{name}: {e}: {text}"),
            };
            let errors: Vec<String> = validator.iter_errors(&value).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{name}: {text}\n{errors:?}");
        }
        assert!(ended >= 1, "{name}: none ended");
    }
}

#[test]
fn what_cannot_be_enforced_is_named() {
    let t = tokenizer(true);
    for (schema, path, keyword) in [
        (json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}), "/properties/a", "not"),
        (json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}), "/", "uniqueItems"),
        (json!({"if": {}, "then": {}}), "/", "if"),
        (json!({"type": "object", "dependentRequired": {"a": ["b"]}}), "/", "dependentRequired"),
        (json!({"type": "array", "items": {"type": "array", "contains": {"const": 1}}}), "/items", "contains"),
        (json!({"properties": {"u": {"type": "string", "format": "idn-email"}}}), "/properties/u", "format"),
        (json!({"$ref": "https://example.com/schema.json"}), "/", "$ref"),
        (json!({"$ref": "#/$defs/missing"}), "/", "$ref"),
        // What leads back to itself with nothing between has no values.
        (json!({"$ref": "#"}), "/", "$ref"),
        (json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}), "/properties/a", "$ref"),
        (
            json!({"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}, "properties": {"a": {"$ref": "#/$defs/x"}}}),
            "/$defs/x",
            "$ref",
        ),
        (json!({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}}), "/properties/a/anyOf/0", "$ref"),
        (json!({"properties": {"n": {"type": "number", "maximum": 1e300}}}), "/properties/n", "maximum"),
        (
            json!({"type": "object", "properties": {"s": {"type": "string", "pattern": "("}}}),
            "/properties/s",
            "pattern",
        ),
        (
            json!({"type": "object", "properties": {"s": {"type": "string", "pattern": "(?=a)b"}}}),
            "/properties/s",
            "pattern",
        ),
        (json!({"anyOf": [{"type": "null"}, {"type": "thing"}]}), "/anyOf/1", "type"),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "minItems": -1}}}),
            "/properties/a",
            "minItems",
        ),
        (
            json!({"type": "object", "properties": {"a/b": {"unevaluatedProperties": false}}}),
            "/properties/a~1b",
            "unevaluatedProperties",
        ),
    ] {
        match Constraint::JsonSchema(&schema).build(t, &plain(), Reasoning::Off) {
            Err(Error::Schema { path: p, keyword: k, what }) => {
                assert_eq!((p.as_str(), k.as_str()), (path, keyword), "{schema}: {what}");
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
}

#[test]
fn bounds_of_numbers_are_kept() {
    let t = tokenizer(true);
    let mut random = Random(0xB0B);
    let number = |bounds: Value| {
        let mut s = json!({"type": "number"});
        s.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
        s
    };
    for (schema, inside, outside) in [
        (
            number(json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.01})),
            "0.005",
            &["0", "0.0", "0.01", "-0", "1"][..],
        ),
        (number(json!({"exclusiveMinimum": 5, "exclusiveMaximum": 5.1})), "5.05", &["5", "5.0", "5.1", "6"]),
        (number(json!({"exclusiveMinimum": -0.01, "exclusiveMaximum": 0})), "-0.005", &["-0", "0", "-0.01", "-0.0"]),
        (number(json!({"minimum": 5, "maximum": 5.5, "exclusiveMinimum": 5})), "5.5", &["5", "5.6"]),
        (number(json!({"minimum": 5, "exclusiveMinimum": true, "maximum": 5.5})), "5.1", &["5"]),
        (number(json!({"exclusiveMinimum": 0})), "17.25", &["0", "-1", "0.0"]),
        (number(json!({"exclusiveMaximum": 0})), "-3", &["0", "-0", "1"]),
        (
            json!({"allOf": [number(json!({"exclusiveMinimum": 0})), {"exclusiveMaximum": 0.01}]}),
            "0.001",
            &["0", "0.01"],
        ),
        (json!({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 3}), "2", &["1", "3"]),
        (number(json!({"minimum": 0, "maximum": 0.01})), "0", &["-0.001", "0.02"]),
    ] {
        let build = || Constraint::JsonSchema(&schema).build(t, &plain(), Reasoning::Off).unwrap();
        assert!(accepts(&mut build(), t, inside), "{schema}: {inside}");
        for text in outside {
            assert!(!accepts(&mut build(), t, text), "{schema}: {text}");
        }
        // The validator knows no draft 4.
        let validator = (schema["exclusiveMinimum"] != true).then(|| jsonschema::validator_for(&schema).unwrap());
        for _ in 0..20 {
            let Some(ids) = sample(t, &mut build(), &mut random) else { continue };
            let text = t.decode(&ids, false);
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(validator.as_ref().is_none_or(|v| v.is_valid(&value)), "{schema}: {text}");
        }
    }
}

#[test]
fn what_has_no_end_is_refused_before_it_is_begun() {
    let t = tokenizer(true);
    for grammar in ["start: start", "start: a\na: b\nb: a"] {
        match Constraint::Lark(grammar).build(t, &plain(), Reasoning::Off) {
            Err(Error::Grammar(what)) => assert!(!what.contains("NoExtension"), "{what}"),
            other => panic!("{grammar}: {other:?}"),
        }
    }
}

#[test]
fn an_answer_has_no_white_space_that_its_grammar_lacks() {
    let t = tokenizer(true);
    let d = Dialect::named("qwen3", t).unwrap();
    for c in [Constraint::Regex("[0-9]{3}-[a-z]{2}"), Constraint::Lark("start: /[0-9]{3}/ \"-ab\"")] {
        let build = |r| c.build(t, &d, r).unwrap();
        for r in [Reasoning::Off, Reasoning::Allowed] {
            assert!(accepts(&mut build(r), t, "123-ab"), "{c:?} {r:?}");
            assert!(!accepts(&mut build(r), t, " 123-ab") && !accepts(&mut build(r), t, "\n123-ab"), "{c:?} {r:?}");
        }
        // Between reasoning and answer it belongs to neither.
        assert!(accepts(&mut build(Reasoning::Allowed), t, "<think>hm</think>\n\n123-ab"), "{c:?}");
        assert!(accepts(&mut build(Reasoning::Open), t, "hm</think>\n\n123-ab"), "{c:?}");
    }
}

/// Whether a whole output is accepted, byte by byte, up to its end.
fn accepts(m: &mut Matcher, t: &Tokenizer, text: &str) -> bool {
    for id in vocab::ids(t, text, vocab::MARKERS) {
        if !m.allows(id).unwrap() {
            return false;
        }
        m.accept(id).unwrap();
    }
    m.is_complete()
}

#[test]
fn objects_regexes_and_grammars() {
    let t = tokenizer(true);
    let build = |c: Constraint<'_>| c.build(t, &plain(), Reasoning::Off).unwrap();
    assert!(accepts(&mut build(Constraint::JsonObject), t, "{\"a\": [1, null]}"));
    assert!(!accepts(&mut build(Constraint::JsonObject), t, "[1]"));
    assert!(accepts(&mut build(Constraint::Regex("[a-c]+/\\d")), t, "abc/7"));
    assert!(!accepts(&mut build(Constraint::Regex("a|bb")), t, "ab"));
    assert!(accepts(&mut build(Constraint::Regex("a|bb")), t, "bb"));
    let odd = "a/\nstart: \"b";
    assert!(accepts(&mut build(Constraint::Regex(odd)), t, odd), "an expression is not a piece of grammar");
    assert!(accepts(&mut build(Constraint::Lark("start: \"x\" y\ny: \"y\"+")), t, "xyy"));
    for bad in [Constraint::Regex("("), Constraint::Lark("start: nowhere"), Constraint::Lark("")] {
        assert!(matches!(bad.build(t, &plain(), Reasoning::Off), Err(Error::Grammar(_))), "{bad:?}");
    }
    // Markup is no text, whatever its characters.
    let mut m = build(Constraint::JsonObject);
    for id in vocab::ids(t, "{\"", &[]) {
        m.accept(id).unwrap();
    }
    assert!(m.allows(u32::from(b'<')).unwrap());
    assert!(!m.allows(t.id_of("<tool_call>").unwrap()).unwrap());
    assert!(!m.allows(t.eos().unwrap()).unwrap() && !m.is_complete());
    assert!(m.accept(t.eos().unwrap()).is_err());
}

#[test]
fn forced_text_and_the_end() {
    let t = tokenizer(true);
    let schema = json!({"const": "grüße"});
    let mut m = Constraint::JsonSchema(&schema).build(t, &plain(), Reasoning::Off).unwrap();
    assert_eq!(m.forced_text(), "\"grüße\"");
    for id in vocab::ids(t, "\"grüße\"", &[]) {
        assert!(!m.is_complete());
        m.accept(id).unwrap();
    }
    assert!(m.is_complete());
    let mask = m.mask().unwrap().to_vec();
    let left: Vec<u32> = (0..t.vocab_size()).filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1).collect();
    assert_eq!(left, t.eog(), "only the end is left");
    assert!(m.allows(t.eos().unwrap()).unwrap());
}

#[test]
fn reasoning_comes_first() {
    let schema = json!({"type": "integer"});
    for markers in [true, false] {
        let t = tokenizer(markers);
        for (dialect, open, close) in [
            ("qwen3", "<think>", "</think>"),
            ("gemma4", "<|channel>thought", "<channel|>"),
            ("plain", "<think>", "</think>"),
        ] {
            let d = Dialect::named(dialect, t).unwrap();
            let build = |r| Constraint::JsonSchema(&schema).build(t, &d, r).unwrap();
            let thought = format!("hm < \"{{}}\" 😀\n{close}\n\n12");
            assert!(accepts(&mut build(Reasoning::Open), t, &thought), "{dialect} {markers}");
            assert!(accepts(&mut build(Reasoning::Allowed), t, &format!("{open}{thought}")), "{dialect} {markers}");
            assert!(accepts(&mut build(Reasoning::Allowed), t, "12"), "{dialect} {markers}");
            assert!(!accepts(&mut build(Reasoning::Allowed), t, "x"), "{dialect} {markers}");
            assert!(!accepts(&mut build(Reasoning::Open), t, "12"), "{dialect} {markers}");
        }
        let d = Dialect::named("harmony", t).unwrap();
        let text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>12";
        assert!(
            accepts(&mut Constraint::JsonSchema(&schema).build(t, &d, Reasoning::Allowed).unwrap(), t, text),
            "{markers}"
        );
    }
}

#[test]
fn masks_may_be_made_on_another_thread() {
    fn send<T: Send>() {}
    send::<Matcher>();
    send::<text::dialect::OutputParser>();
}
