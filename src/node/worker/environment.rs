//! What a worker tells about its machine. What cannot be read is left out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;

use super::setup::Setup;
use crate::exec;
use crate::exec::Request;
use crate::exec::Setting;
use crate::exec::lookup;
use model::worker::Environment;

/// How long the driver's tool may take. Without persistence mode it brings up
/// every GPU first, which takes seconds.
const DRIVER_TOOL: Duration = Duration::from_secs(15);

/// Bytes of its answer that are kept.
const DRIVER_ANSWER: usize = 1 << 18;

/// Reads what this machine is.
pub(super) async fn read(setup: &Setup) -> Environment {
    let kernel = |file: &str| text(&setup.proc.join("sys/kernel").join(file));
    Environment {
        hostname: kernel("hostname").unwrap_or_default(),
        kernel: kernel("osrelease"),
        boot_id: kernel("random/boot_id"),
        driver: text(&setup.proc.join("driver/nvidia/version")).and_then(|it| driver(&it)),
        load: load(setup),
        cpus: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()),
        interfaces: interfaces(),
        gpus: gpus(setup).await,
    }
}

/// Load average over a minute.
pub(super) fn load(setup: &Setup) -> Option<f64> {
    text(&setup.proc.join("loadavg"))?.split(' ').next()?.parse().ok()
}

/// One line per GPU; none where the driver's tool is not there or fails.
pub(super) async fn gpus(setup: &Setup) -> Vec<String> {
    let query = [
        "--query-gpu=index,uuid,clocks.sm,clocks.mem,temperature.gpu,power.draw,vbios_version",
        "--format=csv,noheader",
    ];
    let answer = nvidia_smi(setup, &query).await.unwrap_or_default();
    let lines = answer.lines().map(str::trim);
    // With a missing device it says so in a sentence, and ends well.
    let is_gpu = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit()) && line.contains(',');
    lines.filter(is_gpu).map(str::to_owned).collect()
}

/// What `nvidia-smi` prints; `None` where it is not there or does not end well.
pub(super) async fn nvidia_smi(setup: &Setup, arguments: &[&str]) -> Option<String> {
    lookup::find("nvidia-smi", None)?;
    let words = std::iter::once("nvidia-smi").chain(arguments.iter().copied());
    let request = Request {
        argv: words.map(str::to_owned).collect(),
        limit: DRIVER_TOOL,
        capture: DRIVER_ANSWER,
    };
    let setting = Setting { guard: Some(setup.executable.clone()), ..Setting::default() };
    let (_keep, stop) = watch::channel(false);
    let finished = exec::watched(&request, &setting, stop, &mut |_| {}).await.ok()?;
    let text = String::from_utf8_lossy(&finished.stdout.bytes).into_owned();
    finished.ending.is_success().then_some(text)
}

/// Addresses by network device, without loopback.
fn interfaces() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for interface in if_addrs::get_if_addrs().unwrap_or_default() {
        if !interface.is_loopback() {
            let address = interface.ip().to_string();
            found.entry(interface.name).or_default().push(address);
        }
    }
    // IPv4 first: `10.` sorts before `fd`, and `:` after no digit.
    for addresses in found.values_mut() {
        addresses.sort_by_key(|address| (address.contains(':'), address.clone()));
        addresses.dedup();
    }
    found
}

/// The version in the driver's own words: `NVRM version: NVIDIA UNIX x86_64
/// Kernel Module  570.86.15  Tue ...`.
fn driver(words: &str) -> Option<String> {
    let line = words.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_ascii_whitespace().find(is_version).map(str::to_owned)
}

/// A small file, trimmed.
fn text(path: &Path) -> Option<String> {
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
        assert_eq!(driver(closed).as_deref(), Some("535.104.05"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release\n";
        assert_eq!(driver(open).as_deref(), Some("570.86.15"));
        assert_eq!(driver("GCC version: 11.4.0"), None);
    }

    #[test]
    fn loopback_is_no_way_to_another_node() {
        for (device, addresses) in interfaces() {
            assert_ne!(device, "lo");
            assert!(!addresses.is_empty());
            assert!(!addresses.iter().any(|address| address.starts_with("127.")), "{addresses:?}");
        }
    }
}
