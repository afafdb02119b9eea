//! NVIDIA's run-time compiler used ahead of time: source in, machine code of one architecture out.
//!
//! The wheels of CUDA 12.9 are the newest of that major version; what they compile is loaded by every driver of it
//! (525 and later, 570 and later for the newest cards).

use anyhow::{Context, Result, bail, ensure};
use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

const WHEELS: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-runtime-cu12==12.9.79"];

type Program = *mut c_void;

/// The compiler, loaded.
pub struct Nvrtc {
    lib: Library,
    include: PathBuf,
}

impl Nvrtc {
    /// Loads the compiler from `dir`, where it is downloaded to first if it is not there.
    pub fn open(dir: &Path) -> Result<Self> {
        let root = dir.join("nvidia");
        if !root.join("cuda_nvrtc/lib/libnvrtc.so.12").exists() {
            fetch(dir)?;
        }
        // The compiler opens its builtins by name; loaded first, they are found.
        let open = |name: &str| {
            // SAFETY: NVIDIA's libraries only register themselves when they are loaded.
            unsafe { Library::new(root.join("cuda_nvrtc/lib").join(name)) }.with_context(|| format!("loading {name}"))
        };
        std::mem::forget(open("libnvrtc-builtins.so.12.9")?);
        Ok(Nvrtc { lib: open("libnvrtc.so.12")?, include: root.join("cuda_runtime/include") })
    }

    fn call<F>(&self, name: &str) -> Result<Symbol<'_, F>> {
        // SAFETY: the types are those of nvrtc.h.
        Ok(unsafe { self.lib.get(name.as_bytes()) }?)
    }

    /// Compiles `file` for `arch`: `sm_NN` gives machine code, `compute_NN` PTX.
    pub fn compile(&self, file: &Path, arch: &str) -> Result<Vec<u8>> {
        let source = CString::new(std::fs::read(file).with_context(|| file.display().to_string())?)?;
        let name = CString::new(file.file_name().context("a file")?.to_string_lossy().into_owned())?;
        let here = file.parent().context("a folder")?.display();
        let options = [
            format!("--gpu-architecture={arch}"),
            "--std=c++17".into(),
            format!("--include-path={}", self.include.display()),
            format!("--include-path={here}"),
        ];
        let options: Vec<CString> = options.into_iter().map(CString::new).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: signatures as in nvrtc.h; every string outlives its call.
        unsafe {
            type Create = unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int;
            type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
            let none = std::ptr::null();
            let made =
                self.call::<Create>("nvrtcCreateProgram")?(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none);
            ensure!(made == 0, "nvrtcCreateProgram: {made}");
            let done =
                self.call::<Compile>("nvrtcCompileProgram")?(program, pointers.len() as c_int, pointers.as_ptr());
            let log = self.output(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
            let log = CStr::from_bytes_until_nul(&log).map_or("", |c| c.to_str().unwrap_or("")).trim();
            if done != 0 {
                bail!("{} for {arch}:\n{log}", file.display());
            }
            if !log.is_empty() {
                eprintln!("{} for {arch}:\n{log}", file.display());
            }
            match arch.starts_with("sm_") {
                true => self.output(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"),
                false => self.output(program, "nvrtcGetPTXSize", "nvrtcGetPTX"),
            }
        }
    }

    /// # Safety
    /// `program` is live.
    unsafe fn output(&self, program: Program, size: &str, get: &str) -> Result<Vec<u8>> {
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        let mut n = 0;
        // SAFETY: the caller's; the buffer has the size that the compiler asked for.
        unsafe {
            ensure!(self.call::<Size>(size)?(program, &mut n) == 0, "{size} failed");
            let mut out = vec![0u8; n];
            ensure!(self.call::<Get>(get)?(program, out.as_mut_ptr().cast()) == 0, "{get} failed");
            Ok(out)
        }
    }
}

fn fetch(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    eprintln!("fetching the compiler (93 MB) into {}", dir.display());
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]).arg(dir).args(WHEELS);
    ensure!(pip.status().context("python3 is needed to fetch the compiler")?.success(), "pip download failed");
    for wheel in
        std::fs::read_dir(dir)?.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.extension() == Some("whl".as_ref()))
    {
        let done = Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(dir).status()?;
        ensure!(done.success(), "could not unpack {}", wheel.display());
        std::fs::remove_file(wheel)?;
    }
    Ok(())
}
