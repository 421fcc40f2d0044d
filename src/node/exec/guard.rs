//! Keeps child processes from outliving fabricgate, even when fabricgate is killed and cannot clean
//! up.
//!
//! A tool is started as `{self} node guard --parent PID -- ARGV`. The guard asks the kernel to kill
//! it when its parent dies, then executes the tool. This covers the tool itself but not its
//! children; for those, `{self} node guard --groups` runs next to fabricgate, waits until
//! fabricgate is gone, and kills their groups.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::path::Path;

use rustix::process::{Pid, Signal};

use super::signal_group;

/// Exit code for "cannot be executed" (POSIX, "Exit Status for Commands").
const CANNOT_EXECUTE: u8 = 126;
/// Exit code for "not found" (same source).
const NOT_FOUND: u8 = 127;

/// Wraps a command so that `executable` guards it.
pub fn guarded_command(executable: &Path, argv: &[String]) -> Vec<String> {
    let mut command = vec![executable.display().to_string()];
    command.extend(["node", "guard", "--parent"].map(str::to_owned));
    command.push(std::process::id().to_string());
    command.push("--".to_owned());
    command.extend_from_slice(argv);
    command
}

/// The command that waits for fabricgate's end; see [`guard_groups`].
pub fn group_guard_command(executable: &Path) -> Vec<String> {
    let mut command = vec![executable.display().to_string()];
    command.extend(["node", "guard", "--groups"].map(str::to_owned));
    command
}

/// Executes this command, bound to the lifetime of its parent. Returns only on failure, with an
/// exit code and the reason.
pub fn exec_guarded(parent: u32, argv: &[String]) -> (u8, String) {
    let Some((program, arguments)) = argv.split_first() else {
        return (CANNOT_EXECUTE, "no program to start".to_owned());
    };
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return (CANNOT_EXECUTE, format!("{program}: cannot be bound to its parent: {error}"));
    }
    // The kernel does not report a parent that died before the line above.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if now != i32::try_from(parent).ok() {
        return (CANNOT_EXECUTE, format!("{program}: not started, because its parent has ended"));
    }
    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts processes")]
    let error = std::process::Command::new(program).args(arguments).exec();
    match error.kind() {
        std::io::ErrorKind::NotFound => (NOT_FOUND, format!("{program}: not found")),
        _ => (CANNOT_EXECUTE, format!("{program}: cannot be started: {error}")),
    }
}

/// Reads which groups started (`+123`) and ended (`-123`), one per line, and kills the remaining
/// groups when the input ends.
pub fn guard_groups(lines: impl BufRead) {
    let mut groups = BTreeSet::new();
    for line in lines.lines() {
        let Ok(line) = line else { break };
        let number = line.get(1..).and_then(|digits| digits.parse::<i32>().ok());
        let Some(group) = number.filter(|number| 1 < *number) else { continue };
        match line.as_bytes().first() {
            Some(b'+') => groups.insert(group),
            _ => groups.remove(&group),
        };
    }
    for group in groups {
        signal_group(Pid::from_raw(group), Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_whose_parent_is_gone_is_not_started() {
        // No process has this ID: it exceeds the kernel's maximum.
        let (code, why) = exec_guarded(u32::MAX, &["true".to_owned()]);
        assert_eq!(code, CANNOT_EXECUTE);
        assert!(why.contains("its parent has ended"), "{why}");
    }

    #[test]
    fn an_empty_command_is_reported() {
        assert_eq!(exec_guarded(1, &[]).0, CANNOT_EXECUTE);
    }
}
