//! `fabricgate thresholds measured`: what a run showed of each test, as a threshold
//! file of the site.
//!
//! Proposes; a person reads it and puts it in force. Measures nothing and changes no
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

/// Propose a threshold file of this site from what a run showed.
#[derive(Debug, clap::Args)]
pub struct ThresholdsMeasuredArgs {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The platform; needed where the run has several.
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    /// Write the file here, whole or not at all, and not to standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace FILE where it is there already.
    #[arg(long, requires = "output")]
    force: bool,
    #[command(flatten)]
    overrides: Overrides,
}

/// What a run showed of a platform's tests (`--json`).
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
    /// The tests that have a level.
    tests: Vec<MeasuredTest>,
    /// The collectives that have a level.
    collectives: Vec<MeasuredCollective>,
    /// The tests that have none.
    left_out: Vec<UnmeasuredTest>,
}

/// The level of one test.
#[derive(Debug, Serialize, JsonSchema)]
struct MeasuredTest {
    /// The test.
    testcase: String,
    /// The unit of all levels.
    unit: String,
    /// The median of all numbers.
    value: f64,
    /// What is expected so far.
    expected: Option<f64>,
    /// The robust standard deviation of single numbers, as a share of the median.
    scatter: f64,
    /// The tolerance that is proposed.
    tolerance: f64,
    /// How many numbers there were.
    numbers: usize,
    /// On how many nodes.
    nodes: usize,
    /// Links that are missing on every GPU would show the same level.
    missing_links: Option<String>,
}

/// The level of one collective.
#[derive(Debug, Serialize, JsonSchema)]
struct MeasuredCollective {
    /// The test.
    testcase: String,
    /// The algorithm that its expectation is of.
    algorithm: String,
    /// The smallest message that it holds for, in bytes.
    min_bytes: u64,
    /// The median bus bandwidth of all runs, in GB/s.
    busbw: f64,
    /// What is expected so far.
    expected: f64,
    /// The robust standard deviation of single runs, as a share of the median.
    scatter: f64,
    /// The tolerance that is proposed.
    tolerance: f64,
    /// How many runs there were.
    numbers: usize,
    /// On how many nodes.
    nodes: usize,
}

/// A test without a level.
#[derive(Debug, Serialize, JsonSchema)]
struct UnmeasuredTest {
    /// The test.
    testcase: String,
    /// Why.
    why: String,
}

/// Runs the command.
pub fn run(args: &ThresholdsMeasuredArgs, globals: &Globals) -> anyhow::Result<u8> {
    let json = globals.json;
    if let Some(path) = args.output.as_ref().filter(|path| path.exists() && !args.force) {
        let said = format!("{}: is there already; --force replaces it", path.display());
        return Err(CommandError::Usage(said).into());
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
    let places = PlatformScope::new(&run, &name);
    let levels = site_levels::test_levels(platform, &run.cells, |domain| places.has_domain(domain));
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
        recordings.iter().filter(|recording| places.has_output(recording)).collect();
    let mut collectives = Vec::new();
    for level in site_levels::collective_levels(platform, &recordings) {
        match level {
            Ok(level) => collectives.push(level),
            Err((expected, why)) => note(&format!("{} is left out: {why}", expected.testcase)),
        }
    }
    if tests.is_empty() && collectives.is_empty() {
        let why = left_out.first().map_or_else(
            || "nothing was read that an expectation is stated for".to_owned(),
            |(test, why)| format!("{test}: {why}"),
        );
        let said = format!("{}: no level of {name} can be stated: {why}", folder.display());
        return Err(CommandError::Usage(said).into());
    }
    if !real {
        note(
            "this run measured a simulated or recorded fabric: its levels are none of your machines",
        );
    }
    let source = |numbers: usize, nodes: usize| {
        let real = if real { "" } else { ", SIMULATED" };
        let (id, created) = (clean(&run.info.id), clean(&run.info.created));
        format!("median of {numbers} numbers on {nodes} nodes, run {id} of {created}{real}")
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
    let silent: Vec<&str> = platform
        .expectations
        .iter()
        .filter(|(name, it)| it.value.is_some() && !levels.contains_key(*name))
        .map(|(name, _)| name.as_str())
        .collect();
    if !silent.is_empty() {
        note(&format!(
            "not measured by this run, so compared with what is in force: {}; an audit measures less than a \
             re-certification or a burn-in does",
            silent.join(", ")
        ));
    }
    if let Some(path) = &args.output {
        report_output::write_file(path, sheet.as_bytes())?;
        note(&format!(
            "read {0}, then put it in force: thresholds = [\"{0}\"] in the configuration, or --thresholds {0}",
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

/// The platform that is asked for, else the only one of the run.
fn choose_platform(
    run: &Run,
    asked: Option<&str>,
    catalogue: &PlatformCatalogue,
) -> Result<String, CommandError> {
    if let Some(name) = asked {
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
            "the run does not say which platform it measured; expected --platform NAME".to_owned(),
        )),
        several => Err(CommandError::Usage(format!(
            "the run measured several platforms; expected --platform with one of: {}",
            several.join(", ")
        ))),
    }
}

/// Which domains and nodes are of a platform: those that say so, or that say nothing in
/// a run that is all of it.
struct PlatformScope<'r> {
    domains: BTreeMap<&'r DomainName, bool>,
    nodes: BTreeMap<&'r NodeName, bool>,
    /// Whether what nobody claims is of it.
    rest: bool,
}

impl<'r> PlatformScope<'r> {
    fn new(run: &'r Run, platform: &str) -> Self {
        let whole = run.verdicts.platform.as_deref();
        let is_of = |own: Option<&str>| own.or(whole).is_none_or(|own| own == platform);
        let mut places =
            Self { domains: BTreeMap::new(), nodes: BTreeMap::new(), rest: is_of(None) };
        for domain in &run.claims.domains {
            let is_of = is_of(domain.platform.as_deref());
            places.domains.entry(&domain.name).or_insert(is_of);
            places.nodes.extend(domain.nodes.iter().map(|node| (node, is_of)));
        }
        places
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
        format!("What run {} of {} showed, as expectations of this site.", run.info.id, run.info.created),
        "Put it in force only if you know why these levels are as they are: from then on a fault that all".to_owned(),
        "machines of that run share is what is expected.".to_owned(),
    ];
    if !overrides.files.is_empty() {
        let files: Vec<String> =
            overrides.files.iter().map(|path| path.display().to_string()).collect();
        head.push(format!("Compared with what ships under {}.", files.join(", ")));
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
                "{:.1} % of the {before:.2} {} expected so far ({}); single numbers scatter by {:.2} %",
                level.value / before * 100.0,
                level.expected.unit,
                level.expected.origin,
                level.scatter * 100.0
            ));
        }
        if let Some(links) = &level.links {
            remarks.push(format!(
                "{links} missing on every GPU would show the same: nvidia-smi nvlink -s tells"
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
