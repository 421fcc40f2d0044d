//! `nvidia-smi topo -m`: the connections between devices of one machine; also the `-p2p` matrices,
//! which have the same shape.
//!
//! Cells contain no blanks, so a row is split into tokens; only the affinity columns, which may be
//! empty, need tabs or positions. This module does not judge connections.

use super::failure;
use crate::outputs::text::OutputLine;
use crate::outputs::{CERTAIN, LIKELY, ParserConfidence, ParserInput, text};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::{SmiTopology, SmiTopologyRow};

/// Connections of `-m`, as its legend lists them; old drivers print SOC for SYS.
const PATHS: &[&str] = &["X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "PSB", "N/A"];

/// Answers of `-p2p`, as its legend lists them.
const PEER_ANSWERS: &[&str] = &["OK", "CNS", "GNS", "TNS", "NS", "DR", "U"];

/// Devices in one matrix: many times 16 GPUs and their NICs. Rows and columns are searched
/// linearly, so a forged file must not make them long.
const MOST_DEVICES: usize = 256;

/// The tokens of the affinity headings.
const AFFINITY_WORDS: &[&str] = &["CPU", "Affinity", "NUMA", "GPU", "ID"];

/// The confidence that this is `nvidia-smi topo`.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    let mut heading = false;
    let mut rows = 0;
    for line in &input.lines {
        if TopoHeading::parse(line.text).is_some() {
            heading = true;
        } else if parse_row_label(line.text).is_some_and(|l| l.starts_with("GPU"))
            && line.split_words().nth(1).is_some_and(is_known_cell)
        {
            if heading {
                return CERTAIN;
            }
            rows += 1;
        }
    }
    if 2 <= rows || (heading && input.text.contains("CPU Affinity")) { LIKELY } else { 0 }
}

/// Reads the connection matrices of an output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::NvidiaSmiTopo);
    let mut matrices = Vec::new();
    for task in super::split_tasks(input) {
        read_task(&task, super::last_line_number(input), &mut matrices, &mut parsed.problems);
    }
    if matrices.is_empty() {
        let detail = "the heading that names the columns is missing";
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, detail));
    }
    // A capture of `-m` and `-p2p` together: the paths are kept.
    let first = matrices.iter().position(|m| !m.is_peer_matrix()).unwrap_or(0);
    let kept = (first < matrices.len()).then(|| matrices.swap_remove(first));
    if let Some(kept) = kept {
        let others = matrices.iter().filter(|m| m.is_peer_matrix() == kept.is_peer_matrix());
        if !kept.is_peer_matrix() && others.clone().any(|m| m.topology != kept.topology) {
            let detail = "one file contains several different matrices; the first is kept";
            parsed.problems.push(OutputProblem::new(OutputProblemKind::Inconsistent, detail));
        }
        if kept.is_peer_matrix() {
            let name = "topology.matrix".to_owned();
            parsed.facts.parameters.insert(name, "p2p".to_owned());
        }
        parsed.problems.extend(kept.find_gaps());
        parsed.problems.extend(kept.find_contradictions());
        parsed.facts.topology = Some(kept.topology);
    }
    parsed.complete = parsed.facts.topology.as_ref().is_some_and(|t| !t.rows.is_empty())
        && !parsed.has_problem(OutputProblemKind::Truncated)
        && !parsed.has_problem(OutputProblemKind::Unrecognised);
    parsed
}

/// Reads the matrices of one task. Other text between them is ignored.
fn read_task(
    lines: &[&OutputLine<'_>],
    last_line: u32,
    matrices: &mut Vec<TopoMatrix>,
    problems: &mut Vec<OutputProblem>,
) {
    let mut open: Option<TopoMatrix> = None;
    let mut in_rows = false;
    for line in lines {
        if let Some(heading) = TopoHeading::parse(line.text) {
            matrices.extend(open.take());
            open = Some(TopoMatrix::new(heading, line.number));
            in_rows = true;
            continue;
        }
        problems.extend(failure::parse_failure(line));
        let Some(matrix) = open.as_mut() else { continue };
        let text = line.trimmed();
        if line.is_elision() {
            matrix.elided = true;
        } else if in_rows && text.is_empty() {
            // A blank line after the heading of `-p2p`, or one that a copy inserted between rows,
            // does not end the matrix.
            in_rows = matrix.topology.rows.len() < matrix.topology.columns.len();
        } else if let Some(label) = parse_row_label(line.text).filter(|_| in_rows) {
            if matrix.topology.rows.len() < MOST_DEVICES {
                matrix.add_row(label, line);
            } else {
                matrix.elided = true;
            }
        } else if let Some((nic, name)) = parse_nic_name(text) {
            let (nic, name) = (clean(nic), clean(name));
            matrix.topology.nics.insert(nic, name);
        } else if in_rows && text.split_whitespace().next().is_some_and(is_device) {
            let problem = if line.number == last_line {
                OutputProblem::new(OutputProblemKind::Truncated, "the last row breaks off")
            } else {
                OutputProblem::new(OutputProblemKind::Unrecognised, "a row that cannot be read")
            };
            problems.push(problem.at_line(line.number));
        }
    }
    matrices.extend(open);
}

/// `NIC0: mlx5_0` of the legend.
fn parse_nic_name(text: &str) -> Option<(&str, &str)> {
    let (nic, name) = text.split_once(':')?;
    let (nic, name) = (nic.trim(), name.trim());
    let digits = nic.strip_prefix("NIC")?;
    (text::parse_integer(digits).is_some() && !name.is_empty() && !name.contains(' '))
        .then_some((nic, name))
}

fn parse_row_label(text: &str) -> Option<&str> {
    let mut words = text.split_whitespace();
    let label = words.next().filter(|w| is_device(w))?;
    words.next().is_some_and(is_cell).then_some(label)
}

/// `GPU0`, `NIC3`, `mlx5_0`, `ibp24s0`: a name with a number in it.
fn is_device(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().any(|b| b.is_ascii_digit())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
        && !is_nvlink(word)
}

/// `NV18`: a bond of links.
fn is_nvlink(word: &str) -> bool {
    word.strip_prefix("NV").is_some_and(|n| text::parse_integer(n).is_some())
}

fn is_known_cell(word: &str) -> bool {
    is_nvlink(word) || PATHS.contains(&word) || PEER_ANSWERS.contains(&word)
}

/// A cell, known or of a later driver: a short token in capitals.
fn is_cell(word: &str) -> bool {
    is_known_cell(word)
        || (word.len() <= 5
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'/'))
}

