//! The copies of each test case and the numbers they give.
//!
//! Names and meaning are nvbandwidth's (its sources, v0.8): the row issues the copy, a write moves
//! row to column, a read pulls column to row; a copy that only generates load is twice as large.
//! Names of fabricgate's own tests extend nvbandwidth's names. Pure; GPUs are indices in a list.

use crate::probes::protocol::ProbeMatrixShape;
use model::tournament;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BufferPlace {
    /// Host memory near this GPU.
    Host(usize),
    Gpu(usize),
}

/// A stream of copies from one buffer to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyOperation {
    pub(crate) from: BufferPlace,
    pub(crate) to: BufferPlace,
    /// The GPU whose copy engine moves the data.
    pub(crate) issuer: usize,
    /// Size relative to the other copies.
    pub(crate) size_factor: usize,
}

impl CopyOperation {
    /// The GPUs that take part.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = usize> + use<> {
        let of = |place| match place {
            BufferPlace::Gpu(gpu) => Some(gpu),
            BufferPlace::Host(_) => None,
        };
        [Some(self.issuer), of(self.from), of(self.to)].into_iter().flatten()
    }
}

/// The copies that a number covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberBasis {
    /// The copy at this index of the run, over its own time.
    One(usize),
    /// The sum of the first two copies' rates.
    FirstTwo,
    /// All bytes, over the time until the last copy ends.
    All,
}

impl NumberBasis {
    /// True if the copy at this index of the run is part of the number.
    pub(crate) fn includes(self, nth: usize) -> bool {
        match self {
            Self::One(place) => place == nth,
            Self::FirstTwo => nth < 2,
            Self::All => true,
        }
    }
}

/// A number that a run produces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyNumber {
    /// Name of the test, with its suffix.
    pub(crate) testcase: String,
    /// Row and column.
    pub(crate) cell: (usize, usize),
    pub(crate) basis: NumberBasis,
}

/// Copies that run concurrently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyRun {
    /// The copies; all start together.
    pub(crate) copies: Vec<CopyOperation>,
    pub(crate) numbers: Vec<CopyNumber>,
}

/// Quantity and unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMeasure {
    /// Bandwidth in GB/s.
    Bandwidth,
    /// Latency of one small copy in microseconds.
    Latency,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyCase {
    pub(crate) shapes: Vec<ProbeMatrixShape>,
    pub(crate) measure: CopyMeasure,
    /// The runs in execution order.
    pub(crate) runs: Vec<CopyRun>,
}

/// Why a test has no runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaseRefusal {
    Unknown,
    /// The test needs pairs of GPUs, and only one GPU exists.
    NeedsPairs,
}

/// Direction of the data relative to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostCopyDirection {
    ToGpu,
    FromGpu,
}

/// The issuer of a copy between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerCopyMethod {
    Write,
    Read,
}

/// The kind of a test, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyCaseKind {
    Host(HostCopyDirection),
    HostBidirectional(HostCopyDirection),
    AllHost(HostCopyDirection),
    AllHostBidirectional(HostCopyDirection),
    HostLatency(HostCopyDirection),
    Local,
    Pair(PeerCopyMethod),
    PairBidirectional(PeerCopyMethod),
    PairsConcurrent(PeerCopyMethod),
    PairLatency,
    AllToOne(PeerCopyMethod),
    OneToAll(PeerCopyMethod),
}

