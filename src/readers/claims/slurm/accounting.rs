//! Accounting of past jobs from `sacct -X -P`: node time by segment.
//!
//! Pure. The fields are those of `sacct(1)`. `SegmentSize` exists since Slurm 25.05 and is empty
//! where a job requested none; before, a segment appears at most in `SubmitLine`, which does not
//! contain the options of the script itself.

use std::collections::BTreeMap;

use crate::claims::reader_util::quote_text;

/// The `sacct` command to run. `SubmitLine` comes last: it may contain any character, without
/// escapes.
pub const SACCT_COMMAND: &str = "sacct -X -P -o JobID,NNodes,ElapsedRaw,SegmentSize,SubmitLine";

/// The node time of jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SegmentUsage {
    /// Nodes times seconds, by segment.
    pub node_seconds: BTreeMap<u32, f64>,
    /// Number of jobs that ran.
    pub jobs: u64,
    /// Number of those jobs that requested a segment.
    pub with_segment: u64,
    /// Lines of job steps, which are not counted in addition to their jobs.
    pub steps: u64,
    /// Lines that continue a command of several lines.
    pub continuation_lines: u64,
}

/// Why the accounting file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {message}")]
pub struct AccountingError {
    /// Line number, from 1.
    pub line: usize,
    /// The error, and what was expected.
    pub message: String,
}

struct SacctColumns {
    count: usize,
    id: usize,
    nodes: usize,
    nodes_name: &'static str,
    elapsed: usize,
    segment: Option<usize>,
    command: Option<usize>,
}

impl SacctColumns {
    fn from_header(header: &str) -> Result<Self, String> {
        let mut names: Vec<&str> = header.split('|').map(str::trim).collect();
        // `sacct -p` ends every line with a bar.
        if names.last() == Some(&"") {
            names.pop();
        }
        let place = |name: &str| names.iter().position(|own| own.eq_ignore_ascii_case(name));
        let needed = |name: &str| {
            place(name).ok_or_else(|| {
                format!("no column {name}, expected a header as `{SACCT_COMMAND}` prints it")
            })
        };
        let nodes = place("NNodes").map(|at| (at, "NNodes"));
        let (nodes, nodes_name) = match nodes.or(place("AllocNodes").map(|at| (at, "AllocNodes"))) {
            Some(found) => found,
            None => (needed("NNodes")?, "NNodes"),
        };
        Ok(Self {
            count: names.len(),
            id: place("JobIDRaw").map_or_else(|| needed("JobID"), Ok)?,
            nodes,
            nodes_name,
            elapsed: needed("ElapsedRaw")?,
            segment: place("SegmentSize"),
            command: place("SubmitLine"),
        })
    }

    /// The fields of a line; `None` if there are too few.
    fn split_fields<'t>(&self, line: &'t str) -> Option<Vec<&'t str>> {
        let is_last = self.command == Some(self.count - 1);
        let fields: Vec<&str> = if is_last {
            line.splitn(self.count, '|').collect()
        } else {
            line.strip_suffix('|').unwrap_or(line).split('|').collect()
        };
        (self.count <= fields.len()).then_some(fields)
    }
}

/// Parses the output of `sacct`, for blocks of this many nodes. A job without a segment counts as
/// one that needs its nodes in as few blocks as possible.
pub fn read(text: &str, block: u32) -> Result<SegmentUsage, AccountingError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let wrong = |at: usize, message: String| AccountingError { line: at + 1, message };
    let Some((first, header)) = lines.next() else {
        let message = format!("the file is empty, expected the output of `{SACCT_COMMAND}`");
        return Err(wrong(0, message));
    };
    let header = header.trim_start_matches('\u{feff}');
    let columns = SacctColumns::from_header(header).map_err(|message| wrong(first, message))?;
    let mut found = SegmentUsage::default();
    for (at, line) in lines {
        match columns.split_fields(line) {
            Some(fields) => {
                add_job(&fields, &columns, block, &mut found)
                    .map_err(|message| wrong(at, message))?;
            }
            // A command may contain line breaks, which are printed unchanged.
            None if columns.command == Some(columns.count - 1) && 0 < found.jobs + found.steps => {
                found.continuation_lines += 1;
            }
            None => {
                let have = line.split('|').count();
                let message = format!("{have} fields, expected {} between `|`", columns.count);
                return Err(wrong(at, message));
            }
        }
    }
    if found.node_seconds.is_empty() {
        let last = text.lines().count().saturating_sub(1);
        return Err(wrong(last, "no job has run, expected one or more".to_owned()));
    }
    Ok(found)
}

