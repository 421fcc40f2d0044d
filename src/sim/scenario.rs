//! A scenario: the real hardware, the claims, the faults, and the tools that record it.
//!
//! Parsing checks everything that can be checked without physics, so that a typo gives one clear
//! message with its line and not a strange recording.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::collective::SimCollective;
use super::fault::{BurnInAge, DelayedFault, SimFault};
use super::network::SimNetworkSection;
use super::noise::SimNoise;
use super::platform::Hardware;
use super::source_map::ScenarioSourceMap;
use super::tool_config::{NvbandwidthLayout, SimToolConfig, SimToolFormat};
use super::{cases, misbehaviour, network, platform, tool_dispatch};
use model::hostlist;

/// One scenario file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Title of the scenario in one line.
    pub title: String,
    /// Seed of all noise.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Number of readings of every measuring tool.
    #[serde(default = "default_readings")]
    pub readings: u32,
    /// Distribution of readings.
    #[serde(default)]
    pub noise: SimNoise,
    /// The tools and their versions.
    #[serde(default)]
    pub tools: SimToolConfig,
    /// The real domains.
    #[serde(rename = "domain")]
    pub domains: Vec<ScenarioDomain>,
    /// The claimed domains; the real ones if absent.
    #[serde(rename = "claim", default)]
    pub claims: Vec<ScenarioDomain>,
    /// The scale-out network, if it differs from the platform's default.
    pub network: Option<SimNetworkSection>,
    /// Its leaves, by name.
    #[serde(rename = "leaf", default)]
    pub leaves: Vec<network::SimLeafSection>,
    /// The faults.
    #[serde(rename = "fault", default)]
    pub faults: Vec<SimFault>,
    /// Faults that begin later.
    #[serde(default)]
    pub later: Vec<DelayedFault>,
    /// Line numbers of the scenario's parts.
    #[serde(skip)]
    pub lines: ScenarioSourceMap,
}

/// A domain, real or claimed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioDomain {
    /// Its name; with `per_node` the nodes' names apply.
    #[serde(default)]
    pub name: String,
    /// Folded list of its nodes.
    pub nodes: String,
    /// Name of its platform.
    pub platform: String,
    /// GPUs per node, if it differs from the platform's default.
    pub gpus_per_node: Option<u32>,
    /// Whether every node is a separate domain.
    #[serde(default)]
    pub per_node: bool,
}

/// A domain with its nodes unfolded.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpandedDomain {
    /// Name of the domain.
    pub name: String,
    /// Index of its section in the file, from 0.
    pub section: usize,
    /// Names of its nodes.
    pub nodes: Vec<String>,
    /// Its nodes in the scenario's notation.
    pub folded: String,
    /// Hardware of its nodes.
    pub hardware: &'static Hardware,
    /// GPUs per node.
    pub gpus: u32,
}

/// Why a scenario is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It is not valid TOML, or has another structure.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// It contradicts itself.
    #[error("{0}")]
    Inconsistent(String),
}

