//! The profiles: which stages a sweep has.
//!
//! Names and stages only. The plan decides what runs in a stage.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A profile of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Checks before a node may take its first job.
    Admit,
    /// All checks, for a newly built or repaired machine.
    BurnIn,
    /// All checks, repeated at long intervals.
    Recertify,
    /// Cheap checks, repeated often on idle nodes.
    Audit,
}

impl Profile {
    /// All profiles, in the order of a node's lifecycle.
    pub const ALL: &[Self] = &[Self::Admit, Self::BurnIn, Self::Recertify, Self::Audit];

    /// The name in documents and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::BurnIn => "burn-in",
            Self::Recertify => "recertify",
            Self::Audit => "audit",
        }
    }

    /// The profile with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|profile| profile.as_str() == name)
    }

    /// The stages that are planned before anything runs. Stage 3 is planned only if there are
    /// suspects.
    pub fn stages(self) -> &'static [u8] {
        match self {
            Self::Audit => &[0, 1, 2],
            Self::Admit => &[0, 1, 2, 4],
            Self::BurnIn | Self::Recertify => &[0, 1, 2, 4, 5],
        }
    }

    /// Whether a stage is planned under this profile.
    pub fn has_stage(self, stage: u8) -> bool {
        self.stages().contains(&stage)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_found_by_the_name_it_shows() {
        for profile in Profile::ALL {
            assert_eq!(Profile::parse(profile.as_str()), Some(*profile));
            let document = serde_json::to_string(profile).expect("a word");
            assert_eq!(document, format!("{:?}", profile.as_str()));
        }
        assert_eq!(Profile::parse("confirm"), None);
    }
}
