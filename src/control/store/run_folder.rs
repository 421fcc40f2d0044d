//! Writes run folders that stay readable after any interruption.
//!
//! A file appears whole or not at all, also after a loss of power: `put` writes a temporary file in
//! the same folder, forces it to disk, renames it and forces the folder. Lines are appended with
//! one write and forced to disk; a reader ignores a last line without its end.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::OFlags;
use serde::Serialize;

use super::{RecordError, plan_json, safe_open};

/// An open run folder of a run in progress.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Creates the folder of a new run. It must not exist yet.
    pub fn create(parent: &Path, id: &str) -> Result<Self, RecordError> {
        create_folder(parent).map_err(|source| io_error(parent, source))?;
        let path = parent.join(id);
        let made = DirBuilder::new().mode(FOLDER_MODE).create(&path);
        made.and_then(|()| SystemDisk.sync_folder(parent))
            .map_err(|source| io_error(&path, source))?;
        Ok(Self { path })
    }

    /// The existing folder of a run.
    pub fn open(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file and creates missing folders.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RecordError> {
        self.write_streamed(name, &mut |file| file.write_all(bytes))
    }

    /// Writes a file in pieces, so that it is never in memory whole.
    fn write_streamed(
        &self,
        name: &str,
        write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), RecordError> {
        let path = self.path.join(name);
        replace_file_with(&path, write).map_err(|source| io_error(&path, source))
    }

    /// Writes a value as indented JSON.
    pub fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), RecordError> {
        self.write_streamed(name, &mut |file| {
            serde_json::to_writer_pretty(&mut *file, value)?;
            file.write_all(b"\n")
        })
    }

    /// Writes a plan as JSON, with each of its steps on one line.
    pub fn write_plan<T: Serialize>(&self, name: &str, plan: &T) -> Result<(), RecordError> {
        self.write_streamed(name, &mut |file| {
            plan_json::write_plan(&mut *file, plan)?;
            file.write_all(b"\n")
        })
    }

    /// Writes values as JSON, one per line.
    pub fn write_lines<T: Serialize>(
        &self,
        name: &str,
        values: impl IntoIterator<Item = T>,
    ) -> Result<(), RecordError> {
        let mut values = values.into_iter();
        self.write_streamed(name, &mut |file| {
            for value in values.by_ref() {
                serde_json::to_writer(&mut *file, &value)?;
                file.write_all(b"\n")?;
            }
            Ok(())
        })
    }

    /// Appends values as lines of JSON, with one write, forced to disk.
    pub fn append<T: Serialize>(&self, name: &str, values: &[T]) -> Result<(), RecordError> {
        if values.is_empty() {
            return Ok(());
        }
        let path = self.path.join(name);
        let append = || -> io::Result<()> {
            let mut lines = Vec::new();
            for value in values {
                serde_json::to_writer(&mut lines, value)?;
                lines.push(b'\n');
            }
            let is_new = !path.exists();
            let mut file = open_options().create(true).append(true).open(&path)?;
            file.write_all(&lines)?;
            file.sync_data()?;
            // The name of a new file is durable only when its folder is.
            if is_new { SystemDisk.sync_folder(parent_folder(&path)) } else { Ok(()) }
        };
        append().map_err(|source| io_error(&path, source))
    }

    /// Cuts off an incomplete last line of an interrupted run, so that the next line starts on a
    /// new line.
    pub fn truncate_torn_line(&self, name: &str) -> Result<(), RecordError> {
        let path = self.path.join(name);
        let mend = || -> io::Result<()> {
            let bytes = match safe_open::read_regular(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                read => read?,
            };
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            if whole < bytes.len() {
                let file = open_options().write(true).open(&path)?;
                file.set_len(whole as u64)?;
                file.sync_all()?;
            }
            Ok(())
        };
        mend().map_err(|source| io_error(&path, source))
    }

    /// Writes several files and forces them to disk together; an interruption leaves whole files
    /// only.
    pub fn write_many(&self, files: &[(&str, &[u8])]) -> Result<(), RecordError> {
        let paths: Vec<PathBuf> = files.iter().map(|(name, _)| self.path.join(name)).collect();
        let mut fills: Vec<_> = files
            .iter()
            .map(|(_, bytes)| move |file: &mut dyn Write| file.write_all(bytes))
            .collect();
        let mut files: Vec<FileToWrite<'_>> =
            paths.iter().zip(&mut fills).map(|(path, fill)| FileToWrite { path, fill }).collect();
        write_files(&SystemDisk, &mut files).map_err(|(path, source)| io_error(&path, source))
    }

    /// Locks the folder for one writer; `None` if another process holds the lock. The lock ends
    /// with the file handle, and thus with the process.
    pub fn lock(&self) -> Result<Option<File>, RecordError> {
        let path = self.path.join(LOCK_FILE);
        let file = open_options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|source| io_error(&path, source))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(io_error(&path, error.into())),
        }
    }
}

