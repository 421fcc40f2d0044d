//! Resource limits for a child process, set between fork and exec. The standard library has no safe
//! function for this.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::process::Command;

/// Gives the child process of this command its own limit.
#[expect(unsafe_code, reason = "code between fork and exec is not safe in general")]
pub fn set_child_limit(command: &mut Command, resource: Resource, limit: Rlimit) {
    let set = move || setrlimit(resource, limit).map_err(io::Error::from);
    // SAFETY: only async-signal-safe functions may be called between fork and exec. This is one
    // system call with two numbers copied before the fork; it takes no lock and no memory, and the
    // conversion of an errno to `io::Error` does not allocate.
    unsafe {
        command.pre_exec(set);
    }
}
