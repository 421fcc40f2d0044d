//! Common helpers of the readers: limits for input size, number of problems and excerpts, and
//! validation of names.
//!
//! Independent of any format.

use model::gpu_facts::is_null_cluster_uuid;
use model::id::NodeName;
use model::source_report::{SourceProblemKind, SourceReport};

/// Limit for the size of an input text. The longest are those of ibnetdiscover: a public one has
/// 300 kB for 582 adapters, so this is for 130,000.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 20;

/// Limit for problems of one source: more are not useful, and a file of another format must not
/// yield one problem per line.
const MAX_PROBLEMS: usize = 200;

/// The longest valid node name, the limit of DNS.
const MAX_NODE_NAME: usize = 253;

/// The longest excerpt of input text in a message or a mark.
const MAX_EXCERPT: usize = 200;

/// Adds a problem, unless the limit is reached.
pub(super) fn push_problem(
    report: &mut SourceReport,
    kind: SourceProblemKind,
    at: impl Into<Option<String>>,
    message: impl Into<String>,
) {
    match report.problems.len() {
        MAX_PROBLEMS => {
            report.push_problem(
                SourceProblemKind::Incomplete,
                None,
                "further problems are omitted",
            );
        }
        more if MAX_PROBLEMS < more => {}
        _ => report.push_problem(kind, at, message),
    }
}

/// Adds a remark, unless the limit is reached.
pub(super) fn push_note(report: &mut SourceReport, note: impl Into<String>) {
    match report.notes.len() {
        MAX_PROBLEMS => report.notes.push("further remarks are omitted".to_owned()),
        more if MAX_PROBLEMS < more => {}
        _ => report.notes.push(note.into()),
    }
}

/// Truncates the problems and remarks to their limits.
pub(super) fn limit_notes(mut report: SourceReport) -> SourceReport {
    if MAX_PROBLEMS < report.problems.len() {
        let more = report.problems.len() - MAX_PROBLEMS;
        report.problems.truncate(MAX_PROBLEMS);
        report.push_problem(
            SourceProblemKind::Incomplete,
            None,
            format!("{more} more problems are omitted"),
        );
    }
    if MAX_PROBLEMS < report.notes.len() {
        let more = report.notes.len() - MAX_PROBLEMS;
        report.notes.truncate(MAX_PROBLEMS);
        report.notes.push(format!("{more} more remarks are omitted"));
    }
    report
}

/// Whether a text is within the size limit; otherwise adds a problem.
pub(super) fn check_text_size(report: &mut SourceReport, text: &str) -> bool {
    let fits = text.len() <= MAX_TEXT_BYTES;
    if !fits {
        let message = format!("{} bytes, expected at most {MAX_TEXT_BYTES}", text.len());
        push_problem(report, SourceProblemKind::Unsupported, report.source.place.clone(), message);
    }
    fits
}

/// The node of this name, if the text is a valid name: it becomes an argument of commands and a
/// folder of a run.
pub(super) fn parse_node_name(text: &str) -> Option<NodeName> {
    let is_name = text.len() <= MAX_NODE_NAME
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    is_name.then(|| NodeName::from(text))
}

/// The node in the path of a file: `.../nodes/NODE/FILE`, the layout of recorded outputs.
pub(super) fn node_from_path(place: &str) -> Option<NodeName> {
    let mut path = place.rsplit('/').skip(1);
    let node = path.next()?;
    (path.next()? == "nodes").then(|| parse_node_name(node)).flatten()
}

/// Input text that is safe to store and display: without control characters, with single blanks,
/// and limited in length.
pub(super) fn sanitize_text(text: &str) -> String {
    let mut kept = String::new();
    let mut gap = false;
    for c in text.chars() {
        if c.is_whitespace() {
            gap = !kept.is_empty();
        } else if !c.is_control() {
            // The rest of a long text is not displayed, so it is not processed either.
            if MAX_EXCERPT <= kept.len() {
                kept.push('…');
                return kept;
            }
            if std::mem::take(&mut gap) {
                kept.push(' ');
            }
            kept.push(c);
        }
    }
    kept
}

