//! Generated outputs in the grammar of the tool's sources.

use proptest::prelude::*;

use super::*;
use crate::outputs::fixture::{problem_kinds, scar_lines};
use crate::outputs::parse_output;
use model::measurement::{Measurement, MeasurementSeries, SeriesPoint};
use model::unit::Unit;

const LINE: &str =
    "---------------------------------------------------------------------------------------\n";
const BW: &str =
    " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";
const BW_G: &str =
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n";
const LAT: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n";

fn series(parsed: &ParseOutput) -> Vec<&MeasurementSeries> {
    parsed
        .measurements
        .iter()
        .map(|m| match m {
            Measurement::Series(series) => series,
            other => panic!("no series: {other:?}"),
        })
        .collect()
}

fn waiting() -> String {
    let stars = "************************************\n";
    format!("\n{stars}* Waiting for client to connect... *\n{stars}")
}

fn head(title: &str, device: &str) -> String {
    format!(
        "{LINE}                    {title} Test\n \
         Dual-port       : OFF\t\tDevice         : {device}\n \
         Number of qps   : 2\t\tTransport type : IB\n \
         Connection type : RC\t\tUsing SRQ      : OFF\n \
         PCIe relax order: ON\t\tLock-free      : OFF\n \
         ibv_wr* API     : ON\t\tUsing Enhanced Reorder      : OFF\n \
         TX depth        : 128\n CQ Moderation   : 1\n Mtu             : 4096[B]\n \
         Link type       : Ethernet\n GID index       : 3\n Max inline data : 0[B]\n \
         rdma_cm QPs\t : OFF\n Data ex. method : Ethernet\n{LINE}"
    )
}

fn address(side: &str, qpn: u32) -> String {
    format!(
        " {side} address: LID 0000 QPN {qpn:#06x} PSN 0x5d1f02 RKey 0x1820ee VAddr 0x007f11\n \
         GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:{qpn:02}\n"
    )
}

fn addresses(local: u32, remote: u32) -> String {
    address("local", local) + &address("remote", remote) + LINE
}

fn bw_row(bytes: u64, peak: f64, average: f64) -> String {
    format!(
        " {bytes:<7}    {:<10}       {peak:<7.2}            {average:<7.2}\t\t     0.004711\n",
        5000
    )
}

fn one_test(title: &str, device: &str, local: u32, remote: u32, average: f64) -> String {
    head(title, device)
        + &addresses(local, remote)
        + BW
        + &bw_row(65536, average + 1.5, average)
        + LINE
}

#[test]
fn a_bandwidth_test_gives_its_row_its_unit_and_its_options() {
    let parsed = parse_output(one_test("RDMA_Write BW", "mlx5_4", 1, 2, 46_312.25).as_bytes());
    assert_eq!((parsed.tool, parsed.complete), (Some(Tool::Perftest), true), "{parsed:#?}");
    let found = series(&parsed)[0];
    assert_eq!(found.testcase.as_deref(), Some("ib_write_bw"));
    assert_eq!(found.unit, Some(Unit::MebibytesPerSecond));
    let expected = SeriesPoint {
        bytes: 65536,
        iterations: Some(5000),
        peak: Some(46_313.75),
        algbw: Some(46_312.25),
        msgrate: Some(0.004_711),
        ..SeriesPoint::default()
    };
    assert_eq!(found.points, [expected]);
    let options = &parsed.facts.parameters;
    for (key, value) in [
        ("device", "mlx5_4"),
        ("link_type", "Ethernet"),
        ("mtu", "4096[B]"),
        ("number_of_qps", "2"),
        ("transport_type", "IB"),
        ("connection_type", "RC"),
        ("gid_index", "3"),
        ("ibv_wr_api", "ON"),
        ("rdma_cm_qps", "OFF"),
    ] {
        assert_eq!(options[key], value, "{key}");
    }
}

