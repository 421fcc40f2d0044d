//! `nvidia-smi`: one module per supported subcommand.
//!
//! This module groups the lines of one task, whatever launcher labelled them. The subcommand
//! modules interpret the lines.

mod failure;
pub mod nvlink;
pub mod query;
pub mod topo;

use super::ParserInput;
use super::text::OutputLine;

/// The lines of each task that a launcher labelled, in order of first appearance; without labels,
/// all lines as one task. `srun -l` mixes the lines of nodes, and a GPU block must not absorb
/// another node's links.
fn split_tasks<'i, 'a>(input: &'i ParserInput<'a>) -> Vec<Vec<&'i OutputLine<'a>>> {
    let mut labels = std::collections::BTreeMap::new();
    let mut tasks: Vec<Vec<&OutputLine<'_>>> = Vec::new();
    for line in &input.lines {
        let at = *labels.entry(line.label).or_insert(tasks.len());
        if at == tasks.len() {
            tasks.push(Vec::new());
        }
        tasks[at].push(line);
    }
    tasks
}

/// The number of the last non-blank line.
fn last_line_number(input: &ParserInput<'_>) -> u32 {
    input.lines.iter().rev().find(|l| !l.trimmed().is_empty()).map_or(0, |l| l.number)
}