/// The sanitized text in quotes, for messages.
pub(super) fn quote_text(text: &str) -> String {
    format!("\"{}\"", sanitize_text(text))
}

/// The first line of another parser's error.
pub(super) fn first_line(error: &impl std::fmt::Display) -> String {
    sanitize_text(error.to_string().lines().next().unwrap_or_default())
}

/// A GUID as 16 hexadecimal digits in lower case: tools print the same GUID with and without `0x`
/// and leading zeros.
pub(super) fn normalise_guid(text: &str) -> Option<String> {
    let digits = text.trim().trim_start_matches("0x");
    let is_guid =
        !digits.is_empty() && digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_guid.then(|| format!("{:0>16}", digits.to_ascii_lowercase()))
}

/// Whether this is the all-zero ClusterUUID of an unconfigured fabric.
pub(super) fn is_zero_uuid(uuid: &str) -> bool {
    !uuid.is_empty() && is_null_cluster_uuid(uuid)
}

/// Whether a name belongs to an RDMA device (as opposed to a network device), by the naming of
/// Linux drivers and rdma-core.
pub(super) fn is_rdma_device(name: &str) -> bool {
    ["mlx4_", "mlx5_", "bnxt_re", "irdma", "efa_", "hfi1_", "rocep", "ionic_"]
        .iter()
        .any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::source_report::SourceKind;

    #[test]
    fn the_folder_of_a_recorded_output_names_its_node() {
        assert_eq!(node_from_path("run/nodes/n01/lldp.json"), Some("n01".into()));
        assert_eq!(node_from_path("nodes/n01/lldp.json"), Some("n01".into()));
        for other in ["lldp.json", "n01/lldp.json", "nodes/lldp.json", "nodes/../x", "", "nodes//x"]
        {
            assert_eq!(node_from_path(other), None, "{other}");
        }
    }

    #[test]
    fn guids_are_the_same_however_they_are_printed() {
        let same = Some("0ff08c4321664e96".to_owned());
        for text in ["ff08c4321664e96", "0xff08c4321664e96", "0FF08C4321664E96"] {
            assert_eq!(normalise_guid(text), same, "{text}");
        }
        for text in ["", "0x", "xyz", "11112222333344445", "ÿ"] {
            assert_eq!(normalise_guid(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_of_another_kind_yields_few_problems() {
        let mut report = SourceReport::new(SourceKind::Cabling, "x");
        for _ in 0..10_000 {
            push_problem(&mut report, SourceProblemKind::Malformed, None, "no");
        }
        assert_eq!(report.problems.len(), MAX_PROBLEMS + 1);
        assert!(report.problems[MAX_PROBLEMS].message.contains("omitted"));
    }

    #[test]
    fn long_lists_of_problems_are_truncated() {
        let mut report = SourceReport::new(SourceKind::SlurmNodes, "x");
        for number in 0..1_000 {
            report.push_problem(SourceProblemKind::Malformed, None, number.to_string());
            report.notes.push(number.to_string());
        }
        let report = limit_notes(report);
        assert_eq!(
            (report.problems.len(), report.notes.len()),
            (MAX_PROBLEMS + 1, MAX_PROBLEMS + 1)
        );
        assert_eq!(report.problems[MAX_PROBLEMS].message, "800 more problems are omitted");
    }

    #[test]
    fn excerpts_are_short_and_printable() {
        assert_eq!(sanitize_text(" a\u{1b}[31m\tb\u{0}\n \u{0} c "), "a[31m b c");
        let long = sanitize_text(&"é".repeat(1_000_000));
        assert!(long.len() < MAX_EXCERPT + 8 && long.ends_with('…'));
    }
}
