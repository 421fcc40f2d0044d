//! Where this program's own file is, for what starts it once more: workers, guards,
//! jobs.
//!
//! Starts nothing.

use std::io;
use std::path::{Path, PathBuf};

/// What Linux writes behind the name of a file that is no longer there.
const DELETED: &str = " (deleted)";

/// This program's own file. Where it was replaced since it was started, as by an
/// upgrade, it is what stands in its place now, as for everybody who names it.
#[expect(clippy::disallowed_methods, reason = "the one place that asks")]
pub fn current_executable() -> io::Result<PathBuf> {
    without_deleted_suffix(std::env::current_exe()?)
}

fn without_deleted_suffix(told: PathBuf) -> io::Result<PathBuf> {
    let named = told.to_str().and_then(|told| told.strip_suffix(DELETED)).map(Path::new);
    match named {
        Some(named) if !told.exists() => match named.is_file() {
            true => Ok(named.to_owned()),
            false => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{}: this program's own file was removed", named.display()),
            )),
        },
        _ => Ok(told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_replaced_is_what_stands_there_now() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, told) = (folder.path().join("x"), folder.path().join("x (deleted)"));
        assert_eq!(without_deleted_suffix(file.clone()).expect("as told"), file);
        let gone = without_deleted_suffix(told.clone()).expect_err("removed").to_string();
        assert!(gone.ends_with("x: this program's own file was removed"), "{gone}");
        std::fs::write(&file, "").expect("written");
        assert_eq!(without_deleted_suffix(told.clone()).expect("replaced"), file);
        std::fs::write(&told, "").expect("written");
        assert_eq!(without_deleted_suffix(told.clone()).expect("somebody calls it so"), told);
    }
}
