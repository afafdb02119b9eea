//! Calls written as JSON objects: Qwen3, Llama, Mistral; and the bodies of gpt-oss calls.

use serde_json::Value;

use super::{
    After, Flow, Head,
    event::Emitter,
    json::{Scanner, Step},
    symbols::{Match, Pattern, Sym},
    syntax::{Compiled, JsonCalls},
    tagged::MAX_NAME,
};

/// Reads the beginning of a call, up to the `{` of its arguments. `from`: where the markup before it ends.
pub(super) fn head(c: &Compiled, j: &JsonCalls, syms: &[Sym], from: usize) -> Head {
    let mut partial = false;
    for lead in ["␣{␣\"name\"␣:␣\"", "␣{␣\"type\"␣:␣\"function\"␣,␣\"name\"␣:␣\"", "␣[␣{␣\"name\"␣:␣\""]
    {
        match Pattern::new(lead, &c.marks).at(&syms[from..]) {
            Match::Full(n) => match after_lead(c, j, syms, from + n) {
                Head::No => {}
                found => return found,
            },
            Match::Partial => partial = true,
            Match::No => {}
        }
    }
    if let Some(sep) = j.named {
        match standing_name(&Pattern::new(sep, &c.marks), syms, from) {
            Head::No => {}
            Head::Partial => partial = true,
            found => return found,
        }
    }
    if partial { Head::Partial } else { Head::No }
}

fn after_lead(c: &Compiled, j: &JsonCalls, syms: &[Sym], from: usize) -> Head {
    let mut name = String::new();
    let mut at = from;
    loop {
        match syms.get(at) {
            None => return Head::Partial,
            Some(Sym::Char('"')) => break,
            Some(Sym::Char(ch)) if *ch != '\\' && !ch.is_control() && name.len() < MAX_NAME => name.push(*ch),
            _ => return Head::No,
        }
        at += 1;
    }
    let mut partial = false;
    for field in j.arguments {
        let field = Pattern::new(&format!("\"␣,␣\"{field}\"␣:␣{{"), &c.marks);
        match field.at(&syms[at..]) {
            // The brace belongs to the arguments.
            Match::Full(n) if !name.is_empty() => return Head::Full { len: at + n - 1, name, then: After::Wrapped },
            Match::Partial => partial = true,
            _ => {}
        }
    }
    match Pattern::new("\"␣}", &c.marks).at(&syms[at..]) {
        Match::Full(n) if !name.is_empty() => Head::Full { len: at + n, name, then: After::Zero },
        Match::Partial => Head::Partial,
        _ if partial => Head::Partial,
        _ => Head::No,
    }
}

fn standing_name(sep: &Pattern, syms: &[Sym], from: usize) -> Head {
    let mut name = String::new();
    let mut at = from;
    loop {
        match (sep.at(&syms[at..]), syms.get(at)) {
            (Match::Full(n), _) if !name.is_empty() => return Head::Full { len: at + n, name, then: After::Object },
            (Match::Partial, _) | (_, None) => return Head::Partial,
            (_, Some(Sym::Char(c))) if (c.is_alphanumeric() || "_-.:/".contains(*c)) && name.len() < MAX_NAME => {
                name.push(*c);
                at += 1;
            }
            (_, Some(s)) if s.is_space() && name.is_empty() && at - from < 8 => at += 1,
            _ => return Head::No,
        }
    }
}

/// A call after its name.
#[derive(Debug)]
pub(super) struct Body {
    scanner: Scanner,
    /// The arguments are over; the object around them is not.
    tail: bool,
    /// There is an object around the arguments.
    wrapped: bool,
    started: bool,
}

impl Body {
    pub fn new(wrapped: bool) -> Self {
        Self { scanner: Scanner::new(), tail: false, wrapped, started: false }
    }

    /// Takes one symbol.
    pub fn step(&mut self, c: &Compiled, sym: Sym, out: &mut Emitter) -> Flow {
        if !self.started {
            if sym.is_space() {
                return Flow::Go;
            }
            if sym != Sym::Char('{') {
                return Flow::Broken;
            }
            self.started = true;
        }
        let mut dropped = String::new();
        let step = match sym {
            Sym::Char(ch) if self.tail => self.scanner.push(ch, &mut dropped),
            Sym::Char(ch) => self.scanner.push(ch, out.args()),
            Sym::Mark(m) if self.scanner.in_text() => {
                let out = if self.tail { &mut dropped } else { out.args() };
                for ch in c.marks.text(m).chars() {
                    self.scanner.push(ch, out);
                }
                Step::More
            }
            Sym::Mark(_) => Step::Bad,
        };
        match (step, self.tail) {
            (Step::More, _) => Flow::Go,
            (Step::Done, false) => {
                out.end();
                self.tail = true;
                self.scanner = Scanner::after_value();
                if self.wrapped { Flow::Go } else { Flow::Done }
            }
            (Step::Done, true) => Flow::Done,
            // The call itself is whole; what its object ends with does not matter.
            (Step::Bad, true) => Flow::Retry,
            (Step::Bad, false) => Flow::Broken,
        }
    }

    /// Whether the call's arguments are complete.
    pub fn complete(&self) -> bool {
        self.tail
    }

    /// Whether no argument has come yet.
    pub fn empty(&self) -> bool {
        !self.started
    }
}

/// A call whose fields come in an unusual order: read whole, then understood.
#[derive(Debug)]
pub(super) struct Whole {
    scanner: Scanner,
    text: String,
    /// As it came, for the case that it is no call.
    pub raw: Vec<Sym>,
}

impl Whole {
    pub fn new() -> Self {
        Self { scanner: Scanner::new(), text: String::new(), raw: Vec::new() }
    }

    /// Takes one symbol. `Broken`: this is no call.
    pub fn step(&mut self, c: &Compiled, j: &JsonCalls, sym: Sym, out: &mut Emitter) -> Flow {
        if self.text.is_empty() && (sym.is_space() || sym == Sym::Char('[')) && self.raw.len() < 80 {
            self.raw.push(sym);
            return Flow::Go;
        }
        let step = match sym {
            Sym::Char(ch) => self.scanner.push(ch, &mut self.text),
            Sym::Mark(m) if self.scanner.in_text() => {
                c.marks.text(m).chars().for_each(|ch| {
                    self.scanner.push(ch, &mut self.text);
                });
                Step::More
            }
            Sym::Mark(_) => return Flow::Broken,
        };
        self.raw.push(sym);
        match step {
            Step::More => Flow::Go,
            Step::Done => match understood(j, &self.text) {
                Some((name, arguments)) => {
                    out.start(&name);
                    out.args().push_str(&arguments);
                    out.end();
                    Flow::Done
                }
                None => Flow::Broken,
            },
            Step::Bad => Flow::Broken,
        }
    }
}

fn understood(j: &JsonCalls, text: &str) -> Option<(String, String)> {
    let v: Value = serde_json::from_str(text).ok()?;
    let v = v.get("function").filter(|f| f.is_object()).unwrap_or(&v);
    let name = v.get("name")?.as_str().filter(|n| !n.is_empty() && n.len() <= MAX_NAME)?;
    let arguments = match j.arguments.iter().find_map(|a| v.get(a)) {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(s)) if s.trim().is_empty() => "{}".to_owned(),
        // Arguments as a string of JSON.
        Some(Value::String(s)) => serde_json::from_str::<Value>(s).ok().filter(Value::is_object)?.to_string(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}
