//! Parses the text of one threshold file into a [`ThresholdFile`].
//!
//! Every number needs a source. Unknown keys, wrong types, numbers out of range and dangling
//! references are faults with line and column, and all are reported together. This module opens no
//! file and merges nothing (`overlay` does). `thresholds/README.md` describes the keys.

use std::collections::BTreeMap;

use super::entry::{EntryContext, MAX_VALUE};
use super::fault::{ThresholdFault, suggest_name};
use super::toml_reader::{ThresholdReader, ThresholdTable};
use super::{
    CollectiveExpectation, Expectation, NvlinkSpec, Platform, PlatformCatalogue, TestPath,
};

/// The format that a file names in its first line.
pub const THRESHOLDS_FORMAT: &str = "fabricgate.thresholds/1";

/// The parsed content of one file.
#[derive(Clone, Debug)]
pub struct ThresholdFile {
    /// The platform it describes or changes.
    pub platform: String,
    /// The platform it starts from, if it adds one.
    pub base: Option<String>,
    /// A readable title of the platform.
    pub title: Option<String>,
    /// Product names of its GPUs.
    pub devices: Option<Vec<String>>,
    /// Required number of GPUs per node.
    pub gpus_per_node: Option<u32>,
    /// Nodes in one NVLink domain.
    pub nodes_per_domain: Option<u32>,
    /// The NVLinks of one GPU.
    pub nvlink: Option<NvlinkSpec>,
    /// The rate of one NIC port, in GB/s.
    pub port_rate: Option<f64>,
    /// The expectation of each test.
    pub expectations: BTreeMap<String, Expectation>,
    /// The expectations of collectives.
    pub collectives: Vec<CollectiveExpectation>,
    /// The file name for messages.
    pub origin: String,
    /// The position of each expectation, for warnings.
    pub(super) places: BTreeMap<String, ThresholdFault>,
}

/// The links that an efficiency refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkBundle {
    pub(super) count: u32,
    /// GB/s per link and direction.
    pub(super) rate: f64,
}

/// Decodes bytes as UTF-8; an invalid byte is a fault at its line.
pub fn decode_text<'b>(bytes: &'b [u8], origin: &str) -> Result<&'b str, Box<ThresholdFault>> {
    std::str::from_utf8(bytes).map_err(|error| {
        let (good, bad) = bytes.split_at(error.valid_up_to());
        let shown = format!("{}\u{fffd}", String::from_utf8_lossy(good));
        let byte = bad.first().copied().unwrap_or(0);
        let message = format!("byte 0x{byte:02x} is not UTF-8");
        Box::new(ThresholdFault::new(origin, &shown, good.len()..shown.len(), message))
    })
}

/// Parses the text of one file. `known` holds the platforms it may build on.
pub fn parse_file(
    text: &str,
    origin: &str,
    known: &PlatformCatalogue,
) -> Result<ThresholdFile, Vec<ThresholdFault>> {
    let mut reader = ThresholdReader::new(origin, text);
    let sheet = reader.parse_document().and_then(|document| {
        let top = ThresholdTable { table: document.get_ref(), span: document.span() };
        read_top_level(&mut reader, &top, origin, known)
    });
    match sheet {
        Some(sheet) if reader.faults.is_empty() => Ok(sheet),
        _ => {
            reader.faults.sort_by_key(|fault| (fault.line, fault.column));
            Err(reader.faults)
        }
    }
}

const TOP_KEYS: &[&str] = &[
    "format",
    "platform",
    "base",
    "title",
    "devices",
    "gpus_per_node",
    "nodes_per_domain",
    "link",
    "test",
    "collective",
];

fn read_top_level<'t>(
    reader: &mut ThresholdReader<'t>,
    top: &ThresholdTable<'_, 't>,
    origin: &str,
    known: &PlatformCatalogue,
) -> Option<ThresholdFile> {
    reader.check_keys(top, TOP_KEYS);
    check_format(reader, top);
    let name = read_platform_name(reader, top);
    let base = read_base(reader, top, name.as_deref(), known);
    let under = base
        .as_deref()
        .and_then(|base| known.platform(base))
        .or_else(|| name.as_deref().and_then(|name| known.platform(name)));
    let title = reader.string(top, "title");
    let new = under.is_none() && name.is_some() && top.get("base").is_none();
    if new && top.get("title").is_none() {
        reader.push_missing(top, "title", "a new platform needs one, or a `base` to start from");
    }
    let devices = read_devices(reader, top);
    let (nvlink, links) = read_links(reader, top, under);
    let port_rate = links.get(&TestPath::Nic).map(|link| f64::from(link.count) * link.rate);
    let entries = EntryContext {
        links: &links,
        is_site_file: under.is_some(),
        pair_path: if links.contains_key(&TestPath::Nvlink) {
            TestPath::Nvlink
        } else {
            TestPath::Pcie
        },
        origin,
    };
    let (expectations, places) = entries.read_tests(reader, top);
    let collectives = entries.read_collectives(reader, top);
    Some(ThresholdFile {
        platform: name?,
        base,
        title,
        devices,
        gpus_per_node: reader.integer(top, "gpus_per_node", 1, model::limits::MAX_GPUS_PER_NODE),
        nodes_per_domain: reader.integer(top, "nodes_per_domain", 1, 4096),
        nvlink,
        port_rate,
        expectations,
        collectives,
        origin: origin.to_owned(),
        places,
    })
}

