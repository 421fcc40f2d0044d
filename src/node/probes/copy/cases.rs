//! Which copies a test case is made of, and which numbers they give.
//!
//! Names and meaning are nvbandwidth's (its sources, v0.8): the row issues the
//! copy, a write moves row to column, a read pulls column to row; a copy that
//! only disturbs is twice as large. Names of our own begin with nvbandwidth's
//! and say what differs. Pure; GPUs are places in a list.

use crate::probes::said::Shape;
use model::tournament;

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Host memory near this GPU.
    Host(usize),
    /// Memory of this GPU.
    Gpu(usize),
}

/// A stream of copies from one buffer to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    /// Where the data is.
    pub(crate) from: Place,
    /// Where it goes.
    pub(crate) to: Place,
    /// The GPU whose copy engine moves it.
    pub(crate) by: usize,
    /// How many times as large as others it is.
    pub(crate) times: usize,
}

/// What a number is taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// The copy at this place of the run, over its own time.
    One(usize),
    /// The sum of what the first two give.
    FirstTwo,
    /// All bytes, over the time until the last copy ends.
    All,
}

impl Of {
    /// Whether the copy at this place of the run is part of the number.
    pub(crate) fn includes(self, nth: usize) -> bool {
        match self {
            Self::One(place) => place == nth,
            Self::FirstTwo => nth < 2,
            Self::All => true,
        }
    }
}

/// A number that a run gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    /// The test, with its part.
    pub(crate) testcase: String,
    /// Row and column.
    pub(crate) at: (usize, usize),
    /// What it is taken of.
    pub(crate) of: Of,
}

/// Copies that run at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The copies; all begin when the first does.
    pub(crate) copies: Vec<Copy>,
    /// What is said of them.
    pub(crate) numbers: Vec<Number>,
}

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// GB/s.
    Bandwidth,
    /// Microseconds of one small copy.
    Latency,
}

/// A test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// Its matrices.
    pub(crate) shapes: Vec<Shape>,
    /// What its numbers are.
    pub(crate) measure: Measure,
    /// What is run for it, in this order.
    pub(crate) runs: Vec<Run>,
}

/// Why there is nothing to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no test of this name.
    Unknown,
    /// It is about pairs of GPUs, and there is one.
    NeedsPairs,
}

/// Whether data goes from the GPU or to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ToGpu,
    FromGpu,
}

/// Who issues a copy between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Write,
    Read,
}

/// What a test is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Host(Way),
    HostBothWays(Way),
    AllHost(Way),
    AllHostBothWays(Way),
    HostLatency(Way),
    Local,
    Pair(Method),
    PairBothWays(Method),
    PairsAtOnce(Method),
    PairLatency,
    AllToOne(Method),
    OneToAll(Method),
}

/// Every test there is, in nvbandwidth's order, ours behind it.
const KINDS: &[(&str, Kind)] = &[
    ("host_to_device_memcpy_ce", Kind::Host(Way::ToGpu)),
    ("device_to_host_memcpy_ce", Kind::Host(Way::FromGpu)),
    ("host_to_device_bidirectional_memcpy_ce", Kind::HostBothWays(Way::ToGpu)),
    ("device_to_host_bidirectional_memcpy_ce", Kind::HostBothWays(Way::FromGpu)),
    ("device_to_device_memcpy_read_ce", Kind::Pair(Method::Read)),
    ("device_to_device_memcpy_write_ce", Kind::Pair(Method::Write)),
    ("device_to_device_bidirectional_memcpy_read_ce", Kind::PairBothWays(Method::Read)),
    ("device_to_device_bidirectional_memcpy_write_ce", Kind::PairBothWays(Method::Write)),
    ("all_to_host_memcpy_ce", Kind::AllHost(Way::FromGpu)),
    ("all_to_host_bidirectional_memcpy_ce", Kind::AllHostBothWays(Way::FromGpu)),
    ("host_to_all_memcpy_ce", Kind::AllHost(Way::ToGpu)),
    ("host_to_all_bidirectional_memcpy_ce", Kind::AllHostBothWays(Way::ToGpu)),
    ("all_to_one_write_ce", Kind::AllToOne(Method::Write)),
    ("all_to_one_read_ce", Kind::AllToOne(Method::Read)),
    ("one_to_all_write_ce", Kind::OneToAll(Method::Write)),
    ("one_to_all_read_ce", Kind::OneToAll(Method::Read)),
    ("device_local_copy", Kind::Local),
    ("device_to_device_concurrent_memcpy_read_ce", Kind::PairsAtOnce(Method::Read)),
    ("device_to_device_concurrent_memcpy_write_ce", Kind::PairsAtOnce(Method::Write)),
    ("host_to_device_latency_ce", Kind::HostLatency(Way::ToGpu)),
    ("device_to_host_latency_ce", Kind::HostLatency(Way::FromGpu)),
    ("device_to_device_latency_ce", Kind::PairLatency),
];

