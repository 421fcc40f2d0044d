//! Finds the file of a program before it is started, and the file of this program.
//!
//! Searches as `execvp` does and starts nothing.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// POSIX systems search these if PATH is not set (`confstr(_CS_PATH)` of glibc).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file that this name would execute, with the given PATH or fabricgate's PATH. Returns a
/// non-executable file only if no executable one exists.
pub fn find_program(program: &str, path: Option<&String>) -> Option<PathBuf> {
    if program.is_empty() {
        return None;
    }
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|file| file.is_file());
    }
    let path = match path {
        Some(path) => path.into(),
        None => std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()),
    };
    let mut second_best = None;
    for folder in std::env::split_paths(&path) {
        let file = folder.join(program);
        if is_executable(&file) {
            return Some(file);
        }
        if second_best.is_none() && file.is_file() {
            second_best = Some(file);
        }
    }
    second_best
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

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
    fn a_program_is_found_on_the_given_path_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().display().to_string();
        assert_eq!(find_program("tool", Some(&path)), None);
        std::fs::write(folder.path().join("tool"), "").expect("written");
        assert_eq!(find_program("tool", Some(&path)), Some(folder.path().join("tool")));
        assert!(find_program("sh", None).is_some(), "fabricgate's PATH has a shell");
        assert_eq!(find_program("sh", Some(&path)), None);
    }

    #[test]
    fn an_executable_file_comes_before_a_non_executable_one() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("sh"), "").expect("written");
        let path = format!("{}:/bin", folder.path().display());
        assert_eq!(find_program("sh", Some(&path)), Some(PathBuf::from("/bin/sh")));
    }

    #[test]
    fn a_path_is_used_unchanged() {
        assert_eq!(find_program("/bin/sh", None), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_program("/bin", None), None);
        assert_eq!(find_program("/no/such/tool", None), None);
        assert_eq!(find_program("", None), None);
    }

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
