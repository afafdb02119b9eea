//! Which processors to compute on: a pure choice from what the system says about them.
//!
//! Two hyper-threads of a core share its vector units, and one of them keeps those busy, so each core gets one thread.
//! Where cores are of two kinds, a decoded token, whose rows of weights are shared out in a few microseconds, stays on the
//! fast kind; a chunk of a prompt is long enough for slow ones to help.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A logical processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Its number.
    pub id: usize,
    /// Logical processors of its core, itself among them; the smallest names the core.
    pub siblings: BTreeSet<usize>,
    /// Whether its core is of the slow kind of two.
    pub slow: bool,
}

/// Where threads should run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// One processor of each core, those of fast cores first.
    pub processors: Vec<usize>,
    /// How many of them decode.
    pub few: usize,
    /// Whether the process may use others too.
    pub leaves_some: bool,
}

impl Choice {
    /// The processors that threads must be held to: where there are others, the system would use those too, and two
    /// threads would meet on one core.
    pub fn processors_to_keep_to(self) -> Option<Vec<usize>> {
        self.leaves_some.then_some(self.processors)
    }
}

/// The choice among these processors.
pub fn choose(all: &[Processor]) -> Choice {
    let mut cores: BTreeMap<(bool, usize), usize> = BTreeMap::new();
    for p in all {
        let core = p.siblings.first().copied().unwrap_or(p.id);
        let first = cores.entry((p.slow, core)).or_insert(p.id);
        *first = p.id.min(*first);
    }
    let fast = cores.keys().filter(|(slow, _)| !slow).count();
    let few = if fast == 0 { cores.len() } else { fast };
    Choice { leaves_some: cores.len() < all.len(), processors: cores.into_values().collect(), few }
}

/// Numbers of a list as the system writes them, such as `0-3,8`.
pub fn parse_list(text: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        // A broken list must not become a long one.
        Some(a.trim().parse().ok()?..=b.trim().parse::<usize>().ok()?.min(1 << 16))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// What the system under `sys` (`/sys/devices`) says about the processors in `allowed`.
pub fn read(sys: &Path, allowed: &BTreeSet<usize>) -> Vec<Processor> {
    let list = |path: String| std::fs::read_to_string(sys.join(path)).map(|t| parse_list(&t)).unwrap_or_default();
    // Linux names the kinds of hybrid x86 processors so.
    let slow = list("cpu_atom/cpus".into());
    let hybrid = !list("cpu_core/cpus".into()).is_empty();
    let one = |&id: &usize| {
        let siblings = list(format!("system/cpu/cpu{id}/topology/thread_siblings_list"));
        Processor { id, siblings, slow: hybrid && slow.contains(&id) }
    };
    allowed.iter().map(one).collect()
}

/// The choice on this machine, among what the process may use.
pub fn here() -> Choice {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let mut choice = choose(&read(Path::new("/sys/devices"), &allowed(most)));
    // A quota of processor time may be less than the processors there are.
    choice.processors.truncate(most);
    choice.few = choice.few.min(choice.processors.len());
    choice
}

#[cfg(target_os = "linux")]
fn allowed(most: usize) -> BTreeSet<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|&i| set.is_set(i)).collect(),
        Err(_) => (0..most).collect(),
    }
}

#[cfg(not(target_os = "linux"))]
fn allowed(most: usize) -> BTreeSet<usize> {
    (0..most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processor(id: usize, siblings: &[usize], slow: bool) -> Processor {
        Processor { id, siblings: siblings.iter().copied().collect(), slow }
    }

    #[test]
    fn one_thread_for_each_core() {
        // Siblings as Intel numbers them, as AMD does, and none at all.
        let far: Vec<_> = (0..8).map(|i| processor(i, &[i % 4, i % 4 + 4], false)).collect();
        assert_eq!(choose(&far), Choice { processors: vec![0, 1, 2, 3], few: 4, leaves_some: true });
        let near: Vec<_> = (0..4).map(|i| processor(i, &[i / 2 * 2, i / 2 * 2 + 1], false)).collect();
        assert_eq!(choose(&near), Choice { processors: vec![0, 2], few: 2, leaves_some: true });
        let unknown: Vec<_> = (0..3).map(|i| processor(i, &[], false)).collect();
        assert_eq!(choose(&unknown), Choice { processors: vec![0, 1, 2], few: 3, leaves_some: false });
        assert_eq!(choose(&unknown).processors_to_keep_to(), None);
        assert_eq!(choose(&near).processors_to_keep_to(), Some(vec![0, 2]));
    }

    #[test]
    fn slow_cores_come_last_and_do_not_decode() {
        // Two fast cores with two threads each, numbered behind two slow ones.
        let all = [
            processor(0, &[0], true),
            processor(1, &[1], true),
            processor(2, &[2, 3], false),
            processor(3, &[2, 3], false),
            processor(4, &[4, 5], false),
            processor(5, &[4, 5], false),
        ];
        assert_eq!(choose(&all), Choice { processors: vec![2, 4, 0, 1], few: 2, leaves_some: true });
        assert_eq!(
            choose(&all[..2]),
            Choice { processors: vec![0, 1], few: 2, leaves_some: false },
            "slow ones alone must do"
        );
        // Only the second thread of a core may be used.
        assert_eq!(choose(&all[3..4]), Choice { processors: vec![3], few: 1, leaves_some: false });
        assert_eq!(choose(&[]), Choice { processors: vec![], few: 0, leaves_some: false });
    }

    #[test]
    fn lists_are_read_as_the_system_writes_them() {
        assert_eq!(parse_list("0-2,7,9-9\n"), BTreeSet::from([0, 1, 2, 7, 9]));
        assert_eq!(parse_list(" \n"), BTreeSet::new());
        assert_eq!(parse_list("x,3,5-"), BTreeSet::from([3]));
    }

    #[test]
    fn a_made_up_system_is_read() {
        let dir = std::env::temp_dir().join(format!("snug-topology-{}", std::process::id()));
        let put = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("cpu_core/cpus", "0-1\n");
        put("cpu_atom/cpus", "2\n");
        for (i, siblings) in ["0-1", "0-1", "2"].into_iter().enumerate() {
            put(&format!("system/cpu/cpu{i}/topology/thread_siblings_list"), siblings);
        }
        let got = read(&dir, &BTreeSet::from([0, 1, 2, 3]));
        std::fs::remove_dir_all(&dir).unwrap();
        let want = [
            processor(0, &[0, 1], false),
            processor(1, &[0, 1], false),
            processor(2, &[2], true),
            processor(3, &[], false),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn there_is_a_processor_here() {
        let c = here();
        assert!((1..=c.processors.len()).contains(&c.few), "{c:?}");
    }
}
