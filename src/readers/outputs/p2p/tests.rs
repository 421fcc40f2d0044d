//! Generated outputs in the grammar of the tool's sources.

use proptest::prelude::*;

use super::*;
use crate::outputs::fixture::{matrices, problem_kinds, scar_lines};
use crate::outputs::parse_output;
use model::measurement::MeasurementMatrix;
use model::unit::Unit;

fn matrix<'p>(parsed: &'p ParseOutput, testcase: &str) -> &'p MeasurementMatrix {
    let found = matrices(parsed).into_iter().find(|m| m.testcase.as_deref() == Some(testcase));
    found.unwrap_or_else(|| panic!("no {testcase} in {parsed:#?}"))
}

/// A table as the tool prints it.
fn table(corner: &str, cells: &[Vec<f64>]) -> String {
    let mut out = format!("   {corner}");
    for j in 0..cells.len() {
        out += &format!("{j:6} ");
    }
    out.push('\n');
    for (i, row) in cells.iter().enumerate() {
        out += &format!("{i:6} ");
        for cell in row {
            out += &format!("{cell:6.2} ");
        }
        out.push('\n');
    }
    out
}

fn level(gpus: usize, level: f64) -> Vec<Vec<f64>> {
    let cell = |i: usize, j: usize| match (i, j) {
        (i, j) if i == j => level * 4.0,
        (i, j) => level + (i * 10 + j) as f64 / 100.0,
    };
    (0..gpus).map(|i| (0..gpus).map(|j| cell(i, j)).collect()).collect()
}

fn connectivity(gpus: usize, cut_off: Option<usize>) -> String {
    let mut out = "P2P Connectivity Matrix\n     D\\D".to_owned();
    for j in 0..gpus {
        out += &format!("{j:6}");
    }
    out.push('\n');
    for i in 0..gpus {
        out += &format!("{i:6}\t");
        for j in 0..gpus {
            let can = i == j || (Some(i) != cut_off && Some(j) != cut_off);
            out += &format!("{:6}", u8::from(can));
        }
        out.push('\n');
    }
    out
}

/// A complete run; GPU `cut_off` can reach no other GPU.
fn whole_run(gpus: usize, reads: bool, cut_off: Option<usize>) -> String {
    let mut out = format!("[{BANNER}]\n");
    for i in 0..gpus {
        out += &format!(
            "Device: {i}, NVIDIA Z9, pciBusID: {:x}, pciDeviceID: 0, pciDomainID:1\n",
            0x1b + i
        );
    }
    for i in 0..gpus {
        for j in (0..gpus).filter(|j| *j != i) {
            let can = if Some(i) == cut_off || Some(j) == cut_off { "CANNOT" } else { "CAN" };
            out += &format!("Device={i} {can} Access Peer Device={j}\n");
        }
    }
    out += "\n***NOTE: In case a device doesn't have P2P access to other one, it is slower.\n\n";
    out += &connectivity(gpus, cut_off);
    let mut add = |title: &str, text: String| out += &format!("{title}\n{text}");
    let bandwidth = |value| table("D\\D", &level(gpus, value));
    let latency = |value| {
        format!(
            "{}\n{}",
            table("GPU", &level(gpus, value)),
            table("CPU", &level(gpus, value * 3.0))
        )
    };
    add("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", bandwidth(21.5));
    add("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", bandwidth(377.0));
    if reads {
        add("Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)", bandwidth(371.0));
    }
    add("Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)", bandwidth(29.25));
    add("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", bandwidth(741.0));
    add("P2P=Disabled Latency Matrix (us)", latency(17.25));
    add("P2P=Enabled Latency (P2P Writes) Matrix (us)", latency(2.5));
    if reads {
        add("P2P=Enabled Latency (P2P Reads) Matrix (us)", latency(2.75));
    }
    out + "\nNOTE: The CUDA Samples are not meant for performance measurements. Boost.\n"
}

