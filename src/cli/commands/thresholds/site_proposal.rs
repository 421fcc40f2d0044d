//! `fabricgate thresholds measured`: the measured levels of a run, as a threshold file of the site.
//!
//! Only proposes; an operator reads the file and puts it in force. Measures nothing and changes no
//! configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::expectations::{Overrides, unknown_platform_text};
use crate::cli::stdout::{Globals, note};
use crate::cli::{expectations, report_output, run_lookup, stdout, stored_run};
use crate::exit;
use crate::exit::CommandError;
use engine::judge::site_levels;
use engine::judge::site_levels::{SiteCollectiveLevel, SiteLevelRefusal, SiteTestLevel};
use engine::thresholds::site_file::{SiteCollective, SiteExpectation};
use engine::thresholds::{PlatformCatalogue, site_file};
use model::id::{DomainName, NodeName};
use model::run::Run;
use model::text::clean;
use model::tool_recording::{RecordingScope, ToolRecording};

/// The format of the JSON document.
pub const MEASURED_FORMAT: &str = "fabricgate.thresholds-measured/1";

/// Propose a threshold file of this site from the levels that a run measured.
#[derive(Debug, clap::Args)]
pub struct ThresholdsMeasuredArgs {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The platform; needed if the run has several.
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    /// Write the file here, completely or not at all, instead of to standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace FILE if it exists.
    #[arg(long, requires = "output")]
    force: bool,
    #[command(flatten)]
    overrides: Overrides,
}

/// The result of `thresholds measured --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MeasuredDocument {
    /// `fabricgate.thresholds-measured/1`.
    format: &'static str,
    /// The run.
    run: String,
    /// The platform.
    platform: String,
    /// Whether real hardware was measured.
    real: bool,
    /// The tests with a level.
    tests: Vec<MeasuredTest>,
    /// The collectives with a level.
    collectives: Vec<MeasuredCollective>,
    /// The tests without a level.
    left_out: Vec<UnmeasuredTest>,
}

/// The level of one test.
#[derive(Debug, Serialize, JsonSchema)]
struct MeasuredTest {
    /// The test.
    testcase: String,
    /// The unit of all levels.
    unit: String,
    /// The median of all values.
    value: f64,
    /// The expectation in force.
    expected: Option<f64>,
    /// The robust standard deviation of single values, as a share of the median.
    scatter: f64,
    /// The proposed tolerance.
    tolerance: f64,
    /// Number of values.
    numbers: usize,
    /// Number of nodes.
    nodes: usize,
    /// Missing links that, on every GPU, would produce the same level.
    missing_links: Option<String>,
}

/// The level of one collective.
#[derive(Debug, Serialize, JsonSchema)]
struct MeasuredCollective {
    /// The test.
    testcase: String,
    /// The algorithm of its expectation.
    algorithm: String,
    /// The smallest message that the level applies to, in bytes.
    min_bytes: u64,
    /// The median bus bandwidth of all runs, in GB/s.
    busbw: f64,
    /// The expectation in force.
    expected: f64,
    /// The robust standard deviation of single runs, as a share of the median.
    scatter: f64,
    /// The proposed tolerance.
    tolerance: f64,
    /// Number of runs.
    numbers: usize,
    /// Number of nodes.
    nodes: usize,
}

/// A test without a level.
#[derive(Debug, Serialize, JsonSchema)]
struct UnmeasuredTest {
    /// The test.
    testcase: String,
    /// Reason for the missing level.
    why: String,
}

