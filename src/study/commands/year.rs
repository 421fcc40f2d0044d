//! `fabricgate-study year`: simulates a year of daily audits, and counts drains.
//!
//! Parses arguments and prints results. `study::year` contains the simulation.

use std::path::PathBuf;

use crate::StudyOptions;
use fabricgate::cli::output::OutputFile;
use fabricgate::cli::report_output;
use fabricgate::cli::stdout;
use fabricgate::exit;
use study::year;
use study::year::{SchemeSettings, TransientRates, YearRule, YearSetting};

/// Simulate a year of daily audits of a fleet of racks, and count correct and wrong drains,
/// compared with simpler rules in the same year.
#[derive(Debug, clap::Args)]
pub(crate) struct YearArgs {
    /// Number of racks with 18 nodes and 72 GPUs.
    #[arg(long, default_value_t = 100)]
    racks: usize,
    /// Number of days.
    #[arg(long, default_value_t = 365)]
    days: usize,
    /// Number of independent worlds of that size, each with a year.
    #[arg(long, default_value_t = 1)]
    worlds: usize,
    /// Seed of everything except the rule.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum share of a rack's nodes that one audit measures, as in [audit] share_of_domain; 1
    /// for all.
    #[arg(long, default_value_t = 0.25)]
    share_of_domain: f64,
    /// Share of nodes that run jobs when an audit begins.
    #[arg(long, default_value_t = 0.3)]
    busy: f64,
    /// Frequency of faults, as a multiple of the assumed rates.
    #[arg(long, default_value_t = 1.0)]
    troubles: f64,
    /// Frequency of transient disturbances of healthy nodes, as a multiple of the assumed rates.
    #[arg(long, default_value_t = 1.0)]
    passing: f64,
    /// Spread of readings, as a multiple of the assumed noise.
    #[arg(long, default_value_t = 1.0)]
    noise: f64,
    /// Install a new driver on all nodes in one night instead of one node after the other.
    #[arg(long)]
    driver_at_once: bool,
    /// Rules to simulate.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [YearRuleArg::Ours, YearRuleArg::Floor95, YearRuleArg::Floor90,
        YearRuleArg::Retest95, YearRuleArg::Retest90, YearRuleArg::Below10, YearRuleArg::Below5])]
    rules: Vec<YearRuleArg>,
    /// Also write the counts as CSV into this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also plot wrong drains against missed faults into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Number of threads; by default one per processor. Does not affect the result.
    #[arg(long)]
    threads: Option<usize>,
}

/// A rule by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum YearRuleArg {
    /// The scheme with its defaults.
    Ours,
    /// The scheme, but a slow result of a single run causes a drain.
    Once,
    /// A single run suffices; suspects are measured again after 5 minutes.
    Wait300,
    /// A single run suffices; suspects are measured again after 20 minutes.
    Wait1200,
    /// A single run suffices; suspects are measured again after an hour.
    Wait3600,
    /// A single run suffices, without a second measurement.
    Unconfirmed,
    /// The scheme; nodes newly found slow by an audit are measured again after an hour, and not
    /// only by the next audits.
    Again1,
    /// As before, after four hours.
    Again4,
    /// As before, after twenty hours.
    Again20,
    /// The scheme, with earlier runs as references.
    History,
    /// The scheme, with drift charts.
    Drift,
    /// The scheme; operators never set a new level if everything is low by the same share.
    Unstated,
    /// The scheme, with at least three readings of everything.
    Readings3,
    /// The scheme; one suspect per rack allows one drain, two allow none.
    Freeze2,
    /// The scheme without freezes.
    NoFreeze,
    /// The scheme without budgets.
    NoBudget,
    /// The scheme; one clean run suffices for a release.
    Clean1,
    /// Below 90 % of the expected rate.
    #[value(name = "floor90")]
    Floor90,
    /// Below 95 % of the expected rate.
    #[value(name = "floor95")]
    Floor95,
    /// Below 90 %, and again with a partner that passed.
    #[value(name = "retest90")]
    Retest90,
    /// Below 95 %, and again with a partner that passed.
    #[value(name = "retest95")]
    Retest95,
    /// 10 % below the median of its kind.
    #[value(name = "below10")]
    Below10,
    /// 5 % below the median of its kind.
    #[value(name = "below5")]
    Below5,
}

