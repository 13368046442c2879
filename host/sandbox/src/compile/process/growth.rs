//! Determines whether the process that compiles is so large that it may exhaust the container's memory.

use std::fs;
use std::time::Duration;

use kubewitness_core::config::ComponentsSpec;

/// The pause between two measurements. A process fills some 40 MiB in this time.
const MEASURE_EVERY: Duration = Duration::from_millis(20);
/// The files with a container's memory limit, for cgroups version 2 and version 1.
const CONTAINER_LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// The size from which a process counts as large: an eighth of its limit, or of the container's if that is
/// smaller. The limit is on addresses, and a compiler may fill only a quarter of them.
fn large_process_bytes(limits: &ComponentsSpec) -> u64 {
    let limit = CONTAINER_LIMITS.iter().find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    large_in(limits.compile_memory.0, limit)
}

fn large_in(may_take: u64, container: Option<u64>) -> u64 {
    may_take.min(container.unwrap_or(u64::MAX)) / 8
}

/// Returns once the process is large, or if its size is unknown.
pub async fn until_large(process: u32, limits: &ComponentsSpec) {
    let large = large_process_bytes(limits);
    while process_memory(process).is_some_and(|held| held < large) {
        tokio::time::sleep(MEASURE_EVERY).await;
    }
}

/// The memory of a process in bytes, without the files that it has mapped.
fn process_memory(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use kubewitness_core::config::Bytes;
    use tokio::process::Command;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn is_told_large(script: &str, patience: Duration) -> bool {
        let limits = ComponentsSpec { compile_memory: Bytes(80 << 20), ..ComponentsSpec::default() };
        let mut shell = Command::new("sh");
        let process = shell.args(["-c", script]).kill_on_drop(true).spawn().unwrap();
        tokio::time::timeout(patience, until_large(process.id().unwrap(), &limits)).await.is_ok()
    }

    #[test]
    fn a_process_is_large_from_an_eighth_of_what_it_may_take_and_earlier_in_a_small_container() {
        let gib = 1 << 30;
        assert_eq!(large_in(gib, None), 128 << 20);
        assert_eq!(large_in(gib, Some(4 * gib)), 128 << 20);
        assert_eq!(large_in(gib, Some(gib / 2)), 64 << 20);
    }

    #[tokio::test]
    async fn a_process_that_holds_much_is_told_and_one_that_holds_little_is_not() {
        let holds = r#"x=$(head -c 40000000 /dev/zero | tr '\0' e); sleep 60; echo "$x""#;
        assert!(is_told_large(holds, PATIENCE).await);
        assert!(!is_told_large("sleep 60", Duration::from_millis(300)).await);
    }

    #[tokio::test]
    async fn a_process_of_which_nothing_is_told_counts_as_large() {
        let nobody = u32::MAX;
        tokio::time::timeout(PATIENCE, until_large(nobody, &ComponentsSpec::default())).await.unwrap();
    }
}
