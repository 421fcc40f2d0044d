//! Bounded reads of small kernel files, with placeholder values removed.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::query::to_printable;

/// Maximum bytes to read of a file; sysfs files have one page at most.
const MAX_BYTES: u64 = 64 * 1024;

/// One trimmed line; `None` if the file is empty, absent or unreadable.
pub(super) fn read_line(path: &Path) -> Option<String> {
    let text = read_text(path)?;
    let line = text.lines().next().map(to_printable)?;
    Some(line).filter(|line| !line.is_empty())
}

pub(super) fn read_number(path: &Path) -> Option<u64> {
    read_line(path)?.parse().ok()
}

/// The whole file, up to the bound.
pub(super) fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Sorted names in a folder; `None` if it is unreadable.
pub(super) fn list_names(folder: &Path) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(folder).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Some(names)
}
