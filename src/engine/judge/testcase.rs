//! Meaning of a test case: the direction of the data, and the path.
//!
//! The arrow in nvbandwidth's headlines is not the direction of the data: the row is the GPU that
//! issues the copy. A write moves row to column, a read pulls column to row (nvbandwidth sources,
//! v0.1 to v0.8). Names only; no numbers here.

use model::verdict::Direction;

/// The meaning of a test's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellShape {
    /// GPU to GPU, data moves from row to column.
    RowToColumn,
    /// GPU to GPU, data moves from column to row.
    ColumnToRow,
    /// GPU to GPU, both directions concurrently.
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
    /// Not a bandwidth, or unknown.
    Other,
}

impl CellShape {
    /// Whether cells are between two GPUs.
    pub(super) fn is_pair(self) -> bool {
        matches!(self, Self::RowToColumn | Self::ColumnToRow | Self::BothWays | Self::LabelledPair)
    }

    /// Whether cells are between host memory and a GPU.
    pub(super) fn is_host(self) -> bool {
        matches!(self, Self::Host(_) | Self::LoadedHost(_))
    }
}

/// The meaning of this test case's cells.
pub(super) fn shape_of(testcase: &str) -> CellShape {
    let name = testcase.strip_prefix("multinode_").unwrap_or(testcase);
    if name.contains("latency") {
        return CellShape::Other;
    }
    if let Some(rest) = name.strip_prefix("device_to_device_") {
        return device_to_device_shape(rest);
    }
    if let Some(rest) = name.strip_prefix("p2p_") {
        return p2p_shape(rest);
    }
    if name.starts_with("bisect_") {
        return CellShape::LabelledPair;
    }
    let prefixes = [
        ("host_to_device_memcpy", CellShape::Host(Direction::H2d)),
        ("device_to_host_memcpy", CellShape::Host(Direction::D2h)),
        ("host_to_device_", CellShape::LoadedHost(Direction::H2d)),
        ("host_to_all_", CellShape::LoadedHost(Direction::H2d)),
        ("device_to_host_", CellShape::LoadedHost(Direction::D2h)),
        ("all_to_host_", CellShape::LoadedHost(Direction::D2h)),
        // A read reverses the fan: the GPU that is read from sends (nvbandwidth's sources, v0.8).
        ("all_to_one_read_", CellShape::Fan(Direction::Tx)),
        ("one_to_all_read_", CellShape::Fan(Direction::Rx)),
        ("all_to_one_", CellShape::Fan(Direction::Rx)),
        ("all_from_one_", CellShape::Fan(Direction::Tx)),
        ("one_to_all_", CellShape::Fan(Direction::Tx)),
        ("device_local_", CellShape::Local),
    ];
    prefixes
        .iter()
        .find(|(prefix, _)| name.starts_with(prefix))
        .map_or(CellShape::Other, |(_, s)| *s)
}

fn device_to_device_shape(rest: &str) -> CellShape {
    if rest.starts_with("bidirectional_") || rest.starts_with("bidir_") {
        CellShape::BothWays
    } else if rest.starts_with("memcpy_read")
        || rest.starts_with("concurrent_memcpy_read")
        || rest.starts_with("unidir_")
    {
        // nvloom's rows are destinations, in reads and in writes.
        CellShape::ColumnToRow
    } else if rest.starts_with("memcpy_write") || rest.starts_with("concurrent_memcpy_write") {
        CellShape::RowToColumn
    } else {
        CellShape::Other
    }
}

/// Whether a pair's reading in this test depends on the other pairs: all pairs of a round copy
/// concurrently.
pub(super) fn is_concurrent(testcase: &str) -> bool {
    testcase.starts_with("device_to_device_concurrent_")
}

/// p2pBandwidthLatencyTest. With peer access disabled the same copy takes the path through host
/// memory, which does not measure the fabric.
fn p2p_shape(rest: &str) -> CellShape {
    if !rest.ends_with("enabled") {
        CellShape::Other
    } else if rest.starts_with("unidirectional_read") || rest == "unidirectional_enabled" {
        // The CUDA 8 release names no method and pulls.
        CellShape::ColumnToRow
    } else if rest.starts_with("unidirectional") {
        CellShape::RowToColumn
    } else if rest.starts_with("bidirectional") {
        CellShape::BothWays
    } else {
        CellShape::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_issues_the_copy_and_a_read_pulls() {
        assert_eq!(shape_of("device_to_device_memcpy_write_ce"), CellShape::RowToColumn);
        assert_eq!(shape_of("device_to_device_memcpy_read_sm"), CellShape::ColumnToRow);
        assert_eq!(shape_of("multinode_device_to_device_memcpy_read_ce"), CellShape::ColumnToRow);
        assert_eq!(
            shape_of("device_to_device_bidirectional_memcpy_write_ce_total"),
            CellShape::BothWays
        );
        assert_eq!(shape_of("p2p_unidirectional_read_enabled"), CellShape::ColumnToRow);
        assert_eq!(shape_of("device_to_device_unidir_write_ce"), CellShape::ColumnToRow);
    }

    #[test]
    fn a_read_reverses_a_fan() {
        let fans = [
            "all_to_one_write_ce",
            "all_to_one_read_ce",
            "one_to_all_write_sm",
            "one_to_all_read_sm",
        ];
        let ways = [Direction::Rx, Direction::Tx, Direction::Tx, Direction::Rx].map(CellShape::Fan);
        assert_eq!(fans.map(shape_of), ways);
    }

    #[test]
    fn host_tests_name_their_direction_and_load() {
        assert_eq!(shape_of("host_to_device_memcpy_ce"), CellShape::Host(Direction::H2d));
        assert_eq!(
            shape_of("device_to_host_bidirectional_memcpy_ce"),
            CellShape::LoadedHost(Direction::D2h)
        );
        assert_eq!(shape_of("all_to_host_memcpy_sm"), CellShape::LoadedHost(Direction::D2h));
    }

    #[test]
    fn latencies_and_disabled_peer_access_are_not_bandwidth_of_the_fabric() {
        assert_eq!(shape_of("device_to_device_latency_sm"), CellShape::Other);
        assert_eq!(shape_of("host_device_latency_sm"), CellShape::Other);
        assert_eq!(shape_of("p2p_unidirectional_disabled"), CellShape::Other);
        for own in ["host_to_device_latency_ce", "device_to_host_latency_ce"] {
            assert_eq!(shape_of(own), CellShape::Other);
        }
        assert_eq!(shape_of("device_to_device_latency_ce"), CellShape::Other);
    }

    #[test]
    fn concurrent_pairs_move_data_like_a_single_pair() {
        let read = "device_to_device_concurrent_memcpy_read_ce";
        assert_eq!(shape_of(read), CellShape::ColumnToRow);
        assert_eq!(shape_of("device_to_device_concurrent_memcpy_write_ce"), CellShape::RowToColumn);
        assert!(is_concurrent(read) && !is_concurrent("device_to_device_memcpy_read_ce"));
    }
}