impl Scenario {
    /// Parses and checks a scenario.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let mut scenario: Self = toml::from_str(text)?;
        scenario.lines = ScenarioSourceMap::from_toml(text);
        scenario.check().map_err(ScenarioError::Inconsistent)?;
        Ok(scenario)
    }

    /// The scenario at an age: delayed faults become normal faults.
    #[must_use]
    pub fn at_age(mut self, age: BurnInAge) -> Self {
        for (number, later) in self.later.iter().enumerate() {
            if later.is_active(age) {
                let now = format!("fault/{}", self.faults.len());
                self.lines.add_alias(&format!("later/{number}/fault"), now);
                self.faults.push(later.fault.clone());
            }
        }
        self
    }

    /// The real domains, unfolded.
    pub fn real_domains(&self) -> Result<Vec<ExpandedDomain>, String> {
        expand_domains("domain", &self.domains, &self.lines)
    }

    /// The claimed domains, unfolded.
    pub fn claimed_domains(&self) -> Result<Vec<ExpandedDomain>, String> {
        match self.claims.is_empty() {
            true => self.real_domains(),
            false => expand_domains("claim", &self.claims, &self.lines),
        }
    }

    fn check(&self) -> Result<(), String> {
        let real = self.real_domains()?;
        let known: BTreeSet<&String> = real.iter().flat_map(|group| &group.nodes).collect();
        for group in self.claimed_domains()? {
            if let Some(node) = group.nodes.iter().find(|node| !known.contains(node)) {
                let why = format!("claim `{}` names {node}, which no [[domain]] has", group.name);
                return Err(self.lines.error_at(&format!("claim/{}", group.section), &why));
            }
        }
        self.check_tools().map_err(|why| self.lines.error_at("", &why))?;
        for (number, fault) in self.faults.iter().enumerate() {
            self.check_fault(fault).map_err(|why| self.fault_error(number, &why))?;
        }
        for (number, later) in self.later.iter().enumerate() {
            self.check_fault(&later.fault).map_err(|why| self.delayed_fault_error(number, &why))?;
        }
        Ok(())
    }

    /// The error message for a fault.
    pub(super) fn fault_error(&self, number: usize, why: &str) -> String {
        let name = format!("fault {}", number + 1);
        self.lines.error_at_named(&format!("fault/{number}"), &name, why)
    }

    /// The error message for a delayed fault.
    pub(super) fn delayed_fault_error(&self, number: usize, why: &str) -> String {
        let name = format!("later {}", number + 1);
        self.lines.error_at_named(&format!("later/{number}/fault"), &name, why)
    }

    fn check_tools(&self) -> Result<(), String> {
        if !(1..=1000).contains(&self.readings) {
            return Err(format!("readings = {}: expected 1 to 1000", self.readings));
        }
        let [least, most] = self.tools.bytes;
        if least == 0 || most < least {
            return Err(format!("tools.bytes = [{least}, {most}]: expected smallest, largest"));
        }
        let tools = &self.tools;
        if tools.nvbandwidth_format == SimToolFormat::Json && !tools.nvbandwidth.has_json() {
            return Err("tools.nvbandwidth_format = \"json\": known for 0.5 to 0.8 only".to_owned());
        }
        if let Some(name) =
            self.tools.collectives.iter().find(|n| SimCollective::from_program(n).is_none())
        {
            return Err(format!("tools.collectives: no program `{name}` in nccl-tests"));
        }
        for tool in &self.tools.missing {
            check_installed(tool).map_err(|why| format!("tools.missing: {why}"))?;
        }
        let noise = &self.noise;
        if !(0.0..0.5).contains(&noise.sigma) {
            return Err(format!("noise.sigma = {}: expected 0 to below 0.5", noise.sigma));
        }
        if !(0.0..=1.0).contains(&noise.dip_rate) {
            return Err(format!("noise.dip_rate = {}: expected 0 to 1", noise.dip_rate));
        }
        check_depth(noise.dip_depth).map_err(|why| format!("noise.dip_{why}"))
    }
}

