//! `verdicts.json`, `actions.json`, and the JSON Schemas of all documents.
//!
//! The schemas are the files in `reports/schema`, made from the types by the
//! test below, so that a document and its schema cannot part.

use serde::Serialize;

use crate::model::action::ActionPlan;
use crate::model::verdict::Verdicts;

/// The published JSON Schemas, by file name.
pub const SCHEMAS: [(&str, &str); 21] = [
    ("parse.schema.json", include_str!("../../reports/schema/parse.schema.json")),
    ("verdicts.schema.json", include_str!("../../reports/schema/verdicts.schema.json")),
    ("actions.schema.json", include_str!("../../reports/schema/actions.schema.json")),
    ("platform.schema.json", include_str!("../../reports/schema/platform.schema.json")),
    ("claims.schema.json", include_str!("../../reports/schema/claims.schema.json")),
    ("plan.schema.json", include_str!("../../reports/schema/plan.schema.json")),
    ("probes.schema.json", include_str!("../../reports/schema/probes.schema.json")),
    ("run.schema.json", include_str!("../../reports/schema/run.schema.json")),
    ("result.schema.json", include_str!("../../reports/schema/result.schema.json")),
    ("node-facts.schema.json", include_str!("../../reports/schema/node-facts.schema.json")),
    ("doctor.schema.json", include_str!("../../reports/schema/doctor.schema.json")),
    ("certificate.schema.json", include_str!("../../reports/schema/certificate.schema.json")),
    ("certificates.schema.json", include_str!("../../reports/schema/certificates.schema.json")),
    ("verification.schema.json", include_str!("../../reports/schema/verification.schema.json")),
    ("journal.schema.json", include_str!("../../reports/schema/journal.schema.json")),
    ("capacity.schema.json", include_str!("../../reports/schema/capacity.schema.json")),
    ("watch.schema.json", include_str!("../../reports/schema/watch.schema.json")),
    ("history.schema.json", include_str!("../../reports/schema/history.schema.json")),
    ("acceptance.schema.json", include_str!("../../reports/schema/acceptance.schema.json")),
    ("comparison.schema.json", include_str!("../../reports/schema/comparison.schema.json")),
    ("placement.schema.json", include_str!("../../reports/schema/placement.schema.json")),
];

/// The bytes of `verdicts.json`.
pub fn verdicts(verdicts: &Verdicts) -> Vec<u8> {
    pretty(verdicts)
}

/// The bytes of `actions.json`.
pub fn actions(actions: &ActionPlan) -> Vec<u8> {
    pretty(actions)
}

