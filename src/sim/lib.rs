//! A simulated fabric that answers like the real tools.
//!
//! Three separate layers: A [`scenario`] defines the real hardware, its faults, and the claims.
//! [`fabric`] is the physics: how fast data moves from one GPU to another, with [`network`] for
//! traffic between nodes. [`invocation`] derives from the physics the numbers that each tool would
//! measure, and [`render`] prints them in that tool's format, so that parsers and judge are tested
//! through the same interface as with real data. [`tool_dispatch`] parses the tools' arguments. No
//! layer reads a clock or a file: the command line does that, and a seed determines all noise. Only
//! [`tcp`] opens ports, so that the caller of a simulated server can see it listen.

#![forbid(unsafe_code)]

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
pub mod recorded_files;
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