impl Scenario {
    /// Checks a fault's tool settings; the fabric checks its hardware.
    fn check_fault(&self, fault: &SimFault) -> Result<(), String> {
        match fault {
            SimFault::Waived { tests, .. } => {
                let known = cases::cases_of_version(NvbandwidthLayout::V0_10, true);
                let strange = tests.iter().find(|name| known.iter().all(|c| c.name != **name));
                strange.map_or(Ok(()), |name| Err(format!("nvbandwidth has no test `{name}`")))
            }
            SimFault::Truncated { share, .. } if !(0.0..=1.0).contains(share) => {
                Err(format!("share = {share}: expected 0 to 1"))
            }
            SimFault::Truncated { tool, .. } => {
                let tools = &self.tools.collectives;
                match PROGRAMS.contains(&tool.as_str()) || tools.contains(tool) {
                    true => Ok(()),
                    false => Err(format!("no tool `{tool}`; known are {}", PROGRAMS.join(", "))),
                }
            }
            SimFault::ToolHangs { tool, .. }
            | SimFault::ToolFloods { tool, .. }
            | SimFault::ToolGarbage { tool, .. } => {
                match tool_dispatch::NAMES
                    .iter()
                    .chain(tool_dispatch::PROBES)
                    .any(|name| name == tool)
                {
                    true => Ok(()),
                    false => Err(format!(
                        "no tool `{tool}`; known are {}",
                        tool_dispatch::NAMES.join(", ")
                    )),
                }
            }
            SimFault::ToolMissing { tool, .. } => check_installed(tool),
            SimFault::MissingCells { share, .. } | SimFault::Dips { rate: share, .. }
                if !(0.0..=1.0).contains(share) =>
            {
                Err(format!("{share}: expected 0 to 1"))
            }
            SimFault::Dips { depth, .. } => check_depth(*depth),
            // The drift ends after six readings, and some rate must remain.
            SimFault::Drift { share, .. } if !(0.0..=0.16).contains(share) => Err(format!(
                "share = {share}: expected 0 to 0.16, which is lost with each of six readings"
            )),
            // On a node without any rate, no run would end.
            SimFault::PowerCap { share, .. } if !(0.001..=1.0).contains(share) => {
                Err(format!("share = {share}: expected 0.001 to 1"))
            }
            SimFault::ToolError { testcase: Some(test), .. } => {
                let known = cases::cases_of_version(NvbandwidthLayout::V0_10, true);
                match known.iter().any(|case| case.name == *test)
                    || cases::native_case(test).is_some()
                {
                    true => Ok(()),
                    false => Err(format!("nvbandwidth has no test `{test}`")),
                }
            }
            SimFault::NcclSetting { name, value, .. } => {
                let is_it =
                    |known: &(&str, &str)| known.0 == name && known.1.eq_ignore_ascii_case(value);
                let words = SETTINGS.map(|(name, value)| format!("{name}={value}")).join(", ");
                match SETTINGS.iter().any(is_it) {
                    true => Ok(()),
                    false => Err(format!("{name}={value}: expected one of {words}")),
                }
            }
            SimFault::SlowPair { a, b, .. } | SimFault::PairLoss { a, b, .. } if a == b => {
                Err(format!("{a} with itself: expected two"))
            }
            _ => Ok(()),
        }
    }
}

/// NCCL settings that affect the simulation.
const SETTINGS: [(&str, &str); 3] =
    [("NCCL_MNNVL_ENABLE", "0"), ("NCCL_NVLS_ENABLE", "0"), ("NCCL_ALGO", "Ring")];

/// Checks that a dip leaves some rate.
fn check_depth([least, most]: [f64; 2]) -> Result<(), String> {
    match 0.0 <= least && least <= most && most < 1.0 {
        true => Ok(()),
        false => {
            Err(format!("depth = [{least}, {most}]: expected smallest, largest, from 0 to below 1"))
        }
    }
}

/// Names of recordings, without collectives.
const PROGRAMS: &[&str] = &[
    "nvbandwidth",
    "nvidia-smi-nvlink",
    "nvidia-smi-topo",
    "nvidia-smi-q",
    "nvidia-imex-ctl",
    "p2pBandwidthLatencyTest",
    "ib_write_bw",
    "iperf3",
];

/// Checks that a tool can be missing.
fn check_installed(tool: &str) -> Result<(), String> {
    match tool == misbehaviour::NCCL_TESTS || tool_dispatch::NAMES.contains(&tool) {
        true => Ok(()),
        false => Err(format!("no tool `{tool}`; known are {}", tool_dispatch::NAMES.join(", "))),
    }
}

