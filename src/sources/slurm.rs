//! Asks Slurm's controller through `scontrol` and `sinfo`.

use std::time::Duration;

use crate::model::said::Said;

/// How the controller is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slurm {
    /// The program `scontrol`, with words in front where it is reached through
    /// something (`["ssh", "head", "scontrol"]`).
    pub scontrol: Vec<String>,
    /// The program `sinfo`, likewise.
    pub sinfo: Vec<String>,
    /// How long one question may take.
    pub limit: Duration,
}

impl Default for Slurm {
    fn default() -> Self {
        // Slurm's own MessageTimeout is 10 s: shorter, and an answer that is on
        // its way is taken for none.
        Self {
            scontrol: vec!["scontrol".to_owned()],
            sinfo: vec!["sinfo".to_owned()],
            limit: Duration::from_secs(15),
        }
    }
}

/// Asks for topology, nodes, partitions and configuration.
pub async fn ask(slurm: &Slurm) -> Vec<Said> {
    let _ = slurm;
    Vec::new()
}
