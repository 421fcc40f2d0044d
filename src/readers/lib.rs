//! Parses text of other programs into values. Pure: bytes in, values and problems out.
//!
//! [`claims`] reads the claims of schedulers and operators about the fabric and compares them;
//! [`outputs`] reads the output of tools; [`probe_catalog`] reads probe files.

#![forbid(unsafe_code)]

pub mod claims;
pub mod outputs;
pub mod probe_catalog;
