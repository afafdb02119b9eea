//! How much memory this process may hold: what the system can spare and what control groups allow.

use super::cgroup::Group;
use super::field_kib;

/// What is left to others of the memory that the system can spare: a sixteenth, at least 64 MiB.
const MARGIN_SHARE: u64 = 16;
const MARGIN_LEAST: u64 = 64 << 20;
/// Of a group's use what is taken for this process's own besides its anonymous memory: kernel stacks, page tables, the
/// shell that started it.
const OWN_KERNEL: u64 = 4 << 20;

/// Where a budget comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What the system says is available, less a margin for everybody else.
    Available,
    /// The limit of a control group, less what others in it use; the file that says the limit.
    Group(std::path::PathBuf),
    /// What the caller asked for.
    Asked,
    /// Nothing is known, nothing is limited.
    Unknown,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Available => f.write_str("what the system can spare"),
            Source::Group(file) => write!(f, "the limit in {}", file.display()),
            Source::Asked => f.write_str("--memory"),
            Source::Unknown => f.write_str("no known limit"),
        }
    }
}

/// Bytes that a process may hold in all, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes.
    pub bytes: u64,
    /// Who says so.
    pub from: Source,
}

/// What the system says, read once.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// `MemAvailable`.
    pub available: Option<u64>,
    /// Groups with a limit.
    pub groups: Vec<Group>,
    /// Anonymous memory of this process.
    pub own: u64,
}

impl Sight {
    /// Looks.
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let own = field_kib(&status, "RssAnon:").map_or(0, |k| k * 1024);
        Sight { available: super::available_memory(), groups: super::groups(), own }
    }
    /// What this process may hold, with `asked` as an upper limit. A group's limit is a line that its owner drew for
    /// whatever runs in it, so all of it that others there do not use may be used; of what the system can spare, which
    /// others want as well, a margin is left unless a limit was asked for.
    pub fn budget(&self, asked: Option<u64>) -> Budget {
        let spared = self.available.map(|a| {
            let margin = if asked.is_some() { 0 } else { (a / MARGIN_SHARE).max(MARGIN_LEAST) };
            Budget { bytes: a.saturating_sub(margin).saturating_add(self.own), from: Source::Available }
        });
        let groups = self.groups.iter().map(|g| {
            let others = g.used.saturating_sub(self.own + OWN_KERNEL);
            Budget { bytes: g.limit.bytes.saturating_sub(others), from: Source::Group(g.limit.file.clone()) }
        });
        let asked = asked.map(|bytes| Budget { bytes, from: Source::Asked });
        let all = asked.into_iter().chain(groups).chain(spared);
        all.min_by_key(|b| b.bytes).unwrap_or(Budget { bytes: u64::MAX, from: Source::Unknown })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cgroup::Limit;

    const GIB: u64 = 1 << 30;

    fn sight(available: Option<u64>, groups: &[(u64, u64)]) -> Sight {
        let group = |&(bytes, used)| Group { limit: Limit { file: format!("/g/{bytes}").into(), bytes }, used };
        Sight { available, groups: groups.iter().map(group).collect(), own: 8 << 20 }
    }

    #[test]
    fn the_system_keeps_a_margin_unless_a_limit_is_asked_for() {
        let s = sight(Some(16 * GIB), &[]);
        assert_eq!(s.budget(None), Budget { bytes: 15 * GIB + (8 << 20), from: Source::Available });
        assert_eq!(s.budget(Some(GIB)), Budget { bytes: GIB, from: Source::Asked });
        assert_eq!(s.budget(Some(20 * GIB)).bytes, 16 * GIB + (8 << 20), "more than there is, is not there");
        assert_eq!(sight(Some(32 << 20), &[]).budget(None).bytes, 8 << 20);
    }

    #[test]
    fn a_group_that_only_we_are_in_gives_all_of_its_limit() {
        let s = sight(Some(16 * GIB), &[(GIB, 10 << 20)]);
        let b = s.budget(None);
        assert_eq!((b.bytes, b.from.to_string()), (GIB, "the limit in /g/1073741824".into()));
        assert_eq!(s.budget(Some(GIB / 2)).from, Source::Asked);
        assert_eq!(s.budget(Some(2 * GIB)).bytes, GIB);
    }

    #[test]
    fn what_others_use_of_a_parent_is_gone() {
        let s = sight(Some(16 * GIB), &[(2 * GIB, 0), (4 * GIB, 3 * GIB + (12 << 20)), (9 * GIB, 9 * GIB)]);
        assert_eq!(s.budget(None).bytes, 12 << 20, "the fullest parent counts");
    }

    #[test]
    fn nothing_known_is_no_limit() {
        let none = Sight::default();
        assert_eq!(none.budget(None), Budget { bytes: u64::MAX, from: Source::Unknown });
        assert_eq!(none.budget(Some(5)).bytes, 5);
    }

    #[test]
    fn this_process_has_memory_of_its_own() {
        let s = Sight::now();
        assert!(s.own > 100 << 10 && s.own < 4 * GIB, "{}", s.own);
    }
}
