//! The IMEX channels visible to a process: without one it may not share memory over the fabric.
//!
//! Only opens files, changes nothing. According to NVIDIA's guide (IMEX channels), the driver
//! registers the character device, an administrator creates the device nodes, and they do not
//! survive a reboot.

use std::fs;
use std::fs::File;
use std::path::Path;

/// Device name in `/proc/devices` and below `/dev`.
pub(crate) const DEVICE: &str = "nvidia-caps-imex-channels";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImexChannels {
    /// True if the driver registered the device; absent if the system does not report it.
    pub(crate) registered: Option<bool>,
    /// Channels that can be opened.
    pub(crate) open: Vec<String>,
    /// Channels that cannot be opened, with the reason.
    pub(crate) closed: Vec<(String, String)>,
}

/// Reads the channels below this root.
pub(crate) fn read_channels(root: &Path) -> ImexChannels {
    let listed = fs::read_to_string(root.join("proc/devices"));
    let named =
        |text: String| text.lines().any(|line| line.split_whitespace().nth(1) == Some(DEVICE));
    let mut channels =
        ImexChannels { registered: listed.ok().map(named), ..ImexChannels::default() };
    let Ok(entries) = fs::read_dir(root.join("dev").join(DEVICE)) else { return channels };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Opening a channel has no side effects. File permissions alone are not sufficient: a
        // container's device rules can refuse too.
        match File::open(&path) {
            Ok(_) => channels.open.push(name),
            Err(error) => channels.closed.push((name, error.to_string())),
        }
    }
    channels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(devices: Option<&str>, channels: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        if let Some(text) = devices {
            fs::create_dir(root.path().join("proc")).expect("a folder");
            fs::write(root.path().join("proc/devices"), text).expect("written");
        }
        let folder = root.path().join("dev").join(DEVICE);
        fs::create_dir_all(&folder).expect("a folder");
        for name in channels {
            fs::write(folder.join(name), "").expect("written");
        }
        root
    }

    #[test]
    fn registered_and_open_channels_are_reported() {
        let with_channel = root(Some("195 nvidia\n234 nvidia-caps-imex-channels\n"), &["channel0"]);
        let seen = read_channels(with_channel.path());
        assert_eq!((seen.registered, seen.open), (Some(true), vec!["channel0".to_owned()]));
        let none = read_channels(root(Some("195 nvidia\n"), &[]).path());
        assert_eq!(none, ImexChannels { registered: Some(false), ..ImexChannels::default() });
        assert_eq!(read_channels(Path::new("/no/such/root")), ImexChannels::default());
    }

    #[test]
    fn a_channel_that_cannot_be_opened_has_a_reason() {
        let root = root(None, &[]);
        let folder = root.path().join("dev").join(DEVICE);
        std::os::unix::fs::symlink("/no/such/file", folder.join("channel7")).expect("linked");
        let seen = read_channels(root.path());
        assert!(seen.open.is_empty());
        assert_eq!(seen.closed[0].0, "channel7");
        assert!(seen.closed[0].1.contains("No such file"), "{seen:?}");
    }
}
