//! `nvidia-smi`: one file per subcommand that is read.
//!
//! What they share is here: the lines of one task together, whoever labelled
//! them. What a line means belongs to the subcommands.

mod failure;
pub mod nvlink;
pub mod query;
pub mod topo;

use super::ParserInput;
use super::text::OutputLine;

/// The lines of each task that a launcher labelled, tasks in order of first
/// appearance; all lines as one task where nobody labelled any. `srun -l` mixes
/// the lines of nodes, and a GPU block must not swallow another node's links.
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

/// The number of the last line that holds anything.
fn last_line_number(input: &ParserInput<'_>) -> u32 {
    input.lines.iter().rev().find(|l| !l.trimmed().is_empty()).map_or(0, |l| l.number)
}
