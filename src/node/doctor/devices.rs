//! Checks of the driver, the device files and the limits of this machine.

use std::path::Path;

use rustix::fs::Access;
use rustix::process::Resource;

use super::{CheckupContext, query_program};
use crate::exec::{executable, open_file_limit};
use crate::facts;
use model::checkup::{CheckupArea, CheckupItem};

/// Open files that the coordinator of a large fleet needs: three pipes for each of a thousand
/// workers, with headroom.
const OPEN_FILES: u64 = 4_096;

/// True if a driver is loaded, or if an option names a library that replaces it.
pub(super) fn has_driver(context: &CheckupContext<'_>) -> bool {
    let is_named = context.libraries.as_ref().is_some_and(|libraries| libraries.cuda.is_some());
    is_named || facts::is_driver_loaded(&context.root)
}

/// Checks that the driver is loaded, finds GPUs, and is accessible to this user.
pub(super) async fn check_driver(context: &CheckupContext<'_>) -> Vec<CheckupItem> {
    let version = std::fs::read_to_string(context.root.join(facts::DRIVER_VERSION_FILE));
    let Ok(version) = version else {
        let remedy = "load the NVIDIA driver (modprobe nvidia), or run this on a node with GPUs";
        let check =
            CheckupItem::missing(CheckupArea::Driver, "NVIDIA driver", "is not loaded", remedy);
        return vec![check.mark_needed()];
    };
    let version = version.lines().next().unwrap_or_default().trim().to_owned();
    let mut checks =
        vec![CheckupItem::available(CheckupArea::Driver, "NVIDIA driver", version).mark_needed()];
    checks.push(
        check_device(context, CheckupArea::Driver, "dev/nvidiactl", "the driver's device files")
            .mark_needed(),
    );
    if executable::find_program("nvidia-smi", Some(&context.path)).is_some() {
        checks.push(check_gpu_list(query_program(&["nvidia-smi", "-L"]).await).mark_needed());
    }
    checks
}

fn check_gpu_list(answer: Result<String, String>) -> CheckupItem {
    let what = "GPUs";
    match answer {
        Ok(list) => {
            let gpus = list.lines().filter(|line| line.starts_with("GPU ")).count();
            if gpus == 0 {
                let remedy = "check `nvidia-smi` and the kernel log: the driver reports no GPU";
                return CheckupItem::missing(
                    CheckupArea::Driver,
                    what,
                    "the driver reports none",
                    remedy,
                );
            }
            CheckupItem::available(CheckupArea::Driver, what, format!("the driver reports {gpus}"))
        }
        Err(why) => {
            let remedy = "check the kernel log for Xid and driver errors";
            CheckupItem::missing(CheckupArea::Driver, what, why, remedy)
        }
    }
}

/// Checks the IMEX configuration and a channel that this user can open.
pub(super) fn check_imex(context: &CheckupContext<'_>) -> Vec<CheckupItem> {
    let nodes = context.root.join("etc/nvidia-imex/nodes_config.cfg");
    let Ok(text) = std::fs::read_to_string(&nodes) else {
        let text = "has no nodes_config.cfg; only multi-node NVLink needs it";
        return vec![CheckupItem::unknown(CheckupArea::Imex, "IMEX domain", text)];
    };
    let peers =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let peers = peers.count();
    let domain = if peers == 0 {
        let remedy = "put the addresses of all nodes of the NVLink domain into nodes_config.cfg";
        CheckupItem::missing(
            CheckupArea::Imex,
            "IMEX domain",
            "nodes_config.cfg names no node",
            remedy,
        )
    } else {
        CheckupItem::available(
            CheckupArea::Imex,
            "IMEX domain",
            format!("nodes_config.cfg names {peers} nodes"),
        )
    };
    let channel = "dev/nvidia-caps-imex-channels/channel0";
    let made =
        "a channel: create it (nvidia-modprobe -c 0) or let Slurm's or Kubernetes' plugin do so";
    vec![domain, check_device(context, CheckupArea::Imex, channel, made)]
}

/// Checks for RDMA devices and for the locked-memory limit that they depend on.
pub(super) fn check_rdma(context: &CheckupContext<'_>) -> Vec<CheckupItem> {
    let ports = std::fs::read_dir(context.root.join("sys/class/infiniband"));
    let mut names: Vec<String> = ports
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    names.sort();
    if names.is_empty() {
        let text = "none; RDMA probes cannot run here, TCP probes can";
        return vec![CheckupItem::unknown(CheckupArea::Network, "RDMA devices", text)];
    }
    let mut checks =
        vec![CheckupItem::available(CheckupArea::Network, "RDMA devices", names.join(", "))];
    checks.push(check_device(
        context,
        CheckupArea::Network,
        "dev/infiniband/uverbs0",
        "the devices of rdma-core",
    ));
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    checks.push(match limit {
        None => CheckupItem::available(CheckupArea::Network, "locked memory", "unlimited"),
        Some(bytes) => CheckupItem::missing(
            CheckupArea::Network,
            "locked memory",
            format!("limited to {} KiB", bytes / 1024),
            "raise the limit (memlock unlimited in limits.conf, LimitMEMLOCK=infinity in units)",
        ),
    });
    checks
}