/// The position of an affinity column.
#[derive(Clone, Copy, Debug)]
struct AffinityColumn {
    /// Index of the tab-separated field.
    field: usize,
    /// Offset in characters.
    offset: usize,
}

/// The heading: devices, then affinities.
struct TopoHeading {
    columns: Vec<String>,
    cpu: Option<AffinityColumn>,
    numa: Option<AffinityColumn>,
    /// The offsets of all affinity headings, in order.
    offsets: Vec<usize>,
    /// Part of the heading itself was cut out.
    elided: bool,
}

impl TopoHeading {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().peekable();
        let mut columns = Vec::new();
        while let Some(word) = words.next_if(|w| is_device(w)) {
            columns.push(clean(word));
        }
        columns.first()?.strip_prefix("GPU").and_then(text::parse_integer)?;
        if MOST_DEVICES < columns.len() {
            return None;
        }
        let mut elided = false;
        for word in words {
            let dots = matches!(word, "..." | "…" | "....");
            elided |= dots;
            if !dots && !is_device(word) && !AFFINITY_WORDS.iter().any(|a| a.starts_with(word)) {
                return None;
            }
        }
        let (cpu, numa) = (
            find_affinity_column(text, "CPU Affinity"),
            find_affinity_column(text, "NUMA Affinity"),
        );
        let id = find_affinity_column(text, "GPU NUMA ID");
        let offsets = [cpu, numa, id].iter().flatten().map(|p| p.offset).collect();
        Some(Self { columns, cpu, numa, offsets, elided })
    }
}

fn find_affinity_column(text: &str, name: &str) -> Option<AffinityColumn> {
    let at = text.find(name)?;
    let before = &text[..at];
    Some(AffinityColumn { field: before.matches('\t').count(), offset: before.chars().count() })
}

/// One matrix while it is read.
struct TopoMatrix {
    heading: TopoHeading,
    line: u32,
    topology: SmiTopology,
    elided: bool,
    /// Rows with fewer or more cells than the heading has columns.
    uneven: Vec<(String, u32)>,
}

impl TopoMatrix {
    fn new(heading: TopoHeading, line: u32) -> Self {
        let topology = SmiTopology { columns: heading.columns.clone(), ..SmiTopology::default() };
        Self { elided: heading.elided, heading, line, topology, uneven: Vec::new() }
    }

    /// Adds one row. Missing cells stay empty, so every row has one entry per column.
    fn add_row(&mut self, label: &str, line: &OutputLine<'_>) {
        let words = words_with_offsets(line.text);
        let columns = self.heading.columns.len();
        let cells: Vec<&str> = words
            .iter()
            .skip(1)
            .map(|(_, w)| *w)
            .take(columns)
            .take_while(|w| is_cell(w))
            .collect();
        let rest = &words[(1 + cells.len()).min(words.len())..];
        // `N/A` may be an affinity; any other cell here has lost its column.
        let beyond = rest.iter().any(|(_, w)| is_known_cell(w) && *w != "N/A");
        if cells.len() < columns || beyond {
            self.uneven.push((label.to_owned(), line.number));
        }
        let (cpu, numa) = self.parse_affinities(line.text, rest);
        let mut connections: Vec<String> = cells.iter().map(|c| clean(c)).collect();
        connections.resize(columns, String::new());
        self.topology.rows.push(SmiTopologyRow {
            device: clean(label),
            connections,
            cpu_affinity: cpu,
            numa_affinity: numa,
        });
    }

