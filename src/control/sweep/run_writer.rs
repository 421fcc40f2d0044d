//! Writes results into the run folder while the next round is measured.
//!
//! One thread writes. A result is forced to disk before it counts: a resumed run finds either all
//! of a reading or nothing of it. Nothing is judged here.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::store::run_folder::RunFolder;
use crate::store::{MEASUREMENT_FORMAT, MeasurementRecord, RecordError, file};
use model::raw_result::RawResult;
use model::tool_recording::ToolRecording;
use node::exec::CapturedStream;

/// Results that may wait for the disk. Beyond that, measuring waits, so that memory does not grow
/// with the output of tools.
const MAX_QUEUED_READINGS: usize = 256;

/// KiB of outputs that may wait for the disk. Two of the largest fit.
const MAX_QUEUED_KIB: u32 = 256 << 10;

/// A finished reading with its output.
#[derive(Debug)]
pub(super) struct FinishedReading {
    pub(super) result: RawResult,
    pub(super) stdout: CapturedStream,
    pub(super) stderr: CapturedStream,
    pub(super) recording: Option<ToolRecording>,
}

impl FinishedReading {
    /// KiB of its outputs.
    fn size_kib(&self) -> u32 {
        let bytes = self.stdout.bytes.len() + self.stderr.bytes.len();
        u32::try_from(bytes.div_ceil(1024)).unwrap_or(MAX_QUEUED_KIB).min(MAX_QUEUED_KIB)
    }
}

/// The handle of the writing thread.
#[derive(Debug)]
pub(super) struct RunWriter {
    sender: mpsc::Sender<(FinishedReading, OwnedSemaphorePermit)>,
    waiting: Arc<Semaphore>,
    thread: JoinHandle<Result<(), RecordError>>,
}

impl RunWriter {
    pub(super) fn start(folder: RunFolder) -> Self {
        let (sender, mut receiver) =
            mpsc::channel::<(FinishedReading, OwnedSemaphorePermit)>(MAX_QUEUED_READINGS);
        let thread = std::thread::spawn(move || {
            let (mut batch, mut waited) = (Vec::new(), Vec::new());
            while let Some((first, permit)) = receiver.blocking_recv() {
                batch.push(first);
                waited.push(permit);
                while let Ok((next, permit)) = receiver.try_recv() {
                    batch.push(next);
                    waited.push(permit);
                }
                write_batch(&folder, &mut batch)?;
                waited.clear();
            }
            Ok(())
        });
        Self { sender, waiting: Arc::new(Semaphore::new(MAX_QUEUED_KIB as usize)), thread }
    }

    /// Submits a reading; false if writing an earlier one failed.
    pub(super) async fn submit(&self, ended: FinishedReading) -> bool {
        // The semaphore is never closed. After a write error, the permits of the waiting readings
        // return.
        let waiting = Arc::clone(&self.waiting).acquire_many_owned(ended.size_kib()).await;
        let Ok(permit) = waiting else { return false };
        self.sender.send((ended, permit)).await.is_ok()
    }

    /// Waits until everything is on disk.
    pub(super) fn finish(self) -> Result<(), RecordError> {
        drop(self.sender);
        match self.thread.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Writes a batch: outputs first, then the lines that name them.
fn write_batch(folder: &RunFolder, batch: &mut Vec<FinishedReading>) -> Result<(), RecordError> {
    let mut outputs = Vec::new();
    for ended in batch.iter() {
        if let Some(name) = &ended.result.stdout {
            outputs.push((name.as_str(), ended.stdout.bytes.as_slice()));
        }
        if let Some(name) = &ended.result.stderr {
            outputs.push((name.as_str(), ended.stderr.bytes.as_slice()));
        }
    }
    folder.write_many(&outputs)?;
    let read = batch.iter_mut().filter_map(|ended| ended.recording.take());
    let records: Vec<MeasurementRecord> = read
        .map(|recording| MeasurementRecord { format: MEASUREMENT_FORMAT.to_owned(), recording })
        .collect();
    folder.append(file::MEASUREMENTS, &records)?;
    let results: Vec<&RawResult> = batch.iter().map(|ended| &ended.result).collect();
    folder.append(file::RESULTS, &results)?;
    batch.clear();
    Ok(())
}
