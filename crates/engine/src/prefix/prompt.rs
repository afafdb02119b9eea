//! What a prompt's ids say about the conversation it belongs to.

use super::{Anchor, Kind, Owner, thin};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Places in a prompt at which reading can go on later.
const MARKS: usize = 12;
/// Ids by which a conversation is known: its beginning, as all of its turns have it.
const BEGINNING: usize = 512;

/// Where messages and their parts begin: at markup. Of many those are taken that a later prompt most likely shares.
pub fn marks(prompt: &[u32], is_markup: impl Fn(u32) -> bool) -> Vec<u32> {
    let markup = |(_, id): &(u32, &u32)| is_markup(**id);
    let at = (0..).zip(prompt).filter(markup).map(|(at, _)| at).filter(|&at| at > 0);
    let mut all: Vec<Anchor> = at.map(|at| Anchor { at, kind: Kind::Message }).collect();
    if let Some(first) = all.first_mut() {
        first.kind = Kind::Root;
    }
    let gone = thin(&all, MARKS);
    all.iter().enumerate().filter(|(i, _)| gone.binary_search(i).is_err()).map(|(_, a)| a.at).collect()
}

/// Whose a prompt is, as far as its beginning tells.
pub fn owner(prompt: &[u32]) -> Owner {
    let mut h = DefaultHasher::new();
    prompt[..prompt.len().min(BEGINNING)].hash(&mut h);
    Owner(h.finish())
}
