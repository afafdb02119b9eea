//! Tool calls as grammars, each dialect in its own syntax.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::{
    Constraint, Reasoning, Vocabulary, Warning, compiles, find_culprit,
    gemma::Gemma,
    lark::{ANY_TEXT, Lark, escaped, quoted},
    schema::{self, DATE, Finding, TIME, standalone},
};
use crate::{
    Error, Result,
    dialect::{
        Dialect, Tool,
        schema::{Types, types_of},
        symbols::Marks,
        syntax::{Calls, JsonCalls, Tagged},
    },
};

/// Which calls an output may or must have.
#[derive(Debug, Clone, Copy)]
pub struct ToolChoice<'a> {
    /// The syntax of calls.
    pub dialect: &'a Dialect,
    /// The tools that were offered.
    pub tools: &'a [Tool],
    /// Which of them.
    pub choice: Choice<'a>,
    /// Whether there may be several calls.
    pub parallel: bool,
    /// What an answer without calls must follow, where the choice leaves them out; `None` is any text.
    pub answer: Option<&'a Constraint<'a>>,
}

/// The choice of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice<'a> {
    /// Text, calls, or text and then calls.
    Auto,
    /// At least one call and nothing else.
    Required,
    /// This tool and nothing else.
    Named(&'a str),
}

/// How often a schema is relaxed before it is given up.
const MAX_RELAXED: usize = 64;
/// White space between parts, never needed.
const SPACE: &str = r"/[ \n\t]{1,8}/?";
/// Keywords that say something of an object as a whole, which notations of one argument after the other cannot be held to.
pub(super) const WHOLE_OBJECT: [&str; 6] =
    ["anyOf", "oneOf", "allOf", "patternProperties", "minProperties", "maxProperties"];
/// Why a keyword is not enforced.
pub(super) const NOT_JSON: &str = "not enforced where calls are not written in JSON";
/// Names of parameters that a schema does not name.
const KEY: &str = r"[A-Za-z_][A-Za-z0-9_.\-]{0,62}";

/// The grammar for a choice of tools.
pub(super) fn grammar(
    t: &ToolChoice<'_>,
    vocabulary: &Vocabulary,
    reasoning: Reasoning,
    warnings: &mut Vec<Warning>,
) -> Result<TopLevelGrammar> {
    let answer = t.answer.filter(|_| t.choice == Choice::Auto).map(Constraint::lark).transpose()?;
    let calls = calls_or(t, answer.is_some(), vocabulary, reasoning, warnings)?;
    let mut grammar = TopLevelGrammar::from_lark(calls);
    grammar.grammars.extend(answer.map(|a| named(ANSWER, a)));
    Ok(grammar)
}

/// The name of the grammar that an answer without calls follows.
const ANSWER: &str = "answer";

fn named(name: &str, lark: String) -> GrammarWithLexer {
    GrammarWithLexer { name: Some(name.into()), lark_grammar: Some(lark), ..Default::default() }
}

/// Calls or, where they may be left out, text: any, or what the grammar beside this one allows (`held`).
fn calls_or(
    t: &ToolChoice<'_>,
    held: bool,
    vocabulary: &Vocabulary,
    reasoning: Reasoning,
    warnings: &mut Vec<Warning>,
) -> Result<String> {
    let compiled = t.dialect.compiled();
    let mut lark = Lark::new(&compiled.marks);
    let mut tools = Vec::new();
    for tool in chosen(t)? {
        tools.push((tool.name.as_str(), enforceable(tool, vocabulary, warnings)?, tool.strict));
    }
    let mut w = Writer { lark: &mut lark, warnings, strict: false, refused: None };
    let auto = t.choice == Choice::Auto;
    let calls = match &compiled.syntax.calls {
        Calls::None => return Err(Error::Grammar("this model's dialect has no tool calls".into())),
        Calls::Harmony => {
            let start = w.harmony(&tools, auto, held, reasoning);
            return Ok(lark.done(&start));
        }
        Calls::Tagged(shape) => {
            w.lark.tight = true;
            w.tagged(shape, &tools, t.parallel)
        }
        Calls::Json(shape) => {
            let close = compiled.syntax.strays.first().copied();
            w.json(shape, close, &compiled.marks, &tools, t.parallel)
        }
        Calls::Gemma => w.gemma(&tools, t.parallel),
    };
    if let Some(Warning { path, keyword, why }) = w.refused {
        return Err(Error::Schema { path, keyword, what: why });
    }
    let must = format!("{SPACE} {} {}", lark.literal(calls.opener), calls.rest);
    let body = match (auto, calls.opener) {
        (false, _) => must,
        // Both would begin with a brace, and a lexer does not go back.
        (true, "") if held => {
            let what = "this model writes calls as mere JSON, which cannot be told from an answer held to a format: \
                        set tool_choice, or leave one out";
            return Err(Error::Grammar(what.into()));
        }
        // White space would decide for a call.
        (true, opener) if held => {
            let call = format!("{} {}", lark.literal(opener), calls.rest);
            lark.rule(&format!("{call} | @{ANSWER}"))
        }
        // Without markup a call is only told from text by how it begins.
        (true, "") => {
            let text = lark.until(ANY_TEXT, Some(&format!(r"\s*\{{{ANY_TEXT}")), "");
            lark.rule(&format!("{must} | {text}"))
        }
        (true, opener) => {
            let (before, text) = (lark.until(ANY_TEXT, None, opener), lark.free(opener));
            lark.rule(&format!("{before} {} | {text}?", calls.rest))
        }
    };
    let think = think(&mut lark, t.dialect, reasoning, if held { SPACE } else { "" });
    Ok(lark.done(&format!("{think} {body}")))
}

