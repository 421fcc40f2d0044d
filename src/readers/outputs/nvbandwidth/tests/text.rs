//! The text layouts, version by version, and the separation of runs.

use super::render::{
    DEVICES, H2D, NOTE, READ, RenderedMatrix, head, line, multinode, old_head, square,
};
use super::{matrices, matrix, names, problems, read};
use model::parse_output::OutputProblemKind::{
    Inconsistent, Truncated, Unrecognised, Unverified, Waived,
};
use model::unit::Unit;

const READ_CE: &str = "device_to_device_memcpy_read_ce";
const H2D_CE: &str = "host_to_device_memcpy_ce";

#[test]
fn v0_1_prints_zero_on_the_diagonal_and_that_is_not_a_number() {
    let printed = square("device_to_device_memcpy_write_ce", READ, 3);
    let body = printed.test(1).replace("N/A", "0.00");
    let parsed = read(&format!("{}{body}", old_head("v0.1")));
    assert_eq!(matrix(&parsed, &printed.name).cells, printed.cells);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn a_zero_off_the_diagonal_or_of_a_host_test_is_kept() {
    let mut printed = line(H2D_CE, H2D, 2);
    printed.cells[0][0] = Some(0.0);
    let parsed = read(&format!("{}{}", old_head("v0.2"), printed.test(1)));
    assert_eq!(matrix(&parsed, H2D_CE).cells, printed.cells);
    let mut printed = square(READ_CE, READ, 2);
    printed.cells[0][1] = Some(0.0);
    let parsed = read(&format!("{}{}", old_head("v0.2"), printed.test(1)));
    assert_eq!(matrix(&parsed, READ_CE).cells, printed.cells);
}

#[test]
fn v0_2_has_unpadded_labels_no_end_marker_and_names_waived_tests() {
    let printed = square(READ_CE, READ, 8);
    let text = format!(
        "{}{}Waiving device_to_device_memcpy_write_ce.\n\n",
        old_head("v0.2"),
        printed.test(1)
    );
    let parsed = read(&text);
    assert_eq!(parsed.tool_version.as_deref(), Some("0.2"));
    let got = matrix(&parsed, READ_CE);
    assert_eq!(got.cells, printed.cells);
    assert_eq!(got.rows, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!((got.unit, got.run), (Some(Unit::GigabytesPerSecond), 0));
    assert!((got.sum.expect("a sum") - printed.sum()).abs() < 0.01);
    assert_eq!(problems(&parsed), [(Waived, Some("device_to_device_memcpy_write_ce"))]);
    assert!(parsed.complete);
}

#[test]
fn the_head_becomes_facts() {
    let parsed = read(&format!("{}{}", old_head("v0.4"), line(H2D_CE, H2D, 2).test(1)));
    let facts = &parsed.facts;
    assert_eq!(facts.driver.as_deref(), Some("535.54.03"));
    assert_eq!(facts.cuda_runtime.as_deref(), Some("12010"));
    assert_eq!(facts.cuda_driver.as_deref(), Some("12020"));
    assert_eq!(facts.parameters["git_version"], "1a2b3c4");
    assert_eq!(facts.devices.len(), 2);
    assert_eq!(facts.devices[1].index, 1);
    assert_eq!(facts.devices[1].name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(facts.devices[1].bus_id, None);
}

#[test]
fn v0_6_adds_bus_ids_and_v0_8_the_host() {
    let body = line(H2D_CE, H2D, 2).test(2);
    let parsed = read(&format!("{}{body}{NOTE}", head("v0.6", DEVICES)));
    assert_eq!(parsed.facts.devices[0].bus_id.as_deref(), Some("00000000:1b:00"));
    assert_eq!(parsed.facts.devices[0].host, None);
    assert!(parsed.complete);
    let list = format!("gpu-17.cluster.example\n{DEVICES}");
    let parsed = read(&format!("{}{body}{NOTE}", head("v0.8", &list)));
    assert_eq!(parsed.facts.hosts, ["gpu-17.cluster.example"]);
    assert_eq!(parsed.facts.devices[1].host.as_deref(), Some("gpu-17.cluster.example"));
    assert_eq!(parsed.facts.devices[1].name.as_deref(), Some("NVIDIA B200"));
}

#[test]
fn since_v0_6_a_run_without_its_closing_note_is_not_complete() {
    for (version, complete) in [("v0.5", true), ("v0.6", false), ("v0.10.0", false)] {
        let body = line(H2D_CE, H2D, 2).test(2);
        let parsed = read(&format!("{}{body}", head(version, DEVICES)));
        assert_eq!(parsed.complete, complete, "{version}");
        assert_eq!(parsed.has_problem(Truncated), !complete, "{version}");
    }
}

fn bidirectional(name: &str, titles: [&str; 3], n: usize) -> String {
    let parts = if name.contains("write") {
        ["_write1", "_write2", "_total"]
    } else {
        ["_read1", "_read2", "_total"]
    };
    let mut body = format!("Running {name}.\n");
    for (part, title) in parts.iter().zip(titles) {
        let title = format!("memcpy CE GPU(row) <-> GPU(column) {title} bandwidth (GB/s)");
        body.push_str(&square(&format!("{name}{part}"), &title, n).part(2));
    }
    body
}

#[test]
fn three_part_tests_keep_their_suffixes() {
    let name = "device_to_device_bidirectional_memcpy_write_ce";
    let body = bidirectional(name, ["Write1", "Write2", "Total"], 4);
    let parsed = read(&format!("{}{body}{NOTE}", head("v0.7", DEVICES)));
    assert_eq!(
        names(&parsed),
        ["_write1", "_write2", "_total"].map(|part| format!("{name}{part}"))
    );
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn a_part_without_its_sum_is_named_by_its_title() {
    let name = "multinode_device_to_device_bidirectional_memcpy_write_ce";
    // The multi-node write test titles its parts Read1 and Read2.
    let body = bidirectional(name, ["Read1", "Read2", "Total"], 4);
    let lost: String = body
        .lines()
        .filter(|l| !l.starts_with("SUM") || l.contains("_total"))
        .flat_map(|l| [l, "\n"])
        .collect();
    let parsed = read(&format!("{}{lost}{NOTE}", head("v0.8", DEVICES)));
    assert_eq!(
        names(&parsed),
        ["_write1", "_write2", "_total"].map(|part| format!("{name}{part}"))
    );
    assert_eq!(
        problems(&parsed),
        [
            (Truncated, Some(format!("{name}_write1").as_str())),
            (Truncated, Some(format!("{name}_write2").as_str()))
        ]
    );
    assert!(!parsed.complete);
}

#[test]
fn a_bidirectional_test_that_stops_before_its_total_is_truncated() {
    let name = "device_to_device_bidirectional_memcpy_read_sm";
    let body = bidirectional(name, ["Read1", "Read2", "Total"], 3);
    let cut = body.split("memcpy CE GPU(row) <-> GPU(column) Total").next().expect("a part");
    let parsed = read(&format!("{}{cut}", head("v0.8", DEVICES)));
    assert_eq!(matrices(&parsed).len(), 2);
    assert_eq!(problems(&parsed), [(Truncated, Some(name))]);
}

#[test]
fn verbose_lines_and_perf_lines_are_understood() {
    let printed = square(READ_CE, READ, 2);
    let verbose = format!(
        "Running {READ_CE}.\n\tSample 0: Device 1 -> Device 0: 391.18 GB/s\n\
         \tSample 0: Total Bandwidth : 391.18 GB/s\n{}\nSUM {READ_CE} {:.2}\n\
         MIN {READ_CE} 0.00\nMAX {READ_CE} 409.00\nAVG {READ_CE} 400.00\n\n",
        printed.table(2, "N/A"),
        printed.sum()
    );
    let parsed = read(&format!("{}{verbose}{NOTE}", head("v0.8", DEVICES)));
    assert_eq!(matrix(&parsed, READ_CE).cells, printed.cells);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    let perf = verbose.replace("SUM ", "&&&& PERF ").replace("\nMIN", " +GB/s\nMIN");
    let parsed = read(&format!("{}{perf}{NOTE}", head("v0.8", DEVICES)));
    assert!(matrix(&parsed, READ_CE).sum.is_some());
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn v0_10_prints_its_versions_twice_and_adds_the_spread() {
    let head = "nvbandwidth Version: v0.10.0\nBuilt from Git version: v0.10.0\n\n\
         CUDA Runtime Version: 13.1 (13010)\nCUDA Driver Version (API): 13.1 (13010)\n\
         Driver Version: 590.44.01\n\n";
    let printed = square(READ_CE, READ, 4);
    let body =
        printed.test(2).trim_end().to_owned() + "\nCOEFFICIENT_OF_VARIATION " + READ_CE + " 0.02\n";
    let parsed = read(&format!("{head}{body}\n{NOTE}"));
    assert_eq!(parsed.tool_version.as_deref(), Some("0.10.0"));
    assert_eq!(parsed.facts.cuda_driver.as_deref(), Some("13.1 (13010)"));
    assert_eq!(matrix(&parsed, READ_CE).coefficient_of_variation, Some(0.02));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn units_come_from_the_title_and_else_from_the_name() {
    let title = "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)";
    let latency = square("device_to_device_latency_sm", title, 2).test(2);
    let bisect =
        line("multinode_bisect_write_ce", "Bisect benchmarking, simultaneous write CE BW", 1);
    let message =
        square("device_to_device_message_latency_sm_4KiB", "message GPU(row) GPU(column)", 2);
    let text =
        format!("{}{latency}{}{}{NOTE}", head("v0.8", DEVICES), bisect.test(2), message.test(2));
    let parsed = read(&text);
    let units: Vec<_> = matrices(&parsed).iter().map(|m| m.unit).collect();
    assert_eq!(
        units,
        [Some(Unit::Nanoseconds), Some(Unit::GigabytesPerSecond), Some(Unit::Microseconds)]
    );
}

#[test]
fn ranks_of_72_gpus_are_mapped_and_their_matrix_is_whole() {
    let name = "multinode_device_to_device_memcpy_read_ce";
    let printed = square(name, READ, 72);
    let parsed = read(&multinode(18, &printed.test(2)));
    let got = matrix(&parsed, name);
    assert_eq!(got.cells, printed.cells);
    assert_eq!((got.rows.len(), got.rows[71].as_str(), got.cols[71].as_str()), (72, "71", "71"));
    assert_eq!((parsed.facts.ranks.len(), parsed.facts.hosts.len()), (72, 18));
    let rank = &parsed.facts.ranks[70];
    assert_eq!((rank.rank, rank.host.as_str(), rank.device), (70, "tray17", 2));
    assert_eq!(parsed.facts.devices.len(), 72);
    assert_eq!(parsed.facts.devices[5].host.as_deref(), Some("tray01"));
    assert_eq!(parsed.facts.parameters["mpi_version"], "Open MPI v4.1.7");
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn bisection_rows_are_labelled_with_rank_and_peer() {
    let name = "multinode_bisect_write_ce";
    let mut body = format!("Running {name}.\nBisect benchmarking, simultaneous write CE BW\n");
    body.push_str("               0\n");
    let mut sum = 0.0;
    for rank in 0..12 {
        let value = 700.25 + f64::from(rank);
        sum += value;
        body.push_str(&format!("{rank:>2}->{:>2}{value:>10.2}\n", (rank + 6) % 12));
    }
    body.push_str(&format!("\nSUM {name} {sum:.2}\n\n"));
    let parsed = read(&multinode(3, &body));
    let got = matrix(&parsed, name);
    assert_eq!(got.rows[..3], ["0->6", "1->7", "2->8"]);
    // `6-> 0` is printed with a blank inside.
    assert_eq!((got.rows[6].as_str(), got.cells[6][0]), ("6->0", Some(706.25)));
    assert_eq!((got.rows.len(), got.unit), (12, Some(Unit::GigabytesPerSecond)));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn nameless_waived_tests_are_named_by_the_fixed_order_where_only_one_fits() {
    // One GPU, v0.8, all tests: every peer test is waived.
    let peers_ce = "Waived: \n".repeat(4);
    let peers_sm = "Waived:\n".repeat(4);
    let mut body = String::new();
    let run = |body: &mut String, names: &[&str]| {
        for name in names {
            body.push_str(&line(name, H2D, 1).test(2));
        }
    };
    run(&mut body, &[H2D_CE, "device_to_host_memcpy_ce"]);
    run(&mut body, &["host_to_device_bidirectional_memcpy_ce"]);
    run(&mut body, &["device_to_host_bidirectional_memcpy_ce"]);
    body.push_str(&peers_ce);
    run(&mut body, &["all_to_host_memcpy_ce", "all_to_host_bidirectional_memcpy_ce"]);
    run(&mut body, &["host_to_all_memcpy_ce", "host_to_all_bidirectional_memcpy_ce"]);
    // One of four is missing here: which one is unknown.
    body.push_str("Waived:\nWaived:\nWaived:\n");
    run(&mut body, &["host_to_device_memcpy_sm", "device_to_host_memcpy_sm"]);
    run(&mut body, &["device_to_host_bidirectional_memcpy_sm"]);
    body.push_str(&peers_sm);
    run(&mut body, &["host_to_all_bidirectional_memcpy_sm"]);
    body.push_str(&peers_sm);
    run(&mut body, &["host_device_latency_sm"]);
    body.push_str("Waived:\n");
    run(&mut body, &["device_local_copy"]);
    let parsed = read(&format!("{}{body}{NOTE}", head("v0.8", DEVICES)));
    let waived: Vec<_> = problems(&parsed).into_iter().map(|(_, name)| name).collect();
    assert_eq!(waived.len(), 16);
    assert_eq!(waived[0], Some("device_to_device_memcpy_read_ce"));
    assert_eq!(waived[3], Some("device_to_device_bidirectional_memcpy_write_ce"));
    assert_eq!(waived[4..7], [None, None, None]);
    assert_eq!(waived[7], Some("device_to_device_memcpy_read_sm"));
    assert_eq!(waived[14], Some("one_to_all_read_sm"));
    assert_eq!(waived[15], Some("device_to_device_latency_sm"));
    assert!(parsed.complete, "waived tests leave a run complete");
}

#[test]
fn nameless_waived_tests_stay_nameless_out_of_order_or_without_a_known_version() {
    let body = format!("{}Waived:\n", line("host_device_latency_sm", H2D, 1).test(2));
    for (head, name) in [
        (head("v0.6", DEVICES), Some("device_to_device_latency_sm")),
        (head("v0.9", DEVICES), None),
        (String::new(), None),
    ] {
        let parsed = read(&format!("{head}{body}{NOTE}"));
        assert_eq!(problems(&parsed), [(Waived, name)], "{head}");
    }
    let swapped = format!("{body}{}", line(H2D_CE, H2D, 1).test(2));
    let parsed = read(&format!("{}{swapped}{NOTE}", head("v0.6", DEVICES)));
    assert_eq!(problems(&parsed), [(Waived, None)]);
}

#[test]
fn a_new_head_or_a_repeated_test_starts_a_new_run() {
    let run =
        |version: &str| format!("{}{}{NOTE}", head(version, DEVICES), line(H2D_CE, H2D, 2).test(2));
    let parsed = read(&format!("{}\n#######\n{}", run("v0.8"), run("v0.8")));
    assert_eq!(matrices(&parsed).iter().map(|m| m.run).collect::<Vec<_>>(), [0, 1]);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    let twice = line(H2D_CE, H2D, 2).test(2).repeat(3);
    let parsed = read(&format!("{}{twice}{NOTE}", head("v0.8", DEVICES)));
    assert_eq!(matrices(&parsed).iter().map(|m| m.run).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(parsed.complete, "{:?}", parsed.problems);
    let parsed = read(&format!("{}{}", run("v0.8"), head("v0.8", DEVICES)));
    assert!(!parsed.complete, "the second run never got to its tests");
    assert_eq!(problems(&parsed), [(Truncated, None)]);
}

#[test]
fn a_listing_a_version_and_usage_are_not_results() {
    let list = "nvbandwidth Version: v0.4\nBuilt from Git version: 0\n\nIndex, Name:\n\tDescription\n\
        =======================\n0, host_to_device_memcpy_ce:\n\tHost to device CE memcpy\n\n\
        1, device_to_host_memcpy_ce:\n\tDevice to host CE memcpy\n\n";
    let usage = "nvbandwidth CLI:\n  -h [ --help ]    Produce help message\n  -l [ --list ]\n";
    for text in [list, usage, "nvbandwidth Version: v0.10.0\nBuilt from Git version: v0.10\n"] {
        let parsed = read(text);
        assert!(parsed.measurements.is_empty() && !parsed.complete, "{text}");
        assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
    }
    let body = line(H2D_CE, H2D, 2).test(2);
    let parsed = read(&format!("{list}{}{body}{NOTE}", head("v0.8", DEVICES)));
    assert_eq!(matrices(&parsed)[0].run, 0, "a listing is not a run");
    assert!(parsed.complete);
}

#[test]
fn a_sum_that_its_cells_contradict_is_reported_and_rounding_is_not() {
    let printed = square(READ_CE, READ, 8);
    for (off, wrong) in [(0.25, false), (-0.25, false), (0.5, true), (-394.0, true)] {
        let sum = format!("SUM {READ_CE} {:.2}", printed.sum() + off);
        let whole = printed.test(2);
        let text = whole.split("SUM").next().expect("a table").to_owned() + &sum + "\n\n";
        let parsed = read(&format!("{}{text}{NOTE}", head("v0.8", DEVICES)));
        assert_eq!(parsed.has_problem(Inconsistent), wrong, "{off}");
        assert!(parsed.complete, "contradiction is not incompleteness");
    }
}

#[test]
fn a_second_sum_is_ignored_when_equal_and_reported_when_not() {
    let test = line(H2D_CE, H2D, 1).test(2);
    let sum = test.lines().find(|l| l.starts_with("SUM")).expect("a sum").to_owned();
    let text = format!("{}{test}{sum}\n{NOTE}", head("v0.8", DEVICES));
    assert_eq!(problems(&read(&text)), []);
    let text = format!("{}{test}SUM {H2D_CE} 1.00\n{NOTE}", head("v0.8", DEVICES));
    assert_eq!(problems(&read(&text)), [(Inconsistent, Some(H2D_CE))]);
}

#[test]
fn cells_other_than_plain_numbers_are_null_and_reported() {
    let printed = square(READ_CE, READ, 4);
    let right = format!("{:.2}", printed.cells[1][2].expect("a number"));
    for wrong in ["nan", "-inf", "39x.00", "-1.00", "4.5e2", "12", "39..07", "1.2.3"] {
        let text = printed.test(2).replacen(&format!(" {right}"), &format!(" {wrong:>6}"), 1);
        let parsed = read(&format!("{}{text}{NOTE}", head("v0.8", DEVICES)));
        let got = matrix(&parsed, READ_CE);
        assert_eq!(got.cells[1][2], None, "{wrong}");
        assert_eq!(got.cells[1][3], printed.cells[1][3], "{wrong}");
        assert_eq!(problems(&parsed), [(Unrecognised, Some(READ_CE))], "{wrong}");
        assert!(!parsed.complete, "{wrong}");
    }
}

#[test]
fn no_cell_after_a_token_that_shifted_the_row_is_used() {
    let printed = square(READ_CE, READ, 4);
    let right = format!("{:.2}", printed.cells[3][1].expect("a number"));
    // An extra token, and the last cell missing: four tokens under four labels.
    let text = printed.test(2).replacen(&right, &format!("{right} \u{fffd}"), 1);
    let text = text.replacen("       N/A\n\nSUM", "\n\nSUM", 1);
    let parsed = read(&format!("{}{text}{NOTE}", head("v0.8", DEVICES)));
    let (got, want) = (&matrix(&parsed, READ_CE).cells[3], &printed.cells[3]);
    assert_eq!(*got, [want[0], want[1], None, None]);
    assert!(parsed.has_problem(Unrecognised) && !parsed.complete);
}

#[test]
fn a_row_with_a_split_number_is_not_guessed() {
    let printed = square(READ_CE, READ, 4);
    let right = format!("{:.2}", printed.cells[2][1].expect("a number"));
    let text = printed.test(2).replacen(&right, &format!("{} {}", &right[..1], &right[1..]), 1);
    let parsed = read(&format!("{}{text}{NOTE}", head("v0.8", DEVICES)));
    let got = matrix(&parsed, READ_CE);
    assert_eq!(got.cells[2], [None; 4]);
    assert_eq!(got.cells[3], printed.cells[3]);
    assert_eq!(problems(&parsed), [(Unrecognised, Some(READ_CE))]);
}

#[test]
fn lost_rows_are_null_rows_and_truncation() {
    let printed = square(READ_CE, READ, 6);
    for lost in [vec![0], vec![2, 3], vec![5], vec![4, 5], vec![0, 1]] {
        let text: String = printed
            .test(2)
            .lines()
            .filter(|l| !lost.iter().any(|row| l.starts_with(&format!(" {row}  "))))
            .flat_map(|l| [l, "\n"])
            .collect();
        let parsed = read(&format!("{}{text}{NOTE}", head("v0.8", DEVICES)));
        let got = matrix(&parsed, READ_CE);
        for (i, row) in got.cells.iter().enumerate() {
            let want = if lost.contains(&i) { vec![None; 6] } else { printed.cells[i].clone() };
            assert_eq!(*row, want, "{lost:?}");
        }
        assert_eq!(got.rows, ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(problems(&parsed), [(Truncated, Some(READ_CE))], "{lost:?}");
        assert!(!parsed.complete && got.sum.is_some());
    }
}

#[test]
fn a_table_without_labels_announcement_or_sum_is_kept_and_reported() {
    let printed = square(READ_CE, READ, 3);
    let without = |skip: &dyn Fn(usize, &str) -> bool| {
        let text: String = printed
            .test(2)
            .lines()
            .enumerate()
            .filter(|(at, l)| !skip(*at, l))
            .flat_map(|(_, l)| [l, "\n"])
            .collect();
        let parsed = read(&format!("{}{text}{NOTE}", head("v0.8", DEVICES)));
        assert_eq!(matrix(&parsed, READ_CE).cells, printed.cells);
        assert_eq!(problems(&parsed), [(Truncated, Some(READ_CE))]);
        assert!(!parsed.complete);
        parsed
    };
    let parsed = without(&|at, _| at == 2);
    assert_eq!(matrix(&parsed, READ_CE).cols, ["0", "1", "2"]);
    without(&|_, l| l.starts_with("Running"));
    let parsed = without(&|_, l| l.starts_with("SUM"));
    assert_eq!(matrix(&parsed, READ_CE).sum, None);
}

#[test]
fn cells_whose_lines_were_lost_belong_only_to_their_own_sum() {
    let (first, second) = (square(READ_CE, READ, 3), line(H2D_CE, H2D, 3));
    let (a, b) = (first.test(2), second.test(2));
    // From the rows of the first test to the labels of the second.
    let head_of_a: String = a.lines().take(3).flat_map(|l| [l, "\n"]).collect();
    let rows_of_b: String = b.lines().skip(3).flat_map(|l| [l, "\n"]).collect();
    let text = format!("{}{head_of_a}{rows_of_b}{NOTE}", head("v0.8", DEVICES));
    let parsed = read(&text);
    assert_eq!(matrix(&parsed, H2D_CE).cells, second.cells, "the sum identifies its test");
    assert!(problems(&parsed).contains(&(Truncated, Some(READ_CE))));
    // If the sum proves nothing, the cells belong to no test.
    let damaged = text.replace(&format!("SUM {H2D_CE} "), &format!("SUM {H2D_CE} 9"));
    let parsed = read(&damaged);
    assert_eq!(names(&parsed), ["?"]);
    assert_eq!(matrices(&parsed)[0].sum, None);
    assert!(parsed.has_problem(Inconsistent) && !parsed.complete);
}

#[test]
fn a_bare_fragment_is_read_as_far_as_it_goes() {
    let printed = square(READ_CE, READ, 2);
    let parsed = read(&printed.test(2));
    assert_eq!(matrix(&parsed, READ_CE).cells, printed.cells);
    assert_eq!(parsed.tool_version, None);
    assert!(parsed.complete && parsed.problems.is_empty());
    let bare = read(&printed.test(2).split("SUM").next().expect("a table").replace("N/A", "0.00"));
    assert_eq!(matrix(&bare, READ_CE).cells, printed.cells);
    assert_eq!(problems(&bare), [(Truncated, Some(READ_CE))], "no sum: its end was not seen");
}

#[test]
fn wide_cells_and_many_columns_keep_their_places() {
    let mut printed = line("device_local_copy", "memcpy local GPU(column) bandwidth (GB/s)", 12);
    printed.cells[0][3] = Some(9_999_999.25);
    printed.cells[0][11] = Some(0.01);
    let parsed = read(&format!("{}{}{NOTE}", head("v0.8", DEVICES), printed.test(2)));
    assert_eq!(matrix(&parsed, "device_local_copy").cells, printed.cells);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn a_host_matrix_of_two_rows_is_read_as_printed() {
    let cells = vec![vec![Some(11.5), Some(12.25)], vec![Some(13.0), Some(14.75)]];
    let printed = RenderedMatrix { name: H2D_CE.to_owned(), title: H2D.to_owned(), cells };
    let parsed = read(&format!("{}{}{NOTE}", head("v0.6", DEVICES), printed.test(2)));
    assert_eq!(matrix(&parsed, H2D_CE).cells, printed.cells);
}

#[test]
fn a_rank_that_moves_between_runs_is_a_contradiction() {
    let body = square("multinode_device_to_device_memcpy_read_ce", READ, 4).test(2);
    let text = multinode(1, &body);
    let parsed = read(&format!("{text}{}", text.replace("tray00", "tray09")));
    assert_eq!(problems(&parsed), [(Inconsistent, None); 4]);
    let parsed = read(&text.repeat(2));
    assert!(parsed.problems.is_empty() && parsed.facts.ranks.len() == 4);
}

#[test]
fn a_command_line_that_skips_verification_is_reported() {
    let output = format!("{}{}{NOTE}", head("v0.8", DEVICES), line(H2D_CE, H2D, 2).test(2));
    let parsed = read(&format!("$ mpirun -n 4 ./nvbandwidth -b 1024 -s\n{output}"));
    assert_eq!(problems(&parsed), [(Unverified, None)]);
    assert_eq!(parsed.facts.parameters["options"], "-b 1024 -s");
    assert!(parsed.complete);
    let parsed = read(&format!("$ nvbandwidth -b 1024\n{output}"));
    assert!(parsed.problems.is_empty());
}
