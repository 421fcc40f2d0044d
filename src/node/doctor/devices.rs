//! Driver, devices and limits of this machine.

use std::path::Path;

use rustix::fs::Access;
use rustix::process::Resource;

use super::Look;
use super::answer;
use crate::exec::files;
use crate::exec::lookup;
use model::checkup::Area;
use model::checkup::Check;

/// Open files that a coordinator of a large fleet needs: three pipes to each
/// of a thousand workers, and room.
const OPEN_FILES: u64 = 4_096;

/// Where a loaded driver says what it is.
const VERSION: &str = "proc/driver/nvidia/version";

/// Whether a driver is there, or a library is named that stands for one.
pub(super) fn has_driver(look: &Look<'_>) -> bool {
    let is_named = look.libraries.as_ref().is_some_and(|libraries| libraries.cuda.is_some());
    is_named || look.root.join(VERSION).exists()
}

/// The driver: loaded, with GPUs, and open to this user.
pub(super) async fn driver(look: &Look<'_>) -> Vec<Check> {
    let version = std::fs::read_to_string(look.root.join(VERSION));
    let Ok(version) = version else {
        let remedy = "load the NVIDIA driver (modprobe nvidia), or run this on a node with GPUs";
        let check = Check::lacks(Area::Driver, "NVIDIA driver", "is not loaded", remedy);
        return vec![check.needed()];
    };
    let version = version.lines().next().unwrap_or_default().trim().to_owned();
    let mut checks = vec![Check::has(Area::Driver, "NVIDIA driver", version).needed()];
    checks.push(device(look, Area::Driver, "dev/nvidiactl", "the driver's device files").needed());
    if lookup::find("nvidia-smi", Some(&look.path)).is_some() {
        checks.push(gpus(answer(&["nvidia-smi", "-L"]).await).needed());
    }
    checks
}

fn gpus(answer: Result<String, String>) -> Check {
    let what = "GPUs";
    match answer {
        Ok(list) => {
            let gpus = list.lines().filter(|line| line.starts_with("GPU ")).count();
            if gpus == 0 {
                let remedy = "look at `nvidia-smi` and the kernel log: the driver shows no GPU";
                return Check::lacks(Area::Driver, what, "the driver shows none", remedy);
            }
            Check::has(Area::Driver, what, format!("the driver shows {gpus}"))
        }
        Err(why) => {
            let remedy = "look at the kernel log for Xid and driver errors";
            Check::lacks(Area::Driver, what, why, remedy)
        }
    }
}

/// IMEX: its configuration and a channel that this user can open.
pub(super) fn imex(look: &Look<'_>) -> Vec<Check> {
    let nodes = look.root.join("etc/nvidia-imex/nodes_config.cfg");
    let Ok(text) = std::fs::read_to_string(&nodes) else {
        let text = "has no nodes_config.cfg; only multi-node NVLink needs it";
        return vec![Check::unknown(Area::Imex, "IMEX domain", text)];
    };
    let peers =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let peers = peers.count();
    let domain = if peers == 0 {
        let remedy = "put the addresses of all nodes of the NVLink domain into nodes_config.cfg";
        Check::lacks(Area::Imex, "IMEX domain", "nodes_config.cfg names no node", remedy)
    } else {
        Check::has(Area::Imex, "IMEX domain", format!("nodes_config.cfg names {peers} nodes"))
    };
    let channel = "dev/nvidia-caps-imex-channels/channel0";
    let made =
        "a channel: create it (nvidia-modprobe -c 0) or let Slurm's or Kubernetes' plugin do so";
    vec![domain, device(look, Area::Imex, channel, made)]
}

/// RDMA devices, and the memory that may be locked for them.
pub(super) fn rdma(look: &Look<'_>) -> Vec<Check> {
    let ports = std::fs::read_dir(look.root.join("sys/class/infiniband"));
    let mut names: Vec<String> = ports
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    names.sort();
    if names.is_empty() {
        let text = "none; probes over RDMA cannot run here, TCP can";
        return vec![Check::unknown(Area::Network, "RDMA devices", text)];
    }
    let mut checks = vec![Check::has(Area::Network, "RDMA devices", names.join(", "))];
    checks.push(device(look, Area::Network, "dev/infiniband/uverbs0", "the devices of rdma-core"));
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    checks.push(match limit {
        None => Check::has(Area::Network, "locked memory", "unlimited"),
        Some(bytes) => Check::lacks(
            Area::Network,
            "locked memory",
            format!("limited to {} KiB", bytes / 1024),
            "raise the limit (memlock unlimited in limits.conf, LimitMEMLOCK=infinity in units)",
        ),
    });
    checks
}