/// Any constraint behind reasoning.
pub(super) fn behind_reasoning(dialect: &Dialect, reasoning: Reasoning, inner: String) -> TopLevelGrammar {
    let mut lark = Lark::new(&dialect.compiled().marks);
    let start = if matches!(dialect.compiled().syntax.calls, Calls::Harmony) {
        let before = harmony_reasoning(&mut lark, reasoning);
        format!("{before} {} @inner", lark.literal("<|channel|>final<|message|>"))
    } else {
        format!("{} @inner", think(&mut lark, dialect, reasoning, SPACE))
    };
    let mut grammar = TopLevelGrammar::from_lark(lark.done(&start));
    grammar.grammars.push(named("inner", inner));
    grammar
}

/// Reasoning, and what stands between it and what follows. Without reasoning nothing stands there: an answer has no white
/// space that its grammar does not have.
fn think(lark: &mut Lark<'_>, dialect: &Dialect, reasoning: Reasoning, space: &str) -> String {
    let Some((open, close)) = dialect.compiled().syntax.reasoning.filter(|_| dialect.compiled().think.is_some()) else {
        return String::new();
    };
    match reasoning {
        Reasoning::Off => String::new(),
        Reasoning::Open => format!("{} {space}", lark.until(ANY_TEXT, None, close)),
        Reasoning::Allowed => {
            let (open, inside) = (lark.literal(open), lark.until(ANY_TEXT, None, close));
            format!("({open} {inside} {space})?")
        }
    }
}

fn harmony_reasoning(lark: &mut Lark<'_>, reasoning: Reasoning) -> String {
    let end = lark.until(ANY_TEXT, None, "<|end|>");
    let next = lark.literal("<|start|>assistant");
    let whole = format!("{} {end} {next}", lark.literal("<|channel|>analysis<|message|>"));
    match reasoning {
        Reasoning::Off => String::new(),
        Reasoning::Open => format!("{end} {next} ({whole})*"),
        Reasoning::Allowed => format!("({whole})*"),
    }
}

fn chosen<'a>(t: &ToolChoice<'a>) -> Result<Vec<&'a Tool>> {
    if t.tools.is_empty() {
        return Err(Error::Grammar("tool_choice asks for a call, but there are no tools".into()));
    }
    let Choice::Named(name) = t.choice else { return Ok(t.tools.iter().collect()) };
    match t.tools.iter().find(|tool| tool.name == name) {
        Some(tool) => Ok(vec![tool]),
        None => {
            let names: Vec<&str> = t.tools.iter().map(|t| t.name.as_str()).collect();
            Err(Error::Grammar(format!("tool_choice names {name:?}, which is none of the tools: {}", names.join(", "))))
        }
    }
}

