//! Queries one GPU, property by property, and records the refusals.

use model::node_facts::MissingFact;

use super::gpu_library::{
    FabricValue, GpuLibrary, GpuNumber, GpuQuery, GpuQueryError, GpuText, GpuValue, LinkNumber,
    PlatformValue, ProcessValue, RowsValue,
};

/// A query session with one GPU.
pub(super) struct GpuQuerySession<'l> {
    library: &'l (dyn GpuLibrary + 'l),
    gpu: u32,
    refused: Vec<MissingFact>,
}

/// Declares the query functions, one per kind of answer.
macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident, $variant:ident -> $kind:ty;)*) => {
        $($(#[$doc])*
        pub(super) fn $name(&self, query: GpuQuery) -> Result<$kind, GpuQueryError> {
            match self.library.query_gpu(self.gpu, query)? {
                GpuValue::$variant(value) => Ok(value),
                other => Err(GpuQueryError::Unreadable(format!("{query}: {other:?}"))),
            }
        })*
    };
}

impl<'l> GpuQuerySession<'l> {
    /// Starts a session with the GPU of this index.
    pub(super) fn new(library: &'l (dyn GpuLibrary + 'l), gpu: u32) -> Self {
        Self { library, gpu, refused: Vec::new() }
    }

    answers! {
        /// Queries a number.
        try_number, Number -> u64;
        /// Queries a text.
        try_text, Text -> String;
        /// Queries fabric information.
        try_fabric, Fabric -> FabricValue;
        /// Queries the GPU's position.
        try_platform, Platform -> PlatformValue;
        /// Queries remapped rows.
        try_remapped_rows, Rows -> RowsValue;
        /// Queries compute processes.
        try_processes, Processes -> Vec<ProcessValue>;
    }

    /// A text; notes a refusal.
    pub(super) fn text(&mut self, text: GpuText) -> Option<String> {
        let found = self.try_text(GpuQuery::Text(text)).map(|text| to_printable(&text));
        self.ok_or_note(text.as_str(), found).filter(|text| !text.is_empty())
    }

    /// A number; notes a refusal.
    pub(super) fn number(&mut self, number: GpuNumber) -> Option<u64> {
        let found = self.try_number(GpuQuery::Number(number));
        self.ok_or_note(number.as_str(), found)
    }

    /// A number that must fit in 32 bits; notes a refusal.
    pub(super) fn number_u32(&mut self, number: GpuNumber) -> Option<u32> {
        let found = self.number(number)?;
        let small = u32::try_from(found).map_err(|_| too_large(found));
        self.ok_or_note(number.as_str(), small)
    }

    /// A boolean; notes a refusal.
    pub(super) fn flag(&mut self, number: GpuNumber) -> Option<bool> {
        self.number(number).map(|value| value != 0)
    }

    /// Queries a field value of a link or part.
    pub(super) fn try_field(&self, id: u32, scope: u32) -> Result<u64, GpuQueryError> {
        self.try_number(GpuQuery::Field { id, scope })
    }

    /// Queries a number of a link.
    pub(super) fn try_link(&self, link: u32, number: LinkNumber) -> Result<u64, GpuQueryError> {
        self.try_number(GpuQuery::Link(link, number))
    }

    /// Returns the value; notes a refusal.
    pub(super) fn ok_or_note<T>(
        &mut self,
        what: &str,
        found: Result<T, GpuQueryError>,
    ) -> Option<T> {
        match found {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.note_refusal(what, None, &refusal);
                None
            }
        }
    }

    /// Like [`Self::ok_or_note`], for one link.
    pub(super) fn ok_or_note_link<T>(
        &mut self,
        what: &str,
        link: u32,
        found: Result<T, GpuQueryError>,
    ) -> Option<T> {
        match found {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.note_refusal(what, Some(link), &refusal);
                None
            }
        }
    }

    /// Notes a refusal. A lost GPU refuses every further query, which is reported once.
    fn note_refusal(&mut self, what: &str, link: Option<u32>, refusal: &GpuQueryError) {
        match refusal {
            GpuQueryError::GpuLost | GpuQueryError::ResetRequired => {
                self.note_missing("all further facts", None, &refusal.to_string());
            }
            refusal => self.note_missing(what, link, &refusal.to_string()),
        }
    }

    /// Notes a missing fact. Several links with the same reason share one entry.
    pub(super) fn note_missing(&mut self, what: &str, link: Option<u32>, why: &str) {
        let same = |m: &&mut MissingFact| m.what == what && m.why == why;
        match (link, self.refused.iter_mut().find(same)) {
            (Some(link), Some(missing)) if !missing.links.is_empty() => missing.links.push(link),
            (None, Some(missing)) if missing.links.is_empty() => {}
            (link, _) => self.refused.push(MissingFact {
                what: what.to_owned(),
                gpus: vec![self.gpu],
                links: link.into_iter().collect(),
                why: why.to_owned(),
            }),
        }
    }

    pub(super) fn into_missing(self) -> Vec<MissingFact> {
        self.refused
    }
}

fn too_large(number: u64) -> GpuQueryError {
    GpuQueryError::Unreadable(format!("{number} is too large"))
}

/// External text without control characters and surrounding blanks.
pub(super) fn to_printable(text: &str) -> String {
    let kept: String = text.chars().filter(|c| !c.is_control()).collect();
    kept.trim().to_owned()
}

/// Merges missing facts that several GPUs share for one reason.
pub(super) fn merge_missing(all: impl IntoIterator<Item = MissingFact>) -> Vec<MissingFact> {
    let mut merged: Vec<MissingFact> = Vec::new();
    for missing in all {
        let same = |m: &&mut MissingFact| {
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
    use crate::facts::library_record::RecordedLibrary;

    #[test]
    fn facts_missing_on_several_links_and_gpus_are_merged() {
        let recorded = RecordedLibrary::default();
        let lacking = |gpu| {
            let mut session = GpuQuerySession::new(&recorded, gpu);
            for link in 0..3 {
                session.note_missing("NVLink speed", Some(link), "not supported");
            }
            session.note_missing("serial number", None, "no permission");
            session.into_missing()
        };
        let all = merge_missing(lacking(0).into_iter().chain(lacking(1)));
        assert_eq!(all.len(), 2);
        assert_eq!(
            (all[0].gpus.as_slice(), all[0].links.as_slice()),
            (&[0, 1][..], &[0, 1, 2][..])
        );
        assert_eq!((all[1].gpus.as_slice(), all[1].links.len()), (&[0, 1][..], 0));
    }

    #[test]
    fn control_characters_are_removed() {
        assert_eq!(to_printable(" NVIDIA\u{1b}[31m H200\n"), "NVIDIA[31m H200");
    }
}
