//! The JSON Schemas of all documents: the files in `reports/schema`, generated from the types, so
//! that a document and its schema cannot diverge.
//!
//! Only a test, in this crate because only `cli` has every document type. `tests/tidy/main.rs`
//! checks that none is missing, and `tests/cli/answers` that documents match them.

use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;

use crate::cli::commands::config::{check, keys};
use crate::cli::commands::history::prune;
use crate::cli::commands::report::bundle as bundle_command;
use crate::cli::commands::thresholds::site_proposal;
use crate::cli::commands::{explain, export, gate, notify, probes, sim};
use crate::cli::report_output;
use control::gate::watch::state;
use control::store;
use engine::export::documents;
use engine::policy::{capacity, topology_proposal};
use engine::report::metrics::levels;
use engine::report::notice::{changes, message};
use engine::report::{bundle, gate as gate_report, gate_log};
use engine::thresholds::Platform;
use engine::{place, plan};
use model::{
    acceptance, action, certificate, checkup, collective, comparison, copy, fabric_probe, journal,
    node_facts, parse_output, probe, raw_result, tcp, trend, verdict, watch, worker_protocol,
};

/// The schema of the serialized form of `T`, pinned to its format.
fn schema_text<T: JsonSchema>(format: Option<&str>) -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    if let Some(format) = format {
        schema["properties"]["format"]["const"] = format.into();
    }
    let mut text = serde_json::to_string_pretty(&schema).expect("JSON");
    text.push('\n');
    text
}

/// Every document's schema, by file name.
fn build_schemas() -> Vec<(&'static str, String)> {
    /// One line `name: Type, FORMAT;` per document.
    macro_rules! schemas {
        ($($name:literal: $type:ty, $format:expr;)*) => {
            vec![$(($name, schema_text::<$type>(Some($format)))),*]
        };
    }
    let mut made = schemas! {
        "acceptance": acceptance::Acceptance, acceptance::ACCEPTANCE_FORMAT;
        "actions": action::ActionPlan, action::ACTIONS_FORMAT;
        "bundle": bundle::BundleDocument<'_>, bundle::BUNDLE_FORMAT;
        "burn-in": store::acceptance::BurnInResumeState, store::acceptance::RESUME_FORMAT;
        "capacity": capacity::CapacitySurvey, capacity::CAPACITY_FORMAT;
        "certificate": certificate::Certificate, certificate::CERTIFICATE_FORMAT;
        "certificates": certificate::CertificatesDocument, certificate::CERTIFICATES_FORMAT;
        "claims": store::ClaimsRecord, store::CLAIMS_FORMAT;
        "collective": collective::CollectiveDocument, collective::COLLECTIVE_FORMAT;
        "comparison": comparison::RepairReport, comparison::COMPARISON_FORMAT;
        "config-check": check::ConfigCheckDocument, check::CHECK_FORMAT;
        "config-keys": keys::KeysDocument, keys::KEYS_FORMAT;
        "copy": copy::CopyDocument, copy::COPY_FORMAT;
        "doctor": checkup::CheckupDocument, checkup::CHECKUP_FORMAT;
        "environment": documents::EnvironmentDocument<'_>, documents::ENVIRONMENT_FORMAT;
        "explain": explain::ExplainDocument<'_>, explain::EXPLAIN_FORMAT;
        "export": export::ExportDocument<'_>, export::EXPORT_FORMAT;
        "fabric": fabric_probe::FabricProbeDocument, fabric_probe::FABRIC_PROBE_FORMAT;
        "gate": gate_report::GateDocument<'_>, gate_report::GATE_FORMAT;
        "gate-log": gate_log::GateLogDocument<'_>, gate_log::GATE_LOG_FORMAT;
        "history": trend::HistoryDocument, trend::HISTORY_FORMAT;
        "history-prune": prune::PruneDocument, prune::PRUNE_FORMAT;
        "journal": journal::JournalEntry, journal::JOURNAL_FORMAT;
        "levels": levels::RunLevels, levels::LEVELS_FORMAT;
        "machine": worker_protocol::MachineRecord, worker_protocol::MACHINE_FORMAT;
        "map": documents::MapDocument<'_>, documents::MAP_FORMAT;
        "measurement": store::MeasurementRecord, store::MEASUREMENT_FORMAT;
        "node-facts": node_facts::NodeFacts, node_facts::NODE_FACTS_FORMAT;
        "notice": message::Notice, message::NOTICE_FORMAT;
        "notified": changes::DeliveryState, changes::NOTIFIED_FORMAT;
        "notify-test": notify::NotifyTestDocument, notify::NOTIFY_TEST_FORMAT;
        "packed": bundle_command::PackedDocument<'_>, bundle_command::PACKED_FORMAT;
        "parse": parse_output::ParseDocument, parse_output::PARSE_FORMAT;
        "placement": place::Placement, place::PLACEMENT_FORMAT;
        "plan": plan::Plan, plan::PLAN_FORMAT;
        "probes": probe::ProbesDocument, probe::PROBES_FORMAT;
        "probes-check": probes::ProbesCheckDocument, probes::CHECK_FORMAT;
        "ranks": documents::RanksDocument<'_>, documents::RANKS_FORMAT;
        "recovered": gate::RecoveredDocument<'_>, gate::RECOVERED_FORMAT;
        "report": report_output::ReportDocument<'_>, report_output::REPORT_FORMAT;
        "result": raw_result::RawResult, raw_result::RESULT_FORMAT;
        "run": store::RunRecord, store::RUN_FORMAT;
        "sim-record": sim::RecordedDocument<'_>, sim::RECORDED_FORMAT;
        "tcp": tcp::TcpDocument, tcp::TCP_FORMAT;
        "thresholds-measured": site_proposal::MeasuredDocument, site_proposal::MEASURED_FORMAT;
        "topology": topology_proposal::TopologyProposal, topology_proposal::TOPOLOGY_FORMAT;
        "verdicts": verdict::Verdicts, verdict::VERDICTS_FORMAT;
        "verification": certificate::VerificationDocument, certificate::VERIFICATION_FORMAT;
        "watch": watch::WatchLine, watch::WATCH_FORMAT;
        "watch-state": state::WatchState, state::STATE_FORMAT;
    };
    // Platforms are TOML; the JSON Schema describes their tables.
    made.push(("platform", schema_text::<Platform>(None)));
    made
}

#[test]
fn the_published_schemas_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/schema");
    let made = build_schemas();
    for (name, made) in &made {
        let path = folder.join(format!("{name}.schema.json"));
        if std::env::var_os("UPDATE_REPORTS").is_some() {
            fs::write(&path, made).expect("the schema folder is writable");
        }
        let published = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            published == *made,
            "reports/schema/{name}.schema.json is not the schema of its type; run with \
             UPDATE_REPORTS=1"
        );
    }
    let mut published: Vec<String> = fs::read_dir(folder)
        .expect("the schema folder")
        .map(|it| it.expect("a file").file_name().to_string_lossy().into_owned())
        .collect();
    published.sort();
    // `cli/configuration` generates and prints the schema of the configuration.
    let mut known: Vec<String> = made
        .iter()
        .map(|(name, _)| *name)
        .chain(["config"])
        .map(|name| format!("{name}.schema.json"))
        .collect();
    known.sort();
    assert_eq!(published, known, "a schema without a type");
}
