//! What was found out about this machine, kept between runs.

use super::cgroup::Limit;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Version of the file; one of another version is measured anew.
pub const VERSION: u32 = 2;
const FILE: &str = "machine.json";

/// A machine. Rates are in 10^9 bytes a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineProfile {
    /// [`VERSION`].
    pub version: u32,
    /// When it was measured: seconds since 1970, UTC.
    pub measured_at: u64,
    /// The same for people.
    pub date: String,
    /// Whether it was measured in a hurry.
    pub quick: bool,
    /// The processor.
    pub cpu: CpuFacts,
    /// Memory.
    pub memory: MemoryFacts,
    /// GPUs that are there; nothing else was asked of them.
    pub gpus: Vec<String>,
    /// Reading memory.
    pub ram_read: Vec<RamRate>,
    /// Reading the disk.
    pub disk_read: DiskFacts,
    /// Linear layers on the CPU backend.
    pub linear: Vec<LinearRate>,
    /// Microseconds that a small one takes, whatever it reads.
    pub call_us: f64,
    /// Attention of one row over a long history.
    pub history: Vec<HistoryRate>,
}

/// A processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuFacts {
    /// What it calls itself.
    pub model: Option<String>,
    /// Threads that this process may run at once.
    pub threads: u32,
    /// Physical cores of the machine, where the system says.
    pub cores: Option<u32>,
    /// Instruction set that the kernels use.
    pub isa: String,
    /// Instruction sets that matter to kernels and are there.
    pub found: Vec<String>,
}

/// Memory, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// All of the machine's.
    pub total: Option<u64>,
    /// What can be had without swapping.
    pub available: Option<u64>,
    /// Limits of control groups.
    pub limits: Vec<Limit>,
}

/// Reading memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RamRate {
    /// Threads that read.
    pub threads: u32,
    /// Bytes each pass went over.
    pub bytes: u64,
    /// All threads together.
    pub gbps: f64,
}

/// Reading the disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskFacts {
    /// Directory of the file that was read.
    pub dir: PathBuf,
    /// Whether reads went past the page cache; if not, they say little about the disk.
    pub direct: bool,
    /// Why there are no rates, if there are none.
    pub failed: Option<String>,
    /// What was measured.
    pub rates: Vec<DiskRate>,
}

/// Reading blocks at random places.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskRate {
    /// Bytes of a block.
    pub block: u64,
    /// Reads under way at once.
    pub depth: u32,
    /// All together.
    pub gbps: f64,
}

/// A linear layer of one weight type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearRate {
    /// Type of the weights.
    pub dtype: String,
    /// Weights read for one row, from memory.
    pub gemv_gbps: f64,
    /// Multiply-adds for many rows, 10^9 a second.
    pub gemm_gmadds: f64,
}

/// Attention of one row over a long history in one format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryRate {
    /// The format.
    pub format: String,
    /// Stored bytes.
    pub gbps: f64,
}

/// Where models and the machine's profile are kept: `$SNUG_HOME`, else `$XDG_DATA_HOME/snug`, else
/// `~/.local/share/snug`.
pub fn home() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let shared = || var("XDG_DATA_HOME").map(|d| d.join("snug"));
    var("SNUG_HOME").or_else(shared).or_else(|| var("HOME").map(|h| h.join(".local/share/snug")))
}

