//! Reproducible archives (`.tar.gz`): the same files give the same bytes, with sorted names, one
//! time for all, and user and group 0. An archive is written whole or not at all.

use std::io;
use std::path::Path;

use flate2::{Compression, GzBuilder};

use super::run_folder;

/// Mode of every file: readable by all users.
const FILE_MODE: u32 = 0o644;

/// The bytes of an archive of these files below the folder `top`. `at` is the modification time of
/// all files, in seconds since 1970.
pub fn build_archive(top: &str, files: &[(String, Vec<u8>)], at: u64) -> io::Result<Vec<u8>> {
    let mut order: Vec<&(String, Vec<u8>)> = files.iter().collect();
    order.sort_by(|a, b| a.0.cmp(&b.0));
    // The gzip header has neither a time nor a name (RFC 1952, section 2.3.1).
    let packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    let mut archive = tar::Builder::new(packed);
    archive.mode(tar::HeaderMode::Deterministic);
    for (name, content) in order {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(FILE_MODE);
        header.set_mtime(at);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, format!("{top}/{name}"), content.as_slice())?;
    }
    archive.into_inner()?.finish()
}

/// Replaces a file with such an archive, whole or not at all.
pub fn write_archive(path: &Path, bytes: &[u8]) -> io::Result<()> {
    run_folder::replace_file(path, bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_same_files_in_another_order_are_the_same_archive() {
        let one = ("b.txt".to_owned(), b"two".to_vec());
        let long = format!("raw/{}.txt", "x".repeat(180));
        let other = (long.clone(), b"one".to_vec());
        let packed =
            build_archive("top", &[one.clone(), other.clone()], 1_700_000_000).expect("packed");
        assert_eq!(packed, build_archive("top", &[other, one], 1_700_000_000).expect("packed"));

        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        let mut seen = Vec::new();
        for entry in archive.entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let header = entry.header();
            assert_eq!(header.mtime().expect("a time"), 1_700_000_000);
            let ids = (header.uid().expect("a user"), header.gid().expect("a group"));
            assert_eq!((ids, header.mode().expect("a mode")), ((0, 0), 0o644));
            let name = entry.path().expect("a name").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            seen.push((name, text));
        }
        let want = [("top/b.txt".to_owned(), "two"), (format!("top/{long}"), "one")];
        assert_eq!(seen, want.map(|(name, text)| (name, text.to_owned())));
    }

    #[test]
    fn a_name_that_leads_out_of_the_folder_is_refused() {
        let files = [("../else.txt".to_owned(), Vec::new())];
        assert!(build_archive("top", &files, 0).is_err());
    }
}