fn check_format<'t>(reader: &mut ThresholdReader<'t>, top: &ThresholdTable<'_, 't>) {
    let help = format!("format = \"{THRESHOLDS_FORMAT}\"");
    let Some(value) = top.get("format") else {
        return reader.push_missing(top, "format", &help);
    };
    let Some(format) = reader.as_string(value, "format") else { return };
    if format != THRESHOLDS_FORMAT {
        let newer = format.strip_prefix("fabricgate.thresholds/").and_then(|v| v.parse().ok());
        let message = match newer {
            Some(version) if 1u32 < version => {
                format!("`{format}` is newer than this version of fabricgate")
            }
            _ => format!("`{format}` is not a threshold file format"),
        };
        reader.push_fault(value.span(), message).help = Some(help);
    }
}

fn read_platform_name<'t>(
    reader: &mut ThresholdReader<'t>,
    top: &ThresholdTable<'_, 't>,
) -> Option<String> {
    let Some(value) = top.get("platform") else {
        reader.push_missing(top, "platform", "such as platform = \"hgx-h100\"");
        return None;
    };
    let name = reader.as_string(value, "platform")?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.chars().all(plain) {
        return Some(name);
    }
    reader.push_fault(value.span(), format!("`{name}` is not a platform name")).help =
        Some("lower-case letters, digits and hyphens".to_owned());
    None
}

fn read_base<'t>(
    reader: &mut ThresholdReader<'t>,
    top: &ThresholdTable<'_, 't>,
    name: Option<&str>,
    known: &PlatformCatalogue,
) -> Option<String> {
    let value = top.get("base")?;
    let base = reader.as_string(value, "base")?;
    if let Some(name) = name.filter(|name| known.platform(name).is_some()) {
        reader.push_fault(value.span(), format!("`{name}` exists and needs no base")).help =
            Some("leave `base` out to change it".to_owned());
        return None;
    }
    if known.platform(&base).is_none() {
        let help = suggest_name(&base, known.platforms.keys().map(String::as_str))
            .map_or_else(|| "no such platform".to_owned(), |n| format!("did you mean `{n}`?"));
        reader.push_fault(value.span(), format!("platform `{base}` does not exist")).help =
            Some(help);
        return None;
    }
    Some(base)
}

fn read_devices<'t>(
    reader: &mut ThresholdReader<'t>,
    top: &ThresholdTable<'_, 't>,
) -> Option<Vec<String>> {
    let devices = reader.strings(top, "devices")?;
    let mut names: Vec<String> = Vec::new();
    for (name, span) in devices {
        if names.contains(&name) {
            reader.push_fault(span, format!("`{name}` appears twice"));
        } else {
            names.push(name);
        }
    }
    Some(names)
}

/// `[link.*]`: the base of efficiencies. NVLinks are stored, since the judge counts them.
fn read_links<'t>(
    reader: &mut ThresholdReader<'t>,
    top: &ThresholdTable<'_, 't>,
    under: Option<&Platform>,
) -> (Option<NvlinkSpec>, BTreeMap<TestPath, LinkBundle>) {
    let mut links = BTreeMap::new();
    if let Some(nvlink) = under.and_then(|platform| platform.nvlink.as_ref()) {
        links.insert(TestPath::Nvlink, LinkBundle { count: nvlink.links, rate: nvlink.rate });
    }
    let mut nvlink = None;
    let Some(section) = reader.table(top, "link") else { return (nvlink, links) };
    let names: Vec<&str> = TestPath::ALL.iter().map(|path| path.as_str()).collect();
    reader.check_keys(&section, &names);
    for path in TestPath::ALL {
        let Some(link) = reader.table(&section, path.as_str()) else { continue };
        reader.check_keys(&link, &["count", "rate", "line_rate", "switched", "source"]);
        for key in ["count", "rate", "source"] {
            if link.get(key).is_none() {
                reader.push_missing(&link, key, "a link has count, rate and source");
            }
        }
        let count = reader.integer(&link, "count", 1, 1024);
        let rate = reader.number(&link, "rate", 0.001, MAX_VALUE);
        let line_rate = reader.number(&link, "line_rate", 0.001, MAX_VALUE);
        let switched = reader.flag(&link, "switched").unwrap_or(false);
        let source = reader.string(&link, "source");
        let (Some(count), Some(rate), Some(source)) = (count, rate, source) else { continue };
        links.insert(path, LinkBundle { count, rate });
        if path == TestPath::Nvlink {
            nvlink = Some(NvlinkSpec { links: count, rate, line_rate, switched, source });
        }
    }
    (nvlink, links)
}
