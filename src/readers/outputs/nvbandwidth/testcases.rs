//! The names of nvbandwidth's tests, and their execution order.
//!
//! Names and order come from `createTestcases` and `testcase.h` of the tags v0.5 to v0.8. The order
//! has one use: those versions print `Waived: ` without the name of the waived test. This module
//! has no expectations.

use model::unit::Unit;

/// One test of the default list.
struct DefaultTestcase {
    name: &'static str,
    /// First minor version that has it, counted from v0.5.
    since: u32,
    /// It is waived without peer access (or, multi-node, with one rank).
    can_be_waived: bool,
    /// Only in the MPI build.
    multinode: bool,
}

const fn always(name: &'static str) -> DefaultTestcase {
    DefaultTestcase { name, since: 5, can_be_waived: false, multinode: false }
}

const fn peers(name: &'static str) -> DefaultTestcase {
    DefaultTestcase { name, since: 5, can_be_waived: true, multinode: false }
}

const fn later(name: &'static str) -> DefaultTestcase {
    DefaultTestcase { name, since: 7, can_be_waived: false, multinode: false }
}

const fn ranks(name: &'static str) -> DefaultTestcase {
    DefaultTestcase { name, since: 7, can_be_waived: true, multinode: true }
}

const ORDER: &[DefaultTestcase] = &[
    always("host_to_device_memcpy_ce"),
    always("device_to_host_memcpy_ce"),
    always("host_to_device_bidirectional_memcpy_ce"),
    always("device_to_host_bidirectional_memcpy_ce"),
    peers("device_to_device_memcpy_read_ce"),
    peers("device_to_device_memcpy_write_ce"),
    peers("device_to_device_bidirectional_memcpy_read_ce"),
    peers("device_to_device_bidirectional_memcpy_write_ce"),
    always("all_to_host_memcpy_ce"),
    always("all_to_host_bidirectional_memcpy_ce"),
    always("host_to_all_memcpy_ce"),
    always("host_to_all_bidirectional_memcpy_ce"),
    peers("all_to_one_write_ce"),
    peers("all_to_one_read_ce"),
    peers("one_to_all_write_ce"),
    peers("one_to_all_read_ce"),
    always("host_to_device_memcpy_sm"),
    always("device_to_host_memcpy_sm"),
    later("host_to_device_bidirectional_memcpy_sm"),
    later("device_to_host_bidirectional_memcpy_sm"),
    peers("device_to_device_memcpy_read_sm"),
    peers("device_to_device_memcpy_write_sm"),
    peers("device_to_device_bidirectional_memcpy_read_sm"),
    peers("device_to_device_bidirectional_memcpy_write_sm"),
    always("all_to_host_memcpy_sm"),
    always("all_to_host_bidirectional_memcpy_sm"),
    always("host_to_all_memcpy_sm"),
    always("host_to_all_bidirectional_memcpy_sm"),
    peers("all_to_one_write_sm"),
    peers("all_to_one_read_sm"),
    peers("one_to_all_write_sm"),
    peers("one_to_all_read_sm"),
    always("host_device_latency_sm"),
    peers("device_to_device_latency_sm"),
    later("device_local_copy"),
    ranks("multinode_device_to_device_memcpy_read_ce"),
    ranks("multinode_device_to_device_memcpy_write_ce"),
    ranks("multinode_device_to_device_bidirectional_memcpy_read_ce"),
    ranks("multinode_device_to_device_bidirectional_memcpy_write_ce"),
    ranks("multinode_device_to_device_memcpy_read_sm"),
    ranks("multinode_device_to_device_memcpy_write_sm"),
    ranks("multinode_device_to_device_bidirectional_memcpy_read_sm"),
    ranks("multinode_device_to_device_bidirectional_memcpy_write_sm"),
    ranks("multinode_device_to_device_all_to_one_write_sm"),
    ranks("multinode_device_to_device_all_from_one_read_sm"),
    ranks("multinode_device_to_device_broadcast_one_to_all_sm"),
    ranks("multinode_device_to_device_broadcast_all_to_all_sm"),
    ranks("multinode_bisect_write_ce"),
];

/// The event of one test, in output order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TestcaseEvent {
    /// It ran (or tried to); `None` for an unreadable name.
    Ran(Option<String>),
    /// It was waived; the tool printed no name.
    Waived,
}

/// The names of the nameless waived tests, in order; `None` if more than one assignment fits.
///
/// Between two tests that ran, the default order leaves a set of tests that can be waived. Only if
/// all of them must have been waived is each one known: a user may have selected tests with `-t` or
/// `-p`.
pub(super) fn name_waived(
    minor: u32,
    multinode: bool,
    events: &[TestcaseEvent],
) -> Vec<Option<&'static str>> {
    let nameless = events.iter().filter(|e| **e == TestcaseEvent::Waived).count();
    let mut names = Vec::with_capacity(nameless);
    // Earlier versions print the name; the order of later ones is unknown.
    if !(5..=8).contains(&minor) {
        return vec![None; nameless];
    }
    let order: Vec<&DefaultTestcase> =
        ORDER.iter().filter(|t| t.since <= minor && (multinode || !t.multinode)).collect();
    let mut from = 0;
    let mut waived = 0;
    let settle =
        |names: &mut Vec<Option<&'static str>>, between: &[&DefaultTestcase], waived: usize| {
            let candidates: Vec<&str> =
                between.iter().filter(|t| t.can_be_waived).map(|t| t.name).collect();
            if candidates.len() == waived {
                names.extend(candidates.into_iter().map(Some));
            } else {
                names.extend(std::iter::repeat_n(None, waived));
            }
        };
    for event in events {
        let TestcaseEvent::Ran(name) = event else {
            waived += 1;
            continue;
        };
        let at = order.iter().position(|t| Some(t.name) == name.as_deref());
        let Some(at) = at.filter(|at| from <= *at) else {
            // Not the default order: the names stay unknown.
            return vec![None; nameless];
        };
        settle(&mut names, &order[from..at], waived);
        waived = 0;
        from = at + 1;
    }
    settle(&mut names, &order[from..], waived);
    names
}

