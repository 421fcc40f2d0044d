//! Pending jobs, from `squeue --json`.
//!
//! Keys differ by version (24.11 has no `segment_size`); an absent one is unknown. A job without
//! a readable id is dropped, because messages could not identify it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json_response;
use crate::claims::reader_util::sanitize_text;
use model::source_report::{SourceKind, SourceReport};

/// A pending job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PendingJob {
    /// Job id.
    pub id: u64,
    /// User of the job.
    pub user: String,
    /// Number of requested nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
    /// Requested segment size, in nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u64>,
    /// The nodes it requires by name, as a host list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub required: String,
    /// Its priority; 0 means held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u64>,
    /// Slurm's reason for the wait.
    pub reason: String,
}

/// Parses an answer into pending jobs; the error is the reason why they are unknown.
pub fn read(place: &str, text: &str) -> Result<Vec<PendingJob>, String> {
    let mut said = SourceReport::new(SourceKind::SlurmPartitions, place);
    let value = json_response::read(&mut said, place, text);
    if let Some(problem) = said.problems.first() {
        return Err(sanitize_text(&problem.to_string()));
    }
    let jobs = value.as_ref().map(|value| &value["jobs"]).filter(|jobs| jobs.is_array());
    let jobs = jobs.ok_or_else(|| format!("{place}: no list of jobs"))?;
    Ok(json_response::as_list(jobs).iter().filter_map(parse_job).collect())
}

fn parse_job(job: &Value) -> Option<PendingJob> {
    let states = json_response::as_words(&job["job_state"]);
    if !states.iter().any(|state| state == "PENDING") {
        return None;
    }
    let words =
        |key: &str| json_response::as_text(&job[key]).map(sanitize_text).unwrap_or_default();
    Some(PendingJob {
        id: json_response::as_number(&job["job_id"])?,
        user: words("user_name"),
        nodes: json_response::as_number(&job["node_count"]),
        segment: json_response::as_number(&job["segment_size"]).filter(|size| *size != 0),
        required: json_response::as_text(&job["required_nodes"]).unwrap_or_default().to_owned(),
        priority: json_response::as_number(&job["priority"]),
        reason: words("state_reason"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_jobs_are_told_and_others_are_not() {
        let text = r#"{"jobs":[
            {"job_id":1,"job_state":["PENDING"],"node_count":{"set":true,"infinite":false,"number":18},
             "priority":{"set":true,"infinite":false,"number":0},"state_reason":"BadConstraints",
             "required_nodes":"n[1-2]","segment_size":9,"user_name":"alice"},
            {"job_id":2,"job_state":["RUNNING"]},{"job_state":["PENDING"]},
            {"job_id":3,"job_state":"PENDING","priority":7,"segment_size":0}]}"#;
        let jobs = read("squeue", text).expect("jobs");
        assert_eq!(
            jobs[0],
            PendingJob {
                id: 1,
                user: "alice".to_owned(),
                nodes: Some(18),
                segment: Some(9),
                required: "n[1-2]".to_owned(),
                priority: Some(0),
                reason: "BadConstraints".to_owned(),
            }
        );
        assert_eq!((jobs.len(), jobs[1].id, jobs[1].segment), (2, 3, None));
    }

    #[test]
    fn an_answer_without_jobs_is_not_an_empty_queue() {
        for text in ["", "{}", "[]", r#"{"jobs":[],"errors":[{"error":"no"}]}"#, r#"{"jobs":7}"#] {
            assert!(read("squeue", text).is_err(), "{text}");
        }
        assert_eq!(read("squeue", r#"{"jobs":[]}"#), Ok(Vec::new()));
    }
}
