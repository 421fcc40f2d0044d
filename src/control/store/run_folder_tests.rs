//! Loss of power: every operation on the disk is recorded, and every prefix of them is replayed,
//! losing all data that was not forced. After each, every name stands for a whole file.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::*;

/// One operation. A file is identified by the name under which it was created.
#[derive(Clone, Debug)]
enum DiskOperation {
    Make(PathBuf),
    Create(PathBuf),
    Write(PathBuf, Vec<u8>),
    Sync(PathBuf),
    SyncAll,
    Rename(PathBuf, PathBuf),
    SyncFolder(PathBuf),
    /// A call returned: the bytes it wrote must survive from here on.
    Done(Vec<(PathBuf, Vec<u8>)>),
}

/// Performs and records each operation.
#[derive(Default)]
struct RecordingDisk {
    log: RefCell<Vec<DiskOperation>>,
}

impl RecordingDisk {
    fn record(&self, op: DiskOperation, done: io::Result<()>) -> io::Result<()> {
        done.map(|()| self.log.borrow_mut().push(op))
    }
}

impl DiskLayer for RecordingDisk {
    fn make(&self, folder: &Path) -> io::Result<()> {
        self.record(DiskOperation::Make(folder.to_owned()), SystemDisk.make(folder))
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        let file = SystemDisk.create(path)?;
        self.record(DiskOperation::Create(path.to_owned()), Ok(()))?;
        Ok(file)
    }

    fn write(&self, path: &Path, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let done = SystemDisk.write(path, file, bytes);
        self.record(DiskOperation::Write(path.to_owned(), bytes.to_vec()), done)
    }

    fn sync(&self, path: &Path, file: &File) -> io::Result<()> {
        self.record(DiskOperation::Sync(path.to_owned()), SystemDisk.sync(path, file))
    }

    fn sync_all(&self, _: &File) -> io::Result<()> {
        // The whole file system of the test machine is not forced to disk.
        self.record(DiskOperation::SyncAll, Ok(()))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.record(
            DiskOperation::Rename(from.to_owned(), to.to_owned()),
            SystemDisk.rename(from, to),
        )
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.record(DiskOperation::SyncFolder(folder.to_owned()), SystemDisk.sync_folder(folder))
    }
}

/// The outcome for names that were not forced.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UnsyncedNames {
    /// Written immediately (ext4 and XFS may, before the data).
    Durable,
    Lost,
}

/// A disk: the content of its cache, and the content after a loss of power.
struct PowerLossModel {
    names: UnsyncedNames,
    /// Contents by number: written, and forced.
    files: Vec<(Vec<u8>, Vec<u8>)>,
    cached: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    /// Folders: whether their name is durable.
    folders: BTreeMap<PathBuf, bool>,
}

impl PowerLossModel {
    fn new(names: UnsyncedNames, root: &Path) -> Self {
        let folders = BTreeMap::from([(root.to_owned(), true)]);
        let (cached, durable) = (BTreeMap::new(), BTreeMap::new());
        Self { names, files: Vec::new(), cached, durable, folders }
    }

    fn sync_folder(&mut self, folder: &Path) {
        self.durable.retain(|path, _| path.parent() != Some(folder));
        let here = self.cached.iter().filter(|(path, _)| path.parent() == Some(folder));
        self.durable.extend(here.map(|(path, file)| (path.clone(), *file)));
        for (path, is_durable) in &mut self.folders {
            *is_durable |= path.parent() == Some(folder);
        }
    }

    fn apply(&mut self, op: &DiskOperation) {
        match op {
            DiskOperation::Make(folder) => {
                self.folders.insert(folder.clone(), self.names == UnsyncedNames::Durable);
            }
            DiskOperation::Create(path) => {
                self.files.push((Vec::new(), Vec::new()));
                self.cached.insert(path.clone(), self.files.len() - 1);
            }
            DiskOperation::Write(path, bytes) => {
                self.files[self.cached[path]].0.extend_from_slice(bytes);
            }
            DiskOperation::Sync(path) => {
                let (written, forced) = &mut self.files[self.cached[path]];
                forced.clone_from(written);
            }
            DiskOperation::SyncAll => {
                self.files.iter_mut().for_each(|(written, forced)| forced.clone_from(written));
                self.durable.clone_from(&self.cached);
                self.folders.values_mut().for_each(|it| *it = true);
            }
            DiskOperation::Rename(from, to) => {
                let file = self.cached.remove(from).expect("it was made");
                self.cached.insert(to.clone(), file);
            }
            DiskOperation::SyncFolder(folder) => self.sync_folder(folder),
            DiskOperation::Done(_) => {}
        }
        if self.names == UnsyncedNames::Durable {
            self.durable.clone_from(&self.cached);
        }
    }

