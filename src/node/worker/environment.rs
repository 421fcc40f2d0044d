//! The worker's report about its machine. Unreadable facts are omitted.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;

use super::WorkerSetup;
use crate::exec;
use crate::exec::{ProcessContext, ProcessRequest, executable};
use model::worker_protocol::MachineEnvironment;

/// Time limit of `nvidia-smi`. Without persistence mode it initializes every GPU first, which takes
/// seconds.
const NVIDIA_SMI_TIMEOUT: Duration = Duration::from_secs(15);

/// Bytes of its output to keep.
const NVIDIA_SMI_MAX_BYTES: usize = 1 << 18;

/// Reads the facts about this machine.
pub(super) async fn read_environment(setup: &WorkerSetup) -> MachineEnvironment {
    let kernel = |file: &str| read_trimmed(&setup.proc.join("sys/kernel").join(file));
    MachineEnvironment {
        hostname: kernel("hostname").unwrap_or_default(),
        kernel: kernel("osrelease"),
        boot_id: kernel("random/boot_id"),
        driver: read_trimmed(&setup.proc.join("driver/nvidia/version"))
            .and_then(|it| parse_driver_version(&it)),
        load: read_load(setup),
        cpus: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()),
        interfaces: list_addresses(),
        gpus: list_gpus(setup).await,
    }
}

/// Load average over one minute.
pub(super) fn read_load(setup: &WorkerSetup) -> Option<f64> {
    read_trimmed(&setup.proc.join("loadavg"))?.split(' ').next()?.parse().ok()
}

/// One line per GPU; empty if `nvidia-smi` is missing or fails.
pub(super) async fn list_gpus(setup: &WorkerSetup) -> Vec<String> {
    let query = [
        "--query-gpu=index,uuid,clocks.sm,clocks.mem,temperature.gpu,power.draw,vbios_version",
        "--format=csv,noheader",
    ];
    let answer = run_nvidia_smi(setup, &query).await.unwrap_or_default();
    let lines = answer.lines().map(str::trim);
    // With a missing device it prints a sentence, and still exits with code 0.
    let is_gpu = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit()) && line.contains(',');
    lines.filter(is_gpu).map(str::to_owned).collect()
}

/// Output of `nvidia-smi`; `None` if it is missing or fails.
pub(super) async fn run_nvidia_smi(setup: &WorkerSetup, arguments: &[&str]) -> Option<String> {
    executable::find_program("nvidia-smi", None)?;
    let words = std::iter::once("nvidia-smi").chain(arguments.iter().copied());
    let request = ProcessRequest {
        argv: words.map(str::to_owned).collect(),
        limit: NVIDIA_SMI_TIMEOUT,
        capture: NVIDIA_SMI_MAX_BYTES,
    };
    let setting =
        ProcessContext { guard: Some(setup.executable.clone()), ..ProcessContext::default() };
    let (_keep, stop) = watch::channel(false);
    let finished = exec::run_observed(&request, &setting, stop, &mut |_| {}).await.ok()?;
    let text = String::from_utf8_lossy(&finished.stdout.bytes).into_owned();
    finished.ending.is_success().then_some(text)
}

/// Addresses by network device, without loopback.
fn list_addresses() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for interface in if_addrs::get_if_addrs().unwrap_or_default() {
        if !interface.is_loopback() {
            let address = interface.ip().to_string();
            found.entry(interface.name).or_default().push(address);
        }
    }
    // IPv4 first: `10.` sorts before `fd`, and `:` after every digit.
    for addresses in found.values_mut() {
        addresses.sort_by_key(|address| (address.contains(':'), address.clone()));
        addresses.dedup();
    }
    found
}

/// The version in the driver's text: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15
/// Tue ...`.
fn parse_driver_version(words: &str) -> Option<String> {
    let line = words.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_ascii_whitespace().find(is_version).map(str::to_owned)
}

/// The trimmed contents of a small file.
fn read_trimmed(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_is_found_in_both_layouts() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n\
            GCC version:  gcc version 11.4.0\n";
        assert_eq!(parse_driver_version(closed).as_deref(), Some("535.104.05"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release\n";
        assert_eq!(parse_driver_version(open).as_deref(), Some("570.86.15"));
        assert_eq!(parse_driver_version("GCC version: 11.4.0"), None);
    }

    #[test]
    fn loopback_addresses_are_omitted() {
        for (device, addresses) in list_addresses() {
            assert_ne!(device, "lo");
            assert!(!addresses.is_empty());
            assert!(!addresses.iter().any(|address| address.starts_with("127.")), "{addresses:?}");
        }
    }
}
