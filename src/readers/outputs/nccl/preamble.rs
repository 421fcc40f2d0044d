//! The lines before a table: versions, test name, parameters, devices.
//!
//! Every function reads one line, independently of its run.

use std::collections::BTreeMap;

use super::run::{SizeStep, SizeSweep};
use crate::outputs::text;
use model::text::clean;
use model::tool_facts::ToolRank;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NcclParameters {
    /// All parameters by the tool's names.
    pub(super) by_name: BTreeMap<String, String>,
    pub(super) sweep: Option<SizeSweep>,
    pub(super) validation: Option<bool>,
}

/// `nThread 1 nGpus 8 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 ...`.
pub(super) fn parse_parameters(line: &str) -> Option<NcclParameters> {
    if !(line.contains("nThread") && line.contains("nGpus") && line.contains("minBytes")) {
        return None;
    }
    let mut named = BTreeMap::new();
    let mut name = String::new();
    let start = line.find("nThread").unwrap_or(0);
    for word in line[start..].split_whitespace() {
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            if !name.is_empty() {
                named.insert(clean(&name), clean(word));
            }
            name.clear();
        } else {
            if !name.is_empty() {
                name.push(' ');
            }
            name.push_str(word.trim_end_matches(':'));
        }
    }
    let number = |name: &str| named.get(name).and_then(|v| text::parse_integer(v));
    let sweep = || {
        let step = named.get("step")?;
        let (size, kind) = step.split_once('(')?;
        let size = text::parse_integer(size)?;
        let step =
            if kind.starts_with("factor") { SizeStep::Factor(size) } else { SizeStep::Bytes(size) };
        Some(SizeSweep { min: number("minBytes")?, max: number("maxBytes")?, step })
    };
    let (sweep, validation) = (sweep(), number("validation").map(|v| v != 0));
    Some(NcclParameters { by_name: named, sweep, validation })
}

/// `Rank  0 Group  0 Pid 42 on HOST device  0 [0000:1b:00] NAME`; older releases lack the group,
/// and the first also the process.
pub(super) fn parse_rank(line: &str) -> Option<ToolRank> {
    let at = line.find("Rank ")?;
    // Users copy these lines without their mark.
    if !line[..at].trim_end().ends_with('#') && !line[..at].trim().is_empty() {
        return None;
    }
    let mut words = line[at..].split_whitespace().skip(1);
    let number = |word: Option<&str>| word.and_then(|w| w.parse::<u32>().ok());
    let mut rank = ToolRank { rank: number(words.next())?, ..ToolRank::default() };
    loop {
        match words.next()? {
            "Group" => rank.group = number(words.next()),
            "Pid" => {
                words.next()?;
            }
            "on" => break,
            _ => return None,
        }
    }
    rank.host = clean(words.next()?);
    if words.next()? != "device" {
        return None;
    }
    rank.device = number(words.next())?;
    let rest = line[at..].split_once('[').map(|(_, rest)| rest)?;
    let (bus, name) = rest.split_once(']')?;
    rank.bus_id = Some(clean(bus)).filter(|bus| !bus.is_empty());
    rank.name = Some(clean(name)).filter(|name| !name.is_empty());
    Some(rank)
}

/// The token after `mark` in a line.
pub(super) fn word_after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(mark)?;
    rest.split_whitespace().next()
}

/// `# Reducing maxBytes to N due to memory limitation`.
pub(super) fn parse_reduced_max(line: &str) -> Option<u64> {
    text::parse_integer(word_after(line, "Reducing maxBytes to ")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_tools_own_names() {
        let line = "# nThread 1 nGpus 4 minBytes 64 maxBytes 4096 step: 2(factor) warmup iters: 1 \
                    iters: 20 agg iters: 3 validation: 0 graph: 0 unalign: 0";
        let read = parse_parameters(line).expect("parameters");
        assert_eq!(read.by_name["warmup iters"], "1");
        assert_eq!(read.by_name["agg iters"], "3");
        assert_eq!(read.by_name["iters"], "20");
        assert_eq!(read.sweep, Some(SizeSweep { min: 64, max: 4096, step: SizeStep::Factor(2) }));
        assert_eq!(read.validation, Some(false));
    }

    #[test]
    fn device_lines_of_all_releases_are_read() {
        let lines = [
            "#   Rank  3 on        n1 device  3 [0x1b] Made Up GPU",
            "#   Rank  3 Pid   4242 on        n1 device  3 [0x1b] Made Up GPU",
            "#  Rank  3 Group  0 Pid   4242 on        n1 device  3 [0000:1b:00] Made Up GPU",
        ];
        for line in lines {
            let rank = parse_rank(line).expect("a rank");
            assert_eq!((rank.rank, rank.host.as_str(), rank.device), (3, "n1", 3), "{line}");
            assert_eq!(rank.name.as_deref(), Some("Made Up GPU"));
        }
        assert_eq!(parse_rank(lines[2]).and_then(|r| r.group), Some(0));
        assert_eq!(parse_rank("# Rank order is by host"), None);
        assert_eq!(parse_rank("#  Rank  3 Group  0 Pid   4242 on  n1 devi"), None);
    }
}
