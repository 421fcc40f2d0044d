//! `nvidia-smi -q`, complete or filtered with `-d`: driver, devices, the fabric block of every GPU,
//! and other values that affect its links.
//!
//! The log is a tree by indentation, with `key : value` at its leaves; the width of keys differs
//! between drivers. This module does not judge: a fabric that is not ready is a fact, a GPU that
//! does not answer is an error.

use std::collections::BTreeSet;

use super::failure;
use crate::outputs::text::OutputLine;
use crate::outputs::{CERTAIN, LIKELY, POSSIBLE, ParserConfidence, ParserInput, text};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::tool_facts::{GpuFabric, ToolDevice};

/// Sections whose values are stored as parameters, and the name of each. A section is the path of
/// its headings, or a single key.
const KEPT_SECTIONS: &[(&str, &str)] = &[
    ("Retired Pages", "retired_pages"),
    ("Remapped Rows", "remapped_rows"),
    ("ECC Mode", "ecc_mode"),
    ("ECC Errors", "ecc_errors"),
    ("PCI/GPU Link Info/PCIe Generation", "pcie.generation"),
    ("PCI/GPU Link Info/Link Width", "pcie.width"),
    ("PCI/Replays Since Reset", "pcie.replays"),
    ("Platform Info", "platform"),
    ("GPU Recovery Action", "recovery_action"),
    ("GPU C2C Mode", "c2c_mode"),
    ("MIG Mode", "mig_mode"),
    ("Persistence Mode", "persistence_mode"),
    ("Fabric", "fabric"),
    ("VBIOS Version", "vbios"),
    ("GSP Firmware Version", "gsp_firmware"),
];

/// More parameters than this are not a log of one machine: 16 GPUs of 64.
const MOST_PARAMETERS: usize = 1024;

/// GPUs in one file, over all logs. Lists are searched linearly, so a forged file must not make
/// them long.
const MOST_GPUS: usize = 1024;

/// Deeper headings are not `nvidia-smi` output; it uses five levels.
const DEEPEST: usize = 8;

/// The confidence that this is `nvidia-smi -q`, or one of the sentences that any `nvidia-smi`
/// prints instead of an answer.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    let (mut gpus, mut attached, mut leaves, mut fabric, mut failed) = (0, 0, 0, 0, 0);
    for line in &input.lines {
        let text = line.trimmed();
        if text.contains("==NVSMI LOG==") {
            return CERTAIN;
        }
        gpus += usize::from(parse_bus_id(text).is_some());
        failed += usize::from(failure::parse_failure(line).is_some());
        fabric += usize::from(text == "Fabric");
        if let Some((key, _)) = split_leaf(text) {
            attached += usize::from(key == "Attached GPUs");
            fabric += usize::from(matches!(key, "CliqueId" | "ClusterUUID"));
            leaves += usize::from(line.text.starts_with([' ', '\t']));
        }
    }
    if 0 < attached && (0 < gpus || 0 < failed) {
        CERTAIN
    } else if 1 < leaves && (0 < gpus || 2 < fabric) {
        LIKELY
    } else if 0 < failed || 0 < attached {
        POSSIBLE
    } else {
        0
    }
}

/// Reads the log.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let mut reading = SmiQueryReader::new(super::last_line_number(input));
    for task in super::split_tasks(input) {
        for line in task {
            reading.read_line(line);
        }
        reading.end_log();
    }
    reading.finish()
}

/// `key : value`, split at the first colon between blanks: keys contain none, values (bus IDs,
/// times) do.
fn split_leaf(text: &str) -> Option<(&str, &str)> {
    let (key, value) = match text.split_once(" : ") {
        Some((key, value)) => (key, value),
        // The blank after the colon of an empty value was trimmed.
        None => (text.strip_suffix(" :")?, ""),
    };
    let key = key.trim();
    (!key.is_empty()).then_some((key, value.trim()))
}

/// The bus ID of a GPU heading, `GPU 00000000:1B:00.0`.
fn parse_bus_id(text: &str) -> Option<&str> {
    let id = text.strip_prefix("GPU ")?.trim();
    let (domain, rest) = id.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hex = |part: &str, most| {
        !part.is_empty() && part.len() <= most && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    (hex(domain, 8) && hex(bus, 2) && hex(device, 2) && hex(function, 1)).then_some(id)
}

/// A key as part of a parameter name.
fn slug(key: &str) -> String {
    let key = match key {
        "Pending Page Blacklist" | "Pending Page Retirement" => "Pending",
        key => key.strip_suffix(" ECC").or_else(|| key.strip_suffix(" Error")).unwrap_or(key),
    };
    let mut out = String::new();
    for word in key.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()) {
        if !out.is_empty() {
            out.push('_');
        }
        out.push_str(&word.to_ascii_lowercase());
    }
    out
}

