//! Files that a person names for an answer. Each is opened before anything is measured,
//! and takes the place of what was there only when it is whole; `-` is standard output.

use std::path::{Path, PathBuf};

use crate::cli::stdout;
use crate::exit::CommandError;
use control::store::run_folder::ReplacementFile;

/// The name of standard output.
const STDOUT: &str = "-";

/// A file that was opened to be written once.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    to: OutputTarget,
}

#[derive(Debug)]
enum OutputTarget {
    Stdout,
    /// A pipe, a terminal, a device: it cannot be replaced by renaming.
    Special,
    File(ReplacementFile),
}

impl OutputFile {
    /// Opens it; what is there already stays as it is until [`put`](Self::put).
    pub fn open(path: &Path) -> Result<Self, CommandError> {
        let of = |to| Ok(Self { path: path.to_owned(), to });
        if path.as_os_str() == STDOUT {
            stdout::reserve_for_file()?;
            return of(OutputTarget::Stdout);
        }
        let failed = |why: &dyn std::fmt::Display| {
            CommandError::Environment(format!("cannot write {}: {why}", path.display()))
        };
        match path.metadata() {
            Ok(meta) if meta.is_dir() => Err(failed(&"it is a folder")),
            Ok(meta) if !meta.is_file() => of(OutputTarget::Special),
            _ => ReplacementFile::open(path)
                .map_err(|error| failed(&error))
                .map(OutputTarget::File)
                .and_then(of),
        }
    }

    /// The same of an option that may be absent.
    pub fn open_optional(path: Option<&PathBuf>) -> Result<Option<Self>, CommandError> {
        path.map(|path| Self::open(path)).transpose()
    }

    /// Writes it, whole or not at all.
    pub fn write(self, bytes: &[u8]) -> Result<(), CommandError> {
        let written = match self.to {
            OutputTarget::Stdout => return stdout::write_reserved_file(bytes),
            OutputTarget::Special => std::fs::write(&self.path, bytes),
            OutputTarget::File(beside) => beside.commit(bytes),
        };
        written.map_err(|error| {
            CommandError::Environment(format!("cannot write {}: {error}", self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_stays_as_it_was_and_nothing_is_left_beside() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("report.html");
        fs::write(&path, "old").expect("written");
        let names = || fs::read_dir(place.path()).expect("a folder").count();
        drop(OutputFile::open(&path).expect("opened"));
        assert_eq!((fs::read_to_string(&path).expect("there"), names()), ("old".to_owned(), 1));
        let output = OutputFile::open(&path).expect("opened");
        assert_eq!(fs::read_to_string(&path).expect("there"), "old");
        output.write(b"new").expect("written");
        assert_eq!((fs::read_to_string(&path).expect("there"), names()), ("new".to_owned(), 1));
    }

    #[test]
    fn what_cannot_be_written_is_told_when_it_is_opened() {
        let place = tempfile::tempdir().expect("a folder");
        for path in [place.path().join("none/report.html"), place.path().to_owned()] {
            let error = OutputFile::open(&path).expect_err("no such place");
            assert_eq!(error.exit_code(), super::super::exit::ENVIRONMENT, "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
    }
}