/// Up to this number, files are forced to disk one by one; beyond it the whole file system is, at a
/// fixed cost.
const MAX_SINGLE_SYNCS: usize = 32;

const BUFFER_BYTES: usize = 1 << 16;

/// The lock file of a run folder.
const LOCK_FILE: &str = ".lock";

/// Mode of folders and files before the umask: all users may read results, only the owner may write
/// them, even without a umask.
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Creates a folder and its missing parents, with durable names.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    create_folder_in(&SystemDisk, folder)
}

fn create_folder_in(layer: &dyn DiskLayer, folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    create_folder_in(layer, parent_folder(folder))?;
    match layer.make(folder) {
        // Another thread created it, or a file has its name.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made.and_then(|()| layer.sync_folder(parent_folder(folder))),
    }
}

/// Options to open a file for writing without following links: otherwise any user with write access
/// to the folder could choose the file that is overwritten.
pub fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE).custom_flags(safe_open::to_custom_flags(OFlags::NOFOLLOW));
    options
}

/// Creates a file. Its name can be guessed, and other users may have write access to the folder
/// (`--output /tmp/x`): an existing file is never written into.
fn create_new(path: &Path) -> io::Result<File> {
    let make = || open_options().write(true).create_new(true).open(path);
    match make() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Left by a killed process with the same process id.
            fs::remove_file(path)?;
            make()
        }
        made => made,
    }
}

pub(super) fn io_error(path: &Path, source: io::Error) -> RecordError {
    RecordError::Io { path: path.to_owned(), source }
}

/// Replaces a file by these bytes, whole or not at all.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file_with(path, &mut |file| file.write_all(bytes))
}

/// A temporary file that replaces another one. If dropped before `commit`, it is removed and the
/// other file stays.
#[derive(Debug)]
pub struct ReplacementFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    is_placed: bool,
}

impl ReplacementFile {
    /// Opens the temporary file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let temporary = temporary_path(path)?;
        let file = create_new(&temporary)?;
        Ok(Self { path: path.to_owned(), temporary, file, is_placed: false })
    }

    /// Writes it and renames it to its final name.
    pub fn commit(mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.is_placed = true;
        // The rename itself is durable only when the folder is.
        File::open(parent_folder(&self.path))?.sync_all()
    }
}

impl Drop for ReplacementFile {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// The temporary file that replaces `path`.
fn temporary_path(path: &Path) -> io::Result<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
    name.push(format!(".{}.tmp", std::process::id()));
    Ok(path.with_file_name(name))
}

/// Replaces a file by the output of `fill`, whole or not at all.
fn replace_file_with(
    path: &Path,
    fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write_files(&SystemDisk, &mut [FileToWrite { path, fill }]).map_err(|(_, source)| source)
}

/// A file to replace, and the function that writes it.
struct FileToWrite<'f> {
    path: &'f Path,
    fill: &'f mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
}

