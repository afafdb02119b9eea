//! `snug chat`: a conversation, line by line.

use super::answer;
use super::run::say_drafts;
use crate::args::ChatArgs;
use crate::fault::Ended;
use crate::interrupt;
use crate::load::{answering, place, say_memory};
use crate::output::{self, Stream, note};
use crate::progress::Bar;
use crate::resolve;
use anyhow::Context;
use engine::open::Opened;
use engine::{Conversation, Error, Event, Finish, Model, Request, Turn};
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use std::io::{BufRead, IsTerminal};
use std::sync::atomic::Ordering;

const HELP: &str = "/reset  forget the conversation and begin a new one\n/help   this list\n/exit   leave (also Ctrl-D)\nCtrl-C  stop an answer";

/// Talks until the input ends.
pub fn run(a: &ChatArgs, verbose: bool) -> anyhow::Result<Ended> {
    answer::check(&a.sample)?;
    let opened = Opened::open(resolve::source(a.model.as_deref())?)?;
    let mut model = place(opened, &answering(&a.on, a.ahead)?, verbose)?;
    model.tokenizer()?;
    let template = model.template.take().ok_or(text::Error::NoTemplate)?;
    let mut conversation = Conversation::new(template, a.system.clone());
    let how = how(a, &model);
    if verbose {
        note(format_args!("seed {}", how.sampling.seed));
    }
    let mut lines = Lines::new(&model.name)?;
    while let Some(line) = lines.next()? {
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => break,
            "/help" => note(HELP),
            "/reset" => conversation.reset(&mut model.exec)?,
            c if c.starts_with('/') && !c.contains(char::is_whitespace) => {
                note(format_args!("there is no command {c}; /help lists them"));
            }
            _ => say(&mut model, &mut conversation, &line, &how, verbose)?,
        }
    }
    Ok(Ended::Done)
}

fn how(a: &ChatArgs, m: &Model) -> Request {
    let s = &a.sample;
    Request {
        sampling: answer::sampling(s, m.sampling.clone()),
        max_tokens: s.max_tokens,
        stop: s.stop.clone(),
        ignore_eos: s.ignore_eos,
        ..Request::default()
    }
}

/// One turn. What the next one can mend (a full context, a template's refusal) is a note, anything else an error.
fn say(m: &mut Model, c: &mut Conversation, text: &str, how: &Request, verbose: bool) -> anyhow::Result<()> {
    match turn(m, c, text, how) {
        Ok(t) => {
            if t.answer.finish == Finish::ContextFull {
                full(m);
            }
            if verbose {
                describe(&t);
                say_drafts(&m.exec, t.answer.drafts);
                say_memory(&m.exec.usage());
            }
            Ok(())
        }
        Err(e) => match e.downcast_ref() {
            Some(Error::PromptTooLong { .. }) => {
                full(m);
                Ok(())
            }
            Some(Error::Text(text::Error::TemplateRaised(_))) => {
                note(e);
                Ok(())
            }
            _ => Err(e),
        },
    }
}

fn full(m: &Model) {
    let context = m.exec.plan().context;
    note(format_args!("the context of {context} positions is full; /reset begins a new conversation"));
}

fn turn(m: &mut Model, c: &mut Conversation, text: &str, how: &Request) -> anyhow::Result<Turn> {
    let tokenizer = m.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer(m.name.clone()))?;
    let mut out = Stream::default();
    let mut bar: Option<Bar> = None;
    let turn = interrupt::answering(|stop| {
        c.say(&mut m.exec, tokenizer, text, how, stop, &mut |e| match e {
            Event::Prefill { done, total } => {
                bar.get_or_insert_with(|| Bar::prefill(total as u64)).at(done as u64, total as u64);
            }
            Event::Token(_) => bar = None,
            Event::Text(t) => {
                if !out.push(t) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        })
    })?;
    out.finish()?;
    Ok(turn)
}

fn describe(t: &Turn) {
    if let Some(why) = &t.reread {
        note(format_args!("debug: {why}"));
    }
    note(format_args!(
        "debug: read {} tokens at {:.1}/s, made {} at {:.1}/s, {}",
        t.answer.prompt_tokens,
        t.answer.prefill_tps(),
        t.answer.ids.len(),
        t.answer.decode_tps(),
        t.answer.finish.name()
    ));
}

/// Where lines come from: a person at a terminal, or a pipe.
enum Lines {
    Person { editor: Box<DefaultEditor>, interrupted: bool },
    Pipe,
}

impl Lines {
    fn new(name: &str) -> anyhow::Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Lines::Pipe);
        }
        note(format_args!("{name}: /help lists the commands, Ctrl-D leaves"));
        // The prompt goes to the terminal itself, so that stdout carries answers only.
        let config = Config::builder().behavior(Behavior::PreferTerm).build();
        let editor = DefaultEditor::with_config(config).context("cannot use the terminal")?;
        Ok(Lines::Person { editor: Box::new(editor), interrupted: false })
    }

    /// The next line; `None` at the end.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Lines::Pipe => piped(),
            Lines::Person { editor, interrupted } => typed(editor, interrupted),
        }
    }
}

fn piped() -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let n = std::io::stdin().lock().read_line(&mut line).context("cannot read stdin")?;
    Ok((n > 0).then(|| line.trim_end_matches(['\n', '\r']).to_string()))
}

/// Ctrl-C gives the line up; a second one in a row leaves.
fn typed(editor: &mut DefaultEditor, interrupted: &mut bool) -> anyhow::Result<Option<String>> {
    loop {
        match editor.readline("> ") {
            Ok(line) => {
                *interrupted = false;
                // A line that cannot be remembered can still be answered.
                let _ = editor.add_history_entry(&line);
                return Ok(Some(line));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Interrupted) if *interrupted => return Ok(None),
            Err(ReadlineError::Interrupted) => {
                *interrupted = true;
                output::note("(Ctrl-C again or Ctrl-D to leave)");
            }
            Err(e) => return Err(e).context("cannot read from the terminal"),
        }
    }
}
