//! Which anchors are kept. A snapshot is large (a hundred MB for some models), so a conversation has a few.

/// Where in a conversation an anchor is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Behind the system message or the tools: every conversation of the same agent begins so.
    Root,
    /// Behind a message, a tool call or its result, or the thinking before an answer.
    Message,
    /// Where a prompt or an answer ended.
    End,
}

/// A position at which reading can go on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Positions before it.
    pub at: u32,
    /// What is there.
    pub kind: Kind,
}

/// The last ones that are kept whatever lies between them.
const LAST: usize = 4;

/// Which of the anchors, in the order of their positions, go when at most `most` may stay: roots and the last four stay
/// as long as there is room, and of the others those that leave the distances to the end growing evenly, so that an
/// edit far back costs in proportion to how far back it is. Indices, rising.
pub fn thin(anchors: &[Anchor], most: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..anchors.len()).collect();
    let mut gone = Vec::new();
    while kept.len() > most {
        let i = least_needed(anchors, &kept);
        gone.push(kept.remove(i));
    }
    gone.sort_unstable();
    gone
}

/// Place in `kept` of the anchor that is missed least.
fn least_needed(anchors: &[Anchor], kept: &[usize]) -> usize {
    let n = kept.len();
    let end = anchors[kept[n - 1]].at as f64;
    let root = |i: usize| anchors[kept[i]].kind == Kind::Root;
    // Free to go: neither a root nor among the last.
    let free: Vec<usize> = (0..n.saturating_sub(LAST)).filter(|&i| !root(i)).collect();
    let candidates = if free.is_empty() { (0..n - 1).filter(|&i| !root(i)).take(1).collect() } else { free };
    // What its going costs: how much further back reading starts for an edit just behind it, relative to how far back
    // the edit is.
    let cost = |&i: &usize| {
        let at = |j: usize| anchors[kept[j]].at as f64;
        let before = if i == 0 { 0.0 } else { at(i - 1) };
        (at(i) - before) / (end - at(i) + 1.0)
    };
    let least = candidates.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
    // Nothing but roots: the deepest is the most that a conversation has, the first the least.
    least.copied().unwrap_or(0)
}