/// All tests in nvbandwidth's order, followed by fabricgate's own.
const KINDS: &[(&str, CopyCaseKind)] = &[
    ("host_to_device_memcpy_ce", CopyCaseKind::Host(HostCopyDirection::ToGpu)),
    ("device_to_host_memcpy_ce", CopyCaseKind::Host(HostCopyDirection::FromGpu)),
    (
        "host_to_device_bidirectional_memcpy_ce",
        CopyCaseKind::HostBidirectional(HostCopyDirection::ToGpu),
    ),
    (
        "device_to_host_bidirectional_memcpy_ce",
        CopyCaseKind::HostBidirectional(HostCopyDirection::FromGpu),
    ),
    ("device_to_device_memcpy_read_ce", CopyCaseKind::Pair(PeerCopyMethod::Read)),
    ("device_to_device_memcpy_write_ce", CopyCaseKind::Pair(PeerCopyMethod::Write)),
    (
        "device_to_device_bidirectional_memcpy_read_ce",
        CopyCaseKind::PairBidirectional(PeerCopyMethod::Read),
    ),
    (
        "device_to_device_bidirectional_memcpy_write_ce",
        CopyCaseKind::PairBidirectional(PeerCopyMethod::Write),
    ),
    ("all_to_host_memcpy_ce", CopyCaseKind::AllHost(HostCopyDirection::FromGpu)),
    (
        "all_to_host_bidirectional_memcpy_ce",
        CopyCaseKind::AllHostBidirectional(HostCopyDirection::FromGpu),
    ),
    ("host_to_all_memcpy_ce", CopyCaseKind::AllHost(HostCopyDirection::ToGpu)),
    (
        "host_to_all_bidirectional_memcpy_ce",
        CopyCaseKind::AllHostBidirectional(HostCopyDirection::ToGpu),
    ),
    ("all_to_one_write_ce", CopyCaseKind::AllToOne(PeerCopyMethod::Write)),
    ("all_to_one_read_ce", CopyCaseKind::AllToOne(PeerCopyMethod::Read)),
    ("one_to_all_write_ce", CopyCaseKind::OneToAll(PeerCopyMethod::Write)),
    ("one_to_all_read_ce", CopyCaseKind::OneToAll(PeerCopyMethod::Read)),
    ("device_local_copy", CopyCaseKind::Local),
    (
        "device_to_device_concurrent_memcpy_read_ce",
        CopyCaseKind::PairsConcurrent(PeerCopyMethod::Read),
    ),
    (
        "device_to_device_concurrent_memcpy_write_ce",
        CopyCaseKind::PairsConcurrent(PeerCopyMethod::Write),
    ),
    ("host_to_device_latency_ce", CopyCaseKind::HostLatency(HostCopyDirection::ToGpu)),
    ("device_to_host_latency_ce", CopyCaseKind::HostLatency(HostCopyDirection::FromGpu)),
    ("device_to_device_latency_ce", CopyCaseKind::PairLatency),
];

/// Names of all tests that this probe measures.
pub fn case_names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(name, _)| *name)
}

/// True if the test of this name measures pairs of GPUs.
pub(crate) fn needs_pairs(name: &str) -> bool {
    KINDS.iter().any(|(known, kind)| *known == name && kind.needs_pairs())
}

impl CopyCaseKind {
    fn needs_pairs(self) -> bool {
        matches!(
            self,
            Self::Pair(_)
                | Self::PairBidirectional(_)
                | Self::PairsConcurrent(_)
                | Self::PairLatency
                | Self::AllToOne(_)
                | Self::OneToAll(_)
        )
    }

    fn is_matrix(self) -> bool {
        let fan = matches!(self, Self::AllToOne(_) | Self::OneToAll(_));
        self.needs_pairs() && !fan
    }
}

/// The test of this name over GPUs with these labels. `reach` returns whether two GPUs can access
/// each other's memory; pairs that cannot are omitted.
pub(crate) fn build_case(
    name: &str,
    labels: &[String],
    reach: &dyn Fn(usize, usize) -> bool,
) -> Result<CopyCase, CaseRefusal> {
    let kind = KINDS.iter().find(|(known, _)| *known == name).ok_or(CaseRefusal::Unknown)?.1;
    if kind.needs_pairs() && labels.len() < 2 {
        return Err(CaseRefusal::NeedsPairs);
    }
    let latency = matches!(kind, CopyCaseKind::HostLatency(_) | CopyCaseKind::PairLatency);
    let measure = if latency { CopyMeasure::Latency } else { CopyMeasure::Bandwidth };
    let rows = if kind.is_matrix() { labels.to_vec() } else { vec!["0".to_owned()] };
    let shapes = part_suffixes(kind)
        .iter()
        .map(|part| ProbeMatrixShape {
            testcase: format!("{name}{part}"),
            unit: if latency { "us" } else { "GB/s" }.to_owned(),
            rows: rows.clone(),
            cols: labels.to_vec(),
        })
        .collect();
    Ok(CopyCase { shapes, measure, runs: build_runs(name, kind, labels.len(), reach) })
}

