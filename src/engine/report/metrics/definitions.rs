//! Every gauge of the state: its name, unit, labels and meaning, in one place for the text, the
//! documentation and the tests.

use super::exposition::MetricDefinition;

macro_rules! meanings {
    ($($id:ident = $name:literal, $unit:expr, [$($label:literal),*], $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $id: MetricDefinition =
                MetricDefinition { name: $name, unit: $unit, help: $help, labels: &[$($label),*] };
        )*

        /// All gauges, in display order.
        pub static ALL: &[&MetricDefinition] = &[$(&$id),*];
    };
}

const SECONDS: Option<&str> = Some("seconds");
const RATIO: Option<&str> = Some("ratio");

meanings! {
    WRITTEN = "state_written_timestamp", SECONDS, [],
        "When these numbers were put together";
    SIMULATED = "state_simulated", None, [],
        "1 where these numbers come from runs of a simulated fabric or from stored runs, and no hardware was measured";
    VERSION = "state_info", None, ["version"],
        "The version of fabricgate that put these numbers together";
    NODES = "nodes_by_verdict", None, ["verdict"],
        "Known nodes by the verdict of the newest run that judged them; a node that no run judged is unknown";
    LEFT_OUT = "nodes_left_out", None, [],
        "Known nodes that have no series of their own here, because there are more nodes than the configured limit";
    VERDICT = "node_verdict", None, ["node", "domain", "verdict"],
        "1 for the verdict of the newest run that judged the node; unknown where none did";
    MEASURED = "node_measured_timestamp", SECONDS, ["node"],
        "When the newest run that judged the node was made";
    WORST = "node_worst", RATIO, ["node", "class"],
        "The lowest cell of the node, as a share of what the platform must show, by kind of path";
    DETECTABLE = "node_detectable_degradation", RATIO, ["node"],
        "The smallest degradation that the newest run could detect on the node, as a share";
    ISSUED = "node_certificate_issued_timestamp", SECONDS, ["node"],
        "When the run behind the node's certificate was made";
    EXPIRES = "node_certificate_expires_timestamp", SECONDS, ["node"],
        "Until when the node's certificate counts, unless it is void";
    VOID = "node_certificate_void", None, ["node"],
        "1 where the node's certificate was declared void before its time";
    ALARMS = "node_drift_alarms", None, ["node"],
        "Tests in which the node left for the worse what the history knows as usual for it, and nothing has ended that";
    DOMAIN_ALARMS = "domain_drift_alarms", None, ["domain"],
        "Tests in which the level of the domain left for the worse what the history knows as usual for it, and nothing has ended that";
    FIRST_END = "certificates_first_expiry_timestamp", SECONDS, [],
        "When the first of all certificates that count now expires";
    COUNTED = "certificates_on_disk", None, ["state"],
        "Certificates by what their file says: counting, expired, void";
    RUN_AT = "last_run_timestamp", SECONDS, ["profile"],
        "When the last run of the profile was made";
    RUN_TOOK = "last_run_duration", SECONDS, ["profile"],
        "How long the last run of the profile took, from its plan to its end";
    RUN_VERDICT = "last_run_verdict", None, ["profile", "verdict"],
        "1 for the overall verdict of the last run of the profile";
    RUN_COMPLETE = "last_run_complete", None, ["profile"],
        "1 where the last run of the profile tried all that it had planned";
    RUN_NODES = "last_run_nodes", None, ["profile", "verdict"],
        "Nodes of the last run of the profile, by verdict";
    RUN_FINDINGS = "last_run_findings", None, ["profile", "class", "verdict"],
        "Findings of the last run of the profile, by class and verdict";
    RUN_UNKNOWNS = "last_run_unknowns", None, ["profile"],
        "Things that the last run of the profile could not tell, each with its reason in the report";
    RUN_DETECTABLE = "last_run_detectable_degradation", RATIO, ["profile"],
        "The largest of the smallest degradations that the last run of the profile could detect on a node";
    RUN_FROZEN = "last_run_frozen", None, ["profile"],
        "1 where the last run of the profile proposed nothing because of a common cause, a doubtful instrument or the breaker";
    CONCLUSIVE_AT = "last_conclusive_run_timestamp", SECONDS, ["profile"],
        "When the last complete run of the profile was made that came to a verdict other than unknown";
    PASSED_AT = "last_passing_run_timestamp", SECONDS, ["profile"],
        "When the last complete run of the profile was made that passed";
    BUDGET_LEFT = "budget_left_nodes", None, ["budget"],
        "Nodes that the budget still allows";
    BUDGET_LIMIT = "budget_limit_nodes", None, ["budget"],
        "Nodes that the budget allows in all";
    BREAKER = "breaker_tripped", None, [],
        "1 where nothing but releases is carried out until a person resets the breaker";
    PAUSED = "gate_paused", None, [],
        "1 while a person has paused the gate: nothing is drained or measured";
    DRAINS = "drains_outstanding", None, [],
        "Drains of ours that stand";
    OPEN = "actions_open", None, [],
        "Actions without an outcome";
    TROUBLES = "state_troubles", None, [],
        "Run folders, certificates, keys, the history and other records that could not be read for these numbers";
}
