//! What the kernel says of processors, memory and this process.
//!
//! **Invariants**: texts of `/proc` in, numbers out; what is not there is `None`, never 0.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel's files are: `/`, or a copy in a test.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl Default for System {
    fn default() -> System {
        System::at(Path::new("/"))
    }
}

impl System {
    /// With its `/proc` and `/sys` below `root`.
    pub fn at(root: &Path) -> System {
        System {
            root: root.to_path_buf(),
        }
    }

    /// The path of `/sys/...` and the like.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// A file's text without the line end.
    pub fn text(&self, absolute: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(absolute)).ok()?;
        Some(text.trim_end().to_string())
    }

    /// Names in a folder, sorted; none if it is not there.
    pub fn names(&self, absolute: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(absolute)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Memory that the page cache may take: what is available, or what a limit leaves.
    pub fn page_cache(&self, limit: Option<u64>) -> Option<u64> {
        let available = field(&self.text("/proc/meminfo")?, "MemAvailable:")? * 1024;
        Some(limit.map_or(available, |limit| available.min(limit)))
    }

    /// Bytes that the kernel fetched from devices for this process.
    pub fn fetched(&self) -> Option<u64> {
        field(&self.text("/proc/self/io")?, "read_bytes:")
    }

    /// Time of all processors so far.
    pub fn processors(&self) -> Option<Processors> {
        Processors::read(&self.text("/proc/stat")?)
    }
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Time of all processors, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    /// Not idle: also what a hypervisor took away.
    pub busy: u64,
    /// All.
    pub all: u64,
}

impl Processors {
    fn read(text: &str) -> Option<Processors> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user nice system idle iowait irq softirq steal; guests are in user.
        let ticks: Vec<u64> = line
            .split_whitespace()
            .take(8)
            .filter_map(|word| word.parse().ok())
            .collect();
        let all: u64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Processors {
            busy: all - idle,
            all,
        })
    }

    /// Share of the time since `before` that they were busy; `None` if too little passed.
    pub fn share_since(self, before: Processors) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.busy.saturating_sub(before.busy) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn texts_of_the_kernel_are_read() {
        let memory = "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(field(memory, "MemAvailable:"), Some(20_000_000));
        assert_eq!(
            field("rchar: 9\nread_bytes: 4096\n", "read_bytes:"),
            Some(4096)
        );
        assert_eq!(field(memory, "Nothing:"), None);
        let before = Processors::read("cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 1 2\n").unwrap();
        let after = Processors::read("cpu  180 0 100 810 10 0 0 0 70 0\n").unwrap();
        assert_eq!((before.busy, before.all), (200, 1000));
        assert_eq!(after.share_since(before), Some(0.8));
        assert_eq!(after.share_since(after), None);
    }

    #[test]
    fn this_machine_has_them() {
        let system = System::default();
        assert!(system.processors().unwrap().all > 0);
        let memory = system.page_cache(None).unwrap();
        assert_eq!(system.page_cache(Some(4096)), Some(4096));
        assert!(memory > 1 << 20);
        assert!(system.names("/proc/self").iter().any(|name| name == "stat"));
        assert!(system.names("/none").is_empty());
    }
}
