//! Ops on the pages of keys and values.

mod append;
mod attention;
mod few;
mod many;
mod pages;
mod stored;
mod tile;

pub use append::append;
pub use attention::{attention, scratch};
