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

pub mod cases;
pub mod client_server;
pub mod collective;
pub mod fabric;
pub mod fault;
pub mod invocation;
pub mod misbehaviour;
pub mod mpirun;
pub mod native_probes;
pub mod network;
pub mod noise;
pub mod nvloom;
pub mod platform;
pub mod recording;
pub mod render;
pub mod scenario;
pub mod scenario_tools;
pub mod source_map;
pub mod tcp;
pub mod tool_config;
pub mod tool_dispatch;
pub mod truth;

pub use misbehaviour::{is_unreachable, refuse_worker};

#[cfg(test)]
mod render_tests;
#[cfg(test)]
mod tests;
