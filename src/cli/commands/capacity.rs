//! `fabricgate capacity`: the schedulable capacity under segments and unavailable nodes, and the
//! cost of the next drain.
//!
//! Reads the options and the sources' current node states; `act::capacity` does the arithmetic.

use std::path::{Path, PathBuf};

use crate::cli::output::OutputFile;
use crate::cli::stdout::Globals;
use crate::cli::{collect_claims, expectations, report_output, stdout};
use crate::config::sources::SourcesConfig;
use crate::config::{ClaimsSource, Config};
use crate::exit::CommandError;
use crate::{config, exit};
use engine::policy::action_policy::Policy;
use engine::policy::capacity;
use engine::policy::capacity::{
    BlockSizes, CapacityBlock, CapacityQuestion, JobShape, OutageAssumption, SegmentMix,
    SegmentPlacement,
};
use engine::report;
use model::claims::Claims;
use model::id::NodeName;
use readers::claims::outages_file;
use readers::claims::reconcile::is_out_state;
use readers::claims::slurm::{BLOCK_SIZES, accounting};

/// Default nodes of a block: those of an NVL72 rack.
const DEFAULT_BLOCK_NODES: u32 = 18;

/// The most nodes of a block. The largest NVLink domains have a few hundred.
const MAX_BLOCK_NODES: u32 = 1_000;

/// The most nodes of a job: more than any Slurm cluster has.
const MAX_JOB_NODES: u32 = 65_533;

/// Default share of its rate that a suspect has lost: one NVLink of the eighteen of a Blackwell
/// GPU.
const DEFAULT_DEGRADED_SHARE: f64 = 1.0 / 18.0;

/// Compute the schedulable capacity under segments and unavailable nodes, and the cost of a drain.
///
/// For a block of --nodes, or for the blocks that Slurm or the configured sources report, with the
/// nodes that are out now. Exact for nodes that fail independently of each other, which is
/// optimistic: trays share power, coolant and switches; pass --observed if a record of outages
/// exists. With --config, the [policy] supplies the mix and the shares that no option sets. Changes
/// nothing. The exit code is 4 when a source could not be read or reports the state of only some
/// nodes, and 5 when no source reports a block.
#[derive(Debug, clap::Args)]
pub struct CapacityArgs {
    /// Nodes of a block (18 without a source).
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_BLOCK_NODES)))]
    nodes: Option<u32>,
    /// Nodes of the block that are already out.
    #[arg(long, value_name = "K", default_value_t = 0, conflicts_with = "from")]
    out: u32,
    /// Take blocks and nodes that are out from this source: slurm, slurmrestd[=ADDRESS],
    /// kubernetes[=CONTEXT], ray[=ADDRESS], nodes, files, or a file. May be given several times.
    #[arg(long, value_name = "SOURCE", conflicts_with = "nodes")]
    from: Vec<String>,
    /// Segments to compute; by default powers of two, half a block, a whole block and those of the
    /// mix.
    #[arg(long, value_name = "N", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_BLOCK_NODES)))]
    segment: Vec<u32>,
    /// Also compute how many jobs of this many nodes fit at the same time, in segments of each
    /// smaller --segment; without --spread-segments and --consolidate-segments, for both as well.
    #[arg(long, value_name = "N", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_JOB_NODES)))]
    job: Vec<u32>,
    /// Put each segment of the job into a different base block (Slurm 25.11 and later).
    #[arg(long, requires = "job", requires = "segment")]
    spread_segments: bool,
    /// Put all segments of the job into one aggregated block (Slurm 25.11 and later).
    #[arg(long, requires = "job", requires = "segment")]
    consolidate_segments: bool,
    /// Block sizes, the base block size first; by default those of the source.
    #[arg(long, value_name = "N", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..))]
    block_sizes: Vec<u32>,
    /// The smallest segment that large jobs can use, for the recommendation; by default half a
    /// block.
    #[arg(long, value_name = "N")]
    at_least: Option<u32>,
    /// The segments that jobs request, with weights, such as 16=0.6,8=0.3,1=0.1.
    #[arg(long, value_name = "MIX")]
    mix: Option<String>,
    /// The same from accounting: the output of `sacct -X -P -o
    /// JobID,NNodes,ElapsedRaw,SegmentSize,SubmitLine` (without SegmentSize before Slurm 25.05).
    #[arg(long, value_name = "FILE", conflicts_with = "mix")]
    mix_from: Option<PathBuf>,
    /// Share of nodes that are out at a time: 0.01 or 1%. May be given several times.
    #[arg(long, value_name = "SHARE", value_delimiter = ',',
        value_parser = parse_unavailable_share, conflicts_with = "observed")]
    unavailable: Vec<f64>,
    /// Use a record instead: how many nodes of a block were out at the same time, and for which
    /// share of time. A CSV file with the header out,share.
    #[arg(long, value_name = "FILE")]
    observed: Option<PathBuf>,
    /// The share of its rate that a suspect has lost, used for the gang size from which its drain
    /// pays off; by default one NVLink of eighteen.
    #[arg(long, value_name = "SHARE",
        value_parser = parse_degraded_share,
        default_value_t = DEFAULT_DEGRADED_SHARE, hide_default_value = true)]
    degraded: f64,
    /// The share of a step that waits for the suspect; by default that of [policy], else 0.3.
    #[arg(long, value_name = "SHARE", value_parser = parse_exposed_share)]
    exposed: Option<f64>,
    /// Also plot the capacity into this file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Parses a share in common notation: 0.01, 1%, 1 %.
