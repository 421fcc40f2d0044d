//! Checks that only the gate's user can change the state folder and its files, as sshd
//! does for its keys: a writer of these files controls the gate's record of its actions.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::{fs, io};

use rustix::fs::OFlags;

/// Permission bits of a file mode.
const GROUP_WRITE: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// In a sticky folder (`/tmp`) only the owner of a file may rename it.
const STICKY: u32 = 0o1000;

/// Effective user and group of this process.
#[derive(Clone, Copy, Debug)]
struct ProcessCredentials {
    user: u32,
    group: u32,
}

impl ProcessCredentials {
    fn current() -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { user: user.as_raw(), group: group.as_raw() }
    }

    /// Why other users can change a file with these permissions; `None` if they cannot.
    fn explain_writable(self, user: u32, group: u32, mode: u32) -> Option<String> {
        if user != self.user && user != 0 {
            return Some(format!("user {user} owns it, expected {} or root", self.user));
        }
        if mode & OTHERS_WRITE != 0 {
            return Some(format!("mode {:o}: others may write to it", mode & 0o7777));
        }
        // A single-user group, as distributions create it and as a pod's `fsGroup` is.
        let is_own = group == self.group && group == self.user;
        if mode & GROUP_WRITE != 0 && !is_own {
            return Some(format!("mode {:o}: group {group} may write to it", mode & 0o7777));
        }
        None
    }

    fn check_metadata(self, meta: &Metadata) -> Option<String> {
        self.explain_writable(meta.uid(), meta.gid(), meta.mode())
    }
}

fn permission_error(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.to_string())
}

/// Checks an existing folder and its ancestors: a user who can rename one of them can
/// replace the folder.
pub(super) fn check_folder(path: &Path) -> io::Result<()> {
    let process = ProcessCredentials::current();
    let path = fs::canonicalize(path)?;
    if let Some(why) = process.check_metadata(&fs::metadata(&path)?) {
        return Err(permission_error(format!("{why}; `chmod 700` it, as the user of the gate")));
    }
    for above in path.ancestors().skip(1) {
        // This process cannot change a folder that it cannot stat.
        let Ok(meta) = fs::metadata(above) else { continue };
        if meta.mode() & OTHERS_WRITE != 0 && meta.mode() & STICKY == 0 {
            let mode = meta.mode() & 0o7777;
            return Err(permission_error(format!(
                "others may write to {} (mode {mode:o}) and so replace the folder",
                above.display()
            )));
        }
    }
    Ok(())
}

/// Opens a file of the state folder: never through a link, and only a regular file that
/// other users cannot change.
pub(super) fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = options.custom_flags(flags).open(path).map_err(|error| {
        if path.is_symlink() {
            permission_error("it is a symbolic link, which is not followed")
        } else {
            error
        }
    })?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(permission_error("it is not a regular file"));
    }
    match ProcessCredentials::current().check_metadata(&meta) {
        Some(why) => {
            Err(permission_error(format!("{why}; `chmod 600` it, as the user of the gate")))
        }
        None => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn owner_and_mode_are_checked_against_the_process() {
        let process = ProcessCredentials { user: 1000, group: 1000 };
        for good in [
            (1000, 1000, 0o700),
            (1000, 5, 0o755),
            (0, 0, 0o755),
            // A single-user group of this user.
            (1000, 1000, 0o775),
            (0, 1000, 0o2775),
        ] {
            assert_eq!(process.explain_writable(good.0, good.1, good.2), None, "{good:?}");
        }
        for (bad, why) in [
            ((1001, 1000, 0o700), "user 1001 owns it"),
            ((1000, 1000, 0o777), "others may write"),
            ((1000, 1000, 0o1777), "others may write"),
            ((1000, 100, 0o770), "group 100 may write"),
            ((0, 0, 0o770), "group 0 may write"),
        ] {
            let message = process.explain_writable(bad.0, bad.1, bad.2).expect("refused");
            assert!(message.contains(why), "{bad:?}: {message}");
        }
    }

    #[test]
    fn folders_writable_by_others_links_and_pipes_are_refused() {
        let place = tempfile::tempdir().expect("a folder");
        let at = |name: &str| place.path().join(name);
        let set = |name: &str, mode| {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("set");
        };
        fs::create_dir_all(at("above/state")).expect("made");
        set("above/state", 0o700);
        set("above", 0o755);
        check_folder(&at("above/state")).expect("ours");
        set("above/state", 0o777);
        let why = check_folder(&at("above/state")).expect_err("refused").to_string();
        assert!(why.contains("mode 777"), "{why}");
        set("above/state", 0o700);
        set("above", 0o777);
        let why = check_folder(&at("above/state")).expect_err("refused").to_string();
        assert!(why.contains("above (mode 777)"), "{why}");

        fs::write(at("file"), "x").expect("written");
        set("file", 0o600);
        let append = || OpenOptions::new().append(true).to_owned();
        open_private(&mut append(), &at("file")).expect("ours");
        symlink(at("file"), at("link")).expect("a link");
        let why = open_private(&mut append(), &at("link")).expect_err("refused").to_string();
        assert!(why.contains("link"), "{why}");
        set("file", 0o666);
        let why = open_private(&mut append(), &at("file")).expect_err("refused").to_string();
        assert!(why.contains("mode 666"), "{why}");
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), 0o600.into()).expect("a pipe");
        open_private(OpenOptions::new().read(true).write(true), &at("pipe")).expect_err("refused");
    }
}