    /// The bytes of a file after a loss of power.
    fn bytes_after_loss(&self, path: &Path) -> Option<&[u8]> {
        let reached = path.ancestors().skip(1).all(|it| self.folders.get(it).is_none_or(|it| *it));
        let file = self.durable.get(path).filter(|_| reached)?;
        Some(&self.files[*file].1)
    }
}

fn fill_with(bytes: &[u8]) -> impl FnMut(&mut dyn Write) -> io::Result<()> + '_ {
    move |file| {
        // In two pieces, larger than the write buffer.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        file.write_all(first)?;
        file.write_all(second)
    }
}

#[test]
fn after_a_loss_of_power_every_file_is_whole_and_finished_writes_stay() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("run");
    fs::create_dir(&root).expect("made");
    let recorder = RecordingDisk::default();
    let large = vec![b'x'; 3 * BUFFER_BYTES];
    let many: Vec<(String, Vec<u8>)> = (0..MAX_SINGLE_SYNCS + 3)
        .map(|number| (format!("raw/nodes/n{number}/a.txt"), format!("of {number}").into_bytes()))
        .collect();
    let few = [("raw/nodes/n1/b.txt".to_owned(), b"few".to_vec())];
    let calls: Vec<Vec<(String, Vec<u8>)>> = vec![
        vec![("certificate.json".to_owned(), b"first".to_vec())],
        few.to_vec(),
        many,
        vec![("certificate.json".to_owned(), large)],
        vec![("certificate.json".to_owned(), b"void".to_vec()), ("c".to_owned(), Vec::new())],
    ];
    let mut versions: BTreeMap<PathBuf, Vec<Vec<u8>>> = BTreeMap::new();
    for call in &calls {
        let paths: Vec<PathBuf> = call.iter().map(|(name, _)| root.join(name)).collect();
        let mut fills: Vec<_> = call.iter().map(|(_, bytes)| fill_with(bytes)).collect();
        let mut files: Vec<FileToWrite<'_>> =
            paths.iter().zip(&mut fills).map(|(path, fill)| FileToWrite { path, fill }).collect();
        write_files(&recorder, &mut files).expect("put");
        let done = paths.iter().cloned().zip(call.iter().map(|(_, bytes)| bytes.clone()));
        let done: Vec<(PathBuf, Vec<u8>)> = done.collect();
        for (path, bytes) in &done {
            versions.entry(path.clone()).or_default().push(bytes.clone());
        }
        recorder.log.borrow_mut().push(DiskOperation::Done(done));
    }
    let log = recorder.log.into_inner();
    assert!(100 < log.len());
    for names in [UnsyncedNames::Durable, UnsyncedNames::Lost] {
        let mut model = PowerLossModel::new(names, &root);
        let mut must: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        for (number, op) in log.iter().enumerate() {
            model.apply(op);
            if let DiskOperation::Done(done) = op {
                must.extend(done.iter().cloned());
            }
            for (path, versions) in &versions {
                let after = model.bytes_after_loss(path);
                let place = || format!("{names:?}, after {number} ({op:?}): {}", path.display());
                if let Some(bytes) = after {
                    assert!(versions.iter().any(|it| it == bytes), "{}: not whole", place());
                }
                // A file that is being replaced may be in either version.
                let is_known = must.contains_key(path);
                assert!(!is_known || after.is_some(), "{}: missing", place());
                if let (DiskOperation::Done(_), Some(bytes)) = (op, must.get(path)) {
                    assert_eq!(after, Some(bytes.as_slice()), "{}: an older version", place());
                }
            }
        }
    }
}
