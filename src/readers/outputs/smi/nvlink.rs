//! `nvidia-smi nvlink`: the links of each GPU (`-s`) and their counters (`-e`).
//!
//! The other subcommands (`-c`, `-R`, `-p`, `-gt`, `-info`) print lines of the same shape; they are
//! recognised and yield no facts. There is no footer, so "complete" means: every GPU answers, with
//! as many links as others of its kind.

use std::collections::{BTreeMap, BTreeSet};

use super::failure;
use crate::outputs::text::OutputLine;
use crate::outputs::{CERTAIN, LIKELY, POSSIBLE, ParserConfidence, ParserInput, text};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::{GpuLinks, ToolDevice, ToolNvlink};

/// More parameters than this are not `nvidia-smi` output: 72 GPUs of 18 links with two error rates
/// each are 2,592.
const MOST_PARAMETERS: usize = 4096;

/// Link numbers are below this: NVLink 5 has 18, NVML's headers allow 36.
const MOST_LINKS: u32 = 128;

/// GPUs in one file, over all tasks: many times a rack of 72. Lists are searched linearly, so a
/// forged file must not make them long.
const MOST_GPUS: usize = 1024;

/// The confidence that this is `nvidia-smi nvlink`.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    let (mut headings, mut identified, mut links, mut rates) = (0, 0, 0, 0);
    for line in &input.lines {
        match NvlinkLine::parse(line.trimmed()) {
            NvlinkLine::Gpu { uuid, verdict, .. } => {
                if verdict.is_some() {
                    return CERTAIN;
                }
                headings += 1;
                identified += usize::from(uuid.is_some());
            }
            NvlinkLine::Notice(_) => return CERTAIN,
            NvlinkLine::Link { rest, .. } => {
                links += 1;
                rates += usize::from(matches!(NvlinkValue::parse(rest), NvlinkValue::State { .. }));
            }
            NvlinkLine::Stub | NvlinkLine::Other => {}
        }
    }
    match (headings, identified, links, rates) {
        (1.., _, 1.., _) => CERTAIN,
        (_, _, _, 2..) => LIKELY,
        // `nvidia-smi -L` prints the same headings.
        (_, 1.., _, _) => POSSIBLE,
        _ => 0,
    }
}

/// Reads the links of every listed GPU.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let mut reading = NvlinkReader {
        parsed: ParseOutput::for_tool(Tool::NvidiaSmiNvlink),
        blocks: Vec::new(),
        last_line: super::last_line_number(input),
        headless: false,
        answered: false,
    };
    for task in super::split_tasks(input) {
        let first = reading.blocks.len();
        let mut current = None;
        for line in task {
            reading.read_line(line, first, &mut current);
        }
    }
    reading.finish()
}

/// The two sentences that replace a list of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NvlinkNotice {
    AllInactive,
    Unsupported,
}

impl NvlinkNotice {
    /// Drivers spell it `NVLink ... inactive` and `Nvlink ... inActive`.
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if text.contains("nvlink information as all links are inactive") {
            Some(Self::AllInactive)
        } else if text.contains("does not have or support nvlink") {
            Some(Self::Unsupported)
        } else {
            None
        }
    }
}

enum NvlinkLine<'a> {
    Gpu {
        index: u32,
        name: &'a str,
        uuid: Option<&'a str>,
        verdict: Option<NvlinkNotice>,
    },
    Link {
        link: u32,
        rest: &'a str,
    },
    Notice(NvlinkNotice),
    /// Only the beginning of a heading or of a link.
    Stub,
    Other,
}

impl<'a> NvlinkLine<'a> {
    fn parse(text: &'a str) -> Self {
        if let Some((index, rest)) = parse_numbered(text, "GPU ")
            && let Some(rest) = rest.strip_prefix(':')
        {
            let verdict = NvlinkNotice::parse(rest);
            let (name, tail) = rest.split_once("(UUID:").unwrap_or((rest, ""));
            let uuid = tail.split_once(')').map(|(uuid, _)| uuid.trim());
            let uuid = uuid.filter(|u| !u.is_empty() && !u.contains('\u{fffd}'));
            return Self::Gpu { index, name: name.trim(), uuid, verdict };
        }
        if let Some((link, rest)) = parse_numbered(text, "Link ")
            && let Some(rest) = rest.strip_prefix([':', ','])
        {
            return Self::Link { link, rest: rest.trim() };
        }
        if let Some(verdict) = NvlinkNotice::parse(text) {
            return Self::Notice(verdict);
        }
        let stub = ["Link ", "GPU "].iter().any(|w| {
            !text.is_empty() && (w.starts_with(text) || parse_numbered(text, w).is_some())
        });
        if stub { Self::Stub } else { Self::Other }
    }
}