/// The names of all tests.
pub fn names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(name, _)| *name)
}

/// Whether a test of this name is about pairs of GPUs.
pub(crate) fn needs_pairs(name: &str) -> bool {
    KINDS.iter().any(|(known, kind)| *known == name && kind.needs_pairs())
}

impl Kind {
    fn needs_pairs(self) -> bool {
        matches!(
            self,
            Self::Pair(_)
                | Self::PairBothWays(_)
                | Self::PairsAtOnce(_)
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

/// The test of this name over GPUs of these labels. `reach` says whether two of
/// them, by their places, reach each other's memory; pairs that do not are left
/// out.
pub(crate) fn case(
    name: &str,
    labels: &[String],
    reach: &dyn Fn(usize, usize) -> bool,
) -> Result<Case, Refusal> {
    let kind = KINDS.iter().find(|(known, _)| *known == name).ok_or(Refusal::Unknown)?.1;
    if kind.needs_pairs() && labels.len() < 2 {
        return Err(Refusal::NeedsPairs);
    }
    let latency = matches!(kind, Kind::HostLatency(_) | Kind::PairLatency);
    let measure = if latency { Measure::Latency } else { Measure::Bandwidth };
    let rows = if kind.is_matrix() { labels.to_vec() } else { vec!["0".to_owned()] };
    let shapes = parts(kind)
        .iter()
        .map(|part| Shape {
            testcase: format!("{name}{part}"),
            unit: if latency { "us" } else { "GB/s" }.to_owned(),
            rows: rows.clone(),
            cols: labels.to_vec(),
        })
        .collect();
    Ok(Case { shapes, measure, runs: runs(name, kind, labels.len(), reach) })
}

/// What nvbandwidth adds to the name of a test that prints several matrices.
fn parts(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::PairBothWays(Method::Read) => &["_read1", "_read2", "_total"],
        Kind::PairBothWays(Method::Write) => &["_write1", "_write2", "_total"],
        _ => &[""],
    }
}

fn runs(name: &str, kind: Kind, gpus: usize, reach: &dyn Fn(usize, usize) -> bool) -> Vec<Run> {
    let first = |gpu| vec![number(name, (0, gpu), Of::One(0))];
    let each = 0..gpus;
    match kind {
        Kind::Host(way) | Kind::HostLatency(way) => {
            each.map(|gpu| Run { copies: vec![host(way, gpu, 1)], numbers: first(gpu) }).collect()
        }
        Kind::HostBothWays(way) => each
            .map(|gpu| {
                let copies = vec![host(way, gpu, 1), host(back(way), gpu, 2)];
                Run { copies, numbers: first(gpu) }
            })
            .collect(),
        Kind::AllHost(way) => each
            .map(|gpu| {
                let others = (0..gpus).filter(|other| *other != gpu);
                let others = others.map(|other| host(way, other, 2));
                let copies = std::iter::once(host(way, gpu, 1)).chain(others).collect();
                Run { copies, numbers: first(gpu) }
            })
            .collect(),
        Kind::AllHostBothWays(way) => each
            .map(|gpu| {
                let mut copies = vec![host(way, gpu, 1), host(back(way), gpu, 2)];
                for other in (0..gpus).filter(|other| *other != gpu) {
                    copies.extend([host(Way::FromGpu, other, 2), host(Way::ToGpu, other, 2)]);
                }
                Run { copies, numbers: first(gpu) }
            })
            .collect(),
        Kind::Local => each
            .map(|gpu| {
                let here = Place::Gpu(gpu);
                let copies = vec![Copy { from: here, to: here, by: gpu, times: 1 }];
                Run { copies, numbers: first(gpu) }
            })
            .collect(),
        Kind::Pair(method) => pairs(gpus, reach).map(|at| one_pair(name, method, at)).collect(),
        Kind::PairLatency => {
            pairs(gpus, reach).map(|at| one_pair(name, Method::Write, at)).collect()
        }
        Kind::PairBothWays(method) => {
            let (one, two) = (parts(kind)[0], parts(kind)[1]);
            pairs(gpus, reach)
                .map(|(row, col)| {
                    // nvbandwidth moves the first copy from column to row, in writes too.
                    let copies = vec![between(method, col, row), between(method, row, col)];
                    let part = |part: &str, of| number(&format!("{name}{part}"), (row, col), of);
                    let numbers = vec![
                        part(one, Of::One(0)),
                        part(two, Of::One(1)),
                        part("_total", Of::FirstTwo),
                    ];
                    Run { copies, numbers }
                })
                .collect()
        }
        Kind::PairsAtOnce(method) => at_once(name, method, gpus, reach),
        // All others issue copies to the one, or pull from it: the total of a read is
        // what leaves the one. nvbandwidth says so too.
        Kind::AllToOne(method) => fan(name, gpus, reach, |one, other| match method {
            Method::Write => between(Method::Write, other, one),
            Method::Read => between(Method::Read, one, other),
        }),
        Kind::OneToAll(method) => fan(name, gpus, reach, |one, other| match method {
            Method::Write => between(Method::Write, one, other),
            Method::Read => between(Method::Read, other, one),
        }),
    }
}

fn number(testcase: &str, at: (usize, usize), of: Of) -> Number {
    Number { testcase: testcase.to_owned(), at, of }
}

fn back(way: Way) -> Way {
    match way {
        Way::ToGpu => Way::FromGpu,
        Way::FromGpu => Way::ToGpu,
    }
}

fn host(way: Way, gpu: usize, times: usize) -> Copy {
    let (host, here) = (Place::Host(gpu), Place::Gpu(gpu));
    match way {
        Way::ToGpu => Copy { from: host, to: here, by: gpu, times },
        Way::FromGpu => Copy { from: here, to: host, by: gpu, times },
    }
}

/// Data from one GPU to another: written by the first or read by the second.
fn between(method: Method, from: usize, to: usize) -> Copy {
    let by = if method == Method::Write { from } else { to };
    Copy { from: Place::Gpu(from), to: Place::Gpu(to), by, times: 1 }
}

/// All ordered pairs that reach each other, row by row.
fn pairs(
    gpus: usize,
    reach: &dyn Fn(usize, usize) -> bool,
) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..gpus).flat_map(move |row| (0..gpus).map(move |col| (row, col)));
    all.filter(move |(row, col)| row != col && reach(*row, *col))
}

