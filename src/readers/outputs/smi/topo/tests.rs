//! Generated outputs in the tool's grammar, and properties of the parser.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::outputs;
use crate::outputs::fixture;

fn read(text: &str) -> ParseOutput {
    let parsed = outputs::parse_output(text.as_bytes());
    assert_eq!(parsed.tool, Some(Tool::NvidiaSmiTopo));
    parsed
}

const LEGEND: &str = "\nLegend:\n\n  X    = Self\n  SYS  = across NUMA nodes (e.g., UPI)\n";

fn device(index: usize, gpus: usize) -> String {
    if index < gpus { format!("GPU{index}") } else { format!("NIC{}", index - gpus) }
}

/// As a driver of the 5xx series prints it: tabs, an empty field before the
/// last column, NIC rows without affinity.
fn render_tabs(cells: &[Vec<String>], gpus: usize) -> String {
    let mut out = String::from("\t\u{1b}[4m");
    for index in 0..cells.len() {
        write!(out, "{}\t", device(index, gpus)).unwrap();
    }
    out.push_str("CPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\n");
    for (index, row) in cells.iter().enumerate() {
        write!(out, "{}\t", device(index, gpus)).unwrap();
        for cell in row {
            let cell = if cell == "X" { " X " } else { cell };
            write!(out, "{cell}\t").unwrap();
        }
        if index < gpus {
            write!(out, "{}-{}\t{index}\t\tN/A", index * 8, index * 8 + 7).unwrap();
        }
        out.push('\n');
    }
    out.push_str(LEGEND);
    if gpus < cells.len() {
        out.push_str("\nNIC Legend:\n\n");
        for nic in 0..cells.len() - gpus {
            writeln!(out, "  NIC{nic}: mlx5_{nic}").unwrap();
        }
    }
    out
}

/// As users post it: columns of eight, two affinities.
fn render_spaces(cells: &[Vec<String>]) -> String {
    let mut out = String::from("me@host:~$ nvidia-smi topo -m\r\n        ");
    for index in 0..cells.len() {
        write!(out, "{:<8}", device(index, cells.len())).unwrap();
    }
    out.push_str("CPU Affinity    NUMA Affinity\r\n");
    for (index, row) in cells.iter().enumerate() {
        write!(out, "{:<8}", device(index, cells.len())).unwrap();
        for cell in row {
            let cell = if cell == "X" { " X" } else { cell };
            write!(out, "{cell:<8}").unwrap();
        }
        write!(out, "{:<16}{index}\r\n", format!("{}-{}", index * 8, index * 8 + 7)).unwrap();
    }
    out
}

