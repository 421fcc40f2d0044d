//! What can be run: the catalog of probes.
//!
//! A probe is a TOML file. Those of `probes/` are compiled in; a site adds its
//! own. Running them is the work of `launch` and `exec`.

pub mod catalog;
