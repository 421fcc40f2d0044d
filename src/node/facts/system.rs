//! Facts about the machine from `/proc` and sysfs.

use std::path::Path;

use super::DRIVER_VERSION_FILE;
use super::sysfs;
use model::node_facts::NodeFacts;

/// Adds the host name, boot ID, kernel version and model of the machine.
pub(super) fn add_system_facts(root: &Path, facts: &mut NodeFacts) {
    let kernel = |file: &str| sysfs::read_line(&root.join("proc/sys/kernel").join(file));
    let dmi = |file: &str| sysfs::read_line(&root.join("sys/class/dmi/id").join(file));
    facts.hostname = kernel("hostname");
    facts.kernel = kernel("osrelease");
    facts.boot_id = kernel("random/boot_id");
    facts.machine = dmi("product_name");
    facts.machine_firmware = dmi("bios_version");
}

/// The version of the driver's kernel module, available even without the library: `NVRM version:
/// NVIDIA UNIX x86_64 Kernel Module  570.86.15`.
pub(super) fn read_driver_version(root: &Path) -> Option<String> {
    let text = sysfs::read_text(&root.join(DRIVER_VERSION_FILE))?;
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_ascii_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_a_kernel_and_a_boot() {
        let mut facts = NodeFacts::default();
        add_system_facts(Path::new("/"), &mut facts);
        assert!(facts.hostname.is_some() && facts.kernel.is_some());
        // 36 characters: RFC 9562.
        assert_eq!(facts.boot_id.map(|id| id.len()), Some(36));
    }

    #[test]
    fn an_empty_root_gives_no_facts() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut facts = NodeFacts::default();
        add_system_facts(folder.path(), &mut facts);
        assert_eq!(facts, NodeFacts::default());
        assert_eq!(read_driver_version(folder.path()), None);
    }
}
