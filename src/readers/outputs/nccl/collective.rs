//! The collectives of nccl-tests: the shape of their rows, and the factor between bus bandwidth and
//! algorithm bandwidth.
//!
//! Facts are from the `GetBw`, `GetCollByteCount` and `RunTest` functions of nccl-tests 2.0 to
//! 2.19. This module reads no text.

use super::rounded_number::NumberRange;

/// The factor from algbw to busbw among n ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BusbwFactor {
    /// 2 (n - 1) / n.
    TwoShares,
    /// (n - 1) / n.
    Share,
    /// 1.
    One,
}

impl BusbwFactor {
    fn for_ranks(self, n: f64) -> f64 {
        match self {
            Self::TwoShares => 2.0 * (n - 1.0) / n,
            Self::Share => (n - 1.0) / n,
            Self::One => 1.0,
        }
    }
}

/// busbw divided by algbw for this program and number of ranks.
pub(in crate::outputs) fn busbw_factor(name: &str, ranks: u32) -> Option<f64> {
    let known = find_program(name)?;
    Some(known.factor.for_ranks(f64::from(ranks.max(1))))
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct NcclTestProgram {
    /// Its name without a build's suffix.
    pub(super) name: &'static str,
    factor: BusbwFactor,
    reduces: bool,
    rooted: bool,
    /// The printed size is n times count elements; `None`: it depends.
    is_size_multiplied: Option<bool>,
    /// It checks data in place. If it does not, `N/A` is not a gap.
    pub(super) checks_in_place: bool,
    /// algbw is the printed size divided by the time.
    pub(super) size_over_time: bool,
}

#[rustfmt::skip]
const COLLECTIVES: [NcclTestProgram; 11] = [
    NcclTestProgram { name: "all_reduce_perf", factor: BusbwFactor::TwoShares, reduces: true, rooted: false, is_size_multiplied: Some(false), checks_in_place: true, size_over_time: true },
    NcclTestProgram { name: "reduce_scatter_perf", factor: BusbwFactor::Share, reduces: true, rooted: false, is_size_multiplied: Some(true), checks_in_place: true, size_over_time: true },
    NcclTestProgram { name: "reduce_perf", factor: BusbwFactor::One, reduces: true, rooted: true, is_size_multiplied: Some(false), checks_in_place: true, size_over_time: true },
    NcclTestProgram { name: "broadcast_perf", factor: BusbwFactor::One, reduces: false, rooted: true, is_size_multiplied: Some(false), checks_in_place: true, size_over_time: true },
    NcclTestProgram { name: "gather_perf", factor: BusbwFactor::Share, reduces: false, rooted: true, is_size_multiplied: Some(true), checks_in_place: true, size_over_time: true },
    NcclTestProgram { name: "scatter_perf", factor: BusbwFactor::Share, reduces: false, rooted: true, is_size_multiplied: Some(true), checks_in_place: true, size_over_time: true },
    NcclTestProgram { name: "all_gather_perf", factor: BusbwFactor::Share, reduces: false, rooted: false, is_size_multiplied: Some(true), checks_in_place: true, size_over_time: true },
    NcclTestProgram { name: "alltoall_perf", factor: BusbwFactor::Share, reduces: false, rooted: false, is_size_multiplied: Some(true), checks_in_place: false, size_over_time: true },
    NcclTestProgram { name: "alltoallv_perf", factor: BusbwFactor::Share, reduces: false, rooted: false, is_size_multiplied: None, checks_in_place: false, size_over_time: false },
    NcclTestProgram { name: "sendrecv_perf", factor: BusbwFactor::One, reduces: false, rooted: false, is_size_multiplied: Some(false), checks_in_place: false, size_over_time: true },
    NcclTestProgram { name: "hypercube_perf", factor: BusbwFactor::One, reduces: false, rooted: false, is_size_multiplied: Some(true), checks_in_place: true, size_over_time: false },
];

/// With more ranks, (n - 1) / n equals 1 at the printed precision.
const MOST_RANKS: f64 = 10_000.0;

/// The known bounds of the number of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RankCount {
    pub(super) exact: Option<u32>,
    /// The minimum; 0 if unknown.
    pub(super) at_least: u32,
}

