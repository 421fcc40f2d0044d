//! Text that launchers, other programs and users put around and into outputs.

use super::render::{DEVICES, H2D, NOTE, READ, head, line, multinode, square};
use super::{matrices, matrix, problems, read};
use model::parse_output::OutputProblemKind::{Inconsistent, Truncated};

const NAME: &str = "multinode_device_to_device_memcpy_read_ce";

fn output() -> String {
    multinode(2, &square(NAME, READ, 8).test(2))
}

fn assert_unharmed(text: &str) {
    let parsed = read(text);
    assert_eq!(matrix(&parsed, NAME).cells, square(NAME, READ, 8).cells, "{text}");
    assert_eq!(parsed.facts.ranks.len(), 8, "{text}");
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}\n{text}", parsed.problems);
}

/// The output with `noise` after every line.
fn between(noise: &str) -> String {
    output().lines().flat_map(|l| [l, "\n", noise, "\n"]).collect()
}

#[test]
fn log_lines_may_stand_between_any_two_lines() {
    for noise in [
        "tray01:412:455 [2] NCCL INFO Channel 03/0 : 1[1] -> 0[0] via P2P/CUMEM",
        "tray01:412:455 [2] NCCL WARN Missing \"iommu=pt\" 0.00 1.00",
        "[tray01:00412] MCW rank 3 bound to socket 0[core 1[hwt 0]]: [./B/./.][./././.]",
        "[1741236511.646130] [tray00:364800:0]  ucp_context.c:1192 UCX  WARN  transport 'rc'",
        "Warning: Permanently added 'tray01' (ED25519) to the list of known hosts.",
        "2026-03-04 05:06:07.891 INFO step 12 of 340.00",
        "12 of 340 done",
        "  0 errors found",
        "",
        "   ",
        "```",
        "===== node health =====",
    ] {
        assert_unharmed(&between(noise));
    }
}

#[test]
fn mpi_tags_and_other_ranks_standard_error_are_noise() {
    let tagged: String = output()
        .lines()
        .flat_map(|l| ["[1,0]<stdout>:", l, "\n[1,5]<stderr>: 3  12.00  13.00 chatter\n"])
        .collect();
    assert_unharmed(&tagged);
    let labelled: String = output().lines().flat_map(|l| ["0: ", l, "\n"]).collect();
    assert_unharmed(&labelled);
}

#[test]
fn indentation_prompts_fences_and_foreign_line_ends_are_noise() {
    let indented: String = output().lines().flat_map(|l| ["      ", l, "\n"]).collect();
    assert_unharmed(&indented);
    let folded: String = output()
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") + "\n")
        .collect();
    assert_unharmed(&folded);
    assert_unharmed(&format!("$ kubectl logs bench-launcher\n```text\n{}```\n$ exit\n", output()));
    for end in ["\r\n", "\r\r\n", "\r"] {
        assert_unharmed(&output().replace('\n', end));
    }
    assert_unharmed(output().trim_end());
}

#[test]
fn text_cut_out_by_a_user_makes_an_output_incomplete() {
    for cut in ["...", "[...]", "  [...]", "…", "<snip>", "[... 40 lines ...]", "--- snip ---"] {
        let text = output().replace("\nNOTE: The", &format!("\n{cut}\nNOTE: The"));
        let parsed = read(&text);
        assert_eq!(problems(&parsed), [(Truncated, None)], "{cut}");
        assert!(!parsed.complete, "{cut}");
        assert_eq!(matrix(&parsed, NAME).cells, square(NAME, READ, 8).cells);
    }
}

#[test]
fn rows_that_were_cut_out_are_null_and_the_test_is_named() {
    let want = square(NAME, READ, 8).cells;
    let text: String = output()
        .lines()
        .filter(|l| ![" 3  ", " 4  ", " 5  "].iter().any(|row| l.starts_with(row)))
        .flat_map(|l| if l.starts_with(" 2  ") { [l, "\n ...\n"] } else { [l, "\n"] })
        .collect();
    let parsed = read(&text);
    let got = matrix(&parsed, NAME);
    assert_eq!(got.cells[4], [None; 8]);
    assert_eq!((&got.cells[2], &got.cells[7]), (&want[2], &want[7]));
    assert_eq!(problems(&parsed), [(Truncated, Some(NAME)); 2]);
}

#[test]
fn columns_that_were_cut_out_keep_the_labels_of_the_others() {
    let title = format!("Running {NAME}.\n{READ}\n");
    let text = format!(
        "{title}     0    1  ...   71\n 0  N/A 801.25 ... 802.50\n...\n71 803.75 804.00 ... N/A\n\n\
         SUM {NAME} 4100000.00\n"
    );
    let parsed = read(&text);
    let got = matrix(&parsed, NAME);
    assert_eq!(got.cols, ["0", "1", "71"]);
    assert_eq!(got.rows, ["0", "71"]);
    assert_eq!(got.cells[1], [Some(803.75), Some(804.0), None]);
    assert!(parsed.has_problem(Truncated) && !parsed.has_problem(Inconsistent) && !parsed.complete);
    // Under complete labels the columns after the gap are unknown.
    let text = format!("{title}   0  1  2  3\n 0  N/A 801.25 ... 802.50\n");
    let parsed = read(&text);
    assert_eq!(matrix(&parsed, NAME).cells[0], [None, Some(801.25), None, None]);
}

#[test]
fn outputs_of_many_tasks_mixed_line_by_line_are_separated() {
    let name = "host_to_device_memcpy_ce";
    let node = |node: usize| {
        let list = format!("node{node}\n{DEVICES}");
        format!("{}{}{NOTE}", head("v0.8", &list), line(name, H2D, 2 + node).test(2))
    };
    let outputs: Vec<String> = (0..3).map(node).collect();
    let mut lines: Vec<_> = outputs.iter().map(|o| o.lines()).collect();
    let mut mixed = String::new();
    loop {
        let mut any = false;
        for (task, lines) in lines.iter_mut().enumerate() {
            if let Some(line) = lines.next() {
                mixed.push_str(&format!("{task}: {line}\n"));
                any = true;
            }
        }
        if !any {
            break;
        }
    }
    let parsed = read(&mixed);
    let widths: Vec<_> = matrices(&parsed).iter().map(|m| (m.run, m.cols.len())).collect();
    assert_eq!(widths, [(0, 2), (1, 3), (2, 4)]);
    assert_eq!(parsed.facts.hosts, ["node0", "node1", "node2"]);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

#[test]
fn the_host_of_v0_8_is_found_behind_other_lines() {
    let devices = "node-a7\nnode-a7:1:2 [0] NCCL INFO ready to go\n".to_owned() + DEVICES;
    let parsed =
        read(&(head("v0.8", &devices) + &line("host_to_device_memcpy_ce", H2D, 2).test(2) + NOTE));
    assert_eq!(parsed.facts.hosts, ["node-a7"]);
    assert_eq!(parsed.facts.devices[1].host.as_deref(), Some("node-a7"));
}
