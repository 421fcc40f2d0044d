//! The meaning of the classes of findings, and the advice about them: the one table behind
//! terminal, page, JUnit and explanations.
//!
//! The judge decides the class of a finding; nothing is decided here. A class of another version
//! still gives a complete sentence.

use std::collections::BTreeSet;

use super::plain_text::clip;
use model::finding_class::FindingClass;
use model::verdict::{Finding, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClassText {
    /// A title of a few words.
    title: &'static str,
    /// The predicate for one part, at the end of a sentence.
    one: &'static str,
    /// The predicate for several parts.
    many: &'static str,
    next: &'static str,
}

const fn new_text(
    title: &'static str,
    [one, many]: [&'static str; 2],
    next: &'static str,
) -> ClassText {
    ClassText { title, one, many, next }
}

/// The text of every class of the judge. The advice names commands of the vendor's own tools, and
/// none of them changes anything.
#[expect(clippy::too_many_lines, reason = "an arm for each class")]
fn find_text(class: &FindingClass) -> Option<ClassText> {
    Some(match class {
        FindingClass::DataCorruption => new_text(
            "wrong data",
            ["returns wrong data", "return wrong data"],
            "Take it out of use now and distrust what was computed there. Run `dcgmi diag -r 3` \
             and check \
         for Xid messages in `dmesg`; return it only after a repair and a clean run.",
        ),
        FindingClass::ToolError => new_text(
            "errors from the GPU libraries",
            [
                "ends tests with errors of its GPU libraries",
                "end tests with errors of their GPU libraries",
            ],
            "Read the error under evidence and check for Xid messages in `dmesg` at that time. If \
             the error is an import across nodes, check IMEX first (`nvidia-imex-ctl -N`). \
             Measure again after a reset.",
        ),
        FindingClass::GpuMissing => new_text(
            "GPU missing",
            ["has fewer GPUs than claimed", "have fewer GPUs than claimed"],
            "Compare `nvidia-smi -L` and `lspci` with the claim: a GPU that is in neither fell \
             off the bus, one only in `lspci` has a driver fault (`dmesg`). If the claim is \
             wrong, correct it.",
        ),
        FindingClass::DiagnosticFailed => new_text(
            "diagnostic failed",
            ["failed a hardware diagnostic", "failed a hardware diagnostic"],
            "Follow the diagnostic's message under evidence, and run it once more (`dcgmi diag -r \
             3`) before a repair.",
        ),
        FindingClass::NvlinkAbsent => new_text(
            "no NVLink",
            ["has no working NVLink", "have no working NVLink"],
            "Check `nvidia-smi nvlink -s`, the Fabric block of `nvidia-smi -q` and the fabric \
             manager's log. Reset the GPU or reboot the node; if the links stay down, it needs a \
             repair.",
        ),
        FindingClass::NvlinkInactive => new_text(
            "NVLinks inactive",
            ["has NVLinks that are inactive", "have NVLinks that are inactive"],
            "`nvidia-smi nvlink -s` names the inactive links and `nvidia-smi nvlink -e` their \
             errors. Reset the GPU or reboot the node; if the same links stay down, it needs a \
             repair (connector, cable, switch port).",
        ),
        FindingClass::NvlinkRate => new_text(
            "NVLink below its rate",
            [
                "has NVLinks that trained below their rate",
                "have NVLinks that trained below their rate",
            ],
            "Compare the rates in `nvidia-smi nvlink -s` with those of a healthy GPU. Retrain the \
             links by a GPU reset or reboot; if the same link is slow again, it needs a repair.",
        ),
        FindingClass::NvlinkLow => new_text(
            "NVLink slow",
            ["is below what its NVLinks must deliver", "are below what their NVLinks must deliver"],
            "Check `nvidia-smi nvlink -s` and `nvidia-smi nvlink -e` of the part for inactive \
             links and errors. Reset or reboot and measure again; if it stays low by the same \
             share, it needs a repair.",
        ),
        FindingClass::PcieP2pLow => new_text(
            "PCIe between GPUs slow",
            [
                "is below what PCIe between GPUs must deliver",
                "are below what PCIe between GPUs must deliver",
            ],
            "Compare PCIe generation and width under load with their maxima (`nvidia-smi -q`), \
             and check \
         for access control (ACS) that sends peer traffic through the CPU (`lspci -vvv`).",
        ),
        FindingClass::HostLinkLow => new_text(
            "host link slow",
            ["copies too slowly to or from host memory", "copy too slowly to or from host memory"],
            "Compare generation and width of the host link under load with their maxima \
             (`nvidia-smi -q`), \
         and check that the test ran on the CPU next to the GPU (`nvidia-smi topo -m`). If lanes are \
         missing, reseat or repair.",
        ),
        FindingClass::LocalCopyLow => new_text(
            "memory slow",
            ["copies too slowly inside itself", "copy too slowly inside themselves"],
            "Check clocks, throttle reasons and ECC state of the GPU (`nvidia-smi -q`); measure \
             again when idle.",
        ),
        FindingClass::P2pLow => new_text(
            "GPU pairs slow",
            ["is below the other GPUs", "are below the other GPUs"],
            "Specify the platform (`--platform`, or `platform` in claims.toml), so that the path \
             between the GPUs is known; `nvidia-smi topo -m` shows it.",
        ),
        FindingClass::NicLow => new_text(
            "NIC slow",
            ["is below its rate", "are below their rate"],
            "Read rate, state and error counters of the port, and the PCIe generation and width \
             of the NIC; \
         compare with the switch port at the other end of the cable.",
        ),
        FindingClass::NicUnreachable => new_text(
            "NIC not reached",
            ["is not reached over the network", "are not reached over the network"],
            "Check the port there first: state, address and counters (`ip -s link`), the cable, \
             the switch \
         port, then firewall and routes. Its partners reach each other.",
        ),
        FindingClass::PathLow => new_text(
            "path between nodes slow",
            ["is slow, its ends with each other only", "are slow, their ends with each other only"],
            "Measure both ends with other partners: if they are fine, check the switch ports and \
             routes between them, and drops and retransmissions (`ip -s link`, `nstat`).",
        ),
        FindingClass::LeafLow => new_text(
            "leaf switch slow to others",
            ["is slow to other leaves", "are slow to other leaves"],
            "Check the uplinks of the leaf: links that are down or slow, errors, how flows are \
             spread. \
         Draining its nodes repairs nothing.",
        ),
        FindingClass::NetworkLow => new_text(
            "network slow everywhere",
            ["is slow everywhere on the network", "are slow everywhere on the network"],
            "Check for one cause above the nodes: the claimed NIC class, MTU, the switches, or a \
             probe with too few streams or too little CPU.",
        ),
        FindingClass::FabricState => new_text(
            "not registered with the fabric",
            ["is not registered with the fabric", "are not registered with the fabric"],
            "Read State and Status in the Fabric block of `nvidia-smi -q` and the fabric \
             manager's log; \
         restart the fabric manager or the node, and wait for Completed and Success.",
        ),
        FindingClass::AllLowAlike => new_text(
            "everything low alike",
            ["is low everywhere by the same share", "are low everywhere by the same share"],
            "Check for a common cause: clocks and power limits (`nvidia-smi -q -d CLOCK,POWER`), \
             the driver, the claimed platform, the version of the tool. Draining nodes repairs \
             nothing, and no node is drained while it lasts; if the cause is known and permanent, \
             state the level: `fabricgate thresholds measured RUN`.",
        ),
        FindingClass::Drifting => new_text(
            "slower from reading to reading",
            ["gets slower from reading to reading", "get slower from reading to reading"],
            "Read temperature, clocks and throttle reasons under load (`nvidia-smi -q -d \
             TEMPERATURE,CLOCK,PERFORMANCE`) \
         and measure again after some minutes: its level counts when it has settled.",
        ),
        FindingClass::Unstable => new_text(
            "readings scatter",
            ["scatters far more than the others", "scatter far more than the others"],
            "Check for disturbances of the test (other processes, ECC and link errors, \
             throttling) and measure again with more readings on an idle node.",
        ),
        FindingClass::MnnvlOff => new_text(
            "collective not over NVLink",
            ["runs collectives over NICs, not NVLink", "run collectives over NICs, not NVLink"],
            "One rank whose fabric state is not Completed turns multi-node NVLink off for all: \
             compare State, \
         ClusterUUID and CliqueId of every GPU, IMEX (`nvidia-imex-ctl -N`), and \
         NCCL_MNNVL_ENABLE.",
        ),
        FindingClass::NvlsOff => new_text(
            "switches do not reduce",
            [
                "runs collectives without reduction in the switch",
                "run collectives without reduction in the switch",
            ],
            "Check NCCL_NVLS_ENABLE and NCCL_ALGO, and multicast support in the NCCL INFO lines \
             of every rank; the fabric manager must support multicast.",
        ),
        FindingClass::MatrixContradicted => new_text(
            "two tools disagree",
            [
                "is measured low by one tool and as expected by another",
                "are measured low by one tool and as expected by another",
            ],
            "Measure both again in one run, with the same GPUs and no other load. The result that \
             repeats counts; until then no action follows.",
        ),
        FindingClass::StaleClique => new_text(
            "clique is stale",
            [
                "shows another clique than the nodes it reaches",
                "show other cliques than the nodes they reach",
            ],
            "Read ClusterUUID and CliqueId of every GPU (`nvidia-smi -q`, Fabric) and compare \
             with the node's label. Restart the program that writes the label, or the fabric \
             manager if the driver itself is wrong, and measure again: jobs that key on the \
             clique do not use the node until then.",
        ),
        FindingClass::MergedCliques => new_text(
            "one clique, two fabrics",
            [
                "shares its clique with nodes it does not reach",
                "share their clique with nodes they do not reach",
            ],
            "Two domains that do not reach each other show one ClusterUUID and CliqueId. Give \
             each its own \
         (partition and IMEX configuration of the fabric manager); until then keep jobs that key on \
         the clique inside one claimed domain.",
        ),
        FindingClass::ClaimedApart => new_text(
            "claimed as two domains, measured as one",
            [
                "reaches a domain outside its claimed one",
                "reach domains outside their claimed ones",
            ],
            "Nothing is broken: correct the topology that the scheduler reads (blocks, labels) if \
             the domains \
         are meant to be one.",
        ),
        FindingClass::CliqueShared => new_text(
            "one clique, two claims",
            [
                "shows the clique of a domain outside its claimed one",
                "show the clique of a domain outside their claimed ones",
            ],
            "Copy between one node of each domain (nvbandwidth over both). At NVLink speed they \
             are one domain, and the claim splits it; otherwise two fabrics share the clique, and \
             programs that key on it merge them.",
        ),
        FindingClass::NoisyEverywhere => new_text(
            "readings scatter everywhere",
            ["scatters uniformly", "scatter uniformly"],
            "No part is to blame: check for other work on GPUs and network, clocks that are not \
             locked, and the tool's version. Measure one pair on idle nodes: if its readings \
             agree, the load was the cause.",
        ),
        FindingClass::BelowOwnHistory => new_text(
            "slower than before",
            ["is slower than before", "are slower than before"],
            "Check for changes since the runs it is compared with: driver, firmware, clocks, \
             power limits, a reseated cable or tray. If there are none, measure again; a part \
             that stays low is wearing out.",
        ),
        FindingClass::FabricHealth => new_text(
            "driver reports bad fabric health",
            ["is unhealthy according to its driver", "are unhealthy according to their drivers"],
            "Read the Health block of `nvidia-smi -q`: it lists the driver's observations \
             (bandwidth, route). Degraded bandwidth indicates lost links (`nvidia-smi nvlink \
             -s`), an unhealthy route the switches.",
        ),
        FindingClass::FabricConfiguration => new_text(
            "fabric configured wrongly",
            ["is configured wrongly in the fabric", "are configured wrongly in the fabric"],
            "Read Incorrect Configuration in the Health block of `nvidia-smi -q`, and compare the \
             partition \
         and fabric configuration of the domain with the one intended.",
        ),
        FindingClass::FabricNotConfigured => new_text(
            "traffic not on NVLink",
            [
                "moves data between its GPUs, but not over NVLink",
                "move data between their GPUs, but not over NVLink",
            ],
            "Check that the fabric manager runs and has completed (`systemctl status \
             nvidia-fabricmanager`; Fabric block of `nvidia-smi -q`). Active links prove nothing \
             here. Restart it or the node and measure again.",
        ),
        FindingClass::SplitNode => new_text(
            "node split",
            [
                "is split: its GPUs reach each other only in groups",
                "are split: their GPUs reach each other only in groups",
            ],
            "Compare the groups with partitions of the fabric manager and with MIG or \
             virtualisation \
         settings. A group per baseboard half points to the switches between them.",
        ),
        FindingClass::SplitDomain => new_text(
            "domain split",
            [
                "is split: its nodes reach each other over NVLink only in groups",
                "are split: their nodes reach each other over NVLink only in groups",
            ],
            "Compare ClusterUUID and CliqueId of all nodes (`nvidia-smi -q`). If they differ, the \
             claim or \
         the partition is wrong; if not, check IMEX and the switches. Do not schedule one job over \
         all of it meanwhile.",
        ),
        FindingClass::MultiNodeNvlinkOff => new_text(
            "no NVLink between nodes",
            ["has no NVLink between its nodes", "have no NVLink between their nodes"],
            "Check IMEX on every node (`nvidia-imex-ctl -N`), its list of nodes and its channels, \
             then ClusterUUID and CliqueId in `nvidia-smi -q`. NVLink inside the nodes may be \
             healthy.",
        ),
        FindingClass::WrongDomain => new_text(
            "not in the claimed domain",
            [
                "is not a member of the domain that claims it",
                "are not members of the domain that claims them",
            ],
            "Compare its ClusterUUID and CliqueId (`nvidia-smi -q`) with those of the others, \
             find the \
         domain it is in, and correct label or topology. If it belongs here, check cabling and the \
         switch partition.",
        ),
        FindingClass::CliqueMixed => new_text(
            "GPUs in several cliques",
            ["has GPUs in several cliques", "have GPUs in several cliques"],
            "Compare CliqueId GPU by GPU (`nvidia-smi -q`). After a change of partitions the node \
             needs a \
         reboot; otherwise the switch partition is wrong.",
        ),
        FindingClass::ImexPeerMissing => new_text(
            "missing from IMEX",
            ["is missing from its IMEX domain", "are missing from their IMEX domain"],
            "On that node: `systemctl status nvidia-imex`, its log, its list of nodes, and \
             whether its port \
         is reachable; then `nvidia-imex-ctl -N` anywhere.",
        ),
        FindingClass::ImexDomain => new_text(
            "IMEX not up",
            ["is not fully up in IMEX", "are not fully up in IMEX"],
            "`nvidia-imex-ctl -N` names the members that are not READY. Start there (`systemctl \
             status \
         nvidia-imex`, log, list of nodes); all members need the same list.",
        ),
        FindingClass::PlaneLow => new_text(
            "switch plane out or slow",
            ["is out or slow for all nodes", "are out or slow for all nodes"],
            "Check the switches, not the nodes, for a switch or plane with its ports down. \
             Draining nodes repairs nothing here.",
        ),
        FindingClass::DomainLow => new_text(
            "slow everywhere",
            ["is slow everywhere", "are slow everywhere"],
            "Check for one cause above the nodes: clocks and power limits (`nvidia-smi -q`), \
             driver, or an \
         expectation made for another platform.",
        ),
        FindingClass::AboveNominal => new_text(
            "faster than possible",
            ["reads more than the links can carry", "read more than the links can carry"],
            "Check the numbers first: the claimed platform (`--platform`), and the quantity that \
             the tool measures.",
        ),
        FindingClass::CollectiveLow => new_text(
            "collective slow",
            ["runs collectives below what is expected", "run collectives below what is expected"],
            "Settle findings about GPUs and nodes first: one slow part slows all. If there are \
             none, compare \
         NCCL version, algorithm and settings with those of the expectation.",
        ),
        FindingClass::CollectiveFallback => new_text(
            "collective far too slow",
            [
                "runs collectives far too slowly for NVLink",
                "run collectives far too slowly for NVLink",
            ],
            "Run it once more with `NCCL_DEBUG=INFO` and read the transport in its log. Settle \
             findings about GPUs, nodes and IMEX first: one part without NVLink moves all to the \
             network.",
        ),
        // docs/claims.md covers disagreements between sources.
        FindingClass::ClaimLabelContradicted
        | FindingClass::ClaimBeliefBeyondMeasured
        | FindingClass::Claim(_)
        | FindingClass::Other(_) => return None,
    })
}

/// Whether this table has a class.
pub(super) fn is_known(class: &FindingClass) -> bool {
    find_text(class).is_some()
}

/// A title of a few words; for an unknown class, the class itself.
pub(super) fn class_title(class: &FindingClass) -> String {
    find_text(class)
        .map_or_else(|| clip(class.as_str(), 60).replace('-', " "), |words| words.title.to_owned())
}

/// The predicate for one or several parts of this class, at the end of a sentence.
pub(super) fn class_predicate(class: &FindingClass, outcome: Outcome, one: bool) -> String {
    if let Some(words) = find_text(class) {
        return if one { words.one } else { words.many }.to_owned();
    }
    let verb = match (outcome, one) {
        (Outcome::Failed, true) => "has failed",
        (Outcome::Failed, false) => "have failed",
        (Outcome::Degraded, true) => "is degraded",
        (Outcome::Degraded, false) => "are degraded",
        (_, true) => "is in doubt",
        (_, false) => "are in doubt",
    };
    format!("{verb} ({})", class_title(class))
}

/// The advice for a class, if it has any.
pub(super) fn class_advice(class: &FindingClass) -> Option<&'static str> {
    find_text(class).map(|words| words.next)
}

/// The advice for all classes of some findings, each once, in their order.
pub(super) fn collect_advice(findings: &[Finding]) -> Vec<(&'static str, &'static str)> {
    let mut seen = BTreeSet::new();
    let first = findings.iter().filter(|f| seen.insert(&f.class));
    first.filter_map(|f| find_text(&f.class)).map(|w| (w.title, w.next)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known_classes() -> impl Iterator<Item = (&'static FindingClass, ClassText)> {
        FindingClass::LISTED.iter().filter_map(|class| Some((class, find_text(class)?)))
    }

    #[test]
    fn every_class_has_a_singular_and_a_plural_text() {
        for class in FindingClass::LISTED {
            let is_claim = class.as_str().starts_with("claim-");
            assert_eq!(is_known(class), !is_claim, "{class}");
        }
        for (_, words) in known_classes() {
            for text in [words.title, words.one, words.many] {
                assert!(!text.ends_with('.') && text.len() < 70, "{text}");
            }
            assert!(words.next.ends_with(['.', '?']), "{}", words.next);
            assert!(words.next.matches('`').count() % 2 == 0, "{}", words.next);
        }
    }

    #[test]
    fn the_judge_gives_every_class() {
        let judge = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("src/engine/judge");
        let mut given = String::new();
        for entry in std::fs::read_dir(judge).expect("the judge's sources") {
            let path = entry.expect("a file").path();
            let is_source = path.extension().is_some_and(|e| e == "rs");
            // The judge's class table names all of them.
            if is_source && path.file_name().is_some_and(|name| name != "class_traits.rs") {
                given.push_str(&std::fs::read_to_string(path).expect("a source"));
            }
        }
        let words: BTreeSet<&str> =
            given.split(|c: char| !c.is_ascii_alphanumeric() && c != ':').collect();
        let is_given = |class: &&FindingClass| words.contains(&*format!("FindingClass::{class:?}"));
        let missing: Vec<_> = FindingClass::LISTED.iter().filter(|it| !is_given(it)).collect();
        assert!(missing.is_empty(), "the judge has none of these classes: {missing:?}");
    }

    #[test]
    fn every_class_is_on_the_page_of_findings_with_this_text() {
        const BEGIN: &str = "<!-- classes, from src/engine/report/class_text.rs -->\n";
        const END: &str = "<!-- end of classes -->";
        let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("docs/findings.md");
        let page = std::fs::read_to_string(&path).expect("docs/findings.md");
        let (before, rest) = page.split_once(BEGIN).expect("its begin");
        let (listed, after) = rest.split_once(END).expect("its end");
        let one = |(class, it): (&FindingClass, ClassText)| {
            format!("\n### `{class}`: {}\n\nThe part {}.\n\n{}\n", it.title, it.one, it.next)
        };
        let made = format!("{}\n", known_classes().map(one).collect::<String>());
        if std::env::var_os("UPDATE_REPORTS").is_some() {
            let page = format!("{before}{BEGIN}{made}{END}{after}");
            std::fs::write(&path, page).expect("the folder is writable");
            return;
        }
        assert!(listed == made, "docs/findings.md is old; run with UPDATE_REPORTS=1");
    }

    #[test]
    fn an_unknown_class_is_still_a_sentence() {
        let class = FindingClass::from_name("gremlin-seen");
        assert_eq!(class_predicate(&class, Outcome::Failed, true), "has failed (gremlin seen)");
        assert_eq!(class_title(&class), "gremlin seen");
        assert_eq!(class_advice(&class), None);
    }
}
