//! Our own GPU probes against libraries of our own, which answer as a driver
//! does on a machine that a test describes. Nothing here needs a GPU, and
//! nothing here shows that a real one is measured well.

#[path = "gpu/across.rs"]
mod across;

#[path = "gpu/broken.rs"]
mod broken;

#[path = "gpu/collective.rs"]
mod collective;

#[path = "gpu/copy.rs"]
mod copy;

#[path = "gpu/copy_probe.rs"]
mod copy_probe;

#[path = "gpu/driver.rs"]
mod driver;

#[path = "gpu/ended.rs"]
mod ended;

#[path = "gpu/faults.rs"]
mod faults;

#[path = "gpu/nvml.rs"]
mod nvml;

#[path = "gpu/old_driver.rs"]
mod old_driver;

#[path = "gpu/probe.rs"]
mod probe;

#[path = "gpu/program.rs"]
mod program;

#[path = "gpu/stub.rs"]
mod stub;

#[path = "gpu/sweep.rs"]
mod sweep;

#[path = "gpu/symbols.rs"]
mod symbols;

#[path = "gpu/talking.rs"]
mod talking;

#[path = "gpu/time.rs"]
mod time;
