//! Generated outputs in the tool's grammar, and properties of the parser.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::outputs;
use crate::outputs::fixture;

fn read(text: &str) -> ParseOutput {
    let parsed = outputs::parse_output(text.as_bytes());
    assert_eq!(parsed.tool, Some(Tool::NvidiaImexCtl));
    parsed
}

const LEGEND_TEXT: &str = "Connectivity Table Legend:\n\
    I - Invalid - no status\n\
    N - Never Connected\n\
    R - Recovering - lost, not cleaned up\n\
    D - Disconnected - lost, cleaned up\n\
    A - Authenticating - under way\n\
    !V! - Version mismatch, communication disabled.\n\
    !M! - Node map mismatch, communication disabled.\n\
    C - Connected - usable\n\n";

/// The text of `-N`, node numbers as given.
fn render(numbers: &[u32], letters: &[Vec<&str>], state: &str) -> String {
    let mut out = format!("{LEGEND_TEXT}7/9/2026 11:22:33.444\nNodes:\n");
    for number in numbers {
        let address = format!("10.9.8.{number}");
        writeln!(out, "Node #{number:<3} - {address:<15} - READY                - Version: 580.65")
            .unwrap();
    }
    out.push_str("\n Nodes From\\To  ");
    for number in numbers {
        write!(out, "{number:<4}").unwrap();
    }
    out.push('\n');
    for (number, row) in numbers.iter().zip(letters) {
        write!(out, "{number:>8}        ").unwrap();
        for letter in row {
            write!(out, "{letter:<4}").unwrap();
        }
        out.push('\n');
    }
    writeln!(out, "\nDomain State: {state}").unwrap();
    out
}

fn imex(parsed: &ParseOutput) -> &ImexStatus {
    parsed.facts.imex.as_ref().expect("a domain")
}

#[test]
fn a_table_with_gaps_is_read_and_its_letters_spelt_out() {
    let letters = [vec!["C", "!V!", "N"], vec!["!V!", "C", "!M!"], vec!["R", "D", "C"]];
    let parsed = read(&render(&[2, 5, 17], &letters, "DEGRADED"));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    let imex = imex(&parsed);
    assert_eq!(imex.status.as_deref(), Some("DEGRADED"));
    assert_eq!(imex.timestamp.as_deref(), Some("7/9/2026 11:22:33.444"));
    let node = &imex.nodes[1];
    assert_eq!((node.index, node.host.as_deref()), (5, Some("10.9.8.5")));
    assert_eq!((node.status.as_deref(), node.version.as_deref()), (Some("READY"), Some("580.65")));
    assert_eq!(node.connections[&2], "VERSION_MISMATCH");
    assert_eq!(node.connections[&17], "NODE_MAP_MISMATCH");
    assert_eq!(imex.nodes[0].connections[&17], "NEVER_CONNECTED");
    assert_eq!(imex.nodes[2].connections[&2], "RECOVERING");
}

#[test]
fn the_queried_node_and_host_names_are_read() {
    let text = "Nodes:\n\
        Node #0   - 10.1.1.1        - UNAVAILABLE          - Version:            - Hostname: tray-a\n\
        Node #4   * 10.1.1.5 *      - READY                - Version: 580.95     - Hostname: tray-e\n\
        \n Nodes From\\To  0   4\n       0        I   I\n       4        N   C\nDomain State: DEGRADED\n";
    let parsed = read(text);
    assert!(parsed.complete, "{:?}", parsed.problems);
    assert_eq!(parsed.facts.parameters["imex.local_node"], "4");
    let nodes = &imex(&parsed).nodes;
    assert_eq!(
        (nodes[0].status.as_deref(), nodes[0].version.as_deref()),
        (Some("UNAVAILABLE"), None)
    );
    assert_eq!(nodes[1].host.as_deref(), Some("10.1.1.5"));
    assert_eq!(nodes[1].host_name.as_deref(), Some("tray-e"));
    assert_eq!(nodes[0].connections[&4], "INVALID");
}

#[test]
fn a_legend_of_the_file_wins_over_the_known_letters() {
    let text = render(&[0], &[vec!["C"]], "UP").replace("C - Connected -", "C - Half Connected -");
    assert_eq!(imex(&read(&text)).nodes[0].connections[&0], "HALF_CONNECTED");
    let unknown = render(&[0], &[vec!["Q"]], "UP");
    assert!(read(&unknown).has_problem(OutputProblemKind::Unrecognised));
}

#[test]
fn a_row_that_is_missing_or_short_is_a_truncation() {
    let whole = render(&[0, 1], &[vec!["C", "C"], vec!["C", "C"]], "UP");
    let lost: String =
        whole.lines().filter(|l| !l.starts_with("       1")).map(|l| format!("{l}\n")).collect();
    assert!(read(&lost).problems[0].detail.contains("lacks node 1"));
    let short = whole.replace("       1        C   C", "       1        C");
    assert!(!read(&short).complete);
}

#[test]
fn a_repeated_status_counts_with_its_last_state() {
    let before = render(&[0, 1], &[vec!["C", "N"], vec!["N", "C"]], "DEGRADED");
    let after = render(&[0, 1], &[vec!["C", "C"], vec!["C", "C"]], "UP");
    let parsed = read(&format!("{before}\n{after}"));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    assert_eq!(imex(&parsed).nodes[0].connections[&1], "CONNECTED");
}