/// Suffixes that nvbandwidth adds to the name of a test with several matrices.
fn part_suffixes(kind: CopyCaseKind) -> &'static [&'static str] {
    match kind {
        CopyCaseKind::PairBidirectional(PeerCopyMethod::Read) => &["_read1", "_read2", "_total"],
        CopyCaseKind::PairBidirectional(PeerCopyMethod::Write) => &["_write1", "_write2", "_total"],
        _ => &[""],
    }
}

fn build_runs(
    name: &str,
    kind: CopyCaseKind,
    gpus: usize,
    reach: &dyn Fn(usize, usize) -> bool,
) -> Vec<CopyRun> {
    let first = |gpu| vec![new_number(name, (0, gpu), NumberBasis::One(0))];
    let each = 0..gpus;
    match kind {
        CopyCaseKind::Host(way) | CopyCaseKind::HostLatency(way) => each
            .map(|gpu| CopyRun { copies: vec![host_copy(way, gpu, 1)], numbers: first(gpu) })
            .collect(),
        CopyCaseKind::HostBidirectional(way) => each
            .map(|gpu| {
                let copies = vec![host_copy(way, gpu, 1), host_copy(reverse(way), gpu, 2)];
                CopyRun { copies, numbers: first(gpu) }
            })
            .collect(),
        CopyCaseKind::AllHost(way) => each
            .map(|gpu| {
                let others = (0..gpus).filter(|other| *other != gpu);
                let others = others.map(|other| host_copy(way, other, 2));
                let copies = std::iter::once(host_copy(way, gpu, 1)).chain(others).collect();
                CopyRun { copies, numbers: first(gpu) }
            })
            .collect(),
        CopyCaseKind::AllHostBidirectional(way) => each
            .map(|gpu| {
                let mut copies = vec![host_copy(way, gpu, 1), host_copy(reverse(way), gpu, 2)];
                for other in (0..gpus).filter(|other| *other != gpu) {
                    copies.extend([
                        host_copy(HostCopyDirection::FromGpu, other, 2),
                        host_copy(HostCopyDirection::ToGpu, other, 2),
                    ]);
                }
                CopyRun { copies, numbers: first(gpu) }
            })
            .collect(),
        CopyCaseKind::Local => each
            .map(|gpu| {
                let here = BufferPlace::Gpu(gpu);
                let copies =
                    vec![CopyOperation { from: here, to: here, issuer: gpu, size_factor: 1 }];
                CopyRun { copies, numbers: first(gpu) }
            })
            .collect(),
        CopyCaseKind::Pair(method) => {
            reachable_pairs(gpus, reach).map(|at| pair_run(name, method, at)).collect()
        }
        CopyCaseKind::PairLatency => reachable_pairs(gpus, reach)
            .map(|at| pair_run(name, PeerCopyMethod::Write, at))
            .collect(),
        CopyCaseKind::PairBidirectional(method) => {
            let (one, two) = (part_suffixes(kind)[0], part_suffixes(kind)[1]);
            reachable_pairs(gpus, reach)
                .map(|(row, col)| {
                    // nvbandwidth moves the first copy from column to row, in writes too.
                    let copies = vec![peer_copy(method, col, row), peer_copy(method, row, col)];
                    let part =
                        |part: &str, of| new_number(&format!("{name}{part}"), (row, col), of);
                    let numbers = vec![
                        part(one, NumberBasis::One(0)),
                        part(two, NumberBasis::One(1)),
                        part("_total", NumberBasis::FirstTwo),
                    ];
                    CopyRun { copies, numbers }
                })
                .collect()
        }
        CopyCaseKind::PairsConcurrent(method) => concurrent_runs(name, method, gpus, reach),
        // In all other tests, the other GPUs issue copies to the single GPU, or read from it: the
        // total of a read is the outgoing traffic of the single GPU, as in nvbandwidth.
        CopyCaseKind::AllToOne(method) => fan_runs(name, gpus, reach, |one, other| match method {
            PeerCopyMethod::Write => peer_copy(PeerCopyMethod::Write, other, one),
            PeerCopyMethod::Read => peer_copy(PeerCopyMethod::Read, one, other),
        }),
        CopyCaseKind::OneToAll(method) => fan_runs(name, gpus, reach, |one, other| match method {
            PeerCopyMethod::Write => peer_copy(PeerCopyMethod::Write, one, other),
            PeerCopyMethod::Read => peer_copy(PeerCopyMethod::Read, other, one),
        }),
    }
}

