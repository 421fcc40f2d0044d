//! Output files that the user names. Each is opened before the measurement, and replaces an
//! existing file only when it is complete; `-` is standard output.

use std::path::{Path, PathBuf};

use crate::cli::stdout;
use crate::exit::CommandError;
use control::store::run_folder::ReplacementFile;

const STDOUT: &str = "-";

/// An output file that is opened early and written once.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    to: OutputTarget,
}

#[derive(Debug)]
enum OutputTarget {
    Stdout,
    /// A pipe, a terminal or a device: a rename cannot replace it.
    Special,
    File(ReplacementFile),
}

impl OutputFile {
    /// Opens the file; an existing file stays unchanged until [`write`](Self::write).
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

    /// Opens the file of an option that may be absent.
    pub fn open_optional(path: Option<&PathBuf>) -> Result<Option<Self>, CommandError> {
        path.map(|path| Self::open(path)).transpose()
    }

    /// Writes the file, completely or not at all.
    pub fn write(self, bytes: &[u8]) -> Result<(), CommandError> {
        let written = match self.to {
            OutputTarget::Stdout => return stdout::write_reserved_file(bytes),
            OutputTarget::Special => std::fs::write(&self.path, bytes),
            OutputTarget::File(replacement) => replacement.commit(bytes),
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
    fn a_file_is_replaced_completely_or_stays_unchanged_without_leftovers() {
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
    fn an_unwritable_path_is_reported_when_it_is_opened() {
        let place = tempfile::tempdir().expect("a folder");
        for path in [place.path().join("none/report.html"), place.path().to_owned()] {
            let error = OutputFile::open(&path).expect_err("no such place");
            assert_eq!(error.exit_code(), super::super::exit::ENVIRONMENT, "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
    }
}
