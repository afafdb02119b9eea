//! The one engine: token ids in, events out, whatever the dialect.
//!
//! Symbols are taken one at a time into a short buffer, and the parser takes from the buffer's front what it can decide.
//! A decision depends on the symbols alone, never on how they arrived, so any chunking gives the same events.

use std::{collections::HashMap, sync::Arc};

use super::{
    After, Dialect, Flow, Head,
    event::{Emitter, Ending, Event, Finish, Ids, Summary},
    gemma_call,
    harmony_head::{self, Target},
    json_call,
    schema::{Fields, Tool},
    symbols::{Match, Pattern, Sym, first},
    syntax::{Calls, Compiled},
    tagged,
};
use crate::{Detokenizer, Tokenizer};

/// What a parser must know of its request.
#[derive(Debug, Clone, Copy, Default)]
pub struct ParserOptions<'a> {
    /// The tools that were offered: they give arguments their types.
    pub tools: &'a [Tool],
    /// The prompt ends inside reasoning ([`Dialect::opens_reasoning`]).
    pub inside_reasoning: bool,
    /// Makes call ids unique: any number that no other request has.
    pub id_seed: u64,
}

/// Where in the output the parser is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    /// In reasoning that was not closed.
    Reasoning,
    /// In the answer, or between messages.
    Content,
    /// In a tool call.
    Call,
}

/// Splits a model's output into reasoning, content and calls while it is generated.
#[derive(Debug)]
pub struct OutputParser {
    c: Arc<Compiled>,
    detokenizer: Detokenizer,
    fields: HashMap<String, Fields>,
    text: String,
    held: Vec<Sym>,
    out: Emitter,
    state: State,
    reasoning: bool,
    /// A section of calls is open.
    section: bool,
    /// `<|start|>` opened the header, so that words in it are a role.
    announced: bool,
    /// Nothing more will come.
    at_end: Option<Finish>,
    degraded: bool,
    cut_call: Option<Option<u32>>,
    broken: Option<u32>,
    /// What came after a call broke. It is the call's if markup closes it, and text if none does.
    lost: Vec<Sym>,
}

#[derive(Debug)]
enum State {
    Text,
    /// After a call in JSON, where another may follow without markup.
    AfterJson,
    Call(Body),
    /// After a call that broke: nothing is believed until markup.
    Lost,
    /// In the header of a gpt-oss message.
    Header,
}

#[derive(Debug)]
enum Body {
    Tagged(tagged::Body),
    Json(json_call::Body),
    Whole(json_call::Whole),
    Gemma(gemma_call::Body),
}

impl OutputParser {
    /// A parser for one output.
    pub fn new(dialect: &Dialect, options: &ParserOptions<'_>) -> Self {
        let c = Arc::clone(&dialect.compiled);
        let ids = Ids { seed: options.id_seed, short: c.syntax.short_ids };
        let harmony = matches!(c.syntax.calls, Calls::Harmony);
        let mut out = Emitter::new(ids);
        if options.inside_reasoning {
            out.border();
        }
        Self {
            detokenizer: Detokenizer::new(false, false),
            fields: options.tools.iter().map(|t| (t.name.clone(), Fields::of(&t.parameters))).collect(),
            text: String::new(),
            held: Vec::new(),
            out,
            state: if harmony && !options.inside_reasoning { State::Header } else { State::Text },
            reasoning: options.inside_reasoning,
            section: false,
            announced: false,
            at_end: None,
            degraded: false,
            cut_call: None,
            broken: None,
            lost: Vec::new(),
            c,
        }
    }

