//! Writing a run folder so that it can be read whatever happens.
//!
//! A file appears whole or not at all: it is written beside its place, forced
//! to disk and renamed. Lines are appended with one write and forced to disk;
//! a reader ignores a last line without its end.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use serde::Serialize;

use super::RecordError;

/// A run folder that is being written.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder of a new run. It must not exist yet.
    pub fn create(parent: &Path, id: &str) -> Result<Self, RecordError> {
        fs::create_dir_all(parent).map_err(|source| io_error(parent, source))?;
        let path = parent.join(id);
        fs::create_dir(&path).map_err(|source| io_error(&path, source))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file; its folders are made as needed.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RecordError> {
        let path = self.path.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|source| io_error(parent, source))?;
        }
        replace(&path, bytes).map_err(|source| io_error(&path, source))
    }

    /// Writes a value as indented JSON.
    pub fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), RecordError> {
        let mut bytes = serde_json::to_vec_pretty(value)
            .map_err(|error| io_error(&self.path.join(name), error.into()))?;
        bytes.push(b'\n');
        self.write(name, &bytes)
    }

    /// Writes values as JSON, one a line.
    pub fn write_lines<T: Serialize>(
        &self,
        name: &str,
        values: impl IntoIterator<Item = T>,
    ) -> Result<(), RecordError> {
        let mut bytes = Vec::new();
        for value in values {
            serde_json::to_writer(&mut bytes, &value)
                .map_err(|error| io_error(&self.path.join(name), error.into()))?;
            bytes.push(b'\n');
        }
        self.write(name, &bytes)
    }

    /// Appends a value as one line of JSON.
    pub fn append<T: Serialize>(&self, name: &str, value: &T) -> Result<(), RecordError> {
        let path = self.path.join(name);
        let append = || -> io::Result<()> {
            let mut line = serde_json::to_vec(value)?;
            line.push(b'\n');
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            file.write_all(&line)?;
            file.sync_data()
        };
        append().map_err(|source| io_error(&path, source))
    }
}

pub(super) fn io_error(path: &Path, source: io::Error) -> RecordError {
    RecordError::Io { path: path.to_owned(), source }
}

/// Puts bytes in the place of a file, whole or not at all.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = (|| {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
        return written;
    }
    // The rename itself is durable only when the folder is.
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}
