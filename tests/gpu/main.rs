//! The native GPU probes against stub libraries, which answer as a driver does on a machine that
//! a test describes. These tests need no GPU, and do not show that a real one is measured well.

mod across;
mod broken;
mod collective;
mod copy;
mod copy_probe;
mod driver;
mod ended;
mod faults;
mod nvml;
mod old_driver;
mod probe;
mod program;
mod stub;
mod sweep;
mod symbols;
mod talking;
mod time;

use std::fs;
use std::path::{Path, PathBuf};

/// Makes the driver's kernel module look loaded on the machine with this root.
fn load_module(root: &Path) {
    let folder = root.join("proc/driver/nvidia");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("version"), "NVRM version: 580.95.05\n").expect("written");
}

/// A root that has only the driver's kernel module.
fn root_with_module() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("root-with-module");
    load_module(&root);
    root
}
