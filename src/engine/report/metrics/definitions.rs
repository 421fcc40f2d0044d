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
        "Time at which these numbers were collected";
    SIMULATED = "state_simulated", None, [],
        "1 if these numbers come from runs of a simulated fabric or from stored runs, without \
         measured hardware";
    VERSION = "state_info", None, ["version"],
        "The version of fabricgate that collected these numbers";
    NODES = "nodes_by_verdict", None, ["verdict"],
        "Known nodes by the verdict of the newest run that judged them; unknown without such a run";
    LEFT_OUT = "nodes_left_out", None, [],
        "Known nodes without series of their own, because there are more nodes than the \
         configured limit";
    VERDICT = "node_verdict", None, ["node", "domain", "verdict"],
        "1 for the verdict of the newest run that judged the node; unknown without such a run";
    MEASURED = "node_measured_timestamp", SECONDS, ["node"],
        "Time of the newest run that judged the node";
    WORST = "node_worst", RATIO, ["node", "class"],
        "The lowest cell of the node, as a share of the platform's expectation, by kind of path";
    DETECTABLE = "node_detectable_degradation", RATIO, ["node"],
        "The smallest degradation that the newest run could detect on the node, as a share";
    ISSUED = "node_certificate_issued_timestamp", SECONDS, ["node"],
        "Time of the run behind the node's certificate";
    EXPIRES = "node_certificate_expires_timestamp", SECONDS, ["node"],
        "Time at which the node's certificate expires, unless it is void";
    VOID = "node_certificate_void", None, ["node"],
        "1 if the node's certificate was declared void before its expiry";
    ALARMS = "node_drift_alarms", None, ["node"],
        "Tests in which the node is worse than its usual level in the history, and still is";
    DOMAIN_ALARMS = "domain_drift_alarms", None, ["domain"],
        "Tests in which the level of the domain is worse than its usual level in the history, and \
         still is";
    FIRST_END = "certificates_first_expiry_timestamp", SECONDS, [],
        "Time at which the first of all valid certificates expires";
    COUNTED = "certificates_on_disk", None, ["state"],
        "Certificates by the state in their file: counting, expired, void";
    RUN_AT = "last_run_timestamp", SECONDS, ["profile"],
        "Time of the last run of the profile";
    RUN_TOOK = "last_run_duration", SECONDS, ["profile"],
        "Duration of the last run of the profile, from its plan to its end";
    RUN_VERDICT = "last_run_verdict", None, ["profile", "verdict"],
        "1 for the overall verdict of the last run of the profile";
    RUN_COMPLETE = "last_run_complete", None, ["profile"],
        "1 if the last run of the profile tried every planned step";
    RUN_NODES = "last_run_nodes", None, ["profile", "verdict"],
        "Nodes of the last run of the profile, by verdict";
    RUN_FINDINGS = "last_run_findings", None, ["profile", "class", "verdict"],
        "Findings of the last run of the profile, by class and verdict";
    RUN_UNKNOWNS = "last_run_unknowns", None, ["profile"],
        "Unknowns of the last run of the profile, each with its reason in the report";
    RUN_DETECTABLE = "last_run_detectable_degradation", RATIO, ["profile"],
        "The largest of the smallest degradations that the last run of the profile could detect \
         on a node";
    RUN_FROZEN = "last_run_frozen", None, ["profile"],
        "1 if the last run of the profile proposed nothing because of a common cause, a doubtful \
         instrument or the breaker";
    CONCLUSIVE_AT = "last_conclusive_run_timestamp", SECONDS, ["profile"],
        "Time of the last complete run of the profile with a verdict other than unknown";
    PASSED_AT = "last_passing_run_timestamp", SECONDS, ["profile"],
        "Time of the last complete run of the profile that passed";
    BUDGET_LEFT = "budget_left_nodes", None, ["budget"],
        "Remaining nodes of the budget";
    BUDGET_LIMIT = "budget_limit_nodes", None, ["budget"],
        "Limit of the budget, in nodes";
    BREAKER = "breaker_tripped", None, [],
        "1 if only releases are carried out until a user resets the breaker";
    PAUSED = "gate_paused", None, [],
        "1 while a user has paused the gate: it neither drains nor measures";
    DRAINS = "drains_outstanding", None, [],
        "Drains by fabricgate in force";
    OPEN = "actions_open", None, [],
        "Actions without a result";
    TROUBLES = "state_troubles", None, [],
        "Run folders, certificates, keys, history files and other records that could not be read";
}