/// Properties on which all rows of a run agree.
#[derive(Clone, Copy, Debug)]
pub(super) struct NcclRowEvidence {
    /// The rows name a reduction (not `none`).
    pub(super) redop: bool,
    /// The rows name a root from 0 up.
    pub(super) root: bool,
    /// The table has a redop column.
    pub(super) redop_column: bool,
    /// The table has both a redop and a root column (2.13 and later).
    pub(super) modern: bool,
    /// Printed size / (count x element size), if all rows agree.
    pub(super) size_multiple: Option<u64>,
    /// busbw / algbw.
    pub(super) factor: NumberRange,
    /// Data was checked out of place and not in place.
    pub(super) in_place_unchecked: bool,
    pub(super) in_place_checked: bool,
    /// In several rows algbw equals size over time.
    pub(super) size_over_time: bool,
    pub(super) ranks: RankCount,
}

impl NcclTestProgram {
    /// The possible factors for that number of ranks.
    pub(super) fn possible_factors(&self, ranks: RankCount, modern: bool) -> Vec<NumberRange> {
        let at = |n: f64| self.factor.for_ranks(n);
        let mut factors = Vec::new();
        match ranks.exact {
            Some(n) => factors.push(NumberRange::from_value(at(f64::from(n.max(1))))),
            None => {
                if ranks.at_least <= 1 {
                    factors.push(NumberRange::from_value(at(1.0)));
                }
                let fewest = f64::from(ranks.at_least.max(2));
                let low = NumberRange::from_value(at(fewest)).low;
                factors.push(NumberRange { low, high: at(MOST_RANKS.max(fewest)) * (1.0 + 1e-9) });
            }
        }
        // Early 2.0 releases put (n - 1) / n into algbw and used a factor of 1.
        if self.factor == BusbwFactor::Share && !modern {
            factors.push(NumberRange::from_value(1.0));
        }
        factors
    }

    /// Whether this program could have printed such rows, apart from their factor.
    fn can_print(&self, seen: &NcclRowEvidence) -> bool {
        // Later sendrecv releases loop over reductions and print them without using one.
        let redop = self.reduces || (seen.modern && self.name == "sendrecv_perf");
        // Before 2.13 each test had its own columns; alltoall left redop blank.
        let column =
            seen.modern || seen.redop_column == (self.reduces || self.name == "alltoall_perf");
        let one =
            seen.ranks.exact == Some(1) || (seen.ranks.exact.is_none() && seen.factor.low == 0.0);
        let spread = match (seen.size_multiple, self.is_size_multiplied) {
            (None, _) | (_, None) => true,
            (Some(1), Some(split)) => !split || one,
            (Some(n), Some(split)) => {
                split && seen.ranks.exact.is_none_or(|ranks| u64::from(ranks) == n)
            }
        };
        column
            && redop == seen.redop
            && self.rooted == seen.root
            && spread
            && !(seen.in_place_unchecked && self.checks_in_place)
            && (!seen.in_place_checked || self.checks_in_place)
            && (self.size_over_time || !seen.size_over_time)
    }

    fn is_candidate(&self, seen: &NcclRowEvidence) -> bool {
        self.possible_factors(seen.ranks, seen.modern).iter().any(|f| f.overlaps(seen.factor))
    }
}

/// The collective of this program name, with or without a path and a build's suffix
/// (`all_reduce_perf_mpi`).
pub(super) fn find_program(name: &str) -> Option<&'static NcclTestProgram> {
    let file = name.rsplit(['/', '\\']).next().unwrap_or(name);
    COLLECTIVES.iter().find(|c| {
        file.strip_prefix(c.name).is_some_and(|rest| {
            !rest.starts_with(|c: char| c.is_ascii_alphanumeric()) && !rest.contains(' ')
        })
    })
}

