//! What can be run: the catalog of probes.
//!
//! A probe is a TOML file. Those of `probes/` are compiled in; a site adds its
//! own. Running them is the work of `launch` and `exec`; on a node `worker`
//! does it, and `tcp` is a probe that needs no tool at all.

pub mod catalog;
pub mod tcp;
pub mod worker;
