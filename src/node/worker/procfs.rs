//! Processes of this machine from `/proc`, and their ancestry.

use std::path::Path;

/// Maximum length of a chain of parents. Longer ones are loops, which appear when processes end
/// during the reading.
const MAX_DEPTH: usize = 1_000;

/// A process's name, parent and process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcfsProcess {
    /// Truncated by the kernel to 15 bytes.
    pub(super) name: String,
    /// PID of its parent; 0 if it has none.
    pub(super) parent: u32,
    pub(super) group: i32,
}

pub(super) fn read_process(proc: &Path, pid: u32) -> Option<ProcfsProcess> {
    let stat = std::fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // The name is in parentheses and may contain any character, including parentheses.
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let mut columns = rest.split_ascii_whitespace().skip(1);
    let parent = columns.next()?.parse().ok()?;
    let group = columns.next()?.parse().ok()?;
    Some(ProcfsProcess { name, parent, group })
}

/// The ancestors of a process, parent first.
pub(super) fn ancestors(proc: &Path, pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut current = pid;
    while let Some(ProcfsProcess { parent, .. }) = read_process(proc, current) {
        if parent == 0 || MAX_DEPTH < found.len() {
            break;
        }
        found.push(parent);
        current = parent;
    }
    found
}

/// All process IDs in order.
pub(super) fn list_pids(proc: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(proc) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<u32> = names.filter_map(|name| name.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// The command line of a process, with arguments separated by blanks.
pub(super) fn read_command_line(proc: &Path, pid: u32) -> String {
    let bytes = std::fs::read(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\0').replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_descends_from_its_parent() {
        let proc = Path::new("/proc");
        let own = read_process(proc, std::process::id()).expect("ourselves");
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert_eq!(ancestors(proc, std::process::id())[0], own.parent);
        assert!(list_pids(proc).contains(&std::process::id()));
        assert_eq!(read_process(proc, u32::MAX), None);
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_columns() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("7")).expect("a folder");
        std::fs::write(folder.path().join("7/stat"), "7 (a) S 1 (b) S 5 7 7 0").expect("written");
        let expected = ProcfsProcess { name: "a) S 1 (b".to_owned(), parent: 5, group: 7 };
        assert_eq!(read_process(folder.path(), 7), Some(expected));
    }
}