/// The copy of a cell: the row issues it.
fn of_cell(method: Method, (row, col): (usize, usize)) -> Copy {
    match method {
        Method::Write => between(method, row, col),
        Method::Read => between(method, col, row),
    }
}

fn one_pair(name: &str, method: Method, at: (usize, usize)) -> Run {
    Run { copies: vec![of_cell(method, at)], numbers: vec![number(name, at, Of::One(0))] }
}

/// Disjoint pairs at the same time: every round of a tournament, one way and
/// then the other. A switch or root port that carries one pair well and several
/// badly shows here only.
fn at_once(
    name: &str,
    method: Method,
    gpus: usize,
    reach: &dyn Fn(usize, usize) -> bool,
) -> Vec<Run> {
    // Always the same rounds: readings of two days are compared with each other.
    let rounds = tournament::rounds(gpus, 0);
    let mut runs = Vec::new();
    for round in rounds {
        for turned in [false, true] {
            let cells = round.iter().map(|(a, b)| if turned { (*b, *a) } else { (*a, *b) });
            let cells: Vec<_> = cells.filter(|(row, col)| reach(*row, *col)).collect();
            if !cells.is_empty() {
                let copies = cells.iter().map(|at| of_cell(method, *at)).collect();
                let numbers = cells.iter().enumerate();
                let numbers = numbers.map(|(nth, at)| number(name, *at, Of::One(nth))).collect();
                runs.push(Run { copies, numbers });
            }
        }
    }
    runs
}

