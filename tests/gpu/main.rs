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
