//! What comes out of a parser.

/// A piece of parsed output. Pieces of one kind are to be concatenated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// Text of the model's reasoning.
    Reasoning(&'a str),
    /// Text of the answer.
    Content(&'a str),
    /// A call begins; its name comes once and whole.
    ToolCallStart {
        /// Position among the calls of this output, from 0.
        index: u32,
        /// Unique, and the same however the output is cut into pieces.
        id: &'a str,
        /// The tool's name as the model wrote it; it need not be one that exists.
        name: &'a str,
    },
    /// More of a call's arguments. All pieces of a call together are one JSON object.
    ToolCallArgs {
        /// The call.
        index: u32,
        /// A piece of JSON text.
        delta: &'a str,
    },
    /// The call is complete. It never comes for a call that was cut off or whose arguments cannot be read.
    ToolCallEnd {
        /// The call.
        index: u32,
    },
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// It said so, with an end token or by the end of its grammar.
    End,
    /// It was cut off: token limit, stop string, cancelled.
    Cut,
}

/// In which state the output ended.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everything that was opened was closed.
    Complete,
    /// Inside reasoning: there may be no answer at all.
    InsideReasoning,
    /// Inside a call, which is not to be made. `index` is the call's, if its name was already known.
    InsideCall {
        /// The call that was cut off.
        index: Option<u32>,
    },
    /// This call was begun and then broke its own grammar: its arguments cannot be read.
    BrokenCall {
        /// The call that broke.
        index: u32,
    },
}

/// What is left to say at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// In which state the output ended; the worst if several apply.
    pub ending: Ending,
    /// How many calls were begun.
    pub calls: u32,
    /// Something looked like a call and was none; its words are in the content, without the markup.
    pub degraded: bool,
}

/// A whole output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parsed {
    /// All reasoning.
    pub reasoning: String,
    /// All content.
    pub content: String,
    /// All calls in order.
    pub calls: Vec<ParsedCall>,
}

/// A call of a whole output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedCall {
    /// See [`Event::ToolCallStart`].
    pub id: String,
    /// See [`Event::ToolCallStart`].
    pub name: String,
    /// JSON text of one object, if `complete`.
    pub arguments: String,
    /// Whether the call ended.
    pub complete: bool,
}

impl Parsed {
    /// Adds an event: what a client does with a stream.
    pub fn push(&mut self, event: Event<'_>) {
        match event {
            Event::Reasoning(s) => self.reasoning.push_str(s),
            Event::Content(s) => self.content.push_str(s),
            Event::ToolCallStart { id, name, .. } => self.calls.push(ParsedCall {
                id: id.into(),
                name: name.into(),
                arguments: String::new(),
                complete: false,
            }),
            Event::ToolCallArgs { index, delta } => {
                if let Some(call) = self.calls.get_mut(index as usize) {
                    call.arguments.push_str(delta);
                }
            }
            Event::ToolCallEnd { index } => {
                if let Some(call) = self.calls.get_mut(index as usize) {
                    call.complete = true;
                }
            }
        }
    }
}

/// Events being made, with neighbours of one kind joined.
#[derive(Debug, Default)]
pub(super) struct Emitter {
    queue: Vec<Queued>,
    /// How many calls were begun.
    pub calls: u32,
    /// Space that is only emitted if more text of its region follows.
    space: String,
    /// Space at the beginning of a region is dropped.
    skip_space: bool,
    /// The last character of text that was emitted.
    pub last: Option<char>,
    /// Whether any content was emitted.
    pub any_content: bool,
    any_reasoning: bool,
    /// Put before the next character of content, if there was content before.
    separate: bool,
    ids: Ids,
}

#[derive(Debug)]
enum Queued {
    Reasoning(String),
    Content(String),
    Start { index: u32, id: String, name: String },
    Args { index: u32, delta: String },
    End { index: u32 },
}

/// How call ids are made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ids {
    pub seed: u64,
    /// Nine letters and digits without a prefix, as Mistral's templates demand.
    pub short: bool,
}

