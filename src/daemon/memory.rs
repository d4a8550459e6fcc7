//! How much memory this process may take: the machine's, or less where a memory cgroup says so.
//!
//! **Invariants**: what cannot be read limits nothing; of several cgroups above each other the least counts.

use std::path::{Path, PathBuf};

/// The machine's memory, or what the memory cgroup of this process leaves of it.
pub(crate) fn limit() -> u64 {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = files(&cgroups)
        .into_iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    limits.fold(machine(), u64::min)
}

fn machine() -> u64 {
    let info = rustix::system::sysinfo();
    #[expect(
        clippy::useless_conversion,
        reason = "the field's width differs by platform"
    )]
    let total = u64::try_from(info.totalram).unwrap_or(0);
    total.saturating_mul(u64::from(info.mem_unit))
}

/// The files with the limits of these cgroups, as `/proc/PID/cgroup` lists them, and of all above them.
fn files(cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = if kinds.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if kinds.split(',').any(|kind| kind == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let below = path.trim_start_matches('/');
        for dir in Path::new(below).ancestors() {
            files.push(Path::new(root).join(dir).join(file));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_a_cgroup_and_of_those_above_it_are_looked_at() {
        let text = "12:cpu,memory:/a/b\n3:pids:/x\n0::/system.slice/ashlar.service\n";
        let files: Vec<String> = files(text)
            .iter()
            .map(|f| f.display().to_string())
            .collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/system.slice/ashlar.service/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert!(limit() > 0);
    }
}