#[test]
fn a_whole_run_gives_every_table_under_its_name() {
    let parsed = parse_output(whole_run(3, true, None).as_bytes());
    assert_eq!(parsed.tool, Some(Tool::P2pBandwidthLatencyTest));
    assert!(parsed.complete, "{:#?}", parsed.problems);
    let names: Vec<&str> = parsed.measurements.iter().filter_map(|m| m.testcase()).collect();
    assert_eq!(
        names,
        [
            "p2p_connectivity",
            "p2p_unidirectional_disabled",
            "p2p_unidirectional_write_enabled",
            "p2p_unidirectional_read_enabled",
            "p2p_bidirectional_disabled",
            "p2p_bidirectional_enabled",
            "p2p_latency_gpu_disabled",
            "p2p_latency_cpu_disabled",
            "p2p_latency_gpu_write_enabled",
            "p2p_latency_cpu_write_enabled",
            "p2p_latency_gpu_read_enabled",
            "p2p_latency_cpu_read_enabled",
        ]
    );
    let written = matrix(&parsed, "p2p_unidirectional_write_enabled");
    assert_eq!(written.unit, Some(Unit::GigabytesPerSecond));
    assert_eq!(written.cells[0], [Some(1508.0), Some(377.01), Some(377.02)]);
    assert_eq!((written.sum, written.run), (None, 0));
    assert_eq!(matrix(&parsed, "p2p_connectivity").unit, Some(Unit::Count));
    assert_eq!(matrix(&parsed, "p2p_latency_cpu_disabled").unit, Some(Unit::Microseconds));
    let devices = &parsed.facts.devices;
    assert_eq!(devices[2].bus_id.as_deref(), Some("00000001:1d:00"));
    assert_eq!((devices.len(), devices[0].name.as_deref()), (3, Some("NVIDIA Z9")));
}

#[test]
fn a_gpu_without_peers_shows_in_the_connectivity_and_in_the_facts() {
    let parsed = parse_output(whole_run(3, false, Some(1)).as_bytes());
    assert!(parsed.complete);
    let connected = &matrix(&parsed, "p2p_connectivity").cells;
    assert_eq!(connected[1], [Some(0.0), Some(1.0), Some(0.0)]);
    assert_eq!(parsed.facts.parameters["cannot_access_peer"], "0-1 1-0 1-2 2-1");
    assert_eq!(parsed.facts.parameters["peer_access"], "2 can, 4 cannot");
}