/// The value unless it is empty or a placeholder.
fn meaningful_value(value: &str) -> Option<String> {
    Some(clean(value)).filter(|v| !matches!(v.as_str(), "" | "N/A" | "Not Found"))
}

/// One GPU while its block is read.
#[derive(Default)]
struct SmiGpuBlock {
    line: u32,
    device: ToolDevice,
    fabric: Option<GpuFabric>,
    parameters: Vec<(String, String)>,
    /// Every path in the block; the process list counts as one.
    paths: BTreeSet<String>,
    last_path: String,
    /// Errors in place of values, each once.
    lost: BTreeSet<String>,
}

impl SmiGpuBlock {
    /// Stores one `key : value` under its headings.
    fn add_leaf(&mut self, path: &[&str], key: &str, value: &str) {
        let full = path.iter().copied().chain([key]).collect::<Vec<_>>().join("/");
        self.last_path = if path.first() == Some(&"Processes") || key == "Processes" {
            "Processes".to_owned()
        } else {
            full.clone()
        };
        self.paths.insert(self.last_path.clone());
        if failure::is_lost_value(value) {
            self.lost.insert(clean(value));
        }
        if path.first() == Some(&"Fabric") {
            self.add_fabric_leaf(&path[1..], key, value);
            return;
        }
        match (path, key) {
            (_, "Product Name") => self.device.name = meaningful_value(value),
            (_, "GPU UUID") => self.device.uuid = meaningful_value(value),
            (["PCI"], "Bus Id") if self.device.bus_id.is_none() => {
                self.device.bus_id = meaningful_value(value);
            }
            _ => self.keep_parameter(&full, value),
        }
    }

    /// Stores one line of the Fabric block as printed: `N/A` is meaningful there.
    fn add_fabric_leaf(&mut self, path: &[&str], key: &str, value: &str) {
        let fabric = self.fabric.get_or_insert_default();
        let value = clean(value);
        match (path, key) {
            ([], "State") => fabric.state = Some(value),
            ([], "Status") => fabric.status = Some(value),
            ([], "CliqueId" | "Clique Id" | "Clique ID") => fabric.clique_id = Some(value),
            ([], "ClusterUUID" | "Cluster UUID") => fabric.cluster_uuid = Some(value),
            (["Health", ..], _) | ([], "Health") => {
                fabric.health.insert(clean(key), value);
            }
            _ => {
                let full = ["Fabric"].iter().chain(path).chain([&key]).copied();
                self.keep_parameter(&full.collect::<Vec<_>>().join("/"), &value);
            }
        }
    }

    /// Stores a value of the sections in [`KEPT_SECTIONS`].
    fn keep_parameter(&mut self, path: &str, value: &str) {
        let Some(value) = meaningful_value(value) else { return };
        let kept = KEPT_SECTIONS.iter().find_map(|(section, name)| {
            let rest = path.strip_prefix(section)?;
            (rest.is_empty() || rest.starts_with('/')).then_some((rest, *name))
        });
        let Some((rest, name)) = kept else { return };
        let parts: Vec<String> = std::iter::once(name.to_owned())
            .chain(rest.split('/').filter(|p| !p.is_empty()).map(slug))
            .collect();
        self.parameters.push((parts.join("."), value));
    }
}

/// One log: a header and its GPUs.
#[derive(Default)]
struct SmiQueryLog {
    begun: bool,
    attached: Option<u64>,
    blocks: Vec<SmiGpuBlock>,
}

/// The parser state; reads line by line.
struct SmiQueryReader {
    parsed: ParseOutput,
    log: SmiQueryLog,
    logs: usize,
    /// The headings above the current line, with their indentation.
    path: Vec<(usize, String)>,
    last_line: u32,
    several_machines: bool,
}

impl SmiQueryReader {
    fn new(last_line: u32) -> Self {
        Self {
            parsed: ParseOutput::for_tool(Tool::NvidiaSmiQ),
            log: SmiQueryLog::default(),
            logs: 0,
            path: Vec::new(),
            last_line,
            several_machines: false,
        }
    }

