//! Memory limits of control groups: of every group this process is in, and of every group around it.
//!
//! Which groups: `/proc/self/cgroup`, lines `id:controllers:path`, id 0 being the one tree of version 2 (cgroups(7)).
//! Where they are: the mounts in `/proc/self/mountinfo` (proc(5)).

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A limit on memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The file that says it.
    pub file: PathBuf,
    /// Bytes.
    pub bytes: u64,
}

/// Version 1 writes "no limit" as the largest multiple of a page below 2^63; nothing near it is a limit.
const UNLIMITED: u64 = 1 << 62;

/// A group with a limit, and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The limit.
    pub limit: Limit,
    /// Bytes that all processes of the group hold, without the page cache, which gives way.
    pub used: u64,
}

/// The limits that hold for this process, and how much of each is used; `read` gives the text of a file, or nothing.
pub fn limited(groups: &str, mounts: &str, read: &dyn Fn(&Path) -> Option<String>) -> Vec<Group> {
    let with_use = |limit: Limit| {
        let used = limit.file.parent().map_or(0, |dir| used(dir, read));
        Group { limit, used }
    };
    limits(groups, mounts, read).into_iter().map(with_use).collect()
}

/// Use of the group at `dir`: `memory.current` or `memory.usage_in_bytes`, less the files among it (`memory.stat`; in
/// version 1 the lines with `total_`, which count the groups below as the use does).
fn used(dir: &Path, read: &dyn Fn(&Path) -> Option<String>) -> u64 {
    let number = |name: &str| read(&dir.join(name)).and_then(|t| t.trim().parse::<u64>().ok());
    let stat = read(&dir.join("memory.stat")).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = stat.lines().filter_map(|l| l.split_once(' '));
        lines.find(|(k, _)| *k == name).and_then(|(_, v)| v.trim().parse::<u64>().ok())
    };
    let files = |kind: &str| field(&format!("total_{kind}")).or_else(|| field(kind)).unwrap_or(0);
    let all = number("memory.current").or_else(|| number("memory.usage_in_bytes")).unwrap_or(0);
    all.saturating_sub(files("inactive_file")).saturating_sub(files("active_file"))
}

/// The limits that hold for this process; `read` gives the text of a file, or nothing.
pub fn limits(groups: &str, mounts: &str, read: &dyn Fn(&Path) -> Option<String>) -> Vec<Limit> {
    let mut all = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let unified = id == "0" && controllers.is_empty();
        let files: &[&str] = match unified {
            true => &["memory.max", "memory.high"],
            false if controllers.split(',').any(|c| c == "memory") => &["memory.limit_in_bytes"],
            false => continue,
        };
        let mount = mounts.lines().filter_map(Mount::read).find(|m| m.serves(unified));
        let Some(dir) = mount.as_ref().map(|m| m.dir_of(path)) else { continue };
        let around = dir.ancestors().take_while(|d| mount.as_ref().is_some_and(|m| d.starts_with(&m.point)));
        for file in around.flat_map(|d| files.iter().map(|f| d.join(f))) {
            let bytes = read(&file).and_then(|t| t.trim().parse::<u64>().ok()).filter(|b| *b < UNLIMITED);
            all.extend(bytes.map(|bytes| Limit { file, bytes }));
        }
    }
    all
}