#[test]
fn the_layout_of_cuda_8_has_one_latency_table_and_no_method() {
    let mut text = format!("[{BANNER}]\nP2P Cliques: \n[0 1]\n");
    for (title, value) in [
        ("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", 8.0),
        ("Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)", 17.0),
        ("Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)", 9.0),
        ("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", 33.0),
        ("P2P=Disabled Latency Matrix (us)", 12.0),
        ("P2P=Enabled Latency Matrix (us)", 6.0),
    ] {
        text += &format!("{title}\n{}", table("D\\D", &level(2, value)));
    }
    text += "\nNOTE: The CUDA Samples are not meant for performance measurements.\n";
    let parsed = parse_output(text.as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    assert_eq!(matrix(&parsed, "p2p_unidirectional_enabled").cells[1][0], Some(17.1));
    assert_eq!(matrix(&parsed, "p2p_latency_enabled").unit, Some(Unit::Microseconds));
}

#[test]
fn a_run_without_its_closing_note_or_without_a_table_is_not_complete() {
    let whole = whole_run(2, false, None);
    let killed = &whole[..whole.find("P2P=Disabled Latency").expect("it is there")];
    let parsed = parse_output(killed.as_bytes());
    assert_eq!(
        (parsed.complete, problem_kinds(&parsed)),
        (false, vec![OutputProblemKind::Truncated])
    );

    let start = whole.find("Bidirectional P2P=Enabled").expect("it is there");
    let end = whole.find("P2P=Disabled Latency").expect("it is there");
    let parsed = parse_output((whole[..start].to_owned() + &whole[end..]).as_bytes());
    assert_eq!(
        (parsed.complete, problem_kinds(&parsed)),
        (false, vec![OutputProblemKind::Truncated])
    );
    assert!(parsed.problems[0].detail.contains("p2p_bidirectional_enabled"));
}

#[test]
fn an_excerpt_is_complete_when_its_tables_are_whole() {
    let excerpt = format!(
        "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n{}",
        table("D\\D", &level(4, 88.0))
    );
    let trimmed: String = excerpt.lines().map(|l| l.trim_end().to_owned() + "\n").collect();
    assert_eq!(parse_output(excerpt.as_bytes()), parse_output(trimmed.as_bytes()));
    assert!(parse_output(excerpt.as_bytes()).complete);
    let lines: Vec<&str> = excerpt.lines().collect();
    let parsed = parse_output(lines[..4].join("\n").as_bytes());
    assert_eq!(
        (parsed.complete, problem_kinds(&parsed)),
        (false, vec![OutputProblemKind::Truncated])
    );
    assert_eq!(matrices(&parsed)[0].cells[3], [None; 4]);
}

#[test]
fn an_untitled_table_with_dashes_and_ragged_integers_has_neither_name_nor_unit() {
    let text = "   D\\D  0    1      2\n  0     —    91   90\n  1  92   —    93\n 2 94 95 —\n";
    let parsed = parse_output(text.as_bytes());
    let found = matrices(&parsed)[0];
    assert_eq!((found.testcase.as_deref(), found.unit), (None, None));
    assert_eq!(found.cells[0], [None, Some(91.0), Some(90.0)]);
    assert_eq!(found.cells[2], [Some(94.0), Some(95.0), None]);
    assert!(parsed.complete);
}

#[test]
fn a_blank_diagonal_leaves_the_other_cells_in_their_columns() {
    let text = "P2P=Enabled Latency Matrix (us)\n   D\\D     0      1      2\n\
                \u{20}    0          2.11   2.12\n     1   2.21          2.23\n\
                \u{20}    2   2.31   2.32\n";
    let parsed = parse_output(text.as_bytes());
    let cells = &matrices(&parsed)[0].cells;
    assert_eq!(cells[0], [None, Some(2.11), Some(2.12)]);
    assert_eq!(cells[1], [Some(2.21), None, Some(2.23)]);
    assert_eq!(cells[2], [Some(2.31), Some(2.32), None]);
    assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated));
}

#[test]
fn a_cell_lost_in_the_middle_moves_no_other_cell() {
    let whole = "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n\
                 \u{20}  D\\D     0      1      2      3 \n\
                 \u{20}    0 999.11  51.01  52.02  53.03 \n     1  54.04 998.22  55.05  56.06 \n\
                 \u{20}    2  57.07  58.08 997.33  59.09 \n     3  60.06  61.01  62.02 996.44 \n";
    let parsed = parse_output(whole.replace("  58.08", " ").as_bytes());
    assert_eq!(matrices(&parsed)[0].cells[2], [None; 4]);
    assert!(!parsed.complete);
    let cut = &whole[..whole.len() - " 62.02 996.44 \n".len()];
    let parsed = parse_output(cut.as_bytes());
    assert_eq!(matrices(&parsed)[0].cells[3], [Some(60.06), Some(61.01), None, None]);
    let row = "     2  57.07  58.08 997.33  59.09 \n";
    let parsed =
        parse_output((whole.to_owned() + row + "     0   1.00   2.00   3.00   4.00 \n").as_bytes());
    assert_eq!(matrices(&parsed)[0].cells[0][1], Some(51.01));
    assert!(parsed.has_problem(OutputProblemKind::Truncated) && !parsed.complete);
}

#[test]
fn numbers_with_decimals_are_not_connections() {
    let text = "P2P Connectivity Matrix\n     D\\D     0     1\n     0\t     1     1\n\
                \u{20}    1\t  52.02  53.03\n";
    let parsed = parse_output(text.as_bytes());
    assert_eq!(matrices(&parsed)[0].cells, [[Some(1.0), Some(1.0)], [None, None]]);
    assert!(parsed.has_problem(OutputProblemKind::Truncated));
}