fn expand_domains(
    section: &str,
    domains: &[ScenarioDomain],
    lines: &ScenarioSourceMap,
) -> Result<Vec<ExpandedDomain>, String> {
    let mut groups = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, domain) in domains.iter().enumerate() {
        let at = format!("[[{section}]] `{}`", domain.name);
        let wrong = |key: &str, why: &str| {
            lines.error_at_key(&format!("{section}/{number}"), key, &format!("{at}: {why}"))
        };
        let hardware = platform::find_hardware(&domain.platform).ok_or_else(|| {
            let known = platform::platform_names().join(", ");
            wrong("platform", &format!("no platform `{}`; known are {known}", domain.platform))
        })?;
        let nodes =
            hostlist::expand(&domain.nodes).map_err(|why| wrong("nodes", &why.to_string()))?;
        if let Some(node) = nodes.iter().find(|node| !seen.insert((*node).clone())) {
            return Err(wrong("nodes", &format!("{node} is in two places")));
        }
        let gpus = domain.gpus_per_node.unwrap_or(hardware.gpus);
        if gpus == 0 || hardware.gpus < gpus {
            let why = format!("{gpus} GPUs per node, expected 1 to {}", hardware.gpus);
            return Err(wrong("gpus_per_node", &why));
        }
        let group = |name: &str, nodes, folded: &str| ExpandedDomain {
            name: name.to_owned(),
            section: number,
            nodes,
            folded: folded.to_owned(),
            hardware,
            gpus,
        };
        if domain.per_node {
            groups.extend(nodes.iter().map(|node| group(node, vec![node.clone()], node)));
        } else if domain.name.is_empty() {
            let why = format!("[[{section}]] {}: a name or per_node = true", domain.nodes);
            return Err(lines.error_at(&format!("{section}/{number}"), &why));
        } else {
            groups.push(group(&domain.name, nodes, &domain.nodes));
        }
    }
    let mut taken = BTreeSet::new();
    for group in &groups {
        let wrong = |why: &str| {
            let message = format!("[[{section}]] `{}`: {why}", group.name);
            Err(lines.error_at_key(&format!("{section}/{}", group.section), "name", &message))
        };
        if !taken.insert(&group.name) {
            return wrong("the name is taken");
        }
        if group.nodes == [group.name.clone()] {
            continue;
        }
        if seen.contains(&group.name) {
            return wrong("this is the name of a node");
        }
        // It becomes a folder name and appears in claims.toml.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if group.name.starts_with(['.', '-']) || !group.name.chars().all(is_plain) {
            return wrong("expected letters, digits, '.', '_', '-'");
        }
    }
    if groups.is_empty() {
        return Err(lines.error_at(section, &format!("no [[{section}]]")));
    }
    Ok(groups)
}

fn default_seed() -> u64 {
    1
}

