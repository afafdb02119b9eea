//! How a command ends: its exit code, and the one line a failure gets on stderr.

use checkpoint::Error as FileError;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::process::ExitCode;

/// How a command ended that did not fail.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It did what was asked.
    Done,
    /// Ctrl-C stopped it; what there was has been printed.
    Interrupted,
    /// A program that was started ended with this code.
    With(u8),
}

/// The exit code of a command that Ctrl-C stopped: 128 + SIGINT, as shells have it.
pub const INTERRUPTED: u8 = 130;
const USER: u8 = 2;
const OTHER: u8 = 1;

impl From<Ended> for ExitCode {
    fn from(e: Ended) -> Self {
        ExitCode::from(match e {
            Ended::Done => 0,
            Ended::Interrupted => INTERRUPTED,
            Ended::With(code) => code,
        })
    }
}

/// What was asked cannot be done, and asking differently helps.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A [`Usage`] error.
pub fn usage<T>(message: impl Into<String>) -> anyhow::Result<T> {
    Err(Usage(message.into()).into())
}

/// Prints a failure and gives its exit code. A reader of stdout that went away is none.
pub fn report(e: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(e) {
        return ExitCode::SUCCESS;
    }
    crate::progress::clear();
    eprintln!("error: {}", one_line(e));
    ExitCode::from(if is_users(e) { USER } else { OTHER })
}

/// What clap has to say: help and version to stdout, anything else as one line.
pub fn of_clap(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        // A closed pipe is no reason to complain about help.
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    let line = if e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "there is no command".to_string()
    } else {
        clap_line(&e.to_string())
    };
    eprintln!("error: {line}; see `snug --help`");
    ExitCode::from(USER)
}

/// What clap says before it shows the usage: the error, and below it tips.
fn clap_line(text: &str) -> String {
    let said = text.split("\nUsage:").next().unwrap_or_default();
    let said = said.split("\nFor more information").next().unwrap_or_default();
    let parts: Vec<String> = said.split("\n\n").map(fold).filter(|p| !p.is_empty()).collect();
    parts.join("; ").trim_start_matches("error: ").to_string()
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().filter_map(|c| c.downcast_ref::<std::io::Error>()).any(|c| c.kind() == ErrorKind::BrokenPipe)
}

/// The message with its causes, those that do not repeat what was said already.
fn one_line(e: &anyhow::Error) -> String {
    let mut all = String::new();
    for cause in e.chain() {
        let said = cause.to_string();
        if all.is_empty() {
            all = said;
        } else if !all.contains(&said) {
            // Writing to a string cannot fail.
            let _ = write!(all, ": {said}");
        }
    }
    fold(&all)
}

/// Any white space, line breaks among it, to single spaces.
fn fold(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether asking differently helps, as opposed to a damaged file, a fault of the system or of this program.
fn is_users(e: &anyhow::Error) -> bool {
    e.chain().any(|c| {
        c.is::<Usage>()
            || c.is::<memory::OverBudget>()
            || c.is::<snug::synth::Wrong>()
            || c.is::<memory::experts::trace::NotATrace>()
            || c.downcast_ref().is_some_and(of_launch)
            || c.downcast_ref().is_some_and(of_engine)
            || c.downcast_ref().is_some_and(of_model)
            || c.downcast_ref().is_some_and(of_file)
            || c.downcast_ref().is_some_and(of_text)
            || c.downcast_ref().is_some_and(of_device)
    })
}

fn of_engine(e: &engine::Error) -> bool {
    use engine::Error as E;
    match e {
        E::BadParameter { .. } | E::PromptTooLong { .. } | E::EmptyPrompt | E::BadToken { .. } => true,
        E::NoTokenizer(_) | E::Refused(_) | E::OverBudget(_) | E::TooShort(_) => true,
        E::State(state::Error::OverBudget(_)) | E::Weights(weights::Error::OverBudget(_)) => true,
        E::Checkpoint(e) => of_file(e),
        E::Text(e) => of_text(e),
        E::Model(e) => of_model(e),
        E::InFile { source, .. } => of_engine(source),
        E::Device(e) => of_device(e),
        _ => false,
    }
}

fn of_model(e: &model::Error) -> bool {
    match e {
        model::Error::UnknownArchitecture { .. } | model::Error::NoArchitecture(_) => true,
        model::Error::Checkpoint(e) => of_file(e),
        _ => false,
    }
}

fn of_file(e: &FileError) -> bool {
    let kinds = [ErrorKind::NotFound, ErrorKind::PermissionDenied, ErrorKind::IsADirectory];
    match e {
        FileError::Io { source, .. } => kinds.contains(&source.kind()),
        FileError::NotACheckpoint { .. } | FileError::MissingParts { .. } => true,
        _ => false,
    }
}

fn of_text(e: &text::Error) -> bool {
    matches!(e, text::Error::NoTemplate | text::Error::TemplateRaised(_))
}

fn of_launch(e: &snug::launch::server::Error) -> bool {
    use snug::launch::server::Error as E;
    matches!(e, E::Address { .. } | E::Silent { .. } | E::Key(_) | E::Model { .. })
}

fn of_device(e: &device::Error) -> bool {
    matches!(e, device::Error::NoIsa { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_folded_into_one_line_and_said_once() {
        let io = std::io::Error::other("the disk\nis on fire");
        let e = anyhow::Error::from(io).context("cannot read x: the disk\nis on fire").context("reading the store");
        assert_eq!(one_line(&e), "reading the store: cannot read x: the disk is on fire");
        assert!(!is_users(&e));
    }

    #[test]
    fn whose_fault_it_is_shows_through_contexts() {
        let e = usage::<()>("no such model").context("opening").unwrap_err();
        assert!(is_users(&e));
        assert!(is_users(&engine::Error::EmptyPrompt.into()));
        assert!(!is_users(&engine::Error::BadLogits.into()));
        let unknown = model::Error::UnknownArchitecture { found: "x".into(), supported: vec!["y"] };
        assert!(is_users(&engine::Error::from(unknown).into()));
    }

    #[test]
    fn a_parsing_error_is_one_line_with_its_tips() {
        let text = "error: unexpected argument '--x' found\n\n  tip: try '--y'\n\nUsage: snug\n\nFor more information, try '--help'.\n";
        assert_eq!(clap_line(text), "unexpected argument '--x' found; tip: try '--y'");
        assert_eq!(clap_line("error: needed:\n  --ids <1>\n\nUsage: snug"), "needed: --ids <1>");
    }

    #[test]
    fn a_reader_that_went_away_is_seen_through_contexts() {
        let gone = anyhow::Error::from(std::io::Error::from(ErrorKind::BrokenPipe)).context("writing the answer");
        assert!(is_broken_pipe(&gone));
    }
}