    /// CPU and NUMA affinity: by tab if the row has tabs, else by position. The driver's rows have
    /// one more empty field than its heading before the last column (observed from 5xx on), so only
    /// the first two are read.
    fn parse_affinities(
        &self,
        text: &str,
        rest: &[(usize, &str)],
    ) -> (Option<String>, Option<String>) {
        let by_place = |place: Option<AffinityColumn>| {
            let place = place?;
            let found = if text.contains('\t') && 0 < place.field {
                text.split('\t').nth(place.field).map(str::trim)
            } else {
                rest.iter()
                    .find(|(at, _)| self.nearest_column(*at) == Some(place.offset))
                    .map(|(_, w)| *w)
            };
            found.map(clean).filter(|t| !t.is_empty())
        };
        if !text.contains('\t') && rest.len() == self.heading.offsets.len() {
            let mut words = rest.iter().map(|(_, w)| clean(w));
            let cpu = self.heading.cpu.and_then(|_| words.next());
            return (cpu, self.heading.numa.and_then(|_| words.next()));
        }
        (by_place(self.heading.cpu), by_place(self.heading.numa))
    }

    /// The affinity heading nearest to this position.
    fn nearest_column(&self, at: usize) -> Option<usize> {
        self.heading.offsets.iter().copied().min_by_key(|o| o.abs_diff(at))
    }

    /// Whether this is `-p2p`; its answers share no token with the paths of `-m`.
    fn is_peer_matrix(&self) -> bool {
        let mut cells = self.topology.rows.iter().flat_map(|r| &r.connections);
        cells.any(|c| PEER_ANSWERS.contains(&c.as_str()))
    }

    /// The missing parts of the matrix.
    fn find_gaps(&self) -> Vec<OutputProblem> {
        let truncated = |detail: String| OutputProblem::new(OutputProblemKind::Truncated, detail);
        let topology = &self.topology;
        let mut out = Vec::new();
        if self.elided {
            out.push(truncated("parts of the matrix were left out".to_owned()).at_line(self.line));
        }
        for (device, line) in &self.uneven {
            let detail = format!("the row of {device} does not have one cell for each column");
            out.push(truncated(detail).at_line(*line));
        }
        let without_row: Vec<&str> = topology
            .columns
            .iter()
            .filter(|c| topology.rows.iter().all(|r| r.device != **c))
            .map(String::as_str)
            .collect();
        if !without_row.is_empty() {
            out.push(
                truncated(format!("no row for {}", without_row.join(", "))).at_line(self.line),
            );
        }
        let without_column: Vec<&str> = topology
            .rows
            .iter()
            .map(|r| r.device.as_str())
            .filter(|d| topology.columns.iter().all(|c| c != d))
            .collect();
        if !without_column.is_empty() {
            let detail = format!("no column for {}", without_column.join(", "));
            out.push(truncated(detail).at_line(self.line));
        }
        let unnamed = topology
            .columns
            .iter()
            .filter(|c| c.starts_with("NIC"))
            .any(|c| !topology.nics.contains_key(c));
        if unnamed {
            out.push(truncated("the legend does not name every NIC".to_owned()));
        }
        let gpus = || topology.rows.iter().filter(|r| r.device.starts_with("GPU"));
        if gpus().any(|r| r.cpu_affinity.is_some())
            && gpus()
                .next_back()
                .is_some_and(|r| r.cpu_affinity.is_none() && r.numa_affinity.is_none())
        {
            out.push(truncated("the last GPU has no affinity, others have".to_owned()));
        }
        out
    }

    /// Contradictions within the matrix. Peer access may differ by direction; a path may not.
    fn find_contradictions(&self) -> Vec<OutputProblem> {
        let inconsistent =
            |detail: String| OutputProblem::new(OutputProblemKind::Inconsistent, detail);
        let topology = &self.topology;
        // Checks every cell in one pass.
        let is_peer_matrix = self.is_peer_matrix();
        let mut out = Vec::new();
        for (i, row) in topology.rows.iter().enumerate() {
            if topology.rows[..i].iter().any(|r| r.device == row.device) {
                out.push(inconsistent(format!("{} has two rows", row.device)));
            }
            for (column, cell) in topology.columns.iter().zip(&row.connections) {
                if cell.is_empty() {
                    continue;
                }
                if (*column == row.device) != (cell == "X") {
                    out.push(inconsistent(format!("{} to {column} is {cell}", row.device)));
                }
                if is_peer_matrix || *column <= row.device {
                    continue;
                }
                if let Some(back) = self.cell(column, &row.device)
                    && back != cell
                {
                    let detail = format!(
                        "{} to {column} is {cell}, {column} to {} is {back}",
                        row.device, row.device
                    );
                    out.push(inconsistent(detail));
                }
            }
        }
        out
    }

    fn cell(&self, row: &str, column: &str) -> Option<&str> {
        let at = self.topology.columns.iter().position(|c| c == column)?;
        let row = self.topology.rows.iter().find(|r| r.device == row)?;
        row.connections.get(at).map(String::as_str).filter(|c| !c.is_empty())
    }
}

/// The tokens of a line with their character positions.
fn words_with_offsets(text: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    let mut position = 0;
    for word in text.split(char::is_whitespace) {
        if !word.is_empty() {
            out.push((position, word));
        }
        position += word.chars().count() + 1;
    }
    out
}

#[cfg(test)]
mod tests;