fn add_job(
    fields: &[&str],
    columns: &SacctColumns,
    block: u32,
    found: &mut SegmentUsage,
) -> Result<(), String> {
    if columns.count < fields.len() {
        return Err(format!(
            "{} fields, expected {}: if a command contains `|`, request SubmitLine as the last \
            field",
            fields.len(),
            columns.count
        ));
    }
    let id = fields[columns.id].trim();
    if !id.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("JobID {}, expected a number", quote_text(id)));
    }
    if id.contains('.') {
        found.steps += 1;
        return Ok(());
    }
    let nodes = fields[columns.nodes].trim();
    let nodes: u32 = nodes.parse().map_err(|_| {
        // AllocNodes is abbreviated (1.50K), NNodes is not (sacct's print.c).
        let remedy = if columns.nodes_name == "AllocNodes" { ", as in NNodes" } else { "" };
        let name = columns.nodes_name;
        format!("{name} {}, expected a whole number of nodes{remedy}", quote_text(nodes))
    })?;
    let elapsed = fields[columns.elapsed].trim();
    let elapsed: u64 = elapsed
        .parse()
        .map_err(|_| format!("ElapsedRaw {}, expected seconds", quote_text(elapsed)))?;
    // Jobs that never started have requested nodes, but no time.
    if nodes == 0 || elapsed == 0 {
        return Ok(());
    }
    let own = columns.segment.map_or("", |at| fields[at].trim());
    let own: Option<u32> = match own {
        "" => None,
        own => Some(own.parse().map_err(|_| {
            format!("SegmentSize {}, expected a number of nodes or nothing", quote_text(own))
        })?),
    };
    let command = columns.command.map_or("", |at| fields[at]);
    let requested = own.filter(|own| 0 < *own).or_else(|| segment_from_command(command));
    // A job that fits into one segment is not divided and needs only its own nodes.
    let segment = requested.unwrap_or(block).min(nodes).max(1);
    found.jobs += 1;
    found.with_segment += u64::from(requested.is_some());
    *found.node_seconds.entry(segment).or_default() += f64::from(nodes) * elapsed as f64;
    Ok(())
}

/// Parses `--segment=N` or `--segment N` in a command.
fn segment_from_command(command: &str) -> Option<u32> {
    let mut words = command.split_whitespace();
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--segment") {
            Some("") => words.next()?,
            Some(rest) => match rest.strip_prefix('=') {
                Some(value) => value,
                None => continue,
            },
            None => continue,
        };
        return value.parse().ok().filter(|segment| 0 < *segment);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(text: &str) -> SegmentUsage {
        read(text, 18).expect("an accounting")
    }

    fn error_text(text: &str) -> String {
        read(text, 18).expect_err("no accounting").to_string()
    }

    #[test]
    fn node_seconds_are_summed_by_segment() {
        let found = usage(
            "JobID|NNodes|ElapsedRaw|SegmentSize|SubmitLine\n\
            101|32|100|16|sbatch train.sh\n\
            102|8|50||sbatch --segment=4 eval.sh\n\
            103|36|10||sbatch big.sh\n\
            104|1|7|0|srun --segment 16 nvidia-smi\n\
            105_3|2|0||sbatch never.sh\n\
            106+0|4|5||sbatch a.sh | tee x|y\n\
            107.batch|32|100||\n",
        );
        let expected = [(1, 7.0), (4, 420.0), (16, 3200.0), (18, 360.0)];
        assert_eq!(found.node_seconds, BTreeMap::from(expected));
        assert_eq!(
            (found.jobs, found.with_segment, found.steps, found.continuation_lines),
            (5, 3, 1, 0)
        );
    }

    #[test]
    fn a_command_of_several_lines_is_one_job() {
        let found = usage(
            "JobID|NNodes|ElapsedRaw|SubmitLine\n\
            1|2|3|sbatch --segment=1 --wrap=hostname\nsleep 5\n2|2|3|srun x\n",
        );
        assert_eq!(found.node_seconds, BTreeMap::from([(1, 6.0), (2, 6.0)]));
        assert_eq!(found.continuation_lines, 1);
    }

    #[test]
    fn columns_come_in_any_order_and_older_slurms_have_fewer() {
        let found = usage("ElapsedRaw|AllocNodes|JobID|\n10|4|1|\n");
        assert_eq!(found.node_seconds, BTreeMap::from([(4, 40.0)]));
        assert_eq!(found.with_segment, 0);
    }

    #[test]
    fn invalid_accounting_is_reported_with_its_line() {
        assert!(error_text("").starts_with("1: the file is empty, expected"));
        assert!(error_text("JobID NNodes\n").starts_with("1: no column NNodes, expected a header"));
        assert!(error_text("JobID|NNodes\n").starts_with("1: no column ElapsedRaw, expected"));
        assert!(error_text("NNodes|ElapsedRaw\n").starts_with("1: no column JobID, expected"));
        let with = |line: &str| error_text(&format!("JobID|NNodes|ElapsedRaw\n{line}\n"));
        assert_eq!(with("1|2"), "2: 2 fields, expected 3 between `|`");
        assert!(with("1|2|3|4").starts_with("2: 4 fields, expected 3: if a command contains"));
        assert_eq!(with("x|2|3"), "2: JobID \"x\", expected a number");
        assert_eq!(with("1|two|3"), "2: NNodes \"two\", expected a whole number of nodes");
        assert_eq!(with("1|-2|3"), "2: NNodes \"-2\", expected a whole number of nodes");
        assert_eq!(with("1|2|00:10:00"), "2: ElapsedRaw \"00:10:00\", expected seconds");
        assert_eq!(with("1|2|0"), "2: no job has run, expected one or more");
        let shortened = error_text("JobID|AllocNodes|ElapsedRaw\n1|1.50K|3\n");
        assert!(shortened.ends_with("whole number of nodes, as in NNodes"), "{shortened}");
        let segment = error_text("JobID|NNodes|ElapsedRaw|SegmentSize\n1|2|3|x\u{1b}\n");
        assert!(segment.starts_with("2: SegmentSize \"x"), "{segment}");
        assert!(!segment.contains('\u{1b}'));
    }
}
