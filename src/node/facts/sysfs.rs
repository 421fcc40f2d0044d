//! Small files of the kernel: read whole, bounded, and without what no fact
//! holds.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::query::to_printable;

/// The most that is read of a file; those of sysfs have a page at most.
const MAX_BYTES: u64 = 64 * 1024;

/// One line, without blanks around it; nothing where the file is empty, absent
/// or refused.
pub(super) fn read_line(path: &Path) -> Option<String> {
    let text = read_text(path)?;
    let line = text.lines().next().map(to_printable)?;
    Some(line).filter(|line| !line.is_empty())
}

/// A number.
pub(super) fn read_number(path: &Path) -> Option<u64> {
    read_line(path)?.parse().ok()
}

/// All of it, up to a bound.
pub(super) fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Names in a folder, in order; nothing where it cannot be read.
pub(super) fn list_names(folder: &Path) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(folder).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Some(names)
}
