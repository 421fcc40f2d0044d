//! No pass without a measurement across the claimed domain: random fleets, wrong claims about
//! them, measured parts of them, under every profile.
//!
//! The real connections decide, and neither judge nor simulator computes them. Seeds are fixed;
//! `FABRICGATE_SCOPE_CASES` runs more cases than the default.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

use crate::place::Place;

/// Cases by default.
const CASES: u64 = 48;

/// Seeds that once passed a node wrongly, run each time.
const AGAIN: [u64; 1] = [9949];

/// `SplitMix64`.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % most as u64).expect("below a usize")
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A fleet: the real and the claimed places of nodes.
struct Fleet {
    /// The real rack of each node; a box whose NVLink ends at the node is alone.
    racks: BTreeMap<String, usize>,
    /// The block that claims each node.
    blocks: BTreeMap<String, String>,
    /// True if NVLink joins nodes.
    spans: bool,
    /// True if rails are claimed.
    rails: bool,
    /// Nodes that reach no other node: by IMEX, or with no NIC.
    apart: BTreeSet<String>,
}

impl Fleet {
    fn new(chance: &mut Chance) -> Self {
        let spans = chance.below(3) != 0;
        let nodes = 1 + chance.below(if spans { 8 } else { 4 });
        let names: Vec<String> = (1..=nodes).map(|at| format!("n{at}")).collect();
        let wrong = chance.below(4);
        let moved: BTreeSet<usize> = match wrong {
            0 => BTreeSet::new(),
            1 => [chance.below(nodes)].into(),
            2 => (0..nodes).filter(|_| chance.below(2) == 0).collect(),
            _ => (0..nodes / 2).collect(),
        };
        let rack = |at: usize| match spans {
            true => usize::from(moved.contains(&at)),
            false => at,
        };
        let apart = chance.below(4) == 0 && 1 < nodes;
        let apart = apart.then(|| names[chance.below(nodes)].clone());
        // Some of them are claimed as a separate block.
        let second = if chance.below(3) == 0 { chance.below(nodes) } else { nodes };
        let block = |at: usize| match (spans, at < second) {
            (false, _) => format!("box{at}"),
            (true, true) => "block1".to_owned(),
            (true, false) => "block2".to_owned(),
        };
        Self {
            racks: names.iter().enumerate().map(|(at, it)| (it.clone(), rack(at))).collect(),
            blocks: names.iter().enumerate().map(|(at, it)| (it.clone(), block(at))).collect(),
            spans,
            rails: !spans,
            apart: apart.into_iter().collect(),
        }
    }

    fn platform(&self) -> &'static str {
        if self.spans { "gb200-nvl72" } else { "hgx-h100" }
    }

    fn sections(groups: &BTreeMap<String, Vec<&str>>, platform: &str, gpus: usize) -> String {
        groups.iter().fold(String::new(), |mut text, (name, nodes)| {
            let nodes = nodes.join(",");
            write!(
                text,
                "[[domain]]\nname = \"{name}\"\nnodes = \"{nodes}\"\nplatform = \"{platform}\"\n\
                 gpus_per_node = {gpus}\n"
            )
            .expect("a string");
            text
        })
    }

    /// The real fleet as a scenario.
    fn scenario(&self, seed: u64) -> String {
        let mut racks: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (node, rack) in &self.racks {
            racks.entry(format!("rack{rack}")).or_default().push(node);
        }
        let gpus = if self.spans { 4 } else { 8 };
        let mut text = format!("title = \"random\"\nseed = {seed}\n[noise]\nsigma = 0.002\n");
        if self.rails {
            text += "[network]\nrails = 2\n";
        }
        text += &Self::sections(&racks, self.platform(), gpus);
        for node in &self.apart {
            text += &match self.spans {
                true => format!("[[fault]]\nkind = \"imex-peer-missing\"\nnode = \"{node}\"\n"),
                false => format!("[[fault]]\nkind = \"rail-down\"\nnode = \"{node}\"\nrail = 1\n"),
            };
        }
        text
    }

    /// The claims about it.
    fn claims(&self) -> String {
        let mut blocks: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (node, block) in &self.blocks {
            blocks.entry(block.clone()).or_default().push(node);
        }
        let mut text = Self::sections(&blocks, self.platform(), if self.spans { 4 } else { 8 });
        if self.rails {
            text += "[[rail]]\nname = \"rail0\"\nrdma = \"mlx5_0\"\n\
                     [[rail]]\nname = \"rail1\"\nrdma = \"mlx5_1\"\n";
        }
        text
    }

    /// The nodes that this node's claim connects it with.
    fn claimed_with(&self, node: &str) -> BTreeSet<&str> {
        let other = |it: &&String| it.as_str() != node;
        if self.spans {
            let block = &self.blocks[node];
            let of_block = self.blocks.iter().filter(|(_, it)| *it == block).map(|(it, _)| it);
            return of_block.filter(other).map(String::as_str).collect();
        }
        self.blocks.keys().filter(other).map(String::as_str).collect()
    }

    /// Why it must not pass, where `took_part` was measured; with `all` the program chose the
    /// partners, so that most of the claim has to be connected, and not only most of the measured
    /// nodes.
    fn must_not_pass(&self, node: &str, took_part: &BTreeSet<String>, all: bool) -> Option<String> {
        let claimed = self.claimed_with(node);
        if claimed.is_empty() {
            return None;
        }
        let here: BTreeSet<&str> =
            claimed.iter().copied().filter(|it| took_part.contains(*it)).collect();
        if here.is_empty() {
            return Some("no other node of its claim took part".to_owned());
        }
        if self.apart.contains(node) {
            return Some("it reaches no other node".to_owned());
        }
        if !self.spans {
            return None;
        }
        let among = if all { &claimed } else { &here };
        let with = among.iter().filter(|it| self.racks[**it] == self.racks[node]).count();
        (with < among.len() - with)
            .then(|| format!("{with} of {} others are in its rack", among.len()))
    }
}