/// `GPU 3...` as 3 and the rest.
fn parse_numbered<'a>(text: &'a str, word: &str) -> Option<(u32, &'a str)> {
    let rest = text.strip_prefix(word)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at(digits);
    Some((number.parse().ok()?, rest))
}

/// The text after `Link 3:`.
enum NvlinkValue<'a> {
    State {
        active: Option<bool>,
        rate: Option<f64>,
    },
    Counter {
        name: &'a str,
        value: Option<u64>,
    },
    /// A bit error rate such as `15e-255`: a number, not a count.
    Ratio {
        name: &'a str,
        value: &'a str,
    },
    /// Output of another subcommand, or traffic counters.
    OtherSubcommand,
    Unreadable,
}

impl<'a> NvlinkValue<'a> {
    /// Only an explicit value becomes a state or a count; a link without a state never counts as
    /// up.
    fn parse(rest: &'a str) -> Self {
        if rest.eq_ignore_ascii_case("<inactive>") {
            return Self::State { active: Some(false), rate: None };
        }
        if is_unsupported(rest) {
            return Self::State { active: None, rate: None };
        }
        if let Some(rate) = rest.strip_suffix("GB/s").map(str::trim) {
            return match text::parse_number(rate).filter(|r| 0.0 <= *r) {
                Some(rate) => Self::State { active: Some(0.0 < rate), rate: Some(rate) },
                None => Self::Unreadable,
            };
        }
        if rest.starts_with("Remote Device ") || is_bus_id(rest) || rest.contains(" is supported:")
        {
            return Self::OtherSubcommand;
        }
        let Some((name, value)) = rest.rsplit_once(':') else { return Self::Unreadable };
        let (name, value) = (name.trim(), value.trim());
        if name.is_empty() || value.is_empty() || rest.contains('\u{fffd}') {
            return Self::Unreadable;
        }
        let lower = name.to_ascii_lowercase();
        // Names of drivers up to 5xx (Replay, Recovery, CRC) and of NVLink 5.
        let counts_trouble =
            ["error", "discard", "recovery", "overrun"].iter().any(|w| lower.contains(w));
        let value_or_none = if is_unsupported(value) { Some(None) } else { parse_count(value) };
        match value_or_none {
            Some(value) if counts_trouble => Self::Counter { name, value },
            Some(_) => Self::OtherSubcommand,
            None if lower.ends_with("ber") && text::parse_number(value).is_some() => {
                Self::Ratio { name, value }
            }
            None if counts_trouble => Self::Unreadable,
            None => Self::OtherSubcommand,
        }
    }
}

fn parse_count(value: &str) -> Option<Option<u64>> {
    text::parse_integer(value).map(Some)
}

fn is_unsupported(text: &str) -> bool {
    let text = text.trim_matches(['<', '>', '[', ']', '(', ')']);
    ["N/A", "Not supported"].iter().any(|w| text.eq_ignore_ascii_case(w))
}

fn is_bus_id(text: &str) -> bool {
    text.contains('.')
        && text.matches(':').count() == 2
        && text.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
}

/// One GPU while its block is read.
struct NvlinkGpuBlock {
    gpu: GpuLinks,
    line: u32,
    /// It has any output about its links.
    answered: bool,
}

/// The parser state; reads line by line.
struct NvlinkReader {
    parsed: ParseOutput,
    blocks: Vec<NvlinkGpuBlock>,
    last_line: u32,
    /// Links appeared before any GPU heading.
    headless: bool,
    /// A notice appeared without a heading (`-i` of some drivers).
    answered: bool,
}

impl NvlinkReader {
    fn read_line(&mut self, line: &OutputLine<'_>, first: usize, current: &mut Option<usize>) {
        match NvlinkLine::parse(line.trimmed()) {
            NvlinkLine::Gpu { .. } if self.blocks.len() == MOST_GPUS => {
                *current = None;
                self.note_unreadable(line.number);
            }
            NvlinkLine::Gpu { index, name, uuid, verdict } => {
                let at = self.find_or_add_block(index, name, uuid, first, line.number);
                *current = Some(at);
                if let Some(verdict) = verdict {
                    self.add_notice(verdict, Some(at), line.number);
                }
            }
            NvlinkLine::Notice(verdict) => self.add_notice(verdict, *current, line.number),
            NvlinkLine::Link { link, rest } => self.add_link(link, rest, *current, line.number),
            NvlinkLine::Stub => self.note_unreadable(line.number),
            NvlinkLine::Other => {
                if line.is_elision() {
                    self.note_truncation("lines were left out here", Some(line.number));
                } else if let Some(problem) = failure::parse_failure(line) {
                    if let Some(at) = *current
                        && line.trimmed().starts_with("NVML:")
                    {
                        self.blocks[at].answered = true;
                    }
                    self.parsed.problems.push(problem);
                    self.answered = true;
                }
            }
        }
    }