fn new_number(testcase: &str, at: (usize, usize), of: NumberBasis) -> CopyNumber {
    CopyNumber { testcase: testcase.to_owned(), cell: at, basis: of }
}

fn reverse(way: HostCopyDirection) -> HostCopyDirection {
    match way {
        HostCopyDirection::ToGpu => HostCopyDirection::FromGpu,
        HostCopyDirection::FromGpu => HostCopyDirection::ToGpu,
    }
}

fn host_copy(way: HostCopyDirection, gpu: usize, times: usize) -> CopyOperation {
    let (host, here) = (BufferPlace::Host(gpu), BufferPlace::Gpu(gpu));
    match way {
        HostCopyDirection::ToGpu => {
            CopyOperation { from: host, to: here, issuer: gpu, size_factor: times }
        }
        HostCopyDirection::FromGpu => {
            CopyOperation { from: here, to: host, issuer: gpu, size_factor: times }
        }
    }
}

/// Copy from one GPU to another, written by the first or read by the second.
fn peer_copy(method: PeerCopyMethod, from: usize, to: usize) -> CopyOperation {
    let by = if method == PeerCopyMethod::Write { from } else { to };
    CopyOperation {
        from: BufferPlace::Gpu(from),
        to: BufferPlace::Gpu(to),
        issuer: by,
        size_factor: 1,
    }
}

/// All ordered pairs that can access each other, row by row.
fn reachable_pairs(
    gpus: usize,
    reach: &dyn Fn(usize, usize) -> bool,
) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..gpus).flat_map(move |row| (0..gpus).map(move |col| (row, col)));
    all.filter(move |(row, col)| row != col && reach(*row, *col))
}

/// The copy of a cell: the row issues it.
fn cell_copy(method: PeerCopyMethod, (row, col): (usize, usize)) -> CopyOperation {
    match method {
        PeerCopyMethod::Write => peer_copy(method, row, col),
        PeerCopyMethod::Read => peer_copy(method, col, row),
    }
}

fn pair_run(name: &str, method: PeerCopyMethod, at: (usize, usize)) -> CopyRun {
    CopyRun {
        copies: vec![cell_copy(method, at)],
        numbers: vec![new_number(name, at, NumberBasis::One(0))],
    }
}

/// Concurrent copies of disjoint pairs: every round of a round-robin tournament, first in one
/// direction and then in the other. Only this test detects a switch or root port that handles one
/// pair well and several pairs badly.
fn concurrent_runs(
    name: &str,
    method: PeerCopyMethod,
    gpus: usize,
    reach: &dyn Fn(usize, usize) -> bool,
) -> Vec<CopyRun> {
    // Fixed rounds, so that readings of different days are comparable.
    let rounds = tournament::make_rounds(gpus, 0);
    let mut runs = Vec::new();
    for round in rounds {
        for turned in [false, true] {
            let cells = round.iter().map(|(a, b)| if turned { (*b, *a) } else { (*a, *b) });
            let cells: Vec<_> = cells.filter(|(row, col)| reach(*row, *col)).collect();
            if !cells.is_empty() {
                let copies = cells.iter().map(|at| cell_copy(method, *at)).collect();
                let numbers = cells.iter().enumerate();
                let numbers =
                    numbers.map(|(nth, at)| new_number(name, *at, NumberBasis::One(nth))).collect();
                runs.push(CopyRun { copies, numbers });
            }
        }
    }
    runs
}