/// Replaces files: writes all temporary files and forces them to disk, renames them, then forces
/// their folders. After a loss of power every name stands for a whole file; after the return of
/// this function all are durable.
fn write_files(
    layer: &dyn DiskLayer,
    files: &mut [FileToWrite<'_>],
) -> Result<(), (PathBuf, io::Error)> {
    let mut written: Vec<(PathBuf, PathBuf, File)> = Vec::new();
    let done = (|| {
        for FileToWrite { path, fill } in files.iter_mut() {
            let failed = |source| (path.to_owned(), source);
            create_folder_in(layer, parent_folder(path)).map_err(failed)?;
            let temporary = temporary_path(path).map_err(failed)?;
            let file = layer.create(&temporary).map_err(failed)?;
            written.push((temporary, path.to_owned(), file));
            let Some((temporary, _, file)) = written.last_mut() else { continue };
            let onto = DiskFileWriter { layer, path: temporary, file };
            let mut onto = BufWriter::with_capacity(BUFFER_BYTES, onto);
            fill(&mut onto).and_then(|()| onto.flush()).map_err(failed)?;
        }
        let many = MAX_SINGLE_SYNCS < written.len();
        for (temporary, path, file) in &written {
            let forced = if many { layer.sync_all(file) } else { layer.sync(temporary, file) };
            forced.map_err(|source| (path.clone(), source))?;
            if many {
                break;
            }
        }
        for (temporary, path, _) in &written {
            layer.rename(temporary, path).map_err(|source| (path.clone(), source))?;
        }
        let folders: BTreeSet<&Path> =
            written.iter().map(|(_, path, _)| parent_folder(path)).collect();
        match written.first() {
            Some((_, path, file)) if MAX_SINGLE_SYNCS < folders.len() => {
                layer.sync_all(file).map_err(|source| (path.clone(), source))
            }
            _ => folders.into_iter().try_for_each(|folder| {
                layer.sync_folder(folder).map_err(|source| (folder.to_owned(), source))
            }),
        }
    })();
    if done.is_err() {
        for (temporary, ..) in &written {
            let _ = fs::remove_file(temporary);
        }
    }
    done
}

/// The operations on a disk, so that a test can record and lose some of them.
trait DiskLayer {
    fn make(&self, folder: &Path) -> io::Result<()>;
    fn create(&self, path: &Path) -> io::Result<File>;
    fn write(&self, path: &Path, file: &mut File, bytes: &[u8]) -> io::Result<()>;
    fn sync(&self, path: &Path, file: &File) -> io::Result<()>;
    /// Forces the whole file system of this file.
    fn sync_all(&self, file: &File) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

struct SystemDisk;

impl DiskLayer for SystemDisk {
    fn make(&self, folder: &Path) -> io::Result<()> {
        DirBuilder::new().mode(FOLDER_MODE).create(folder)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        create_new(path)
    }

    fn write(&self, _: &Path, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, _: &Path, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        rustix::fs::syncfs(file).map_err(io::Error::from)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

/// A file that is written through a [`DiskLayer`].
struct DiskFileWriter<'l> {
    layer: &'l dyn DiskLayer,
    path: &'l Path,
    file: &'l mut File,
}

impl Write for DiskFileWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.layer.write(self.path, self.file, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The folder of a file: the current one if the path is only a name.
pub fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
#[path = "run_folder_tests.rs"]
mod power;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn files_that_other_users_planted_are_not_written_into() {
        let place = tempfile::tempdir().expect("a folder");
        let at = |name: &str| place.path().join(name);
        fs::write(at("precious"), "mine").expect("written");
        // The names are predictable: any user with write access here can guess them.
        symlink(at("precious"), at(&format!(".a.{}.tmp", std::process::id()))).expect("a link");
        symlink(at("precious"), at(&format!(".b.txt.{}.tmp", std::process::id()))).expect("a link");
        symlink(at("precious"), at("c.jsonl")).expect("a link");
        replace_file(&at("a"), b"new").expect("written and renamed");
        let folder = RunFolder::open(place.path());
        folder.write_many(&[("b.txt", b"new")]).expect("the same");
        assert!(folder.append("c.jsonl", &[1]).is_err());
        assert_eq!(fs::read_to_string(at("precious")).expect("there"), "mine");
        let made: Vec<String> =
            ["a", "b.txt"].map(|name| fs::read_to_string(at(name)).expect("there")).into();
        assert_eq!(made, ["new", "new"]);
    }

    #[test]
    fn other_users_may_not_write_created_files() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(&place.path().join("runs"), "r").expect("made");
        folder.write("raw/a.txt", b"x").expect("written");
        folder.append("b.jsonl", &[1]).expect("written");
        for name in ["", "raw", "raw/a.txt", "b.jsonl"] {
            let mode = fs::metadata(folder.path().join(name)).expect("there").permissions().mode();
            assert_eq!(mode & 0o022, 0, "{name}: {mode:o}");
        }
    }
}
