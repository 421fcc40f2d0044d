//! Opens untrusted files: run folders come from colleagues, vendors and other machines.
//!
//! Reading a named pipe may block forever, a device has no end, and a link may lead to private
//! files. Therefore only regular files of a bounded size are read, and a file that a document names
//! must lie in its folder.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};
use std::{fs, io};

use rustix::fs::OFlags;

/// The largest file of a run folder that is read. The largest known, the cells of a complete sweep
/// of 10,000 nodes, has a few hundred MiB.
pub const MAX_FILE_BYTES: u64 = 2 << 30;

/// Opens a regular file of at most [`MAX_FILE_BYTES`] bytes. A path below `/dev` or `/proc`
/// (`<(command)` in a shell) is a pipe that the operator passed on purpose.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let is_meant = path.starts_with("/dev") || path.starts_with("/proc");
    // Opening alone may block (a pipe) or have an effect (a tape), so the file is checked before it
    // is opened, and again afterwards, since it may have been replaced in between.
    if !is_meant {
        check_metadata(&fs::metadata(path)?)?;
    }
    let mut options = OpenOptions::new();
    options.read(true);
    if !is_meant {
        options.custom_flags(to_custom_flags(OFlags::NONBLOCK | OFlags::NOCTTY));
    }
    let file = options.open(path)?;
    if !is_meant {
        check_metadata(&file.metadata()?)?;
    }
    Ok(file)
}

/// Reads such a file whole.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    // The file may grow during the reading, and a pipe has no size.
    if MAX_FILE_BYTES < bytes.len() as u64 {
        return Err(too_large_error(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Opens a file that a document of a folder names. Neither its name nor a link may
/// lead out of the folder.
pub fn open_in_folder(folder: &Path, name: &str) -> io::Result<File> {
    let is_below = |c: Component<'_>| matches!(c, Component::Normal(_));
    if name.is_empty() || !Path::new(name).components().all(is_below) {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    let path = folder.join(name);
    let file = open_regular(&path)?;
    // The real location of the opened file: a link that changes at this moment makes no difference.
    // Without /proc the path must do.
    let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let real = real.or_else(|_| path.canonicalize())?;
    if !real.starts_with(folder.canonicalize()?) {
        let why = "a link that leads out of the run folder";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(file)
}

fn check_metadata(found: &fs::Metadata) -> io::Result<()> {
    if found.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if MAX_FILE_BYTES < found.len() { Err(too_large_error(found.len())) } else { Ok(()) }
}

fn too_large_error(size: u64) -> io::Error {
    let why = format!("{} MiB, at most {} MiB are read", size >> 20, MAX_FILE_BYTES >> 20);
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}

/// The flags as the standard library takes them.
pub(super) fn to_custom_flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).expect("open(2) takes an int")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_named_file_must_lie_in_its_folder() {
        let place = tempfile::tempdir().expect("a folder");
        let run = place.path().join("run");
        fs::create_dir_all(run.join("raw")).expect("made");
        fs::write(run.join("raw/a.txt"), "a").expect("written");
        fs::write(place.path().join("secret"), "s").expect("written");
        symlink("a.txt", run.join("raw/near")).expect("a link");
        symlink("../../secret", run.join("raw/far")).expect("a link");
        symlink(place.path(), run.join("raw/up")).expect("a link");
        for good in ["raw/a.txt", "raw/near"] {
            assert!(open_in_folder(&run, good).is_ok(), "{good}");
        }
        for bad in
            ["raw/far", "raw/up/secret", "../secret", "/etc/passwd", "", "raw", "./raw/a.txt"]
        {
            assert!(open_in_folder(&run, bad).is_err(), "{bad}");
        }
        // A link may lead to the folder itself.
        symlink(&run, place.path().join("link")).expect("a link");
        assert!(open_in_folder(&place.path().join("link"), "raw/a.txt").is_ok());
    }

    #[test]
    fn pipes_devices_and_endless_files_are_refused_without_blocking() {
        let place = tempfile::tempdir().expect("a folder");
        let pipe = place.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).expect("a pipe");
        symlink("/dev/zero", place.path().join("zero")).expect("a link");
        let huge = place.path().join("huge");
        File::create(&huge).and_then(|it| it.set_len(MAX_FILE_BYTES + 1)).expect("a sparse file");
        for name in ["pipe", "zero", "huge", "."] {
            assert!(read_regular(&place.path().join(name)).is_err(), "{name}");
        }
    }
}