pub(super) fn check_limits() -> Vec<CheckupItem> {
    let what = "open files";
    let capacity =
        || format!("enough for {} workers", open_file_limit::max_sessions().unwrap_or_default());
    // Reports the hard limit: a sweep raises the soft limit itself.
    vec![match rustix::process::getrlimit(Resource::Nofile).maximum {
        Some(most) if most < OPEN_FILES => CheckupItem::missing(
            CheckupArea::Machine,
            what,
            format!("limited to {most}, which {}", capacity()),
            format!("raise the hard limit (ulimit -Hn {OPEN_FILES})"),
        ),
        Some(most) => CheckupItem::available(
            CheckupArea::Machine,
            what,
            format!("up to {most}, which {}", capacity()),
        ),
        None => CheckupItem::available(CheckupArea::Machine, what, "unlimited"),
    }]
}

/// Checks a device file that this user must be able to open for reading and writing.
fn check_device(
    context: &CheckupContext<'_>,
    area: CheckupArea,
    name: &str,
    comes_from: &str,
) -> CheckupItem {
    let file = context.root.join(name);
    let shown = Path::new("/").join(name).display().to_string();
    if !file.exists() {
        let remedy = format!("needs {comes_from}");
        return CheckupItem::missing(area, shown, "does not exist", remedy);
    }
    match rustix::fs::access(&file, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => CheckupItem::available(area, shown, "can be opened"),
        Err(error) => {
            let remedy = "run as root, or give this user's group access to it";
            CheckupItem::missing(area, shown, format!("cannot be opened: {error}"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use model::checkup::CheckupState;

    fn write_file(root: &Path, name: &str, text: &str) {
        let file: PathBuf = root.join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        std::fs::write(file, text).expect("written");
    }

    #[tokio::test]
    async fn a_missing_driver_is_reported_once() {
        let root = tempfile::tempdir().expect("a folder");
        let checks = check_driver(&CheckupContext::with_root(root.path())).await;
        let [check] = checks.as_slice() else { panic!("{checks:?}") };
        assert_eq!((check.state, check.needed), (CheckupState::Lacks, true));
    }

    #[tokio::test]
    async fn a_driver_without_its_devices_cannot_be_used() {
        let root = tempfile::tempdir().expect("a folder");
        write_file(root.path(), "proc/driver/nvidia/version", "NVRM version: 580.1\nGCC\n");
        let checks = check_driver(&CheckupContext::with_root(root.path())).await;
        let states: Vec<CheckupState> = checks.iter().map(|check| check.state).collect();
        assert_eq!(states, [CheckupState::Has, CheckupState::Lacks]);
        assert_eq!(checks[0].detail, "NVRM version: 580.1");
        write_file(root.path(), "dev/nvidiactl", "");
        assert_eq!(
            check_driver(&CheckupContext::with_root(root.path())).await[1].state,
            CheckupState::Has
        );
    }

    #[test]
    fn a_driver_that_reports_no_gpu_or_does_not_answer_lacks_gpus() {
        assert_eq!(
            check_gpu_list(Ok("GPU 0: x\nGPU 1: y\n".to_owned())).detail,
            "the driver reports 2"
        );
        assert_eq!(
            check_gpu_list(Ok("No devices were found\n".to_owned())).state,
            CheckupState::Lacks
        );
        let silent = check_gpu_list(Err("gave no answer in 15 s".to_owned()));
        assert_eq!(
            (silent.state, silent.detail.as_str()),
            (CheckupState::Lacks, "gave no answer in 15 s")
        );
    }

    #[test]
    fn imex_is_unknown_where_it_is_not_configured() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(
            check_imex(&CheckupContext::with_root(root.path()))[0].state,
            CheckupState::Unknown
        );
        write_file(root.path(), "etc/nvidia-imex/nodes_config.cfg", "# none\n\n");
        assert_eq!(
            check_imex(&CheckupContext::with_root(root.path()))[0].state,
            CheckupState::Lacks
        );
        write_file(root.path(), "etc/nvidia-imex/nodes_config.cfg", "10.0.0.1\n10.0.0.2\n");
        let checks = check_imex(&CheckupContext::with_root(root.path()));
        assert_eq!(checks[0].detail, "nodes_config.cfg names 2 nodes");
        assert_eq!(checks[1].state, CheckupState::Lacks, "no channel exists");
    }

    #[test]
    fn rdma_devices_are_named_and_their_access_is_tested() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(
            check_rdma(&CheckupContext::with_root(root.path()))[0].state,
            CheckupState::Unknown
        );
        write_file(root.path(), "sys/class/infiniband/mlx5_1/x", "");
        write_file(root.path(), "sys/class/infiniband/mlx5_0/x", "");
        let checks = check_rdma(&CheckupContext::with_root(root.path()));
        assert_eq!(checks[0].detail, "mlx5_0, mlx5_1");
        assert_eq!(checks[1].state, CheckupState::Lacks);
    }
}
