//! Nodes, finding, inserting, evicting.

use super::{Owner, Role, SnapId};
use memory::{PAGE_POSITIONS, PageId};
use std::collections::BTreeMap;

const PAGE: usize = PAGE_POSITIONS as usize;

/// Index of a node.
type At = usize;
const ROOT: At = 0;

#[derive(Debug, Default)]
struct Node {
    /// Ids of the page's positions: 256, fewer in a leaf, none in the root.
    ids: Vec<u32>,
    page: Option<PageId>,
    parent: At,
    children: Vec<At>,
    /// Snapshots by positions of this page before them, 1 to 256.
    anchors: BTreeMap<u32, SnapId>,
    used: u64,
    from: Option<(Role, Owner)>,
}

/// Where a prompt meets what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Positions that need not be read. Less than the prompt: the last id is always read, for its logits.
    pub resume: u32,
    /// Full pages of the first of these positions, to share.
    pub pages: Vec<PageId>,
    /// The page of the positions behind those, to copy.
    pub tail: Option<PageId>,
    /// The snapshot at `resume`, for models that need one.
    pub snap: Option<SnapId>,
    /// Why it is not more.
    pub miss: Miss,
}

/// Why a match ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// All of the prompt was known.
    Nothing,
    /// Nothing like it was ever read.
    Unknown,
    /// All that was read is known, and goes on here.
    Grows {
        /// The first position that is new.
        at: u32,
    },
    /// The ids differ from here on.
    Differs {
        /// The first position that does.
        at: u32,
    },
    /// More ids are the same, but no state was kept between `resume` and the first that differs.
    NoAnchor {
        /// Positions that are the same.
        same: u32,
    },
    /// Nothing is kept, or all of it must be read.
    Off,
}

/// What telling of a sequence changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Pages of which the tree is an owner from now on.
    pub new: Vec<PageId>,
    /// Pages of which it is an owner no more: the new ones hold their ids and more.
    pub old: Vec<PageId>,
}

/// What was read before.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    free: Vec<At>,
    clock: u64,
    /// Whether reading can go on at anchors only.
    anchored: bool,
}

