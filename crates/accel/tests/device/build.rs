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
    "-g",
    "-fPIC",
    "-fvisibility=hidden",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
];

/// The parts of the library; the last one has the kernels.
const PARTS: [&str; 3] = ["driver", "emulator", "kernels"];

type Outcome<T> = Result<T, String>;

fn changed(path: &Path) -> SystemTime {
    std::fs::metadata(path)
        .and_then(|m| m.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("standin")
}

fn compiler(arguments: &[&std::ffi::OsStr]) -> Outcome<String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_string());
    let output = Command::new(&compiler).args(arguments).output();
    let output = output.map_err(|e| format!("{compiler}: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Compiles one part, optimised so much; `folder` has `standin/` and `cuda/`.
fn compile(folder: &Path, part: &str, object: &Path, level: &str) -> Outcome<()> {
    let include = folder.join("standin");
    let source = include.join(format!("{part}.cpp"));
    let mut arguments: Vec<_> = FLAGS.iter().map(|flag| flag.as_ref()).collect();
    arguments.extend([level.as_ref(), "-I".as_ref(), include.as_os_str()]);
    arguments.extend([
        "-c".as_ref(),
        source.as_os_str(),
        "-o".as_ref(),
        object.as_os_str(),
    ]);
    compiler(&arguments).map(drop)
}

fn link(objects: &[PathBuf], library: &Path) -> Outcome<()> {
    let fresh = library.with_extension(format!("{}.new", std::process::id()));
    let mut arguments: Vec<_> = FLAGS.iter().map(|flag| flag.as_ref()).collect();
    arguments.push("-shared".as_ref());
    arguments.extend(objects.iter().map(|object| object.as_os_str()));
    arguments.extend(["-o".as_ref(), fresh.as_os_str()]);
    compiler(&arguments)?;
    std::fs::rename(&fresh, library).map_err(|e| e.to_string())
}

fn object(part: &str) -> PathBuf {
    scratch().join(format!("{part}.o"))
}

fn sources() -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    for part in ["standin", "cuda"] {
        let entries = std::fs::read_dir(crate_folder().join(part)).map_err(|e| e.to_string())?;
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    Ok(files)
}

/// The library, built if need be.
pub fn standin() -> Outcome<Library> {
    std::fs::create_dir_all(scratch()).map_err(|e| e.to_string())?;
    let newest = sources()?.iter().map(|path| changed(path)).max();
    let library = scratch().join("libcuda.so");
    let objects = PARTS.map(object);
    let whole = objects.iter().all(|object| object.exists());
    if !whole || Some(changed(&library)) <= newest {
        std::thread::scope(|scope| {
            let parts: Vec<_> = PARTS
                .iter()
                .zip(&objects)
                .map(|(part, object)| scope.spawn(|| compile(crate_folder(), part, object, "-O1")))
                .collect();
            parts
                .into_iter()
                .try_for_each(|part| part.join().map_err(|_| String::new())?)
        })?;
        link(&objects, &library)?;
    }
    Ok(Library {
        folder: scratch(),
        sanitizer: sanitizer()?,
    })
}

fn sanitizer() -> Outcome<PathBuf> {
    compiler(&["-print-file-name=libasan.so".as_ref()]).map(PathBuf::from)
}

/// The library with a mistake in a kernel: in `file` the text `right` is replaced by `wrong`.
pub fn with_mistake(name: &str, file: &str, right: &str, wrong: &str) -> Outcome<Library> {
    let folder = scratch().join(name);
    for part in ["standin", "cuda"] {
        std::fs::create_dir_all(folder.join(part)).map_err(|e| e.to_string())?;
    }
    for path in sources()?.iter().filter(|path| path.is_file()) {
        let inside = path
            .strip_prefix(crate_folder())
            .map_err(|e| e.to_string())?;
        let mut text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        if path.ends_with(file) {
            assert_eq!(
                text.matches(right).count(),
                1,
                "{right} stands once in {file}"
            );
            text = text.replace(right, wrong);
        }
        std::fs::write(folder.join(inside), text).map_err(|e| e.to_string())?;
    }
    let kernels = folder.join("kernels.o");
    compile(&folder, "kernels", &kernels, "-O0")?;
    link(
        &[object("driver"), object("emulator"), kernels],
        &folder.join("libcuda.so"),
    )?;
    Ok(Library {
        folder,
        sanitizer: sanitizer()?,
    })
}