    /// The block of this GPU: the same GPU may be listed again (`-s`, then `-e`).
    fn find_or_add_block(
        &mut self,
        index: u32,
        name: &str,
        uuid: Option<&str>,
        first: usize,
        line: u32,
    ) -> usize {
        let uuid = uuid.map(clean);
        let same = self.blocks.iter().enumerate().skip(first).find(|(_, b)| {
            b.gpu.gpu == index && (b.gpu.uuid == uuid || b.gpu.uuid.is_none() || uuid.is_none())
        });
        if let Some((at, _)) = same {
            return at;
        }
        if self.blocks.iter().any(|b| b.gpu.gpu == index) {
            let detail = format!("GPU {index} is listed again with another UUID: several machines");
            self.parsed
                .problems
                .push(OutputProblem::new(OutputProblemKind::Inconsistent, detail).at_line(line));
        }
        let name = Some(clean(name)).filter(|n| !n.is_empty());
        self.blocks.push(NvlinkGpuBlock {
            gpu: GpuLinks { gpu: index, uuid, name, all_inactive: false, links: Vec::new() },
            line,
            answered: false,
        });
        self.blocks.len() - 1
    }

    /// Stores a notice for the GPU above it. It becomes an error here, since the tool prints it as
    /// one; the judge decides whether it matters.
    fn add_notice(&mut self, verdict: NvlinkNotice, at: Option<usize>, line: u32) {
        self.answered = true;
        let gpu = at.map(|at| {
            let block = &mut self.blocks[at];
            block.answered = true;
            block.gpu.all_inactive = verdict == NvlinkNotice::AllInactive;
            block.gpu.gpu
        });
        let (kind, detail) = match verdict {
            NvlinkNotice::AllInactive => (OutputProblemKind::Error, "all its NVLinks are inactive"),
            NvlinkNotice::Unsupported => (OutputProblemKind::Waived, "the device has no NVLink"),
        };
        let detail = gpu.map_or_else(|| detail.to_owned(), |gpu| format!("GPU {gpu}: {detail}"));
        let mut problem = OutputProblem::new(kind, detail).at_line(line);
        problem.gpu = gpu;
        self.parsed.problems.push(problem);
    }

    /// Stores one `Link` line of the current GPU.
    fn add_link(&mut self, number: u32, rest: &str, at: Option<usize>, line: u32) {
        let answer = NvlinkValue::parse(rest);
        if MOST_LINKS <= number || matches!(answer, NvlinkValue::Unreadable) {
            return self.note_unreadable(line);
        }
        let Some(at) = at else {
            if !self.headless {
                self.headless = true;
                self.note_truncation("links are listed here before any GPU", Some(line));
            }
            return;
        };
        let block = &mut self.blocks[at];
        block.answered = true;
        let gpu = block.gpu.gpu;
        let links = &mut block.gpu.links;
        match answer {
            NvlinkValue::State { active, rate } => {
                let link = link_entry(links, number);
                if link.active.is_some() && (link.active, link.rate) != (active, rate) {
                    let detail =
                        format!("link {number} of GPU {gpu} is listed twice with different states");
                    let mut problem =
                        OutputProblem::new(OutputProblemKind::Inconsistent, detail).at_line(line);
                    problem.gpu = Some(gpu);
                    self.parsed.problems.push(problem);
                }
                (link.active, link.rate) = (active, rate);
            }
            NvlinkValue::Counter { name, value } => {
                link_entry(links, number).errors.insert(clean(name), value);
            }
            NvlinkValue::Ratio { name, value } => {
                link_entry(links, number);
                let parameters = &mut self.parsed.facts.parameters;
                if parameters.len() < MOST_PARAMETERS {
                    let name = clean(name).to_ascii_lowercase().replace(' ', "_");
                    parameters.insert(format!("gpu{gpu}.link{number}.{name}"), value.to_owned());
                }
            }
            NvlinkValue::OtherSubcommand | NvlinkValue::Unreadable => {}
        }
    }

    /// A line that begins as a result and cannot be read. At the end of the file it counts as
    /// truncated.
    fn note_unreadable(&mut self, line: u32) {
        if line == self.last_line {
            self.note_truncation("the last line breaks off", Some(line));
        } else {
            let detail = "begins like a GPU or a link and cannot be read";
            self.parsed
                .problems
                .push(OutputProblem::new(OutputProblemKind::Unrecognised, detail).at_line(line));
        }
    }