/// One GPU with all others it reaches.
fn fan(
    name: &str,
    gpus: usize,
    reach: &dyn Fn(usize, usize) -> bool,
    copy: impl Fn(usize, usize) -> Copy,
) -> Vec<Run> {
    let run = |one| {
        let others = (0..gpus).filter(|other| *other != one && reach(one, *other));
        let copies: Vec<Copy> = others.map(|other| copy(one, other)).collect();
        let numbers = vec![number(name, (0, one), Of::All)];
        (!copies.is_empty()).then_some(Run { copies, numbers })
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

    fn of(name: &str, gpus: usize) -> Case {
        case(name, &labels(gpus), &everywhere).expect("a test")
    }

    /// The moves of the run that gives the number at row and column.
    fn moves(name: &str, at: (usize, usize)) -> Vec<(Place, Place, usize, usize)> {
        let case = of(name, 4);
        let run = case.runs.iter().find(|run| run.numbers.iter().any(|it| it.at == at));
        let copies = run.expect("a run").copies.iter();
        copies.map(|it| (it.from, it.to, it.by, it.times)).collect()
    }

    #[test]
    fn the_row_issues_and_a_write_goes_out_while_a_read_comes_in() {
        let (two, three) = (Place::Gpu(2), Place::Gpu(3));
        assert_eq!(moves("device_to_device_memcpy_write_ce", (2, 3)), [(two, three, 2, 1)]);
        assert_eq!(moves("device_to_device_memcpy_read_ce", (2, 3)), [(three, two, 2, 1)]);
    }

    #[test]
    fn the_first_of_a_bidirectional_pair_comes_to_the_row_in_reads_and_in_writes() {
        let (two, three) = (Place::Gpu(2), Place::Gpu(3));
        let read = moves("device_to_device_bidirectional_memcpy_read_ce", (2, 3));
        assert_eq!(read, [(three, two, 2, 1), (two, three, 3, 1)]);
        let write = moves("device_to_device_bidirectional_memcpy_write_ce", (2, 3));
        assert_eq!(write, [(three, two, 3, 1), (two, three, 2, 1)]);
        let case = of("device_to_device_bidirectional_memcpy_write_ce", 2);
        let names: Vec<&str> = case.shapes.iter().map(|shape| shape.testcase.as_str()).collect();
        let stem = "device_to_device_bidirectional_memcpy_write_ce";
        assert_eq!(
            names,
            [format!("{stem}_write1"), format!("{stem}_write2"), format!("{stem}_total")]
        );
    }

    #[test]
    fn what_only_disturbs_is_twice_as_large_and_gives_no_number() {
        let (host, gpu) = (Place::Host(1), Place::Gpu(1));
        let there = moves("host_to_device_bidirectional_memcpy_ce", (0, 1));
        assert_eq!(there, [(host, gpu, 1, 1), (gpu, host, 1, 2)]);
        let back = moves("device_to_host_bidirectional_memcpy_ce", (0, 1));
        assert_eq!(back, [(gpu, host, 1, 1), (host, gpu, 1, 2)]);
        let all = of("all_to_host_bidirectional_memcpy_ce", 3);
        assert_eq!(all.runs[1].copies.len(), 6);
        assert_eq!(all.runs[1].copies[0], Copy { from: gpu, to: host, by: 1, times: 1 });
        assert!(all.runs[1].copies[1..].iter().all(|copy| copy.times == 2));
        assert_eq!(
            all.runs[1].numbers,
            [number("all_to_host_bidirectional_memcpy_ce", (0, 1), Of::One(0))]
        );
    }

    #[test]
    fn the_total_of_a_read_by_all_is_what_leaves_the_one() {
        for (name, inbound) in [
            ("all_to_one_write_ce", true),
            ("all_to_one_read_ce", false),
            ("one_to_all_write_ce", false),
            ("one_to_all_read_ce", true),
        ] {
            let one = Place::Gpu(1);
            let run = &of(name, 4).runs[1];
            assert_eq!((run.copies.len(), run.numbers[0].of), (3, Of::All), "{name}");
            for copy in &run.copies {
                assert_eq!(if inbound { copy.to } else { copy.from }, one, "{name}");
                assert_eq!(copy.by == 1, name.starts_with("one_to_all"), "{name}");
            }
        }
    }

    #[test]
    fn every_cell_is_measured_once_and_pairs_at_once_share_no_gpu() {
        for (name, _) in KINDS {
            for gpus in 1..=8 {
                let Ok(case) = case(name, &labels(gpus), &everywhere) else { continue };
                for shape in &case.shapes {
                    let cells = case.runs.iter().flat_map(|run| &run.numbers);
                    let cells: Vec<_> =
                        cells.filter(|it| it.testcase == shape.testcase).map(|it| it.at).collect();
                    let unique: BTreeSet<_> = cells.iter().copied().collect();
                    assert_eq!(unique.len(), cells.len(), "{name} {gpus}");
                    let square = 1 < shape.rows.len();
                    let expected = if square { gpus * (gpus - 1) } else { gpus };
                    assert_eq!(cells.len(), expected, "{name} {gpus}");
                }
            }
        }
        for run in of("device_to_device_concurrent_memcpy_write_ce", 8).runs {
            let ends: BTreeSet<Place> = run.copies.iter().flat_map(|it| [it.from, it.to]).collect();
            assert_eq!((run.copies.len(), ends.len()), (4, 8));
        }
    }

    #[test]
    fn pairs_that_do_not_reach_each_other_are_left_out() {
        let islands = |a: usize, b: usize| a / 2 == b / 2;
        for (name, runs, copies) in [
            ("device_to_device_memcpy_read_ce", 4, 4),
            ("device_to_device_concurrent_memcpy_read_ce", 2, 4),
            ("one_to_all_write_ce", 4, 4),
        ] {
            let case = case(name, &labels(4), &islands).expect("a test");
            assert_eq!(case.runs.len(), runs, "{name}");
            assert_eq!(
                case.runs.iter().map(|run| run.copies.len()).sum::<usize>(),
                copies,
                "{name}"
            );
        }
        let alone = case("all_to_one_write_ce", &labels(3), &|_, _| false).expect("a test");
        assert!(alone.runs.is_empty());
    }

    #[test]
    fn one_gpu_has_no_pairs_and_a_name_of_nobody_is_none() {
        let refused = |name| case(name, &labels(1), &everywhere).expect_err("nothing to run");
        assert_eq!(refused("device_to_device_memcpy_read_ce"), Refusal::NeedsPairs);
        assert_eq!(refused("one_to_all_read_ce"), Refusal::NeedsPairs);
        assert_eq!(refused("host_to_device_memcpy_sm"), Refusal::Unknown);
        assert_eq!(of("all_to_host_memcpy_ce", 1).runs.len(), 1);
        assert_eq!(of("device_local_copy", 1).shapes[0].rows, ["0"]);
    }
}
