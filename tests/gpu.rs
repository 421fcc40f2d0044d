//! Our own GPU probes against libraries of our own, which answer as a driver
//! does on a machine that a test describes. Nothing here needs a GPU, and
//! nothing here shows that a real one is measured well.

#[path = "gpu/driver.rs"]
mod driver;

#[path = "gpu/faults.rs"]
mod faults;

#[path = "gpu/nvml.rs"]
mod nvml;

#[path = "gpu/old_driver.rs"]
mod old_driver;

#[path = "gpu/stub.rs"]
mod stub;

#[path = "gpu/symbols.rs"]
mod symbols;

#[path = "gpu/time.rs"]
mod time;