/// A symmetric matrix, cells taken in turn from `pick`.
fn matrix(devices: usize, pick: &[usize]) -> Vec<Vec<String>> {
    let words = ["NV18", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS", "N/A"];
    (0..devices)
        .map(|row| {
            (0..devices)
                .map(|column| {
                    let at = row.min(column) * devices + row.max(column);
                    if row == column { "X".to_owned() } else { words[pick[at] % 8].to_owned() }
                })
                .collect()
        })
        .collect()
}

fn connections(parsed: &ParseOutput) -> Vec<Vec<String>> {
    let topology = parsed.facts.topology.as_ref().expect("a topology");
    topology.rows.iter().map(|r| r.connections.clone()).collect()
}

#[test]
fn tabs_colours_nics_and_the_extra_field_are_read() {
    let cells = matrix(6, &[0; 36]);
    let parsed = read(&render_tabs(&cells, 4));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    let topology = parsed.facts.topology.as_ref().expect("a topology");
    assert_eq!(topology.columns, ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1"]);
    assert_eq!(topology.rows[3].cpu_affinity.as_deref(), Some("24-31"));
    assert_eq!(topology.rows[3].numa_affinity.as_deref(), Some("3"));
    assert_eq!((&topology.rows[5].cpu_affinity, &topology.rows[5].numa_affinity), (&None, &None));
    assert_eq!(topology.nics["NIC1"], "mlx5_1");
}

#[test]
fn nics_named_after_their_device_need_no_legend() {
    let text = "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n\
                GPU0\t X \tNV6\tPIX\t0-15\n\
                GPU1\tNV6\t X \tSYS\t16-31\n\
                mlx5_0\tPIX\tSYS\t X \t\n";
    let parsed = read(text);
    assert!(parsed.complete, "{:?}", parsed.problems);
    assert_eq!(parsed.facts.topology.expect("a topology").columns[2], "mlx5_0");
}

#[test]
fn one_gpu_alone_is_a_matrix() {
    let parsed =
        read("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0\t\t1\n");
    assert!(parsed.complete, "{:?}", parsed.problems);
    assert_eq!(connections(&parsed), [["X"]]);
}

#[test]
fn columns_that_a_terminal_cut_off_are_missing() {
    let text = "        GPU0    GPU1  CPU Affinity    NUMA Affinity\n\
                GPU0     X      NV8   -31,64-95       0\n\
                GPU1    NV8      X    -31,64-95       0\n\
                NIC0    PIX     SYS\n";
    let parsed = read(text);
    assert!(!parsed.complete && parsed.problems[0].detail.contains("no column for NIC0"));
    assert_eq!(connections(&parsed)[0], ["X", "NV8"]);
}

#[test]
fn a_row_longer_or_shorter_than_the_heading_is_a_truncation() {
    let longer = "        GPU0    GPU1\nGPU0     X      NV8     PIX\nGPU1    NV8      X      SYS\n";
    let shorter = "        GPU0    GPU1\nGPU0     X      NV8\nGPU1    NV8\n";
    for text in [longer, shorter] {
        let parsed = read(text);
        assert!(parsed.has_problem(OutputProblemKind::Truncated) && !parsed.complete, "{text}");
    }
    assert_eq!(connections(&read(shorter))[1], ["NV8", ""]);
}

#[test]
fn directions_that_disagree_are_inconsistent() {
    let mut cells = matrix(4, &[0; 16]);
    cells[2][1] = "SYS".to_owned();
    let parsed = read(&render_tabs(&cells, 4));
    let problem = &parsed.problems[0];
    assert_eq!(problem.kind, OutputProblemKind::Inconsistent);
    assert_eq!(problem.detail, "GPU1 to GPU2 is NV18, GPU2 to GPU1 is SYS");
    assert_eq!(parsed.problems.len(), 1);
}

#[test]
fn peer_access_is_a_topology_marked_as_such() {
    let text = " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tOK\tX\t\n\nLegend:\n\n  X    = Self\n";
    let parsed = read(text);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    assert_eq!(parsed.facts.parameters["topology.matrix"], "p2p");
    assert_eq!(connections(&parsed), [["X", "CNS"], ["OK", "X"]]);
}

#[test]
fn paths_win_over_peer_access_in_one_capture() {
    let text = format!(
        "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n\n{}",
        render_tabs(&matrix(2, &[2; 4]), 2)
    );
    let parsed = read(&text);
    assert_eq!(connections(&parsed), [["X", "PIX"], ["PIX", "X"]]);
    assert!(parsed.complete && parsed.facts.parameters.is_empty());
}

#[test]
fn a_forged_file_of_many_rows_ends_in_time() {
    let rows: String = (0..100_000).map(|row| format!("GPU{row} X\n")).collect();
    let parsed = read(&format!("GPU0 CPU Affinity\n{rows}"));
    assert!(!parsed.complete);
    assert_eq!(connections(&parsed).len(), MOST_DEVICES);
}

proptest! {
    #[test]
    fn output_rendered_with_tabs_is_read_back(
        gpus in 1usize..9,
        nics in 0usize..5,
        pick in proptest::collection::vec(0usize..8, 13 * 13),
    ) {
        let cells = matrix(gpus + nics, &pick);
        let parsed = read(&render_tabs(&cells, gpus));
        prop_assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        prop_assert_eq!(connections(&parsed), cells);
    }

    #[test]
    fn output_rendered_with_blanks_is_read_back(
        gpus in 2usize..9,
        pick in proptest::collection::vec(0usize..7, 64),
    ) {
        let cells = matrix(gpus, &pick);
        let parsed = read(&render_spaces(&cells));
        prop_assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        prop_assert_eq!(connections(&parsed), cells);
        let topology = parsed.facts.topology.expect("a topology");
        for (index, row) in topology.rows.iter().enumerate() {
            prop_assert_eq!(row.numa_affinity.clone(), Some(index.to_string()));
        }
    }

    #[test]
    fn a_lost_row_is_noticed(row in 0usize..8) {
        let text = render_tabs(&matrix(8, &[0; 64]), 8);
        let kept: Vec<&str> =
            text.lines().enumerate().filter(|(i, _)| *i != row + 1).map(|(_, l)| l).collect();
        prop_assert!(!read(&kept.join("\n")).complete);
    }

    #[test]
    fn nothing_makes_it_panic(text in ".{0,300}", hurt in fixture::any_damage()) {
        let good = render_tabs(&matrix(5, &[1; 25]), 3);
        for bytes in [text.as_bytes().to_vec(), fixture::apply_damage(&good, &hurt)] {
            let decoded = text::decode(&bytes);
            let parsed = parse(&ParserInput::new(&decoded));
            if let Some(topology) = parsed.facts.topology {
                for row in &topology.rows {
                    prop_assert_eq!(row.connections.len(), topology.columns.len());
                }
            }
        }
    }
}

#[test]
fn blank_lines_between_rows_end_nothing() {
    let cells = [["X", "NV4"], ["NV4", "X"]].map(|row| row.map(str::to_owned).to_vec());
    let whole = render_tabs(&cells, 2);
    let (matrix, legend) = whole.split_once("\n\n").expect("a legend");
    let parsed = read(&format!("{}\n\n{legend}", matrix.replace('\n', "\n\n")));
    assert_eq!(parsed.facts.topology, read(&whole).facts.topology);
    assert!(parsed.complete, "{:?}", parsed.problems);
}