#[test]
fn json_with_gaps_and_empty_names_is_read_in_order_of_number() {
    let text = r#"{"nodes":{"12":{"status":"READY","host":"10.0.0.12","hostName":"","version":"580.65",
        "connections":{"3":{"host":"10.0.0.3","status":"INVALID"}}},
        "3":{"status":"UNAVAILABLE","host":"10.0.0.3","hostName":"tray-d"}},
        "timestamp":"1/2/2026 3:04:05.678","status":"UP"}"#;
    let parsed = read(text);
    assert!(parsed.complete && parsed.problems.is_empty());
    let nodes = &imex(&parsed).nodes;
    assert_eq!((nodes[0].index, nodes[0].host_name.as_deref()), (3, Some("tray-d")));
    assert_eq!((nodes[1].index, &nodes[1].host_name), (12, &None));
    assert_eq!(nodes[1].connections[&3], "INVALID");
    assert_eq!(imex(&parsed).status.as_deref(), Some("UP"));
}

#[test]
fn json_that_stops_or_lacks_the_state_is_not_whole() {
    let cut = r#"{"nodes":{"0":{"status":"READY","host":"10.0.0.1"},"1":{"status":"READ"#;
    let parsed = read(cut);
    assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated));
    assert_eq!(imex(&parsed).nodes[0].status.as_deref(), Some("READY"));
    let without = r#"{"nodes":{"0":{"status":"READY","host":"10.0.0.1"}},"timestamp":"x"}"#;
    assert!(read(without).problems[0].detail.contains("state of the domain"));
}

#[test]
fn a_second_document_is_reported_and_not_ignored() {
    let one = "{\"status\": \"UP\", \"nodes\": {\"0\": {\"status\": \"READY\", \"host\": \"a\"}}}";
    assert!(read(one).complete, "{:?}", read(one));
    let two = read(&format!("{one}\n{}\n", one.replace("UP", "DOWN")));
    assert!(two.has_problem(OutputProblemKind::Unrecognised) && !two.complete, "{two:?}");
}

#[test]
fn a_daemon_state_alone_is_not_a_domain() {
    let parsed = read("WAITING_FOR_PEERS\n");
    assert!(parsed.complete && parsed.facts.imex.is_none());
    assert_eq!(parsed.facts.parameters["imex.daemon_state"], "WAITING_FOR_PEERS");
    assert_eq!(outputs::parse_output(b"SOMETHING\n").tool, None);
}

#[test]
fn a_forged_file_of_many_nodes_ends_in_time() {
    let nodes: String = (0..100_000).map(|n| format!("Node #{n} - 10.0.0.1 - READY\n")).collect();
    let parsed = read(&format!("{LEGEND_TEXT}Nodes:\n{nodes}Domain State: UP\n"));
    assert!(!parsed.complete);
    assert_eq!(imex(&parsed).nodes.len(), MOST_NODES as usize);
}

proptest! {
    #[test]
    fn rendered_output_is_read_back(
        numbers in proptest::collection::btree_set(0u32..200, 1..19),
        pick in proptest::collection::vec(0usize..8, 18 * 18),
    ) {
        let numbers: Vec<u32> = numbers.into_iter().collect();
        let n = numbers.len();
        let letters: Vec<Vec<&str>> =
            (0..n).map(|r| (0..n).map(|c| LETTERS[pick[r * 18 + c]].0).collect()).collect();
        let parsed = read(&render(&numbers, &letters, "UP"));
        prop_assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        for (row, node) in imex(&parsed).nodes.iter().enumerate() {
            prop_assert_eq!(node.index, numbers[row]);
            for (column, number) in numbers.iter().enumerate() {
                prop_assert_eq!(&node.connections[number], LETTERS[pick[row * 18 + column]].1);
            }
        }
    }

    #[test]
    fn a_listing_that_lost_its_last_lines_is_not_whole(kept in 0usize..1000) {
        let text = render(&[0, 1, 2], &vec![vec!["C"; 3]; 3], "UP");
        let lines: Vec<&str> = text.lines().collect();
        let kept = 1 + kept % (lines.len() - 1);
        prop_assert!(!read(&lines[..kept].join("\n")).complete);
    }

    #[test]
    fn nothing_makes_it_panic(text in "(.|\n){0,300}", hurt in fixture::any_damage()) {
        let table = render(&[0, 3], &vec![vec!["C", "!V!"]; 2], "UP");
        let json = r#"{"nodes":{"0":{"status":"READY","connections":{"1":{"status":"N"}}}},"status":"UP"}"#;
        for bytes in [
            text.as_bytes().to_vec(),
            fixture::apply_damage(&table, &hurt),
            fixture::apply_damage(json, &hurt),
        ] {
            let decoded = text::decode(&bytes);
            let parsed = parse(&ParserInput::new(&decoded));
            prop_assert!(!parsed.complete || parsed.problems.iter().all(|p| p.kind != OutputProblemKind::Truncated));
        }
    }
}

#[test]
fn launcher_prefixes_of_json_and_tokens_are_ignored() {
    let json = "{\n  \"nodes\": {\n    \"4\": {\"status\": \"READY\", \"host\": \"10.9.8.4\"}\n  },\n\
                \x20 \"timestamp\": \"7/9/2026 11:22:33.444\",\n  \"status\": \"UP\"\n}\n";
    for margin in ["[pod/daemon-7/main] ", "3: ", "2026-07-09T11:22:33Z "] {
        let text: String = json.lines().map(|line| format!("{margin}{line}\n")).collect();
        let imex = read(&text).facts.imex.expect("a domain");
        assert_eq!(imex.status.as_deref(), Some("UP"), "{margin}");
        assert_eq!(imex.nodes[0].index, 4);
    }
    let parsed = read("[pod/daemon-7/main] WAITING_FOR_PEERS\n");
    assert_eq!(parsed.facts.parameters["imex.daemon_state"], "WAITING_FOR_PEERS");
}
