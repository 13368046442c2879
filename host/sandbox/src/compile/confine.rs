//! Confines the process that compiles before it reads its first byte. The compiler is large and its input
//! hostile, so a fault in it must not give anybody more than a process that can compute and answer.
//!
//! This works on Linux. Elsewhere only the time of the process is limited.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule};

/// Input, output and errors. The process has no other handle, and may open none.
const HANDLES: u32 = 3;
/// At its time limit the kernel asks a process to end, and kills it if it continues for this many seconds.
const PAST_LIMIT: u64 = 1;

/// Returns the rights that could not be given up. It is an error if the limits and the filter fail: the
/// controller runs the code that this process makes, so a component must not take over the compiler. `memory`
/// is in bytes, `cpu` in seconds.
pub fn confine_process(memory: u64, cpu: u64) -> Result<Vec<String>, String> {
    let wished = [
        // If a container runs out of memory, the kernel chooses a process to kill: it should choose this one.
        ("the order in which processes end", fs::write("/proc/self/oom_score_adj", "1000")),
        ("the end of its parent", as_io_result(set_parent_process_death_signal(Some(Signal::KILL)))),
        ("inherited handles", close_inherited()),
    ];
    let needed = [
        ("new rights", as_io_result(set_no_new_privs(true))),
        ("limits", limit_resources(memory, cpu)),
        ("system calls", filter_system_calls()),
    ];
    let lacking = |steps: [(&str, io::Result<()>); 3]| {
        let failed = steps.into_iter().filter_map(|(what, step)| Some(format!("{what}: {}", step.err()?)));
        failed.collect::<Vec<_>>()
    };
    match lacking(needed) {
        failed if failed.is_empty() => Ok(lacking(wished)),
        failed => Err(format!(
            "the process that compiles can't give up {}: run the controller on a kernel and under a profile that allow \
             seccomp filters",
            failed.join(", ")
        )),
    }
}

fn as_io_result(result: rustix::io::Result<()>) -> io::Result<()> {
    result.map_err(io::Error::from)
}

/// Rust opens handles for one process only, but the controller's parent may have passed it others.
#[allow(unsafe_code)]
fn close_inherited() -> io::Result<()> {
    // SAFETY: only numbers are passed. No closed handle has an owner in this process, which has opened none
    // yet.
    match unsafe { libc::syscall(libc::SYS_close_range, HANDLES, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn limit_resources(memory: u64, cpu: u64) -> io::Result<()> {
    let both = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
    let time = Rlimit { current: Some(cpu), maximum: Some(cpu.saturating_add(PAST_LIMIT)) };
    for (resource, most) in [
        (Resource::Core, both(0)),
        (Resource::Fsize, both(0)),
        (Resource::Nofile, both(HANDLES.into())),
        (Resource::Cpu, time),
        (Resource::As, both(memory)),
    ] {
        // The parent may have set a lower limit, which nobody may raise.
        let least = |most: Option<u64>, known: Option<u64>| most.into_iter().chain(known).min();
        let known = getrlimit(resource).maximum;
        let most = Rlimit { current: least(most.current, known), maximum: least(most.maximum, known) };
        as_io_result(setrlimit(resource, most))?;
    }
    Ok(())
}

/// Calls that are not named fail as if they were forbidden, so that a library that tries them continues
/// without.
fn filter_system_calls() -> io::Result<()> {
    let wrong = |error: BackendError| io::Error::other(error.to_string());
    let arch = std::env::consts::ARCH.try_into().map_err(wrong)?;
    let rules = allowed_calls().map_err(wrong)?;
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch).map_err(wrong)?;
    let program = BpfProgram::try_from(filter).map_err(wrong)?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| io::Error::other(error.to_string()))
}

/// Memory, time and random numbers; its own handles, its own signals, its own end.
fn allowed_calls() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let only =
        |argument: u8, value: u64| SeccompRule::new(vec![SeccompCondition::new(argument, Dword, Eq, value)?]);
    // No memory is both writable and executable.
    let no_code = || {
        let is_no_code = MaskedEq(libc::PROT_EXEC.unsigned_abs().into());
        Ok::<_, BackendError>(vec![SeccompRule::new(vec![SeccompCondition::new(2, Dword, is_no_code, 0)?])?])
    };
    let output = || Ok::<_, BackendError>(vec![only(0, 1)?, only(0, 2)?]);
    let own = u64::from(std::process::id());
    let mut rules = BTreeMap::from([
        (libc::SYS_read, vec![only(0, 0)?]),
        (libc::SYS_write, output()?),
        (libc::SYS_writev, output()?),
        (libc::SYS_mmap, no_code()?),
        (libc::SYS_mprotect, no_code()?),
        (libc::SYS_tgkill, vec![only(0, own)?]),
    ]);
    for call in [
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_clock_gettime,
        libc::SYS_getrandom,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_restart_syscall,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ] {
        rules.insert(call, Vec::new());
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    use super::*;

    const NAME: &str =
        "compile::confine::tests::a_confined_process_computes_and_answers_and_can_do_nothing_else";
    const WITHIN: &str = "KUBEWITNESS_TEST_CONFINED";

    /// Confinement can't be undone, so it runs in a separate process: this test, once more.
    #[test]
    fn a_confined_process_computes_and_answers_and_can_do_nothing_else() {
        if std::env::var_os(WITHIN).is_some() {
            return in_confinement();
        }
        let test = std::env::current_exe().unwrap();
        let output = Command::new(test)
            .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
            .env(WITHIN, "yes")
            .output()
            .unwrap();
        let output_text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && output_text.contains("still here"), "{output:?}");
    }

    fn in_confinement() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        // The listener was closed together with all handles; dropping it would close the handle of somebody
        // else.
        std::mem::forget(server);
        assert_eq!(confine_process(1 << 30, 60).unwrap(), [""; 0]);
        let denied = |what: &str, error: Option<io::Error>| {
            let kind = error.map(|error| error.kind());
            assert_eq!(kind, Some(io::ErrorKind::PermissionDenied), "{what}");
        };
        denied("connecting", TcpStream::connect(address).err());
        denied("listening", TcpListener::bind("127.0.0.1:0").err());
        denied("a local socket", UnixDatagram::unbound().err());
        denied("reading a file", fs::File::open("/etc/passwd").err());
        denied("writing a file", fs::write("/tmp/kubewitness-confined", "x").err());
        denied("removing a file", fs::remove_file("/tmp/kubewitness-confined").err());
        denied("another process", Command::new("/bin/true").spawn().err());
        denied("a thread", std::thread::Builder::new().spawn(|| {}).err());
        let much = Vec::<u8>::new().try_reserve_exact(2 << 30);
        assert!(much.is_err(), "memory is bounded");
        assert_eq!(vec![1_u8; 64 << 20].iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
        assert_eq!(io::stdin().read(&mut [0; 1]).unwrap(), 0, "its input can be read");
        // If the kernel refuses the filter, as it does from here on, nothing is compiled.
        let error = confine_process(1 << 30, 60).unwrap_err();
        assert!(error.contains("system calls") && error.contains("seccomp"), "{error}");
        println!("still here");
    }
}
