//! Tokens, rows and blocks missing in the middle: the text around the gap keeps its place or loses
//! its number.

use super::render::{DEVICES, NOTE, READ, RenderedMatrix, head, number, square};
use super::{matrices, matrix, problems, read};
use model::parse_output::OutputProblemKind::{Inconsistent, Truncated};
use model::parse_output::ParseOutput;

const READ_CE: &str = "device_to_device_memcpy_read_ce";
const BIDIRECTIONAL: &str = "device_to_device_bidirectional_memcpy_read_ce";

fn with(printed: &RenderedMatrix, edit: impl Fn(&str) -> String) -> ParseOutput {
    read(&edit(&(head("v0.8", DEVICES) + &printed.test(2) + NOTE)))
}

/// Row 2 of the test's matrix as printed.
fn row(text: &str) -> &str {
    text.lines().find(|line| line.starts_with(" 2  ")).expect("a row")
}

#[test]
fn a_word_lost_in_the_middle_of_a_row_moves_no_other_cell() {
    let printed = square(READ_CE, READ, 6);
    let lost = format!("{:.2}", number(2, 1));
    let parsed = with(&printed, |text| text.replace(row(text), &row(text).replace(&lost, "")));
    let found = matrix(&parsed, READ_CE);
    assert_eq!(found.cells[2], [Some(number(2, 0)), None, None, None, None, None]);
    assert_eq!(found.cells[3], printed.cells[3]);
    assert!(problems(&parsed).contains(&(Truncated, Some(READ_CE))));
    assert!(!parsed.complete);
}

#[test]
fn a_row_cut_at_its_right_keeps_the_cells_before_the_cut() {
    let printed = square(READ_CE, READ, 6);
    let parsed = with(&printed, |text| text.replace(row(text), &row(text)[..32]));
    let found = matrix(&parsed, READ_CE);
    assert_eq!(found.cells[2][..3], printed.cells[2][..3]);
    assert_eq!(found.cells[2][3..], [None, None, None]);
}

#[test]
fn a_short_row_whose_blanks_were_folded_has_no_number() {
    let printed = square(READ_CE, READ, 6);
    let lost = format!("{:.2} ", number(2, 4));
    let folded = |text: &str| -> String {
        let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
        text.lines().map(line).collect()
    };
    let parsed = with(&printed, |text| folded(text).replacen(&lost, "", 1));
    let found = matrix(&parsed, READ_CE);
    assert_eq!(found.cells[2], vec![None; 6]);
    assert_eq!(found.cells[1], printed.cells[1]);
    assert_eq!(matrix(&with(&printed, folded), READ_CE).cells, printed.cells);
}

#[test]
fn merged_rows_of_two_tables_belong_to_neither() {
    let first = square(READ_CE, READ, 6);
    let mut second = first.clone();
    second.cells.iter_mut().flatten().flatten().for_each(|cell| *cell += 50.0);
    let above: String = first.table(2, "N/A").lines().take(6).map(|l| format!("{l}\n")).collect();
    let below: String = second.part(2).lines().skip(4).map(|l| format!("{l}\n")).collect();
    let text = head("v0.8", DEVICES) + &format!("Running {READ_CE}.\n{above}{below}") + NOTE;
    let parsed = read(&text);
    assert_eq!(matrices(&parsed)[0].numbers().count(), 0);
    assert!(!parsed.complete);
}

#[test]
fn cells_under_the_title_of_another_part_are_not_given_to_it() {
    let titled = |part: &str, n: usize| {
        let title = format!("memcpy CE GPU(row) <-> GPU(column) {part} bandwidth (GB/s)");
        square(&format!("{BIDIRECTIONAL}_{}", part.to_lowercase()), &title, n)
    };
    let first = titled("Read1", 2).table(2, "N/A");
    let body = format!(
        "Running {BIDIRECTIONAL}.\n{}\nSUM {BIDIRECTIONAL}_read2 999.00\n\n{}",
        first.lines().take(3).map(|l| format!("{l}\n")).collect::<String>(),
        titled("Total", 2).part(2)
    );
    let parsed = read(&(head("v0.8", DEVICES) + &body + NOTE));
    assert_eq!((matrices(&parsed)[0].testcase.as_deref(), matrices(&parsed)[0].sum), (None, None));
    assert!(!parsed.complete && !problems(&parsed).iter().any(|p| p.0 == Inconsistent));
}