    fn read_line(&mut self, line: &OutputLine<'_>) {
        let text = line.trimmed();
        if text.is_empty() {
            return;
        }
        if text.contains("==NVSMI LOG==") {
            self.end_log();
            self.log.begun = true;
        } else if let Some(id) = parse_bus_id(text) {
            self.path.clear();
            if self.log.blocks.len() == MOST_GPUS {
                self.note_truncation("more GPUs than are read", Some(line.number));
                return;
            }
            let device = ToolDevice { bus_id: Some(clean(id)), ..ToolDevice::default() };
            self.log.blocks.push(SmiGpuBlock {
                line: line.number,
                device,
                ..SmiGpuBlock::default()
            });
        } else if line.is_elision() || text == "--" {
            // grep -A prints `--` between pieces.
            self.note_truncation("lines were left out here", Some(line.number));
        } else if let Some(problem) = failure::parse_failure(line) {
            self.parsed.problems.push(problem);
        } else if let Some((key, value)) = split_leaf(text) {
            self.read_leaf(line, key, value);
        } else {
            self.read_heading(line);
        }
    }

    fn read_leaf(&mut self, line: &OutputLine<'_>, key: &str, value: &str) {
        self.leave_headings(indentation(line.text));
        let facts = &mut self.parsed.facts;
        match key {
            "Driver Version" => {
                facts.driver = facts.driver.take().or_else(|| meaningful_value(value));
            }
            "CUDA Version" => {
                facts.cuda_driver = facts.cuda_driver.take().or_else(|| meaningful_value(value));
            }
            "Attached GPUs" => {
                if self.log.attached.is_some() {
                    self.end_log();
                }
                self.log.attached = text::parse_integer(value);
                if self.log.attached.is_none() {
                    self.note_truncation("the number of GPUs cannot be read", Some(line.number));
                }
            }
            "Timestamp" => {}
            // The value lost a byte: the remainder must not count as the value.
            _ if value.contains('\u{fffd}') => {
                let detail = format!("the value of {} is damaged", clean(key));
                let problem = OutputProblem::new(OutputProblemKind::Unrecognised, detail);
                self.parsed.problems.push(problem.at_line(line.number));
            }
            _ => {
                let path: Vec<&str> = self.path.iter().map(|(_, h)| h.as_str()).collect();
                if let Some(block) = self.log.blocks.last_mut() {
                    block.add_leaf(&path, key, value);
                }
            }
        }
    }

    /// A line without a value: the heading of the indented lines below it.
    fn read_heading(&mut self, line: &OutputLine<'_>) {
        let text = line.trimmed();
        let indentation = indentation(line.text);
        self.leave_headings(indentation);
        if line.number == self.last_line && 0 < indentation {
            self.note_truncation("the last line breaks off", Some(line.number));
        }
        if text == "Fabric"
            && self.log.blocks.len() < MOST_GPUS
            && self.log.blocks.last().is_none_or(|b| b.device.bus_id.is_none())
        {
            // Extracted from the log with grep: the block's GPU is unknown.
            self.log.blocks.push(SmiGpuBlock { line: line.number, ..SmiGpuBlock::default() });
        }
        // A copy without indentation keeps only the one subtree that matters.
        let inside = text == "Health" && self.path.last().is_some_and(|(_, h)| h == "Fabric");
        if indentation == 0 && !inside {
            self.path.clear();
        }
        if self.path.len() < DEEPEST {
            self.path.push((indentation, text.to_owned()));
        }
    }

    /// Leaves the headings that do not contain a line of this indentation.
    fn leave_headings(&mut self, indentation: usize) {
        while let Some((at, _)) = self.path.last()
            && indentation <= *at
            && (0 < *at || 0 < indentation)
        {
            self.path.pop();
        }
    }

    fn note_truncation(&mut self, detail: impl Into<String>, line: Option<u32>) {
        let mut problem = OutputProblem::new(OutputProblemKind::Truncated, detail);
        problem.line = line;
        self.parsed.problems.push(problem);
    }