/// One indented document with a line break at its end.
fn pretty<T: Serialize>(document: &T) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(document)
        .expect("documents are structs, lists and numbers, all of which JSON has");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use schemars::JsonSchema;
    use schemars::generate::SchemaSettings;

    use super::*;
    use crate::act::capacity::CAPACITY_FORMAT;
    use crate::act::capacity::Survey;
    use crate::model::acceptance::ACCEPTANCE_FORMAT;
    use crate::model::acceptance::Acceptance;
    use crate::model::action::ACTIONS_FORMAT;
    use crate::model::certificate::CERTIFICATE_FORMAT;
    use crate::model::certificate::CERTIFICATES_FORMAT;
    use crate::model::certificate::Certificate;
    use crate::model::certificate::CertificatesDocument;
    use crate::model::certificate::VERIFICATION_FORMAT;
    use crate::model::certificate::VerificationDocument;
    use crate::model::checkup::CHECKUP_FORMAT;
    use crate::model::checkup::CheckupDocument;
    use crate::model::comparison::COMPARISON_FORMAT;
    use crate::model::comparison::Repairs;
    use crate::model::journal::Entry;
    use crate::model::journal::JOURNAL_FORMAT;
    use crate::model::node_facts::NODE_FACTS_FORMAT;
    use crate::model::node_facts::NodeFacts;
    use crate::model::parsed::PARSE_FORMAT;
    use crate::model::parsed::ParseDocument;
    use crate::model::probe::PROBES_FORMAT;
    use crate::model::probe::ProbesDocument;
    use crate::model::raw::RESULT_FORMAT;
    use crate::model::raw::RawResult;
    use crate::model::trend::HISTORY_FORMAT;
    use crate::model::trend::HistoryDocument;
    use crate::model::verdict::VERDICTS_FORMAT;
    use crate::model::watch::WATCH_FORMAT;
    use crate::model::watch::WatchLine;
    use crate::place::PLACEMENT_FORMAT;
    use crate::place::Placement;
    use crate::plan::PLAN_FORMAT;
    use crate::plan::Plan;
    use crate::record::CLAIMS_FORMAT;
    use crate::record::ClaimsRecord;
    use crate::record::RUN_FORMAT;
    use crate::record::RunRecord;
    use crate::report::fixture;
    use crate::thresholds::Platform;

    /// The schema of what is written for `T`, pinned to its format.
    fn schema<T: JsonSchema>(format: Option<&str>) -> String {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let schema = settings.into_generator().into_root_schema_for::<T>();
        let mut schema = schema.to_value();
        if let Some(format) = format {
            schema["properties"]["format"]["const"] = format.into();
        }
        String::from_utf8(pretty(&schema)).expect("utf-8")
    }

    #[test]
    fn the_published_schemas_are_those_of_the_types() {
        let made = [
            schema::<ParseDocument>(Some(PARSE_FORMAT)),
            schema::<Verdicts>(Some(VERDICTS_FORMAT)),
            schema::<ActionPlan>(Some(ACTIONS_FORMAT)),
            schema::<Platform>(None),
            schema::<ClaimsRecord>(Some(CLAIMS_FORMAT)),
            schema::<Plan>(Some(PLAN_FORMAT)),
            schema::<ProbesDocument>(Some(PROBES_FORMAT)),
            schema::<RunRecord>(Some(RUN_FORMAT)),
            schema::<RawResult>(Some(RESULT_FORMAT)),
            schema::<NodeFacts>(Some(NODE_FACTS_FORMAT)),
            schema::<CheckupDocument>(Some(CHECKUP_FORMAT)),
            schema::<Certificate>(Some(CERTIFICATE_FORMAT)),
            schema::<CertificatesDocument>(Some(CERTIFICATES_FORMAT)),
            schema::<VerificationDocument>(Some(VERIFICATION_FORMAT)),
            schema::<Entry>(Some(JOURNAL_FORMAT)),
            schema::<Survey>(Some(CAPACITY_FORMAT)),
            schema::<WatchLine>(Some(WATCH_FORMAT)),
            schema::<HistoryDocument>(Some(HISTORY_FORMAT)),
            schema::<Acceptance>(Some(ACCEPTANCE_FORMAT)),
            schema::<Repairs>(Some(COMPARISON_FORMAT)),
            schema::<Placement>(Some(PLACEMENT_FORMAT)),
        ];
        assert_eq!(made.len(), SCHEMAS.len());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/schema");
        for ((name, _), made) in SCHEMAS.iter().zip(made) {
            let path = folder.join(name);
            if std::env::var_os("UPDATE_REPORTS").is_some() {
                std::fs::write(&path, &made).expect("the schema folder is writable");
            }
            let published = std::fs::read_to_string(&path).expect("the schema is published");
            assert!(
                published == made,
                "reports/schema/{name} is not the schema of its type; run with UPDATE_REPORTS=1"
            );
        }
    }

    #[test]
    fn a_document_has_every_field_its_schema_requires() {
        let document: serde_json::Value =
            serde_json::from_slice(&verdicts(&fixture::rack().verdicts)).expect("json");
        let schema: serde_json::Value = serde_json::from_str(SCHEMAS[1].1).expect("json");
        let required = schema["required"].as_array().expect("a list of names");
        assert!(5 < required.len());
        for name in required {
            assert!(document.get(name.as_str().expect("a name")).is_some(), "{name} is missing");
        }
        assert_eq!(document["format"], schema["properties"]["format"]["const"]);
    }

    #[test]
    fn documents_read_back_as_they_were() {
        for run in fixture::all() {
            let read: Verdicts = serde_json::from_slice(&verdicts(&run.verdicts)).expect("json");
            assert_eq!(read, run.verdicts);
        }
    }

    #[test]
    fn verdicts_and_actions_are_rendered() {
        let run = fixture::rack();
        let text = |bytes| String::from_utf8(bytes).expect("utf-8");
        insta::assert_snapshot!("verdicts", text(verdicts(&run.verdicts)));
        insta::assert_snapshot!("actions", text(actions(run.actions.as_ref().expect("a plan"))));
    }
}
