//! Our own GPU probes against libraries of our own, which answer as a driver
//! does on a machine that a test describes. Nothing here needs a GPU, and
//! nothing here shows that a real one is measured well.

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
