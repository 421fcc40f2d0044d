//! A simulated fabric that answers as the real tools do.
//!
//! Three layers, apart on purpose. A [`scenario`] says what the hardware
//! really is, what is wrong with it, and what is claimed. [`fabric`] is the
//! physics: how fast data moves from one GPU to another, with [`network`] for
//! what leaves a node. [`bench`] asks the physics what each tool would measure,
//! and [`render`] prints it in that tool's own format, so that parsers and
//! judge are tested through the same door as real data. [`tool`] understands
//! the tools' arguments. Nothing here reads a clock or a file: the command line
//! does, and a seed decides all noise. Only [`tcp`] opens ports, so that
//! whoever starts a simulated server can see it listen.

pub mod bench;
pub mod cases;
pub mod collective;
pub mod fabric;
pub mod fault;
pub mod lines;
pub mod loom;
pub mod mpi;
pub mod network;
pub mod noise;
pub mod own;
pub mod pair;
pub mod platform;
pub mod record;
pub mod render;
pub mod scenario;
pub mod scenario_tools;
pub mod tcp;
pub mod tool;
pub mod tooling;
pub mod truth;
pub mod unwell;

pub use unwell::is_unreachable;
pub use unwell::refuse_worker;

#[cfg(test)]
mod printed_tests;
#[cfg(test)]
mod tests;
