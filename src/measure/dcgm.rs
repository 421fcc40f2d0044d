//! Stub.

use super::Confidence;
use super::Input;
use crate::model::parsed::Parsed;

/// Stub.
pub fn recognises(_input: &Input<'_>) -> Confidence {
    0
}

/// Stub.
pub fn parse(_input: &Input<'_>) -> Parsed {
    Parsed::default()
}