/// Runs the command.
pub fn run(args: &ThresholdsMeasuredArgs, globals: &Globals) -> anyhow::Result<u8> {
    let json = globals.json;
    if let Some(path) = args.output.as_ref().filter(|path| path.exists() && !args.force) {
        let message = format!("{}: already exists; --force replaces it", path.display());
        return Err(CommandError::Usage(message).into());
    }
    let in_force = expectations::load_thresholds(&args.overrides.files)?;
    let folder = run_lookup::find_run(&args.run, globals.config.as_deref())?;
    let stored = stored_run::open_run(&folder)?;
    let real = !stored.record.launcher.is_stand_in();
    let run = stored_run::read_run(&stored)?;
    let name = choose_platform(&run, args.platform.as_deref(), &in_force.catalogue)?;
    let Some(platform) = in_force.catalogue.platform(&name) else {
        return Err(CommandError::Usage(unknown_platform_text(&in_force.catalogue, &name)).into());
    };
    let scope = PlatformScope::new(&run, &name);
    let levels = site_levels::test_levels(platform, &run.cells, |domain| scope.has_domain(domain));
    let mut tests = Vec::new();
    let mut left_out: Vec<(&str, &SiteLevelRefusal)> = Vec::new();
    for (test, level) in &levels {
        match level {
            Ok(level) => tests.push((test.as_str(), level)),
            Err(why) => left_out.push((test, why)),
        }
    }
    let recordings = stored.recordings().map_err(stored_run::record_error)?;
    let recordings: Vec<&ToolRecording> =
        recordings.iter().filter(|recording| scope.has_output(recording)).collect();
    let mut collectives = Vec::new();
    for level in site_levels::collective_levels(platform, &recordings) {
        match level {
            Ok(level) => collectives.push(level),
            Err((expected, why)) => note(&format!("{} is left out: {why}", expected.testcase)),
        }
    }
    if tests.is_empty() && collectives.is_empty() {
        let why = left_out.first().map_or_else(
            || "the run has no value with an expectation".to_owned(),
            |(test, why)| format!("{test}: {why}"),
        );
        let message = format!("{}: no level of {name} can be stated: {why}", folder.display());
        return Err(CommandError::Usage(message).into());
    }
    if !real {
        note(
            "this run measured a simulated or recorded fabric: its levels are not those of real \
             machines",
        );
    }
    let source = |numbers: usize, nodes: usize| {
        let real = if real { "" } else { ", SIMULATED" };
        let (id, created) = (clean(&run.info.id), clean(&run.info.created));
        format!("median of {numbers} values on {nodes} nodes, run {id} of {created}{real}")
    };
    let stated: Vec<SiteCollective<'_>> = collectives
        .iter()
        .map(|level| level.to_stated(source(level.numbers, level.nodes)))
        .collect();
    let head = header_lines(&run, &args.overrides);
    let sheet =
        site_file::render_site_file(&name, &head, &collect_stated(&tests, &source), &stated);
    for (test, why) in &left_out {
        note(&format!("{test} is left out: {why}"));
    }
    let unmeasured: Vec<&str> = platform
        .expectations
        .iter()
        .filter(|(name, it)| it.value.is_some() && !levels.contains_key(*name))
        .map(|(name, _)| name.as_str())
        .collect();
    if !unmeasured.is_empty() {
        note(&format!(
            "not measured by this run, so the expectation in force stays: {}; an audit measures \
             less than a re-certification or a burn-in does",
            unmeasured.join(", ")
        ));
    }
    if let Some(path) = &args.output {
        report_output::write_file(path, sheet.as_bytes())?;
        note(&format!(
            "read {0}, then put it in force: thresholds = [\"{0}\"] in the configuration, or \
             --thresholds {0}",
            path.display()
        ));
    }
    if json {
        stdout::write_json(&MeasuredDocument {
            format: MEASURED_FORMAT,
            run: run.info.id.clone(),
            platform: name,
            real,
            tests: tests.iter().map(|(test, level)| to_measured_test(test, level)).collect(),
            collectives: collectives.iter().map(to_measured_collective).collect(),
            left_out: left_out
                .iter()
                .map(|(test, why)| UnmeasuredTest {
                    testcase: (*test).to_owned(),
                    why: why.to_string(),
                })
                .collect(),
        })?;
    } else if args.output.is_none() {
        stdout::write_text(&sheet)?;
    }
    Ok(exit::PASS)
}

/// The requested platform, else the only one of the run.
fn choose_platform(
    run: &Run,
    requested: Option<&str>,
    catalogue: &PlatformCatalogue,
) -> Result<String, CommandError> {
    if let Some(name) = requested {
        expectations::check_platform(catalogue, name, "--platform")?;
        return Ok(name.to_owned());
    }
    let claimed = run.claims.domains.iter().filter_map(|domain| domain.platform.clone());
    let mut names: Vec<String> = claimed.chain(run.verdicts.platform.clone()).collect();
    names.sort();
    names.dedup();
    match &names[..] {
        [name] => Ok(name.clone()),
        [] => Err(CommandError::Usage(
            "the run does not name its platform; expected --platform NAME".to_owned(),
        )),
        several => Err(CommandError::Usage(format!(
            "the run measured several platforms; expected --platform with one of: {}",
            several.join(", ")
        ))),
    }
}

