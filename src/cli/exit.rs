//! The documented exit codes, and nothing else.

/// Everything that had to be measured was, and is as expected.
pub const PASS: u8 = 0;
/// A bug, or something nobody foresaw.
pub const INTERNAL: u8 = 1;
/// The command line, a configuration or a claim is wrong.
pub const USAGE: u8 = 2;
/// The gate is closed: something is degraded or failed.
pub const GATE_CLOSED: u8 = 3;
/// Inconclusive: something is unknown, nothing worse.
pub const INCONCLUSIVE: u8 = 4;
/// A scheduler, tool, node or file cannot be reached.
pub const ENVIRONMENT: u8 = 5;
/// An action was refused by a budget, or only partly carried out.
pub const ACTION_REFUSED: u8 = 6;
