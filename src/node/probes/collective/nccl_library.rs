//! Finds NCCL: at the requested path, through the system's loader, and in the folders where Python
//! wheels install it.
//!
//! The candidate list depends only on names; only [`load_nccl`] opens a library.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::ffi::dynamic_library::LibraryLoadError;
use crate::ffi::nccl::{LIBRARY, NcclLibrary};

/// Folder of NCCL in its wheel, relative to a `site-packages` folder.
const WHEEL_SUBFOLDER: &str = "nvidia/nccl/lib";

/// Roots of Python environments to search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclSearchRoots {
    /// `VIRTUAL_ENV`.
    pub virtual_env: Option<PathBuf>,
    /// `CONDA_PREFIX`.
    pub conda: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl NcclSearchRoots {
    /// The roots from this process's environment.
    pub fn from_env() -> Self {
        let named = |name: &str| {
            let value = std::env::var_os(name).filter(|it| it != OsStr::new(""));
            value.map(PathBuf::from).filter(|it| it.is_absolute())
        };
        Self {
            virtual_env: named("VIRTUAL_ENV"),
            conda: named("CONDA_PREFIX"),
            home: named("HOME"),
        }
    }
}

/// The paths where a wheel or conda may have installed NCCL, in search order: the active
/// environment before the user's packages, those before the machine's, and the newest Python first.
/// `listing` returns the names in a folder.
pub fn candidate_paths(
    places: &NcclSearchRoots,
    listing: &dyn Fn(&Path) -> Vec<String>,
) -> Vec<PathBuf> {
    let own = places.home.as_ref().map(|home| home.join(".local"));
    let machine = ["/usr/local", "/usr"].map(PathBuf::from);
    let environments = [&places.virtual_env, &places.conda, &own].into_iter().flatten().cloned();
    let mut found = Vec::new();
    for prefix in environments.chain(machine) {
        if Some(&prefix) == places.conda.as_ref() {
            found.push(prefix.join("lib").join(LIBRARY));
        }
        for lib in ["lib", "lib64"] {
            let lib = prefix.join(lib);
            let mut pythons = listing(&lib);
            pythons.retain(|name| name.starts_with("python3"));
            pythons.sort_by_key(|name| std::cmp::Reverse(python_minor(name)));
            for python in pythons {
                for packages in ["site-packages", "dist-packages"] {
                    found
                        .push(lib.join(&python).join(packages).join(WHEEL_SUBFOLDER).join(LIBRARY));
                }
            }
        }
    }
    found
}

/// The minor version: 12 for `python3.12`.
fn python_minor(python: &str) -> Option<u32> {
    python.strip_prefix("python3.").and_then(|minor| minor.parse().ok())
}

/// Why NCCL cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclLibraryError {
    /// The requested library cannot be used.
    #[error(transparent)]
    Requested(LibraryLoadError),
    /// A library was found but cannot be used.
    #[error("{} cannot be used: {message}", .path.display())]
    Unusable {
        /// Path of the library.
        path: PathBuf,
        /// Reason.
        message: String,
    },
    /// No library was found.
    #[error(
        "{LIBRARY} was found neither by the system's loader nor in {}: install NCCL, or name it with \
         --nccl or FABRICGATE_NCCL",
        if .looked.is_empty() { "a Python environment (none exists)".to_owned() } else { list_folders(.looked) }
    )]
    NotFound {
        /// Folders searched.
        looked: Vec<PathBuf>,
    },
}

/// At most this many searched folders are listed.
const MAX_NAMED_FOLDERS: usize = 8;

fn list_folders(paths: &[PathBuf]) -> String {
    let folders: Vec<String> = paths
        .iter()
        .take(MAX_NAMED_FOLDERS)
        .filter_map(|path| path.parent())
        .map(|folder| folder.display().to_string())
        .collect();
    let more = paths.len().saturating_sub(MAX_NAMED_FOLDERS);
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{rest}", folders.join(", "))
}

