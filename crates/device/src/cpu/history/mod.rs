//! Ops on the pages of keys and values.

mod append;
mod attention;
mod few;
#[cfg(target_arch = "x86_64")]
mod ints;
mod many;
mod packed;
mod pages;
mod stored;
mod tile;

pub use append::append;
pub use attention::{attention, scratch};
