//! `fabricgate place`: the best-connected GPUs or nodes of a stored run.
//!
//! Opens the run and prints. What is chosen, `place` says.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::Globals;
use super::exit;
use super::export;
use super::export::Trust;
use super::failure::Failure;
use super::runs;
use super::stdout;
use engine::place;
use engine::place::Asked;
use engine::place::Choice;
use engine::place::Level;
use engine::place::Part;
use engine::place::Placement;
use engine::place::Unplaced;
use engine::place::Way;
use engine::place::matrix::Scale;
use engine::report::plain::plain;
use model::id::NodeName;

/// The best-connected set of GPUs or nodes, by what a run measured; nothing is reserved.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// How many.
    #[arg(short = 'k', long = "count", value_name = "K")]
    count: usize,
    /// What is chosen; GPUs where --node is given, otherwise nodes.
    #[arg(long, value_enum, value_name = "LEVEL")]
    level: Option<LevelWord>,
    /// Choose among the GPUs of this node.
    #[arg(long, value_name = "NODE", conflicts_with = "domain")]
    node: Option<String>,
    /// Choose in this domain, by its name in the map (`export --to map`).
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// The rule: the best-connected set, the one whose loss hurts the rest least, or both.
    #[arg(long, value_enum, value_name = "RULE", default_value = "best")]
    strategy: Strategy,
    /// Choose degraded parts, too; what failed or was not measured is never chosen.
    #[arg(long)]
    allow_degraded: bool,
    #[command(flatten)]
    trust: Trust,
}

/// The levels, as they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LevelWord {
    /// GPUs.
    Gpu,
    /// Nodes.
    Node,
}

/// The rules, as they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Strategy {
    /// The best-connected set.
    Best,
    /// The set whose loss hurts the rest least.
    Spare,
    /// One of each.
    Both,
}

/// Runs the command. A choice is no verdict: the exit code says only whether one
/// could be made.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let map = export::map(&runs::folder(&args.run, globals.config.as_deref())?, args.trust)?;
    let level = match (args.level, &args.node) {
        (Some(LevelWord::Gpu), _) | (None, Some(_)) => Level::Gpu,
        (Some(LevelWord::Node), _) | (None, None) => Level::Node,
    };
    let asked = Asked {
        count: args.count,
        level,
        node: args.node.as_deref().map(NodeName::from),
        domain: args.domain.clone(),
        ways: match args.strategy {
            Strategy::Best => vec![Way::Best],
            Strategy::Spare => vec![Way::Spare],
            Strategy::Both => vec![Way::Best, Way::Spare],
        },
        allow_degraded: args.allow_degraded,
    };
    let placement = place::place(&map, &asked).map_err(|error| match error {
        Unplaced::Question(why) => Failure::Usage(plain(&why).into_owned()),
        Unplaced::TooFew(why) => Failure::Usage(format!("-k {}: {}", args.count, plain(&why))),
    })?;
    if globals.json {
        stdout::json(&placement)?;
    } else {
        for line in map.header() {
            stdout::note(&plain(&line));
        }
        stdout::text(&text(&placement))?;
    }
    Ok(exit::PASS)
}

/// For people.
fn text(placement: &Placement) -> String {
    let mut text = String::new();
    let what = match placement.level {
        Level::Gpu => "GPUs",
        Level::Node => "nodes",
    };
    for choice in &placement.choices {
        let rule = match choice.way {
            Way::Best => "best connected",
            Way::Spare => "hurts the rest least",
        };
        let _ = writeln!(
            text,
            "{rule}: {} of {} {what} in {}",
            choice.parts.len(),
            placement.candidates,
            plain(&placement.scope)
        );
        let _ = writeln!(text, "  {}", names(&choice.parts));
        explained(choice, placement.scale, &mut text);
    }
    if let Some(detectable) = placement.detectable {
        let _ = writeln!(
            text,
            "differences below {:.1} % may be chance: this run could not have seen them",
            detectable * 100.0
        );
    }
    for excluded in &placement.excluded {
        let _ = writeln!(text, "left out: {}: {}", plain(&excluded.part), plain(&excluded.why));
    }
    text
}

fn explained(choice: &Choice, scale: Scale, text: &mut String) {
    let of = match choice.way {
        Way::Best => "",
        Way::Spare => " of the rest",
    };
    let number = |value: f64| match scale {
        Scale::Share => format!("{:.1} % of what its links must deliver", value * 100.0),
        Scale::GigabytesPerSecond => format!("{value:.1} GB/s"),
    };
    if let (Some(pair), Some(mean)) = (&choice.weakest, choice.mean) {
        let (a, b) = (plain(&pair.a), plain(&pair.b));
        let _ = writeln!(text, "  weakest pair{of}: {a} - {b}, {}", number(pair.strength));
        let _ = writeln!(text, "  mean{of}: {}", number(mean));
    }
    match (&choice.next, choice.weakest_bound, choice.mean_bound) {
        (Some(next), ..) => {
            let weakest = next.weakest.as_ref().map_or_else(String::new, |pair| {
                let (a, b) = (plain(&pair.a), plain(&pair.b));
                format!(": weakest pair{of} {a} - {b}, {}", number(pair.strength))
            });
            let _ = writeln!(text, "  next best: {}{weakest}", names(&next.parts));
        }
        (None, Some(weakest), Some(mean)) => {
            let _ = writeln!(
                text,
                "  not proven best: no set has a weakest pair above {}, nor with this one a mean above {}",
                number(weakest),
                number(mean)
            );
        }
        _ => {}
    }
}

fn names(parts: &[Part]) -> String {
    let names: Vec<String> = parts.iter().map(ToString::to_string).collect();
    plain(&names.join(" ")).into_owned()
}