/// Loads the requested library, or else the first that is found.
pub fn load_nccl(
    requested: Option<&Path>,
    places: &NcclSearchRoots,
) -> Result<NcclLibrary, NcclLibraryError> {
    if let Some(path) = requested {
        return NcclLibrary::load(Some(path)).map_err(NcclLibraryError::Requested);
    }
    let mut unusable = match NcclLibrary::load(None) {
        Ok(nccl) => return Ok(nccl),
        Err(LibraryLoadError::NotFound { .. }) => None,
        Err(LibraryLoadError::WrongLibrary { path, symbol }) => {
            Some(NcclLibraryError::Unusable { path, message: format!("it has no {symbol}") })
        }
    };
    let looked = candidate_paths(places, &file_names);
    for path in looked.iter().filter(|path| path.exists()) {
        match NcclLibrary::load(Some(path)) {
            Ok(nccl) => return Ok(nccl),
            Err(LibraryLoadError::NotFound { message, .. }) => {
                unusable.get_or_insert(NcclLibraryError::Unusable { path: path.clone(), message });
            }
            Err(LibraryLoadError::WrongLibrary { symbol, .. }) => {
                let message = format!("it has no {symbol}");
                unusable.get_or_insert(NcclLibraryError::Unusable { path: path.clone(), message });
            }
        }
    }
    Err(unusable.unwrap_or(NcclLibraryError::NotFound { looked }))
}

/// The names in a folder; empty if it is unreadable.
fn file_names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(places: &NcclSearchRoots, listed: &[(&str, &[&str])]) -> Vec<String> {
        let listing = |folder: &Path| {
            let found = listed.iter().find(|(name, _)| Path::new(name) == folder);
            found.map_or(Vec::new(), |(_, names)| names.iter().map(|it| (*it).to_owned()).collect())
        };
        let found = candidate_paths(places, &listing);
        found.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_active_environment_is_tried_before_the_machine() {
        let places = NcclSearchRoots {
            virtual_env: Some("/venv".into()),
            conda: Some("/conda".into()),
            home: Some("/home/u".into()),
        };
        let listed: &[(&str, &[&str])] = &[
            ("/venv/lib", &["python3.11"]),
            ("/conda/lib", &["libz.so", "python3.12"]),
            ("/home/u/.local/lib", &["python3.9"]),
            ("/usr/lib", &["python3", "python3.10"]),
        ];
        let found = paths(&places, listed);
        let wheel = |packages: &str| format!("{packages}/nvidia/nccl/lib/libnccl.so.2");
        assert_eq!(found[0], wheel("/venv/lib/python3.11/site-packages"));
        assert_eq!(found[2], "/conda/lib/libnccl.so.2");
        assert_eq!(found[3], wheel("/conda/lib/python3.12/site-packages"));
        assert_eq!(found[5], wheel("/home/u/.local/lib/python3.9/site-packages"));
        assert_eq!(found[7], wheel("/usr/lib/python3.10/site-packages"));
        assert_eq!(found.last(), Some(&wheel("/usr/lib/python3/dist-packages")));
    }

    #[test]
    fn the_newest_python_comes_first_by_number_and_not_alphabetically() {
        let listed: &[(&str, &[&str])] = &[("/usr/lib", &["python3.9", "python3.12", "python2.7"])];
        let found = paths(&NcclSearchRoots::default(), listed);
        assert_eq!(found.len(), 4);
        assert!(found[0].starts_with("/usr/lib/python3.12/"), "{found:?}");
    }

    #[test]
    fn a_requested_library_is_not_replaced_by_another() {
        let error =
            load_nccl(Some(Path::new("/no/such/libnccl.so.2")), &NcclSearchRoots::default());
        let message = error.expect_err("there is none").to_string();
        assert!(message.starts_with("/no/such/libnccl.so.2 cannot be opened"), "{message}");
    }

    #[test]
    fn the_error_names_the_searched_folders() {
        let looked =
            vec![PathBuf::from("/v/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2")];
        let message = NcclLibraryError::NotFound { looked }.to_string();
        assert!(message.contains("/v/lib/python3.12/site-packages/nvidia/nccl/lib:"), "{message}");
        let message = NcclLibraryError::NotFound { looked: Vec::new() }.to_string();
        assert!(message.contains("none exists") && message.contains("--nccl"), "{message}");
    }

    #[test]
    fn an_unusable_library_in_a_wheel_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let packages = folder.path().join("lib/python3.12/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&packages).expect("made");
        std::fs::write(packages.join(LIBRARY), "no library").expect("written");
        let places = NcclSearchRoots {
            virtual_env: Some(folder.path().into()),
            ..NcclSearchRoots::default()
        };
        match load_nccl(None, &places) {
            // This machine may have NCCL installed.
            Ok(nccl) => assert!(!nccl.path().starts_with(folder.path())),
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains("cannot be used"), "{message}");
            }
        }
    }
}