    /// Takes the next id. Markup the dialect does not know (end tokens) says nothing and is dropped.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, sink: &mut dyn FnMut(Event<'_>)) {
        if let Some(mark) = self.c.marks.of(id) {
            self.flush_bytes();
            self.held.push(Sym::Mark(mark));
            self.run();
        } else if tokenizer.is_special(id) {
            self.flush_bytes();
        } else if let Some(bytes) = tokenizer.token_bytes(id) {
            self.take_bytes(bytes);
        }
        self.out.drain(sink);
    }

    /// Takes bytes as text: markers are recognised only if the vocabulary has no token for them.
    pub fn push_bytes(&mut self, bytes: &[u8], sink: &mut dyn FnMut(Event<'_>)) {
        self.take_bytes(bytes);
        self.out.drain(sink);
    }

    /// The end of the output: what was held back, and how it ended.
    pub fn finish(mut self, how: Finish, sink: &mut dyn FnMut(Event<'_>)) -> Summary {
        self.flush_bytes();
        self.at_end = Some(how);
        self.run();
        self.end(how);
        self.out.drain(sink);
        let ending = match (self.broken, self.cut_call) {
            (Some(index), _) => Ending::BrokenCall { index },
            (None, Some(index)) => Ending::InsideCall { index },
            (None, None) if self.reasoning && !matches!(self.state, State::Header) => Ending::InsideReasoning,
            (None, None) => Ending::Complete,
        };
        Summary { ending, calls: self.out.calls, degraded: self.degraded }
    }

    /// Where the output stands: an end token inside [`Region::Reasoning`] or [`Region::Call`] is no good end.
    pub fn region(&self) -> Region {
        let opener_held = !self.reasoning && matches!(first(&self.c.openers, &self.held).0, Match::Full(_));
        match self.state {
            State::Call(_) => Region::Call,
            _ if opener_held => Region::Call,
            State::Text if self.reasoning => Region::Reasoning,
            _ => Region::Content,
        }
    }

    fn take_bytes(&mut self, bytes: &[u8]) {
        let mut text = std::mem::take(&mut self.text);
        self.detokenizer.push_bytes(bytes, &mut text);
        self.take_text(text);
    }

    fn flush_bytes(&mut self) {
        let mut text = std::mem::take(&mut self.text);
        self.detokenizer.finish(&mut text);
        self.take_text(text);
    }

    fn take_text(&mut self, mut text: String) {
        for c in text.chars() {
            self.held.push(Sym::Char(c));
            self.run();
        }
        text.clear();
        self.text = text;
    }

    fn run(&mut self) {
        while !self.held.is_empty() && self.step() {}
    }

    /// Decides about the front of the buffer; false: it must wait.
    fn step(&mut self) -> bool {
        let c = Arc::clone(&self.c);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => match c.syntax.calls {
                Calls::Harmony => self.harmony_text(&c),
                _ => self.text_step(&c),
            },
            State::Call(body) => self.call_step(&c, body),
            State::AfterJson => self.after_json(&c),
            State::Lost => self.lost(&c),
            State::Header => self.header(&c),
        }
    }

    fn drop_front(&mut self, n: usize) {
        self.held.drain(..n.min(self.held.len()));
    }

    /// The front symbols are text of the present region. Markup is no content.
    fn emit(&mut self, c: &Compiled, n: usize) {
        for sym in self.held.drain(..n) {
            match sym {
                Sym::Char(ch) => self.out.text(self.reasoning, ch),
                Sym::Mark(m) if self.reasoning => {
                    c.marks.text(m).chars().for_each(|ch| self.out.text(true, ch));
                }
                Sym::Mark(_) => {}
            }
        }
    }

    fn text_step(&mut self, c: &Compiled) -> bool {
        let mut wait = false;
        if let Some((open, close)) = &c.think {
            match close.at(&self.held) {
                Match::Full(n) => {
                    self.drop_front(n);
                    self.reasoning = false;
                    self.out.border();
                    return true;
                }
                m => wait |= m == Match::Partial,
            }
            match open.at(&self.held) {
                Match::Full(n) if self.reasoning => {
                    self.drop_front(n);
                    return true;
                }
                Match::Full(n) if matches!(self.held[0], Sym::Mark(_)) || !self.out.any_content => {
                    self.drop_front(n);
                    self.reasoning = true;
                    self.out.border();
                    return true;
                }
                m => wait |= m == Match::Partial,
            }
        }
        if !self.reasoning {
            match first(&c.strays, &self.held).0 {
                Match::Full(n) => {
                    self.drop_front(n);
                    self.section = false;
                    return true;
                }
                m => wait |= m == Match::Partial,
            }
        }
        match self.opener(c) {
            (Match::Full(n), certain) => return self.open_call(c, n, certain),
            (m, _) => wait |= m == Match::Partial,
        }
        if wait && self.at_end.is_none() {
            return false;
        }
        if wait && self.at_end == Some(Finish::Cut) && !self.reasoning && self.held.len() >= 4 {
            self.cut_call = Some(None);
            self.held.clear();
            return false;
        }
        self.emit(c, 1);
        true
    }

    /// Whether a call opens here, and whether what opens it is certainly markup.
    fn opener(&self, c: &Compiled) -> (Match, bool) {
        let found = first(&c.openers, &self.held);
        if found.0 != Match::No {
            return (found.0, c.tagged.is_none() || found.1 == 0);
        }
        match (&c.syntax.calls, &c.tagged) {
            (Calls::Json(j), _)
                if j.bare && !self.reasoning && !self.out.any_content && self.held[0] == Sym::Char('{') =>
            {
                (Match::Full(0), false)
            }
            (_, Some(t)) if self.section && t.heads.len() > 1 => (t.heads[1].at(&self.held), true),
            _ => (Match::No, false),
        }
    }

    fn head(&self, c: &Compiled, from: usize) -> Head {
        match (&c.syntax.calls, &c.tagged) {
            (_, Some(t)) => tagged::head(t, &self.held, self.section),
            (Calls::Json(j), _) => json_call::head(c, j, &self.held, from),
            (Calls::Gemma, _) => gemma_call::head(c, &self.held),
            _ => Head::No,
        }
    }

    /// An opener of `n` symbols is at the front: a call begins, or it is text after all.
    fn open_call(&mut self, c: &Compiled, n: usize, certain: bool) -> bool {
        let quoted = self.reasoning && self.out.last == Some('`');
        match self.head(c, n) {
            Head::Partial if self.at_end.is_none() => return false,
            Head::Partial if !self.reasoning && certain => {
                self.cut_call = Some(None);
                self.held.clear();
                return true;
            }
            Head::Full { len, name, then }
                if !quoted && ((certain && !self.reasoning) || self.fields.contains_key(&name)) =>
            {
                self.drop_front(len);
                self.begin(c, &name, then);
                return true;
            }
            Head::No if !self.reasoning && certain && self.opens_object(n) => {
                self.drop_front(n);
                self.state = State::Call(Body::Whole(json_call::Whole::new()));
                return true;
            }
            _ => {}
        }
        if certain && !self.reasoning {
            self.degraded = true;
            self.drop_front(n);
        } else {
            self.emit(c, n.max(1));
        }
        true
    }

    /// Whether a JSON object stands where a call's would.
    fn opens_object(&self, from: usize) -> bool {
        let json = matches!(self.c.syntax.calls, Calls::Json(_));
        json && self.held[from..].iter().find(|s| !s.is_space() && **s != Sym::Char('[')) == Some(&Sym::Char('{'))
    }

    fn begin(&mut self, c: &Compiled, name: &str, then: After) {
        self.reasoning = false;
        self.out.start(name);
        let fields = || self.fields.get(name).cloned().unwrap_or_else(Fields::unknown);
        self.state = match (then, &c.syntax.calls) {
            (After::Zero, _) => {
                self.out.args().push_str("{}");
                self.out.end();
                State::AfterJson
            }
            (After::Wrapped, _) => State::Call(Body::Json(json_call::Body::new(true))),
            (After::Object, _) => State::Call(Body::Json(json_call::Body::new(false))),
            (After::Fields, Calls::Gemma) => State::Call(Body::Gemma(gemma_call::Body::new())),
            (After::Fields, _) => {
                self.section = true;
                State::Call(Body::Tagged(tagged::Body::new(fields())))
            }
        };
    }

    fn call_step(&mut self, c: &Compiled, mut body: Body) -> bool {
        let harmony = matches!(c.syntax.calls, Calls::Harmony);
        if harmony && let Body::Json(b) = &body {
            match first(&c.harmony.ends, &self.held).0 {
                Match::Full(n) => {
                    self.drop_front(n);
                    self.end_message(b.empty());
                    return true;
                }
                Match::Partial if self.at_end.is_none() => {
                    self.state = State::Call(body);
                    return false;
                }
                _ => {}
            }
        }
        let (n, flow) = match (&mut body, &c.syntax.calls, &c.tagged) {
            (Body::Tagged(b), _, Some(t)) => b.step(c, t, &self.held, &mut self.out),
            (Body::Gemma(b), ..) => b.step(c, &self.held, &mut self.out),
            (Body::Json(b), ..) => (1, b.step(c, self.held[0], &mut self.out)),
            (Body::Whole(b), Calls::Json(j), _) => (1, b.step(c, j, self.held[0], &mut self.out)),
            _ => (0, Flow::Broken),
        };
        if flow == Flow::Broken {
            self.lost.extend(&self.held[..n.min(self.held.len())]);
        }
        if flow != Flow::Retry {
            self.drop_front(n);
        }
        match (flow, body) {
            (Flow::Go, body) => self.state = State::Call(body),
            (Flow::Wait, body) => {
                self.state = State::Call(body);
                return false;
            }
            (Flow::Broken, Body::Whole(w)) => {
                self.degraded = true;
                self.lost.clear();
                let rest = std::mem::replace(&mut self.held, w.raw);
                self.emit(c, self.held.len());
                self.held = rest;
            }
            (Flow::Broken, _) => {
                self.broken = self.broken.or(Some(self.out.calls.saturating_sub(1)));
                self.state = State::Lost;
            }
            (Flow::Done | Flow::Retry, _) if harmony => self.state = State::Lost,
            (Flow::Done | Flow::Retry, Body::Json(_) | Body::Whole(_)) => self.state = State::AfterJson,
            (Flow::Done, Body::Tagged(b)) => self.section = !b.closed,
            _ => {}
        }
        true
    }

    fn after_json(&mut self, c: &Compiled) -> bool {
        let Calls::Json(j) = &c.syntax.calls else { return true };
        match self.held[0] {
            s if s.is_space() => {}
            Sym::Char(ch) if j.between.contains(&ch) => {}
            Sym::Char('{') => match self.head(c, 0) {
                Head::Partial if self.at_end.is_none() => {
                    self.state = State::AfterJson;
                    return false;
                }
                Head::Partial => {
                    self.cut_call = Some(None);
                    self.held.clear();
                    return true;
                }
                Head::Full { len, name, then } => {
                    self.drop_front(len);
                    self.begin(c, &name, then);
                    return true;
                }
                Head::No => return true,
            },
            _ => return true,
        }
        self.drop_front(1);
        self.state = State::AfterJson;
        true
    }

    fn lost(&mut self, c: &Compiled) -> bool {
        let harmony = matches!(c.syntax.calls, Calls::Harmony);
        let ends: &[Pattern] = if harmony { &c.harmony.ends } else { &c.strays };
        let opens: &[Pattern] = if harmony { std::slice::from_ref(&c.harmony.start) } else { &c.openers };
        let (end, open) = (first(ends, &self.held).0, first(opens, &self.held).0);
        let found = matches!(end, Match::Full(_)) || matches!(open, Match::Full(_));
        if found {
            if let Match::Full(n) = end {
                self.drop_front(n);
            }
            self.lost.clear();
            self.announced = false;
            self.state = if harmony { State::Header } else { State::Text };
            return true;
        }
        self.state = State::Lost;
        if (end == Match::Partial || open == Match::Partial) && self.at_end.is_none() {
            return false;
        }
        self.lost.push(self.held[0]);
        self.drop_front(1);
        true
    }

    /// A gpt-oss call's message is over before its arguments are.
    fn end_message(&mut self, empty: bool) {
        if empty {
            self.out.args().push_str("{}");
            self.out.end();
        } else {
            self.broken = self.broken.or(Some(self.out.calls.saturating_sub(1)));
        }
        self.state = State::Header;
    }

    fn harmony_text(&mut self, c: &Compiled) -> bool {
        let h = &c.harmony;
        let mut wait = false;
        let ends = h.ends.iter().map(|p| (p, true, false));
        for (pattern, taken, start) in ends.chain([(&h.start, true, true), (&h.channel, false, false)]) {
            match pattern.at(&self.held) {
                Match::Full(n) => {
                    self.announced = start;
                    if taken {
                        self.drop_front(n);
                    }
                    self.reasoning = false;
                    self.state = State::Header;
                    return true;
                }
                m => wait |= m == Match::Partial,
            }
        }
        if let Match::Full(n) = h.message.at(&self.held) {
            self.drop_front(n);
            return true;
        }
        if wait && self.at_end.is_none() {
            return false;
        }
        self.emit(c, 1);
        true
    }

    fn header(&mut self, c: &Compiled) -> bool {
        /// The longest header, in symbols.
        const MAX: usize = 320;
        let h = &c.harmony;
        self.state = State::Header;
        for i in 0..self.held.len() {
            let rest = &self.held[i..];
            if let Match::Full(n) = h.message.at(rest) {
                let target = harmony_head::read(h, &c.marks, &self.held[..i]);
                self.drop_front(i + n);
                self.announced = false;
                self.begin_message(target);
                return true;
            }
            let skipped = match (first(&h.ends, rest).0, h.start.at(rest)) {
                (_, Match::Full(n)) => Some((n, true)),
                (Match::Full(n), _) => Some((n, false)),
                _ => None,
            };
            if let Some((n, start)) = skipped {
                // A header without a message, or a message without a header.
                self.degraded |= i > 0;
                self.headless(c, i);
                self.drop_front(n);
                self.announced = start;
                return true;
            }
        }
        if self.held.len() > MAX {
            self.announced = false;
            self.headless(c, self.held.len());
            self.state = State::Text;
            return true;
        }
        if self.at_end.is_some() && !harmony_head::is_head(h, &c.marks, &self.held, self.announced) {
            self.headless(c, self.held.len());
            return true;
        }
        false
    }

    /// So many symbols stand where a header should. What is none is text.
    fn headless(&mut self, c: &Compiled, n: usize) {
        self.reasoning = false;
        if n == 0 || harmony_head::is_head(&c.harmony, &c.marks, &self.held[..n], self.announced) {
            self.drop_front(n);
            return;
        }
        self.degraded = true;
        self.out.paragraph();
        self.emit(c, n);
    }

    fn begin_message(&mut self, target: Target) {
        self.reasoning = target == Target::Reasoning;
        self.degraded |= target == Target::Unknown;
        self.state = State::Text;
        match target {
            Target::Call(name) => {
                self.out.start(&name);
                self.state = State::Call(Body::Json(json_call::Body::new(false)));
            }
            _ => self.out.paragraph(),
        }
    }

    fn end(&mut self, how: Finish) {
        let index = Some(self.out.calls.saturating_sub(1));
        match &self.state {
            State::Call(Body::Json(b)) if b.complete() => {}
            State::Call(Body::Json(b)) if b.empty() && how == Finish::End && self.is_harmony() => {
                self.out.args().push_str("{}");
                self.out.end();
            }
            State::Call(Body::Whole(_)) => self.cut_call = Some(None),
            State::Call(_) => self.cut_call = Some(index),
            State::Lost if self.broken.is_some() => {
                let c = Arc::clone(&self.c);
                self.held = std::mem::take(&mut self.lost);
                self.emit(&c, self.held.len());
            }
            State::Header => {
                let mut text = String::new();
                self.c.marks.spell(&self.held, &mut text);
                if text.contains("to=") {
                    self.cut_call = Some(None);
                }
            }
            _ => {}
        }
        self.out.flush_space(self.reasoning);
    }

    fn is_harmony(&self) -> bool {
        matches!(self.c.syntax.calls, Calls::Harmony)
    }
}
