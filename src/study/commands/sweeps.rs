//! `fabricgate-study sweeps`: how often the scheme finds faults, and how often it blames healthy
//! parts.
//!
//! Parses arguments and prints results. `study` contains the simulation.

use std::path::PathBuf;

use crate::StudyOptions;
use fabricgate::cli::output::OutputFile;
use fabricgate::cli::stdout;
use fabricgate::exit;
use study::{StudySetting, StudyWorld};

/// Simulate thousands of sweeps and count found faults and false blames, compared with simpler
/// rules on the same readings.
#[derive(Debug, clap::Args)]
pub(crate) struct StudyArgs {
    /// Sweeps per setting with faults.
    #[arg(long, default_value_t = 100)]
    trials: u64,
    /// Healthy sweeps per noise level.
    #[arg(long, default_value_t = 1000)]
    healthy: u64,
    /// Seed of noise, faults and plans.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Kind of fabric to sweep.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [StudyWorldArg::Domain, StudyWorldArg::Fleet])]
    only: Vec<StudyWorldArg>,
    /// Standard deviations of one reading, in percent.
    #[arg(long, value_delimiter = ',', default_values_t = [0.1, 0.3, 1.0, 2.0, 3.0])]
    sigma: Vec<f64>,
    /// Share of its rate that a faulty part has lost, in percent; one link of 18 is 5.5556.
    #[arg(long, value_delimiter = ',', default_values_t = [50.0, 25.0, 100.0 / 18.0, 100.0 / 36.0])]
    lost: Vec<f64>,
    /// Number of faulty parts at the same time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 3, 5])]
    faults: Vec<usize>,
    /// Also plot the share of found faults against their size into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Number of threads; by default one per processor. Does not affect the result.
    #[arg(long)]
    threads: Option<usize>,
}

/// Kind of fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StudyWorldArg {
    /// A rack of 18 nodes with 72 GPUs, GPU by GPU.
    Domain,
    /// A fleet of 1,024 nodes over its network, in one matching.
    Fleet,
}

impl StudyWorldArg {
    fn to_world(self) -> StudyWorld {
        match self {
            Self::Domain => StudyWorld::Domain,
            Self::Fleet => StudyWorld::Fleet,
        }
    }
}

pub(crate) fn run(args: &StudyArgs, globals: &StudyOptions) -> anyhow::Result<u8> {
    for (option, percents) in [("sigma", &args.sigma), ("lost", &args.lost)] {
        if let Some(strange) = percents.iter().find(|it| !(0.0..=50.0).contains(*it)) {
            stdout::note(&format!("--{option} {strange}: expected 0 to 50, in percent"));
            return Ok(exit::USAGE);
        }
    }
    let output = OutputFile::open_optional(args.svg.as_ref())?;
    let threads =
        args.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    let settings = build_settings(args);
    let mut points = Vec::new();
    for (at, (setting, trials)) in settings.iter().enumerate() {
        points.push(study::run_study(*setting, *trials, args.seed, threads.unwrap_or(1)));
        if !globals.no_progress {
            stdout::note(&format!(
                "{} of {}: {trials} sweeps of {}, noise {:.1} %, {} parts that lost {:.1} %",
                at + 1,
                settings.len(),
                setting.world.as_str(),
                setting.sigma * 100.0,
                setting.faults,
                setting.loss * 100.0
            ));
        }
    }
    if let Some(output) = output {
        output.write(study::render_svg(&points).as_bytes())?;
    }
    if globals.json {
        stdout::write_json(&study::build_document(&points, args.seed))?;
    } else {
        stdout::write_text(&study::render_text(&points))?;
    }
    Ok(exit::PASS)
}

/// All settings with their number of sweeps, in table order.
fn build_settings(args: &StudyArgs) -> Vec<(StudySetting, u64)> {
    let mut settings = Vec::new();
    for only in &args.only {
        for sigma in args.sigma.iter().map(|percent| percent / 100.0) {
            let of = |loss, faults| StudySetting { world: only.to_world(), sigma, loss, faults };
            if 0 < args.trials {
                for loss in args.lost.iter().map(|percent| percent / 100.0) {
                    let counts = args.faults.iter().filter(|count| 0 < **count);
                    settings.extend(counts.map(|count| (of(loss, *count), args.trials)));
                }
            }
            if 0 < args.healthy {
                settings.push((of(0.0, 0), args.healthy));
            }
        }
    }
    settings
}