fn parse_share(text: &str) -> Option<f64> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(number) => (number.trim(), 100.0),
        None => (text.trim(), 1.0),
    };
    number.parse::<f64>().ok().map(|number| number / scale).filter(|share| share.is_finite())
}

/// A share above one half is probably a percentage without its sign.
fn parse_unavailable_share(text: &str) -> Result<f64, String> {
    let share = parse_share(text).filter(|share| (0.0..=0.5).contains(share));
    share.ok_or_else(|| "expected a share of nodes from 0 to 0.5, or 0% to 50%".to_owned())
}

fn parse_degraded_share(text: &str) -> Result<f64, String> {
    let share = parse_share(text).filter(|share| 0.0 < *share && *share < 1.0);
    share.ok_or_else(|| "expected a share above 0 and below 1, such as 0.05 or 5%".to_owned())
}

fn parse_exposed_share(text: &str) -> Result<f64, String> {
    let share = parse_share(text).filter(|share| 0.0 < *share && *share <= 1.0);
    share.ok_or_else(|| "expected a share above 0 and up to 1, such as 0.3 or 30%".to_owned())
}

/// The current blocks, and how complete that knowledge is.
struct CapacityBlocks {
    blocks: Vec<CapacityBlock>,
    notes: Vec<String>,
    /// The block sizes that a source reports.
    block_sizes: Vec<u32>,
    /// Whether `blocks` has all blocks of the source.
    is_every_block: bool,
    /// A requested input could not be read.
    is_partial: bool,
}

/// Runs the command.
pub fn run(args: &CapacityArgs, globals: &Globals) -> anyhow::Result<u8> {
    // Before any query: a mistake in an option should not cost the sources' answers.
    let written = args.mix.as_deref().map(SegmentMix::parse).transpose();
    let written = written.map_err(|error| CommandError::Usage(format!("--mix: {error}")))?;
    let plot = OutputFile::open_optional(args.plot.as_ref())?;
    let accounting = args.mix_from.as_deref().map(config::read_text).transpose()?;
    let config = match globals.config.as_deref() {
        Some(path) => Some(config::open(Some(path))?),
        None => None,
    };
    let policy = config.as_ref().map(|config| config.policy.clone()).unwrap_or_default();
    let assumptions = build_assumptions(args, &policy)?;
    let shapes = parse_job_shapes(args)?;
    let requested_sizes = match args.block_sizes.as_slice() {
        [] => None,
        sizes => {
            let wrong = |error| CommandError::Usage(format!("--block-sizes: {error}"));
            Some(BlockSizes::from_sizes(sizes).map_err(wrong)?)
        }
    };
    let mut current = collect_blocks(args, config.as_ref())?;
    let largest = current.blocks.iter().map(|block| block.nodes).max().unwrap_or(0);
    let mix = match (&accounting, &args.mix_from) {
        (Some(text), Some(path)) => {
            Some(read_accounting_mix(text, path, largest, &mut current.notes)?)
        }
        _ => written.or_else(|| Some(policy.mix.clone()).filter(|mix| !mix.0.is_empty())),
    };
    if let Some(too_large) = mix.iter().flat_map(|mix| mix.0.keys()).find(|it| largest < **it) {
        current.notes.push(format!(
            "a segment of {too_large} nodes fits into no block: no drain costs it anything"
        ));
    }
    let segments = match args.segment.as_slice() {
        [] => capacity::usual_segments(largest, mix.as_ref()),
        given => {
            let mut given = given.to_vec();
            given.sort_unstable();
            given.dedup();
            given
        }
    };
    let levels = choose_levels(requested_sizes, &mut current, !shapes.is_empty());
    let question = CapacityQuestion {
        blocks: current.blocks,
        segments,
        at_least: args.at_least,
        mix,
        assumptions,
        degraded: args.degraded,
        exposed: args.exposed.unwrap_or(policy.exposed),
    };
    let mut survey = capacity::survey_capacity(&question).map_err(|(block, error)| {
        let file = args.observed.as_deref().map(Path::display);
        let file = file.map_or_else(String::new, |file| format!("--observed {file}: "));
        let name = block.name.map(|name| format!("block {name}: ")).unwrap_or_default();
        CommandError::Usage(format!("{file}{name}{error}"))
    })?;
    survey.notes = current.notes;
    if let Some(levels) = levels {
        survey.add_levels(&levels, &shapes);
    }
    if let Some((output, path)) = plot.zip(args.plot.as_ref()) {
        match report::capacity_plot::render_svg(&survey)? {
            Some(picture) => output.write(picture.as_bytes())?,
            None => stdout::note(&format!("{}: not drawn, no block has a node", path.display())),
        }
    }
    if globals.json {
        stdout::write_json(&survey)?;
    } else {
        stdout::write_text(&report::capacity::render(&survey, &report_output::terminal_style()))?;
    }
    Ok(if current.is_partial { exit::INCONCLUSIVE } else { exit::PASS })
}

