//! What a test case measures: which way the data moves, and over which path.
//!
//! The arrow in nvbandwidth's headlines is not the direction of the data: the
//! row is the GPU that issues the copy. A write moves row to column, a read
//! pulls column to row (nvbandwidth sources, v0.1 to v0.8). Names only; no
//! numbers here.

use model::verdict::Direction;

/// What the cells of a test are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// GPU to GPU, data moves from row to column.
    RowToColumn,
    /// GPU to GPU, data moves from column to row.
    ColumnToRow,
    /// GPU to GPU, both ways at once.
    BothWays,
    /// GPU to GPU, one cell per rank, the row label names both: `r->p`.
    LabelledPair,
    /// One number per GPU: a copy between host memory and it, alone.
    Host(Direction),
    /// One number per GPU: a copy between host memory and it, under load.
    LoadedHost(Direction),
    /// One number per GPU: its total to or from all others.
    Fan(Direction),
    /// One number per GPU: inside it.
    Local,
    /// Anything that is no bandwidth, or is not known.
    Other,
}

impl Shape {
    /// Whether cells are between two GPUs.
    pub(super) fn is_pair(self) -> bool {
        matches!(self, Self::RowToColumn | Self::ColumnToRow | Self::BothWays | Self::LabelledPair)
    }

    /// Whether cells are between host memory and a GPU.
    pub(super) fn is_host(self) -> bool {
        matches!(self, Self::Host(_) | Self::LoadedHost(_))
    }
}

/// What the cells of this test case are.
pub(super) fn shape(testcase: &str) -> Shape {
    let name = testcase.strip_prefix("multinode_").unwrap_or(testcase);
    if name.contains("latency") {
        return Shape::Other;
    }
    if let Some(rest) = name.strip_prefix("device_to_device_") {
        return device_to_device(rest);
    }
    if let Some(rest) = name.strip_prefix("p2p_") {
        return p2p(rest);
    }
    if name.starts_with("bisect_") {
        return Shape::LabelledPair;
    }
    let prefixes = [
        ("host_to_device_memcpy", Shape::Host(Direction::H2d)),
        ("device_to_host_memcpy", Shape::Host(Direction::D2h)),
        ("host_to_device_", Shape::LoadedHost(Direction::H2d)),
        ("host_to_all_", Shape::LoadedHost(Direction::H2d)),
        ("device_to_host_", Shape::LoadedHost(Direction::D2h)),
        ("all_to_host_", Shape::LoadedHost(Direction::D2h)),
        // A read turns the fan around: who is read from sends (nvbandwidth's sources, v0.8).
        ("all_to_one_read_", Shape::Fan(Direction::Tx)),
        ("one_to_all_read_", Shape::Fan(Direction::Rx)),
        ("all_to_one_", Shape::Fan(Direction::Rx)),
        ("all_from_one_", Shape::Fan(Direction::Tx)),
        ("one_to_all_", Shape::Fan(Direction::Tx)),
        ("device_local_", Shape::Local),
    ];
    prefixes.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(Shape::Other, |(_, s)| *s)
}

fn device_to_device(rest: &str) -> Shape {
    if rest.starts_with("bidirectional_") || rest.starts_with("bidir_") {
        Shape::BothWays
    } else if rest.starts_with("memcpy_read")
        || rest.starts_with("concurrent_memcpy_read")
        || rest.starts_with("unidir_")
    {
        // nvloom's rows are destinations, in reads and in writes.
        Shape::ColumnToRow
    } else if rest.starts_with("memcpy_write") || rest.starts_with("concurrent_memcpy_write") {
        Shape::RowToColumn
    } else {
        Shape::Other
    }
}

/// Whether what a pair shows in this test depends on who else copies: all pairs
/// of a round copy at once.
pub(super) fn is_at_once(testcase: &str) -> bool {
    testcase.starts_with("device_to_device_concurrent_")
}

/// p2pBandwidthLatencyTest. With peer access disabled the same copy takes the
/// path through host memory, which says nothing of the fabric.
fn p2p(rest: &str) -> Shape {
    if !rest.ends_with("enabled") {
        Shape::Other
    } else if rest.starts_with("unidirectional_read") || rest == "unidirectional_enabled" {
        // The release of CUDA 8 names no method and pulls.
        Shape::ColumnToRow
    } else if rest.starts_with("unidirectional") {
        Shape::RowToColumn
    } else if rest.starts_with("bidirectional") {
        Shape::BothWays
    } else {
        Shape::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_issues_the_copy_and_a_read_pulls() {
        assert_eq!(shape("device_to_device_memcpy_write_ce"), Shape::RowToColumn);
        assert_eq!(shape("device_to_device_memcpy_read_sm"), Shape::ColumnToRow);
        assert_eq!(shape("multinode_device_to_device_memcpy_read_ce"), Shape::ColumnToRow);
        assert_eq!(shape("device_to_device_bidirectional_memcpy_write_ce_total"), Shape::BothWays);
        assert_eq!(shape("p2p_unidirectional_read_enabled"), Shape::ColumnToRow);
        assert_eq!(shape("device_to_device_unidir_write_ce"), Shape::ColumnToRow);
    }

    #[test]
    fn a_read_turns_a_fan_around() {
        let fans = [
            "all_to_one_write_ce",
            "all_to_one_read_ce",
            "one_to_all_write_sm",
            "one_to_all_read_sm",
        ];
        let ways = [Direction::Rx, Direction::Tx, Direction::Tx, Direction::Rx].map(Shape::Fan);
        assert_eq!(fans.map(shape), ways);
    }

    #[test]
    fn host_tests_name_their_direction_and_load() {
        assert_eq!(shape("host_to_device_memcpy_ce"), Shape::Host(Direction::H2d));
        assert_eq!(
            shape("device_to_host_bidirectional_memcpy_ce"),
            Shape::LoadedHost(Direction::D2h)
        );
        assert_eq!(shape("all_to_host_memcpy_sm"), Shape::LoadedHost(Direction::D2h));
    }

    #[test]
    fn latencies_and_disabled_peer_access_are_not_bandwidth_of_the_fabric() {
        assert_eq!(shape("device_to_device_latency_sm"), Shape::Other);
        assert_eq!(shape("host_device_latency_sm"), Shape::Other);
        assert_eq!(shape("p2p_unidirectional_disabled"), Shape::Other);
        for own in ["host_to_device_latency_ce", "device_to_host_latency_ce"] {
            assert_eq!(shape(own), Shape::Other);
        }
        assert_eq!(shape("device_to_device_latency_ce"), Shape::Other);
    }

    #[test]
    fn pairs_at_once_move_data_as_a_pair_alone_does() {
        let read = "device_to_device_concurrent_memcpy_read_ce";
        assert_eq!(shape(read), Shape::ColumnToRow);
        assert_eq!(shape("device_to_device_concurrent_memcpy_write_ce"), Shape::RowToColumn);
        assert!(is_at_once(read) && !is_at_once("device_to_device_memcpy_read_ce"));
    }
}
