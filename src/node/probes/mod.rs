//! Native probes: `tcp`, `copy`, `fabric` and `collective` need no external tool.
//!
//! A probe is a TOML file. Files in `probes/` are compiled in; a site adds its own. `launch` and
//! `exec` run them, on a node under the control of `worker`.

pub mod collective;
pub mod copy;
pub mod driver_error;
pub mod exchange_group;
pub mod fabric;
pub mod protocol;
pub mod supervisor;
pub mod task;
pub mod tcp;
