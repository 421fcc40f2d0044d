//! Asking one GPU one thing after another, and keeping what it would not say.

use model::node_facts::Missing;

use super::library::FabricValue;
use super::library::GpuLibrary;
use super::library::LinkNumber;
use super::library::Number;
use super::library::PlatformValue;
use super::library::ProcessValue;
use super::library::Question;
use super::library::Refusal;
use super::library::RowsValue;
use super::library::Text;
use super::library::Value;

/// Asks one GPU.
pub(super) struct Asking<'l> {
    library: &'l (dyn GpuLibrary + 'l),
    gpu: u32,
    refused: Vec<Missing>,
}

/// Declares how an answer of one kind is asked for.
macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident, $variant:ident -> $kind:ty;)*) => {
        $($(#[$doc])*
        pub(super) fn $name(&self, question: Question) -> Result<$kind, Refusal> {
            match self.library.of_gpu(self.gpu, question)? {
                Value::$variant(value) => Ok(value),
                other => Err(Refusal::Unreadable(format!("{question}: {other:?}"))),
            }
        })*
    };
}

impl<'l> Asking<'l> {
    /// Asks the GPU of this index.
    pub(super) fn of(library: &'l (dyn GpuLibrary + 'l), gpu: u32) -> Self {
        Self { library, gpu, refused: Vec::new() }
    }

    answers! {
        /// A number.
        number_of, Number -> u64;
        /// A line of text.
        text_of, Text -> String;
        /// Fabric information.
        fabric_of, Fabric -> FabricValue;
        /// Where it sits.
        platform_of, Platform -> PlatformValue;
        /// Replaced rows.
        rows_of, Rows -> RowsValue;
        /// Processes.
        processes_of, Processes -> Vec<ProcessValue>;
    }

    /// A line of text, or what is missing.
    pub(super) fn text(&mut self, text: Text) -> Option<String> {
        let found = self.text_of(Question::Text(text)).map(|text| printable(&text));
        self.kept(text.as_str(), found).filter(|text| !text.is_empty())
    }

    /// A number, or what is missing.
    pub(super) fn number(&mut self, number: Number) -> Option<u64> {
        let found = self.number_of(Question::Number(number));
        self.kept(number.as_str(), found)
    }

    /// A number that is not large, or what is missing.
    pub(super) fn small(&mut self, number: Number) -> Option<u32> {
        let found = self.number(number)?;
        let small = u32::try_from(found).map_err(|_| too_large(found));
        self.kept(number.as_str(), small)
    }

    /// A yes or no, or what is missing.
    pub(super) fn flag(&mut self, number: Number) -> Option<bool> {
        self.number(number).map(|value| value != 0)
    }

    /// A field value of a link or part.
    pub(super) fn field_of(&self, id: u32, scope: u32) -> Result<u64, Refusal> {
        self.number_of(Question::Field { id, scope })
    }

    /// A number of a link.
    pub(super) fn link_of(&self, link: u32, number: LinkNumber) -> Result<u64, Refusal> {
        self.number_of(Question::Link(link, number))
    }

    /// The value, where there is one; else notes what is missing.
    pub(super) fn kept<T>(&mut self, what: &str, found: Result<T, Refusal>) -> Option<T> {
        match found {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.refuse(what, None, &refusal);
                None
            }
        }
    }

    /// The same, of one link.
    pub(super) fn kept_of_link<T>(
        &mut self,
        what: &str,
        link: u32,
        found: Result<T, Refusal>,
    ) -> Option<T> {
        match found {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.refuse(what, Some(link), &refusal);
                None
            }
        }
    }

    /// Notes a refusal. A GPU that is gone refuses everything from then on, which
    /// is said once.
    fn refuse(&mut self, what: &str, link: Option<u32>, refusal: &Refusal) {
        match refusal {
            Refusal::GpuLost | Refusal::ResetRequired => {
                self.miss("whatever else it has", None, &refusal.to_string());
            }
            refusal => self.miss(what, link, &refusal.to_string()),
        }
    }

    /// Notes that something is missing. What several links lack for one reason
    /// is one thing.
    pub(super) fn miss(&mut self, what: &str, link: Option<u32>, why: &str) {
        let same = |m: &&mut Missing| m.what == what && m.why == why;
        match (link, self.refused.iter_mut().find(same)) {
            (Some(link), Some(missing)) if !missing.links.is_empty() => missing.links.push(link),
            (None, Some(missing)) if missing.links.is_empty() => {}
            (link, _) => self.refused.push(Missing {
                what: what.to_owned(),
                gpus: vec![self.gpu],
                links: link.into_iter().collect(),
                why: why.to_owned(),
            }),
        }
    }

    /// What is missing.
    pub(super) fn missing(self) -> Vec<Missing> {
        self.refused
    }
}

fn too_large(number: u64) -> Refusal {
    Refusal::Unreadable(format!("{number} is too large"))
}

/// Text from outside without control characters and without blanks around it.
pub(super) fn printable(text: &str) -> String {
    let kept: String = text.chars().filter(|c| !c.is_control()).collect();
    kept.trim().to_owned()
}

/// Makes one entry of what several GPUs lack for one reason.
pub(super) fn together(all: impl IntoIterator<Item = Missing>) -> Vec<Missing> {
    let mut merged: Vec<Missing> = Vec::new();
    for missing in all {
        let same = |m: &&mut Missing| {
            (&m.what, &m.why, &m.links) == (&missing.what, &missing.why, &missing.links)
        };
        match merged.iter_mut().find(same) {
            Some(entry) => {
                entry.gpus.extend(missing.gpus);
                entry.gpus.sort_unstable();
                entry.gpus.dedup();
            }
            None => merged.push(missing),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::recorded::Recorded;

    #[test]
    fn what_links_and_gpus_lack_alike_is_said_once() {
        let recorded = Recorded::default();
        let lacking = |gpu| {
            let mut asking = Asking::of(&recorded, gpu);
            for link in 0..3 {
                asking.miss("NVLink speed", Some(link), "not supported");
            }
            asking.miss("serial number", None, "no permission");
            asking.missing()
        };
        let all = together(lacking(0).into_iter().chain(lacking(1)));
        assert_eq!(all.len(), 2);
        assert_eq!(
            (all[0].gpus.as_slice(), all[0].links.as_slice()),
            (&[0, 1][..], &[0, 1, 2][..])
        );
        assert_eq!((all[1].gpus.as_slice(), all[1].links.len()), (&[0, 1][..], 0));
    }

    #[test]
    fn control_characters_do_not_pass() {
        assert_eq!(printable(" NVIDIA\u{1b}[31m H200\n"), "NVIDIA[31m H200");
    }
}
