//! `fabricgate place`: the best-connected GPUs or nodes of a stored run.
//!
//! Opens the run and prints; `place` chooses.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::cli::stdout::Globals;
use crate::cli::stored_run::MapTrustArgs;
use crate::cli::{run_lookup, stdout, stored_run};
use crate::exit;
use crate::exit::CommandError;
use engine::place;
use engine::place::strength_matrix::StrengthScale;
use engine::place::{
    Placement, PlacementChoice, PlacementError, PlacementLevel, PlacementPart, PlacementRequest,
    PlacementRule,
};
use engine::report::plain_text::to_plain;
use model::id::NodeName;

/// Choose the best-connected set of GPUs or nodes by a run's measurements; reserves nothing.
#[derive(Debug, clap::Args)]
pub struct PlaceArgs {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Number of GPUs or nodes.
    #[arg(short = 'k', long = "count", value_name = "K")]
    count: usize,
    /// Whether to choose GPUs or nodes; by default GPUs with --node, else nodes.
    #[arg(long, value_enum, value_name = "LEVEL")]
    level: Option<PlaceLevelArg>,
    /// Choose among the GPUs of this node.
    #[arg(long, value_name = "NODE", conflicts_with = "domain")]
    node: Option<String>,
    /// Choose in this domain, by its name in the map (`export --to map`).
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// The rule: the best-connected set, the set whose loss hurts the rest least, or both.
    #[arg(long, value_enum, value_name = "RULE", default_value = "best")]
    strategy: PlaceStrategyArg,
    /// Also choose degraded parts; failed and unmeasured parts are never chosen.
    #[arg(long)]
    allow_degraded: bool,
    #[command(flatten)]
    trust: MapTrustArgs,
}

/// The --level option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PlaceLevelArg {
    /// GPUs.
    Gpu,
    /// Nodes.
    Node,
}

/// The --strategy option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PlaceStrategyArg {
    /// The best-connected set.
    Best,
    /// The set whose loss hurts the rest least.
    Spare,
    /// One of each.
    Both,
}

/// Runs the command. A choice is not a verdict: the exit code reports only whether one could be
/// made.
pub fn run(args: &PlaceArgs, globals: &Globals) -> anyhow::Result<u8> {
    let map = stored_run::open_verified_map(
        &run_lookup::find_run(&args.run, globals.config.as_deref())?,
        args.trust,
    )?;
    let level = match (args.level, &args.node) {
        (Some(PlaceLevelArg::Gpu), _) | (None, Some(_)) => PlacementLevel::Gpu,
        (Some(PlaceLevelArg::Node), _) | (None, None) => PlacementLevel::Node,
    };
    let request = PlacementRequest {
        count: args.count,
        level,
        node: args.node.as_deref().map(NodeName::from),
        domain: args.domain.clone(),
        rules: match args.strategy {
            PlaceStrategyArg::Best => vec![PlacementRule::Best],
            PlaceStrategyArg::Spare => vec![PlacementRule::Spare],
            PlaceStrategyArg::Both => vec![PlacementRule::Best, PlacementRule::Spare],
        },
        allow_degraded: args.allow_degraded,
    };
    let placement = place::choose_placement(&map, &request).map_err(|error| match error {
        PlacementError::InvalidRequest(why) => CommandError::Usage(to_plain(&why).into_owned()),
        PlacementError::TooFew(why) => {
            CommandError::Usage(format!("-k {}: {}", args.count, to_plain(&why)))
        }
    })?;
    if globals.json {
        stdout::write_json(&placement)?;
    } else {
        for line in map.header_lines() {
            stdout::note(&to_plain(&line));
        }
        stdout::write_text(&render_placement(&placement))?;
    }
    Ok(exit::PASS)
}

/// Renders the choices as text.
fn render_placement(placement: &Placement) -> String {
    let mut text = String::new();
    let what = match placement.level {
        PlacementLevel::Gpu => "GPUs",
        PlacementLevel::Node => "nodes",
    };
    for choice in &placement.choices {
        let rule = match choice.way {
            PlacementRule::Best => "best connected",
            PlacementRule::Spare => "hurts the rest least",
        };
        let _ = writeln!(
            text,
            "{rule}: {} of {} {what} in {}",
            choice.parts.len(),
            placement.candidates,
            to_plain(&placement.scope)
        );
        let _ = writeln!(text, "  {}", format_parts(&choice.parts));
        write_choice(choice, placement.scale, &mut text);
    }
    if let Some(detectable) = placement.detectable {
        let _ = writeln!(
            text,
            "differences below {:.1} % may be chance: this run cannot detect them",
            detectable * 100.0
        );
    }
    for excluded in &placement.excluded {
        let _ =
            writeln!(text, "left out: {}: {}", to_plain(&excluded.part), to_plain(&excluded.why));
    }
    text
}

fn write_choice(choice: &PlacementChoice, scale: StrengthScale, text: &mut String) {
    let of = match choice.way {
        PlacementRule::Best => "",
        PlacementRule::Spare => " of the rest",
    };
    let number = |value: f64| match scale {
        StrengthScale::Share => format!("{:.1} % of what its links must deliver", value * 100.0),
        StrengthScale::GigabytesPerSecond => format!("{value:.1} GB/s"),
    };
    if let (Some(pair), Some(mean)) = (&choice.weakest, choice.mean) {
        let (a, b) = (to_plain(&pair.a), to_plain(&pair.b));
        let _ = writeln!(text, "  weakest pair{of}: {a} - {b}, {}", number(pair.strength));
        let _ = writeln!(text, "  mean{of}: {}", number(mean));
    }
    match (&choice.next, choice.weakest_bound, choice.mean_bound) {
        (Some(next), ..) => {
            let weakest = next.weakest.as_ref().map_or_else(String::new, |pair| {
                let (a, b) = (to_plain(&pair.a), to_plain(&pair.b));
                format!(": weakest pair{of} {a} - {b}, {}", number(pair.strength))
            });
            let _ = writeln!(text, "  next best: {}{weakest}", format_parts(&next.parts));
        }
        (None, Some(weakest), Some(mean)) => {
            let _ = writeln!(
                text,
                "  not proven best: no set has a weakest pair above {}, nor with this one a mean \
                 above {}",
                number(weakest),
                number(mean)
            );
        }
        _ => {}
    }
}

fn format_parts(parts: &[PlacementPart]) -> String {
    let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
    to_plain(&names.join(" ")).into_owned()
}
