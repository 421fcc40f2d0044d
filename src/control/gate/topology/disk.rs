//! The topology file on disk: read, kept, replaced whole or not at all, with
//! the owner and the rights that it had.

use crate::store::folder::parent;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The largest file that is read: 5,000 nodes take 20 KB.
const LARGEST: u64 = 16 * 1024 * 1024;

/// What is in it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(LARGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error: io::Error| format!("{}: {error}", path.display()))
}

/// Keeps a copy of these bytes beside it, and says where.
pub(super) fn keep(path: &Path, time: &str, bytes: &[u8]) -> Result<PathBuf, String> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".fabricgate-{time}"));
    let backup = path.with_file_name(name);
    create(path, &backup, bytes)
        .and_then(|()| sync(&backup))
        .map_err(|error| format!("{}: {error}", backup.display()))?;
    Ok(backup)
}

/// Puts these bytes in its place. Where it is a link, what it leads to is
/// replaced and the link stays.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let put = || -> io::Result<()> {
        let path = fs::canonicalize(path)?;
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
        name.push(format!(".fabricgate.{}", std::process::id()));
        let beside = path.with_file_name(name);
        let written = create(&path, &beside, bytes).and_then(|()| fs::rename(&beside, &path));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written?;
        sync(&path)
    };
    put().map_err(|error| format!("{}: {error}", path.display()))
}

/// A new file with the owner and the rights of another.
fn create(like: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let meta = fs::metadata(like)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let fill = |file: &mut File| {
        file.write_all(bytes)?;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (meta.uid(), meta.gid()) {
            std::os::unix::fs::fchown(&*file, Some(meta.uid()), Some(meta.gid()))?;
        }
        file.set_permissions(meta.permissions())?;
        file.sync_all()
    };
    let filled = fill(&mut file);
    if filled.is_err() {
        let _ = fs::remove_file(path);
    }
    filled
}

/// A name in a folder is durable only when the folder is.
fn sync(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_kept_and_replaced_with_the_rights_it_had() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("topology.yaml");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("rights");
        let backup = keep(&path, "20261121T163000Z", b"old").expect("kept");
        replace(&path, b"new").expect("replaced");
        assert_eq!(
            backup.file_name().expect("a name"),
            "topology.yaml.fabricgate-20261121T163000Z"
        );
        for (file, text) in [(&path, "new"), (&backup, "old")] {
            assert_eq!(fs::read_to_string(file).expect("text"), text);
            assert_eq!(fs::metadata(file).expect("it").permissions().mode() & 0o777, 0o640);
        }
        // Never over an older copy.
        assert!(keep(&path, "20261121T163000Z", b"new").is_err());
        assert_eq!(fs::read_to_string(&backup).expect("text"), "old");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, link) = (folder.path().join("real"), folder.path().join("topology.conf"));
        fs::write(&real, "old").expect("written");
        std::os::unix::fs::symlink(&real, &link).expect("linked");
        replace(&link, b"new").expect("replaced");
        assert!(fs::symlink_metadata(&link).expect("it").file_type().is_symlink());
        assert_eq!(fs::read_to_string(&real).expect("text"), "new");
    }

    #[test]
    fn what_cannot_be_written_leaves_everything_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("none").join("topology.yaml");
        assert!(read(&path).is_err() && replace(&path, b"x").is_err());
        assert!(keep(&path, "t", b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
