//! A site's outage statistics: how many nodes of a domain were out of service concurrently, and
//! for which share of time.
//!
//! Pure. A CSV file with the columns `out` and `share`; lines that begin with a number sign are
//! comments.

use std::collections::BTreeMap;

use crate::claims::reader_util::{first_line, quote_text};

/// Why an outages file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {message}")]
pub struct OutagesError {
    /// Line number, from 1.
    pub line: u64,
    /// The error, and what was expected.
    pub message: String,
}

/// Parses the file: number of nodes out of service, and its share of time.
pub fn read(text: &str) -> Result<BTreeMap<u32, f64>, OutagesError> {
    let text = text.trim_start_matches('\u{feff}');
    let mut reader = csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .flexible(true)
        .from_reader(text.as_bytes());
    let wrong = |line: u64, message: String| OutagesError { line, message };
    let broken = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        OutagesError { line, message: first_line(&error) }
    };
    let header = reader.headers().map_err(broken)?.clone();
    // The CSV reader does not count comments before its header.
    let is_header = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
    let line = text.lines().position(is_header).map_or(1, |at| at as u64 + 1);
    let place = |name: &str| {
        let found = header.iter().position(|own| own.eq_ignore_ascii_case(name));
        found.ok_or_else(|| wrong(line, format!("no column {name}, expected the header out,share")))
    };
    let (out_at, share_at) = (place("out")?, place("share")?);
    let mut shares = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let line = || record.position().map_or(1, |at| line_of(text, at.byte()));
        let field = |at: usize| record.get(at).unwrap_or("");
        let out = field(out_at);
        let out: u32 = out.parse().map_err(|_| {
            wrong(
                line(),
                format!("out {}, expected a whole number of nodes, 0 or more", quote_text(out)),
            )
        })?;
        let word = field(share_at);
        let share = word.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        let Some(share) = share else {
            let message =
                format!("share {}, expected a share of time from 0 to 1", quote_text(word));
            return Err(wrong(line(), message));
        };
        if shares.insert(out, share).is_some() {
            return Err(wrong(line(), format!("{out} nodes out occurs twice, expected once")));
        }
    }
    Ok(shares)
}

/// The line of a record at this byte offset. The CSV reader's offset includes preceding comments,
/// blank lines and half a line end.
fn line_of(text: &str, byte: u64) -> u64 {
    let mut start = usize::try_from(byte).unwrap_or_default();
    let is_skipped =
        |line: &&str| line.trim_end_matches(['\r', '\n']).is_empty() || line.starts_with('#');
    let rest = text.get(start..).unwrap_or_default();
    start += rest.split_inclusive('\n').take_while(is_skipped).map(str::len).sum::<usize>();
    text.get(..start).unwrap_or_default().matches('\n').count() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_by_their_header() {
        let shares = read("# a year of racks\nshare,out\n0.9, 0\n0.08,1\n0.02,2\n");
        assert_eq!(shares, Ok(BTreeMap::from([(0, 0.9), (1, 0.08), (2, 0.02)])));
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let error = |text: &str| read(text).expect_err("no observation").to_string();
        assert_eq!(error(""), "1: no column out, expected the header out,share");
        assert_eq!(error("#\nout\n"), "2: no column share, expected the header out,share");
        let with = |line: &str| error(&format!("out,share\n{line}\n"));
        assert_eq!(with("x,1"), "2: out \"x\", expected a whole number of nodes, 0 or more");
        assert_eq!(with("-1,1"), "2: out \"-1\", expected a whole number of nodes, 0 or more");
        assert_eq!(with("1"), "2: share \"\", expected a share of time from 0 to 1");
        assert_eq!(with("1,90"), "2: share \"90\", expected a share of time from 0 to 1");
        assert_eq!(with("1,nan"), "2: share \"nan\", expected a share of time from 0 to 1");
        assert!(with("# a\n\n# b\n1,90").starts_with("5: share"));
        assert!(error("out,share\r\n# c\r\n1,90\r\n").starts_with("3: share"));
        assert_eq!(with("1,0.5\n1,0.5"), "3: 1 nodes out occurs twice, expected once");
    }
}