/// A tool's schema without what cannot be enforced.
fn enforceable(tool: &Tool, vocabulary: &Vocabulary, warnings: &mut Vec<Warning>) -> Result<Value> {
    let mut schema = match &tool.parameters {
        Value::Object(map) => Value::Object(map.clone()),
        _ => json!({}),
    };
    if schema.get("type").is_none() && schema.get("$ref").is_none() {
        schema["type"] = "object".into();
    }
    let mut note = |f: &Finding| {
        let mut w = f.warning();
        w.path = format!("{}{}", tool.name, w.path.trim_end_matches('/'));
        warnings.push(w);
    };
    let mut last = None;
    for _ in 0..MAX_RELAXED {
        let found = schema::findings(&schema).into_iter().next().or_else(|| {
            let failed = compiles(vocabulary, &schema).err()?;
            Some(find_culprit(vocabulary, &schema, &failed))
        });
        let Some(f) = found else { return Ok(schema) };
        let lost = f.path == "/" && f.keyword.is_empty() || Some(&f) == last.as_ref();
        // What a reference stands for cannot be guessed.
        if lost || tool.strict && f.keyword == "$ref" {
            last = Some(f);
            break;
        }
        note(&f);
        schema::relax(&mut schema, &f);
        last = Some(f);
    }
    let f = last.unwrap_or(Finding { path: "/".into(), keyword: String::new(), why: "too much to relax".into() });
    if tool.strict {
        let path = format!("{}{}", tool.name, f.path.trim_end_matches('/'));
        return Err(Error::Schema { path, keyword: f.keyword, what: f.why });
    }
    note(&f);
    Ok(json!({"type": "object"}))
}

/// Calls: what opens the first, and everything after that.
struct Written {
    opener: &'static str,
    rest: String,
}

type Chosen<'a> = (&'a str, Value, bool);

pub(super) struct Writer<'l, 'm> {
    pub lark: &'l mut Lark<'m>,
    warnings: &'l mut Vec<Warning>,
    /// Whether the tool that is written is to be held to all of its schema.
    strict: bool,
    /// The first thing to which a strict tool cannot be held in this notation.
    refused: Option<Warning>,
}

impl Writer<'_, '_> {
    fn either(&mut self, options: Vec<String>) -> String {
        self.lark.rule(&options.join(" | "))
    }