/// Limits of this process.
pub(super) fn limits() -> Vec<Check> {
    let what = "open files";
    let room = || format!("has room for {} workers", files::most().unwrap_or_default());
    // Of the hard limit: a sweep raises the other one by itself.
    vec![match rustix::process::getrlimit(Resource::Nofile).maximum {
        Some(most) if most < OPEN_FILES => Check::lacks(
            Area::Machine,
            what,
            format!("limited to {most}, which {}", room()),
            format!("raise the hard limit (ulimit -Hn {OPEN_FILES})"),
        ),
        Some(most) => Check::has(Area::Machine, what, format!("up to {most}, which {}", room())),
        None => Check::has(Area::Machine, what, "unlimited"),
    }]
}

/// A device that this user must be able to open for reading and writing.
fn device(look: &Look<'_>, area: Area, name: &str, comes_from: &str) -> Check {
    let file = look.root.join(name);
    let shown = Path::new("/").join(name).display().to_string();
    if !file.exists() {
        let remedy = format!("needs {comes_from}");
        return Check::lacks(area, shown, "is not there", remedy);
    }
    match rustix::fs::access(&file, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Check::has(area, shown, "can be opened"),
        Err(error) => {
            let remedy = "run as root, or give this user's group access to it";
            Check::lacks(area, shown, format!("cannot be opened: {error}"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use model::checkup::State;

    fn put(root: &Path, name: &str, text: &str) {
        let file: PathBuf = root.join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        std::fs::write(file, text).expect("written");
    }

    #[tokio::test]
    async fn a_machine_without_a_driver_is_told_so_once() {
        let root = tempfile::tempdir().expect("a folder");
        let checks = driver(&Look::only(root.path())).await;
        let [check] = checks.as_slice() else { panic!("{checks:?}") };
        assert_eq!((check.state, check.needed), (State::Lacks, true));
    }

    #[tokio::test]
    async fn a_driver_without_its_devices_cannot_be_used() {
        let root = tempfile::tempdir().expect("a folder");
        put(root.path(), "proc/driver/nvidia/version", "NVRM version: 580.1\nGCC\n");
        let checks = driver(&Look::only(root.path())).await;
        let states: Vec<State> = checks.iter().map(|check| check.state).collect();
        assert_eq!(states, [State::Has, State::Lacks]);
        assert_eq!(checks[0].detail, "NVRM version: 580.1");
        put(root.path(), "dev/nvidiactl", "");
        assert_eq!(driver(&Look::only(root.path())).await[1].state, State::Has);
    }

    #[test]
    fn a_driver_that_shows_no_gpu_or_does_not_answer_lacks_gpus() {
        assert_eq!(gpus(Ok("GPU 0: x\nGPU 1: y\n".to_owned())).detail, "the driver shows 2");
        assert_eq!(gpus(Ok("No devices were found\n".to_owned())).state, State::Lacks);
        let silent = gpus(Err("gave no answer in 15 s".to_owned()));
        assert_eq!(
            (silent.state, silent.detail.as_str()),
            (State::Lacks, "gave no answer in 15 s")
        );
    }

    #[test]
    fn imex_is_unknown_where_it_is_not_configured() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(imex(&Look::only(root.path()))[0].state, State::Unknown);
        put(root.path(), "etc/nvidia-imex/nodes_config.cfg", "# none\n\n");
        assert_eq!(imex(&Look::only(root.path()))[0].state, State::Lacks);
        put(root.path(), "etc/nvidia-imex/nodes_config.cfg", "10.0.0.1\n10.0.0.2\n");
        let checks = imex(&Look::only(root.path()));
        assert_eq!(checks[0].detail, "nodes_config.cfg names 2 nodes");
        assert_eq!(checks[1].state, State::Lacks, "there is no channel");
    }

    #[test]
    fn rdma_devices_are_named_and_their_access_is_tried() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(rdma(&Look::only(root.path()))[0].state, State::Unknown);
        put(root.path(), "sys/class/infiniband/mlx5_1/x", "");
        put(root.path(), "sys/class/infiniband/mlx5_0/x", "");
        let checks = rdma(&Look::only(root.path()));
        assert_eq!(checks[0].detail, "mlx5_0, mlx5_1");
        assert_eq!(checks[1].state, State::Lacks);
    }
}
