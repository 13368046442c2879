//! How the C library keeps memory. It is told by its environment alone, before `main`, so a process
//! that is to run for long becomes itself once more, with these settings.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Threads would get an arena each, up to eight a processor, and what is freed in one is not used by
/// another; and blocks as large as a page of a list would stay in them once one had been freed. That
/// is some hundred bytes for each cached object.
const SETTINGS: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "262144")];

/// Whoever sets one of these knows better; that is also how the second time is told.
const SET: [&str; 3] = ["MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"];

/// Returns where the settings are there, or can't be made: then more memory is used, and no more.
pub fn settle() {
    if !cfg!(target_env = "gnu") || SET.iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    let mut arguments = std::env::args_os();
    if let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) {
        let error = Command::new(program).arg0(name).args(arguments).envs(SETTINGS).exec();
        eprintln!("kubewitness: going on without the settings for little memory: {error}");
    }
}