    fn harmony(&mut self, tools: &[Chosen<'_>], auto: bool, held: bool, reasoning: Reasoning) -> String {
        let mut options = Vec::new();
        for (name, schema, _) in tools {
            let args = self.lark.json(schema);
            let head = format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>");
            options.push(format!("{} {args}", self.lark.literal(&head)));
        }
        if auto {
            let text = if held { format!("@{ANSWER}") } else { format!("{}?", self.lark.free("<|end|>")) };
            options.push(format!("{} {text}", self.lark.literal("<|channel|>final<|message|>")));
        }
        let calls = self.either(options);
        format!("{} {calls}", harmony_reasoning(self.lark, reasoning))
    }

    fn json(
        &mut self,
        j: &JsonCalls,
        close: Option<&str>,
        marks: &Marks,
        tools: &[Chosen<'_>],
        parallel: bool,
    ) -> Written {
        let named = j
            .named
            .filter(|sep| !marks.split(sep).iter().any(|p| matches!(p, crate::dialect::symbols::Piece::Text(_))));
        let mut options = Vec::new();
        for (name, schema, _) in tools {
            let args = self.lark.json(schema);
            options.push(match named {
                Some(sep) => format!("{} {args}", self.lark.literal(&format!("{name}{sep}"))),
                None => {
                    let head = format!("{{\"name\": {}, \"{}\": ", Value::from(*name), j.arguments[0]);
                    format!("{} {args} \"}}\"", quoted(&head))
                }
            });
        }
        let one = self.either(options);
        let opener = if j.bare { "" } else { j.open[0] };
        let again = self.lark.literal(opener);
        let more = |sep: &str| if parallel { format!("({sep} {one})*") } else { String::new() };
        let rest = match (close, named, j.bare) {
            (Some(close), ..) => {
                let close = self.lark.literal(&format!("\n{close}"));
                let again = if parallel { format!("(\"\\n\" {again} \"\\n\" {one} {close})*") } else { String::new() };
                format!("\"\\n\" {one} {close} {again}")
            }
            (None, Some(_), _) => format!("{one} {}", more(&again)),
            (None, None, true) => format!("{one} {}", more("\"; \"")),
            (None, None, false) => format!("\"[\" {one} {} \"]\"", more("\", \"")),
        };
        Written { opener, rest }
    }

    fn gemma(&mut self, tools: &[Chosen<'_>], parallel: bool) -> Written {
        let mut options = Vec::new();
        for (name, schema, strict) in tools {
            self.strict = *strict;
            let args = Gemma::new(self, schema, name).object(schema);
            options.push(format!("{} {args}", quoted(&format!("call:{name}"))));
        }
        let one = self.either(options);
        let close = self.lark.literal("<tool_call|>");
        let open = self.lark.literal("<|tool_call>");
        let more = if parallel { format!("({open} {one} {close})*") } else { String::new() };
        Written { opener: "<|tool_call>", rest: format!("{one} {close} {more}") }
    }

    fn tagged(&mut self, p: &Tagged, tools: &[Chosen<'_>], parallel: bool) -> Written {
        let loose = p.call_end.is_empty();
        let mut options = Vec::new();
        for (name, schema, strict) in tools {
            self.strict = *strict;
            let params = self.params(p, name, schema);
            let head = if loose { (*name).to_owned() } else { format!("{}{name}{}\n", p.call, p.name_end) };
            let head = self.lark.literal(&head);
            let end = if loose { String::new() } else { self.lark.literal(&format!("{}\n", p.call_end)) };
            let gap = if loose { "\"\\n\"?" } else { "" };
            options.push(format!("{head} {gap} {params} {end}"));
        }
        let one = self.either(options);
        let (open, close) = (self.lark.literal(p.open), self.lark.literal(p.close));
        let nl = if loose { "" } else { "\"\\n\"" };
        let rest = match (p.many, parallel) {
            (true, true) => format!("{nl} {one}+ {close}"),
            (_, false) => format!("{nl} {one} {close}"),
            (false, true) => format!("{nl} {one} {close} (\"\\n\" {open} {nl} {one} {close})*"),
        };
        Written { opener: p.open, rest }
    }

    /// The parameters of a call, in the schema's order.
    fn params(&mut self, p: &Tagged, tool: &str, schema: &Value) -> String {
        let root = schema;
        let mut object = schema;
        for _ in 0..8 {
            match object.get("$ref").and_then(Value::as_str).and_then(|r| root.pointer(r.strip_prefix('#')?)) {
                Some(target) => object = target,
                None => break,
            }
        }
        if let Some(key) = WHOLE_OBJECT.iter().find(|k| object.get(**k).is_some()) {
            self.warn(tool, key, NOT_JSON);
        }
        let empty = Map::new();
        let properties = object.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> =
            object.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let any = Value::Bool(true);
        let undeclared = required.iter().filter(|r| !properties.contains_key(**r)).map(|r| (*r, &any));
        let mut out = Vec::new();
        for (key, s) in properties.iter().map(|(k, s)| (k.as_str(), s)).chain(undeclared) {
            let path = format!("{tool}/properties/{key}");
            if !p.holds_name(key) {
                self.warn(&path, "properties", "its name cannot be written where calls are not written in JSON");
                continue;
            }
            let param = self.param(p, Some(key), s, root, &path);
            out.push(if required.contains(&key) { param } else { format!("{param}?") });
        }
        if properties.is_empty() && object.get("additionalProperties") != Some(&Value::Bool(false)) {
            let s = object.get("additionalProperties").unwrap_or(&any);
            let param = self.param(p, None, s, root, &format!("{tool}/additionalProperties"));
            out.push(format!("{param}*"));
        }
        out.join(" ")
    }

    /// One parameter, with a given name or any.
    fn param(&mut self, p: &Tagged, key: Option<&str>, s: &Value, root: &Value, path: &str) -> String {
        let types = types_of(s, root);
        let loose = p.call_end.is_empty();
        let lines = if p.value_lines { "\n" } else { "" };
        let end = format!("{lines}{}", p.value_end);
        let after = if loose { "\"\\n\"?" } else { "\"\\n\"" };
        let mut options = Vec::new();
        let declares = p.key_end.len() > 1;
        for (key_end, string) in p.key_end {
            let fits = match string {
                Some(true) => types.has(Types::STRING),
                Some(false) => types.without_string() != Types::NONE,
                None => !declares,
            };
            if !fits {
                continue;
            }
            let head = match key {
                Some(key) => self.lark.literal(&format!("{}{key}{}{lines}", p.param, key_end.replace('␣', ""))),
                None => {
                    let open = self.lark.literal(p.param);
                    format!("{open} {}", self.lark.until(KEY, None, &format!("{}{lines}", key_end.replace('␣', ""))))
                }
            };
            let wanted = match string {
                Some(true) => Types::STRING,
                Some(false) => types.without_string(),
                None => types,
            };
            let value = self.value(s, root, wanted, &end, path);
            options.push(format!("{head} {value} {after}"));
        }
        self.either(options)
    }

    /// A raw value and what ends it.
    fn value(&mut self, s: &Value, root: &Value, types: Types, end: &str, path: &str) -> String {
        let mut options = Vec::new();
        let others = types.without_string();
        if types.has(Types::STRING) {
            let body = self.string(s, root, path);
            let not = (types != Types::ANY && others != Types::NONE).then(|| looks_like(others));
            options.push(self.lark.until(&body, not.as_deref(), end));
        }
        if others != Types::NONE && types != Types::ANY {
            let names: Vec<&str> = others.names().collect();
            let json = self.lark.json(&standalone(&json!({"allOf": [s, {"type": names}]}), root));
            options.push(format!("{json} {}", self.lark.literal(end)));
        } else if others == Types::ANY.without_string() && !types.has(Types::STRING) {
            let json = self.lark.json(&standalone(s, root));
            options.push(format!("{json} {}", self.lark.literal(end)));
        }
        self.either(options)
    }

    pub fn warn(&mut self, path: &str, keyword: &str, why: &str) {
        let w = Warning { path: path.into(), keyword: keyword.into(), why: why.into() };
        if self.strict {
            self.refused.get_or_insert(w);
        } else if !self.warnings.contains(&w) {
            self.warnings.push(w);
        }
    }

    /// A regular expression for the strings a schema accepts, as they stand without quotes.
    pub fn string(&mut self, s: &Value, root: &Value, path: &str) -> String {
        let target = s.get("$ref").and_then(Value::as_str).and_then(|r| root.pointer(r.strip_prefix('#')?));
        let s = target.unwrap_or(s);
        let values =
            s.get("enum").and_then(Value::as_array).cloned().or_else(|| s.get("const").map(|c| vec![c.clone()]));
        if let Some(values) = values {
            let texts: Vec<String> = values.iter().filter_map(Value::as_str).map(escaped).collect();
            return format!("({})", texts.join("|"));
        }
        let why = "not enforced where strings are written without quotes";
        let mut body = None;
        if let Some(pattern) = s.get("pattern").and_then(Value::as_str) {
            body = searched(pattern);
            if body.is_none() {
                self.warn(path, "pattern", why);
            }
        }
        if let Some(format) = s.get("format").and_then(Value::as_str) {
            match (format_regex(format), &body) {
                (Some(r), None) => body = Some(r),
                _ => self.warn(path, "format", why),
            }
        }
        let length = |k: &str| s.get(k).and_then(Value::as_u64);
        if let (min, max) = (length("minLength"), length("maxLength"))
            && (min.is_some() || max.is_some())
        {
            let small = min.unwrap_or(0).max(max.unwrap_or(0)) <= 4096;
            match (&body, small) {
                (None, true) => {
                    let max = max.map_or(String::new(), |m| m.to_string());
                    body = Some(format!("(?s:.){{{},{max}}}", min.unwrap_or(0)));
                }
                _ => self.warn(path, if max.is_some() { "maxLength" } else { "minLength" }, why),
            }
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            if s.get(key).is_some() {
                self.warn(path, key, why);
            }
        }
        body.unwrap_or_else(|| ANY_TEXT.to_owned())
    }
}

/// Texts that would be read as one of these types.
fn looks_like(types: Types) -> String {
    let mut forms = Vec::new();
    if types.has(Types::OBJECT.or(Types::ARRAY)) {
        forms.push(format!(r"[\[{{]{ANY_TEXT}"));
    }
    if types.has(Types::NUMBER.or(Types::INTEGER)) {
        forms.push(r"[-+0-9.eE]+\s*".into());
    }
    if types.has(Types::BOOLEAN) {
        forms.push(r"([tT]rue|[fF]alse)\s*".into());
    }
    if types.has(Types::NULL) {
        forms.push(r"(null|None)\s*".into());
    }
    format!(r"\s*({})", forms.join("|"))
}

/// A schema's pattern, which may match anywhere, as an expression for the whole text. `None` where anchors stand inside.
fn searched(pattern: &str) -> Option<String> {
    let (inner, head) = pattern.strip_prefix('^').map_or((pattern, ANY_TEXT), |p| (p, ""));
    let ends = inner.ends_with('$') && !inner.ends_with("\\$");
    let (inner, tail) = if ends { (&inner[..inner.len() - 1], "") } else { (inner, ANY_TEXT) };
    let anchored = head.is_empty() || tail.is_empty();
    let inside = inner.contains('^') && !inner.contains("[^") || inner.contains('$');
    if inside
        || inner.contains("(?") && !inner.contains("(?:")
        || anchored && inner.contains('|') && !inner.contains('(')
    {
        return None;
    }
    Some(format!("{head}(?:{inner}){tail}"))
}

fn format_regex(format: &str) -> Option<String> {
    const ZONE: &str = r"(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    Some(match format {
        "date" => DATE.to_owned(),
        "time" => format!("{TIME}{ZONE}"),
        "date-time" => format!("{DATE}T{TIME}{ZONE}"),
        "uuid" => "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".to_owned(),
        "ipv4" => format!(r"({BYTE}\.){{3}}{BYTE}"),
        _ => return None,
    })
}
