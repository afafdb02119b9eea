//! What has been read before, by its ids: a tree of pages and of places where reading can go on.
//!
//! Pure data: the tree names pages and snapshots and holds neither. Whoever owns them asks where a prompt meets what is
//! known ([`Tree::find`]), tells what a sequence came to ([`Tree::insert`], [`Tree::anchor`]), and is told what to let
//! go ([`Tree::evict`]).
//!
//! A node is a page: up to 256 ids and the page that holds their keys and values. Full pages are shared as they are, a
//! part of one is copied. A model whose layers all keep their whole history can go on at any position that was read; one
//! with recurrent states or rings only at an *anchor*, a position at which those were kept.
//!
//! - `tree`: nodes, finding, inserting, evicting.
//! - `prompt`: where in a prompt anchors may be, and whose it is.
//! - `anchors`: which of a conversation's anchors are kept when not all can be.

mod anchors;
mod prompt;
#[cfg(test)]
mod tests;
mod tree;

pub use anchors::{Anchor, Kind, thin};
pub use prompt::{marks, owner};
pub use tree::{Found, Miss, Taken, Tree};

/// A snapshot that somebody keeps: recurrent states and rings at one position.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapId(pub u64);

/// Who a sequence belongs to: all turns and branches of one conversation, as far as that can be told.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

/// What a request is to its conversation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Beside the conversation: a title, a summary. What it left is let go first.
    Side,
    /// The conversation itself.
    Main,
}
