//! A recorded GPU library: a JSON document with one answer or refusal per query. Queries without a
//! record are refused, never answered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::gpu_library::{
    GpuLibrary, GpuQuery, GpuQueryError, GpuQueryResult, GpuValue, MachineQuery,
};

/// Recorded answers of a library, by query name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedLibrary {
    /// Answers about the machine.
    #[serde(default)]
    pub machine: BTreeMap<String, RecordedAnswer>,
    /// Answers about each GPU, by index.
    #[serde(default)]
    pub gpus: Vec<BTreeMap<String, RecordedAnswer>>,
}

/// A recorded answer or refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RecordedAnswer {
    /// The library refused the query.
    Refused {
        /// Reason of the refusal.
        refused: GpuQueryError,
    },
    /// The library's answer.
    Value(GpuValue),
}

impl RecordedLibrary {
    /// Adds an answer about the machine.
    pub fn add_machine_answer(&mut self, query: MachineQuery, answer: GpuQueryResult) -> &mut Self {
        self.machine.insert(query.to_string(), record_answer(answer));
        self
    }

    /// Adds an answer about a GPU.
    pub fn add_gpu_answer(
        &mut self,
        gpu: usize,
        query: GpuQuery,
        answer: GpuQueryResult,
    ) -> &mut Self {
        if self.gpus.len() <= gpu {
            self.gpus.resize(gpu + 1, BTreeMap::new());
        }
        self.gpus[gpu].insert(query.to_string(), record_answer(answer));
        self
    }
}

fn record_answer(answer: GpuQueryResult) -> RecordedAnswer {
    match answer {
        Ok(value) => RecordedAnswer::Value(value),
        Err(refused) => RecordedAnswer::Refused { refused },
    }
}

fn replay_answer(recorded: Option<&RecordedAnswer>) -> GpuQueryResult {
    match recorded {
        Some(RecordedAnswer::Value(value)) => Ok(value.clone()),
        Some(RecordedAnswer::Refused { refused }) => Err(refused.clone()),
        None => Err(GpuQueryError::Failed("this was not recorded".to_owned())),
    }
}

impl GpuLibrary for RecordedLibrary {
    fn query_machine(&self, query: MachineQuery) -> GpuQueryResult {
        let count = u64::try_from(self.gpus.len()).unwrap_or(u64::MAX);
        match (self.machine.get(&query.to_string()), query) {
            (None, MachineQuery::GpuCount) => Ok(GpuValue::Number(count)),
            (recorded, _) => replay_answer(recorded),
        }
    }

    fn query_gpu(&self, gpu: u32, query: GpuQuery) -> GpuQueryResult {
        let gpu = usize::try_from(gpu).unwrap_or(usize::MAX);
        let Some(answers) = self.gpus.get(gpu) else { return Err(GpuQueryError::NotFound) };
        replay_answer(answers.get(&query.to_string()))
    }
}

/// Queries a library and records its answers.
#[derive(Debug)]
pub struct RecordingLibrary<'l> {
    library: &'l (dyn GpuLibrary + 'l),
    record: std::cell::RefCell<RecordedLibrary>,
}

impl std::fmt::Debug for dyn GpuLibrary + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GpuLibrary")
    }
}

impl<'l> RecordingLibrary<'l> {
    /// Records the answers of this library.
    pub fn new(library: &'l (dyn GpuLibrary + 'l)) -> Self {
        Self { library, record: std::cell::RefCell::default() }
    }

    /// Returns the record.
    pub fn into_record(self) -> RecordedLibrary {
        self.record.into_inner()
    }
}

impl GpuLibrary for RecordingLibrary<'_> {
    fn query_machine(&self, query: MachineQuery) -> GpuQueryResult {
        let answer = self.library.query_machine(query);
        self.record.borrow_mut().add_machine_answer(query, answer.clone());
        answer
    }

    fn query_gpu(&self, gpu: u32, query: GpuQuery) -> GpuQueryResult {
        let answer = self.library.query_gpu(gpu, query);
        if let Ok(at) = usize::try_from(gpu) {
            self.record.borrow_mut().add_gpu_answer(at, query, answer.clone());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::gpu_library::{FabricValue, GpuNumber, GpuText};

    #[test]
    fn a_recording_survives_serialization_and_answers_the_same() {
        let mut recorded = RecordedLibrary::default();
        let fabric = FabricValue { fabric_state: 3, clique_id: 7, ..FabricValue::default() };
        recorded
            .add_machine_answer(
                MachineQuery::DriverVersion,
                Ok(GpuValue::Text("570.86.15".to_owned())),
            )
            .add_gpu_answer(
                0,
                GpuQuery::Text(GpuText::Uuid),
                Ok(GpuValue::Text("GPU-1".to_owned())),
            )
            .add_gpu_answer(0, GpuQuery::FabricThird, Ok(GpuValue::Fabric(fabric)))
            .add_gpu_answer(
                1,
                GpuQuery::Number(GpuNumber::ModuleId),
                Err(GpuQueryError::NotSupported),
            );
        let again = RecordingLibrary::new(&recorded);
        assert_eq!(again.query_gpu(0, GpuQuery::FabricThird), Ok(GpuValue::Fabric(fabric)));
        let module = GpuQuery::Number(GpuNumber::ModuleId);
        assert_eq!(again.query_gpu(1, module), Err(GpuQueryError::NotSupported));
        assert_eq!(again.query_machine(MachineQuery::GpuCount), Ok(GpuValue::Number(2)));
        let text = serde_json::to_string(&recorded).expect("json");
        let read: RecordedLibrary = serde_json::from_str(&text).expect("a recording");
        assert_eq!(read, recorded);
        let kept = again.into_record();
        assert_eq!(kept.query_gpu(0, GpuQuery::FabricThird), Ok(GpuValue::Fabric(fabric)));
    }

    #[test]
    fn a_query_without_a_record_is_refused() {
        let recorded =
            RecordedLibrary { gpus: vec![BTreeMap::new()], ..RecordedLibrary::default() };
        let answer = recorded.query_gpu(0, GpuQuery::Text(GpuText::Serial));
        assert!(matches!(answer, Err(GpuQueryError::Failed(_))), "{answer:?}");
        assert_eq!(recorded.query_gpu(1, GpuQuery::Processes), Err(GpuQueryError::NotFound));
    }
}
