//! The segments that a site's jobs request, checked at every input.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The segments that a site's jobs request: nodes of a segment, and the share of nodes that
/// such jobs use. Shares are weights and need not sum to one, so percentages and node-hours
/// work as well. An empty mix means that the mix is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct SegmentMix(pub BTreeMap<u32, f64>);

/// Why a mix is not valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SegmentMixError {
    /// It is empty.
    #[error("no segment is named, expected SEGMENT=SHARE, such as 16=0.6,1=0.4")]
    Empty,
    /// A part cannot be parsed.
    #[error("{0:?}: expected SEGMENT=SHARE, such as 16=0.6")]
    Entry(String),
    /// A segment that is not a number of nodes.
    #[error("segment {0:?}: expected a number of nodes, 1 or more")]
    Segment(String),
    /// A share that is not a number above 0.
    #[error("segment {segment}: share {share}, expected a number above 0")]
    Share {
        /// The segment.
        segment: u32,
        /// Its share as written.
        share: String,
    },
    /// A repeated segment.
    #[error("duplicate segment {0}")]
    Twice(u32),
    /// Shares whose sum is not finite.
    #[error("the shares are too large to be added")]
    TooLarge,
}

impl SegmentMix {
    /// Reads `16=0.6,8=0.3,1=0.1`.
    pub fn parse(text: &str) -> Result<Self, SegmentMixError> {
        let mut shares = BTreeMap::new();
        for entry in text.split(',').map(str::trim) {
            if entry.is_empty() {
                let error = SegmentMixError::Entry(entry.to_owned());
                return Err(if text.trim().is_empty() { SegmentMixError::Empty } else { error });
            }
            let Some((segment, share)) = entry.split_once('=') else {
                return Err(SegmentMixError::Entry(entry.to_owned()));
            };
            let segment = read_segment(segment.trim())?;
            let share = share.trim();
            let number = share.parse().map_err(|_| {
                let share = share.to_owned();
                SegmentMixError::Share { segment, share }
            })?;
            if shares.insert(segment, number).is_some() {
                return Err(SegmentMixError::Twice(segment));
            }
        }
        let mix = Self(shares);
        mix.check()?;
        Ok(mix)
    }

    /// Checks that the mix can be used in calculations: segments of one node or more, positive
    /// shares, a finite sum. An empty mix passes, because an unknown mix is not an error.
    pub fn check(&self) -> Result<(), SegmentMixError> {
        for (segment, share) in &self.0 {
            if *segment == 0 {
                return Err(SegmentMixError::Segment("0".to_owned()));
            }
            if !share.is_finite() || *share <= 0.0 {
                return Err(SegmentMixError::Share { segment: *segment, share: share.to_string() });
            }
        }
        if self.total().is_finite() { Ok(()) } else { Err(SegmentMixError::TooLarge) }
    }

    /// The sum of all shares.
    pub fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// Every segment with its share of the whole; these shares sum to one.
    pub fn shares(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        let total = self.total();
        self.0.iter().map(move |(segment, share)| (*segment, share / total))
    }

    /// The mean of a function over the mix; NaN for an empty mix.
    pub fn mean(&self, of: impl Fn(u32) -> f64) -> f64 {
        if self.0.is_empty() || self.check().is_err() {
            return f64::NAN;
        }
        self.shares().map(|(segment, share)| share * of(segment)).sum()
    }
}

fn read_segment(text: &str) -> Result<u32, SegmentMixError> {
    let segment = text.parse().ok().filter(|segment| 0 < *segment);
    segment.ok_or_else(|| SegmentMixError::Segment(text.to_owned()))
}

/// Keys are strings in TOML and JSON; an invalid mix is refused when it is read.
impl<'de> Deserialize<'de> for SegmentMix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = BTreeMap::<String, f64>::deserialize(deserializer)?;
        let mut shares = BTreeMap::new();
        for (word, share) in written {
            let segment = read_segment(&word).map_err(D::Error::custom)?;
            if shares.insert(segment, share).is_some() {
                return Err(D::Error::custom(SegmentMixError::Twice(segment)));
            }
        }
        let mix = Self(shares);
        mix.check().map_err(D::Error::custom)?;
        Ok(mix)
    }
}
