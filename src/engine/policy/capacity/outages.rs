//! The number of nodes of a domain that are out at the same time, and its distribution.

use std::collections::BTreeMap;

use statrs::distribution::{Binomial, Discrete};

use super::SegmentMix;

/// Tolerance for rounded shares, which may miss a sum of one by this much.
const ROUNDING: f64 = 0.02;

/// The probability of every number of nodes that are out at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Outages {
    /// From no node to all nodes; never empty.
    chances: Vec<f64>,
}

/// Why an observation cannot be used for a domain.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OutageSharesError {
    /// It has more nodes out than the domain has.
    #[error("{out} nodes out at the same time, in a domain of {nodes}")]
    TooMany {
        /// Nodes out.
        out: u32,
        /// Nodes in all.
        nodes: u32,
    },
    /// A share outside 0 to 1.
    #[error("{out} nodes out: share {share}, expected 0 to 1")]
    Share {
        /// Nodes out.
        out: u32,
        /// The share of that number.
        share: f64,
    },
    /// A number is missing or repeated.
    #[error("the shares sum to {0}, expected 1: no line may be missing, not even that of 0 out")]
    Sum(f64),
}

impl Outages {
    /// Each node is out with this probability, independently; `None` if it is not a
    /// probability.
    pub fn from_unavailability(nodes: u32, unavailable: f64) -> Option<Self> {
        let binomial = Binomial::new(unavailable, u64::from(nodes)).ok()?;
        Some(Self { chances: (0..=u64::from(nodes)).map(|out| binomial.pmf(out)).collect() })
    }

    /// From a site's observation: nodes out at the same time, and the share of time.
    pub fn from_observation(
        nodes: u32,
        shares: &BTreeMap<u32, f64>,
    ) -> Result<Self, OutageSharesError> {
        for (out, share) in shares {
            if !(0.0..=1.0).contains(share) {
                return Err(OutageSharesError::Share { out: *out, share: *share });
            }
            if nodes < *out && 0.0 < *share {
                return Err(OutageSharesError::TooMany { out: *out, nodes });
            }
        }
        let sum = shares.values().fold(0.0, |sum, share| sum + share);
        if ROUNDING < (sum - 1.0).abs() {
            return Err(OutageSharesError::Sum(sum));
        }
        let chance = |out| shares.get(&out).copied().unwrap_or(0.0) / sum;
        Ok(Self { chances: (0..=nodes).map(chance).collect() })
    }

    /// Nodes in all.
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.chances.len() - 1).expect("made for a number of nodes")
    }

    /// The mean share of nodes that are out, over time.
    pub fn unavailable(&self) -> f64 {
        let nodes = self.nodes();
        if nodes == 0 {
            return 0.0;
        }
        let out: f64 = (0..=nodes).zip(&self.chances).map(|(k, p)| f64::from(k) * p).sum();
        out / f64::from(nodes)
    }

    /// The probability that at least this many nodes are up.
    pub fn at_least_up(&self, up: u32) -> f64 {
        match self.nodes().checked_sub(up) {
            Some(most) => self.chances[..=most as usize].iter().sum::<f64>().min(1.0),
            None => 0.0,
        }
    }

    /// Expected nodes that jobs with segments of this size can use.
    pub fn usable(&self, segment: u32) -> f64 {
        if segment == 0 {
            return f64::NAN;
        }
        let nodes = self.nodes();
        let whole = |out: u32| f64::from((nodes - out) / segment * segment);
        (0..=nodes).zip(&self.chances).map(|(out, chance)| chance * whole(out)).sum()
    }

    /// The same domain with one node less; which node does not matter. Independent nodes stay
    /// independent, exactly.
    pub fn without_one(&self) -> Self {
        let nodes = self.nodes();
        if nodes == 0 {
            return self.clone();
        }
        let all = f64::from(nodes);
        // `out` nodes were out before, and the removed node was up (or was one of those out).
        let chance = |out: u32| {
            let at = out as usize;
            self.chances[at] * (all - f64::from(out)) / all
                + self.chances[at + 1] * f64::from(out + 1) / all
        };
        Self { chances: (0..nodes).map(chance).collect() }
    }

    /// The same domain with this many nodes less, at most all of them.
    pub fn without(&self, nodes: u32) -> Self {
        let fewer = (0..nodes.min(self.nodes()))
            .fold(None, |left: Option<Self>, _| Some(left.as_ref().unwrap_or(self).without_one()));
        fewer.unwrap_or_else(|| self.clone())
    }

    /// The cost of draining one more node to jobs with segments of this size, in expected
    /// nodes.
    pub fn price(&self, segment: u32) -> f64 {
        // Rounding must not give a negative price: a node less never leaves more.
        let price = self.usable(segment) - self.without_one().usable(segment);
        if price < 0.0 { 0.0 } else { price }
    }

    /// The price over a mix of segments.
    pub fn mixed_price(&self, mix: &SegmentMix) -> f64 {
        let fewer = self.without_one();
        let price = mix.mean(|segment| self.usable(segment) - fewer.usable(segment));
        if price < 0.0 { 0.0 } else { price }
    }
}