    fn note_truncation(&mut self, detail: impl Into<String>, line: Option<u32>) {
        let mut problem = OutputProblem::new(OutputProblemKind::Truncated, detail);
        problem.line = line;
        self.parsed.problems.push(problem);
    }

    /// Runs the final checks and returns the facts.
    fn finish(mut self) -> ParseOutput {
        for (detail, line) in find_missing_gpus(&self.blocks, &self.parsed.problems) {
            self.note_truncation(detail, line);
        }
        for (detail, line) in find_missing_links(&self.blocks) {
            self.note_truncation(detail, Some(line));
        }
        let read = !self.blocks.is_empty() || self.answered;
        self.parsed.complete = read
            && !self.parsed.has_problem(OutputProblemKind::Truncated)
            && !self.parsed.has_problem(OutputProblemKind::Unrecognised);
        for block in self.blocks {
            self.parsed.facts.devices.push(ToolDevice {
                index: block.gpu.gpu,
                name: block.gpu.name.clone(),
                uuid: block.gpu.uuid.clone(),
                ..ToolDevice::default()
            });
            self.parsed.facts.nvlinks.push(block.gpu);
        }
        self.parsed
    }
}

/// The entry of this link, in printed order.
fn link_entry(links: &mut Vec<ToolNvlink>, number: u32) -> &mut ToolNvlink {
    let at = match links.iter().position(|l| l.link == number) {
        Some(at) => at,
        None => {
            links.push(ToolNvlink { link: number, ..ToolNvlink::default() });
            links.len() - 1
        }
    };
    &mut links[at]
}

/// GPUs that are missing between listed ones. A single GPU comes from `-i`; a GPU that an NVML
/// error names is missing for a known reason.
fn find_missing_gpus(
    blocks: &[NvlinkGpuBlock],
    problems: &[OutputProblem],
) -> Vec<(String, Option<u32>)> {
    let mut listed: BTreeSet<u32> = blocks.iter().map(|b| b.gpu.gpu).collect();
    if listed.len() < 2 {
        return Vec::new();
    }
    listed.extend(
        problems.iter().filter(|p| p.kind == OutputProblemKind::Error).filter_map(|p| p.gpu),
    );
    let mut out = Vec::new();
    let mut next = 0;
    for gpu in listed {
        if next < gpu {
            let line = blocks.iter().find(|b| b.gpu.gpu == gpu).map(|b| b.line);
            let gap = if next + 1 == gpu {
                format!("GPU {next} is")
            } else {
                format!("GPUs {next} to {} are", gpu - 1)
            };
            out.push((format!("{gap} not listed, but GPU {gpu} is"), line));
        }
        next = gpu.saturating_add(1);
    }
    out
}

/// GPUs that list no link, or fewer than another GPU of the same product.
fn find_missing_links(blocks: &[NvlinkGpuBlock]) -> Vec<(String, u32)> {
    let mut most: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    let mut counters: BTreeMap<Option<&str>, BTreeSet<&str>> = BTreeMap::new();
    for block in blocks {
        let name = block.gpu.name.as_deref();
        let most = most.entry(name).or_default();
        *most = (*most).max(block.gpu.links.len());
        for link in &block.gpu.links {
            counters.entry(name).or_default().extend(link.errors.keys().map(String::as_str));
        }
    }
    let mut out = Vec::new();
    for block in blocks {
        let (gpu, links, name) = (block.gpu.gpu, &block.gpu.links, block.gpu.name.as_deref());
        if !block.answered {
            out.push((format!("GPU {gpu} is listed without its links"), block.line));
            continue;
        }
        if links.is_empty() {
            continue;
        }
        let expected = most.get(&name).copied().unwrap_or_default();
        if links.len() < expected {
            let detail = format!(
                "GPU {gpu} lists {} links, another GPU of its kind {expected}",
                links.len()
            );
            out.push((detail, block.line));
        } else if links.iter().map(|l| l.link).max().is_some_and(|m| m as usize != links.len() - 1)
        {
            out.push((format!("the links of GPU {gpu} have a gap"), block.line));
        }
        let names = counters.get(&name).map_or(0, BTreeSet::len);
        let short = links.iter().find(|l| !l.errors.is_empty() && l.errors.len() < names);
        if let Some(link) = short {
            let detail = format!("link {} of GPU {gpu} lacks counters that others have", link.link);
            out.push((detail, block.line));
        }
    }
    out
}

#[cfg(test)]
mod tests;