impl YearRuleArg {
    fn to_rule(self) -> YearRule {
        let mut scheme = SchemeSettings::default();
        let mut named = |name: &str| scheme.name = name.to_owned();
        match self {
            Self::Floor90 => return YearRule::Floor(0.9),
            Self::Floor95 => return YearRule::Floor(0.95),
            Self::Retest90 => return YearRule::Retest(0.9),
            Self::Retest95 => return YearRule::Retest(0.95),
            Self::Below10 => return YearRule::BelowMedian(0.1),
            Self::Below5 => return YearRule::BelowMedian(0.05),
            Self::Ours => {}
            Self::Once => named("one run enough"),
            Self::Wait300 => named("one run, second measurement after 300 s"),
            Self::Wait1200 => named("one run, after 1,200 s"),
            Self::Wait3600 => named("one run, after 3,600 s"),
            Self::Unconfirmed => named("one run, without second measurement"),
            Self::Again1 => named("again after 1 h"),
            Self::Again4 => named("again after 4 h"),
            Self::Again20 => named("again after 20 h"),
            Self::History => named("with history"),
            Self::Drift => named("with drift charts"),
            Self::Unstated => named("no level stated"),
            Self::Readings3 => named("three readings"),
            Self::Freeze2 => named("frozen at two"),
            Self::NoFreeze => named("never frozen"),
            Self::NoBudget => named("no budgets"),
            Self::Clean1 => named("one clean run"),
        }
        let policy = &mut scheme.policy;
        let alone = [Self::Wait300, Self::Wait1200, Self::Wait3600, Self::Unconfirmed, Self::Once];
        if alone.contains(&self) {
            policy.again_hours = 0.0;
        }
        match self {
            Self::Wait300 => scheme.confirm_after_s = 300.0,
            Self::Wait1200 => scheme.confirm_after_s = 1_200.0,
            Self::Wait3600 => scheme.confirm_after_s = 3_600.0,
            Self::Unconfirmed => policy.confirmed = false,
            Self::History => scheme.history = true,
            Self::Again1 | Self::Again4 | Self::Again20 => {
                let hours = match self {
                    Self::Again1 => 1.0,
                    Self::Again4 => 4.0,
                    _ => 20.0,
                };
                (policy.again_hours, scheme.repeat_after_s) = (hours, Some(hours * 3_600.0));
            }
            Self::Drift => scheme.drift = true,
            Self::Unstated => scheme.restates_levels = false,
            Self::Readings3 => scheme.readings = [3, 5],
            Self::Freeze2 => policy.freeze_domain = 2,
            Self::NoFreeze => {
                (policy.freeze_domain, policy.freeze_fleet) = (usize::MAX, 1.0);
                policy.freeze_controls = 1.0;
            }
            Self::NoBudget => {
                (policy.per_domain, policy.per_leaf) = (usize::MAX, usize::MAX);
                (policy.per_hour, policy.outstanding) = (1.0, 1.0);
            }
            Self::Clean1 => policy.clean_sweeps = 1,
            _ => {}
        }
        YearRule::Scheme(Box::new(scheme))
    }
}

pub(crate) fn run(args: &YearArgs, globals: &StudyOptions) -> anyhow::Result<u8> {
    if let Err(why) = check_args(args) {
        stdout::note(&why);
        return Ok(exit::USAGE);
    }
    report_output::check_distinct(
        [&args.csv, &args.svg].into_iter().flatten().map(PathBuf::as_path),
    )?;
    let (table, picture) = (
        OutputFile::open_optional(args.csv.as_ref())?,
        OutputFile::open_optional(args.svg.as_ref())?,
    );
    let setting = build_setting(args);
    let threads =
        args.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    let rules: Vec<YearRule> = args.rules.iter().map(|which| which.to_rule()).collect();
    let note = |text: &str| {
        if !globals.no_progress {
            stdout::note(text);
        }
    };
    let years = year::run_years(&setting, &rules, threads.unwrap_or(1), &note);
    for (output, text) in [(table, year::render_csv(&years)), (picture, year::render_svg(&years))] {
        if let Some(output) = output {
            output.write(text.as_bytes())?;
        }
    }
    if globals.json {
        stdout::write_json(&year::build_document(&setting, &years))?;
    } else {
        stdout::write_text(&year::render_text(&setting, &years))?;
    }
    Ok(exit::PASS)
}

/// Checks that every number is in its range.
fn check_args(args: &YearArgs) -> Result<(), String> {
    let counts =
        [("racks", args.racks, 1_000), ("days", args.days, 3_650), ("worlds", args.worlds, 1_000)];
    for (option, value, most) in counts {
        if !(1..=most).contains(&value) {
            return Err(format!("--{option} {value}: expected 1 to {most}"));
        }
    }
    if !(0.0 < args.share_of_domain && args.share_of_domain <= 1.0) {
        return Err(format!(
            "--share-of-domain {}: expected more than 0, to 1",
            args.share_of_domain
        ));
    }
    if !(0.0..1.0).contains(&args.busy) {
        return Err(format!("--busy {}: expected 0 to less than 1", args.busy));
    }
    let times = [("troubles", args.troubles), ("passing", args.passing), ("noise", args.noise)];
    for (option, value) in times {
        if !(0.0..=1_000.0).contains(&value) {
            return Err(format!("--{option} {value}: expected 0 to 1000"));
        }
    }
    Ok(())
}

fn build_setting(args: &YearArgs) -> YearSetting {
    let usual = TransientRates::USUAL;
    let times = args.passing;
    YearSetting {
        racks: args.racks,
        days: args.days,
        worlds: args.worlds,
        seed: args.seed,
        share_of_domain: (args.share_of_domain < 1.0).then_some(args.share_of_domain),
        busy: args.busy,
        fault_factor: args.troubles,
        transient_rates: TransientRates {
            node: usual.node * times,
            gpu: usual.gpu * times,
            rack: usual.rack * times,
            tray: usual.tray * times,
            driver_at_once: args.driver_at_once,
            noise: args.noise,
            ..usual
        },
    }
}