#[test]
fn the_gid_of_the_end_that_prints_is_kept_as_an_address() {
    let gid = |local: &str, remote: &str| {
        let one = |side: &str, gid: &str| {
            format!(" {side} address: LID 0000 QPN 0x5f PSN 0x1 RKey 0x1 VAddr 0x7f\n GID: {gid}\n")
        };
        let text = head("RDMA_Write BW", "mlx5_4") + &one("local", local) + &one("remote", remote);
        parse_output((text + LINE + BW).as_bytes()).facts.parameters.get("gid").cloned()
    };
    let v4 = |last: u8| format!("00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:{last:02}");
    assert_eq!(gid(&v4(3), &v4(4)).as_deref(), Some("10.77.0.3"));
    let ib = "254:128:00:00:00:00:00:07:148:109:174:03:00:33:217:198";
    assert_eq!(gid(ib, &v4(4)).as_deref(), Some("fe80::7:946d:ae03:21:d9c6"));
    for broken in ["00:01", "1:2:3:4:5:6:7:8:9:10:11:12:13:14:15:999", ""] {
        assert_eq!(gid(broken, &v4(4)), None, "{broken}");
    }
    // Every queue pair prints the same line once.
    let all = head("RDMA_Write BW", "mlx5_4") + &addresses(3, 4) + &address("local", 3);
    assert_eq!(parse_output((all + BW).as_bytes()).facts.parameters["gid"], "10.77.0.3");
}

#[test]
fn the_header_names_the_unit_and_the_columns() {
    let unit = |header: &str| {
        series(&parse_output(
            (header.to_owned() + "\n 1024 1000 7.25 7.00 0.500000\n" + LINE).as_bytes(),
        ))[0]
            .unit
    };
    assert_eq!(unit(BW_G.trim_end()), Some(Unit::GigabitsPerSecond));
    assert_eq!(
        unit("#bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps]"),
        Some(Unit::MebibytesPerSecond)
    );
    assert_eq!(
        unit("#bytes\t#iterations\tBW peak [Gb/sec]\tBW average [Gb/sec]\tMsgRate [Mpps]"),
        Some(Unit::GigabitsPerSecond)
    );
    assert_eq!(unit("#bytes #iterations BW peak[X/s] BW average[X/s] MsgRate[Mpps]"), None);

    let ports = format!(
        "{}   BW Port1[Gb/sec]   MsgRate Port1[Mpps]   BW Port2[Gb/sec]   MsgRate Port2[Mpps]    \
         CPU_Util[%]\n 65536 900 0.00 388.50 0.740000 194.00 0.370000 194.50 0.370000 \t 12.50\n{LINE}",
        BW_G.trim_end()
    );
    let parsed = parse_output(ports.as_bytes());
    let point = &series(&parsed)[0].points[0];
    assert_eq!((point.algbw, point.peak, point.msgrate), (Some(388.5), Some(0.0), Some(0.74)));

    let qos = " #bytes    #sl      #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
               4096 5 600 90.10 89.90 2.740000\n".to_owned() + LINE;
    let parsed = parse_output(qos.as_bytes());
    let point = &series(&parsed)[0].points[0];
    assert_eq!((point.iterations, point.algbw), (Some(600), Some(89.9)));
}