#[test]
fn elided_rows_and_columns_are_missing_and_reported() {
    let text = "P2P=Disabled Latency Matrix (us)\n   GPU     0      1  ...      7\n\
                \u{20}    0   1.90   9.10  ...   9.70\n     ...\n     7   9.07   9.17  ...   1.97\n";
    let parsed = parse_output(text.as_bytes());
    let found = matrices(&parsed)[0];
    assert_eq!(found.cols, ["0", "1", "7"]);
    assert_eq!(found.cells[2], [Some(9.07), Some(9.17), Some(1.97)]);
    assert_eq!(found.cells[1], [None; 3]);
    assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated));
    assert!(!parsed.has_problem(OutputProblemKind::Unrecognised));
}

#[test]
fn a_cuda_failure_is_an_error_of_the_test_that_was_running() {
    let whole = whole_run(2, false, None);
    let start = whole.find("Bidirectional P2P=Enabled").expect("it is there");
    let text = whole[..start].to_owned()
        + "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n\
           Cuda failure p2pBandwidthLatencyTest.cu:412: 'an illegal memory access was encountered'\n";
    let parsed = parse_output(text.as_bytes());
    assert_eq!((parsed.complete, problem_kinds(&parsed)), (false, vec![OutputProblemKind::Error]));
    assert_eq!(parsed.problems[0].testcase.as_deref(), Some("p2p_bidirectional_enabled"));

    let alone =
        parse_output(b"Cuda failure p2pBandwidthLatencyTest.cu:583: 'no CUDA-capable device'\n");
    assert_eq!(alone.tool, Some(Tool::P2pBandwidthLatencyTest));
    assert_eq!(problem_kinds(&alone), [OutputProblemKind::Error]);
}

#[test]
fn a_damaged_cell_is_null_and_reported_and_adjacent_cells_stay() {
    let text = format!(
        "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n{}",
        table("D\\D", &level(3, 55.0))
    );
    let parsed = parse_output(text.replace("55.12", "5\u{1}.12").as_bytes());
    assert_eq!(matrices(&parsed)[0].cells[1], [Some(55.1), Some(220.0), None]);
    assert_eq!(
        (parsed.complete, problem_kinds(&parsed)),
        (false, vec![OutputProblemKind::Unrecognised])
    );
}

#[test]
fn a_row_repeated_with_other_numbers_is_inconsistent() {
    let text = "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n\
                \u{20}    0 900.00 301.00\n     0 900.00 302.00\n     1 303.00 900.00\n";
    let parsed = parse_output(text.as_bytes());
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Inconsistent]);
    assert_eq!(matrices(&parsed)[0].cells[0][1], Some(301.0));
}