/// The domains and nodes of a platform: those that name it, and those that name none in a run with
/// a single platform.
struct PlatformScope<'r> {
    domains: BTreeMap<&'r DomainName, bool>,
    nodes: BTreeMap<&'r NodeName, bool>,
    /// Whether unclaimed domains and nodes belong to it.
    rest: bool,
}

impl<'r> PlatformScope<'r> {
    fn new(run: &'r Run, platform: &str) -> Self {
        let whole = run.verdicts.platform.as_deref();
        let is_of = |own: Option<&str>| own.or(whole).is_none_or(|own| own == platform);
        let mut scope =
            Self { domains: BTreeMap::new(), nodes: BTreeMap::new(), rest: is_of(None) };
        for domain in &run.claims.domains {
            let is_of = is_of(domain.platform.as_deref());
            scope.domains.entry(&domain.name).or_insert(is_of);
            scope.nodes.extend(domain.nodes.iter().map(|node| (node, is_of)));
        }
        scope
    }

    fn has_domain(&self, domain: Option<&DomainName>) -> bool {
        domain.and_then(|domain| self.domains.get(domain)).copied().unwrap_or(self.rest)
    }

    fn has_output(&self, recording: &ToolRecording) -> bool {
        let node = match &recording.scope {
            RecordingScope::Node(node) => Some(node),
            RecordingScope::Domain(_) | RecordingScope::Pair(..) => recording.nodes.first(),
        };
        node.and_then(|node| self.nodes.get(node)).copied().unwrap_or(self.rest)
    }
}

fn header_lines(run: &Run, overrides: &Overrides) -> Vec<String> {
    let mut head = vec![
        format!(
            "Levels that run {} of {} measured, as expectations of this site.",
            run.info.id, run.info.created
        ),
        "Put it in force only after understanding why the levels are as they are: from then on"
            .to_owned(),
        "a fault that all machines of that run share counts as expected.".to_owned(),
    ];
    if !overrides.files.is_empty() {
        let files: Vec<String> =
            overrides.files.iter().map(|path| path.display().to_string()).collect();
        head.push(format!("Compared with the built-in expectations under {}.", files.join(", ")));
    }
    head
}

fn collect_stated(
    tests: &[(&str, &SiteTestLevel<'_>)],
    source: &dyn Fn(usize, usize) -> String,
) -> Vec<SiteExpectation> {
    let stated = |(test, level): &(&str, &SiteTestLevel<'_>)| {
        let mut remarks = Vec::new();
        if let Some(before) = level.expected.value {
            remarks.push(format!(
                "{:.1} % of the {before:.2} {} expected so far ({}); single values scatter by \
                 {:.2} %",
                level.value / before * 100.0,
                level.expected.unit,
                level.expected.origin,
                level.scatter * 100.0
            ));
        }
        if let Some(links) = &level.links {
            remarks.push(format!(
                "{links} missing on every GPU would produce the same level: check `nvidia-smi \
                 nvlink -s`"
            ));
        }
        level.to_stated(test, source(level.numbers, level.nodes), remarks)
    };
    tests.iter().map(stated).collect()
}

fn to_measured_test(test: &str, level: &SiteTestLevel<'_>) -> MeasuredTest {
    MeasuredTest {
        testcase: test.to_owned(),
        unit: level.expected.unit.to_string(),
        value: level.value,
        expected: level.expected.value,
        scatter: level.scatter,
        tolerance: level.tolerance,
        numbers: level.numbers,
        nodes: level.nodes,
        missing_links: level.links.clone(),
    }
}

fn to_measured_collective(level: &SiteCollectiveLevel<'_>) -> MeasuredCollective {
    MeasuredCollective {
        testcase: level.expected.testcase.clone(),
        algorithm: level.expected.algorithm.clone(),
        min_bytes: level.expected.min_bytes,
        busbw: level.busbw,
        expected: level.expected.busbw,
        scatter: level.scatter,
        tolerance: level.tolerance,
        numbers: level.numbers,
        nodes: level.nodes,
    }
}