/// The job shapes that the options ask about.
fn parse_job_shapes(args: &CapacityArgs) -> Result<Vec<JobShape>, CommandError> {
    let placings: &[SegmentPlacement] = match (args.consolidate_segments, args.spread_segments) {
        (false, false) => {
            &[SegmentPlacement::Anywhere, SegmentPlacement::Consolidated, SegmentPlacement::Spread]
        }
        (true, false) => &[SegmentPlacement::Consolidated],
        (false, true) => &[SegmentPlacement::Spread],
        (true, true) => &[SegmentPlacement::ConsolidatedAndSpread],
    };
    let mut shapes = Vec::new();
    for &nodes in &args.job {
        let smaller: Vec<u32> = args.segment.iter().copied().filter(|it| *it < nodes).collect();
        if smaller.is_empty() {
            // Slurm ignores --segment when all nodes fit into one segment.
            shapes.push(JobShape { nodes, segment: None, placing: SegmentPlacement::Anywhere });
        }
        for segment in smaller {
            if nodes % segment != 0 {
                return Err(CommandError::Usage(format!(
                    "--job {nodes}: not a multiple of --segment {segment}; Slurm refuses such a job"
                )));
            }
            let segment = Some(segment);
            shapes.extend(placings.iter().map(|&placing| JobShape { nodes, segment, placing }));
        }
    }
    Ok(shapes)
}

/// The block levels to compute, if there are several or a job is asked about.
fn choose_levels(
    requested: Option<BlockSizes>,
    current: &mut CapacityBlocks,
    has_jobs: bool,
) -> Option<BlockSizes> {
    let is_requested = requested.is_some() || has_jobs;
    if !is_requested && current.block_sizes.len() < 2 {
        return None;
    }
    if !current.is_every_block {
        let text = "blocks were left out, so it is not known which are adjacent: levels and jobs \
                    are not computed";
        current.notes.push(text.to_owned());
        return None;
    }
    let reported = || BlockSizes::from_sizes(&current.block_sizes).ok();
    if let Some(levels) = requested.or_else(reported) {
        return Some(levels);
    }
    let first = current.blocks.first()?.nodes;
    current.notes.push(format!(
        "no source reports block sizes: as in Slurm, the {first} nodes of the first block are the \
         base size, with four levels above it"
    ));
    BlockSizes::from_first_block(first)
}

fn build_assumptions(
    args: &CapacityArgs,
    policy: &Policy,
) -> Result<Vec<OutageAssumption>, CommandError> {
    if let Some(path) = &args.observed {
        let text = config::read_text(path)?;
        let shares = outages_file::read(&text)
            .map_err(|error| CommandError::Usage(format!("{}:{error}", path.display())))?;
        return Ok(vec![OutageAssumption::Observed { shares }]);
    }
    let shares = match args.unavailable.as_slice() {
        [] => &[policy.unavailable],
        given => given,
    };
    Ok(shares.iter().map(|share| OutageAssumption::Independent { unavailable: *share }).collect())
}

/// The mix of segments that jobs requested, from accounting.
fn read_accounting_mix(
    text: &str,
    path: &Path,
    block: u32,
    notes: &mut Vec<String>,
) -> Result<SegmentMix, CommandError> {
    let wrong = |error: String| CommandError::Usage(format!("{}:{error}", path.display()));
    let found = accounting::read(text, block).map_err(|error| wrong(error.to_string()))?;
    let mix = SegmentMix(found.node_seconds);
    mix.check().map_err(|error| wrong(format!(" {error}")))?;
    let whole = found.jobs - found.with_segment;
    notes.push(format!(
        "the mix is of {} jobs; {whole} of them requested no segment and count as whole blocks, \
         or as one segment if they are smaller",
        found.jobs
    ));
    if 0 < found.continuation_lines {
        let lines = found.continuation_lines;
        notes.push(format!("{lines} lines of it were read as the rest of a job's command"));
    }
    Ok(mix)
}