#[test]
fn log_lines_between_rows_are_not_rows() {
    let text = "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n\
                \u{20}    0 900.00 301.00\nslurmstepd: note\n1 warning was suppressed here\n\
                \u{20}    1 303.00 900.00\n";
    let parsed = parse_output(text.as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
}

#[test]
fn concurrent_copies_are_read_separately() {
    let (a, b) = (whole_run(2, false, None), whole_run(2, true, None));
    let mut lines =
        (a.lines().map(|l| format!("0: {l}\n")), b.lines().map(|l| format!("1: {l}\n")));
    let mut text = String::new();
    loop {
        let (one, other) = (lines.0.next(), lines.1.next());
        if one.is_none() && other.is_none() {
            break;
        }
        text.extend([one, other].into_iter().flatten());
    }
    let parsed = parse_output(text.as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    assert_eq!(parsed.measurements.iter().filter(|m| m.run() == 0).count(), 9);
    assert_eq!(parsed.measurements.iter().filter(|m| m.run() == 1).count(), 12);
}

#[test]
fn two_runs_in_one_file_are_two_runs_with_and_without_a_banner() {
    let parsed = parse_output((whole_run(2, false, None) + &whole_run(2, false, None)).as_bytes());
    assert!(parsed.complete);
    assert_eq!(parsed.measurements.last().map(Measurement::run), Some(1));
    let title = "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n";
    let one = title.to_owned() + &table("D\\D", &level(2, 70.0));
    let runs: Vec<u32> = parse_output((one.clone() + &one).as_bytes())
        .measurements
        .iter()
        .map(Measurement::run)
        .collect();
    assert_eq!(runs, [0, 1]);
}

#[test]
fn help_and_a_mention_measure_nothing() {
    let parsed = parse_output(b"Usage:  p2pBandwidthLatencyTest [OPTION]...\n--help\n");
    assert_eq!(parsed.tool, Some(Tool::P2pBandwidthLatencyTest));
    assert!(!parsed.complete && parsed.measurements.is_empty());
    assert_eq!(parse_output(b"GPU 0 1 2\n0 1 2 3\n").tool, None);
}

/// Whether every number of `part` is at the same place in `whole`.
fn is_within(part: &ParseOutput, whole: &ParseOutput) -> bool {
    matrices(part).iter().all(|m| {
        let full = matrix(whole, m.testcase.as_deref().expect("all tables are titled"));
        m.numbers().all(|(i, j, value)| full.cells[i][j] == Some(value))
    })
}

#[test]
fn a_cut_text_gives_only_numbers_of_the_whole_text() {
    let text = whole_run(3, true, Some(2));
    let whole = parse_output(text.as_bytes());
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        let part = parse_output(&text.as_bytes()[..end]);
        // The last character is the end of the closing note's line.
        let noted = text[..end].contains(CLOSING_NOTE);
        assert!(is_within(&part, &whole), "cut at {end}: {part:#?}");
        assert_eq!(part.complete, noted, "cut at {end}: {:#?}", part.problems);
    }
}

proptest! {
    #[test]
    fn a_printed_table_is_read_back(
        cells in (1usize..20).prop_flat_map(|n| {
            prop::collection::vec(prop::collection::vec(0u32..500_000, n), n)
        }),
        gpu_corner in any::<bool>(),
    ) {
        let cells: Vec<Vec<f64>> = cells
            .into_iter()
            .map(|row| row.into_iter().map(|c| f64::from(c) / 100.0).collect())
            .collect();
        let text = if gpu_corner {
            format!(
                "P2P=Disabled Latency Matrix (us)\n{}\n{}",
                table("GPU", &cells),
                table("CPU", &cells)
            )
        } else {
            format!(
                "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n{}",
                table("D\\D", &cells)
            )
        };
        let parsed = parse_output(text.as_bytes());
        prop_assert!(parsed.complete);
        for found in matrices(&parsed) {
            let back: Vec<Vec<f64>> =
                found.cells.iter().map(|row| row.iter().flatten().copied().collect()).collect();
            prop_assert_eq!(&back, &cells);
        }
    }

    #[test]
    fn no_input_makes_it_panic(text in "\\PC{0,200}") {
        let input = ParserInput::new(&text);
        let _ = recognises(&input);
        let _ = parse(&input);
    }

    #[test]
    fn no_damage_makes_it_panic_or_break_a_matrix(
        at in prop::collection::vec((0usize..4000, any::<u8>()), 1..12),
        lost in prop::collection::vec(0usize..90, 0..6),
    ) {
        let text = whole_run(3, true, None);
        let bytes = scar_lines(&text, &lost, &at);
        let text = text::decode(&bytes);
        for found in matrices(&parse(&ParserInput::new(&text))) {
            prop_assert_eq!(found.rows.len(), found.cells.len());
            prop_assert!(found.cells.iter().all(|row| row.len() == found.cols.len()));
        }
    }
}

#[test]
fn titles_without_a_word_and_cells_of_one_decimal_are_read_the_same() {
    let whole = parse_output(whole_run(3, true, None).as_bytes());
    for (word, instead) in [(" Matrix", ""), (" Bandwidth", ""), (" Matrix", ":")] {
        let other = parse_output(whole_run(3, true, None).replace(word, instead).as_bytes());
        assert_eq!((other.complete, &other.measurements), (true, &whole.measurements), "{word}");
    }
    let text = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) (GB/s)\n\
        \x20  D\\D     0      1\n     0 3012.4  388.1\n     1  388.9 3011.2\n";
    let parsed = parse_output(text.as_bytes());
    let cells = &matrix(&parsed, "p2p_unidirectional_write_enabled").cells;
    assert_eq!((cells[0][1], cells[1][0], parsed.complete), (Some(388.1), Some(388.9), true));
    assert_eq!(matrices(&parsed)[0].unit, Some(Unit::GigabytesPerSecond));
}