#[test]
fn a_latency_test_gives_average_extremes_and_percentile() {
    let text = head("Send Latency", "mlx5_0")
        + &addresses(5, 6)
        + LAT
        + " 2       1000          1.31           9.77         1.36     \t       1.42        \t0.11   \t\t2.05    \t\t8.83   \n"
        + LINE;
    let parsed = parse_output(text.as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    let found = series(&parsed)[0];
    assert_eq!(
        (found.testcase.as_deref(), found.unit),
        (Some("ib_send_lat"), Some(Unit::Microseconds))
    );
    let expected = SeriesPoint {
        bytes: 2,
        iterations: Some(1000),
        min_us: Some(1.31),
        max_us: Some(9.77),
        time_us: Some(1.42),
        p99_us: Some(2.05),
        ..SeriesPoint::default()
    };
    assert_eq!(found.points, [expected]);
    let duration = head("RDMA_Read Latency", "mlx5_0")
        + " #bytes        #iterations       t_avg[usec]    tps average\n 8       4412            2.26        442011.70\n"
        + LINE;
    let parsed = parse_output(duration.as_bytes());
    assert_eq!(series(&parsed)[0].points[0].time_us, Some(2.26));
    assert_eq!(series(&parsed)[0].testcase.as_deref(), Some("ib_read_lat"));
}

#[test]
fn every_banner_has_its_name() {
    for (title, name) in [
        ("Send BW", "ib_send_bw"),
        ("RDMA_Read Bidirectional BW", "ib_read_bw_bidirectional"),
        ("RDMA_Write_imm BW", "ib_write_bw_imm"),
        ("Atomic FETCH_AND_ADD BW", "ib_atomic_bw_fetch_and_add"),
        ("Send Bidirectional Post List BW", "ib_send_bw_bidirectional"),
        ("Send BW Multicast", "ib_send_bw_multicast"),
    ] {
        let parsed = parse_output(one_test(title, "mlx5_9", 1, 2, 100.0).as_bytes());
        assert_eq!(series(&parsed)[0].testcase.as_deref(), Some(name));
    }
    let raw = one_test("Send BW", "mlx5_9", 1, 2, 100.0).replace(": RC", ": RawEth");
    assert_eq!(
        series(&parse_output(raw.as_bytes()))[0].testcase.as_deref(),
        Some("raw_ethernet_bw")
    );
}

#[test]
fn client_and_server_one_after_the_other_are_one_reading() {
    let text = one_test("RDMA_Write BW", "mlx5_1", 17, 18, 23_511.5)
        + &waiting()
        + &one_test("RDMA_Write BW", "mlx5_1", 18, 17, 23_511.5);
    let parsed = parse_output(text.as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    assert_eq!((series(&parsed).len(), series(&parsed)[0].points.len()), (1, 1));
    assert!(parsed.facts.parameters.contains_key("sides"));
}

#[test]
fn client_and_server_mixed_line_by_line_are_one_reading() {
    let (client, server) = (head("Send BW", "mlx5_1"), head("Send BW", "mlx5_1"));
    let mut text = waiting();
    for (a, b) in client.lines().zip(server.lines()) {
        text += &format!("{a}\n{b}\n");
    }
    for (a, b) in address("local", 3).lines().zip(address("local", 4).lines()) {
        text += &format!("{a}\n{b}\n");
    }
    text += &(address("remote", 4) + &address("remote", 3) + LINE + LINE + BW + BW);
    for bytes in [2, 4, 8, 16] {
        let row = bw_row(bytes, 10.0, bytes as f64);
        text += &row;
        text += &row;
    }
    text += LINE;
    text += LINE;
    let parsed = parse_output(text.as_bytes());
    assert!(parsed.complete, "{:#?}", parsed.problems);
    assert_eq!((series(&parsed).len(), series(&parsed)[0].points.len()), (1, 4));
    assert!(parsed.facts.parameters.contains_key("sides"));
}

#[test]
fn equal_rows_of_one_side_are_two_readings() {
    let text = head("RDMA_Write BW", "mlx5_1")
        + &addresses(1, 2)
        + BW
        + &bw_row(65536, 0.0, 11_000.5).repeat(2)
        + LINE;
    assert_eq!(series(&parse_output(text.as_bytes()))[0].points.len(), 2);
}

#[test]
fn a_latency_server_prints_another_reading() {
    let side = |local, remote, average: &str| {
        head("RDMA_Write Latency", "mlx5_1")
            + &addresses(local, remote)
            + LAT
            + &format!(" 8 1000 1.10 3.10 1.20 {average} 0.10 1.90 2.90\n")
            + LINE
    };
    let parsed = parse_output((side(1, 2, "1.25") + &waiting() + &side(2, 1, "1.27")).as_bytes());
    assert!(parsed.complete);
    let found: Vec<_> = series(&parsed).iter().map(|s| (s.run, s.points[0].time_us)).collect();
    assert_eq!(found, [(0, Some(1.25)), (1, Some(1.27))]);
}

#[test]
fn tests_of_two_devices_are_two_runs_and_both_devices_are_kept() {
    let text = one_test("RDMA_Write BW", "mlx5_0", 1, 2, 500.0)
        + &one_test("RDMA_Write BW", "mlx5_1", 3, 4, 500.0);
    let parsed = parse_output(text.as_bytes());
    assert_eq!(series(&parsed).iter().map(|s| s.run).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(parsed.facts.parameters["device"], "mlx5_0, mlx5_1");
    assert!(!parsed.facts.parameters.contains_key("sides"));
}

#[test]
fn local_and_remote_results_have_separate_names() {
    let text = head("RDMA_Write Bidirectional BW", "mlx5_0")
        + &addresses(1, 2)
        + BW_G
        + &bw_row(65536, 0.0, 740.5)
        + LINE
        + "\n Local results: \n"
        + LINE
        + BW_G
        + &bw_row(65536, 0.0, 370.25)
        + LINE
        + "\n Remote results: \n"
        + LINE
        + BW_G
        + &bw_row(65536, 0.0, 370.25)
        + LINE;
    let parsed = parse_output(text.as_bytes());
    let names: Vec<_> = parsed.measurements.iter().filter_map(Measurement::testcase).collect();
    let base = "ib_write_bw_bidirectional";
    assert_eq!(names, [base.to_owned(), format!("{base}_local"), format!("{base}_remote")]);
    assert!(parsed.complete, "{:#?}", parsed.problems);
}

#[test]
fn a_missing_size_of_all_sizes_is_reported() {
    let all: String = (1..24).map(|i| bw_row(1 << i, 9.0, 8.0)).collect();
    let text = |rows: &str| head("RDMA_Read BW", "mlx5_0") + &addresses(1, 2) + BW + rows + LINE;
    assert!(parse_output(text(&all).as_bytes()).complete);
    let gap: String =
        all.lines().filter(|l| !l.starts_with(" 4096 ")).map(|l| l.to_owned() + "\n").collect();
    let parsed = parse_output(text(&gap).as_bytes());
    assert_eq!(
        (parsed.complete, problem_kinds(&parsed)),
        (false, vec![OutputProblemKind::Truncated])
    );
    assert!(parsed.problems[0].detail.ends_with("without 4096"));
}

#[test]
fn failures_are_errors_of_the_test_that_was_running() {
    let start = head("RDMA_Write BW", "mlx5_0") + &addresses(1, 2) + BW;
    for (line, code) in [
        (" Completion with error at client", None),
        (" Failed status 12: wr_id 0 syndrom 0x81", Some("IBV_WC_RETRY_EXC_ERR")),
        ("Failed to modify QP 211 to RTR", None),
        ("mlx5: n0017: got completion with error:", None),
        (" Unable to Connect the HCA's through the link", None),
        ("Error: BW result is below bw limit", None),
    ] {
        let parsed = parse_output(format!("{start}{line}\n").as_bytes());
        assert_eq!(
            (parsed.complete, problem_kinds(&parsed)),
            (false, vec![OutputProblemKind::Error]),
            "{line}"
        );
        assert_eq!(parsed.problems[0].testcase.as_deref(), Some("ib_write_bw"));
        assert_eq!(parsed.problems[0].code.as_deref(), code);
        assert!(parsed.measurements.is_empty());
    }
}

#[test]
fn a_failure_alone_is_recognised() {
    for line in [
        "Couldn't connect to 10.3.7.1:18515",
        " Port number 1 state is Down",
        " Unable to find the Infiniband/RoCE device",
        " Did not detect devices ",
        "bash: line 1: ib_write_bw: command not found",
    ] {
        let parsed = parse_output(format!("{line}\n Couldn't set the link layer\n").as_bytes());
        assert_eq!(parsed.tool, Some(Tool::Perftest), "{line}");
        assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Error; 2], "{line}");
    }
    let parsed = parse_output(waiting().as_bytes());
    assert_eq!(
        (parsed.tool, problem_kinds(&parsed)),
        (Some(Tool::Perftest), vec![OutputProblemKind::Truncated])
    );
}

#[test]
fn warnings_are_not_errors() {
    let text = " WARNING: BW peak won't be measured in this run.\n\
                Conflicting CPU frequency values detected: 2100.000000 != 2600.000000.\n\
                Failed to map memory: Warning only\n"
        .to_owned()
        + &one_test("RDMA_Write BW", "mlx5_0", 1, 2, 5.0);
    assert!(parse_output(text.as_bytes()).complete);
}

#[test]
fn wrong_and_unchecked_data_are_distinguished() {
    let base = one_test("RDMA_Write BW", "mlx5_0", 1, 2, 5.0);
    let kind = |line: &str| problem_kinds(&parse_output((base.clone() + line + "\n").as_bytes()));
    assert_eq!(
        kind("VALIDATION: FAILED (server) - 3 error(s), first at QP 1"),
        [OutputProblemKind::Corrupt]
    );
    assert_eq!(kind("VALIDATION: WARNING - no data validated"), [OutputProblemKind::Unverified]);
    assert_eq!(kind("VALIDATION: ERROR - not initialized"), [OutputProblemKind::Error]);
    assert_eq!(kind("VALIDATION: PASSED - 12 chunks, 786432 bytes"), []);
}

#[test]
fn outputs_of_similar_tools_are_not_recognised() {
    for text in [
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n",
        "vendid=0x2c9\nswitchguid=0xe1(e1)\nSwitch\t65 \"S-e1\"\t\t# \"leaf\" enhanced port 0\n",
        "Test\nSend mail Test\n",
    ] {
        assert_eq!(parse_output(text.as_bytes()).tool, None, "{text}");
    }
}

#[test]
fn the_json_file_is_read_quoted_or_not_and_has_no_bandwidth_unit() {
    let quoted = "{\n\"test_info\": {\n\"test\": \"RDMA_Write_BW_Test\",\n\"Dual_port\": \"OFF\",\n\
                  \"Device\": \"mlx5_3\",\n\"Number_of_qps\": 4,\n\"Connection_type\": \"RC\",\n\
                  \"Mtu\": 4096\n},\n\"results\": {\n\"MsgSize\": 65536,\n\"n_iterations\": 20000,\n\
                  \"BW_peak\": 0.00,\n\"BW_average\": 391.27,\n\"MsgRate\": 0.746289\n}\n}\n";
    let bare: String = quoted.replace("\n}\n}", ",\n},\n}").replace('"', "");
    let compact: String = quoted.split_whitespace().collect();
    for text in [quoted, &bare, &compact] {
        let parsed = parse_output(text.as_bytes());
        assert_eq!(
            (parsed.tool, parsed.complete),
            (Some(Tool::Perftest), true),
            "{text} {parsed:#?}"
        );
        let found = series(&parsed)[0];
        assert_eq!((found.testcase.as_deref(), found.unit), (Some("ib_write_bw"), None));
        assert_eq!((found.points[0].algbw, found.points[0].bytes), (Some(391.27), 65536));
        assert_eq!(parsed.facts.parameters["device"], "mlx5_3");
        assert_eq!(parsed.facts.parameters["number_of_qps"], "4");
    }
    for end in 0..quoted.len() - 2 {
        let parsed = parse_output(&quoted.as_bytes()[..end]);
        assert!(!parsed.complete, "cut at {end}");
        for s in series(&parsed) {
            assert!(s.points[0].bytes == 65536 && s.points[0].algbw.is_none_or(|v| v == 391.27));
        }
    }
}

#[test]
fn the_json_file_of_a_latency_test_is_in_microseconds() {
    let text = "{\n\"test_info\": {\n\"test\": \"Send_Latency_Test\",\n\"Device\": \"mlx5_3\"\n},\n\
                \"results\": {\n\"MsgSize\": 2,\n\"n_iterations\": 1000,\n\"t_min\": 1.40,\n\
                \"t_max\": 7.70,\n\"t_typical\": 1.44,\n\"t_avg\": 1.47,\n\"t_stdev\": 0.20,\n\
                \"percentile_99\": 1.90,\n\"percentile_99.9\": 7.00\n}\n}\n";
    let parsed = parse_output(text.as_bytes());
    let found = series(&parsed)[0];
    assert_eq!(
        (found.testcase.as_deref(), found.unit),
        (Some("ib_send_lat"), Some(Unit::Microseconds))
    );
    let point = &found.points[0];
    assert_eq!((point.time_us, point.min_us, point.p99_us), (Some(1.47), Some(1.4), Some(1.9)));
    let short = "{\n\"test_info\": {\n\"test\": \"Send_Latency_Test\"\n},\n\"results\": {\n\"avg_lat\": 1.5\n}\n}\n";
    assert!(matches!(parse_output(short.as_bytes()).measurements[0], Measurement::Scalar(_)));
}

#[test]
fn a_cut_text_gives_only_numbers_of_the_whole_text() {
    let rows: String = (1..6).map(|i| bw_row(1 << i, 900.25 + f64::from(i), 800.5)).collect();
    let text = head("RDMA_Write BW", "mlx5_0") + &addresses(1, 2) + BW + &rows + LINE;
    let whole = parse_output(text.as_bytes());
    for end in 0..text.len() {
        let part = parse_output(&text.as_bytes()[..end]);
        let points = series(&part).first().map_or(&[][..], |s| &s.points[..]);
        assert!(series(&whole)[0].points.starts_with(points), "cut at {end}: {part:#?}");
        // Twenty dashes count as the closing line.
        assert!(!part.complete || text.len() - end < 70, "cut at {end}");
    }
}

proptest! {
    #[test]
    fn printed_rows_are_read_back(
        rows in prop::collection::vec((1u64..1 << 30, 0u32..9_000_000, 0u32..9_000_000), 1..30),
        gigabits in any::<bool>(),
    ) {
        let header = if gigabits { BW_G } else { BW };
        let cents = |v: u32| f64::from(v) / 100.0;
        let body: String = rows.iter().map(|(b, p, a)| bw_row(*b, cents(*p), cents(*a))).collect();
        let text = head("RDMA_Write BW", "mlx5_0") + &addresses(1, 2) + header + &body + LINE;
        let parsed = parse_output(text.as_bytes());
        let back: Vec<_> =
            series(&parsed)[0].points.iter().map(|p| (p.bytes, p.peak, p.algbw)).collect();
        let printed: Vec<_> =
            rows.iter().map(|(b, p, a)| (*b, Some(cents(*p)), Some(cents(*a)))).collect();
        prop_assert_eq!(back, printed);
    }

    #[test]
    fn no_input_makes_it_panic(text in "\\PC{0,200}") {
        let input = ParserInput::new(&text);
        let _ = recognises(&input);
        let _ = parse(&input);
    }

    #[test]
    fn no_damage_makes_it_panic(
        at in prop::collection::vec((0usize..3000, any::<u8>()), 1..12),
        lost in prop::collection::vec(0usize..60, 0..6),
        json in any::<bool>(),
    ) {
        let text = if json {
            "{\n\"test_info\": {\n\"test\": \"Send_BW_Test\",\n\"Mtu\": 4096\n},\n\"results\": {\n\"MsgSize\": 64,\n\"BW_average\": 3.27\n}\n}\n".to_owned()
        } else {
            one_test("RDMA_Write BW", "mlx5_1", 17, 18, 23_511.5)
                + &waiting()
                + &one_test("RDMA_Write BW", "mlx5_1", 18, 17, 23_511.5)
        };
        let bytes = scar_lines(&text, &lost, &at);
        let text = text::decode(&bytes);
        let input = ParserInput::new(&text);
        let _ = recognises(&input);
        let _ = parse(&input);
    }
}