fn collect_blocks(
    args: &CapacityArgs,
    config: Option<&Config>,
) -> Result<CapacityBlocks, CommandError> {
    if args.nodes.is_some() || (args.from.is_empty() && config.is_none()) {
        let nodes = args.nodes.unwrap_or(DEFAULT_BLOCK_NODES);
        if nodes < args.out {
            let text = format!("--out {}: expected at most the block's {nodes} nodes", args.out);
            return Err(CommandError::Usage(text));
        }
        let blocks = vec![CapacityBlock::new(nodes, args.out)];
        return Ok(CapacityBlocks {
            blocks,
            notes: Vec::new(),
            block_sizes: Vec::new(),
            is_every_block: true,
            is_partial: false,
        });
    }
    if 0 < args.out {
        let text = "--out: the configuration's sources report which nodes are out; expected \
                    --nodes as well";
        return Err(CommandError::Usage(text.to_owned()));
    }
    let site = config.map(|config| config.thresholds.clone()).unwrap_or_default();
    let in_force = expectations::load_thresholds(&site)?;
    let claims = match config {
        Some(config) if args.from.is_empty() => config.collect_claims(&in_force.catalogue)?,
        _ => {
            let of_config = config.and_then(|config| match &config.claims {
                ClaimsSource::Sources(wanted) => Some(wanted.as_ref()),
                _ => None,
            });
            let wanted = SourcesConfig::from_option(&args.from, of_config)?;
            collect_claims::collect_claims(&wanted, config, &in_force.catalogue)?
        }
    };
    collect_claims::print_source_problems(&claims);
    blocks_from_claims(&claims)
}

/// The blocks and their nodes that are out, according to the sources.
fn blocks_from_claims(claims: &Claims) -> Result<CapacityBlocks, CommandError> {
    let mut blocks = Vec::new();
    let mut notes = Vec::new();
    let mut is_every_block = true;
    for domain in claims.domains.iter().filter(|domain| !domain.nodes.is_empty()) {
        let nodes = u32::try_from(domain.nodes.len()).unwrap_or(u32::MAX);
        if MAX_BLOCK_NODES < nodes {
            notes.push(format!(
                "{} has {nodes} nodes, and no NVLink domain has more than {MAX_BLOCK_NODES}: left \
                 out",
                domain.name
            ));
            is_every_block = false;
            continue;
        }
        let states = |node: &NodeName| {
            claims.nodes.get(node).map(|report| report.state.clone()).unwrap_or_default()
        };
        let is_out = |node: &&NodeName| states(node).iter().any(|word| is_out_state(word));
        let is_unknown = |node: &&NodeName| states(node).is_empty();
        let out_nodes: Vec<_> = domain.nodes.iter().filter(is_out).cloned().collect();
        blocks.push(CapacityBlock {
            name: Some(domain.name.to_string()),
            nodes,
            out: u32::try_from(out_nodes.len()).unwrap_or(u32::MAX),
            out_nodes,
            unknown_nodes: domain.nodes.iter().filter(is_unknown).cloned().collect(),
        });
    }
    if blocks.is_empty() {
        let text = "no source reports a block: expected --nodes N, or a source with domains, such \
                    as Slurm with topology/block";
        return Err(CommandError::Environment(text.to_owned()));
    }
    let nodes: usize = blocks.iter().map(|block| block.nodes as usize).sum();
    let unknown: usize = blocks.iter().map(|block| block.unknown_nodes.len()).sum();
    match unknown {
        0 => {}
        all if all == nodes => {
            notes.push("no source reports which nodes are out: all count as up".to_owned());
        }
        some => {
            notes.push(format!("{some} of {nodes} nodes have no reported state: they count as up"));
        }
    }
    let unread = claims.sources.iter().filter(|source| source.unread_problem().is_some()).count();
    if 0 < unread {
        notes.push(format!("{unread} sources could not be read in full"));
    }
    let is_partial = 0 < unread || (0 < unknown && unknown < nodes);
    Ok(CapacityBlocks {
        blocks,
        notes,
        block_sizes: collect_block_sizes(claims),
        is_every_block,
        is_partial,
    })
}

/// The block sizes that a source reports, the base block size first.
fn collect_block_sizes(claims: &Claims) -> Vec<u32> {
    let reported = claims.sources.iter().filter_map(|it| it.settings.get(BLOCK_SIZES));
    let read = |sizes: &String| sizes.split(',').map(|it| it.parse().ok()).collect::<Option<_>>();
    reported.filter_map(read).max_by_key(|sizes: &Vec<u32>| sizes.len()).unwrap_or_default()
}
