//! Text of other programs into values. Pure: bytes in, values and problems out.
//!
//! [`claims`] reads what schedulers and operators claim about the fabric and holds the
//! claims against each other; [`outputs`] reads what tools print; [`probe_catalog`] reads
//! probe files.

#![forbid(unsafe_code)]

pub mod claims;
pub mod outputs;
pub mod probe_catalog;