fn default_readings() -> u32 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::SimFabric;

    const RACK: &str =
        "title = \"t\"\n[[domain]]\nname = \"r\"\nnodes = \"n[1-2]\"\nplatform = \"gb200-nvl72\"\n";

    #[test]
    fn claims_default_to_the_real_domains() {
        let scenario = Scenario::parse(RACK).expect("a good scenario");
        assert_eq!(scenario.claimed_domains(), scenario.real_domains());
        assert_eq!(scenario.real_domains().expect("groups")[0].gpus, 4);
    }

    #[test]
    fn semantic_errors_name_their_line() {
        let fails = |text: &str, expected: &str| {
            let scenario = Scenario::parse(text).map_err(|error| error.to_string());
            let error = scenario.and_then(|it| SimFabric::build(&it).map(drop)).expect_err(text);
            assert!(error.starts_with(expected), "{error}");
        };
        let with = |more: &str| format!("{RACK}{more}");
        fails(
            &RACK.replace("gb200-nvl72", "gb2000"),
            "line 5: [[domain]] `r`: no platform `gb2000`",
        );
        fails(&RACK.replace("n[1-2]", "n1,n1"), "line 4: [[domain]] `r`: n1 is in two places");
        fails(&with("gpus_per_node = 9\n"), "line 6: [[domain]] `r`: 9 GPUs per node");
        fails(&with("[[domain]]\nname=\"r\"\nnodes=\"m\"\nplatform=\"gh200\"\n"), "line 7: ");
        fails(&format!("readings = 0\n{RACK}"), "line 1: readings = 0: expected 1 to 1000");
        fails(&with("[noise]\ndip_rate = 2.0\nsigma = 0.01\n"), "line 7: noise.dip_rate = 2");
        fails(&with("[noise]\ndip_depth = [0.5, 0.1]\n"), "line 7: noise.dip_depth = [0.5, 0.1]");
        fails(&with("[tools]\nmissing = [\"x\"]\n"), "line 7: tools.missing: no tool `x`");
        fails(&with("[network]\nrails = 0\n"), "line 7: network.rails: expected 1 to 64");
        fails(&with("[[leaf]]\nname=\"l\"\nnodes=\"q\"\n"), "line 6: [[leaf]] `l`: no node `q`");
        let claim = "[[claim]]\nname=\"c\"\nnodes=\"m\"\nplatform=\"gb200-nvl72\"\n";
        fails(&with(claim), "line 6: claim `c` names m, which no [[domain]] has");
        let first = "[[fault]]\nkind=\"fabric-down\"\nnode=\"n1\"\n";
        let second = "[[fault]]\nkind=\"gpu-parked\"\ngpu=\"n1:7\"\n";
        let expected = "line 9: fault 2: no GPU `n1:7`: n1 has 4, in slots 0, 1, 2, 3";
        fails(&with(&format!("{first}{second}")), expected);
        let slow = "[[fault]]\nkind=\"power-cap\"\nnode=\"n1\"\nshare=7.0\n";
        fails(&with(slow), "line 9: fault 1: share = 7");
        let later = "[[later]]\nfrom_round = 2\nfault = { kind = \"fabric-down\", node = \"q\" }\n";
        fails(&with(later), "line 8: later 1: no node `q`");
        // A delayed fault that has begun counts as a normal fault on the same line.
        let scenario = Scenario::parse(&with(later)).expect("it makes sense so far");
        let age = BurnInAge { round: 2, ..BurnInAge::default() };
        let error = SimFabric::build(&scenario.at_age(age)).expect_err("no such node");
        assert!(error.starts_with("line 8: fault 1: no node `q`"), "{error}");
    }

    #[test]
    fn mistakes_end_in_one_sentence_that_names_them() {
        let fails = |text: &str, what: &str| {
            let message = Scenario::parse(text).expect_err(text).to_string();
            assert!(message.contains(what), "{message}");
        };
        fails(&RACK.replace("gb200-nvl72", "gb2000"), "no platform `gb2000`");
        fails(&RACK.replace("n[1-2]", "n[1-"), "never closed");
        fails(&RACK.replace("n[1-2]", "n1,n1"), "n1 is in two places");
        fails(&RACK.replace("title", "tittle"), "unknown field `tittle`");
        fails(
            &format!("{RACK}[[claim]]\nname=\"c\"\nnodes=\"m\"\nplatform=\"gb200-nvl72\"\n"),
            "names m, which no [[domain]] has",
        );
        fails(
            &format!("{RACK}[[fault]]\nkind=\"truncated\"\nscope=\"r\"\ntool=\"nvband\"\n"),
            "no tool `nvband`",
        );
        fails(&format!("{RACK}[[fault]]\nkind=\"lost-link\"\n"), "unknown variant `lost-link`");
        fails(&RACK.replace("\"r\"", "\"../x\""), "expected letters, digits");
        fails(&RACK.replace("\"r\"", "\"n1\""), "this is the name of a node");
        let again = "[[domain]]\nname=\"r\"\nnodes=\"m1\"\nplatform=\"gb200-nvl72\"\n";
        fails(&format!("{RACK}{again}"), "the name is taken");
        fails(&format!("readings=0\n{RACK}"), "expected 1 to 1000");
    }

    #[test]
    fn faults_that_would_do_nothing_or_leave_nothing_are_refused() {
        let fails = |fault: &str, what: &str| {
            let text = format!("{RACK}[[fault]]\n{fault}\n");
            let message = Scenario::parse(&text).expect_err(&text).to_string();
            assert!(message.contains(": fault 1: ") && message.contains(what), "{message}");
        };
        fails("kind=\"power-cap\"\nnode=\"n1\"\nshare=0.0", "expected 0.001 to 1");
        fails("kind=\"drift\"\ngpu=\"n1:0\"\nshare=0.5", "each of six readings");
        for depth in ["[1.0, 1.0]", "[2.0, 2.0]", "[0.4, 0.1]", "[nan, nan]"] {
            let dips = format!("kind=\"dips\"\ngpu=\"n1:0\"\nrate=1.0\ndepth={depth}");
            fails(&dips, "smallest, largest");
        }
        fails("kind=\"tool-error\"\nnode=\"n1\"\ntestcase=\"nosuch\"", "no test `nosuch`");
        let setting = |value: &str| {
            format!(
                "kind=\"nccl-setting\"\nscope=\"r\"\nname=\"NCCL_NVLS_ENABLE\"\nvalue=\"{value}\""
            )
        };
        fails(&setting("1"), "NCCL_NVLS_ENABLE=0");
        fails("kind=\"slow-pair\"\na=\"n1:0\"\nb=\"n1:0\"\nshare=0.5", "expected two");
        fails(
            "kind=\"truncated\"\nscope=\"r\"\ntool=\"nvbandwidth\"\nshare=1.5",
            "expected 0 to 1",
        );
        let good = format!("{RACK}[[fault]]\n{}\n", setting("0"));
        assert!(Scenario::parse(&good).is_ok());
    }
}