/// The runs of one GPU with all others that it can access.
fn fan_runs(
    name: &str,
    gpus: usize,
    reach: &dyn Fn(usize, usize) -> bool,
    copy: impl Fn(usize, usize) -> CopyOperation,
) -> Vec<CopyRun> {
    let run = |one| {
        let others = (0..gpus).filter(|other| *other != one && reach(one, *other));
        let copies: Vec<CopyOperation> = others.map(|other| copy(one, other)).collect();
        let numbers = vec![new_number(name, (0, one), NumberBasis::All)];
        (!copies.is_empty()).then_some(CopyRun { copies, numbers })
    };
    (0..gpus).filter_map(run).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn labels(n: usize) -> Vec<String> {
        (0..n).map(|gpu| gpu.to_string()).collect()
    }

    fn everywhere(_: usize, _: usize) -> bool {
        true
    }

    fn case_named(name: &str, gpus: usize) -> CopyCase {
        build_case(name, &labels(gpus), &everywhere).expect("a test")
    }

    /// The copies of the run that produces the number at row and column.
    fn moves(name: &str, at: (usize, usize)) -> Vec<(BufferPlace, BufferPlace, usize, usize)> {
        let case = case_named(name, 4);
        let run = case.runs.iter().find(|run| run.numbers.iter().any(|it| it.cell == at));
        let copies = run.expect("a run").copies.iter();
        copies.map(|it| (it.from, it.to, it.issuer, it.size_factor)).collect()
    }

    #[test]
    fn the_row_issues_the_copy_and_a_write_goes_out_while_a_read_comes_in() {
        let (two, three) = (BufferPlace::Gpu(2), BufferPlace::Gpu(3));
        assert_eq!(moves("device_to_device_memcpy_write_ce", (2, 3)), [(two, three, 2, 1)]);
        assert_eq!(moves("device_to_device_memcpy_read_ce", (2, 3)), [(three, two, 2, 1)]);
    }

    #[test]
    fn the_first_copy_of_a_bidirectional_pair_moves_data_to_the_row() {
        let (two, three) = (BufferPlace::Gpu(2), BufferPlace::Gpu(3));
        let read = moves("device_to_device_bidirectional_memcpy_read_ce", (2, 3));
        assert_eq!(read, [(three, two, 2, 1), (two, three, 3, 1)]);
        let write = moves("device_to_device_bidirectional_memcpy_write_ce", (2, 3));
        assert_eq!(write, [(three, two, 3, 1), (two, three, 2, 1)]);
        let case = case_named("device_to_device_bidirectional_memcpy_write_ce", 2);
        let names: Vec<&str> = case.shapes.iter().map(|shape| shape.testcase.as_str()).collect();
        let stem = "device_to_device_bidirectional_memcpy_write_ce";
        assert_eq!(
            names,
            [format!("{stem}_write1"), format!("{stem}_write2"), format!("{stem}_total")]
        );
    }

    #[test]
    fn a_copy_for_load_is_twice_as_large_and_yields_no_number() {
        let (host, gpu) = (BufferPlace::Host(1), BufferPlace::Gpu(1));
        let there = moves("host_to_device_bidirectional_memcpy_ce", (0, 1));
        assert_eq!(there, [(host, gpu, 1, 1), (gpu, host, 1, 2)]);
        let back = moves("device_to_host_bidirectional_memcpy_ce", (0, 1));
        assert_eq!(back, [(gpu, host, 1, 1), (host, gpu, 1, 2)]);
        let all = case_named("all_to_host_bidirectional_memcpy_ce", 3);
        assert_eq!(all.runs[1].copies.len(), 6);
        assert_eq!(
            all.runs[1].copies[0],
            CopyOperation { from: gpu, to: host, issuer: 1, size_factor: 1 }
        );
        assert!(all.runs[1].copies[1..].iter().all(|copy| copy.size_factor == 2));
        assert_eq!(
            all.runs[1].numbers,
            [new_number("all_to_host_bidirectional_memcpy_ce", (0, 1), NumberBasis::One(0))]
        );
    }

    #[test]
    fn the_total_of_a_read_by_all_is_the_outgoing_traffic_of_the_single_gpu() {
        for (name, inbound) in [
            ("all_to_one_write_ce", true),
            ("all_to_one_read_ce", false),
            ("one_to_all_write_ce", false),
            ("one_to_all_read_ce", true),
        ] {
            let one = BufferPlace::Gpu(1);
            let run = &case_named(name, 4).runs[1];
            assert_eq!((run.copies.len(), run.numbers[0].basis), (3, NumberBasis::All), "{name}");
            for copy in &run.copies {
                assert_eq!(if inbound { copy.to } else { copy.from }, one, "{name}");
                assert_eq!(copy.issuer == 1, name.starts_with("one_to_all"), "{name}");
            }
        }
    }

    #[test]
    fn every_cell_is_measured_once_and_concurrent_pairs_share_no_gpu() {
        for (name, _) in KINDS {
            for gpus in 1..=8 {
                let Ok(case) = build_case(name, &labels(gpus), &everywhere) else { continue };
                for shape in &case.shapes {
                    let cells = case.runs.iter().flat_map(|run| &run.numbers);
                    let cells: Vec<_> = cells
                        .filter(|it| it.testcase == shape.testcase)
                        .map(|it| it.cell)
                        .collect();
                    let unique: BTreeSet<_> = cells.iter().copied().collect();
                    assert_eq!(unique.len(), cells.len(), "{name} {gpus}");
                    let square = 1 < shape.rows.len();
                    let expected = if square { gpus * (gpus - 1) } else { gpus };
                    assert_eq!(cells.len(), expected, "{name} {gpus}");
                }
            }
        }
        for run in case_named("device_to_device_concurrent_memcpy_write_ce", 8).runs {
            let ends: BTreeSet<BufferPlace> =
                run.copies.iter().flat_map(|it| [it.from, it.to]).collect();
            assert_eq!((run.copies.len(), ends.len()), (4, 8));
        }
    }

    #[test]
    fn pairs_without_peer_access_are_omitted() {
        let islands = |a: usize, b: usize| a / 2 == b / 2;
        for (name, runs, copies) in [
            ("device_to_device_memcpy_read_ce", 4, 4),
            ("device_to_device_concurrent_memcpy_read_ce", 2, 4),
            ("one_to_all_write_ce", 4, 4),
        ] {
            let case = build_case(name, &labels(4), &islands).expect("a test");
            assert_eq!(case.runs.len(), runs, "{name}");
            assert_eq!(
                case.runs.iter().map(|run| run.copies.len()).sum::<usize>(),
                copies,
                "{name}"
            );
        }
        let alone = build_case("all_to_one_write_ce", &labels(3), &|_, _| false).expect("a test");
        assert!(alone.runs.is_empty());
    }

    #[test]
    fn one_gpu_has_no_pairs_and_an_unknown_test_is_refused() {
        let refused = |name| build_case(name, &labels(1), &everywhere).expect_err("nothing to run");
        assert_eq!(refused("device_to_device_memcpy_read_ce"), CaseRefusal::NeedsPairs);
        assert_eq!(refused("one_to_all_read_ce"), CaseRefusal::NeedsPairs);
        assert_eq!(refused("host_to_device_memcpy_sm"), CaseRefusal::Unknown);
        assert_eq!(case_named("all_to_host_memcpy_ce", 1).runs.len(), 1);
        assert_eq!(case_named("device_local_copy", 1).shapes[0].rows, ["0"]);
    }
}
