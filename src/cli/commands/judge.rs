//! `fabricgate judge`: judges recorded outputs against a platform's expectations.
//!
//! An input that cannot be read makes the outcome at least unknown, and the rest is still judged.
//! The exit code is that of the outcome, except that 5 replaces the code of an unknown outcome if
//! an input could not be read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cli::earlier_runs_option::EarlierRunsArgs;
use crate::cli::expectations::Overrides;
use crate::cli::runtime::parallel_map;
use crate::cli::stdout::{Globals, note};
use crate::cli::{expectations, report_output};
use crate::exit::CommandError;
use crate::{config, exit};
use control::sources::input_file;
use control::store::run_id::new_run_id;
use control::store::{acceptance, file, recorded_outputs};
use control::sweep;
use control::sweep::gaps;
use control::sweep::gaps::MeasurementGap;
use engine::judge;
use engine::judge::JudgeInput;
use model::claims::Claims;
use model::id::NodeName;
use model::run::{Run, RunInfo};
use model::tool_recording::{RecordingScope, ToolRecording};
use model::unknown_subject::UnknownSubject;
use readers::claims::{output_layout, single_node_domains};

/// Layout of the outputs in a folder.
const LAYOUT: &str = "nodes/NODE/FILE, domains/DOMAIN/FILE or pairs/NODE/NODE/FILE";

/// Judge recorded outputs against a platform's expectations.
#[derive(Debug, clap::Args)]
pub struct JudgeArgs {
    /// Outputs, or folders with nodes/NODE/FILE, domains/DOMAIN/FILE, pairs/NODE/NODE/FILE
    /// and claims.toml.
    #[arg(required = true, value_name = "FILE|DIR")]
    inputs: Vec<PathBuf>,
    /// The platform, a name in `fabricgate thresholds list`; takes precedence over claims and
    /// devices.
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    earlier: EarlierRunsArgs,
    #[command(flatten)]
    files: report_output::ReportFileArgs,
}

/// One output file, with its scope if its folder determines one.
struct RecordedOutputFile {
    path: PathBuf,
    scope: Option<RecordingScope>,
}

/// Everything the command line names, before any output is read.
#[derive(Default)]
struct JudgeInputs {
    claims: Claims,
    outputs: Vec<RecordedOutputFile>,
    gaps: Vec<MeasurementGap>,
    unread: bool,
}

/// Runs the command.
pub fn run(args: &JudgeArgs, globals: &Globals) -> anyhow::Result<u8> {
    let files = args.files.open()?;
    let in_force = expectations::load_thresholds(&args.overrides.files)?;
    if let Some(name) = &args.platform {
        expectations::check_platform(&in_force.catalogue, name, "--platform")?;
    }
    let mut inputs = JudgeInputs::default();
    for path in &args.inputs {
        if path.is_dir() {
            read_folder(path, &mut inputs)?;
        } else {
            inputs.outputs.push(RecordedOutputFile { path: path.clone(), scope: None });
        }
    }
    let platform = args.platform.as_deref();
    inputs.claims.domains = single_node_domains::split_domains(inputs.claims.domains, |claimed| {
        expectations::nvlink_ends_at_node(&in_force.catalogue, platform.or(claimed))
    });
    let recordings = read_outputs(&mut inputs);
    let judge_input = JudgeInput {
        claims: &inputs.claims,
        recordings: &recordings,
        catalogue: &in_force.catalogue,
        thresholds_digest: &in_force.digest,
        platform,
        cells: !globals.json || args.files.any(),
        sampled: false,
    };
    let history = args.earlier.load(&in_force, None, globals.config.as_deref())?;
    let mut judgement = judge::judge_run(&judge_input, &history);
    gaps::apply_gaps(&mut judgement.verdicts, &inputs.claims, &inputs.gaps);
    let now = sweep::now();
    let input_paths: Vec<String> = args.inputs.iter().map(|p| p.display().to_string()).collect();
    let run = Run {
        info: RunInfo {
            id: new_run_id(now, crate::cli::runtime::random_number()),
            created: sweep::format_timestamp(now),
            profile: "judge".to_owned(),
            source: input_paths.join(" "),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            simulated: false,
        },
        claims: judgement.claims,
        cells: judgement.cells,
        verdicts: judgement.verdicts,
        actions: None,
    };
    let written = report_output::show_run(&run, files, globals.json)?;
    Ok(exit::outcome_exit_code(run.verdicts.outcome, inputs.unread || !written))
}