impl Ids {
    fn make(self, index: u32) -> String {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let (mut id, n) = if self.short { (String::new(), 9) } else { ("call_".to_owned(), 24) };
        let mut state = self.seed ^ u64::from(index).wrapping_mul(0xA076_1D64_78BD_642F);
        for _ in 0..n {
            // SplitMix64 (Steele, Lea, Flood 2014).
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            id.push(char::from(DIGITS[((z ^ (z >> 31)) % 62) as usize]));
        }
        id
    }
}

impl Emitter {
    pub fn new(ids: Ids) -> Self {
        Self { ids, ..Self::default() }
    }

    /// A character of reasoning or content.
    pub fn text(&mut self, reasoning: bool, c: char) {
        self.last = Some(c);
        if c.is_whitespace() {
            if !self.skip_space {
                self.space.push(c);
            }
            return;
        }
        self.skip_space = false;
        let any = if reasoning { &mut self.any_reasoning } else { &mut self.any_content };
        if std::mem::take(&mut self.separate) && *any {
            self.space = "\n\n".into();
        }
        *any = true;
        let space = std::mem::take(&mut self.space);
        let run = self.run(reasoning);
        run.push_str(&space);
        run.push(c);
    }

    fn run(&mut self, reasoning: bool) -> &mut String {
        match (self.queue.last(), reasoning) {
            (Some(Queued::Reasoning(_)), true) | (Some(Queued::Content(_)), false) => {}
            (_, true) => self.queue.push(Queued::Reasoning(String::new())),
            (_, false) => self.queue.push(Queued::Content(String::new())),
        }
        match self.queue.last_mut() {
            Some(Queued::Reasoning(s) | Queued::Content(s)) => s,
            _ => unreachable!("a text was pushed just above"),
        }
    }

    /// A region ended: the space at its end and at the beginning of the next one is not part of either.
    pub fn border(&mut self) {
        self.space.clear();
        self.skip_space = true;
        self.last = None;
    }

    /// A further message begins: what it adds to earlier text is a paragraph of its own.
    pub fn paragraph(&mut self) {
        self.border();
        self.separate = true;
    }

    /// The end of the output: space that was waiting for more text.
    pub fn flush_space(&mut self, reasoning: bool) {
        if !self.space.is_empty() {
            let space = std::mem::take(&mut self.space);
            self.run(reasoning).push_str(&space);
        }
    }

    /// Begins a call and returns its index.
    pub fn start(&mut self, name: &str) -> u32 {
        let index = self.calls;
        self.calls += 1;
        self.border();
        self.queue.push(Queued::Start { index, id: self.ids.make(index), name: name.into() });
        index
    }

    /// Text to append argument JSON of the last call to.
    pub fn args(&mut self) -> &mut String {
        let index = self.calls.saturating_sub(1);
        if !matches!(self.queue.last(), Some(Queued::Args { .. })) {
            self.queue.push(Queued::Args { index, delta: String::new() });
        }
        match self.queue.last_mut() {
            Some(Queued::Args { delta, .. }) => delta,
            _ => unreachable!("arguments were pushed just above"),
        }
    }

    pub fn end(&mut self) {
        self.queue.push(Queued::End { index: self.calls.saturating_sub(1) });
    }

    /// Hands over what is there.
    pub fn drain(&mut self, sink: &mut dyn FnMut(Event<'_>)) {
        for q in self.queue.drain(..) {
            match &q {
                Queued::Reasoning(s) => sink(Event::Reasoning(s)),
                Queued::Content(s) => sink(Event::Content(s)),
                Queued::Start { index, id, name } => sink(Event::ToolCallStart { index: *index, id, name }),
                Queued::Args { delta, .. } if delta.is_empty() => {}
                Queued::Args { index, delta } => sink(Event::ToolCallArgs { index: *index, delta }),
                Queued::End { index } => sink(Event::ToolCallEnd { index: *index }),
            }
        }
    }
}
