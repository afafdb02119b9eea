//! What can go wrong with sequences.

use crate::sequence::SeqId;
use device::RowClass;

/// Errors of sequence state. None of them changes what any sequence holds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// All places of a kind are taken. Close a sequence and ask again, or plan for more.
    #[error("{asked} {what} asked and {free} free; close a sequence or start with a larger --parallel")]
    NoRoom {
        /// `"sequences"`, `"pages"`, `"recurrent slots"` or `"rings"`.
        what: &'static str,
        /// How many were asked for.
        asked: u32,
        /// How many are free.
        free: u32,
    },
    /// The rows would pass the context.
    #[error("a sequence of {len} positions cannot take {asked} more: the context is {context}")]
    ContextFull {
        /// Positions the sequence has.
        len: u32,
        /// Rows asked for.
        asked: u32,
        /// Most positions of a sequence.
        context: u32,
    },
    /// The id names no open sequence.
    #[error("{0:?} is not open")]
    NotOpen(SeqId),
    /// A sequence may have one span in an append.
    #[error("{0:?} has two spans in one append; join them")]
    Twice(SeqId),
    /// An append without spans, or a span without rows.
    #[error("an append needs at least one span, and every span at least one row")]
    Empty,
    /// More rows than the plan has room for.
    #[error("{asked} rows of class {class:?} in one append; the limit is {most}")]
    TooManyRows {
        /// Class of the rows.
        class: RowClass,
        /// Rows asked for.
        asked: u64,
        /// Most rows of that class.
        most: u32,
    },
    /// An append is under way and has been neither committed nor rolled back; or a segment of this sequence is.
    #[error("an append is under way: commit it or roll it back first")]
    Pending,
    /// The append was made by another state.
    #[error("the append belongs to another state")]
    Foreign,
    /// `commit` needs one count per span.
    #[error("{given} accepted counts for {spans} spans")]
    Counts {
        /// Counts given.
        given: usize,
        /// Spans of the append.
        spans: usize,
    },
    /// More rows accepted than appended.
    #[error("span {span}: {accepted} rows accepted of {rows}")]
    Accepted {
        /// Index of the span.
        span: usize,
        /// Rows accepted.
        accepted: u32,
        /// Rows of the span.
        rows: u32,
    },
    /// Rows of class Many keep one recurrent state per span, so a span is accepted whole or not at all.
    #[error("span {span}: {accepted} of {rows} rows accepted, but a recurrent model keeps no state between Many rows")]
    Indivisible {
        /// Index of the span.
        span: usize,
        /// Rows accepted.
        accepted: u32,
        /// Rows of the span.
        rows: u32,
    },
    /// Rows that are no part of the append, or a cut that is not allowed.
    #[error("rows {start}..{end} are no part of this append: {why}")]
    Part {
        /// First row.
        start: u32,
        /// One behind the last row.
        end: u32,
        /// The rule.
        why: &'static str,
    },
    /// A declaration that cannot be.
    #[error("layer {layer}: {what}")]
    Decl {
        /// The layer.
        layer: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// What a sequence cannot begin with.
    #[error("a sequence cannot begin so: {0}")]
    Beginning(&'static str),
    /// A limit that cannot be.
    #[error("{0}")]
    Limits(&'static str),
    /// The layer has no stream of that kind.
    #[error("layer {layer} declares no {kind}")]
    NoStream {
        /// The layer.
        layer: u32,
        /// `"history or ring"` or `"recurrent state"`.
        kind: &'static str,
    },
    /// The plan's budget is too small.
    #[error(transparent)]
    OverBudget(#[from] memory::OverBudget),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] device::Error),
}

/// Result of calls on sequence state.
pub type Result<T, E = Error> = std::result::Result<T, E>;
