//! Xid errors per GPU from the kernel log.
//!
//! The kernel log is a ring buffer: old messages are lost. Reading never waits for new messages.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::query::to_printable;
use model::gpu_facts::{GpuFacts, XidSummary};

/// Maximum bytes to read. Kernels keep a megabyte or two.
const MAX_LOG_BYTES: usize = 16 * 1024 * 1024;

/// Largest record of the log (`PRINTKRB_RECORD_MAX` is 1024; `/dev/kmsg` adds
/// escapes and a dictionary).
const MAX_RECORD_BYTES: usize = 16 * 1024;

/// How many overwritten records to tolerate while reading.
const MAX_OVERWRITES: usize = 1_000;

/// `EPIPE` of <errno.h>: the next record was overwritten.
const EPIPE: i32 = 32;

/// An Xid error in the log.
#[derive(Debug, PartialEq, Eq)]
struct XidLogEntry {
    /// `0000:3b:00`, without a function.
    device: String,
    xid: u32,
    seconds: u64,
    message: String,
}

/// Adds the log's Xid errors to every GPU, or returns why the log is unreadable.
pub(super) fn add_xids(root: &Path, gpus: &mut [GpuFacts]) -> Result<(), String> {
    let log = read_kernel_log(&root.join("dev/kmsg"))?;
    let entries: Vec<XidLogEntry> = log.lines().filter_map(parse_entry).collect();
    for gpu in gpus {
        let Some(address) = &gpu.pci_address else { continue };
        let device = address.rsplit_once('.').map_or(address.as_str(), |(device, _)| device);
        gpu.xids = Some(count_by_xid(entries.iter().filter(|entry| entry.device == device)));
    }
    Ok(())
}

fn count_by_xid<'e>(entries: impl Iterator<Item = &'e XidLogEntry>) -> Vec<XidSummary> {
    let mut found: Vec<XidSummary> = Vec::new();
    for entry in entries {
        let now = (entry.seconds, entry.message.clone());
        match found.iter_mut().find(|seen| seen.xid == entry.xid) {
            Some(seen) => {
                seen.count += 1;
                (seen.last_seconds_after_boot, seen.message) = now;
            }
            None => found.push(XidSummary {
                xid: entry.xid,
                count: 1,
                last_seconds_after_boot: now.0,
                message: now.1,
            }),
        }
    }
    found.sort_by_key(|seen| seen.xid);
    found
}

/// The current contents of the log.
fn read_kernel_log(path: &Path) -> Result<String, String> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let mut file = opened.map_err(|error| format!("{}: {error}", path.display()))?;
    let (mut log, mut record, mut overwritten) = (Vec::new(), vec![0; MAX_RECORD_BYTES], 0);
    while log.len() < MAX_LOG_BYTES {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(count) => log.extend_from_slice(&record[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(EPIPE) && overwritten < MAX_OVERWRITES => {
                overwritten += 1;
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(String::from_utf8_lossy(&log).into_owned())
}

/// `4,1234,98765432,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off
/// the bus.` The third number is microseconds after boot
/// (Documentation/ABI/testing/dev-kmsg of the kernel).
fn parse_entry(line: &str) -> Option<XidLogEntry> {
    let (head, message) = line.split_once(';')?;
    let rest = message.strip_prefix("NVRM: Xid (PCI:")?;
    let (device, rest) = rest.split_once("): ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, rest) = rest.split_at(digits);
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    Some(XidLogEntry {
        device: device.to_ascii_lowercase(),
        xid: number.parse().ok()?,
        seconds: micros / 1_000_000,
        message: to_printable(rest.trim_start_matches([',', ' '])),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "6,1,900000,-;Linux version 6.8\n \
        SUBSYSTEM=pci\n\
        4,20,61000000,-;NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', GPU has fallen off the bus.\n\
        4,21,62000000,-;NVRM: Xid (PCI:0000:3b:00): 74, NVLink error\n\
        4,22,63999999,-;NVRM: Xid (PCI:0000:3b:00): 74, again\n\
        4,23,64000000,-;NVRM: Xid (PCI:0000:86:00): 31, pid=7, MMU fault\n\
        4,24,64000000,-;NVRM: Xid (PCI:0000:86:00\n";

    fn gpu(address: &str) -> GpuFacts {
        GpuFacts { pci_address: Some(address.to_owned()), ..GpuFacts::default() }
    }

    fn with_log(log: &str) -> (tempfile::TempDir, [GpuFacts; 3]) {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("dev")).expect("a folder");
        std::fs::write(folder.path().join("dev/kmsg"), log).expect("written");
        (folder, [gpu("0000:3b:00.0"), gpu("0000:86:00.0"), gpu("0000:af:00.0")])
    }

    #[test]
    fn errors_are_counted_by_gpu_and_number() {
        let (folder, mut gpus) = with_log(LOG);
        add_xids(folder.path(), &mut gpus).expect("a log");
        let found = gpus[0].xids.as_ref().expect("read");
        let counts: Vec<_> = found.iter().map(|seen| (seen.xid, seen.count)).collect();
        assert_eq!(counts, [(74, 2), (79, 1)]);
        assert_eq!((found[0].last_seconds_after_boot, found[0].message.as_str()), (63, "again"));
        assert_eq!(gpus[1].xids.as_ref().map(Vec::len), Some(1));
        assert_eq!(gpus[2].xids, Some(Vec::new()));
    }

    #[test]
    fn an_unreadable_log_is_not_a_log_without_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut gpus = [gpu("0000:3b:00.0")];
        let why = add_xids(folder.path(), &mut gpus).expect_err("no log");
        assert!(why.contains("kmsg"), "{why}");
        assert_eq!(gpus[0].xids, None);
    }
}
