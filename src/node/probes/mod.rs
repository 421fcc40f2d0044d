//! What can be run: the catalog of probes, and the probes of our own.
//!
//! A probe is a TOML file. Those of `probes/` are compiled in; a site adds its
//! own. Running them is the work of `launch` and `exec`; on a node `worker`
//! does it. `tcp`, `copy`, `fabric` and `collective` are probes that need no
//! tool at all.

pub mod collective;
pub mod copy;
pub mod exchange_group;
pub mod fabric;
pub mod protocol;
pub mod supervisor;
pub mod tcp;
