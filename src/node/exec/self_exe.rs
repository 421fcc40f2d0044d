//! Finds this program's executable file, to start workers, guards and jobs from it.
//!
//! Starts nothing.

use std::io;
use std::path::{Path, PathBuf};

/// Suffix that Linux adds to the name of a removed executable.
const DELETED: &str = " (deleted)";

/// This program's executable file. If an upgrade replaced the file, returns the new file at the
/// same path.
#[expect(clippy::disallowed_methods, reason = "the only place that determines it")]
pub fn current_executable() -> io::Result<PathBuf> {
    without_deleted_suffix(std::env::current_exe()?)
}

fn without_deleted_suffix(path: PathBuf) -> io::Result<PathBuf> {
    let named = path.to_str().and_then(|path| path.strip_suffix(DELETED)).map(Path::new);
    match named {
        Some(named) if !path.exists() => match named.is_file() {
            true => Ok(named.to_owned()),
            false => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{}: the executable of this program was removed", named.display()),
            )),
        },
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_executable_gives_the_new_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, deleted) = (folder.path().join("x"), folder.path().join("x (deleted)"));
        assert_eq!(without_deleted_suffix(file.clone()).expect("unchanged"), file);
        let gone = without_deleted_suffix(deleted.clone()).expect_err("removed").to_string();
        assert!(gone.ends_with("x: the executable of this program was removed"), "{gone}");
        std::fs::write(&file, "").expect("written");
        assert_eq!(without_deleted_suffix(deleted.clone()).expect("replaced"), file);
        std::fs::write(&deleted, "").expect("written");
        assert_eq!(
            without_deleted_suffix(deleted.clone()).expect("a file may have this name"),
            deleted
        );
    }
}