/// Counts over all cases.
#[derive(Debug, Default)]
struct Counts {
    passed: usize,
    refused: usize,
    wrong: Vec<String>,
}

fn case(seed: u64, counts: &mut Counts) {
    let mut chance = Chance(seed);
    let fleet = Fleet::new(&mut chance);
    let place = Place::with(
        &fleet.scenario(seed),
        "claims = \"claims.toml\"\nrun_dir = \"runs\"\n[confirm]\nwait_s = 0\n\
         [launcher]\nkind = \"sim\"\nscenario = \"rack.toml\"\nworkers = false\n",
    );
    place.put("claims.toml", &fleet.claims());
    let profile = chance.one_of(&["admit", "audit", "recertify", "burn-in"]);
    let mut words = vec![profile, "--json", "--no-progress"];
    let nodes: Vec<&str> =
        fleet.racks.keys().map(String::as_str).filter(|_| chance.below(3) == 0).collect();
    let options: &[&str] = chance.one_of(&[
        &[],
        &[],
        &[],
        &["--partners", "0"],
        &["--partners", "1"],
        &["--with-domain"],
    ]);
    let list = nodes.join(",");
    if list.is_empty() {
        // A fleet must be requested explicitly where that is needed.
        if profile == "recertify" {
            return;
        }
    } else {
        words.push(&list);
        words.extend(options);
    }
    let output = place.run(&words);
    let document: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|error| panic!("seed {seed}: {error}: {}{}", output.stdout, output.stderr));
    let verdicts = document["verdicts"]["nodes"].as_array().expect("nodes");
    let name = |it: &Value| it["node"].as_str().expect("a name").to_owned();
    let took_part: BTreeSet<String> = verdicts.iter().map(name).collect();
    for verdict in verdicts {
        let node = name(verdict);
        // A partner is not measured with its whole claim; the node that it helps is.
        let is_named = nodes.is_empty() || nodes.contains(&node.as_str());
        let all = is_named && !options.contains(&"--partners");
        let why = fleet.must_not_pass(&node, &took_part, all);
        match (verdict["outcome"] == "pass", why) {
            (true, Some(why)) => counts.wrong.push(format!(
                "seed {seed}: {} passes {node}: {why}\n{}\n{}",
                words.join(" "),
                fleet.scenario(seed),
                fleet.claims()
            )),
            (true, None) => {
                counts.passed += 1;
                let scope = &verdict["scope"];
                let crossed = if fleet.spans { &scope["domain"] } else { &scope["network"] };
                let alone = fleet.claimed_with(&node).is_empty();
                if !alone && crossed.is_null() {
                    counts.wrong.push(format!("seed {seed}: {node} passes with {scope}"));
                }
            }
            (false, Some(_)) => counts.refused += 1,
            (false, None) => {}
        }
    }
}

#[test]
fn no_node_passes_without_a_measurement_across_its_claimed_domain() {
    let asked = std::env::var("FABRICGATE_SCOPE_CASES").ok();
    let cases = asked.and_then(|it| it.parse().ok()).unwrap_or(CASES);
    let mut counts = Counts::default();
    for seed in (1..=cases).chain(AGAIN) {
        case(seed, &mut counts);
    }
    eprintln!("{cases} cases: {} passes, {} refused", counts.passed, counts.refused);
    assert!(counts.wrong.is_empty(), "{} wrong:\n{}", counts.wrong.len(), counts.wrong.join("\n"));
    // A judge that passes nothing, or fleets without anything to refuse, prove nothing.
    let cases = usize::try_from(cases).expect("a count");
    assert!(cases / 2 < counts.passed && cases / 2 < counts.refused, "{counts:?}");
}