impl MachineProfile {
    /// The profile that was kept; `None` where there is none of this version.
    ///
    /// # Errors
    /// [`Error::Profile`] when it is there and cannot be read.
    pub fn load() -> Result<Option<Self>> {
        home().map_or(Ok(None), |h| Self::load_from(&h))
    }
    /// As [`load`](Self::load), from another directory.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_from(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join(FILE);
        let bad = |why: String| Error::Profile { file: file.clone(), why };
        let text = match std::fs::read(&file) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            read => read.map_err(|e| bad(e.to_string()))?,
        };
        let json: serde_json::Value = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
        if json["version"] != VERSION {
            return Ok(None);
        }
        serde_json::from_value(json).map(Some).map_err(|e| bad(e.to_string()))
    }
    /// Keeps it in `dir` and says in which file. The file is never half written.
    ///
    /// # Errors
    /// [`Error::Profile`].
    pub fn save_to(&self, dir: &Path) -> Result<PathBuf> {
        let file = dir.join(FILE);
        let bad = |why: String| Error::Profile { file: file.clone(), why };
        std::fs::create_dir_all(dir).map_err(|e| bad(e.to_string()))?;
        let mut temp = tempfile::NamedTempFile::new_in(dir).map_err(|e| bad(e.to_string()))?;
        let text = serde_json::to_string_pretty(self).map_err(|e| bad(e.to_string()))?;
        writeln!(temp, "{text}").map_err(|e| bad(e.to_string()))?;
        temp.persist(&file).map_err(|e| bad(e.to_string()))?;
        Ok(file)
    }
    /// The least of what is available and what control groups allow, in bytes.
    pub fn memory_bound(&self) -> Option<u64> {
        self.memory.limits.iter().map(|l| l.bytes).chain(self.memory.available).min()
    }
}

/// `YYYY-MM-DD HH:MM UTC` of seconds since 1970 (days to civil dates: the proleptic Gregorian calendar in eras of 400
/// years that begin in March).
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let from_march = days + 719_468;
    let (era, day) = (from_march / 146_097, from_march % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (d, m) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let y = era * 400 + year + u64::from(m <= 2);
    format!("{y:04}-{m:02}-{d:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> MachineProfile {
        let limit = |bytes| Limit { file: "/sys/fs/cgroup/memory.max".into(), bytes };
        MachineProfile {
            version: VERSION,
            measured_at: 951_868_799,
            date: date(951_868_799),
            quick: true,
            cpu: CpuFacts { model: None, threads: 2, cores: Some(1), isa: "avx2".into(), found: vec!["avx2".into()] },
            memory: MemoryFacts { total: Some(9), available: Some(8), limits: vec![limit(5), limit(7)] },
            gpus: vec![],
            ram_read: vec![RamRate { threads: 1, bytes: 3, gbps: 12.25 }],
            disk_read: DiskFacts {
                dir: "/tmp".into(),
                direct: true,
                failed: None,
                rates: vec![DiskRate { block: 4096, depth: 2, gbps: 0.1 }],
            },
            linear: vec![LinearRate { dtype: "Q4_0".into(), gemv_gbps: 1.5, gemm_gmadds: 100.0 }],
            call_us: 4.5,
            history: vec![HistoryRate { format: "q8".into(), gbps: 7.0 }],
        }
    }

    #[test]
    fn what_is_kept_is_read_back_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("new/home");
        assert_eq!(MachineProfile::load_from(&home).unwrap(), None);
        let mut p = profile();
        let file = p.save_to(&home).unwrap();
        assert_eq!(MachineProfile::load_from(&home).unwrap(), Some(p.clone()));
        p.quick = false;
        p.save_to(&home).unwrap();
        assert_eq!(MachineProfile::load_from(&home).unwrap(), Some(p));
        assert_eq!(std::fs::read_dir(home).unwrap().count(), 1);
        std::fs::write(&file, "{").unwrap();
        let e = MachineProfile::load_from(file.parent().unwrap()).unwrap_err().to_string();
        assert!(e.contains("machine.json") && e.contains("snug doctor"), "{e}");
    }

    #[test]
    fn another_version_is_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), r#"{"version": 0, "else": 1}"#).unwrap();
        assert_eq!(MachineProfile::load_from(dir.path()).unwrap(), None);
    }

    #[test]
    fn the_tightest_bound_counts() {
        let mut p = profile();
        assert_eq!(p.memory_bound(), Some(5));
        p.memory.limits.clear();
        assert_eq!(p.memory_bound(), Some(8));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(951_868_799), "2000-02-29 23:59 UTC");
        assert_eq!(date(4_107_542_399), "2100-02-28 23:59 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00 UTC");
    }
}
