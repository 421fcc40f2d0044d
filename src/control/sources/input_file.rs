//! Opens input files that users name, with one clear message per error.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The largest file that is read. The outputs of all supported tools are far
/// smaller: nccl-tests' JSON with every iteration of 1,440 ranks is 40 MB.
pub const MAX_INPUT_BYTES: u64 = 256 * 1024 * 1024;

/// The reason why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It could not be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is a directory.
    #[error("{}: is a directory, expected a file", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// It is a named pipe: opening one waits for a writer, possibly forever.
    #[error("{}: is a named pipe, expected a file (or /dev/stdin)", path.display())]
    Pipe {
        /// The pipe.
        path: PathBuf,
    },
    /// It is too large to be a tool's output.
    #[error("{}: is {} MiB, an output of a supported tool has at most {} MiB", path.display(), size >> 20, MAX_INPUT_BYTES >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
}

/// The bytes of a file. A pipe is read up to [`MAX_INPUT_BYTES`] bytes.
pub fn read(path: &Path) -> Result<Vec<u8>, InputError> {
    let io = |source| InputError::Io { path: path.to_owned(), source };
    let is_ours = path.starts_with("/dev") || path.starts_with("/proc");
    if !is_ours && path.metadata().map_err(io)?.file_type().is_fifo() {
        return Err(InputError::Pipe { path: path.to_owned() });
    }
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if meta.is_dir() {
        return Err(InputError::Directory { path: path.to_owned() });
    }
    if MAX_INPUT_BYTES < meta.len() {
        return Err(InputError::TooLarge { path: path.to_owned(), size: meta.len() });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    file.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    let size = bytes.len() as u64;
    if MAX_INPUT_BYTES < size {
        return Err(InputError::TooLarge { path: path.to_owned(), size });
    }
    Ok(bytes)
}