/// A mounted tree of groups.
struct Mount {
    /// The group that is mounted.
    root: String,
    /// Where.
    point: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    /// From a line `id parent dev root point options tags... - kind source options`.
    fn read(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
        let (root, point) = (before.next()?.to_string(), PathBuf::from(before.next()?));
        let (kind, options) = (after.next()?.to_string(), after.nth(1)?.to_string());
        Some(Mount { root, point, kind, options })
    }
    fn serves(&self, unified: bool) -> bool {
        match unified {
            true => self.kind == "cgroup2",
            false => self.kind == "cgroup" && self.options.split(',').any(|o| o == "memory"),
        }
    }
    /// The directory of a group; the mount's own for one that lies outside of what is mounted.
    fn dir_of(&self, group: &str) -> PathBuf {
        let below = Path::new(group).strip_prefix(&self.root).ok();
        let inside = below.filter(|b| !b.components().any(|c| c.as_os_str() == ".."));
        inside.map_or_else(|| self.point.clone(), |b| self.point.join(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn of(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Vec<(String, u64)> {
        let files: HashMap<PathBuf, String> = files.iter().map(|(p, t)| (PathBuf::from(p), t.to_string())).collect();
        let found = limits(groups, mounts, &|p| files.get(p).cloned());
        found.into_iter().map(|l| (l.file.display().to_string(), l.bytes)).collect()
    }

    #[test]
    fn version_2_limits_come_from_every_group_around() {
        let mounts = "25 1 0:22 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let files = [
            ("/sys/fs/cgroup/user.slice/app/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/app/memory.high", "500\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "1000\n"),
            ("/sys/fs/memory.max", "1\n"),
        ];
        let found = of("0::/user.slice/app\n", mounts, &files);
        let named = |f: &str, b| (f.to_string(), b);
        assert_eq!(
            found,
            [
                named("/sys/fs/cgroup/user.slice/app/memory.high", 500),
                named("/sys/fs/cgroup/user.slice/memory.max", 1000),
            ]
        );
    }

    #[test]
    fn version_1_takes_the_memory_tree_and_knows_what_is_no_limit() {
        let groups = "9:name=systemd:/\n5:devices:/x\n4:cpu,memory:/box/inner\n0::/\n";
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("/sys/fs/cgroup/memory/box/inner/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "4096\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let want = "/sys/fs/cgroup/memory/box/memory.limit_in_bytes".to_string();
        assert_eq!(of(groups, mounts, &files), [(want, 4096)]);
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount() {
        let mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let files = [("/sys/fs/cgroup/memory.max", "7"), ("/sys/fs/cgroup/in/memory.max", "5")];
        let at = |f: &str, b| (format!("/sys/fs/cgroup/{f}"), b);
        assert_eq!(of("0::/docker/abc/in", mounts, &files), [at("in/memory.max", 5), at("memory.max", 7)]);
        assert_eq!(of("0::/elsewhere", mounts, &files), [at("memory.max", 7)]);
        assert_eq!(of("0::/docker/abc/../../x", mounts, &files), [at("memory.max", 7)]);
    }

    #[test]
    fn use_is_what_is_held_without_the_page_cache() {
        let files: HashMap<PathBuf, &str> = [
            ("/m/a/memory.limit_in_bytes", "1000"),
            ("/m/a/memory.usage_in_bytes", "700"),
            (
                "/m/a/memory.stat",
                "cache 1\ninactive_file 5\nactive_file 6\ntotal_inactive_file 100\ntotal_active_file 50\n",
            ),
            ("/m/memory.limit_in_bytes", "2000"),
            ("/u/a/memory.max", "max"),
            ("/u/a/memory.high", "900"),
            ("/u/a/memory.current", "400"),
            ("/u/a/memory.stat", "anon 300\ninactive_file 60\nactive_file 40\n"),
        ]
        .into_iter()
        .map(|(p, t)| (PathBuf::from(p), t))
        .collect();
        let mounts = "1 1 0:1 / /m rw - cgroup cgroup rw,memory\n2 1 0:2 / /u rw - cgroup2 cgroup2 rw\n";
        let found = limited("4:memory:/a\n0::/a\n", mounts, &|p| files.get(p).map(|t| t.to_string()));
        let found: Vec<_> = found.into_iter().map(|g| (g.limit.bytes, g.used)).collect();
        assert_eq!(found, [(1000, 550), (2000, 0), (900, 300)]);
    }

    #[test]
    fn nonsense_is_no_limit() {
        assert!(of("", "", &[]).is_empty());
        assert!(of("0:::::/\nx\n", "a b c\n - - - \n", &[]).is_empty());
    }
}