/// The programs that could have printed such rows with such a factor.
pub(super) fn find_candidates(seen: &NcclRowEvidence) -> Vec<&'static NcclTestProgram> {
    COLLECTIVES.iter().filter(|c| c.can_print(seen) && c.is_candidate(seen)).collect()
}

/// Bytes of one element of an NCCL type, by its nccl-tests name.
pub(super) fn element_size(type_name: &str) -> Option<u64> {
    Some(match type_name {
        "int8" | "uint8" | "char" | "f8e4m3" | "f8e5m2" | "fp8_e4m3" | "fp8_e5m2" => 1,
        "half" | "bfloat16" | "float16" => 2,
        "int" | "int32" | "uint32" | "float" | "float32" => 4,
        "int64" | "uint64" | "double" | "float64" => 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_evidence(redop: bool, root: bool, factor: f64) -> NcclRowEvidence {
        NcclRowEvidence {
            redop,
            root,
            redop_column: true,
            modern: true,
            size_multiple: None,
            factor: NumberRange { low: factor - 2e-5, high: factor + 2e-5 },
            in_place_unchecked: false,
            in_place_checked: false,
            size_over_time: false,
            ranks: RankCount::default(),
        }
    }

    fn names(seen: &NcclRowEvidence) -> Vec<&'static str> {
        find_candidates(seen).iter().map(|c| c.name).collect()
    }

    #[test]
    fn a_factor_above_one_is_all_reduce_and_below_reduce_scatter() {
        assert_eq!(names(&sample_evidence(true, false, 1.875)), ["all_reduce_perf"]);
        assert_eq!(names(&sample_evidence(true, false, 0.875)), ["reduce_scatter_perf"]);
    }

    #[test]
    fn rooted_rows_with_factor_one_are_reduce_or_broadcast() {
        assert_eq!(names(&sample_evidence(true, true, 1.0)), ["reduce_perf"]);
        assert_eq!(names(&sample_evidence(false, true, 1.0)), ["broadcast_perf"]);
        assert_eq!(names(&sample_evidence(false, true, 0.75)), ["gather_perf", "scatter_perf"]);
    }

    #[test]
    fn two_ranks_of_all_reduce_and_of_sendrecv_are_indistinguishable() {
        let mut rows = sample_evidence(true, false, 1.0);
        rows.size_multiple = Some(1);
        assert_eq!(names(&rows), ["all_reduce_perf", "sendrecv_perf"]);
        rows.in_place_unchecked = true;
        assert_eq!(names(&rows), ["sendrecv_perf"]);
    }

    #[test]
    fn gathers_and_exchanges_are_distinguished_by_their_checks_and_counts() {
        let mut rows = sample_evidence(false, false, 0.875);
        rows.size_multiple = Some(8);
        rows.in_place_checked = true;
        assert_eq!(names(&rows), ["all_gather_perf"]);
        (rows.in_place_checked, rows.in_place_unchecked) = (false, true);
        assert_eq!(names(&rows), ["alltoall_perf", "alltoallv_perf"]);
        rows.size_over_time = true;
        assert_eq!(names(&rows), ["alltoall_perf"]);
        // Without a data check the two look alike.
        rows.in_place_unchecked = false;
        assert_eq!(names(&rows), ["all_gather_perf", "alltoall_perf"]);
    }

    #[test]
    fn an_impossible_factor_leaves_nothing() {
        let mut rows = sample_evidence(true, false, 0.997);
        rows.size_multiple = Some(1);
        assert!(names(&rows).is_empty());
        rows = sample_evidence(true, false, 1.75);
        rows.ranks = RankCount { exact: None, at_least: 72 };
        assert!(names(&rows).is_empty());
    }

    #[test]
    fn a_program_is_known_by_path_and_with_a_suffix() {
        let name = |n| find_program(n).map(|c| c.name);
        assert_eq!(name("/opt/t/build/reduce_perf"), Some("reduce_perf"));
        assert_eq!(name("all_reduce_perf_mpi"), Some("all_reduce_perf"));
        assert_eq!(name("reduce_performance"), None);
        assert_eq!(name("bisection_perf"), None);
    }
}