fn same(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

impl Tree {
    /// An empty tree; `anchored` for models with recurrent states or rings.
    pub fn new(anchored: bool) -> Self {
        Tree { nodes: vec![Node::default()], free: Vec::new(), clock: 0, anchored }
    }

    /// Where to go on reading `ids`. What it finds is used now, and evicted later than what is not.
    pub fn find(&mut self, ids: &[u32]) -> Found {
        self.clock += 1;
        let (path, matched) = self.walk(ids);
        let most = (matched as u32).min((ids.len() as u32).saturating_sub(1));
        let (resume, anchor) = if self.anchored { self.deepest(&path, ids, most) } else { (most, None) };
        let (last, snap) = anchor.unzip();
        let miss = match matched {
            0 => Miss::Unknown,
            m if m == ids.len() && resume == most => Miss::Nothing,
            _ if resume < most => Miss::NoAnchor { same: matched as u32 },
            m if self.ends_at(&path, m) => Miss::Grows { at: m as u32 },
            m => Miss::Differs { at: m as u32 },
        };
        let whole = resume as usize / PAGE;
        let page = |n: At| self.nodes[n].page;
        let pages = path[..whole].iter().filter_map(|&n| page(n)).collect();
        let tail = if (resume as usize).is_multiple_of(PAGE) { None } else { last.or(path.get(whole).copied()) };
        let found = Found { resume, pages, tail: tail.and_then(page), snap, miss };
        for n in path.into_iter().take(whole).chain(tail) {
            self.nodes[n].used = self.clock;
        }
        found
    }

    /// Whether nothing is known behind the first `matched` ids of a path.
    fn ends_at(&self, path: &[At], matched: usize) -> bool {
        let ends = |&n: &At| {
            let node = &self.nodes[n];
            (path.len() - 1) * PAGE + node.ids.len() == matched && node.children.is_empty()
        };
        path.last().is_none_or(ends)
    }

    /// The nodes along `ids`, the last perhaps in part, and how many ids they share with it.
    fn walk(&self, ids: &[u32]) -> (Vec<At>, usize) {
        let (mut path, mut at, mut done) = (Vec::new(), ROOT, 0);
        while done < ids.len() {
            let best = |&c: &At| (same(&self.nodes[c].ids, &ids[done..]), std::cmp::Reverse(c));
            let Some(&child) = self.nodes[at].children.iter().max_by_key(|c| best(c)) else { break };
            let n = same(&self.nodes[child].ids, &ids[done..]);
            if n == 0 {
                break;
            }
            path.push(child);
            done += n;
            if n < PAGE {
                break;
            }
            at = child;
        }
        (path, done)
    }

    /// The deepest anchor along `ids` within their first `most`, with its node: on the path, or in a page beside it that
    /// begins alike.
    fn deepest(&self, path: &[At], ids: &[u32], most: u32) -> (u32, Option<(At, SnapId)>) {
        for i in (0..path.len()).rev() {
            let before = i * PAGE;
            let part = &ids[before.min(most as usize)..most as usize];
            let within = |&c: &At| {
                let n = same(&self.nodes[c].ids, part) as u32;
                self.nodes[c].anchors.range(..=n).next_back().map(|(&p, &s)| (p, c, s))
            };
            let beside = self.nodes[self.nodes[path[i]].parent].children.iter().filter_map(within);
            if let Some((p, node, snap)) = beside.max_by_key(|a| a.0) {
                return (before as u32 + p, Some((node, snap)));
            }
        }
        (0, None)
    }

    /// How many of `ids` are known.
    pub fn matched(&self, ids: &[u32]) -> u32 {
        self.walk(ids).1 as u32
    }
    /// The whole pages along `ids`, as far as they are known.
    pub fn whole(&self, ids: &[u32]) -> Vec<PageId> {
        let (path, matched) = self.walk(ids);
        path[..matched / PAGE].iter().filter_map(|&n| self.nodes[n].page).collect()
    }
    /// The pages that have all of `ids`, each with all of its ids; none where not all are known.
    pub fn along(&self, ids: &[u32]) -> Vec<(Vec<u32>, PageId)> {
        let (path, matched) = self.walk(ids);
        let path = if matched == ids.len() { path } else { Vec::new() };
        path.iter().filter_map(|&n| Some((self.nodes[n].ids.clone(), self.nodes[n].page?))).collect()
    }

    /// Tells what a sequence holds: `ids`, in these pages, one for each 256. For ids that it knew it keeps the page it has.
    pub fn insert(&mut self, ids: &[u32], pages: &[PageId], role: Role, owner: Owner) -> Taken {
        self.clock += 1;
        let (mut at, mut taken) = (ROOT, Taken::default());
        for (part, &page) in ids.chunks(PAGE).zip(pages) {
            at = match self.longest(at, part) {
                Some(child) => child,
                None => {
                    taken.new.push(page);
                    match self.beginning(at, part) {
                        Some(child) => {
                            taken.old.extend(self.nodes[child].page.replace(page));
                            self.nodes[child].ids = part.to_vec();
                            child
                        }
                        None => self.add(at, part, page),
                    }
                }
            };
            let node = &mut self.nodes[at];
            node.used = self.clock;
            // What a conversation shares with a request beside it is the conversation's.
            node.from = node.from.filter(|f| f.0 > role).or(Some((role, owner)));
        }
        taken
    }

    /// The child that is the beginning of `part`; only leaves are part of a page.
    fn beginning(&self, at: At, part: &[u32]) -> Option<At> {
        let begins = |c: &&At| part.starts_with(&self.nodes[**c].ids);
        self.nodes[at].children.iter().find(begins).copied()
    }
    /// The child that begins with `part`.
    fn longest(&self, at: At, part: &[u32]) -> Option<At> {
        let begins = |c: &&At| self.nodes[**c].ids.starts_with(part);
        self.nodes[at].children.iter().find(begins).copied()
    }

    fn add(&mut self, parent: At, part: &[u32], page: PageId) -> At {
        let node = Node { ids: part.to_vec(), page: Some(page), parent, ..Node::default() };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[parent].children.push(at);
        at
    }

    /// Says that a snapshot was kept at position `at` of `ids`, whose pages the tree knows. One that was there before
    /// comes back, or this one where the tree does not know those ids: nobody needs it then.
    pub fn anchor(&mut self, ids: &[u32], at: u32, snap: SnapId) -> Option<SnapId> {
        let (path, matched) = self.walk(&ids[..(at as usize).min(ids.len())]);
        if at == 0 || matched < at as usize {
            return Some(snap);
        }
        let node = path[(at as usize - 1) / PAGE];
        let within = (at - 1) % PAGE_POSITIONS + 1;
        self.nodes[node].anchors.insert(within, snap)
    }
    /// Anchors along `ids`, by position.
    pub fn anchors(&self, ids: &[u32]) -> Vec<(u32, SnapId)> {
        let (path, matched) = self.walk(ids);
        let of = |(i, &n): (usize, &At)| {
            self.nodes[n].anchors.iter().map(move |(&p, &s)| ((i * PAGE) as u32 + p, s)).collect::<Vec<_>>()
        };
        path.iter().enumerate().flat_map(of).filter(|(p, _)| *p as usize <= matched).collect()
    }
    /// Forgets an anchor.
    pub fn drop_anchor(&mut self, snap: SnapId) {
        self.nodes.iter_mut().for_each(|n| n.anchors.retain(|_, s| *s != snap));
    }

    /// Forgets what is needed least until `enough` says so: leaves, first those of requests beside a conversation, then
    /// those used longest ago, `spare` (a conversation that is at work) last. What went: pages, of which the tree is an
    /// owner no more, and snapshots.
    pub fn evict(
        &mut self,
        spare: Option<Owner>,
        mut enough: impl FnMut(&[PageId], &[SnapId]) -> bool,
    ) -> (Vec<PageId>, Vec<SnapId>) {
        let (mut pages, mut snaps) = (Vec::new(), Vec::new());
        while !enough(&pages, &snaps) {
            let leaf = |n: &Node| n.page.is_some() && n.children.is_empty();
            let leaves = (0..self.nodes.len()).filter(|&i| leaf(&self.nodes[i]));
            let order = |&i: &At| {
                let n = &self.nodes[i];
                let (role, owner) = n.from.unwrap_or((Role::Side, Owner(0)));
                (spare == Some(owner) && role == Role::Main, role, n.used, i)
            };
            let Some(least) = leaves.min_by_key(order) else { break };
            let node = std::mem::take(&mut self.nodes[least]);
            self.nodes[node.parent].children.retain(|&c| c != least);
            self.free.push(least);
            pages.extend(node.page);
            snaps.extend(node.anchors.into_values());
        }
        (pages, snaps)
    }

    /// Every page the tree is an owner of.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        self.nodes.iter().filter_map(|n| n.page)
    }
}
