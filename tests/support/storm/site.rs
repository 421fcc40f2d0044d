//! A site: a simulated fleet with faults, a policy, and the program's input files. All of it from
//! the dice.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::dice::Dice;
use super::model::Limits;
use super::world::Domains;

pub(crate) fn places(domains: &Domains) -> BTreeMap<String, String> {
    let of = |(domain, nodes): &(String, Vec<String>)| -> Vec<(String, String)> {
        nodes.iter().map(|node| (node.clone(), domain.clone())).collect()
    };
    domains.iter().flat_map(of).collect()
}

pub(crate) fn node(domains: &Domains, dice: &mut Dice) -> String {
    let (_, nodes) = dice.pick(domains);
    dice.pick(nodes).clone()
}

/// A fault of one part.
fn fault(dice: &mut Dice, node: &str) -> String {
    let gpu = dice.below(4);
    match dice.below(4) {
        0 => format!("kind = \"gpu-parked\"\ngpu = \"{node}:{gpu}\"\n"),
        1 => format!("kind = \"corrupt\"\ngpu = \"{node}:{gpu}\"\n"),
        _ => {
            let count = 4 + dice.below(6);
            format!("kind = \"lost-links\"\ngpu = \"{node}:{gpu}\"\ncount = {count}\n")
        }
    }
}

/// Number of kinds of temporary faults of a tool or a node.
const KINDS: usize = 7;

/// A temporary fault of a tool or a node.
pub(crate) fn unwell(domains: &Domains, dice: &mut Dice) -> String {
    let node = node(domains, dice);
    unwell_in_way(dice.below(KINDS), &node)
}

fn unwell_in_way(way: usize, node: &str) -> String {
    match way {
        0 => format!("kind = \"tool-garbage\"\nnode = \"{node}\"\ntool = \"nvbandwidth\"\n"),
        1 => format!(
            "kind = \"truncated\"\nscope = \"{node}\"\ntool = \"nvbandwidth\"\nshare = 0.4\n"
        ),
        2 => format!("kind = \"tool-error\"\nnode = \"{node}\"\n"),
        3 => format!("kind = \"unreachable\"\nnode = \"{node}\"\n"),
        4 => format!("kind = \"busy\"\nnode = \"{node}\"\nprocess = \"python3\"\n"),
        5 => format!("kind = \"tool-missing\"\nnode = \"{node}\"\ntool = \"nvbandwidth\"\n"),
        _ => format!("kind = \"power-cap\"\nnode = \"{node}\"\nshare = 0.9\n"),
    }
}

/// The fleet, and its permanent faults.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    domains: Domains,
    seed: u64,
    faults: Vec<String>,
}

impl Fleet {
    /// A fleet with up to three faulty parts.
    pub(crate) fn any(domains: &Domains, dice: &mut Dice) -> Self {
        let (domains, seed) = (domains.clone(), dice.bits() % 1_000);
        let mut fleet = Self { domains, seed, faults: Vec::new() };
        fleet.breaks(dice);
        fleet
    }

    /// Replaces the faulty parts.
    pub(crate) fn breaks(&mut self, dice: &mut Dice) {
        let count = dice.below(4);
        self.faults = (0..count)
            .map(|_| {
                let node = node(&self.domains, dice);
                fault(dice, &node)
            })
            .collect();
    }

    /// The scenario, with these temporary faults.
    pub(crate) fn scenario(&self, besides: &[String]) -> String {
        let mut text = format!("title = \"chaos\"\nseed = {}\n[noise]\nsigma = 0.002\n", self.seed);
        for (name, nodes) in &self.domains {
            let nodes = nodes.join(",");
            let about = "platform = \"gb200-nvl72\"";
            writeln!(text, "[[domain]]\nname = {name:?}\nnodes = {nodes:?}\n{about}")
                .expect("text");
        }
        for fault in self.faults.iter().chain(besides) {
            writeln!(text, "[[fault]]\n{fault}").expect("text");
        }
        text
    }
}

/// Scenarios with each possible fault, which the program must be able to read.
pub(crate) fn all_wrong(domains: &Domains) -> Vec<String> {
    let mut dice = Dice::new(1);
    let fleet = Fleet { domains: domains.clone(), seed: 1, faults: Vec::new() };
    let ways = (0..KINDS).map(|way| unwell_in_way(way, &node(domains, &mut dice)));
    let unwell: Vec<String> = ways.map(|it| fleet.scenario(&[it])).collect();
    let broken = (0..100).map(|_| Fleet::any(domains, &mut dice).scenario(&[]));
    broken.chain(unwell).collect()
}

/// The rules, as limits in nodes, and as a section of the configuration. The rule that waits for
/// hours is mostly off, since it prevents every drain.
pub(crate) fn policy(domains: &Domains, waits: bool, dice: &mut Dice) -> (Limits, String) {
    // Where three suspects freeze everything, budgets are seldom reached.
    let freezes = dice.once_in(3);
    let (freeze_domain, freeze_fleet) = if freezes { (3, 3) } else { (9, 9) };
    let limits = Limits {
        per_domain: 1 + dice.below(3),
        outstanding: 1 + dice.below(4),
        per_hour: 1 + dice.below(4),
        freeze_domain,
        // 5 % of a small fleet is never less than the limit that freezes a domain.
        freeze_fleet,
        clean_sweeps: 1 + dice.below(2),
        waits,
    };
    let fleet = places(domains).len();
    // A little more than the share, so that rounding down gives the number.
    let share = |nodes: usize| format!("{}.{:03}", 0, (nodes * 1_000).div_ceil(fleet));
    let Limits { per_domain, outstanding, per_hour, clean_sweeps, .. } = limits;
    let frozen =
        if freezes { "" } else { "freeze_domain = 9\nfreeze_fleet = 1.0\nfreeze_controls = 1.0\n" };
    let again = if waits { "" } else { "again_hours = 0\n" };
    let text = format!(
        "[policy]\nsimulated = true\nper_domain = {per_domain}\noutstanding = {}\nper_hour = {}\n\
         clean_sweeps = {clean_sweeps}\nclean_hours = 0\n{again}{frozen}",
        share(outstanding),
        share(per_hour)
    );
    (limits, text)
}

/// The files of a site, except the configuration of each command.
pub(crate) fn furnish(site: &Path, domains: &Domains) {
    let mut claims = String::new();
    for (name, nodes) in domains {
        let about = "platform = \"gb200-nvl72\"\ngpus_per_node = 4";
        writeln!(claims, "[[domain]]\nname = {name:?}\nnodes = {nodes:?}\n{about}").expect("text");
    }
    fs::write(site.join("claims.toml"), claims).expect("written");
}

pub(crate) fn configuration(
    site: &Path,
    has_workers: bool,
    gate: &str,
    policy: &str,
    command: u32,
) -> String {
    let file = format!("fabricgate-{command}.toml");
    let text = format!(
        "claims = \"claims.toml\"\nrun_dir = \"runs\"\npass_env = [\"LD_PRELOAD\", \"FAKETIME*\"]\n[launcher]\nkind = \"sim\"\n\
         scenario = \"fleet.toml\"\nworkers = {has_workers}\n[probes]\nrun = [\"nvbandwidth-ce\", \"nvidia-smi-nvlink\", \
         \"nvbandwidth-lane\"]\n[confirm]\nwait_s = 0\n{gate}{policy}"
    );
    fs::write(site.join(&file), text).expect("written");
    file
}
