//! Who was measured with the node, and whether these partners are fine with others:
//! what tells a bad part from a bad neighbourhood.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use super::BundleCase;
use super::evidence::{EvidenceEnd, NodeEvidence, cell_ends};
use model::measured_cell::MeasuredCell;
use model::stats::median;
use model::verdict::{Finding, Outcome};

/// A partner that has at most this share of low cells with others is fine with them:
/// one reading in 200 of sound parts dips by chance, and few have 20 readings.
const STRAYS: f64 = 0.1;

/// How many readings there are, how many of them are low, and what they come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Tally {
    pub(super) readings: usize,
    pub(super) low: usize,
    /// Of what was expected, or of what others show where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) median_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lowest_ratio: Option<f64>,
    #[serde(skip)]
    ratios: Vec<f64>,
}

impl Tally {
    fn add(&mut self, cell: &MeasuredCell, ratio: Option<f64>) {
        self.readings += 1;
        self.low += usize::from(Outcome::Degraded <= cell.outcome);
        self.ratios.extend(ratio.filter(|it| it.is_finite()));
    }

    fn close(&mut self) {
        self.median_ratio = median(&mut self.ratios);
        self.lowest_ratio = self.ratios.iter().copied().min_by(f64::total_cmp);
        self.ratios = Vec::new();
    }
}

/// What a partner's other readings say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Standing {
    /// It is fine with others: a low reading with this node is not its fault.
    Acquitted,
    /// Something is held against it, so its readings with this node say nothing.
    Accused,
    /// It is low with others as well, and nothing was held against it.
    LowWithOthers,
    /// It was measured with nobody else.
    NotMeasured,
}

impl Standing {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Acquitted => "fine with others",
            Self::Accused => "accused itself",
            Self::LowWithOthers => "low with others too",
            Self::NotMeasured => "not measured with others",
        }
    }
}

/// One partner.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Partner {
    pub(super) node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpu: Option<u32>,
    pub(super) standing: Standing,
    /// With what is blamed here.
    pub(super) with: Tally,
    /// With everybody else.
    pub(super) others: Tally,
}

/// All partners.
#[derive(Clone, Debug)]
pub(super) struct Partners {
    pub(super) each: Vec<Partner>,
    /// Of partners with each other.
    pub(super) among: Tally,
    /// Of what is blamed, with everybody.
    pub(super) suspect: Tally,
    /// The cells behind `among`: indices into the run's.
    pub(super) cells: Vec<usize>,
}

impl Partners {
    /// How many are of this standing.
    pub(super) fn count(&self, standing: Standing) -> usize {
        self.each.iter().filter(|it| it.standing == standing).count()
    }
}

/// What cells of one kind are compared with where nothing is expected of them.
type Kind<'a> = (Option<&'a str>, &'a str, Option<&'a str>);

fn kind(cell: &MeasuredCell) -> Kind<'_> {
    (cell.domain.as_ref().map(|it| it.as_str()), &cell.testcase, cell.rail.as_deref())
}

/// Finds partners, in the tests that convict, or where none does in all tests
/// between two parts.
pub(super) fn partners(case: &BundleCase, sides: &NodeEvidence) -> Partners {
    let cells = &case.run.cells;
    let is_pair =
        |cell: &MeasuredCell| cell_ends(cell).is_some_and(|(a, b)| a != b && is_part(&a, &b));
    let convicting: BTreeSet<&str> = sides
        .convict
        .iter()
        .filter(|at| is_pair(&cells[**at]))
        .map(|at| &*cells[*at].testcase)
        .collect();
    let of_test =
        |cell: &&MeasuredCell| convicting.is_empty() || convicting.contains(&*cell.testcase);
    let blamed = |end: &EvidenceEnd| sides.blames(&case.node, end);
    let pairs: Vec<(usize, &MeasuredCell, EvidenceEnd, EvidenceEnd)> = cells
        .iter()
        .enumerate()
        .filter(|(_, cell)| of_test(cell) && is_pair(cell))
        .filter_map(|(at, cell)| cell_ends(cell).map(|(src, dst)| (at, cell, src, dst)))
        .collect();

    let mut usual: BTreeMap<Kind<'_>, Vec<f64>> = BTreeMap::new();
    let mut met: BTreeSet<&EvidenceEnd> = BTreeSet::new();
    for (_, cell, src, dst) in &pairs {
        match (blamed(src), blamed(dst)) {
            (false, false) => usual.entry(kind(cell)).or_default().extend(cell.value),
            (true, false) => drop(met.insert(dst)),
            (false, true) => drop(met.insert(src)),
            (true, true) => {}
        }
    }
    let usual: BTreeMap<Kind<'_>, Option<f64>> =
        usual.into_iter().map(|(kind, mut values)| (kind, median(&mut values))).collect();
    let ratio = |cell: &MeasuredCell| {
        let middle = usual.get(&kind(cell)).copied().flatten().filter(|it| 0.0 < *it);
        cell.ratio.or_else(|| Some(cell.value? / middle?))
    };

    let mut each: BTreeMap<&EvidenceEnd, (Tally, Tally)> = BTreeMap::new();
    let (mut among, mut suspect) = (Tally::default(), Tally::default());
    let mut inside = Vec::new();
    for (at, cell, src, dst) in &pairs {
        let ratio = ratio(cell);
        match (blamed(src), blamed(dst)) {
            (true, true) => suspect.add(cell, ratio),
            (true, false) | (false, true) => {
                let partner = if blamed(src) { dst } else { src };
                suspect.add(cell, ratio);
                each.entry(partner).or_default().0.add(cell, ratio);
            }
            (false, false) => {
                let both = [src, dst].map(|end| met.contains(end));
                for (end, _) in [src, dst].into_iter().zip(both).filter(|(_, met)| *met) {
                    each.entry(end).or_default().1.add(cell, ratio);
                }
                if both == [true, true] {
                    among.add(cell, ratio);
                    inside.push(*at);
                }
            }
        }
    }
    among.close();
    suspect.close();
    let accused = |end: &EvidenceEnd| {
        let on = |finding: &&Finding| {
            let locus = &finding.locus;
            locus.node.as_ref() == Some(&end.0) && locus.gpu.is_none_or(|gpu| end.1 == Some(gpu))
        };
        let bad = case.run.verdicts.findings.iter().filter(|it| Outcome::Degraded <= it.outcome);
        bad.filter(|it| it.locus.peer.is_none()).any(|finding| on(&finding))
    };
    let each = each
        .into_iter()
        .map(|(end, (mut with, mut others))| {
            with.close();
            others.close();
            #[expect(clippy::cast_precision_loss, reason = "readings are some thousands at most")]
            let share = others.low as f64 / others.readings.max(1) as f64;
            let standing = match others.readings {
                _ if accused(end) => Standing::Accused,
                0 => Standing::NotMeasured,
                _ if share <= STRAYS => Standing::Acquitted,
                _ => Standing::LowWithOthers,
            };
            Partner { node: end.0.to_string(), gpu: end.1, standing, with, others }
        })
        .collect();
    Partners { each, among, suspect, cells: inside }
}

/// Whether both ends are parts: the memory of a host is nobody's partner.
fn is_part(a: &EvidenceEnd, b: &EvidenceEnd) -> bool {
    a.1.is_some() == b.1.is_some()
}
