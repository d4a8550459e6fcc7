//! Builds the stand-in with the system's compiler, unless it is newer than its sources.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// What was built.
pub struct Library {
    /// The folder with `libcuda.so`.
    pub folder: PathBuf,
    /// The run time of the address sanitizer, which must be loaded first.
    pub sanitizer: PathBuf,
}

const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-g",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
];

fn changed(path: &Path) -> SystemTime {
    std::fs::metadata(path)
        .and_then(|m| m.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The library, built if need be.
pub fn standin() -> Result<Library, String> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standin");
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_string());
    let mut newest = SystemTime::UNIX_EPOCH;
    let mut sources = Vec::new();
    for part in ["standin", "cuda"] {
        let entries = std::fs::read_dir(crate_folder.join(part)).map_err(|e| e.to_string())?;
        for path in entries.flatten().map(|entry| entry.path()) {
            newest = newest.max(changed(&path));
            if path.extension().is_some_and(|e| e == "cpp") {
                sources.push(path);
            }
        }
    }
    sources.sort();
    let library = folder.join("libcuda.so");
    if changed(&library) <= newest {
        let fresh = folder.join(format!("libcuda.{}.so", std::process::id()));
        let mut command = Command::new(&compiler);
        command
            .args(FLAGS)
            .arg("-I")
            .arg(crate_folder.join("standin"));
        command.args(&sources).arg("-o").arg(&fresh);
        let output = command.output().map_err(|e| format!("{compiler}: {e}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        std::fs::rename(&fresh, &library).map_err(|e| e.to_string())?;
    }
    let output = Command::new(&compiler)
        .arg("-print-file-name=libasan.so")
        .output();
    let text = output.map_err(|e| e.to_string())?.stdout;
    let sanitizer = PathBuf::from(String::from_utf8_lossy(&text).trim());
    Ok(Library { folder, sanitizer })
}
