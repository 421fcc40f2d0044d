//! A GPU library that was recorded: a JSON document with one answer or refusal
//! per question. Questions that were not recorded are refused, never answered.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use super::library::Answer;
use super::library::GpuLibrary;
use super::library::MachineQuestion;
use super::library::Question;
use super::library::Refusal;
use super::library::Value;

/// What a library answered. Questions are named as they display themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// About the machine.
    #[serde(default)]
    pub machine: BTreeMap<String, Told>,
    /// About each GPU, by index.
    #[serde(default)]
    pub gpus: Vec<BTreeMap<String, Told>>,
}

/// An answer or a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Told {
    /// A refusal.
    Refused {
        /// Why.
        refused: Refusal,
    },
    /// An answer.
    Said(Value),
}

impl Recorded {
    /// Adds what is told about the machine.
    pub fn machine(&mut self, question: MachineQuestion, answer: Answer) -> &mut Self {
        self.machine.insert(question.to_string(), told(answer));
        self
    }

    /// Adds what is told about a GPU.
    pub fn gpu(&mut self, gpu: usize, question: Question, answer: Answer) -> &mut Self {
        if self.gpus.len() <= gpu {
            self.gpus.resize(gpu + 1, BTreeMap::new());
        }
        self.gpus[gpu].insert(question.to_string(), told(answer));
        self
    }
}

fn told(answer: Answer) -> Told {
    match answer {
        Ok(value) => Told::Said(value),
        Err(refused) => Told::Refused { refused },
    }
}

fn answered(told: Option<&Told>) -> Answer {
    match told {
        Some(Told::Said(value)) => Ok(value.clone()),
        Some(Told::Refused { refused }) => Err(refused.clone()),
        None => Err(Refusal::Failed("this was not recorded".to_owned())),
    }
}

impl GpuLibrary for Recorded {
    fn of_machine(&self, question: MachineQuestion) -> Answer {
        let count = u64::try_from(self.gpus.len()).unwrap_or(u64::MAX);
        match (self.machine.get(&question.to_string()), question) {
            (None, MachineQuestion::GpuCount) => Ok(Value::Number(count)),
            (told, _) => answered(told),
        }
    }

    fn of_gpu(&self, gpu: u32, question: Question) -> Answer {
        let gpu = usize::try_from(gpu).unwrap_or(usize::MAX);
        let Some(answers) = self.gpus.get(gpu) else { return Err(Refusal::NotFound) };
        answered(answers.get(&question.to_string()))
    }
}

/// Asks a library, and keeps what it answers.
#[derive(Debug)]
pub struct Recording<'l> {
    library: &'l (dyn GpuLibrary + 'l),
    kept: std::cell::RefCell<Recorded>,
}

impl std::fmt::Debug for dyn GpuLibrary + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GpuLibrary")
    }
}

impl<'l> Recording<'l> {
    /// Records what this library answers.
    pub fn of(library: &'l (dyn GpuLibrary + 'l)) -> Self {
        Self { library, kept: std::cell::RefCell::default() }
    }

    /// What it answered.
    pub fn kept(self) -> Recorded {
        self.kept.into_inner()
    }
}

impl GpuLibrary for Recording<'_> {
    fn of_machine(&self, question: MachineQuestion) -> Answer {
        let answer = self.library.of_machine(question);
        self.kept.borrow_mut().machine(question, answer.clone());
        answer
    }

    fn of_gpu(&self, gpu: u32, question: Question) -> Answer {
        let answer = self.library.of_gpu(gpu, question);
        if let Ok(at) = usize::try_from(gpu) {
            self.kept.borrow_mut().gpu(at, question, answer.clone());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::library::FabricValue;
    use crate::facts::library::Number;
    use crate::facts::library::Text;

    #[test]
    fn a_recording_reads_back_as_it_was_and_answers_the_same() {
        let mut recorded = Recorded::default();
        let fabric = FabricValue { fabric_state: 3, clique_id: 7, ..FabricValue::default() };
        recorded
            .machine(MachineQuestion::DriverVersion, Ok(Value::Text("570.86.15".to_owned())))
            .gpu(0, Question::Text(Text::Uuid), Ok(Value::Text("GPU-1".to_owned())))
            .gpu(0, Question::FabricThird, Ok(Value::Fabric(fabric)))
            .gpu(1, Question::Number(Number::ModuleId), Err(Refusal::NotSupported));
        let again = Recording::of(&recorded);
        assert_eq!(again.of_gpu(0, Question::FabricThird), Ok(Value::Fabric(fabric)));
        let module = Question::Number(Number::ModuleId);
        assert_eq!(again.of_gpu(1, module), Err(Refusal::NotSupported));
        assert_eq!(again.of_machine(MachineQuestion::GpuCount), Ok(Value::Number(2)));
        let text = serde_json::to_string(&recorded).expect("json");
        let read: Recorded = serde_json::from_str(&text).expect("a recording");
        assert_eq!(read, recorded);
        let kept = again.kept();
        assert_eq!(kept.of_gpu(0, Question::FabricThird), Ok(Value::Fabric(fabric)));
    }

    #[test]
    fn what_was_not_recorded_is_refused() {
        let recorded = Recorded { gpus: vec![BTreeMap::new()], ..Recorded::default() };
        let answer = recorded.of_gpu(0, Question::Text(Text::Serial));
        assert!(matches!(answer, Err(Refusal::Failed(_))), "{answer:?}");
        assert_eq!(recorded.of_gpu(1, Question::Processes), Err(Refusal::NotFound));
    }
}