    /// Checks and stores the current log.
    fn end_log(&mut self) {
        self.path.clear();
        let log = std::mem::take(&mut self.log);
        if log.blocks.is_empty() && log.attached.is_none() && !log.begun {
            return;
        }
        if let Some(attached) = log.attached {
            let found = log.blocks.len() as u64;
            if found < attached {
                self.note_truncation(
                    format!("{attached} GPUs are attached, {found} are listed"),
                    None,
                );
            } else if attached < found {
                let detail = format!("{attached} GPUs are attached, {found} are listed");
                self.parsed
                    .problems
                    .push(OutputProblem::new(OutputProblemKind::Inconsistent, detail));
            }
        } else {
            self.note_truncation("the number of attached GPUs is missing", None);
        }
        for (detail, line) in find_missing(&log.blocks) {
            self.note_truncation(detail, Some(line));
        }
        for (index, block) in (0u32..).zip(log.blocks) {
            if self.parsed.facts.devices.len().max(self.parsed.facts.fabric.len()) == MOST_GPUS {
                self.note_truncation("more GPUs than are read", Some(block.line));
                break;
            }
            self.keep_gpu(index, block);
        }
        self.logs += 1;
    }

    /// Adds one GPU to the facts. `-l` prints the same GPU repeatedly: its last state counts.
    fn keep_gpu(&mut self, index: u32, mut block: SmiGpuBlock) {
        for text in std::mem::take(&mut block.lost) {
            let detail = format!("GPU {index}: {text}");
            let mut problem =
                OutputProblem::new(OutputProblemKind::Error, detail).at_line(block.line);
            problem.gpu = Some(index);
            self.parsed.problems.push(problem);
        }
        block.device.index = index;
        let facts = &mut self.parsed.facts;
        let known = facts.devices.iter().find(|d| d.index == index);
        if self.logs != 0 && known.is_some_and(|d| *d != block.device) {
            if !self.several_machines {
                let detail = "one file contains logs of several machines";
                self.parsed
                    .problems
                    .push(OutputProblem::new(OutputProblemKind::Inconsistent, detail));
            }
            self.several_machines = true;
        } else {
            facts.devices.retain(|d| d.index != index);
            facts.fabric.retain(|f| f.gpu != index);
            for (name, value) in block.parameters {
                if facts.parameters.len() < MOST_PARAMETERS {
                    facts.parameters.insert(format!("gpu{index}.{name}"), value);
                }
            }
        }
        if let Some(mut fabric) = block.fabric {
            fabric.gpu = index;
            fabric.bus_id.clone_from(&block.device.bus_id);
            fabric.uuid.clone_from(&block.device.uuid);
            fabric.name.clone_from(&block.device.name);
            facts.fabric.push(fabric);
        }
        if block.device.bus_id.is_some() {
            facts.devices.push(block.device);
        }
    }

    /// A file with errors only holds no log and is not complete.
    fn finish(mut self) -> ParseOutput {
        self.parsed.complete = 0 < self.logs
            && !self.parsed.has_problem(OutputProblemKind::Truncated)
            && !self.parsed.has_problem(OutputProblemKind::Unrecognised);
        self.parsed
    }
}

fn indentation(text: &str) -> usize {
    text.chars().take_while(|c| c.is_whitespace()).count()
}

/// Entries that a GPU lacks compared with the first GPU of the same product. Only the end of the
/// last one is compared key by key: keys in between depend on modes.
fn find_missing(blocks: &[SmiGpuBlock]) -> Vec<(String, u32)> {
    let mut out = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let equal = blocks[..index].iter().find(|b| b.device.name == block.device.name);
        if block.paths.is_empty() {
            out.push((format!("GPU {index} has no entries"), block.line));
        } else if let Some(equal) = equal {
            let shape = |b: &SmiGpuBlock| {
                b.fabric.as_ref().map(|f| {
                    let leaves = [&f.state, &f.status, &f.clique_id, &f.cluster_uuid];
                    (leaves.map(Option::is_some), f.health.len())
                })
            };
            if shape(block) != shape(equal) {
                let detail =
                    format!("the fabric block of GPU {index} differs in shape from the first");
                out.push((detail, block.line));
            }
            if index + 1 == blocks.len() && !block.paths.contains(&equal.last_path) {
                let path = clean(&equal.last_path);
                out.push((format!("GPU {index} ends before {path}"), block.line));
            }
        } else if index + 1 == blocks.len()
            && block.device.name.is_some()
            && !block.paths.contains("Processes")
        {
            // Complete logs (those with a product name) list processes near the end.
            out.push((format!("GPU {index} ends before its processes"), block.line));
        }
    }
    out
}

#[cfg(test)]
mod tests;
