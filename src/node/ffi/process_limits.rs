//! Limits that a process is given before it becomes the program that it was started
//! for. The standard library has no safe way to do anything there.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::process::Command;

/// Gives the process that this command starts a limit of its own.
#[expect(unsafe_code, reason = "code between fork and exec is not safe in general")]
pub fn set_child_limit(command: &mut Command, resource: Resource, limit: Rlimit) {
    let set = move || setrlimit(resource, limit).map_err(io::Error::from);
    // SAFETY: between fork and exec only what is async-signal-safe may be called. This
    // is one system call with two numbers that were copied before; it takes no lock and
    // no memory, and an errno becomes an `io::Error` without any.
    unsafe {
        command.pre_exec(set);
    }
}