/// Lists a folder of recorded outputs and reads its claims.
fn read_folder(root: &Path, inputs: &mut JudgeInputs) -> Result<(), CommandError> {
    let path_text = root.display();
    if root.join(file::RUN).is_file() {
        let text =
            format!("{path_text}: this is a run folder; use `fabricgate replay {path_text}`");
        return Err(CommandError::Usage(text));
    }
    if acceptance::is_burn_in_folder(root) {
        let text = format!(
            "{path_text}: this is the folder of a burn-in; `fabricgate replay` judges the runs \
             that its acceptance.json names"
        );
        return Err(CommandError::Usage(text));
    }
    let outputs = recorded_outputs::list_outputs(root);
    if let Some(path) = &outputs.claims {
        merge_claims(&mut inputs.claims, config::read_claims_file(path)?, path)?;
    }
    for path in &outputs.misplaced {
        note(&format!("{}: not read, expected {LAYOUT}", path.display()));
    }
    for (path, error) in &outputs.unlisted {
        let why = format!("cannot be listed: {error}");
        note(&format!("{}: {why}", path.display()));
        inputs.unread = true;
        inputs.gaps.push(MeasurementGap {
            nodes: Vec::new(),
            subject: UnknownSubject::Other(path.display().to_string()),
            why,
        });
    }
    for scope in &outputs.empty {
        let (nodes, what) = match scope {
            RecordingScope::Node(node) => (vec![node.clone()], UnknownSubject::node(node)),
            RecordingScope::Domain(domain) => (Vec::new(), UnknownSubject::domain(domain)),
            RecordingScope::Pair(a, b) => {
                (vec![a.clone(), b.clone()], UnknownSubject::Other(format!("pair {a} - {b}")))
            }
        };
        inputs.gaps.push(MeasurementGap {
            nodes,
            subject: what,
            why: "its folder holds no output".to_owned(),
        });
    }
    if outputs.files.is_empty() && outputs.unlisted.is_empty() {
        let what = root.display().to_string();
        note(&format!("{what}: holds no outputs, expected {LAYOUT}"));
        let what = UnknownSubject::Other(what);
        inputs.gaps.push(MeasurementGap {
            nodes: Vec::new(),
            subject: what,
            why: "holds no outputs".to_owned(),
        });
    }
    let found = outputs.files.into_iter();
    inputs
        .outputs
        .extend(found.map(|(path, scope)| RecordedOutputFile { scope: Some(scope), path }));
    Ok(())
}

/// Adds the claims of another folder.
fn merge_claims(claims: &mut Claims, more: Claims, path: &Path) -> Result<(), CommandError> {
    for domain in more.domains {
        let wrong = |what: String| {
            CommandError::Usage(format!("{}: another folder also claims {what}", path.display()))
        };
        if claims.domains.iter().any(|d| d.name == domain.name) {
            return Err(wrong(format!("domain {}", domain.name)));
        }
        if let Some(node) = domain.nodes.iter().find(|n| claims.domain_of(n).is_some()) {
            return Err(wrong(format!("node {node}")));
        }
        claims.domains.push(domain);
    }
    claims.leaves.extend(more.leaves);
    claims.rails.extend(more.rails);
    Ok(())
}

/// Reads every output, several concurrently, and determines its scope. What cannot be read becomes
/// a gap.
fn read_outputs(inputs: &mut JudgeInputs) -> Vec<ToolRecording> {
    let parsed = parallel_map(&inputs.outputs, |found| {
        let read = |path: &Path| input_file::read(path).map_err(|error| error.to_string());
        let stdout = read(&found.path)?;
        let hosts = readers::outputs::parse_hosts(&stdout);
        Ok::<_, String>((readers::outputs::parse_output(&stdout), hosts))
    });
    let mut recordings = Vec::new();
    let mut used_names = BTreeSet::new();
    for (found, parsed) in inputs.outputs.iter().zip(parsed) {
        let file = found.path.display().to_string();
        match parsed {
            // An output of several hosts becomes one recording per host.
            Ok((_, hosts)) if !hosts.is_empty() => {
                recordings.extend(hosts.into_iter().map(|(host, parsed)| {
                    let scope = RecordingScope::Node(NodeName::from(host.as_str()));
                    ToolRecording::new(scope, file.clone(), parsed)
                }));
            }
            Ok((parsed, _)) => {
                let scope = found.scope.clone().unwrap_or_else(|| {
                    let stem = found.path.file_stem().unwrap_or_default().to_string_lossy();
                    output_layout::standalone_scope(&stem, &parsed, &mut used_names)
                });
                recordings.push(ToolRecording::new(scope, file, parsed));
            }
            Err(error) => {
                note(&error);
                inputs.unread = true;
                let nodes: Vec<NodeName> = match &found.scope {
                    Some(RecordingScope::Node(node)) => vec![node.clone()],
                    Some(RecordingScope::Pair(a, b)) => vec![a.clone(), b.clone()],
                    _ => Vec::new(),
                };
                inputs.gaps.push(MeasurementGap {
                    nodes,
                    subject: UnknownSubject::Other(file),
                    why: format!("cannot be read: {error}"),
                });
            }
        }
    }
    recordings
}