/// Whether this looks like the name of a test, known or not.
pub(super) fn is_name(word: &str) -> bool {
    word.contains('_')
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether this is the name of one of nvbandwidth's tests, of any version, or of a part of one.
pub(super) fn is_known(word: &str) -> bool {
    const FAMILIES: [&str; 8] = [
        "host_to_device_",
        "host_to_all_",
        "host_device_latency_",
        "device_to_",
        "device_local_",
        "all_to_",
        "one_to_all_",
        "multinode_",
    ];
    is_name(word) && FAMILIES.iter().any(|family| word.starts_with(family))
}

/// Tests that were added after v0.8, from the `--list` of v0.10.
const LATER: [&str; 9] = [
    "device_to_device_memcpy_read_tma",
    "device_to_device_memcpy_write_tma",
    "device_to_device_bidirectional_memcpy_read_tma",
    "device_to_device_bidirectional_memcpy_write_tma",
    "device_local_copy_sm",
    "device_local_read_sm",
    "device_local_write_sm",
    "device_to_device_latency_tma",
    "device_local_copy_tma",
];

/// Whether this is exactly a test of a version with known source, or a part of one.
pub(super) fn is_listed(word: &str) -> bool {
    let name = ["_read1", "_read2", "_write1", "_write2", "_total"]
        .iter()
        .find_map(|part| word.strip_suffix(part))
        .unwrap_or(word);
    ORDER.iter().any(|test| test.name == name) || LATER.contains(&name)
}

/// A line without the mark that a user put in front of an announcement.
pub(super) fn strip_mark(text: &str) -> &str {
    let bare = text.trim_start_matches(['>', '#', '*', '-', '=', '|', '`', '$', '+', ' ']);
    let is_known =
        || parse_announcement(bare.trim_end_matches(['`', '*', ' '])).is_some_and(is_known);
    if bare.len() < text.len() && is_known() {
        bare.trim_end_matches(['`', '*', ' '])
    } else {
        text
    }
}

/// The test that `Running X.` or `Waiving X.` announces.
pub(super) fn parse_announcement(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("Running ").or_else(|| text.strip_prefix("Waiving "))?.trim();
    let name = rest.strip_suffix('.').unwrap_or(rest);
    is_name(name).then_some(name)
}

/// The test on a line of `--list`: `12, all_to_one_write_ce:`.
pub(super) fn parse_listed_testcase(text: &str) -> Option<&str> {
    let (index, name) = text.split_once(", ")?;
    let name = name.trim_end().strip_suffix(':')?;
    (super::super::text::parse_integer(index).is_some() && is_known(name)).then_some(name)
}

/// Whether row and column both stand for GPUs (or ranks), so that the diagonal is a GPU with
/// itself.
pub(super) fn is_pairwise(name: &str) -> bool {
    name.strip_prefix("multinode_").unwrap_or(name).starts_with("device_to_device_")
        && !["all_to_one", "all_from_one", "broadcast"].iter().any(|one| name.contains(one))
}

/// Whether the test reports a bidirectional copy between GPUs, which since v0.6
/// comes as three matrices.
pub(super) fn has_parts(name: &str) -> bool {
    is_pairwise(name) && name.contains("bidirectional")
}

/// The suffixes of the three matrices of a bidirectional test, in order.
pub(super) fn part_suffixes(name: &str) -> [&'static str; 3] {
    if name.contains("write") {
        ["_write1", "_write2", "_total"]
    } else {
        ["_read1", "_read2", "_total"]
    }
}

/// The suffix of the matrix under this title. The number decides, not the text: the multi-node
/// write test titles its parts `Read1` and `Read2` (v0.7, v0.8).
pub(super) fn part_for_title(name: &str, title: &str) -> Option<&'static str> {
    let [first, second, total] = part_suffixes(name);
    title.split_whitespace().find_map(|word| match word {
        "Read1" | "Write1" => Some(first),
        "Read2" | "Write2" => Some(second),
        "Total" => Some(total),
        _ => None,
    })
}

/// The unit of a test's numbers, from its title, else from its name.
pub(super) fn testcase_unit(name: Option<&str>, title: Option<&str>) -> Option<Unit> {
    let in_title = title.and_then(|title| {
        [
            ("(GB/s)", Unit::GigabytesPerSecond),
            ("(ns)", Unit::Nanoseconds),
            ("(us)", Unit::Microseconds),
        ]
        .iter()
        .find(|(text, _)| title.contains(text))
        .map(|(_, unit)| *unit)
    });
    in_title.or_else(|| {
        name.map(|name| {
            if name.contains("message_latency") {
                Unit::Microseconds
            } else if name.contains("latency") {
                Unit::Nanoseconds
            } else {
                Unit::GigabytesPerSecond
            }
        })
    })
}
