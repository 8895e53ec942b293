//! Numbers the build of the kernels, and compiles those of GPUs, where the feature `cuda` is on: to machine code for sm_80 and sm_90a, and to
//! PTX of compute_80 and compute_90, of which the driver of a newer GPU makes its own. `ASTERISM_CUDA_TARGETS` names others. With `ASTERISM_CUDA_STUB=1` it compiles none: the crate can then be checked without a compiler, and opens no GPU but those of a driver that computes nothing.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Sources below `src/cuda/kernels`.
const KERNELS: &[&str] = &[
    "tensors/elementwise",
    "tensors/moves",
    "tensors/exchange",
    "tensors/kept",
    "tensors/sampling",
    "linear/products",
    "linear/few",
    "linear/few_hopper",
    "linear/block_weights",
    "linear/eight",
    "attention/attention",
    "attention/hopper",
    "attention/codes",
    "attention/float8",
    "attention/combine",
    "attention/selected",
    "attention/selected_hopper",
    "attention/plain",
    "selection/stripes",
    "selection/estimates",
    "selection/blocks",
    "selection/lists",
];
/// What is compiled for unless [`TARGETS`] says otherwise: an architecture, or with `-ptx` what drivers compile themselves.
const ALL_TARGETS: &str = "80,90a,80-ptx,90-ptx";
/// Some of them, with commas between: `80-ptx` alone runs the code of the A100 on any GPU.
const TARGETS: &str = "ASTERISM_CUDA_TARGETS";
/// Set to 1 where there is no compiler and nothing is to be computed.
const STUB: &str = "ASTERISM_CUDA_STUB";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    println!("cargo::rustc-env=ASTERISM_KERNELS_BUILD={:08x}", build_number(&version_of(&rustc, "-vV")) as u32);
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let targets = targets();
    println!("cargo::rustc-env={TARGETS}={}", targets.join(","));
    for name in [STUB, TARGETS, "NVCC", "CUDA_HOME", "PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    if env::var_os(STUB).is_some_and(|value| value == "1") {
        return stub(&out);
    }
    let nvcc = nvcc();
    let compiler = compiler_of(&nvcc, &targets);
    println!("cargo::rustc-env=ASTERISM_CUDA_BUILD={:08x}", build_number(&compiler) as u32);
    // What compiled them last: none is compiled again that nothing changed of.
    let (stamp, number) = (out.join("kernels"), number_of(Path::new("src/cuda/kernels"), &compiler).to_string());
    if fs::read_to_string(&stamp).is_ok_and(|last| last == number) {
        return;
    }
    for kernel in KERNELS {
        let source = format!("src/cuda/kernels/{kernel}.cu");
        let mut command = Command::new(&nvcc);
        command.args(["-fatbin", "-O3", "-std=c++17", "-lineinfo", "-Isrc/cuda/kernels/include"]).arg(&source);
        command.arg("-o").arg(machine_code(&out, kernel));
        command.args(targets.iter().map(|target| code_for(target)));
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => fail(&format!("{} failed on {source}: {status}", nvcc.display())),
            Err(error) => fail(&format!("cannot run {}: {error}", nvcc.display())),
        }
    }
    fs::write(stamp, number).expect("OUT_DIR can be written to");
}

/// What to compile for, in order and each once.
fn targets() -> Vec<String> {
    let named = env::var(TARGETS).unwrap_or_else(|_| ALL_TARGETS.into());
    let named: Vec<&str> = named.split(',').map(str::trim).collect();
    let known: Vec<&str> = ALL_TARGETS.split(',').collect();
    if let Some(unknown) = named.iter().find(|target| !known.contains(target)) {
        println!(
            "cargo::error={TARGETS}: {unknown:?} is none of {ALL_TARGETS}; name some of these, with commas between"
        );
        std::process::exit(1);
    }
    known.into_iter().filter(|target| named.contains(target)).map(str::to_owned).collect()
}

/// How the compiler is told of a target.
fn code_for(target: &str) -> String {
    match target.strip_suffix("-ptx") {
        Some(architecture) => format!("-gencode=arch=compute_{architecture},code=compute_{architecture}"),
        None => format!("-gencode=arch=compute_{target},code=sm_{target}"),
    }
}

/// What a compiler says of itself, and what it compiles for.
fn compiler_of(nvcc: &OsStr, targets: &[String]) -> Vec<u8> {
    [version_of(nvcc, "--version"), targets.join(",").into_bytes()].concat()
}

/// Where a kernel's machine code goes.
fn machine_code(out: &Path, kernel: &str) -> PathBuf {
    let (_, name) = kernel.split_once('/').expect("sources lie in folders");
    out.join(format!("{name}.fatbin"))
}

/// Empty files instead of machine code: what loads them says so.
fn stub(out: &Path) {
    println!("cargo::rustc-env=ASTERISM_CUDA_BUILD=stub");
    let _ = fs::remove_file(out.join("kernels"));
    for kernel in KERNELS {
        fs::write(machine_code(out, kernel), []).expect("OUT_DIR can be written to");
    }
}

/// FNV-1a of the sources, the compiler and what it compiles for: builds of one number compute the same bits.
fn build_number(compiler: &[u8]) -> u64 {
    number_of(Path::new("src"), compiler)
}

/// The same of the sources in one folder.
fn number_of(folder: &Path, compiler: &[u8]) -> u64 {
    let mut sources = Vec::new();
    collect(folder, &mut sources);
    sources.sort();
    let target = env::var("TARGET").unwrap_or_default();
    let contents = sources.iter().map(|path| fs::read(path).expect("a source can be read"));
    let parts = [compiler.to_vec(), target.into_bytes()].into_iter().chain(contents);
    parts.flatten().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What a compiler says of itself; nothing where it cannot be run.
fn version_of(compiler: &OsStr, argument: &str) -> Vec<u8> {
    Command::new(compiler).arg(argument).output().map(|output| output.stdout).unwrap_or_default()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources can be listed") {
        let path = entry.expect("the sources can be listed").path();
        match path.is_dir() {
            true => collect(&path, files),
            false => files.push(path),
        }
    }
}

/// The compiler that `NVCC` names, or the one below `CUDA_HOME`, or the one on the path.
fn nvcc() -> OsString {
    if let Some(nvcc) = env::var_os("NVCC") {
        return nvcc;
    }
    let below = env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin/nvcc"));
    below.filter(|path| path.exists()).map_or_else(|| "nvcc".into(), Into::into)
}

fn fail(cause: &str) -> ! {
    println!("cargo::error={cause}");
    println!(
        "cargo::error=the feature `cuda` needs CUDA's compiler, 13.0 or earlier: set NVCC or CUDA_HOME, or fetch one with \
         `eval \"$(kernels/cuda-toolchain.sh)\"`; without the feature, or to check with {STUB}=1, no compiler is needed"
    );
    std::process::exit(1);
}
